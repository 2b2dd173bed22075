"""Copying staged rows into a stream, all at once, with everything else of the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.broker.streams.world import StreamWorld, rows

from tidemark.broker.streams import copies
from tidemark.broker.streams.commit import Batch, Committed, Copy, Move, Put
from tidemark.errors import AccessRefused, ContentTooLarge, NotFound, PinExpired, PreconditionFailed
from tidemark.model.rows import Row, RowBatch
from tidemark.model.wiring import PermissionSpec, UserSpec


def staged(**arguments: Any) -> StreamWorld:
    world = StreamWorld()
    world.declare("staging", key="log", **arguments)
    world.declare("s")
    return world


def copied(world: StreamWorld, batch: Batch, rows_max: int = 1 << 20) -> Committed:
    copier = world.session.copier(batch, rows_max)
    try:
        while copier.step():
            pass
        done = world.session.commit(copier.batch)
    finally:
        copier.close()
    world.turn()
    return done


def span(done: Committed) -> tuple[int, int]:
    return done.first_seq, done.last_seq


def test_rows_are_copied_as_they_were_staged_and_seen_together() -> None:
    world = staged()
    world.put((b"old", b"0"), (b"gone", b"0"))
    first = world.put((b"a", b"1"), (b"b", b"2"), to="staging")
    world.put((b"a", b"a zombie's"), to="staging")
    second = world.put((b"gone", None), (None, b"no key"), to="staging")
    before = world.now()

    batch = Batch([Copy("staging", [span(first), span(second)], "s"), Put("s", rows((b"c", b"3")))])
    copier = world.session.copier(batch)
    assert not copier.step()
    assert world.now() == before, "reading changes nothing"
    done = world.session.commit(copier.batch)
    copier.close()
    frames = world.world.node.journal.statistics().frames
    world.world.node.turn(world.now_ms)
    assert world.world.node.journal.statistics().frames == frames + 1
    world.turn()

    assert world.now() == [
        (b"old", b"0"), (b"a", b"1"), (b"b", b"2"), (b"gone", None), (None, b"no key"), (b"c", b"3"),
    ]  # fmt: skip
    assert done.last_seq - done.first_seq == 4
    assert world.stream("staging").stream().snapshots == 0


def test_headers_are_copied_too() -> None:
    world = staged()
    properties = b"\x20\x00\x00\x00\x00\x07\x01ht\x01\x01xt\x00"[:-3]
    batch = RowBatch.build([Row(b"k", b"v", properties)])
    receipt = world.session.commit(Batch([Put("staging", batch)]))
    world.turn()
    copied(world, Batch([Copy("staging", [span(receipt)], "s")]))
    row = world.session.get("s", b"k")
    assert row is not None and bytes(row.properties) == properties


def test_a_crash_after_the_commit_finds_all_of_it_and_one_before_it_nothing() -> None:
    world = staged()
    receipt = world.put(*((b"k%d" % n, b"v") for n in range(100)), to="staging")
    batch = Batch([Copy("staging", [span(receipt)], "s"), Move("staging", "c", 1)], "p", 1)
    copier = world.session.copier(batch)
    copier.step()
    assert world.crash().now() == []
    done = copied(world, batch)

    again = world.crash()
    assert len(again.now()) == 100
    known = again.session.known(batch)
    assert known is not None and known.duplicate and span(known) == span(done)
    assert again.session.mark("staging", "c") is not None


def test_a_number_that_was_there_is_known_though_its_rows_are_gone() -> None:
    world = staged()
    receipt = world.put((b"k", b"v"), to="staging")
    batch = Batch([Copy("staging", [span(receipt)], "s")], "p", 7)
    assert world.session.known(batch) is None
    copied(world, batch)
    world.session.purge("staging")
    known = world.session.known(batch)
    assert known is not None and known.duplicate


@pytest.mark.parametrize("slice_rows", [1, 7, 1000])
def test_slices_and_short_ranges_make_no_difference(slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "SLICE_ROWS", slice_rows)
    monkeypatch.setattr(copies, "STEP_TAKES", 3)
    world = staged()
    world.declare("other")
    ranges, expected = [], []
    for n in range(20):
        changes = [(b"k%d-%d" % (n, i), b"v" * i) for i in range(n + 1)]
        ranges.append(span(world.put(*changes, to="staging")))
        world.put((b"x", b"y"), to="staging" if n % 2 else "other")
        expected += changes
    copied(world, Batch([Copy("staging", ranges, "s")]))
    assert world.now() == expected


def test_neighbouring_ranges_are_read_as_one() -> None:
    world = staged()
    receipts = [world.put((b"k%d" % n, b"v"), to="staging") for n in range(3)]
    [first, *_], last = receipts, receipts[-1]
    operation = Copy(
        "staging", [(first.first_seq, first.first_seq), (first.first_seq + 1, last.last_seq)], "s"
    )
    assert copies._joined(operation) == [(first.first_seq, last.last_seq)]


def test_what_is_staged_while_it_reads_or_ends_while_it_reads_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "SLICE_ROWS", 1)
    world = staged()
    receipt = world.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), to="staging")
    copier = world.session.copier(Batch([Copy("staging", [span(receipt)], "s")]))
    assert copier.step()
    world.session.purge("staging")
    world.put((b"a", b"later"), to="staging")
    world.compact()
    while copier.step():
        pass
    world.session.commit(copier.batch)
    copier.close()
    world.turn()
    assert world.now() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


# What is refused --------------------------------------------------------------------------------------


def refused(world: StreamWorld, *ranges: tuple[int, int], source: str = "staging", into: str = "s") -> None:
    before, newest = world.now(), world.broker.arena.next_seq
    try:
        copied(world, Batch([Put("s", rows((b"with it", b"v"))), Copy(source, ranges, into)], "p", 1))
    finally:
        assert world.now() == before and world.broker.arena.next_seq == newest
        assert world.session.producer_last("p") == 0
        assert world.stream("staging").stream().snapshots == 0


def test_rows_that_ended_were_superseded_or_never_there_are_not_left_out_silently() -> None:
    world = staged()
    receipt = world.put((b"a", b"1"), (b"b", b"2"), to="staging")
    other = world.put((b"x", b"y"))
    world.put((b"c", b"3"), to="staging")
    with pytest.raises(PreconditionFailed, match="1 of the first 3 are not there"):
        refused(world, (receipt.first_seq, other.last_seq))
    with pytest.raises(PreconditionFailed, match="it is at sequence"):
        refused(world, (receipt.first_seq, receipt.first_seq + 1000))
    world.put((b"x", b"z"))
    with pytest.raises(PreconditionFailed, match="stage them again, in a stream with the key 'log'"):
        refused(world, span(other), source="s")
    world.session.purge("staging")
    world.turn()
    with pytest.raises(PreconditionFailed, match="ended by retention or truncation"):
        refused(world, span(receipt))


def test_ranges_that_cannot_be_are_refused() -> None:
    world = staged()
    world.put((b"a", b"1"), to="staging")
    for first, last in ((0, 1), (5, 4), (0, 0)):
        with pytest.raises(PreconditionFailed, match="no range"):
            refused(world, (first, last))


def test_a_copy_of_a_stream_that_is_not_there_or_into_one_is_refused() -> None:
    world = staged()
    receipt = world.put((b"a", b"1"), to="staging")
    with pytest.raises(NotFound, match="no stream 'nowhere'"):
        refused(world, span(receipt), into="nowhere")
    with pytest.raises(NotFound, match="no stream 'nowhere'"):
        refused(world, span(receipt), source="nowhere")


def test_copying_needs_read_here_and_write_there() -> None:
    world = staged()
    receipt = world.put((b"a", b"1"), to="staging")
    for user, read, write in (("reader", "staging", "^$"), ("writer", "^$", "s")):
        world.broker.put(UserSpec(user, "x", ()))
        world.broker.put(PermissionSpec(user, "/", "^$", write, read))
        session = type(world.session)(world.broker.open_session("/", user, None, "test"))
        with pytest.raises(AccessRefused):
            session.copier(Batch([Copy("staging", [span(receipt)], "s")]))


def test_too_many_rows_ranges_or_bytes_are_refused_before_they_are_read_or_held() -> None:
    world = staged()
    receipt = world.put(*((b"k%d" % n, b"v" * 1000) for n in range(100)), to="staging")
    first, last = span(receipt)
    with pytest.raises(ContentTooLarge, match="maxOffsetsPerTrigger"):
        world.session.copier(Batch([Copy("staging", [(1, 1 << 62)], "s")]), 1000)
    with pytest.raises(ContentTooLarge, match="copies 200 rows; at most 199"):
        world.session.copier(Batch([Copy("staging", [(first, last)] * 2, "s")]), 199)
    with pytest.raises(ContentTooLarge, match="Stage more rows with each put"):
        world.session.copier(Batch([Copy("staging", [(first, first)] * (copies.RANGES_MAX + 1), "s")]))

    world.broker.config = replace(world.broker.config, batch_bytes_max=1 << 16)
    with pytest.raises(ContentTooLarge, match=r"broker.batch_bytes_max .* lower maxOffsetsPerTrigger"):
        refused(world, (first, last))
    copied(world, Batch([Copy("staging", [(first, first + 49)], "s")]))
    assert len(world.now()) == 50


def test_a_staging_stream_that_is_deleted_while_it_is_read_ends_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "SLICE_ROWS", 1)
    world = staged()
    receipt = world.put((b"a", b"1"), (b"b", b"2"), to="staging")
    copier = world.session.copier(Batch([Copy("staging", [span(receipt)], "s")]))
    assert copier.step()
    world.session.delete("staging")
    with pytest.raises(PinExpired, match="deleted"):
        copier.step()
    copier.close()
