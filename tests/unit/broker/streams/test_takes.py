"""Moving messages from a queue into a stream, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.broker.streams.world import StreamWorld, rows

from tidemark.broker.streams import takes
from tidemark.broker.streams.commit import Batch, Committed, Put, Take
from tidemark.errors import (
    AccessRefused,
    Conflict,
    ContentTooLarge,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)
from tidemark.model.rows import Row
from tidemark.model.wiring import PermissionSpec, UserSpec
from tidemark.wire.amqp091.properties import Properties, encode_properties


def filled(
    count: int = 10, *, into: str = "routing-key", persistent: bool = True, **arguments: Any
) -> StreamWorld:
    """A queue with some messages, and a stream."""
    world = StreamWorld()
    world.declare("s", key=into)
    world.session.session.declare_queue("q", durable=True, arguments=arguments)
    world.session.session.declare_exchange("x", "fanout")
    world.session.session.bind_queue("q", "x", "", {})
    publish(world, *((f"k{n}", b"%d" % n) for n in range(count)), persistent=persistent)
    return world


def publish(world: StreamWorld, *messages: tuple[str, bytes], persistent: bool = True, **more: Any) -> None:
    properties = encode_properties(
        Properties(headers={"n": "1"}, delivery_mode=2 if persistent else 1, **more)
    )
    publishing = world.session.session.publishing(None)  # type: ignore[arg-type]
    for key, body in messages:
        publishing.publish_one("x", key, properties, body)
    world.turn()


def queue(world: StreamWorld) -> Any:
    return world.broker.vhosts["/"].queues["q"]


def taken(world: StreamWorld, batch: Batch, **limits: int) -> tuple[Committed, list[int]]:
    copier = world.session.copier(batch, **limits)
    try:
        while copier.step():
            pass
        counts = copier.taken
        done = world.session.commit(copier.batch)
    finally:
        copier.close()
    world.turn()
    return done, counts


def counts(world: StreamWorld) -> tuple[int, int]:
    return queue(world).ready, queue(world).acquired


@pytest.mark.parametrize("persistent", [True, False])
def test_messages_leave_the_queue_and_are_rows_of_the_stream_from_then_on(persistent: bool) -> None:
    world = filled(persistent=persistent)
    copier = world.session.copier(Batch([Take("q", "s", 4)]))
    while copier.step():
        pass
    [count], done = copier.taken, world.session.commit(copier.batch)
    copier.close()
    frames = world.world.node.journal.statistics().frames
    world.world.node.turn(world.now_ms)
    assert world.world.node.journal.statistics().frames == frames + 1
    world.turn()

    assert count == 4 and done.last_seq - done.first_seq == 3
    assert world.now() == [(b"k%d" % n, b"%d" % n) for n in range(4)]
    row = world.session.get("s", b"k0")
    assert row is not None and b"n" in bytes(row.properties)
    assert counts(world) == (6, 0)
    again = world.crash()
    assert again.now() == world.now()
    assert counts(again) == (6 if persistent else 0, 0)
    assert taken(world, Batch([Take("q", "s", 100)]))[1] == [6]
    assert taken(world, Batch([Take("q", "s", 100)]))[1] == [0]


def test_until_the_commit_others_do_not_get_them_and_without_it_they_are_where_they_were() -> None:
    world = filled()
    copier = world.session.copier(Batch([Take("q", "s", 4)]))
    copier.step()
    assert counts(world) == (6, 4)
    assert world.now() == []
    copier.close()
    copier.close()
    assert counts(world) == (10, 0)
    entry = queue(world).entry(0, 0)
    assert (entry.flags & 1, entry.deliveries) == (0, 0), "it does not count as a delivery"
    assert taken(world, Batch([Take("q", "s", 2)]))[1] == [2]
    assert world.now() == [(b"k0", b"0"), (b"k1", b"1")]


def test_a_crash_before_the_commit_finds_all_of_them_in_the_queue() -> None:
    world = filled()
    copier = world.session.copier(Batch([Take("q", "s", 4)]))
    copier.step()
    again = world.crash()
    assert counts(again) == (10, 0) and again.now() == []


def test_a_commit_that_is_refused_gives_them_back() -> None:
    world = filled()
    world.put((b"k", b"v"))
    with pytest.raises(Conflict):
        taken(world, Batch([Take("q", "s", 4), Put("s", rows((b"k", b"w"), expected=[0]))], "p", 1))
    assert counts(world) == (10, 0) and world.now() == [(b"k", b"v")]
    assert world.session.producer_last("p") == 0


def test_a_number_makes_a_take_happen_once() -> None:
    world = filled()
    batch = Batch([Take("q", "s", 4)], "p", 1)
    taken(world, batch)
    known = world.crash().session.known(batch)
    assert known is not None and known.duplicate
    empty = Batch([Take("q", "s", 100)], "p", 2)
    taken(world, empty)
    assert taken(world, replace(empty, sequence=3))[1] == [0], "nothing was there, and the number counts"
    assert world.session.producer_last("p") == 3


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [(None, b"1"), (None, b""), (None, b"2")]),
        ("routing-key", [(b"a", None), (b"b", b"2")]),
        ("message-id", [(b"m-1", b"1"), (b"m-2", b""), (b"m-3", b"2")]),
        ("header:n", [(b"1", b"2")]),
        ("log", [(b"a", b"1"), (b"a", None), (b"b", b"2")]),
    ],
)
def test_the_key_is_what_the_streams_rule_says_of_such_a_message(rule: str, expected: list[Any]) -> None:
    world = filled(0, into=rule)
    publish(world, ("a", b"1"), message_id="m-1")
    tombstone = encode_properties(Properties(headers={"n": "1", "x-tombstone": rule in ("routing-key", "log")}, message_id="m-2"))  # fmt: skip
    world.session.session.publishing(None).publish_one("x", "a", tombstone, b"")  # type: ignore[arg-type]
    publish(world, ("b", b"2"), message_id="m-3")
    taken(world, Batch([Take("q", "s", 10)]))
    assert world.now() == expected


def test_steps_and_priorities_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takes, "STEP_MESSAGES", 3)
    world = filled(7, **{"x-max-priority": 2})
    publish(world, ("urgent", b"!"), priority=2)
    assert taken(world, Batch([Take("q", "s", 6)]))[1] == [6]
    assert [key for key, _ in world.now()] == [b"urgent", *(b"k%d" % n for n in range(5))]
    assert counts(world) == (2, 0)


def test_what_has_no_room_in_the_batch_stays_in_the_queue() -> None:
    world = filled(0)
    world.broker.config = replace(world.broker.config, batch_bytes_max=1 << 16)
    publish(world, *((f"k{n}", b"x" * 20_000) for n in range(5)))
    assert taken(world, Batch([Take("q", "s", 5)]))[1] == [2]
    assert counts(world) == (3, 0)
    assert taken(world, Batch([Take("q", "s", 5)]))[1] == [2]
    publish(world, ("large", b"x" * 70_000))
    assert taken(world, Batch([Take("q", "s", 1)]))[1] == [1]
    with pytest.raises(ContentTooLarge, match=r"raise that setting, or take it by itself"):
        taken(world, Batch([Take("q", "s", 1)]))
    assert counts(world) == (1, 0)


def test_what_cannot_be_taken_is_refused_and_nothing_is_acquired() -> None:
    world = filled()
    for take, error, why in (
        (Take("nowhere", "s", 1), NotFound, "nowhere"),
        (Take("q", "nowhere", 1), NotFound, "no stream 'nowhere'"),
        (Take("s", "s", 1), NotAllowed, "is a stream"),
        (Take("q", "s", 0), PreconditionFailed, "at least 1"),
    ):
        with pytest.raises(error, match=why):
            taken(world, Batch([take]))
    with pytest.raises(ContentTooLarge, match="up to 1000000000 messages; at most 100 are taken at once"):
        taken(world, Batch([Take("q", "s", 10**9)]), taken_max=100)
    world.broker.put(UserSpec("nobody", "x", ()))
    world.broker.put(PermissionSpec("nobody", "/", "^$", ".*", "^$"))
    session = type(world.session)(world.broker.open_session("/", "nobody", None, "test"))
    with pytest.raises(AccessRefused):
        session.copier(Batch([Take("q", "s", 1)]))
    assert counts(world) == (10, 0)


def test_a_queue_that_is_deleted_meanwhile_ends_the_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takes, "STEP_MESSAGES", 3)
    world = filled()
    copier = world.session.copier(Batch([Take("q", "s", 10)]))
    assert copier.step()
    world.broker.delete_queue(queue(world))
    with pytest.raises(NotFound, match="was deleted"):
        copier.step()
    copier.close()

    world = filled(2)
    copier = world.session.copier(Batch([Take("q", "s", 10)]))
    while copier.step():
        pass
    world.broker.delete_queue(queue(world))
    with pytest.raises(NotFound, match="nothing of the batch was stored"):
        world.session.commit(copier.batch)
    copier.close()
    assert world.now() == []


def test_messages_whose_time_is_over_are_not_taken() -> None:
    world = filled(0)
    publish(world, ("late", b"x"), expiration="10")
    publish(world, ("good", b"y"))
    world.world.now_ms += 1000
    world.broker.now_ms += 1000
    assert taken(world, Batch([Take("q", "s", 10)]))[1] == [1]
    assert world.now() == [(b"good", b"y")]
    assert isinstance(world.session.get("s", b"good"), Row)
