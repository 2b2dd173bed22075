"""The compiled queue, arena and delivery encoder give the same answers as their plain references."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.broker import (
    _publisher_c,
    _publisher_py,
    _queue_c,
    _queue_py,
    _restorer_c,
    _restorer_py,
    _unacked_c,
    _unacked_py,
)
from tidemark.model import _arena_c, _arena_py, _runs_c, _runs_py
from tidemark.wire.amqp091 import _deliveries_c, _deliveries_py


def core(queue: Any, publisher: Any, unacked: Any, restorer: Any) -> Any:
    """What `tidemark.broker.core` would be with these twins."""
    return SimpleNamespace(
        QueueCore=queue.QueueCore,
        Publisher=publisher.Publisher,
        Route=publisher.Route,
        Holder=unacked.Holder,
        Unacked=unacked.Unacked,
        Restorer=restorer.Restorer,
    )


TWINS = {
    "reference": (
        _runs_py,
        _arena_py,
        core(_queue_py, _publisher_py, _unacked_py, _restorer_py),
        _deliveries_py,
    ),
    "compiled": (
        _runs_c,
        _arena_c,
        core(_queue_c, _publisher_c, _unacked_c, _restorer_c),
        _deliveries_c,
    ),
}


def facts(taken: Any) -> list[Any]:
    """What was taken, without the indexes: how a twin numbers its entries is its own business."""
    return [entry[1:] for entry in taken]


class World:
    """Two queues, a publisher and a channel's tags, built from one set of twins."""

    def __init__(self, kind: str, extent_bytes: int = 4096, priorities: int = 0) -> None:
        self.runs, arena, self.core, self.deliveries = TWINS[kind]
        self.arena = arena.Arena()
        self.dirty: list[Any] = []
        self.memory = arena.Writer(self.arena, _arena_py.MEMORY, extent_bytes)
        self.journal = arena.Writer(self.arena, _arena_py.JOURNAL, extent_bytes)
        self.queues = [
            self.core.QueueCore(self.arena, 1, True, priorities, self.dirty),
            self.core.QueueCore(self.arena, 2, False, 0, self.dirty),
        ]
        self.queues[1].ttl_ms = 50
        self.routes = {
            b"one": self.core.Route((self.queues[0],), True),
            b"both": self.core.Route(tuple(self.queues), True),
        }
        self.publisher = self.core.Publisher(
            self.arena, self.memory, self.journal, lambda _, key: self.routes[key]
        )
        self.holders = [self.core.Holder(queue) for queue in self.queues]
        self.unacked = self.core.Unacked()

    def publish(self, key: bytes, size: int, count: int, persistent: bool, priority: int) -> Any:
        body = bytes(range(256)) * 8
        data = b"x" + key + b"\x80\x00\x02ab" + body
        run = self.runs.PublishRun(1, data)
        start = 1 + len(key)
        for i in range(count):
            run.add(
                (0, 1),
                (1, len(key)),
                (start, 5),
                (start + 5 + i, size),
                _runs_py.PERSISTENT if persistent else 0,
                priority,
                10 * i if i % 3 else -1,
            )
        return self.publisher.publish(run, 0, 1000), self.publisher.last_seq, self.arena.next_seq

    def deliver(self, which: int, count: int, bytes_max: int, expired_ms: int = -1) -> Any:
        taken = self.queues[which].take(count, bytes_max, expired_ms)
        if taken is None:
            return None
        tag = self.unacked.add(self.holders[which], taken)
        wire = self.deliveries.encode_deliveries(self.arena, taken, 7, b"ctag", tag, 256, True)
        return tag, facts(taken), wire

    def expire(self, which: int, now_ms: int, bytes_max: int = _queue_py.NEVER) -> Any:
        taken = self.queues[which].take_expired(now_ms, 100, bytes_max)
        if taken is None:
            return self.queues[which].next_expiry_ms()
        found = facts(taken)
        self.queues[which].settle_taken(taken)
        return found

    def accept(self, first: int, last: int) -> Any:
        return self.unacked.accept(first, last)

    def requeue(self, first: int, last: int) -> Any:
        popped = self.unacked.pop(first, last)
        for holder, lane, index in reversed(popped):
            holder.queue.requeue(lane, index, True)
        return [(holder.queue.number, lane) for holder, lane, _ in popped]

    def show(self, seq: int) -> Any:
        self.arena.shown_seq = seq
        hidden, self.arena.hidden = self.arena.hidden, []
        for queue in hidden:
            queue.show()
        return [queue.number for queue in hidden]

    def drain(self) -> Any:
        return [queue.drain_gone() for queue in self.queues]

    def picture(self) -> Any:
        return [
            (
                q.ready,
                q.acquired,
                q.ready_bytes,
                q.acquired_bytes,
                q.published,
                q.settled,
                q.expiring,
                q.waits_for,
                q.census(),
            )
            for q in self.queues
        ] + [
            (self.unacked.last_tag, self.unacked.count, self.unacked.bytes),
            self._oldest(),
            len(self.arena.extents()),
        ]

    def _oldest(self) -> Any:
        oldest = self.unacked.oldest()
        return None if oldest is None else (oldest[0], self.holders.index(oldest[1]))


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.sampled_from([b"one", b"both"]),
            st.integers(0, 600),
            st.integers(1, 100),
            st.booleans(),
            st.integers(0, 4),
        ),
        st.tuples(
            st.just("deliver"),
            st.integers(0, 1),
            st.integers(1, 200),
            st.sampled_from([1, 1000, 1 << 40]),
            st.sampled_from([-1, 1020]),
        ),
        st.tuples(
            st.just("expire"),
            st.integers(0, 1),
            st.sampled_from([1000, 1040, 1060, 5000]),
            st.sampled_from([1, 20, _queue_py.NEVER]),
        ),
        st.tuples(st.just("accept"), st.integers(0, 300), st.integers(0, 300)),
        st.tuples(st.just("requeue"), st.integers(0, 300), st.integers(0, 300)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("show"), st.integers(0, 300)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 3]))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_to_a_queue_both_twins_tell_the_same(steps: list[Any], priorities: int) -> None:
    reference, compiled = World("reference", priorities=priorities), World("compiled", priorities=priorities)
    for name, *arguments in steps:
        expected = getattr(reference, name)(*arguments)
        assert getattr(compiled, name)(*arguments) == expected, (name, arguments)
        assert compiled.picture() == reference.picture()


@pytest.mark.parametrize("kind", TWINS)
def test_a_record_written_and_settled_is_restored_by_recovery(kind: str) -> None:
    world = World(kind, extent_bytes=1 << 16)
    world.publish(b"both", 10, 20, True, 0)
    tag, *_ = world.deliver(0, 5, 1 << 40)
    world.accept(tag + 1, tag + 2)
    packed, ranges = world.queues[0].drain_gone()
    settled = _arena_py.records.encode_settled(999, 1000, 1, 0, packed, ranges)
    world.journal.append(settled)

    fresh = World(kind)
    number = fresh.arena.adopt_extent(_arena_py.JOURNAL, world.journal.used)
    fresh.arena.load_extent(
        number, bytes(world.arena.extent_bytes(world.journal.number, 0, world.journal.used))
    )
    restorer = fresh.core.Restorer(fresh.arena, {1: fresh.queues[0], 2: fresh.queues[1]})
    restorer.frame(number, 0, world.journal.used)

    assert fresh.queues[0].ready == 18
    assert fresh.queues[1].ready == 0, "a queue that is not durable has nothing to restore"
    assert (restorer.messages, restorer.settled, restorer.last_seq) == (20, 2, 999)
    assert [seq for _, seq, *_ in fresh.queues[0].take(3, 1 << 40)] == [1, 7, 9]


@pytest.mark.parametrize("kind", TWINS)
def test_a_queue_whose_messages_are_in_memory_only_leaves_no_trace_in_the_journal(kind: str) -> None:
    """A-2, H-22: whatever their delivery mode; beside a queue that keeps them, only its entries are written for."""
    world = World(kind)
    world.routes[b"two"] = world.core.Route((world.queues[1],), True)
    assert world.publish(b"two", 10, 5, True, 0)[1] == 0, "a confirm has nothing to wait for"
    assert world.journal.used == 0
    tag, *_ = world.deliver(1, 5, 1 << 40)
    assert world.accept(tag, tag + 4) == 5
    assert world.drain() == [None, None]

    last_seq = world.publish(b"both", 10, 1, True, 0)[1]
    assert last_seq == 7
    for which in (0, 1):
        tag, *_ = world.deliver(which, 1, 1 << 40)
        world.accept(tag, tag)
    assert [gone is not None for gone in world.drain()] == [True, False]


@pytest.mark.parametrize("kind", TWINS)
def test_an_extent_comes_back_from_the_pager_and_its_places_stay_good(kind: str) -> None:
    world = World(kind, extent_bytes=2048)
    world.publish(b"one", 100, 100, True, 0)
    first = world.arena.extents()[0]
    used = world.arena.extent(first).used
    saved = bytes(world.arena.extent_bytes(first, 0, used))
    world.arena.drop_extent(first)
    asked: list[int] = []

    def pager(number: int, room: memoryview) -> None:
        asked.append(number)
        room[:] = saved

    world.arena.pager = pager

    assert world.deliver(0, 3, 1 << 40)[2] == world_deliveries(kind)
    assert asked == [first]


def world_deliveries(kind: str) -> bytes:
    world = World(kind, extent_bytes=2048)
    world.publish(b"one", 100, 100, True, 0)
    wire: bytes = world.deliver(0, 3, 1 << 40)[2]
    return wire


@pytest.mark.parametrize("kind", TWINS)
def test_memory_is_given_back_when_the_last_message_is_gone(kind: str) -> None:
    world = World(kind, extent_bytes=4096)
    dice = random.Random(1)
    for _ in range(50):
        world.publish(b"one", dice.randrange(500), 100, False, 0)
        while (given_out := world.deliver(0, 37, 1 << 40)) is not None:
            world.accept(given_out[0], world.unacked.last_tag)
    assert len(world.arena.extents()) == 1, "only the extent being filled is left"


@pytest.mark.parametrize("kind", TWINS)
def test_compaction_can_move_a_record_under_a_ready_and_an_acquired_entry(kind: str) -> None:
    world = World(kind)
    world.publish(b"one", 10, 4, True, 0)
    world.deliver(0, 1, 1 << 40)
    before = world.queues[0].entry(0, 1)
    copy = world.journal.append(bytes(world.arena.record(before.loc)))

    assert world.queues[0].relocate(1, copy)
    assert world.queues[0].relocate(2, copy)
    assert not world.queues[0].relocate(77, copy)
    assert world.queues[0].entry(0, 1).loc == copy
    assert world.queues[0].holds(2)


@pytest.mark.parametrize("kind", TWINS)
def test_what_is_held_of_a_deleted_queue_is_settled_in_vain(kind: str) -> None:
    world = World(kind)
    world.publish(b"one", 10, 4, False, 0)
    world.deliver(0, 2, 1 << 40)
    world.queues[0].clear()

    assert world.accept(1, 1) == 1
    assert world.requeue(2, 2) == [(1, 0)]
    assert world.queues[0].ready == world.queues[0].acquired == 0


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), min_size=4, max_size=12))
def test_a_detached_run_tells_the_same_from_its_own_bytes(pairs: list[tuple[int, int]]) -> None:
    data = bytes(range(100))
    for runs in (_runs_py, _runs_c):
        run = runs.PublishRun(3, data)
        for i in range(0, len(pairs) - 3, 4):
            run.add(*pairs[i : i + 4], 1, 2, 3)
        copy = run.detached()
        assert copy.channel == 3
        assert len(copy) == len(run)
        for row in range(len(run)):
            for column in (0, 2, 4, 6):
                assert copy.part(row, column) == run.part(row, column)
            assert [copy.number(row, column) for column in (8, 9, 10)] == [1, 2, 3]


@pytest.mark.parametrize("kind", TWINS)
def test_what_a_crash_may_take_back_is_hidden_until_it_is_shown(kind: str) -> None:
    world = World(kind)
    world.show(2)
    world.publish(b"one", 10, 4, True, 0)

    assert [seq for seq, *_ in world.deliver(0, 10, 1 << 40)[1]] == [1, 2]
    assert world.deliver(0, 10, 1 << 40) is None
    assert world.queues[0].waits_for == 3
    assert world.show(4) == [1]
    assert [seq for seq, *_ in world.deliver(0, 10, 1 << 40)[1]] == [3, 4]


@pytest.mark.parametrize("kind", TWINS)
def test_what_is_hidden_can_be_purged(kind: str) -> None:
    world = World(kind)
    world.show(0)
    world.publish(b"one", 10, 4, True, 0)
    assert len(world.queues[0].take_expired(_queue_py.NEVER, 100)) == 4
