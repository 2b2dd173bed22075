"""What a pipeline decides, without Spark: where a query begins, what an error means, what becomes of rejected rows."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from helpers.amqp import eventually
from helpers.pipelines import Running, a_duckdb, a_file
from rich.console import Console

from tidemark.client import Client, NotConnected
from tidemark_spark.errors import (
    CheckpointDamaged,
    DataLost,
    ExpectationFailed,
    SinkBehind,
    SinkOfAnotherQuery,
    SinkRefused,
    SinkUnavailable,
)
from tidemark_spark.pipeline.checkpoint import Checkpoint, LocalFiles, Settlement, settle, starting_offsets
from tidemark_spark.pipeline.deadletters import BYTES_MAX, ROWS_MAX, open_writer, parts
from tidemark_spark.pipeline.delivery import Delivery
from tidemark_spark.pipeline.expectations import Rejected, judge
from tidemark_spark.pipeline.failures import PAUSE_S_MAX, Backoff, Hope, diagnose
from tidemark_spark.pipeline.file import Expectation, Source
from tidemark_spark.pipeline.metrics import MetricsServer, exposition
from tidemark_spark.pipeline.progress import (
    JsonView,
    LiveView,
    PlainView,
    line,
    print_summary,
    progress_table,
    span,
)
from tidemark_spark.pipeline.reset import group_of_pin, reset
from tidemark_spark.pipeline.runner import Runner, Summary
from tidemark_spark.pipeline.tracking import State, Tracker
from tidemark_spark.pipeline.values import Applied, Mark

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

H = "00ff"


class FakeFiles:
    """A checkpoint's folder in a dict."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def names(self, folder: str) -> list[str]:
        return [name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/")]

    def remove(self) -> None:
        self.files.clear()


def an_offset(at: int, *, pin: int | None = None, origin: int | None = None, shards: int = 1) -> str:
    facts: dict[str, Any] = {"stream": "orders", "id": 1, "group": "g"}
    if pin is not None:
        facts["pin"] = {"name": "p", "sequence": pin}
    facts["shards"] = {str(shard): [H, at] for shard in range(shards)}
    if origin is not None:
        facts["origin"] = {str(shard): [H, origin] for shard in range(shards)}
    return "v1\n{}\n" + json.dumps(facts)


def a_checkpoint(*offsets: str, finished: int = -1) -> Checkpoint:
    files = {f"offsets/{number}": text for number, text in enumerate(offsets)}
    files |= {f"commits/{number}": "v1" for number in range(finished + 1)}
    if offsets:
        files["metadata"] = '{"id":"q-1"}'
    return Checkpoint("warehouse", FakeFiles(files))


def a_mark(at: int, *, boundary: bool = True, batch: int = 0, rows: int = 1, at_ms: int = 0) -> Mark:
    return Mark(
        pipeline="p", sink="s", mode="mirror", query="q", batch=batch, position={"orders": {"0": (H, at)}},
        boundary=boundary, rows=rows, at_ms=at_ms,
    )  # fmt: skip


# Where a query begins ---------------------------------------------------------------------------------


def test_a_batch_lies_between_its_offset_and_the_one_before() -> None:
    checkpoint = a_checkpoint(an_offset(50, pin=90, origin=0), an_offset(90, pin=90))

    first, second = checkpoint.batch(0), checkpoint.batch(1)

    assert first.start == {"orders": {"0": (H, 0)}} and first.end == {"orders": {"0": (H, 50)}}
    assert not first.boundary
    assert second.start == first.end and second.end == {"orders": {"0": (H, 90)}}
    assert second.boundary
    assert checkpoint.query() == "q-1"


def test_a_stream_that_grew_begins_everywhere_where_it_was() -> None:
    checkpoint = a_checkpoint(an_offset(50, origin=0), an_offset(90, shards=2))
    assert checkpoint.batch(1).start == {"orders": {"0": (H, 50), "1": (H, 50)}}


@pytest.mark.parametrize("text", ["v9\n{}\n{}", "v1\n{}\nnonsense", "v1\n{}\n{}"])
def test_a_damaged_checkpoint_is_said_to_be_one(text: str) -> None:
    with pytest.raises(CheckpointDamaged, match="offsets/0"):
        a_checkpoint(text).batch(0)


@pytest.mark.parametrize(
    ("held", "offsets", "finished", "expected"),
    [
        (None, [], -1, Settlement.CONTINUE),
        (70, [], -1, Settlement.AT_MARK),
        # The last batch is finished, and the sink has it.
        (90, [an_offset(90, origin=0)], 0, Settlement.CONTINUE),
        # It is planned, and the sink has it or has it not: it is done again.
        (50, [an_offset(50, origin=0), an_offset(90)], 0, Settlement.CONTINUE),
        (90, [an_offset(50, origin=0), an_offset(90)], 0, Settlement.CONTINUE),
        # The sink was set back, or is ahead: it knows.
        (40, [an_offset(50, origin=0), an_offset(90)], 0, Settlement.AT_MARK),
        (40, [an_offset(90, origin=0)], 0, Settlement.AT_MARK),
        (95, [an_offset(90, origin=0)], 0, Settlement.AT_MARK),
        # Somebody else brought it into the middle of what is planned.
        (70, [an_offset(50, origin=0), an_offset(90)], 0, Settlement.AT_MARK),
        # The sink lost everything.
        (None, [an_offset(90, origin=0)], 0, Settlement.ANEW),
        (None, [an_offset(90, origin=40)], -1, Settlement.ANEW),
        (None, [an_offset(90, origin=0)], -1, Settlement.CONTINUE),
        # The checkpoint cannot be read.
        (70, ["nonsense"], -1, Settlement.AT_MARK),
        (None, ["nonsense"], -1, Settlement.ANEW),
    ],
)
def test_a_mirror_goes_on_from_what_its_sink_holds(
    held: int | None, offsets: list[str], finished: int, expected: Settlement
) -> None:
    mark = None if held is None else a_mark(held)
    assert settle(mark, a_checkpoint(*offsets, finished=finished)) is expected


def test_a_batch_whose_start_is_not_known_any_more_makes_a_checkpoint_damaged() -> None:
    """A driver that is killed while it deletes a checkpoint must not leave one that looks whole."""
    files = {"metadata": '{"id":"q-1"}', "offsets/5": an_offset(90)}
    checkpoint = Checkpoint("warehouse", FakeFiles(files))
    with pytest.raises(CheckpointDamaged, match="offsets/4"):
        checkpoint.batch(5)
    assert settle(a_mark(50), checkpoint) is Settlement.AT_MARK
    with pytest.raises(CheckpointDamaged, match="metadata"):
        Checkpoint("warehouse", FakeFiles({})).owner()


def test_a_checkpoint_is_removed_at_once_and_so_is_what_was_left_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text("x")

    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before it is done
    LocalFiles(folder).remove()
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 1

    monkeypatch.undo()
    LocalFiles(folder).remove()
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_of_results_is_not_removed_when_their_sink_becomes_a_mirror(tmp_path: Path) -> None:
    pipeline = a_file(tmp_path, "tidemark://127.0.0.1:1/", "orders", a_duckdb("w", "orders"))
    [table] = pipeline.sinks
    checkpoint = a_checkpoint(an_offset(90, origin=0), finished=0)
    delivery = Delivery(pipeline, table, cast(Any, None), Tracker("w", "duckdb", "mirror"), once=True)
    results = dataclasses.replace(a_mark(70), mode="update")

    with pytest.raises(SinkOfAnotherQuery):
        delivery._settle(checkpoint, results, pipeline.sources["orders"])
    assert checkpoint.planned() == 0


def test_a_mark_becomes_the_option_that_begins_there() -> None:
    assert json.loads(starting_offsets(a_mark(70), "orders")) == {"0": [H, 70]}
    assert starting_offsets(a_mark(70), "other") == "earliest"


# What an error means ----------------------------------------------------------------------------------

PLANNER = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running Python streaming data source
Traceback (most recent call last):
  File "x.py", line 1, in y
tidemark_spark.errors.{kind}: {sentence}

SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("error", "hope", "says"),
    [
        (SinkUnavailable(sink="s", problem="away"), Hope.PASSING, "sink 's'"),
        (NotConnected(addresses=("a",), problem="refused"), Hope.PASSING, "no broker answers"),
        (SinkBehind(pipeline="p", sink="s", stream="o", held=1, start=2), Hope.UNKNOWN, "holds stream"),
        (DataLost(stream="o", problem="gone", remedy="start over"), Hope.NONE, "gone"),
        (RuntimeError(PLANNER.format(kind="BrokerAway", sentence="no broker.")), Hope.PASSING, "no broker."),
        (
            RuntimeError(PLANNER.format(kind="DataLost", sentence="deletes were missed")),
            Hope.NONE,
            "deletes were missed",
        ),
        (RuntimeError("Python worker failed to connect back."), Hope.PASSING, "connect back"),
        (RuntimeError("Traceback\nValueError: what is this\n"), Hope.UNKNOWN, "ValueError: what is this"),
        (RuntimeError(""), Hope.UNKNOWN, "RuntimeError"),
    ],
)
def test_an_error_says_whether_trying_again_helps(error: Exception, hope: Hope, says: str) -> None:
    found = diagnose(error)
    assert found.hope is hope and says in found.sentence


def test_pauses_grow_to_a_minute_and_begin_again_after_a_success() -> None:
    backoff = Backoff(random.Random(1))
    pauses = [backoff.failed() for _ in range(12)]
    assert pauses[0] < 1.3 and 40 < pauses[-1] <= PAUSE_S_MAX * 1.25
    backoff.succeeded()
    assert backoff.failed() < 1.3


def test_a_sink_that_stays_away_is_given_up_with_what_to_do_then(tmp_path: Path) -> None:
    sink = a_duckdb("w", "orders").replace('"duckdb"', '"helpers.pipelines:AwaySink"')
    url = "tidemark://127.0.0.1:1/"
    pipeline = a_file(tmp_path, url, "orders", sink, head='give_up_after = "1 second"')

    summary = Runner(pipeline, pipeline.sinks).run(
        lambda: cast(Any, None)
    )  # it does not come as far as Spark

    [status] = summary.sinks
    assert status.state is State.FAILED and summary.failed == ("w",)
    assert status.error == (
        "sink 'w' cannot be used now: nobody is there; given up. Run the pipeline again when that has passed: it goes on "
        "where it was"
    )


def test_a_signal_ends_a_sink_that_is_being_tried_again(tmp_path: Path) -> None:
    sink = a_duckdb("w", "orders").replace('"duckdb"', '"helpers.pipelines:AwaySink"')
    pipeline = a_file(tmp_path, "tidemark://127.0.0.1:1/", "orders", sink)
    running = Running(pipeline, cast(Any, None))
    eventually(lambda: running.runner.statuses()[0].state is State.RETRYING, 20)

    [status] = running.stop(20).sinks
    assert status.state is State.STOPPED and "nobody is there" in (status.error or "")


def test_rows_without_a_key_are_not_read_again_over_those_that_are_there(tmp_path: Path) -> None:
    pipeline = a_file(
        tmp_path, "tidemark://127.0.0.1:1/", "orders", a_duckdb("w", "orders", 'mode = "append"')
    )
    with pytest.raises(SinkRefused, match="would be there twice; use --drop"):
        reset(pipeline, pipeline.sinks[0], drop=False)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("spark.shop.w.q1.x", "shop.w"),
        ("spark.shop.w:orders.q1.x", "shop.w:orders"),
        ("spark.shop.w.v.q1.x", "shop.w.v"),
        ("other", None),
    ],
)
def test_a_pin_says_whose_it_is(name: str, group: str | None) -> None:
    assert group_of_pin(name) == group


# Rejected rows ----------------------------------------------------------------------------------------


def a_rejected(sequence: int, *failed: str, on: str = "orders", value: bytes = b"x") -> Rejected:
    return Rejected(on=on, failed=failed, key=b"k", shown="k", sequence=sequence, value=value)


def the_rules() -> tuple[list[Source], list[Expectation]]:
    source = Source(
        name="orders", url="", stream="orders", value="json", schema="", key="string", headers=False,
        otherwise="dead-letter", options={},
    )  # fmt: skip
    kinds = ("dead-letter", "drop", "fail")
    return [source], [Expectation(name=kind, on="orders", check="", otherwise=kind) for kind in kinds]


def test_of_several_failed_checks_the_strictest_decides() -> None:
    sources, rules = the_rules()
    rows = [a_rejected(3, "drop"), a_rejected(2, "drop", "dead-letter"), a_rejected(1, "decodes")]

    verdict = judge(rows, sources, rules, "s")

    assert [one.sequence for one in verdict.dead] == [1, 2] and verdict.dropped == 1
    with pytest.raises(
        ExpectationFailed, match="'fail' on 'orders' fails for the row with key 'k' at sequence 4"
    ):
        judge([*rows, a_rejected(5, "fail"), a_rejected(4, "dead-letter", "fail")], sources, rules, "s")


def test_a_batch_that_is_done_again_with_other_expectations_stores_what_they_reject(
    broker: SparkBroker, db: Client, name: str
) -> None:
    """M2: its number was used by the letters of before, which must not make the new ones look stored."""
    writer = open_writer(broker.url, name, "shop", "w")
    last: list[int] = []
    for rejecting, rows in (("q.1", [1]), ("q.1", [1]), ("q.2", [1, 2])):
        some = [dataclasses.replace(a_rejected(n, "decodes"), key=b"%d" % n) for n in rows]
        writer.write(rejecting, 0, "orders", some)
        last.append(db.stream(name).info().last_sequence)
    writer.close()

    assert last[0] == last[1] < last[2]
    assert {row.key for row in db.stream(name).snapshot()} == {b"orders/1", b"orders/2"}


def test_dead_letters_are_cut_alike_whatever_order_they_come_in() -> None:
    rows = [a_rejected(n, "decodes") for n in range(2 * ROWS_MAX + 1)]
    shuffled = random.Random(3).sample(rows, len(rows))

    cut = list(parts(shuffled))

    assert [len(one) for one in cut] == [ROWS_MAX, ROWS_MAX, 1] and cut == list(parts(rows))
    large = [a_rejected(n, "decodes", value=b"x" * (BYTES_MAX // 2 + 1)) for n in range(3)]
    assert [len(one) for one in parts(large)] == [1, 1, 1]


# Numbers ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_tracker(clock: Clock) -> Tracker:
    return Tracker("warehouse", "duckdb", "mirror", clock=clock, wall_ms=lambda: int(clock.now * 1000))


def test_what_was_wrong_on_the_way_is_no_error_of_a_sink_that_is_done() -> None:
    tracker = a_tracker(Clock())
    tracker.became(State.RETRYING, error="away")
    tracker.became(State.DONE)
    assert tracker.status().error is None


def test_results_do_not_tell_how_long_the_rows_before_them_will_take() -> None:
    clock = Clock()
    tracker = Tracker("w", "duckdb", "update", clock=clock)
    tracker.behind(1_000_000, head=1_000_000)
    clock.now += 1
    tracker.applied(a_mark(9, rows=1), Applied(skipped=False), began=clock.now - 1, dead_letters=0, dropped=0)
    assert tracker.status().eta_s is None and tracker.status().rows_per_s == 1


def test_rates_lag_and_time_to_go_follow_from_batches_and_heads() -> None:
    clock = Clock()
    tracker = a_tracker(clock)
    tracker.behind(300, head=300)
    clock.now += 2
    tracker.applied(
        a_mark(200, rows=200),
        Applied(skipped=False, upserted=150, deleted=50),
        began=clock.now - 1,
        dead_letters=2,
        dropped=1,
    )
    tracker.behind(100, head=300)

    status = tracker.status()

    assert status.state is State.RUNNING and status.rows == 200 and status.rows_per_s == 200
    assert (status.lag_rows, status.lag_s, status.eta_s) == (100, 2.0, 0.5)
    assert (status.upserted, status.deleted, status.dead_letters, status.dropped) == (150, 50, 2, 1)
    tracker.applied(a_mark(300, rows=100), Applied(skipped=False), began=clock.now, dead_letters=0, dropped=0)
    tracker.behind(0, head=300)
    assert tracker.status().lag_s == 0 and tracker.status().eta_s == 0
    clock.now += 60
    assert tracker.status().rows_per_s == 0


def test_a_batch_that_the_sink_had_counts_as_skipped() -> None:
    tracker = a_tracker(Clock())
    tracker.applied(a_mark(9), Applied(skipped=True), began=0, dead_letters=0, dropped=0)
    assert tracker.status().rows == 0 and tracker.status().skipped_batches == 1


def test_an_error_stays_until_a_batch_succeeds() -> None:
    tracker = a_tracker(Clock())
    tracker.became(State.RETRYING, error="away", note="tries again in 1 s")
    assert "away" in line(tracker.status()) and tracker.status().restarts == 1
    tracker.became(State.STARTING)
    assert tracker.status().error == "away"
    tracker.applied(a_mark(9), Applied(skipped=False), began=0, dead_letters=0, dropped=0)
    assert tracker.status().error is None


def test_metrics_are_answered_in_the_text_format_of_prometheus() -> None:
    tracker = a_tracker(Clock())
    tracker.applied(a_mark(9, rows=7), Applied(skipped=False, upserted=7), began=0, dead_letters=0, dropped=0)
    text = exposition('o"rders', [tracker.status()])
    assert 'tidemark_pipeline_rows_total{pipeline="o\\"rders",sink="warehouse",kind="duckdb"} 7' in text
    assert "# TYPE tidemark_pipeline_rows_total counter" in text
    assert "lag_rows{" not in text  # not known yet
    assert 'tidemark_pipeline_state{pipeline="o\\"rders",sink="warehouse",state="running"} 1' in text

    server = MetricsServer("127.0.0.1", 0, "orders", lambda: [tracker.status()])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
            assert b"tidemark_pipeline_sequence" in answer.read()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    finally:
        server.close()


def test_views_say_something_when_something_changes(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    tracker = a_tracker(clock)
    plain, lines = PlainView(clock=clock), JsonView(clock=clock)
    for _ in range(3):
        plain.look([tracker.status()])
        lines.look([tracker.status()])
    tracker.became(State.FAILED, error="no more")
    plain.look([tracker.status()])
    lines.look([tracker.status()])

    out = capsys.readouterr()
    assert [json.loads(text)["state"] for text in out.out.splitlines()] == ["starting", "failed"]
    assert out.err.splitlines() == ["warehouse: starting", "warehouse: failed, no more"]


def test_the_table_and_the_summary_show_every_sink_and_why_one_failed() -> None:
    good, bad = a_tracker(Clock()), Tracker("cache", "redis", "mirror")
    good.applied(a_mark(9, rows=7), Applied(skipped=False), began=0, dead_letters=3, dropped=0)
    good.behind(12, head=30)
    bad.became(State.FAILED, error="the cache is full")
    statuses = [good.status(), bad.status()]
    console = Console(record=True, width=160, file=io.StringIO())

    view = LiveView("orders", console)
    view.look(statuses)
    view.close()
    console.print(progress_table("orders", statuses, 5.0))
    print_summary("orders", Summary(5.0, tuple(statuses), 0), console)

    shown = console.export_text()
    assert "dead letters" in shown and "cache: the cache is full" in shown
    assert "cache failed: the cache is full" in shown and "pipeline orders: 5.0 s" in shown


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.44, "0.4 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_times_read_well(value: float | None, text: str) -> None:
    assert span(value) == text
