"""Sessions have the settings that the connector likes, and the caller's own win."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tidemark_spark import own_session
from tidemark_spark.interpreter import quick_python
from tidemark_spark.session import FAST_START, FILE_MANAGER, cores, is_local, is_local_path, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_without_a_master_all_cores_of_this_machine_are_used() -> None:
    assert settings()["spark.master"] == "local[*,4]"


def test_under_spark_submit_the_master_and_the_driver_stay_as_they_were_submitted() -> None:
    found = settings(submitted=True, fast_start=True)
    assert "spark.master" not in found
    assert "spark.driver.extraJavaOptions" not in found
    assert settings(submitted=True, master="local[1]")["spark.master"] == "local[1]"


def test_what_the_caller_sets_wins() -> None:
    found = settings(
        conf={
            "spark.sql.session.timeZone": "Europe/Rome",
            "spark.ui.enabled": "true",
            "spark.master": "local[3]",
        }
    )
    assert found["spark.sql.session.timeZone"] == "Europe/Rome"
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.master"] == "local[3]"
    assert found["spark.sql.shuffle.partitions"] == "3"


def test_a_master_that_is_named_wins_over_one_in_the_configuration() -> None:
    assert settings(master="local[1]", conf={"spark.master": "yarn"})["spark.master"] == "local[1]"


def test_java_options_of_the_caller_are_added_to_ours() -> None:
    found = settings(conf={"spark.driver.extraJavaOptions": "-Dx=1 -Dy=2"}, fast_start=True)
    options = found["spark.driver.extraJavaOptions"]
    assert options.endswith("-Dx=1 -Dy=2")
    assert FAST_START in options


def test_packages_are_joined_to_those_of_the_configuration() -> None:
    assert settings(packages=["a:b:1", "c:d:2"], conf={"spark.jars.packages": "e:f:3"})[
        "spark.jars.packages"
    ] == ("e:f:3,a:b:1,c:d:2")


@pytest.mark.parametrize(
    ("path", "is_local_one"),
    [
        ("state/x", True),
        ("/var/state", True),
        ("file:/var/x", True),
        ("s3a://b/x", False),
        ("hdfs:///x", False),
        (None, False),
    ],
)
def test_only_checkpoints_on_a_local_path_are_written_with_the_faster_manager(
    path: str | None, is_local_one: bool
) -> None:
    assert is_local_path(path) == is_local_one
    assert (settings(checkpoints=path).get(MANAGER) == FILE_MANAGER) == is_local_one


def test_a_cluster_is_told_nothing_about_this_machine() -> None:
    found = settings(master="spark://host:7077")
    assert not {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.sql.shuffle.partitions",
        "spark.ui.enabled",
    } & set(found)


@pytest.mark.parametrize(
    ("master", "local", "number"),
    [
        ("local", True, 1),
        ("local[2]", True, 2),
        ("local[3,4]", True, 3),
        ("spark://h:7077", False, 1),
        ("yarn", False, 1),
    ],
)
def test_masters_are_told_apart(master: str, local: bool, number: int) -> None:
    assert is_local(master) == local
    assert cores(master) == number


def test_a_session_has_these_settings_and_runs_workers_of_this_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get(MANAGER) == FILE_MANAGER
    [worker] = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect()
    assert worker == sys.executable


def test_workers_import_compiled_files_and_not_sparks_archive(spark: SparkSession) -> None:
    [origin] = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    assert ".zip" not in origin


def test_sparks_archives_are_taken_off_the_path_and_everything_else_stays() -> None:
    path = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/a b:*:/mine.zip"
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1:])"

    told = subprocess.run(
        [quick_python(sys.executable), "-c", program, "a b", "*"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout.strip() == f"/a b:*:/mine.zip {sys.executable} ['a b', '*']"


def test_a_session_of_its_own_shares_nothing_of_the_source_that_spark_changes(spark: SparkSession) -> None:
    def variables(session: SparkSession) -> Any:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        return manager.lookupDataSource("tidemark").dataSourceCls().envVars()

    first, second = own_session(spark), own_session(spark)

    variables(first)["OF_THE_FIRST"] = "1"
    assert "OF_THE_FIRST" not in variables(second)
    assert "OF_THE_FIRST" not in variables(spark.newSession())
    assert "OF_THE_FIRST" in variables(first)
