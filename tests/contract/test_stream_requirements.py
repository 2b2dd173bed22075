"""Requirements about streams that one node can fulfil, and that no other test names.

Every test begins with the id of its requirement (K: the Kayos seed, M: what nobody else has) and what it asks for.
The worlds are whole nodes over a simulated disk: holding the disk back is HOLDSTORE, a `lag` is SLOW, `crash` is
KILL and RESTART, a crash with `power` is TEAR too. K-5, K-6, K-7, K-20, K-21, K-22, K-86 and K-87 need a second node: see
`tests/unit/member/test_chain.py`, `tests/unit/cluster/test_divergence.py` and `tests/system/cluster`.
"""

from __future__ import annotations

import base64
import gc
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from unit.broker.streams.world import DAY_MS, StreamWorld, rows
from unit.frontend.stream.client import connected
from unit.node.world import NodeWorld

from tidemark.broker.streams.commit import Batch, Move, Publish, Put
from tidemark.broker.streams.core import StreamCore, put_rows
from tidemark.broker.streams.positions import FromMark, Position
from tidemark.broker.streams.snapshots import Marker, Snapshot
from tidemark.errors import StreamReset
from tidemark.model.arena import MEMORY, Arena, Writer
from tidemark.model.keys import NO_KEY, row_digest
from tidemark.model.rows import Row, RowBatch
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG
from tidemark.speed import PURE

compiled_only = pytest.mark.skipif(PURE, reason="about the cost of the compiled index")


@pytest.fixture
def world() -> StreamWorld:
    return StreamWorld()


def some_rows(count: int, first: int = 0, size: int = 20) -> RowBatch:
    """Rows with keys of 8 digits, made without a loop over Row."""
    keys = b"".join(b"%08d" % number for number in range(first, first + count))
    offsets = array("i", range(0, 8 * count + 1, 8)).tobytes()
    values = array("i", range(0, size * count + 1, size)).tobytes()
    return RowBatch(count, keys=(offsets, keys), values=(values, bytes(size * count)))


def marker_of(world: StreamWorld, snapshot: Snapshot, **part: Any) -> tuple[int, int, int | None]:
    """(values, tombstones, hash) of a range."""
    snapshot.begin_again()
    after = part.pop("after", None)
    while (taken := snapshot.take(7, 1 << 20, after=after, **part)) is not None:
        snapshot.feed(taken)
        after = snapshot.position
    marker = snapshot.marker()
    return marker.count, marker.tombstones, marker.digest


def content_of(world: StreamWorld, snapshot: Snapshot, after: int, **part: Any) -> list[Any]:
    """(sequence, key, value) of the rows of a range behind `after`."""
    found: list[Any] = []
    while (taken := snapshot.take(7, 1 << 20, after=after, **part)) is not None:
        found += world.described(snapshot.stream, taken)
        after = snapshot.position
    return found


def held_back(disk: SimDisk) -> Callable[[], None]:
    """The disk does nothing any more, until the answer is called."""
    disk.completed = lambda: disk._done  # type: ignore[method-assign]

    def go_on() -> None:
        del disk.completed

    return go_on


# What readers are promised ------------------------------------------------------------------------


def test_the_three_consistencies_are_the_readers_choice(world: StreamWorld) -> None:
    """K-3: strict by waiting for what was written, causal by whole snapshots, eventual by going row by row."""
    world.declare()
    go_on = held_back(world.world.disk)
    receipt = world.put((b"a", b"1"), (b"b", b"1"), turn=False)
    world.world.node.turn(world.now_ms)
    world.world.node.completed(world.now_ms)
    assert world.streams.safe(receipt.history, receipt.last_seq) == "not yet"
    assert world.now() == []
    go_on()
    world.turn()
    assert world.streams.safe(receipt.history, receipt.last_seq) == "yes"
    assert world.now() == [(b"a", b"1"), (b"b", b"1")]

    causal, eventual = (world.session.reader("s", "first", markers=True) for _ in range(2))
    assert causal.next(1, 1 << 20) is not None
    assert eventual.next(1, 1 << 20) is not None
    world.session.move("s", "causal", None, causal.boundary)
    world.session.move("s", "eventual", None, eventual.after)
    world.turn()
    world = world.crash()
    assert world.session.reader("s", FromMark("causal")).after == 0
    assert world.session.reader("s", FromMark("eventual")).after == receipt.first_seq


def test_one_sequence_goes_through_all_keys_shards_and_streams(world: StreamWorld) -> None:
    """K-10."""
    world.declare("s", shards=4)
    world.declare("t")
    given: list[int] = []
    for number in range(40):
        committed = world.put((b"%d" % number, b"v"), (b"x", b"v"), to="st"[number % 2], turn=number % 7 == 0)
        given += [committed.first_seq, committed.last_seq]
    world.turn()
    assert given == sorted(set(given))
    with world.session.snapshot("s") as snapshot:
        by_shard = [[row[0] for row in world.content(snapshot, shards=shard)] for shard in range(4)]
        assert all(part == sorted(part) and part for part in by_shard)
        assert sorted(seq for part in by_shard for seq in part) == [row[0] for row in world.content(snapshot)]


@pytest.mark.parametrize("seed", range(10))
def test_what_was_written_after_something_is_never_seen_without_it(seed: int) -> None:
    """K-36 as far as one node goes: the producer waits for the disk, the consumer takes whole snapshots."""
    dice = Random(seed)
    world = StreamWorld(NodeWorld(SimDisk(dice, lag=3)))
    world.session.declare("s", {"x-stream-key": "none"})
    for _ in range(20):
        world.world.node.turn(world.now_ms)
        world.world.node.completed(world.now_ms)
    cause = effect = 0
    waits_for = 0
    for _ in range(120):
        if waits_for <= world.broker.journal.durable_seq:
            if cause == effect:
                cause += 1
                waits_for = world.put((b"cause", b"%d" % cause), turn=False).safe_at
            else:
                effect = cause
                waits_for = world.put((b"effect", b"%d" % effect), turn=False).safe_at
        world.world.node.turn(world.now_ms)
        world.world.node.completed(world.now_ms)
        if dice.random() < 0.05:
            world = world.crash()
            seen = dict(world.now())
            cause, effect = int(seen.get(b"cause") or 0), int(seen.get(b"effect") or 0)
            waits_for = 0
        seen = dict(world.now())
        assert int(seen.get(b"effect") or 0) <= int(seen.get(b"cause") or 0)
    assert effect > 3


# What writers cost ------------------------------------------------------------------------------


def test_many_writers_share_few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-4: at most 100 syncs for 10,000 writes under load; the bytes written are reported."""
    large = replace(CONFIG, extent_bytes=1 << 20, segment_bytes=16 << 20, cache_bytes=64 << 20)
    monkeypatch.setattr("unit.node.world.CONFIG", large)
    world = StreamWorld()
    world.declare()
    disk = world.world.disk
    syncs, written = disk.syncs, disk.written
    for turn in range(50):
        for number in range(200):
            world.put((b"%d" % ((200 * turn + number) % 3000), bytes(100)), turn=False)
        world.turn()
    ratio = (disk.written - written) / (10_000 * 100)
    print(f"{ratio:.2f} bytes on the disk for one of a value of 100 bytes; {disk.syncs - syncs} syncs")
    assert disk.syncs - syncs <= 100
    assert ratio < 3


def test_a_batch_over_streams_marks_and_a_queue_is_one_sync(world: StreamWorld) -> None:
    """K-76: data, state and what the index is made from are one write."""
    for name in "stu":
        world.declare(name)
    world.session.session.declare_queue("q", durable=True)
    world.put((b"k", b"0"))
    disk = world.world.disk
    boundary = world.stream().boundary
    puts = [Put(name, rows((b"k", b"1"), (b"l", b"2"))) for name in "stu"]
    operations = [*puts, Publish("", "q", b"\0\0", b"m"), Move("s", "c", boundary)]
    syncs = disk.syncs
    committed = world.session.commit(Batch(operations, producer="p", sequence=1))
    world.world.node.turn(world.now_ms)
    world.world.node.completed(world.now_ms)
    assert world.broker.journal.durable_seq >= committed.safe_at
    assert disk.syncs - syncs == 1


def test_the_journal_is_written_from_front_to_back(world: StreamWorld) -> None:
    """K-75: whatever keys are rewritten, offsets only rise; compaction writes files of its own."""
    world.declare()
    disk, trace = world.world.disk, []
    submit = disk.submit

    def noted(ticket: int, name: str, offset: int, data: Any) -> None:
        trace.append((name, offset, len(data)))
        submit(ticket, name, offset, data)

    disk.submit = noted  # type: ignore[method-assign]
    for number in range(300):
        world.put((b"%d" % (number % 10), bytes(900)))
    world.compact()
    ends: dict[str, int] = {}
    order: list[str] = []
    for name, offset, size in trace:
        if name not in ends:
            order.append(name)
        assert offset >= ends.get(name, 0), f"{name} was written at {offset} again"
        ends[name] = offset + size
    journal = [name for name in order if name.startswith("seg-")]
    assert len(journal) > 3
    assert journal == sorted(journal)


@compiled_only
def test_the_cost_of_an_update_and_of_a_snapshot_hardly_grows_with_the_keys() -> None:
    """K-16: less than twice as much for ten times the keys; noise is allowed for."""
    few, more, many = (costs(count) for count in (10_000, 100_000, 1_000_000))
    print(f"seconds for 10,000 updates and for 500 snapshots: {few}, {more}, {many}")
    for least, most in zip(few, many, strict=True):
        assert most < 2 * 4 * least
    assert many[1] / 500 < 0.001


def costs(count: int) -> tuple[float, float]:
    """Of 10,000 updates, and of opening 500 snapshots, in a stream with so many keys."""
    arena = Arena()
    writer = Writer(arena, MEMORY)
    core = StreamCore(arena, 7, NO_KEY, b"", bytes(16), [])
    for first in range(0, count, 100_000):
        put_rows(core, writer, some_rows(min(count, 100_000), first), 0, b"")
    dice = Random(count)
    batches = [
        RowBatch.build(Row(b"%08d" % dice.randrange(count), b"x" * 20) for _ in range(10_000))
        for _ in range(5)
    ]

    def update() -> None:
        put_rows(core, writer, batches.pop(), 0, b"")
        core.release(arena.next_seq)

    def open_and_look() -> None:
        seq = arena.next_seq - 1
        for _ in range(500):
            core.hold(seq)
            assert core.take(seq, count // 2, seq, 1, 1) is not None
            core.unhold(seq)

    return min(cpu_s(update) for _ in range(5)), min(cpu_s(open_and_look) for _ in range(5))


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


# Readers beside writers ---------------------------------------------------------------------------


@compiled_only
def test_a_hundred_snapshots_cost_what_changed_between_them(world: StreamWorld) -> None:
    """K-26: memory for the versions that were superseded, not a hundred times the stream."""
    stream = world.declare()
    world.session.commit(Batch([Put("s", some_rows(10_000))]))
    world.turn()
    before = stream.memory_bytes
    opened = []
    for number in range(100):
        opened.append(world.session.snapshot("s"))
        world.put(*((b"%08d" % ((50 * number + key) % 10_000), b"new") for key in range(50)))
    assert stream.held == 100 * 50
    assert stream.memory_bytes - before < 2 * before
    for number, snapshot in enumerate(opened):
        values, tombstones, _ = snapshot.tally()
        assert (values, tombstones) == (10_000, 0)
        changed = sum(value == b"new" for _, _, value in content_of(world, snapshot, 10_000))
        assert changed == 50 * number
    for snapshot in opened:
        snapshot.close()
    assert stream.held == 0


@compiled_only
def test_readers_never_hold_up_the_writer() -> None:
    """K-79: with a hundred readers in the midst of their snapshots a put is as soon safe, and costs about the same."""
    cost: dict[int, float] = {}
    for readers in (0, 100):
        world = StreamWorld()
        world.declare()
        world.session.commit(Batch([Put("s", some_rows(5_000))]))
        world.turn()
        reading = [world.session.reader("s", "first") for _ in range(readers)]
        for reader in reading:
            assert reader.next(10, 1 << 20) is not None
        batch = some_rows(200, 1000)
        best = 1e9
        for _ in range(30):
            start = time.process_time()
            committed = world.session.commit(Batch([Put("s", batch)]))
            best = min(best, time.process_time() - start)
            world.turn()
            assert world.broker.journal.durable_seq >= committed.safe_at
            for reader in reading[::10]:
                reader.next(10, 1 << 20)
        cost[readers] = best
    print(f"us for 200 rows: {cost[0] * 1e6:.0f} alone, {cost[100] * 1e6:.0f} beside 100 readers")
    assert cost[100] < 2 * cost[0] + 50e-6


def test_a_slow_disk_makes_writers_wait_and_nothing_else() -> None:
    """K-1 as far as one node goes: reads go on at once, no put fails, and the wait is that of the disk."""
    world = StreamWorld(NodeWorld(SimDisk(Random(3))))
    world.declare()
    world.put((b"a", b"1"))
    world.world.disk.lag = 10
    waits: list[int] = []
    for number in range(60):
        committed = world.put((b"a", b"%d" % number), turn=False)
        turns = 0
        while world.broker.journal.durable_seq < committed.safe_at:
            world.world.node.turn(world.now_ms)
            world.world.node.completed(world.now_ms)
            assert world.now() != []
            turns += 1
        waits.append(turns)
    assert sorted(waits)[30] <= 10
    assert max(waits) <= 100


# Crashes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_torn_tail_is_garbage_that_nobody_minds(seed: int) -> None:
    """K-77: what was committed is there, what was not is there whole or not at all, start after start."""
    world = StreamWorld(NodeWorld(SimDisk(Random(seed))))
    world.declare()
    world.put((b"a", b"1"), (b"b", b"1"))
    held_back(world.world.disk)
    world.put((b"a", b"2" * 3000), (b"b", b"2" * 3000), (b"c", b"2"), turn=False)
    world.world.node.turn(world.now_ms)

    world = world.crash()
    found = world.now()
    old, new = [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2" * 3000), (b"b", b"2" * 3000), (b"c", b"2")]
    assert found in (old, new)
    for number in range(3):
        world = world.crash()
        assert world.now()[: len(found)] == found
        world.put((b"later %d" % number, b"v"))


class Killed(BaseException):
    """The process ends here."""


def test_a_compaction_that_is_killed_at_any_step_loses_and_brings_back_nothing() -> None:
    """K-81: at every write, sync, rename and removal that it makes, with a pin that keeps old versions."""

    def grown(seed: int) -> StreamWorld:
        world = StreamWorld(NodeWorld(SimDisk(Random(seed))))
        world.declare(tombstone_lease=1000)
        for turn in range(12):
            # Some stays in every segment, and some of what goes is pinned.
            world.put((b"stays %d" % turn, bytes(900)), (b"is pinned %d" % (turn % 6), b"%d" % turn * 300))
            world.put(*((b"%d" % key, b"%d" % turn * 300) for key in range(20, 50)))
            if turn == 6:
                world.session.pin("s", "p", DAY_MS)[0].close()
        world.put(*((b"%d" % key, None) for key in range(20, 30)))
        world.rest(5000)
        return world

    def seen(world: StreamWorld) -> tuple[Any, Any]:
        with world.session.pinned("s", "p") as pinned:
            return world.now(), world.content(pinned)

    expected = seen(grown(0))
    step = compactions = 0
    is_killed = True
    while is_killed:
        world = grown(step)
        is_killed = False
        try:
            with world.world.disk.dying(step, Killed):  # type: ignore[arg-type]
                world.world.rest(slices=40, elapsed_ms=100)
        except Killed:
            is_killed = True
        compactions = world.broker.journal.statistics().compactions
        after = world.crash(power=bool(step % 2))
        assert seen(after) == expected, f"killed at step {step}"
        step += 1
    assert compactions > 0
    assert step > 10


# What nobody else has -------------------------------------------------------------------------------


def test_a_batch_that_reads_a_pin_reads_the_same_bytes_however_often_it_starts(world: StreamWorld) -> None:
    """M1, the broker's side: tasks read shards and ranges of a pin, die, and read them again."""
    world.declare("s", shards=3)
    dice = Random(1)
    world.put(*((b"%d" % key, dice.randbytes(200)) for key in range(90)))
    snapshot, _ = world.session.pin("s", "batch 7", DAY_MS)
    end = snapshot.seq
    tasks = [(shard, low, low + end // 4 + 1) for shard in range(3) for low in range(0, end, end // 4 + 1)]

    def task(world: StreamWorld, shard: int, low: int, high: int) -> tuple[list[Any], Any]:
        with world.session.pinned("s", "batch 7") as view:
            content = content_of(world, view, low, until=high, shards=shard)
            return content, marker_of(world, view, after=low, until=high, shards=shard)

    snapshot.close()
    first = [task(world, *which) for which in tasks]
    assert sum(len(content) for content, _ in first) == 90
    for _ in range(10):
        for _ in range(5):
            world.put(*((b"%d" % dice.randrange(90), dice.choice((None, b"new" * 50))) for _ in range(20)))
        world.compact()
        world = world.crash(power=dice.random() < 0.5)
        assert [task(world, *which) for which in tasks] == first


def test_a_marker_notices_every_row_that_is_missing_changed_or_too_many(world: StreamWorld) -> None:
    """M3: and bisecting the sequence finds the first range that is wrong."""
    world.declare()
    world.put(*((b"%d" % key, b"value %d" % key) for key in range(30)), (b"3", None), (b"7", b"other"))
    with world.session.snapshot("s") as snapshot:
        held = world.content(snapshot)
        count, tombstones, whole = marker_of(world, snapshot)
        assert whole is not None

        def digest(some: list[Any]) -> int:
            total = sum(row_digest(seq, value is None, key, value or b"") for seq, key, value in some)
            return total % (1 << 128)

        assert (count, tombstones) == (29, 1)
        assert digest(held) == digest(held[::-1]) == whole
        for at, (seq, key, value) in enumerate(held):
            others = held[:at] + held[at + 1 :]
            changed = bytes([(value or b"\0")[0] ^ 1]) + (value or b"\0")[1:]
            for wrong in (
                others,
                [*held, held[at]],
                [*others, (seq, key, changed)],
                [*others, (seq + 1, key, value)],
                [*others, (seq, key + b"x", value)],
                [*others, (seq, key, b"" if value is None else None)],
            ):
                assert digest(wrong) != whole

        drifted = [row if at != 17 else (row[0], row[1], b"rotten") for at, row in enumerate(held)]
        low, high = 0, snapshot.seq
        while high - low > 1:
            middle = (low + high) // 2
            mine = digest([row for row in drifted if low < row[0] <= middle])
            low, high = (
                (low, middle)
                if mine != marker_of(world, snapshot, after=low, until=middle)[2]
                else (middle, high)
            )
        assert high == held[17][0]


@pytest.mark.parametrize("registered", [False, True], ids=["never registered", "registered"])
def test_a_consumer_that_was_away_for_very_long_sees_the_delete_or_is_told_to_start_over(
    world: StreamWorld, registered: bool
) -> None:
    """M7: away for ten times the lease; there are no ghosts."""
    world.declare(tombstone_lease=10_000)
    world.put((b"gone", b"1"), (b"stays", b"1"))
    if registered:
        world.session.register("s", "away", 10_000)
    world.session.move("s", "away", None, world.stream().boundary)
    world.put((b"gone", None))
    copy: dict[bytes | None, bytes | None] = {b"gone": b"1", b"stays": b"1"}
    for second in range(100):
        world.rest(1000)
        if second % 30 == 20:
            world = world.crash()
    assert world.stream().tombstones == 0

    try:
        reader = world.session.reader("s", FromMark("away"), markers=True)
    except StreamReset:
        copy.clear()
        reader = world.session.reader("s", "first", markers=True)
    while (found := reader.next(10, 1 << 20)) is not None:
        if not isinstance(found, Marker):
            for _, key, value in world.described(world.stream(), found):
                copy[key] = value
    assert {key: value for key, value in copy.items() if value is not None} == {b"stays": b"1"}


def test_a_range_of_a_snapshot_leaves_as_arrow_with_only_the_columns_and_keys_asked_for() -> None:
    """M10, the broker's side: what an Arrow reader gets is what was put."""
    pa = pytest.importorskip("pyarrow")
    client = connected(NodeWorld())
    client.ask("declare", stream="s", arguments={})
    given = [Row(b"k%04d" % number, b"value %d" % number * 5) for number in range(500)]
    last = client.put("s", given)["last"]
    number = client.snapshot("s")

    def table(**fields: Any) -> Any:
        *frames, _ = client.about(client.send("read", snapshot=number, encoding="arrow", **fields))
        batches = [pa.ipc.open_stream(bytes(frame.payload)).read_all() for frame in frames if frame.payload]
        return pa.concat_tables(batches), sum(len(frame.payload) for frame in frames)

    def text(key: bytes) -> str:
        return base64.b64encode(key).decode()

    whole, size = table()
    assert whole["key"].to_pylist() == [row.key for row in given]
    assert whole["value"].to_pylist() == [row.value for row in given]
    assert whole["sequence"].to_pylist() == list(range(last - 499, last + 1))
    part, part_size = table(columns=["key"], key_from=text(b"k0100"), key_to=text(b"k0110"))
    assert part.column_names == ["key"]
    assert part["key"].to_pylist() == [b"k%04d" % n for n in range(100, 110)]
    assert part_size < size / 20


@pytest.mark.parametrize("seed", range(15))
def test_the_difference_of_two_points_applied_to_the_first_gives_the_second(seed: int) -> None:
    """M12: for random histories, through a restart."""
    dice = Random(seed)
    world = StreamWorld()
    world.declare(history=DAY_MS)
    points: list[tuple[int, dict[bytes | None, bytes | None]]] = []
    held: dict[bytes | None, bytes | None] = {}
    for _ in range(30):
        changes = [
            (b"%d" % dice.randrange(12), dice.choice((None, dice.randbytes(6), dice.randbytes(300))))
            for _ in range(dice.randint(1, 6))
        ]
        world.put(*changes)
        held |= dict(changes)
        points.append(
            (world.stream().boundary, {key: value for key, value in held.items() if value is not None})
        )
        world.world.now_ms += 50
    if seed % 2:
        world.compact()
        world = world.crash()
    for _ in range(40):
        (a, first), (b, second) = sorted(dice.sample(points, 2), key=lambda point: point[0])
        with world.session.snapshot("s", at=a) as snapshot:
            assert {key: value for _, key, value in world.content(snapshot) if value is not None} == first
        with world.session.diff("s", Position(world.streams.history, a), b) as difference:
            changed = dict(first)
            for _, key, value in world.content(difference):
                changed[key] = value
        assert {key: value for key, value in changed.items() if value is not None} == second
