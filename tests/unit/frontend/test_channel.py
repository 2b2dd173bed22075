"""What a channel does with the methods it takes. Who may come when is in tests/contract/test_frontend_states.py."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client, Content, World, publish_frames

from tidemark.broker import allowance
from tidemark.errors import CorruptRecord
from tidemark.frontend.amqp091 import channel
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import encode_content
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    encode_method,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties


@pytest.fixture
def client() -> Client:
    """A connection with two channels, and a queue `q` declared on channel 2."""
    client = World().open(channels=2)
    client.declare("q", channel=2)
    return client


def tags(contents: list[Content]) -> list[int]:
    return [content.method.delivery_tag for content in contents]


# From publish to ack -----------------------------------------------------------------------------------


def test_a_message_goes_from_publish_to_delivery_to_ack(client: Client) -> None:
    assert client.ask(1, BasicConsume(queue="q", consumer_tag="t")) == BasicConsumeOk(consumer_tag="t")
    client.publish(2, "q", b"hello")

    delivery = client.read()
    assert delivery.body == b"hello"
    assert (delivery.method.consumer_tag, delivery.method.delivery_tag) == ("t", 1)
    assert (delivery.method.exchange, delivery.method.routing_key) == ("", "q")
    client.send(1, BasicAck(delivery_tag=1))
    queue = client.world.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.acquired) == (0, 0)


def test_consume_ok_comes_before_what_was_waiting(client: Client) -> None:
    client.publish(2, "q", b"1", b"2")
    client.send(1, BasicConsume(queue="q", consumer_tag="t"))
    first, *rest = client.read_all()
    assert first == BasicConsumeOk(consumer_tag="t")
    assert [content.body for content in rest] == [b"1", b"2"]


def test_a_large_body_is_cut_into_frames_of_the_agreed_size() -> None:
    client = World().open(frame_max=4096)
    client.declare("q")
    body = bytes(range(256)) * 100
    client.write(b"".join(_in_frames(1, "q", body, 4096)))
    client.raw = b""
    client.send(1, BasicGet(queue="q", no_ack=True))
    assert client.read().body == body
    assert len(client.raw) > 6 * 4096


def _in_frames(channel: int, key: str, body: bytes, frame_max: int) -> list[bytes]:
    return [
        encode_method(channel, methods.BasicPublish(routing_key=key)),
        encode_content(channel, b"\0\0", body, frame_max),
    ]


def test_generated_consumer_tags_differ(client: Client) -> None:
    first, second = (client.ask(1, BasicConsume(queue="q")).consumer_tag for _ in range(2))
    assert first != second
    assert first.startswith("amq.ctag-")


def test_a_consumer_tag_in_use_is_530(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    close = client.ask_connection(1, BasicConsume(queue="q", consumer_tag="t"))
    assert (close.reply_code, close.class_id, close.method_id) == (530, 60, 20)


def test_a_channel_has_a_limited_number_of_consumers() -> None:
    client = World(consumers_max=2).open()
    client.declare("q")
    client.ask(1, BasicConsume(queue="q"))
    client.ask(1, BasicConsume(queue="q"))
    assert client.ask_connection(1, BasicConsume(queue="q")).reply_code == 530


def test_no_wait_is_not_answered(client: Client) -> None:
    client.send(
        1,
        QueueDeclare(queue="silent", no_wait=True),
        QueueBind(queue="silent", exchange="amq.direct", routing_key="k", no_wait=True),
        BasicConsume(queue="silent", consumer_tag="t", no_wait=True),
        BasicCancel(consumer_tag="t", no_wait=True),
        QueuePurge(queue="silent", no_wait=True),
        QueueDelete(queue="silent", no_wait=True),
        ConfirmSelect(no_wait=True),
    )
    assert client.read_all() == []


def test_a_cancelled_consumer_keeps_what_it_holds_until_it_acks(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    client.publish(2, "q", b"1")
    client.read()
    assert client.ask(1, BasicCancel(consumer_tag="t")) == BasicCancelOk(consumer_tag="t")
    client.publish(2, "q", b"2")
    assert client.read_all() == []
    client.send(1, BasicAck(delivery_tag=1))
    assert client.world.ready("q") == 1


def test_consumers_are_told_when_their_queue_goes(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    client.publish(2, "q", b"held")
    client.read()
    client.send(2, QueueDelete(queue="q"))
    assert BasicCancel(consumer_tag="t", no_wait=True) in client.read_all()

    client.send(1, BasicAck(delivery_tag=1))
    assert client.read_all() == []


def test_the_last_declared_queue_stands_in_for_an_empty_name(client: Client) -> None:
    name = client.declare("").queue
    assert name.startswith("amq.gen-")
    client.ask(1, QueueBind(exchange="amq.direct"))
    client.publish(1, name, b"by its own name", exchange="amq.direct")
    assert client.ask(1, BasicGet(no_ack=True)).body == b"by its own name"


def test_without_a_declared_queue_an_empty_name_is_404(client: Client) -> None:
    close = client.ask(1, BasicGet())
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 70)


# Channel errors -------------------------------------------------------------------------------------------


def test_a_channel_error_closes_the_channel_with_the_words_of_the_error(client: Client) -> None:
    close = client.ask(1, QueueDeclare(queue="missing", passive=True))
    assert close == ChannelClose(
        reply_code=404,
        reply_text="NOT_FOUND - no queue 'missing' in vhost '/'",
        class_id=50,
        method_id=10,
    )
    client.send(1, methods.ChannelCloseOk())
    assert isinstance(client.ask(1, ChannelOpen()), methods.ChannelOpenOk)
    assert client.declare("q", channel=2).queue == "q"


def test_what_a_failed_channel_held_returns_to_its_queue(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q"))
    client.publish(2, "q", b"1", b"2")
    client.read_all()
    client.ask(1, QueueDeclare(queue="missing", passive=True))
    assert client.world.ready("q") == 2


def test_content_on_its_way_to_a_closed_channel_is_dropped(client: Client) -> None:
    whole = publish_frames(1, "q", b"x" * 100)
    bad = encode_method(1, QueueDeclare(queue="missing", passive=True))
    client.write(bad + whole[:-50])
    client.write(whole[-50:])
    assert [type(each) for each in client.read_all()] == [ChannelClose]
    client.send(1, methods.ChannelCloseOk())
    client.ask(1, ChannelOpen())
    assert client.world.ready("q") == 0


def test_a_client_may_break_off_a_message_when_its_channel_is_closed(client: Client) -> None:
    bad = encode_method(1, QueueDeclare(queue="missing", passive=True))
    begun = encode_method(1, methods.BasicPublish(routing_key="q"))
    client.write(bad + begun)
    assert isinstance(client.read(), ChannelClose)
    client.send(1, ChannelCloseOk())
    assert isinstance(client.ask(1, ChannelOpen()), methods.ChannelOpenOk)


def test_a_close_that_crosses_ours_is_answered_even_from_behind_a_wait() -> None:
    world = World(syncing=False)
    client = world.open()
    client.send(
        1, QueueDeclare(queue="d", durable=True), QueueDeclare(queue="no", passive=True), ChannelClose()
    )
    world.sync()
    said = [type(each) for each in client.read_all()]
    assert said == [methods.QueueDeclareOk, ChannelClose, ChannelCloseOk]


def test_a_message_over_the_limit_closes_the_channel_and_costs_nothing() -> None:
    client = World(message_bytes_max=1000).open()
    client.declare("q")
    client.publish(1, "q", b"x" * 1001)
    [close] = client.read_all()
    assert close.reply_code == 406
    assert (close.class_id, close.method_id) == (60, 40)
    assert client.world.ready("q") == 0


def test_immediate_is_540_on_the_connection(client: Client) -> None:
    client.publish(1, "q", b"x", immediate=True)
    close = client.read()
    assert isinstance(close, methods.ConnectionClose)
    assert (close.reply_code, close.class_id, close.method_id) == (540, 60, 40)


def test_a_get_behind_many_that_are_too_old_is_answered_when_they_have_ended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "MESSAGES", 50)
    world = client.world
    client.declare("q")
    client.publish(1, "q", *[b"old"] * 1000, properties=encode_properties(Properties(expiration="100")))
    client.publish(1, "q", b"young")
    world.now_ms += 1000
    world.broker.now_ms = world.now_ms

    assert client.ask(1, BasicGet(queue="q", no_ack=True)).body == b"young"
    assert isinstance(client.ask(1, BasicGet(queue="q", no_ack=True)), BasicGetEmpty)


# Settling ------------------------------------------------------------------------------------------------


def fetched(client: Client, count: int) -> None:
    client.publish(2, "q", *(b"%d" % number for number in range(count)))
    for tag in range(1, count + 1):
        assert client.ask(1, BasicGet(queue="q")).method.delivery_tag == tag


def left(client: Client) -> list[bytes]:
    """What is in the queue after the channel is closed."""
    client.ask(1, ChannelClose())
    bodies = []
    while not isinstance(got := client.ask(2, BasicGet(queue="q", no_ack=True)), BasicGetEmpty):
        bodies.append(got.body)
    return bodies


def test_a_get_says_how_many_are_left(client: Client) -> None:
    client.publish(2, "q", b"1", b"2", b"3")
    assert client.ask(1, BasicGet(queue="q")).method.message_count == 2


def test_a_get_without_acks_leaves_nothing_behind(client: Client) -> None:
    client.publish(2, "q", b"1")
    assert client.ask(1, BasicGet(queue="q", no_ack=True)).method.delivery_tag == 1
    assert client.world.broker.vhosts["/"].queues["q"].acquired == 0
    assert client.ask(1, BasicAck(delivery_tag=1)).reply_code == 406


def test_acks_settle_single_tags_and_all_up_to_one(client: Client) -> None:
    fetched(client, 5)
    client.send(1, BasicAck(delivery_tag=4), BasicAck(delivery_tag=2, multiple=True))
    assert left(client) == [b"2", b"4"]


def test_ack_of_tag_zero_multiple_is_all(client: Client) -> None:
    fetched(client, 3)
    client.send(1, BasicAck(delivery_tag=0, multiple=True))
    assert left(client) == []
    client.ask(1, ChannelOpen())
    client.send(1, BasicAck(delivery_tag=0, multiple=True))
    assert client.read_all() == []


@pytest.mark.parametrize(
    "method",
    [
        BasicAck(delivery_tag=9),
        BasicAck(delivery_tag=0),
        BasicAck(delivery_tag=9, multiple=True),
        BasicNack(delivery_tag=9),
        BasicNack(delivery_tag=9, multiple=True),
        BasicNack(delivery_tag=0),
        BasicReject(delivery_tag=9),
        BasicReject(delivery_tag=0),
    ],
    ids=repr,
)
def test_an_unknown_tag_is_406_and_everything_returns(client: Client, method: methods.Method) -> None:
    fetched(client, 2)
    close = client.ask(1, method)
    assert close.reply_code == 406
    assert close.reply_text.startswith("PRECONDITION_FAILED - unknown delivery tag")
    assert (close.class_id, close.method_id) == methods.ids_of(method)
    assert client.world.ready("q") == 2


def test_acking_twice_is_406(client: Client) -> None:
    fetched(client, 2)
    client.send(1, BasicAck(delivery_tag=1))
    assert client.ask(1, BasicAck(delivery_tag=1)).reply_code == 406


@pytest.mark.parametrize(
    ("method", "after"),
    [
        (BasicNack(delivery_tag=2, multiple=True, requeue=True), [b"0", b"1", b"2"]),
        (BasicNack(delivery_tag=2, multiple=True, requeue=False), [b"2"]),
        (BasicNack(delivery_tag=0, multiple=True, requeue=False), []),
        (BasicReject(delivery_tag=2, requeue=False), [b"0", b"2"]),
        (BasicReject(delivery_tag=2, requeue=True), [b"0", b"1", b"2"]),
    ],
    ids=repr,
)
def test_nack_and_reject_requeue_or_drop(client: Client, method: methods.Method, after: list[bytes]) -> None:
    fetched(client, 3)
    client.send(1, method)
    assert left(client) == after


def test_recover_delivers_again_under_new_tags(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    client.publish(2, "q", b"1", b"2")
    client.read_all()
    client.send(1, BasicRecover(requeue=True))
    ok, *again = client.read_all()
    assert isinstance(ok, methods.BasicRecoverOk)
    assert tags(again) == [3, 4]
    assert all(content.method.redelivered for content in again)


def test_recover_without_requeue_is_540(client: Client) -> None:
    assert client.ask_connection(1, BasicRecover(requeue=False)).reply_code == 540


# Prefetch --------------------------------------------------------------------------------------------------


def test_prefetch_bounds_each_new_consumer(client: Client) -> None:
    assert client.ask(1, BasicQos(prefetch_count=2)) == BasicQosOk()
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    client.publish(2, "q", *[b"x"] * 5)
    assert tags(client.read_all()) == [1, 2]
    client.send(1, BasicAck(delivery_tag=1))
    assert tags(client.read_all()) == [3]


def test_a_global_prefetch_bounds_all_consumers_together_and_leaves_gets_alone(client: Client) -> None:
    client.declare("other", channel=2)
    client.publish(2, "q", *[b"q"] * 5)
    client.publish(2, "other", *[b"other"] * 5)
    client.ask(1, BasicGet(queue="q"))
    client.ask(1, BasicQos(prefetch_count=3, global_=True))
    client.send(1, BasicConsume(queue="q", no_wait=True, consumer_tag="a"))
    client.send(1, BasicConsume(queue="other", no_wait=True, consumer_tag="b"))
    assert len(client.read_all()) == 3

    # Room that an ack of one queue makes is good for the other too.
    client.send(1, BasicCancel(consumer_tag="a", no_wait=True))
    client.send(1, BasicAck(delivery_tag=4, multiple=True))
    assert [content.body for content in client.read_all()] == [b"other"] * 3


def test_prefetch_size_is_540(client: Client) -> None:
    assert client.ask_connection(1, BasicQos(prefetch_size=1)).reply_code == 540


def test_a_consumer_without_acks_is_not_bound_by_its_prefetch(client: Client) -> None:
    client.ask(1, BasicQos(prefetch_count=1))
    client.ask(1, BasicConsume(queue="q", no_ack=True))
    client.publish(2, "q", *[b"x"] * 5)
    assert len(client.read_all()) == 5


# Confirms and returns -----------------------------------------------------------------------------------------


def test_transient_publishes_are_confirmed_once_a_turn(client: Client) -> None:
    client.ask(1, ConfirmSelect())
    client.publish(1, "q", *[b"x"] * 100)
    assert client.read_all() == [BasicAck(delivery_tag=100, multiple=True)]


def test_persistent_publishes_are_confirmed_when_they_are_on_the_disk() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.ask(1, ConfirmSelect())
    world.syncing = False
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    client.publish(1, "q", b"3", properties=PERSISTENT)
    assert client.read_all() == []
    world.sync()
    assert client.read_all() == [BasicAck(delivery_tag=3, multiple=True)]


def test_confirms_that_are_made_while_they_are_taken_ask_for_no_further_turn() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.ask(1, ConfirmSelect())
    world.syncing = False
    client.publish(1, "q", b"1", properties=PERSISTENT)
    world.sync(turn=False)
    world._touched.clear()

    assert client.front_end.output()
    assert not world._touched


def test_a_refused_publish_is_nacked(client: Client) -> None:
    client.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.ask(1, ConfirmSelect())
    client.publish(1, "small", b"1", b"2", b"3")
    assert client.read_all() == [
        BasicAck(delivery_tag=1, multiple=False),
        BasicNack(delivery_tag=3, multiple=True, requeue=False),
    ]


def test_a_mandatory_message_without_a_queue_returns_before_its_confirm(client: Client) -> None:
    client.ask(1, ConfirmSelect())
    client.publish(1, "nowhere", b"stray", mandatory=True, properties=PERSISTENT)
    returned, ack = client.read_all()
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.routing_key, returned.body) == ("nowhere", b"stray")
    assert returned.properties.delivery_mode == 2
    assert ack == BasicAck(delivery_tag=1, multiple=False)


def test_what_came_before_a_bad_publish_in_the_same_read_is_published(client: Client) -> None:
    client.write(
        publish_frames(1, "q", b"good")
        + publish_frames(1, "k", b"bad", exchange="missing")
        + publish_frames(1, "q", b"too late")
    )
    [close] = client.read_all()
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
    assert client.world.ready("q") == 1


# Transactions -------------------------------------------------------------------------------------------------


@pytest.fixture
def tx(client: Client) -> Client:
    client.ask(1, methods.TxSelect())
    return client


def test_a_commit_publishes_and_settles_everything_and_is_answered_when_it_is_on_the_disk() -> None:
    world = World()
    client = world.open(channels=2)
    client.declare("in", durable=True)
    client.declare("out", durable=True)
    client.publish(2, "in", b"work", properties=PERSISTENT)
    client.ask(1, methods.TxSelect())
    client.ask(1, BasicGet(queue="in"))
    world.syncing = False
    client.publish(1, "out", b"done", properties=PERSISTENT)
    client.send(1, BasicAck(delivery_tag=1))
    inbound = world.broker.vhosts["/"].queues["in"]
    assert (world.ready("out"), inbound.acquired) == (0, 1)

    client.send(1, methods.TxCommit())
    assert (world.ready("out"), inbound.acquired) == (1, 0)
    assert client.read_all() == []
    world.sync()
    assert client.read_all() == [methods.TxCommitOk()]


def test_a_rollback_forgets_publishes_and_acks(tx: Client) -> None:
    tx.publish(2, "q", b"held")
    tx.ask(1, BasicGet(queue="q"))
    tx.publish(1, "q", b"forgotten")
    tx.send(1, BasicAck(delivery_tag=1))
    assert tx.ask(1, methods.TxRollback()) == methods.TxRollbackOk()
    assert tx.ask(1, methods.TxCommit()) == methods.TxCommitOk()
    assert left(tx) == [b"held"]


@pytest.mark.parametrize(("requeue", "after"), [(True, [b"held"]), (False, [])])
def test_rejects_count_from_the_commit_on(tx: Client, requeue: bool, after: list[bytes]) -> None:
    tx.publish(2, "q", b"held")
    tx.ask(1, BasicGet(queue="q"))
    tx.send(1, BasicReject(delivery_tag=1, requeue=requeue))
    assert tx.world.ready("q") == 0
    tx.ask(1, methods.TxCommit())
    assert left(tx) == after


def test_ack_all_in_a_transaction_means_what_was_delivered_then(tx: Client) -> None:
    tx.publish(2, "q", b"sooner", b"later")
    tx.send(1, BasicAck(delivery_tag=0, multiple=True))
    tx.ask(1, BasicGet(queue="q"))
    tx.send(1, BasicAck(delivery_tag=0, multiple=True))
    tx.ask(1, BasicGet(queue="q"))
    assert tx.ask(1, methods.TxCommit()) == methods.TxCommitOk()
    assert left(tx) == [b"later"]


def test_a_commit_with_a_tag_acked_twice_is_406_and_settles_nothing(tx: Client) -> None:
    tx.publish(2, "q", b"1", b"2")
    tx.ask(1, BasicGet(queue="q"))
    tx.ask(1, BasicGet(queue="q"))
    tx.send(1, BasicAck(delivery_tag=2), BasicAck(delivery_tag=2))
    tx.publish(1, "q", b"not committed")
    close = tx.ask(1, methods.TxCommit())
    assert close.reply_code == 406
    assert tx.world.ready("q") == 2


def test_mandatory_messages_return_at_the_commit(tx: Client) -> None:
    tx.publish(1, "nowhere", b"stray", mandatory=True)
    assert tx.read_all() == []
    tx.send(1, methods.TxCommit())
    returned, ok = tx.read_all()
    assert returned.body == b"stray"
    assert ok == methods.TxCommitOk()


@pytest.mark.parametrize(
    ("first", "second"), [(methods.TxSelect(), ConfirmSelect()), (ConfirmSelect(), methods.TxSelect())]
)
def test_transactions_and_confirms_do_not_mix(
    client: Client, first: methods.Method, second: methods.Method
) -> None:
    client.ask(1, first)
    assert client.ask(1, second).reply_code == 406


def test_a_transaction_may_not_grow_without_end() -> None:
    client = World(transaction_bytes_max=10_000).open()
    client.declare("q")
    client.ask(1, methods.TxSelect())
    client.publish(1, "q", b"x" * 6000)
    client.publish(1, "q", b"x" * 6000)
    assert client.read().reply_code == 406


# Waiting for the disk ------------------------------------------------------------------------------------------


def test_a_durable_declare_is_answered_when_it_is_on_the_disk_and_work_behind_it_waits() -> None:
    world = World(syncing=False)
    client = world.open(channels=2)
    client.send(1, QueueDeclare(queue="durable", durable=True))
    client.publish(1, "durable", b"1", b"2")
    client.send(1, BasicGet(queue="durable", no_ack=True))
    client.declare("other", channel=2)
    assert client.read_all() == []

    world.sync()
    declared, got = client.read_all()
    assert declared.queue == "durable"
    assert got.body == b"1"
    assert client.front_end.kept_bytes == 0


def test_kept_publishes_do_not_change_when_the_read_buffer_does() -> None:
    world = World(syncing=False)
    client = world.open()
    buffer = bytearray(
        encode_method(1, QueueDeclare(queue="d", durable=True)) + publish_frames(1, "d", b"original")
    )
    assert client.front_end.receive(memoryview(buffer)) == len(buffer)
    buffer[:] = bytes(len(buffer))
    world.sync()
    assert client.read().queue == "d"
    assert client.ask(1, BasicGet(queue="d", no_ack=True)).body == b"original"


def test_several_waits_in_a_row_keep_their_order() -> None:
    world = World(syncing=False)
    client = world.open()
    names = [f"d{number}" for number in range(5)]
    client.send(1, *(QueueDeclare(queue=name, durable=True) for name in names))
    for _ in names:
        world.sync()
    assert [answer.queue for answer in client.read_all()] == names


def test_an_error_behind_a_wait_is_told_after_the_reply_that_waited() -> None:
    world = World(syncing=False)
    client = world.open()
    client.send(
        1,
        QueueDeclare(queue="d", durable=True),
        QueueDeclare(queue="missing", passive=True),
        QueueDeclare(queue="never", durable=False),
    )
    world.sync()
    declared, close = client.read_all()
    assert declared.queue == "d"
    assert close.reply_code == 404
    assert "never" not in world.broker.vhosts["/"].queues


def test_a_connection_is_not_read_while_too_much_is_kept() -> None:
    world = World(syncing=False, kept_bytes_max=10_000)
    client = world.open()
    client.send(1, QueueDeclare(queue="d", durable=True))
    client.publish(1, "d", b"x" * 5000)
    assert client.front_end.wants_read()
    client.publish(1, "d", b"x" * 5000)
    assert not client.front_end.wants_read()
    world.sync()
    assert client.front_end.wants_read()
    assert world.ready("d") == 2


def test_close_ok_waits_until_the_acks_of_the_channel_are_on_the_disk() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", properties=PERSISTENT)
    client.ask(1, BasicGet(queue="q"))
    world.syncing = False
    client.send(1, BasicAck(delivery_tag=1), ChannelClose(), ChannelOpen())
    assert client.read_all() == []
    assert world.journal.settlements

    world.sync()
    assert [type(each) for each in client.read_all()] == [ChannelCloseOk, methods.ChannelOpenOk]


def test_close_ok_of_a_channel_that_settled_nothing_does_not_wait() -> None:
    world = World()
    client = world.open(channels=2)
    client.declare("q", durable=True)
    world.syncing = False
    client.publish(1, "q", b"1", properties=PERSISTENT)
    assert client.ask(2, ChannelClose()) == ChannelCloseOk()


def test_close_ok_comes_after_the_confirms_of_the_channel() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.ask(1, ConfirmSelect())
    world.syncing = False
    client.publish(1, "q", b"1", properties=PERSISTENT)
    client.send(1, ChannelClose())
    assert client.read_all() == []
    world.sync()
    assert client.read_all() == [BasicAck(delivery_tag=1, multiple=False), ChannelCloseOk()]


# A peer that does not read ----------------------------------------------------------------------------------------


def test_a_consumer_whose_socket_is_full_is_given_no_more_until_it_has_room(client: Client) -> None:
    client.ask(1, BasicConsume(queue="q", no_ack=True))
    client.front_end.writable(False)
    client.publish(2, "q", *[b"x"] * 10)
    assert client.read_all() == []
    assert client.world.ready("q") == 10

    client.front_end.writable(True)
    client.world.turn()
    assert len(client.read_all()) == 10


def test_what_waits_to_be_sent_is_bounded_and_goes_on_when_it_is_taken() -> None:
    world = World(output_bytes_max=10_000)
    client, other = world.open(), world.open()
    other.declare("q")
    client.ask(1, BasicConsume(queue="q", no_ack=True))
    other.publish(1, "q", *[b"x" * 5000] * 50)
    assert len(client.bodies()) == 50


def test_a_flood_of_gets_waits_for_room_and_loses_nothing() -> None:
    world = World(output_bytes_max=10_000)
    client = world.open()
    client.declare("q")
    client.publish(1, "q", *(b"%04d" % number * 1000 for number in range(20)))
    client.front_end.writable(False)
    client.send(1, *[BasicGet(queue="q", no_ack=True)] * 20)
    assert client.read_all() == []
    assert world.ready("q") == 20

    client.front_end.writable(True)
    world.turn()
    assert [body[:4] for body in client.bodies()] == [b"%04d" % number for number in range(20)]


def test_a_peer_that_sends_without_reading_is_not_read_for_ever() -> None:
    world = World(output_bytes_max=1000)
    client = world.open()
    client.front_end.writable(False)
    client.publish(1, "nowhere", *[b"x" * 100] * 10, mandatory=True)
    assert client.front_end.wants_read()
    client.publish(1, "nowhere", *[b"x" * 100] * 30, mandatory=True)
    assert not client.front_end.wants_read()

    client.front_end.writable(True)
    world.turn()
    assert len(client.read_all()) == 40
    assert client.front_end.wants_read()


def test_a_message_that_cannot_be_read_ends_the_connection_and_returns_to_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client, other = world.open(), world.open()
    other.declare("q")
    client.ask(1, BasicConsume(queue="q"))

    def corrupt(*_: object) -> bytes:
        raise CorruptRecord(path="journal/000001", offset=4096, problem="checksum differs")

    with monkeypatch.context() as patch:
        patch.setattr(channel, "encode_deliveries", corrupt)
        other.publish(1, "q", b"unreadable")
    [close] = client.read_all()
    assert (close.reply_code, type(close)) == (541, methods.ConnectionClose)
    assert "journal/000001" in close.reply_text
    assert world.ready("q") == 1
    assert isinstance(other.ask(1, BasicGet(queue="q")), Content)


# Statistics ----------------------------------------------------------------------------------------------------


def test_statistics_tell_what_a_channel_does(client: Client) -> None:
    client.ask(1, BasicQos(prefetch_count=7))
    client.ask(1, BasicConsume(queue="q", consumer_tag="t"))
    client.ask(1, ConfirmSelect())
    client.publish(1, "q", b"1", b"2")
    first, second = client.front_end.statistics().channels
    assert (first.number, first.state, first.prefetch, first.confirming) == (1, "open", 7, True)
    assert (first.unacked, first.unconfirmed, first.published) == (2, 0, 2)
    assert [(consumer.tag, consumer.queue) for consumer in first.consumers] == [("t", "q")]
    assert (second.number, second.consumers) == (2, ())


def confirming(world: World) -> Client:
    """A client that has three publishes unconfirmed: the disk has not said yet that they are safe."""
    client = world.open(channels=2)
    client.declare("q", durable=True)
    client.ask(1, ConfirmSelect())
    world.syncing = False
    client.publish(1, "q", b"1", b"2", b"3", properties=PERSISTENT)
    assert world.broker.counts.amqp091.unconfirmed == 3
    return client


def test_publishes_count_as_unconfirmed_until_they_are_acked() -> None:
    world = World()
    confirming(world)
    world.sync()
    assert world.broker.counts.amqp091.unconfirmed == 0


def test_publishes_that_are_nacked_are_not_unconfirmed_any_more(client: Client) -> None:
    client.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.ask(1, ConfirmSelect())
    client.publish(1, "small", b"1", b"2", b"3")
    assert any(isinstance(answer, BasicNack) for answer in client.read_all())
    counts = client.world.broker.counts.amqp091
    assert (counts.received_confirm, counts.confirmed, counts.unconfirmed) == (3, 1, 0)


def test_a_store_that_fails_leaves_nothing_unconfirmed() -> None:
    world = World()
    confirming(world).front_end.store_failed("it burnt")
    assert world.broker.counts.amqp091.unconfirmed == 0


def test_a_connection_that_is_lost_leaves_nothing_unconfirmed() -> None:
    world = World()
    confirming(world).front_end.receive_eof()
    assert world.broker.counts.amqp091.unconfirmed == 0


def test_a_channel_that_is_closed_leaves_nothing_unconfirmed() -> None:
    world = World()
    client = confirming(world)
    client.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    world.sync()
    assert any(isinstance(answer, BasicAck) for answer in client.read_all())
    assert world.broker.counts.amqp091.unconfirmed == 0


# Nothing is called done before it is ------------------------------------------------------------------------------


def corrupt(*_: object) -> bytes:
    raise CorruptRecord(path="journal/000001", offset=4096, problem="checksum differs")


def test_what_could_not_be_read_for_a_consumer_that_does_not_ack_is_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    with monkeypatch.context() as patch:
        patch.setattr(channel, "encode_deliveries", corrupt)
        client.send(1, BasicConsume(queue="q", no_ack=True))
    assert isinstance(client.read_all()[-1], methods.ConnectionClose)
    assert world.ready("q") == 2
    assert world.journal.settlements == []


def test_what_could_not_be_read_for_a_get_that_does_not_ack_is_ready_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", properties=PERSISTENT)
    with monkeypatch.context() as patch:
        patch.setattr(channel, "encode_get_ok", corrupt)
        client.send(1, BasicGet(queue="q", no_ack=True))
    assert isinstance(client.read_all()[-1], methods.ConnectionClose)
    queue = world.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.acquired) == (1, 0)


def test_a_purge_of_persistent_messages_is_answered_when_it_is_durable() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    world.syncing = False
    client.send(1, QueuePurge(queue="q"))
    assert client.read_all() == []
    world.sync()
    assert client.read() == methods.QueuePurgeOk(message_count=2)
