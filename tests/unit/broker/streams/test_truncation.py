"""Ending all of a stream up to a sequence."""

from __future__ import annotations

import pytest
from unit.broker.streams.world import StreamWorld

from tidemark.broker.streams import truncation
from tidemark.errors import PreconditionFailed, StreamReset


def truncated(world: StreamWorld, upto: int | None, *, tell: bool = False) -> int:
    """How many rows ended."""
    work = world.session.truncation("s", upto, tell=tell)
    while work.step(world.now_ms):
        pass
    assert work.safe_at <= world.broker.journal.last_seq
    world.turn()
    return work.ended


@pytest.mark.parametrize("look", [1, 3, 1000])
def test_rows_up_to_a_sequence_end_and_those_behind_it_stay(
    look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "LOOK_MAX", look)
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % n, b"v") for n in range(10)))
    middle = world.put((b"k0", b"again"), (b"k11", b"v"))
    world.put((b"late", b"v"))

    assert truncated(world, middle.first_seq) == 10
    assert world.now() == [(b"k11", b"v"), (b"late", b"v")]
    assert truncated(world, middle.first_seq) == 0, "it may be done again"
    world.put((b"k1", b"new"))
    for again in (world.crash(), world.crash(power=False)):
        assert again.now() == [(b"k11", b"v"), (b"late", b"v"), (b"k1", b"new")]
        assert again.session.get("s", b"k2") is None


def test_pins_and_open_snapshots_go_on_to_show_what_ended_also_after_a_crash() -> None:
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"a", b"1"), (b"b", b"2"))
    pin, _ = world.session.pin("s", "p", 3_600_000)
    snapshot = world.session.snapshot("s")
    assert truncated(world, receipt.first_seq) == 1
    assert truncated(world, receipt.last_seq) == 1
    world.compact()

    assert world.now() == []
    for view in (pin, snapshot):
        assert [row[1:] for row in world.content(view)] == [(b"a", b"1"), (b"b", b"2")]
    again = world.crash()
    assert [row[1:] for row in again.content(again.session.pinned("s", "p"))] == [(b"a", b"1"), (b"b", b"2")]
    assert again.now() == []


def test_a_crash_in_the_middle_leaves_a_floor_from_which_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "LOOK_MAX", 3)
    world = StreamWorld()
    world.declare()
    receipt = world.put(*((b"k%d" % n, b"v") for n in range(10)))
    work = world.session.truncation("s", receipt.last_seq)
    assert work.step(world.now_ms)
    world.turn()
    again = world.crash()
    assert len(again.now()) == 7
    assert truncated(again, receipt.last_seq) == 7


def test_what_is_put_while_it_runs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "LOOK_MAX", 3)
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % n, b"v") for n in range(10)))
    work = world.session.truncation("s", None, tell=True)
    goes_on, number = True, 0
    while goes_on:
        goes_on = work.step(world.now_ms)
        number += 1
        world.put((b"k%d" % number, b"new"))
    assert {key for key, _ in world.now()} == {b"k%d" % n for n in range(1, number + 1)}
    assert {key for key, _ in world.crash().now()} == {b"k%d" % n for n in range(1, number + 1)}


def test_who_has_not_seen_deletes_that_ended_is_told_to_start_over() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    mark = world.put((b"b", b"2"))
    delete = world.put((b"a", None))
    truncated(world, mark.last_seq)
    world.session.snapshot("s", after=mark.last_seq).close()
    truncated(world, delete.last_seq)
    with pytest.raises(StreamReset):
        world.session.snapshot("s", after=mark.last_seq)


def test_a_purge_tells_all_who_have_read_anything() -> None:
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"a", b"1"), (b"b", None))
    assert truncated(world, None, tell=True) == 2
    assert world.now() == []
    with pytest.raises(StreamReset):
        world.session.snapshot("s", after=receipt.last_seq)
    assert truncated(world, None, tell=True) == 0, "there is nothing to purge"


def test_a_sequence_that_nothing_has_yet_is_refused_so_that_nothing_ends_that_is_to_come() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    for upto in (world.broker.arena.next_seq, 1 << 62, -1):
        with pytest.raises(PreconditionFailed, match="the newest sequence is"):
            world.session.truncation("s", upto)
    world.put((b"b", b"2"))
    assert world.crash().now() == [(b"a", b"1"), (b"b", b"2")]


def test_nothing_is_written_when_there_is_nothing_to_end() -> None:
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"a", b"1"))
    truncated(world, receipt.last_seq)
    newest = world.broker.arena.next_seq
    for _ in range(10):
        assert truncated(world, receipt.last_seq) == 0
    assert world.broker.arena.next_seq == newest


@pytest.mark.parametrize("how", ["truncate", "purge", "amqp purge"])
def test_the_floor_is_right_behind_the_last_row_that_ended_so_who_has_read_that_one_missed_nothing(
    how: str,
) -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    last = world.put((b"b", b"1")).last_seq
    world.declare("other")
    world.put((b"x", b"1"), (b"y", b"1"), to="other")
    if how == "truncate":
        truncated(world, world.broker.arena.next_seq - 1)
    elif how == "purge":
        truncated(world, None, tell=True)
    else:
        world.stream().purge()
        world.turn()
    assert world.now() == []
    for again in (world, world.crash()):
        assert again.stream().ends.last.floor == last + 1


def test_a_snapshot_of_before_knows_what_had_ended_by_then() -> None:
    world = StreamWorld()
    world.declare(key="none")
    first = world.put((None, b"1"), (None, b"2"))
    pin, _ = world.session.pin("s", "p", 3_600_000)
    truncated(world, first.first_seq)
    between, _ = world.session.pin("s", "q", 3_600_000)
    truncated(world, first.last_seq)
    for again in (world, world.crash()):
        stream = again.stream()
        assert stream.ends.at(pin.seq).floor == 0
        assert stream.ends.at(between.seq).floor == first.first_seq + 1
        assert stream.ends.at(stream.caught_up()).floor == first.last_seq + 1
        assert {one.name: one.floor for one in again.session.pins("s")} == {"p": 0, "q": first.first_seq + 1}
