"""Snapshots: frozen, repeatable, in any range, never half of a batch; the past; what changed between two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.broker.streams.world import DAY_MS, StreamWorld, at_once, rows

from tidemark.broker.streams.commit import Batch, Put
from tidemark.broker.streams.core import gather
from tidemark.broker.streams.positions import Position
from tidemark.errors import HistoryGone, PinExpired, PreconditionFailed, StreamReset
from tidemark.model.rows import rows_digest


def test_what_is_written_during_a_read_is_not_in_it() -> None:
    """K-14: however much is rewritten, deleted and added meanwhile."""
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % number, b"old") for number in range(10)))
    with world.session.snapshot("s") as snapshot:
        first = snapshot.take(4, 1 << 20)
        assert first is not None and len(first) == 4
        for number in range(10):
            world.put((b"k%d" % number, b"new" if number % 2 else None))
        world.put((b"added", b"new"))

        assert world.content(snapshot) == world.content(snapshot)
        assert [(key, value) for _, key, value in world.content(snapshot)] == [
            (b"k%d" % number, b"old") for number in range(10)
        ]
    assert world.stream().held == 0


def test_a_closed_snapshot_lets_go_of_what_it_held_and_is_not_read_again() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"k", b"old"))
    snapshot = world.session.snapshot("s")
    world.put((b"k", b"new"))
    assert stream.held == 1

    snapshot.close()
    snapshot.close()

    assert stream.held == 0
    with pytest.raises(PreconditionFailed, match="the snapshot is closed"):
        snapshot.take(1, 1)


def test_a_snapshot_never_splits_a_batch_over_streams() -> None:
    """K-34, K-35: all rows of a batch in all its streams are seen together, or none."""
    world = StreamWorld()
    world.declare("s")
    world.declare("t")
    batch = [Put(name, rows(*((b"k%d" % i, b"v") for i in range(50)))) for name in ("s", "t")]
    with world.world.slow_disk():
        world.session.commit(Batch(batch))
        world.world.node.turn(world.now_ms)
        assert world.now("s") == [] and world.now("t") == []

    world.turn()

    assert len(world.now("s")) == len(world.now("t")) == 50


def test_a_frame_that_ends_within_a_turn_shows_the_same_batches_in_all_streams() -> None:
    """K-35: t gets more before the turn is over, which is not durable yet; what is durable is seen in both."""
    world = StreamWorld()
    world.declare("s")
    world.declare("t")
    node = world.world.node
    world.session.commit(Batch([Put(name, rows((b"k", b"1"))) for name in ("t", "s")]))
    node.journal.flush(world.now_ms)
    world.put((b"k", b"2"), to="t", turn=False)
    for name in ("s", "t"):
        world.stream(name).look(world.now_ms)
    node.completed(world.now_ms)

    assert world.now("s") == world.now("t") == [(b"k", b"1")]
    world.turn()
    assert world.now("t") == [(b"k", b"2")]


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_takes_all_of_a_batch_or_nothing(power: bool) -> None:
    """K-34: 1,000 rows that are larger than an extent."""
    world = StreamWorld()
    world.declare("s")
    world.declare("t")
    half = [Put(name, rows(*((b"k%d" % i, b"v" * 100) for i in range(500)))) for name in ("s", "t")]
    world.session.commit(Batch(half))
    world.world.node.turn(world.now_ms)

    after = world.crash(power)

    assert {len(after.now("s")), len(after.now("t"))} in ({0}, {500})


def test_the_bank_balances_at_every_boundary() -> None:
    """K-19: transfers between accounts as batches; whoever stops at markers sees the same sum."""
    world = StreamWorld()
    world.declare()
    accounts = {b"a%d" % number: 100 for number in range(5)}
    world.put(*((name, b"%d" % money) for name, money in accounts.items()))
    reader = world.session.reader("s", "first")
    seen: dict[bytes, int] = {}
    boundaries = 0
    for step in range(60):
        poor, rich = sorted(accounts)[step % 5], sorted(accounts)[(step * 3 + 1) % 5]
        if poor != rich:
            accounts[poor], accounts[rich] = accounts[poor] - 7, accounts[rich] + 7
        world.put((poor, b"%d" % accounts[poor]), (rich, b"%d" % accounts[rich]), turn=step % 3 == 0)
        found = reader.next(2, 1 << 20)
        if hasattr(found, "digest"):
            boundaries += 1
            assert sum(seen.values()) == 500
        elif found is not None:
            seen |= {key: int(value or b"0") for _, key, value in world.described(world.stream(), found)}  # type: ignore[arg-type, misc]
    assert boundaries > 3


def test_a_marker_says_what_the_snapshot_held_whatever_the_order() -> None:
    """K-18: from, to, counts and a hash that two readers can compare."""
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % number, b"v%d" % number) for number in range(7)))
    world.put((b"k3", None))
    with world.session.snapshot("s") as one, world.session.snapshot("s") as other:
        total = 0
        after = 0
        while (taken := one.take(2, 1 << 20, after=after)) is not None:
            after = one.position
            one.feed(taken)
            total += rows_digest(gather(world.stream(), taken, 0x7F))
        whole = other.take(100, 1 << 20)
        assert whole is not None
        other.feed(whole)

        marker = one.marker()
        assert marker == other.marker()
        assert (marker.from_, marker.to) == (0, world.stream().boundary)
        assert (marker.count, marker.tombstones) == (6, 1)
        assert marker.digest == total % (1 << 128)


def test_any_sub_range_and_any_shards_of_a_snapshot_can_be_read() -> None:
    world = StreamWorld()
    world.declare(shards=8)
    world.put(*((b"k%d" % number, b"v") for number in range(200)))
    with world.session.snapshot("s") as snapshot:
        everything = world.content(snapshot)
        middle = everything[50][0], everything[120][0]
        first, second = world.content(snapshot, until=middle[1]), everything[: 120 + 1]
        assert first == second
        after = snapshot.take(1000, 1 << 20, after=middle[0], until=middle[1])
        assert after is not None and world.described(world.stream(), after) == everything[51:121]

        parts = [world.content(snapshot, shards=shard) for shard in range(8)]
        assert sorted(row for part in parts for row in part) == everything
        assert world.content(snapshot, shards=[1, 2, 6]) == sorted(parts[1] + parts[2] + parts[6])
        assert snapshot.tally(shards=[1, 6])[0] == len(parts[1]) + len(parts[6])
        with pytest.raises(PreconditionFailed, match="has the shards 0 to 7"):
            snapshot.take(1, 1, shards=8)


def test_growing_the_shards_moves_slots_and_loses_nothing() -> None:
    world = StreamWorld()
    world.declare(shards=2)
    world.put(*((b"k%d" % number, b"v") for number in range(100)))
    with world.session.snapshot("s") as before:
        everything = world.content(before)
        halves = [world.content(before, shards=shard) for shard in range(2)]
        world.session.declare("s", {"x-stream-shards": 5})
        assert [world.content(before, shards=shard) for shard in range(2)] == halves
        with pytest.raises(PreconditionFailed, match="has the shards 0 to 1"):
            before.take(1, 1, shards=2)
    with world.session.snapshot("s") as after:
        assert after.shards == 5
        parts = [world.content(after, shards=shard) for shard in range(5)]
        assert sorted(row for part in parts for row in part) == everything


def test_a_scan_of_a_shard_over_which_the_stream_grows_gives_all_rows_of_that_shard() -> None:
    world = StreamWorld()
    world.declare(shards=2)
    world.put(*((b"k%d" % number, b"v") for number in range(200)))
    with world.session.snapshot("s") as snapshot:
        wanted = world.content(snapshot, shards=1)
        values, tombstones, _ = snapshot.tally(shards=1)
        assert (values, tombstones) == (len(wanted), 0)

        taken = snapshot.take(10, 1 << 20, shards=1)
        assert taken is not None
        got = world.described(snapshot.stream, taken)
        world.session.declare("s", {"x-stream-shards": 4})
        while (taken := snapshot.take(10, 1 << 20, after=snapshot.position, shards=1)) is not None:
            got += world.described(snapshot.stream, taken)

        assert got == wanted
        assert snapshot.tally(shards=1)[0] == len(wanted)


def test_shown_at_once_a_snapshot_sees_what_was_just_put() -> None:
    world = at_once()
    world.declare()
    world.put((b"k", b"1"), turn=False)
    with world.session.snapshot("s") as snapshot:
        world.put((b"k", b"2"), turn=False)
        assert [(key, value) for _, key, value in world.content(snapshot)] == [(b"k", b"1")]
        assert world.now() == [(b"k", b"2")]


def test_a_snapshot_that_nobody_reads_is_closed_and_its_reader_told() -> None:
    """K-89: what an open snapshot keeps is bounded in time."""
    world = StreamWorld()
    stream = world.declare()
    world.broker.config = replace(world.broker.config, snapshot_idle_s=60)
    world.put((b"k", b"1"))
    idle, busy = world.session.snapshot("s"), world.session.snapshot("s")
    world.put((b"k", b"2"))
    world.rest(40_000)
    busy.take(1, 1)
    world.rest(40_000)

    with pytest.raises(PinExpired, match=r"nobody has read from it for too long.*Open a new snapshot"):
        idle.take(1, 1)
    assert len(world.content(busy)) == 1
    busy.close()
    assert stream.held == 0


# The past -----------------------------------------------------------------------------------------


def test_without_history_the_past_is_gone_and_that_is_said() -> None:
    world = StreamWorld()
    world.declare()
    past = world.put((b"k", b"1")).last_seq
    world.put((b"k", b"2"))
    with pytest.raises(HistoryGone, match=f"at sequence {past}; the oldest exact snapshot is at") as caught:
        world.session.snapshot("s", at=past)
    assert world.now(at=caught.value.oldest) == [(b"k", b"2")]


def test_within_its_history_a_stream_can_be_seen_as_it_was_at_a_sequence_and_at_a_time() -> None:
    world = StreamWorld()
    world.declare(history=60_000)
    points = []
    for number in range(4):
        points.append((world.put((b"k", b"%d" % number)).last_seq, world.now_ms))
        world.rest(5_000)

    for again in (world, world.crash()):
        for number, (seq, ms) in enumerate(points):
            assert again.now(at=seq) == [(b"k", b"%d" % number)]
            assert again.now(at=f"time:{ms}") == [(b"k", b"%d" % number)]
            assert again.now(at=f"time:{ms + 4_999}") == [(b"k", b"%d" % number)]
        assert again.now(at=f"time:{points[0][1] - 1}") == []


def test_behind_its_history_versions_leave_and_a_restart_does_not_pretend_otherwise() -> None:
    world = StreamWorld()
    stream = world.declare(history=60_000)
    old = world.put((b"k", b"1")).last_seq
    world.put((b"k", b"2"))
    world.rest(30_000)
    recent = world.put((b"k", b"3")).last_seq
    world.put((b"k", b"4"))
    world.rest(40_000)
    world.rest(2_000)

    assert stream.held == 2  # what was superseded 42 s ago; not what was 72 s ago
    for again in (world, world.crash()):
        with pytest.raises(HistoryGone):
            again.session.snapshot("s", at=old)
        assert again.now(at=recent) == [(b"k", b"3")]


def test_after_a_restart_a_past_that_compaction_may_have_dropped_is_not_shown() -> None:
    """The version is still on the disk here, but nobody could know."""
    world = StreamWorld()
    world.declare()
    past = world.put((b"k", b"1")).last_seq
    world.put((b"k", b"2"))
    after = world.crash()
    with pytest.raises(HistoryGone):
        after.session.snapshot("s", at=past)


def test_a_pin_does_not_stand_for_a_time_at_which_there_was_something_newer() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"pinned"))
    pinned_ms = world.now_ms
    world.session.pin("s", "p", DAY_MS)
    world.rest(10_000)
    world.put((b"k", b"gone"))
    world.rest(10_000)
    world.put((b"k", b"newest"))
    world.rest(10_000)
    for ms in (pinned_ms, pinned_ms + 10_000):
        with pytest.raises(HistoryGone):
            world.session.snapshot("s", at=f"time:{ms}")
    assert world.now(at=f"time:{pinned_ms + 20_000}") == [(b"k", b"newest")]
    assert world.now(at=f"time:{world.now_ms + 1}") == [(b"k", b"newest")]


def test_the_past_of_a_log_is_what_is_left_of_it() -> None:
    world = StreamWorld()
    world.declare(key="none")
    first = world.put((None, b"1")).last_seq
    world.put((None, b"2"))
    for again in (world, world.crash()):
        assert again.now(at=first) == [(None, b"1")]


@pytest.mark.parametrize("at", [-1, 1 << 60, "time:soon", "yesterday"])
def test_a_moment_that_cannot_be_is_refused(at: int | str) -> None:
    world = StreamWorld()
    world.declare()
    with pytest.raises(PreconditionFailed):
        world.session.snapshot("s", at=at)


def test_the_difference_of_two_snapshots_is_what_changed_and_what_was_deleted() -> None:
    world = StreamWorld()
    world.declare(history=DAY_MS)
    a = world.put((b"same", b"1"), (b"changed", b"1"), (b"deleted", b"1")).last_seq
    b = world.put((b"changed", b"2"), (b"deleted", None), (b"new", b"1")).last_seq
    world.put((b"changed", b"3"))

    with world.session.diff("s", a, b) as difference:
        assert [(key, value) for _, key, value in world.content(difference)] == [
            (b"changed", b"2"),
            (b"deleted", None),
            (b"new", b"1"),
        ]


def test_a_difference_over_deletes_that_are_forgotten_is_a_reset() -> None:
    """K-88: never a silent miss."""
    world = StreamWorld()
    world.declare(tombstone_lease=1000)
    a = world.put((b"k", b"1")).last_seq
    world.put((b"k", None))
    world.rest(2_000)

    with pytest.raises(StreamReset) as caught:
        world.session.diff("s", a)
    assert caught.value.purged > a
    with pytest.raises(StreamReset):
        world.session.snapshot("s", after=Position(world.streams.history, a))
    assert world.now() == []


def test_a_sequence_in_the_middle_of_a_batch_shows_the_time_before_it() -> None:
    """K-34: whatever number is asked for, the rows of a batch are seen together or not at all."""
    world = StreamWorld()
    for name in ("s", "t"):
        world.declare(name, history=DAY_MS)
    before = world.put((b"alice", b"100"), (b"bob", b"0"))
    batch = [
        Put("s", rows((b"alice", b"50"))),
        Put("t", rows((b"moved", b"50"))),
        Put("s", rows((b"bob", b"50"))),
    ]
    done = world.session.commit(Batch(batch, producer="bank", sequence=1))
    world.turn()
    world.put((b"alice", b"0"))

    for seq in range(done.first_seq, done.last_seq):
        assert world.now("s", at=seq) == world.now("s", at=before.last_seq)
    assert world.now("s", at=done.last_seq) == [(b"alice", b"50"), (b"bob", b"50")]
    assert world.now("t") == [(b"moved", b"50")]
    pinned, _ = world.session.pin("s", "half", DAY_MS, at=done.first_seq)
    assert pinned.seq < done.first_seq
    world = world.crash()
    assert world.now("s", at=done.first_seq) == [(b"alice", b"100"), (b"bob", b"0")]
