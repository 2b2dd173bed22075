"""One Spark session and one broker for all tests of Spark; each test has stream names and a checkpoint of its own.

`broker` is a real broker process: `.url` for clients and options, `.kill()` and `.restart()` keep its ports and data, and
a test that kills it starts it again. Workers of Spark find our packages through PYTHONPATH, as users' do when the
package is installed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.broker import SOURCE, BrokerProcess

import tidemark.client
from tidemark.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

MASTER = "local[2,4]"


def pytest_configure() -> None:
    paths = [str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))


class SparkBroker(BrokerProcess):
    """A broker and how clients of streams call it."""

    @property
    def url(self) -> str:
        address = self.address
        return f"tidemark://{address.user}:{address.password}@{address.host}:{address.port}/"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests: two cores, four attempts of a task, quick to start."""
    from tidemark_spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tidemark-tests",
        master=MASTER,
        checkpoints=folder,
        fast_start=True,
        conf={
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.memory": "1g",
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkBroker]:
    """The broker of all tests. Who kills it restarts it."""
    process = SparkBroker(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    yield process
    process.close()


@pytest.fixture
def start_spark_broker(tmp_path: Path) -> Iterator[Callable[..., SparkBroker]]:
    """Starts brokers with the test's own arguments (`--set broker.batch_bytes_max=…`); all end with the test."""
    started: list[SparkBroker] = []

    def start(*arguments: str) -> SparkBroker:
        process = SparkBroker(tmp_path / f"broker-{len(started)}" / "data", *arguments)
        process.data.parent.mkdir()
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture
def db(broker: SparkBroker) -> Iterator[Client]:
    """A client of the broker."""
    if broker.process is None:
        broker.restart()
    with tidemark.client.connect(broker.url, timeout=20) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A stream's name that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder for the checkpoint of this test's query."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    return folder
