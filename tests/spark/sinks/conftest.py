"""A place for every kind of sink: where a test may write, with the services that it needs.

Services (PostgreSQL, Redis, the broker, a small OpenSearch) are started once for all tests, on free ports of the loopback
interface, and each place in them has a name that no other test uses. A new kind of sink is one
more case in `options_of`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import sink_model as model
from helpers.broker import SOURCE
from helpers.opensearch import OpenSearchServer
from helpers.postgres import PostgresProcess, find_binaries
from helpers.redis import PROGRAM, RedisProcess
from helpers.sink_reading import READERS, amqp_digest

from tidemark_spark.pipeline.sinks import KINDS, make_sink
from tidemark_spark.pipeline.sinks.sink import Sink
from tidemark_spark.pipeline.values import Digest

# Services ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    if find_binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgresProcess().start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    server = RedisProcess(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchServer]:
    server = OpenSearchServer()
    yield server
    server.close()


# Places --------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where sinks of one kind write in one test."""

    kind: str
    options: dict[str, Any]
    opened: list[Sink] = field(default_factory=list)

    def make(self, **options: Any) -> Sink:
        """A new sink that is not opened yet; a second one is what another driver would have."""
        sink = make_sink(model.SINK, model.PIPELINE, self.kind, self.options | options)
        self.opened.append(sink)
        return sink

    def ready(self, **options: Any) -> Sink:
        """A sink, opened and prepared for the model's rows."""
        sink = self.make(**options)
        sink.open()
        sink.prepare(model.SCHEMA, "mirror")
        return sink

    def digest(self, sink: Sink) -> Digest:
        return amqp_digest(self.options) if self.kind == "amqp" else sink.digest()

    def rows(self) -> list[dict[str, Any]]:
        """What a user reads there."""
        return READERS[self.kind](self.options)

    def run(self, task: str, **facts: Any) -> dict[str, Any]:
        """What `helpers.sink_crasher` saw."""
        facts = {"kind": self.kind, "options": self.options, "task": task, "seed": 1, **facts}
        # OpenSearch has no transactions: after a crash a batch counts when it was repeated.
        facts["repeat"] = self.kind == "opensearch"
        tests = Path(__file__).resolve().parents[2]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(tests)])}
        command = [sys.executable, "-m", "helpers.sink_crasher", json.dumps(facts)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        seen: dict[str, Any] = json.loads(done.stdout) | {"errors": done.stderr[-4000:]}
        return seen


Find = Callable[[str], Any]
"""Starts a service by the name of its fixture, when it is needed."""


def _amqp(find: Find, name: str) -> dict[str, Any]:
    import pika

    from tidemark.client.blocking import Transaction

    if not hasattr(Transaction, "publish_many"):
        pytest.skip("this client cannot publish many messages in a transaction")
    broker = find("broker")
    arguments = {"x-queue-type": "stream", "x-stream-key": "header:tidemark-key"}
    with pika.BlockingConnection(pika.URLParameters(broker.address.url())) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "fanout", durable=True)
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, name)
    return {"url": broker.url, "exchange": name}


def options_of(kind: str, find: Find, name: str, folder: Path) -> dict[str, Any]:
    """Options of a sink of this kind that writes where nothing is yet."""
    match kind:
        case "duckdb":
            return {"path": str(folder / "warehouse.duckdb"), "table": f"t_{name}"}
        case "postgres":
            return {"url": find("postgres").url, "table": f"s_{name}.orders"}
        case "delta":
            return {"path": str(folder / "delta"), "compact_every": 7}
        case "parquet":
            return {"path": str(folder / "parquet")}
        case "redis":
            return {"url": find("redis").url, "prefix": f"{name}:"}
        case "search":
            return {"path": str(folder / "index")}
        case "opensearch":
            return {"url": find("opensearch").url, "index": name}
        case "stream":
            return {"url": find("broker").url, "stream": name}
        case "amqp":
            return _amqp(find, name)
    raise AssertionError(f"there is no place for sinks of kind '{kind}': add it here")


TABLES = ("duckdb", "postgres", "delta", "parquet")


def _place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    name = uuid.uuid4().hex[:12]
    made = Place(kind, options_of(kind, request.getfixturevalue, f"x{name}", folder))
    yield made
    for sink in made.opened:
        sink.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place of each kind of sink, one after the other."""
    yield from _place(request.param, request, tmp_path)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place of each kind of sink that keeps a table."""
    yield from _place(request.param, request, tmp_path)


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """A place of the kind that the test names."""
    walks: list[Iterator[Place]] = []

    def make(kind: str) -> Place:
        walks.append(_place(kind, request, tmp_path))
        return next(walks[-1])

    yield make
    for walk in walks:
        next(walk, None)
