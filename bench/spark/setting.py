"""What all cases run in: one warm Spark session, a broker of their own, and clocks for both.

The session is the one that users get from `tidemark_spark.session`, with all cores and Java's full compiler. Workers
find the connector and the sources of this package on their path.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.options import ROOT
from bench.proc import HOST
from bench.spark.cases import Scale
from bench.spark.processes import Clock, family_clock, spark_clocks
from bench.tidemark_server import TidemarkServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.client import Client

DRIVER_MEMORY = "4g"
PROGRESS_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Setting:
    spark: SparkSession
    folder: Path
    scale: Scale
    clocks: dict[str, Clock]
    say: Callable[[str], None]

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def broker(self, *arguments: str) -> Iterator[Broker]:
        """A fresh broker and a client of it."""
        from tidemark.client import connect

        with self.place("broker") as folder, TidemarkServer(folder, arguments) as server:
            url = f"tidemark://guest:guest@{HOST}:{server.port}/"
            with connect(url) as client:
                yield Broker(server, url, client, {**self.clocks, "broker": family_clock(server.pid)})

    def stream(self, broker: Broker, name: str, source: str = "tidemark", **options: str) -> DataFrame:
        """A stream as a DataFrame, as a user reads it."""
        return self.spark.read.format(source).options(**broker.options(name), **options).load()

    def following(self, broker: Broker, name: str, **options: str) -> DataFrame:
        """The same for a streaming query."""
        return self.spark.readStream.format("tidemark").options(**broker.options(name), **options).load()


@dataclass(frozen=True, slots=True)
class Broker:
    server: TidemarkServer
    url: str
    client: Client
    clocks: dict[str, Clock]
    """Of Spark and of this broker."""

    def options(self, stream: str) -> dict[str, str]:
        return {"tidemark.url": self.url, "subscribe": stream}

    def release_pins(self, stream: str) -> None:
        """Spark does not say when it has done with a DataFrame: pins of batch reads stay until their leases end."""
        found = self.client.stream(stream)
        for each in found.pins():
            found.pinned(each.name).release()


@contextmanager
def session(folder: Path, *, fast_start: bool = False) -> Iterator[SparkSession]:
    """A session with everything that its workers need; one that starts fast is too slow to be measured."""
    paths = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    from tidemark_spark.session import build_session

    spark = build_session(
        "tidemark-bench",
        checkpoints=folder,
        fast_start=fast_start,
        conf={
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_KEPT),
        },
    )
    spark.sparkContext.setLogLevel(
        "OFF"
    )  # a query that is stopped in a batch is no error here; failures are raised
    try:
        yield spark
    finally:
        spark.stop()


def setting(spark: SparkSession, folder: Path, scale: Scale, say: Callable[[str], None]) -> Setting:
    from bench.spark.sources import EmptySource, TupleSource
    from tidemark_spark import register

    register(spark)
    for source in (EmptySource, TupleSource):
        spark.dataSource.register(source)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    return Setting(spark, folder, scale, spark_clocks(jvm), say)
