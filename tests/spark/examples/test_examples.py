"""The examples of examples/spark run as they are, in the tests' own session; the declarative one in Spark's own runner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"


def example(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # Its classes travel to Spark's workers whole, as those of a script do: the module is not installed anywhere.
    cloudpickle.register_pickle_by_value(module)
    return module


def test_a_snapshot_the_past_and_a_difference_are_tables(spark: Any, broker: Any) -> None:
    """M12, K-14: SQL over now, over a moment that is gone, and over what changed between two moments."""
    result = example("batch_sql").main(spark, broker.url)
    assert result["then"] == sum(range(1000))
    assert result["now"] == sum(range(100, 999))
    assert result["difference"] == {"changed": 100, "deleted": 1}


def test_two_streams_are_joined_and_summed_in_windows(spark: Any, broker: Any) -> None:
    """Joins and watermarks of structured streaming work over streams without keys."""
    assert example("windows").main(spark, broker.url) == {f"12:0{n}": 50 for n in (0, 2)}


def test_a_processor_keeps_state_and_writes_it_back(spark: Any, broker: Any) -> None:
    """transformWithState between two streams: each run goes on where the one before stopped."""
    counts = example("stateful").main(spark, broker.url)
    assert counts == {f"o-{n}": 1 + (n % 2 == 0) + (n % 3 == 0) for n in range(20)}


@pytest.mark.timeout(400)
def test_a_declarative_pipeline_runs(broker: Any, db: Any, tmp_path: Path) -> None:
    """pyspark.pipelines with a stream as source and a stream as sink, in Spark's own runner."""
    db.stream("example.declared", create=True).put_many([(f"o-{n}", str(n)) for n in range(100)])
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("STORAGE", str(tmp_path / "storage")))
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-pipelines")),
            "run",
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        ],
        cwd=folder,
        env={
            **os.environ,
            "TIDEMARK_URL": broker.url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",  # Spark's own way to a free port for its Connect server
            "PYTHONPATH": str(EXAMPLES.parents[1] / "src"),
        },
        capture_output=True,
        text=True,
        timeout=350,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    held = {row.key.decode(): int(row.value) for row in db.stream("example.expensive").snapshot()}
    assert held == {f"o-{n}": n for n in range(50, 100)}
