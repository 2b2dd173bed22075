"""/api/pipelines: what runners report, and what is made of a report that is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.api import Api
from helpers.broker import BrokerProcess

import tidemark.client
from tidemark.admin.resources.pipelines import LOST_MS, STREAM, understood
from tidemark.client import Client

REPORT: dict[str, Any] = {
    "name": "orders",
    "host": "machine",
    "pid": 7,
    "state": "running",
    "began_ms": 1000,
    "file": "orders.toml",
    "sources": [{"name": "orders", "stream": "orders", "url": "tidemark://127.0.0.1:5672/"}],
    "steps": [{"name": "clean", "kind": "sql", "reads": ["orders"]}],
    "dead_letters": None,
    "sinks": [
        {
            "name": "table", "kind": "postgres", "mode": "mirror", "reads": "clean", "state": "running", "rows": 10,
            "rows_per_s": 2.5, "lag_rows": 3, "lag_s": 0.5, "eta_s": 1.2, "sequence": 55, "boundary": True,
            "boundary_at_ms": 2000, "error": "it failed",
            "offending": {"on": "clean", "failed": ["positive"], "key": "k", "sequence": 5, "value": "{}", "cut": False},
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("pipelines") / "data").start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def db(broker: BrokerProcess) -> Iterator[Client]:
    url = f"tidemark://guest:guest@{broker.address.host}:{broker.address.port}/"
    with tidemark.client.connect(url) as client:
        client.stream(STREAM, create=True)
        yield client


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


def test_a_report_is_shown_with_its_sinks_and_the_offending_row(api: Api, db: Client) -> None:
    db.stream(STREAM).put(b"orders@machine", json.dumps(REPORT).encode())
    found = api.get("/pipelines/orders")
    assert (found["state"], found["vhost"], found["host"]) == ("running", "/", "machine")
    [sink] = found["sinks"]
    assert (sink["rows"], sink["rows_per_s"], sink["lag_rows"], sink["boundary_ms"]) == (10, 2.5, 3, 2000)
    assert sink["error"]["message"] == "it failed"
    assert sink["error"]["row"]["key"] == "k"
    assert found["steps"] == REPORT["steps"]
    assert [one["name"] for one in api.get("/pipelines")] == ["orders"]
    assert api("GET", "/pipelines/nobody").status_code == 404


def test_the_offending_row_is_only_for_who_may_read_the_reports(api: Api, db: Client) -> None:
    db.stream(STREAM).put(b"orders@machine", json.dumps(REPORT).encode())
    visitor = api.user("monitoring", permissions={"configure": "", "write": "", "read": "^$"})
    [sink] = visitor.get("/pipelines/orders")["sinks"]
    assert sink["error"] == {"message": "it failed", "row": None}


def test_of_several_machines_the_newest_report_counts(api: Api, db: Client) -> None:
    for host in ("one", "two"):
        report = {**REPORT, "name": "twice", "host": host}
        db.stream(STREAM).put(f"twice@{host}".encode(), json.dumps(report).encode())
    assert api.get("/pipelines/twice")["host"] == "two"
    assert [one["host"] for one in api.get("/pipelines?name=twice")] == ["one", "two"]


def test_what_is_no_report_is_left_out_and_does_no_harm(api: Api, db: Client) -> None:
    hostile: list[bytes] = [
        b"", b"no json", b"[]", b'"text"', b"null", b"{}", b'{"name": 5}', b"[" * 5000, b"\xff\xfe",
        b'{"name": "' + b"x" * 300_000 + b'"}',
    ]  # fmt: skip
    for number, raw in enumerate(hostile):
        db.stream(STREAM).put(b"hostile-%d" % number, raw)
    odd = {
        "name": "odd",
        "sinks": [5, {"state": [], "rows": -1, "rows_per_s": "x", "error": {}}],
        "sources": "x",
    }
    db.stream(STREAM).put(b"odd", json.dumps(odd).encode())
    names = [one["name"] for one in api.get("/pipelines")]
    assert "odd" in names
    assert not [name for name in names if name.startswith("x")]
    [sink] = api.get("/pipelines/odd")["sinks"]
    assert (sink["rows"], sink["rows_per_s"], sink["error"]) == (None, None, None)


def test_a_run_that_says_nothing_more_is_lost_unless_it_said_that_it_ended() -> None:
    raw = json.dumps(REPORT).encode()
    assert understood(raw, 0, LOST_MS - 1, True)["state"] == "running"  # type: ignore[index]
    lost = understood(raw, 0, LOST_MS + 1, True)
    assert lost is not None
    assert (lost["state"], lost["sinks"][0]["state"]) == ("lost", "lost")
    ended = json.dumps({**REPORT, "state": "done"}).encode()
    assert understood(ended, 0, 10 * LOST_MS, True)["state"] == "done"  # type: ignore[index]
