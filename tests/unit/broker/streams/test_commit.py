"""All-or-nothing batches over streams, queues and marks, with conditions and numbered by their producer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.broker.streams.world import StreamWorld, rows

from tidemark.broker.streams.commit import Batch, Move, Publish, PublishMany, Put
from tidemark.broker.streams.session import StreamSession
from tidemark.errors import (
    AccessRefused,
    Conflict,
    ContentTooLarge,
    DiskFull,
    LostBranch,
    NotAStream,
    NotFound,
    PreconditionFailed,
)
from tidemark.model.records import decode_message
from tidemark.model.rows import Row, RowBatch
from tidemark.model.wiring import PermissionSpec, UserSpec
from tidemark.wire.amqp091.properties import Properties, encode_properties

NO_PROPERTIES = b"\0\0"
DIRECT = encode_properties(Properties(reply_to="amq.rabbitmq.reply-to"))


def full_world() -> StreamWorld:
    world = StreamWorld()
    world.declare("s")
    world.declare("t")
    world.session.session.declare_queue("q", durable=True)
    world.session.session.declare_queue(
        "small", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    world.put((b"a", b"1"))
    return world


def everything(world: StreamWorld) -> tuple[object, ...]:
    """All that a batch could change."""
    mark = world.session.mark("s", "c")
    queues = world.broker.vhosts["/"].queues
    return (
        world.now("s"),
        world.now("t"),
        queues["q"].ready,
        queues["small"].ready,
        mark and mark.points,
        world.session.producer_last("p"),
        world.broker.arena.next_seq,
    )


def test_a_batch_goes_to_streams_queues_and_marks_together() -> None:
    """M11's other half: what was read, what it led to, and the mark that says so, in one frame."""
    world = full_world()
    seen = world.stream().boundary
    batch = Batch(
        [
            Put("s", rows((b"a", b"2"), (b"b", b"1"))),
            Publish("", "q", NO_PROPERTIES, b"message"),
            Put("t", rows((b"x", b"1"))),
            Move("s", "c", seen),
        ]
    )
    committed = world.session.commit(batch)
    frames = world.world.node.journal.statistics().frames
    world.world.node.turn(world.now_ms)
    assert world.world.node.journal.statistics().frames == frames + 1
    world.turn()

    assert committed.last_seq - committed.first_seq == 3
    assert committed.safe_at >= committed.last_seq
    for again in (world, world.crash()):
        assert again.now("s") == [(b"a", b"2"), (b"b", b"1")]
        assert again.now("t") == [(b"x", b"1")]
        assert again.broker.vhosts["/"].queues["q"].ready == 1
        mark = again.session.mark("s", "c")
        assert mark is not None and mark.seq == seen


REFUSED = {
    "a key that is not where it is expected": (
        lambda: [Put("s", rows((b"x", b"1"))), Put("s", rows((b"a", b"2"), expected=[7]))],
        Conflict,
    ),
    "a queue that is full": (
        lambda: [
            Put("s", rows((b"x", b"1"))),
            Publish("", "small", NO_PROPERTIES, b"1"),
            Publish("", "small", NO_PROPERTIES, b"2"),
        ],
        PreconditionFailed,
    ),
    "a queue that is full after some of many messages": (
        lambda: [
            Put("s", rows((b"x", b"1"))),
            PublishMany("", rows((b"q", b"1"), (b"small", b"1"), (b"small", b"2"))),
        ],
        PreconditionFailed,
    ),
    "one of many messages that nobody wants": (
        lambda: [PublishMany("", rows((b"q", b"1"), (b"nowhere", b"1")))],
        NotFound,
    ),
    "many messages to an exchange that does not exist": (
        lambda: [PublishMany("nowhere", rows((b"q", b"1")))],
        NotFound,
    ),
    "a routing key that is too long": (
        lambda: [PublishMany("", rows((b"q", b"1"), (b"k" * 256, b"1")))],
        PreconditionFailed,
    ),
    "a message that wants a direct answer": (
        lambda: [PublishMany("", RowBatch.build([Row(b"q", b"1", DIRECT)]))],
        PreconditionFailed,
    ),
    "an exchange that does not exist": (
        lambda: [Put("s", rows((b"x", b"1"))), Publish("nowhere", "k", NO_PROPERTIES, b"")],
        NotFound,
    ),
    "a message that nobody wants": (
        lambda: [Put("s", rows((b"x", b"1"))), Publish("amq.direct", "k", NO_PROPERTIES, b"")],
        NotFound,
    ),
    "a queue that is no stream": (
        lambda: [Put("s", rows((b"x", b"1"))), Put("q", rows((b"x", b"1")))],
        NotAStream,
    ),
    "a stream that does not exist": (
        lambda: [Put("s", rows((b"x", b"1"))), Put("z", rows((b"x", b"1")))],
        NotFound,
    ),
    "a mark ahead of what is shown": (
        lambda: [Put("s", rows((b"x", b"1"))), Move("s", "c", 1 << 40)],
        LostBranch,
    ),
    "a mark of no consumer": (lambda: [Put("s", rows((b"x", b"1"))), Move("s", "", 0)], PreconditionFailed),
    "columns that do not hold together": (
        lambda: [
            Put("s", rows((b"x", b"1"))),
            Put("t", RowBatch(2, values=(b"\0\0\0\0\xff\0\0\0\0\0\0\0", b"abc"))),
        ],
        PreconditionFailed,
    ),
    "more than a batch may be": (lambda: [Put("s", rows((b"x", b"v" * (1 << 17))))], ContentTooLarge),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_batch_that_is_refused_changes_nothing_for(why: str) -> None:
    world = full_world()
    world.broker.config = replace(world.broker.config, batch_bytes_max=1 << 16)
    operations, error = REFUSED[why]
    before = everything(world)
    with pytest.raises(error):
        world.session.commit(Batch(operations(), producer="p", sequence=1))  # type: ignore[no-untyped-call]
    assert everything(world) == before
    world.turn()
    assert everything(world.crash())[:6] == before[:6]


def test_without_room_on_the_disk_a_batch_changes_nothing() -> None:
    world = full_world()
    with world.world.no_room():
        before = everything(world)
        with pytest.raises(DiskFull):
            world.session.commit(Batch([Put("s", rows((b"x", b"1" * 5000)))], producer="p", sequence=1))
        assert everything(world) == before
    assert not world.put((b"x", b"1"), producer="p", sequence=1).duplicate
    assert everything(world.crash())[0] == [(b"a", b"1"), (b"x", b"1")]


def test_a_batch_larger_than_an_extent_is_one_frame() -> None:
    world = full_world()
    big = [
        Put("s", rows(*((b"k%d" % number, b"v" * 1000) for number in range(100)))),
        Put("t", rows((b"x", b"1"))),
    ]
    world.session.commit(Batch(big))
    world.world.node.turn(world.now_ms)
    after = world.crash()
    assert (len(after.now("s")), len(after.now("t"))) in ((1, 0), (101, 1))


def test_everything_needs_its_permission() -> None:
    world = full_world()
    world.broker.put(UserSpec("u", ""))
    world.broker.put(PermissionSpec("u", "/", "", "^s$", "^t$"))
    session = StreamSession(world.broker.open_session("/", "u", None, "x"))
    session.commit(Batch([Put("s", rows((b"x", b"1"))), Move("t", "c", 0)]))
    for operation in (Put("t", rows((b"x", b"1"))), Move("s", "c", 0), Publish("", "q", NO_PROPERTIES, b"")):
        with pytest.raises(AccessRefused):
            session.commit(Batch([operation]))


# Conditions -------------------------------------------------------------------------------------


def test_a_put_happens_only_if_its_key_is_at_the_expected_sequence() -> None:
    world = full_world()
    [(seq, _, _)] = world.content(world.session.snapshot("s"))
    world.put((b"a", b"2"), expected=[seq])
    with pytest.raises(Conflict) as caught:
        world.put((b"a", b"3"), expected=[seq])
    assert (caught.value.key, caught.value.expected) == (b"a", seq)
    assert caught.value.current > seq
    assert "Read the key and put again" in str(caught.value)
    assert world.now() == [(b"a", b"2")]


def test_expecting_nothing_means_new_or_deleted() -> None:
    world = full_world()
    world.put((b"new", b"1"), expected=[0])
    with pytest.raises(Conflict, match=r"is at sequence .* but was expected not to be there"):
        world.put((b"new", b"2"), expected=[0])
    world.put((b"new", None))
    world.put((b"new", b"3"), expected=[0])
    assert (b"new", b"3") in world.now()


def test_a_condition_is_about_the_newest_state_even_if_nobody_sees_it_yet() -> None:
    world = full_world()
    first = world.put((b"k", b"1"), turn=False).last_seq
    world.put((b"k", b"2"), expected=[first], turn=False)
    with pytest.raises(Conflict):
        world.put((b"k", b"3"), expected=[first], turn=False)


def test_earlier_rows_of_the_same_batch_count() -> None:
    world = full_world()
    with pytest.raises(Conflict):
        world.put((b"k", b"1"), (b"k", b"2"), expected=[0, 0])
    world.put((b"k", b"1"), (b"k", None), (b"k", b"3"), expected=[0, -1, 0])
    assert world.now()[-1] == (b"k", b"3")
    with pytest.raises(Conflict):
        world.session.commit(
            Batch([Put("s", rows((b"n", b"1"))), Put("s", rows((b"n", b"2"), expected=[0]))])
        )
    world.session.commit(Batch([Put("s", rows((b"n", b"1"))), Put("t", rows((b"n", b"1"), expected=[0]))]))
    with pytest.raises(Conflict):
        world.put((None, b"1"), expected=[5])


# Producers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False])
def test_a_batch_that_is_sent_again_is_confirmed_as_a_duplicate_and_stored_once(power: bool) -> None:
    """X-17: even when the broker died in between; the answer says which it was."""
    world = full_world()
    first = world.put((None, b"once"), producer="p", sequence=5)
    again = world.put((None, b"once"), producer="p", sequence=5)
    assert again.duplicate and not first.duplicate
    assert (again.history, again.first_seq, again.last_seq) == (
        first.history,
        first.first_seq,
        first.last_seq,
    )

    after = world.crash(power)
    again = after.put((None, b"once"), producer="p", sequence=5)
    assert again.duplicate and again.last_seq == first.last_seq
    assert after.streams.safe(again.history, again.last_seq) == "yes"
    assert after.streams.safe(first.history, first.last_seq) == "yes"
    assert [value for _, value in after.now()] == [b"1", b"once"]
    assert not after.put((None, b"next"), producer="p", sequence=9).duplicate
    assert after.session.producer_last("p") == 9


def test_a_duplicate_is_not_confirmed_before_the_batch_itself_is_durable() -> None:
    world = full_world()
    world.put((None, b"once"), producer="p", sequence=1, turn=False)
    again = world.put((None, b"once"), producer="p", sequence=1, turn=False)
    assert again.safe_at > world.world.node.journal.durable_seq
    assert world.crash().session.producer_last("p") == 0


def test_a_batch_and_its_number_survive_together_or_not_at_all() -> None:
    world = full_world()
    for number in range(1, 30):
        world.put((None, b"%d" % number), producer="p", sequence=number, turn=number % 3 == 0)
    for power in (True, False):
        after = world.crash(power)
        stored = [int(value or b"") for key, value in after.now() if key is None]
        assert stored == list(range(1, after.session.producer_last("p") + 1))


def test_a_producer_that_was_forgotten_is_new_also_after_a_crash() -> None:
    world = StreamWorld()
    world.declare(key="none")
    world.put((None, b"1"), producer="p", sequence=7)
    world.put((None, b"1"), producer="q", sequence=7)
    seq = world.session.forget_producer("p")
    assert world.session.forget_producer("p") >= seq, "twice is no error"
    assert world.session.forget_producer("nobody") >= 0
    world.turn()
    for again in (world, world.crash()):
        assert (again.session.producer_last("p"), again.session.producer_last("q")) == (0, 7)
        assert len(again.streams.producers) == 1
    assert not world.put((None, b"2"), producer="p", sequence=1).duplicate


def test_producers_of_different_virtual_hosts_and_names_do_not_meet() -> None:
    world = full_world()
    world.put((None, b"1"), producer="p", sequence=1)
    assert not world.put((None, b"2"), producer="q", sequence=1).duplicate
    assert world.streams.producers.last("/", "guest/p") == 1
    assert world.streams.producers.last("other", "guest/p") == 0


def stranger(world: StreamWorld) -> StreamSession:
    """Somebody who may write to the stream t, and nothing else."""
    world.broker.put(UserSpec("mal/lory", "", ()))
    world.broker.put(PermissionSpec("mal/lory", "/", "", "^t$", ""))
    return StreamSession(world.broker.open_session("/", "mal/lory", None, "x"))


def test_nobody_uses_up_the_numbers_of_another_user() -> None:
    world = full_world()
    world.put((None, b"1"), producer="shop", sequence=1)
    mallory = stranger(world)

    assert mallory.producer_last("shop") == 0
    mallory.commit(Batch([Put("t", rows((None, b"x")))], "shop", 1 << 62))
    world.turn()

    for each in (world, world.crash()):
        assert each.session.producer_last("shop") == 1
        again = StreamSession(each.broker.open_session("/", "mal/lory", None, "x"))
        assert again.producer_last("shop") == 1 << 62
    assert not world.put((None, b"2"), producer="shop", sequence=2).duplicate


def test_nobody_has_the_producers_of_another_user_forgotten() -> None:
    world = full_world()
    world.streams.producers._count_max = 20
    world.put((None, b"1"), producer="shop", sequence=1)
    mallory = stranger(world)
    with pytest.raises(PreconditionFailed, match="an empty batch has no number"):
        mallory.commit(Batch([], "p", 1))
    for number in range(60):
        mallory.commit(Batch([Put("t", rows((None, b"x")))], f"p{number}", 1))
    world.turn()
    for each in (world, world.crash()):
        assert len(each.streams.producers) == 20
        assert each.session.producer_last("shop") == 1


def test_only_so_many_producers_are_remembered_and_the_least_recent_goes() -> None:
    world = full_world()
    world.streams.producers._count_max = 3
    for name in ("a", "b", "c", "a", "d"):
        world.put((None, b"x"), producer=name, sequence=world.session.producer_last(name) + 1)
    for again in (world, world.crash()):
        assert len(again.streams.producers) == 3
        assert [again.session.producer_last(name) for name in "abcd"] == [2, 0, 1, 1]


@pytest.mark.parametrize(
    ("producer", "sequence"), [("p", None), (None, 1), ("p", 0), ("p", -1), ("", 1), ("x" * 256, 1)]
)
def test_a_producer_that_does_not_number_as_it_must_is_refused(
    producer: str | None, sequence: int | None
) -> None:
    world = full_world()
    with pytest.raises(PreconditionFailed):
        world.put((None, b"x"), producer=producer, sequence=sequence)


def test_many_messages_are_published_as_one_operation_each_to_where_its_key_leads() -> None:
    world = StreamWorld()
    world.declare("s")
    for name in ("q", "r"):
        world.session.session.declare_queue(name, durable=True)
    headed = encode_properties(Properties(headers={"n": 1}, priority=3))
    messages = RowBatch.build([Row(b"q", b"1"), Row(b"r", b"22", headed), Row(b"q", b""), Row(b"s", b"row")])
    world.session.commit(Batch([PublishMany("", messages), Put("s", rows((b"a", b"1")))]))
    frames = world.world.node.journal.statistics().frames
    world.world.node.turn(world.now_ms)
    assert world.world.node.journal.statistics().frames == frames + 1
    world.turn()

    for again in (world, world.crash()):
        queues = again.broker.vhosts["/"].queues
        assert (queues["q"].ready, queues["q"].ready_bytes, queues["r"].ready_bytes) == (2, 1, 2)
        assert again.now() == [(b"s", b"row"), (b"a", b"1")]
        entry = queues["r"].entry(0, 0)
        message = decode_message(again.broker.arena.record(entry.loc))
        assert (message.body, message.key, message.persistent) == (b"22", "r", True)
        assert message.properties == headed
    unwanted = PublishMany("", rows((b"q", b"3"), (b"nowhere", b"4")), mandatory=False)
    world.session.commit(Batch([unwanted]))
    world.turn()
    assert world.broker.vhosts["/"].queues["q"].ready == 3


def test_a_batch_that_expects_keys_of_a_stream_cannot_publish_to_it_as_well() -> None:
    """What the message makes of the key would not be seen by the condition."""
    world = StreamWorld()
    world.declare()
    batch = [
        Publish("", "s", encode_properties(Properties()), b"1"),
        Put("s", rows((b"s", b"2"), expected=[0])),
    ]

    for operations in (batch, batch[::-1]):
        with pytest.raises(PreconditionFailed, match="put these rows into the stream itself"):
            world.session.commit(Batch(operations))

    world.turn()
    assert world.now() == []
