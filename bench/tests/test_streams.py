"""Every stream case runs on every contestant, and gives the figures that its page and its bars ask for."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench import report
from bench.build import build
from bench.cases import CASES, Case, Kind, bars
from bench.measure import QUICK, Figures, RunFailedError
from bench.results import Results
from bench.streams import nats, redis
from bench.streams.measure import run_stream_case
from bench.streams.scanning import check_rows, scan_once
from bench.streams.tidemark import _Killable, slope

TINY = dataclasses.replace(QUICK, warmup_s=0.05, disk_s=0.1, keys_max=3_000, stream_s=0.1, settle_s=0.05)
STREAMS = list({case.kind: case for case in CASES if case.kind.of_streams}.values())
"""One case of each kind."""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    build()


def wanted(case: Case) -> set[str]:
    return {bar.metric for bar in bars() if bar.case == case.name}


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case.name)
def test_a_case_runs_on_the_broker_and_has_the_figures_of_its_bars(case: Case, tmp_path: Path) -> None:
    figures = run_stream_case(case, "tidemark", tmp_path, TINY)

    assert wanted(case) <= set(figures)
    assert shown(case, "tidemark", figures)


@pytest.mark.parametrize(
    "case", [case for case in STREAMS if "core" in case.brokers], ids=lambda case: case.name
)
def test_a_case_runs_on_the_inner_loops(case: Case, tmp_path: Path) -> None:
    figures = run_stream_case(case, "core", tmp_path, TINY)

    assert all(value > 0 for value in figures.values())
    assert shown(case, "core", figures)


def _missing(name: str) -> bool:
    if name == "redis":
        return redis.version() == "not installed" or importlib.util.find_spec("redis") is None
    return nats.server_program() is None or importlib.util.find_spec("nats") is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(_missing(name), reason=f"{name} is not installed"))
        for name in ("nats", "redis")
    ],
)
def test_a_peer_gives_the_figures_that_the_broker_gives(name: str, tmp_path: Path) -> None:
    [case] = [case for case in STREAMS if case.kind is Kind.STREAM_PEERS]

    figures = run_stream_case(case, name, tmp_path, TINY)

    for metric in ("keyed", "append", "single", "read"):
        assert figures[f"{metric}_per_s"] > 0
        assert figures[f"{metric}_cpu_s_per_million"] >= 0


def shown(case: Case, broker: str, figures: Figures) -> list[report.Row]:
    results = Results()
    results.add(case.name, broker, figures)
    return list(report.rows(results))


def test_a_table_has_a_column_for_each_contestant_of_its_case() -> None:
    results = Results()
    results.add("stream-keyed-1m", "tidemark", {"keyed_per_s": 6e5, "share_of_unkeyed": 0.4})
    results.add("stream-keyed-1m", "core", {"keyed_per_s": 3e6})
    results.add("stream-peers", "tidemark", {"keyed_per_s": 600.0})
    results.add("stream-peers", "nats", {"keyed_per_s": 100.0})
    results.add("stream-peers", "redis", {"keyed_per_s": 300.0})
    results.add("transient-16b", "tidemark", {"messages_per_s": 1.0})
    results.failures = ["stream-peers, redis, run 2: it fell", "transient-16b, null, run 1: it fell"]
    streams = report.SECTIONS[1]

    page = report.markdown(streams, results, {}, {"date": "today", "repeat": 1, "quick": True}, [])

    assert "| | Tidemark | inner loops alone | bar |" in page
    assert "| updates/s | 600,000 | 3,000,000 | met: at least 500,000 updates/s (1.2× the bar) |" in page
    assert "missed: at least 50 % of the unkeyed rate (0.8× the bar)" in page
    assert "| keyed, in batches: rows/s | 600 | 100 | 300 | 2× |  |" in page
    assert "transient" not in page
    assert "(`--quick`): 100,000 keys" in page
    assert "- stream-peers, redis, run 2: it fell" in page


def test_memory_a_key_is_the_slope_whatever_the_broker_takes_without_keys() -> None:
    assert slope([(1_000, 50_080_000), (2_000, 50_160_000), (3_000, 50_240_000)]) == pytest.approx(80)


def test_the_phases_of_a_recovery_are_read_from_the_log(tmp_path: Path) -> None:
    (tmp_path / "tidemark.log").write_text(
        "12:00:00.000 info    store recovered  ms=812 tail_ms=40 segments=7 torn=false note='a=1 b'\n"
    )

    facts = _Killable(tmp_path).recovery()

    assert (facts["ms"], facts["tail_ms"], facts["segments"]) == (812, 40, 7)


class FakeReader:
    """A client whose snapshot holds these rows."""

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self._rows = rows

    def call(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"snapshot": 1}

    def read(self, _: dict[str, Any], marker: dict[str, Any]) -> Iterator[tuple[int, memoryview]]:
        marker["count"] = len(self._rows)
        keys = pa.array([key.to_bytes(8, "little") for key, _ in self._rows], pa.binary())
        values = pa.array([head.to_bytes(8, "little") + b"v" * 92 for _, head in self._rows], pa.binary())
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, pa.schema([("key", pa.binary()), ("value", pa.binary())])) as writer:
            writer.write_batch(pa.record_batch([keys, values], names=["key", "value"]))
        yield len(self._rows), memoryview(sink.getvalue())


def test_a_snapshot_with_each_key_once_and_its_own_value_is_right() -> None:
    check_rows(FakeReader([(1, 1), (0, 0), (2, 2)]), 3)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(0, 0), (1, 2), (2, 1)], "gave a key the value of another"),
        ([(0, 0), (2, 2)], "has 2 different keys in a snapshot where 3 were put"),
        ([(0, 0), (2, 2), (2, 2)], "has 2 different keys in a snapshot where 3 were put"),
    ],
)
def test_a_snapshot_that_is_wrong_is_noticed(rows: list[tuple[int, int]], sentence: str) -> None:
    with pytest.raises(RunFailedError, match=sentence):
        check_rows(FakeReader(rows), 3)


def test_a_scan_with_other_rows_than_its_marker_says_is_noticed() -> None:
    class Miscounting(FakeReader):
        def read(self, header: dict[str, Any], marker: dict[str, Any]) -> Iterator[tuple[int, memoryview]]:
            yield from super().read(header, marker)
            marker["count"] = 2

    with pytest.raises(RunFailedError, match="has 2 rows by the marker where 3 were put"):
        scan_once(Miscounting([(0, 0), (1, 1), (2, 2)]), 3, hashed=True)
