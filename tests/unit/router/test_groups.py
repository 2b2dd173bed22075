"""A client whose queues live in two groups, each a real broker: to the client they are one."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client, Content, World, publish_frames
from unit.router.harness import Front

from tidemark.errors import NotAllowed
from tidemark.model.wiring import PermissionSpec
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import encode_method
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties

ELSEWHERE = {"x-group": "fast"}


@pytest.fixture
def front() -> Front:
    return Front("fast")


@pytest.fixture
def fast(front: Front) -> World:
    return front.worlds["fast"]


@pytest.fixture
def client(front: Front) -> Client:
    """With the queues `here`, of main, and `there`, of the group fast, bound to the exchange `both`."""
    client = front.open(channels=2)
    client.declare("here", durable=True)
    client.declare("there", durable=True, arguments=ELSEWHERE)
    client.ask(1, methods.ExchangeDeclare(exchange="both", type="fanout", durable=True))
    for queue in ("here", "there"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="both"))
    return client


def bodies(answers: list[Any]) -> list[bytes]:
    return [each.body for each in answers if isinstance(each, Content)]


def tags(answers: list[Any]) -> list[int]:
    return [each.method.delivery_tag for each in answers if isinstance(each, Content)]


# Who the client is ---------------------------------------------------------------------------------


def test_groups_that_take_a_fronts_word_do_not_see_the_password(client: Client, front: Front) -> None:
    seen = {link.group: wire.front_end._handshake.agreed.credentials for link, wire in front.wires.items()}
    assert {each.user for each in seen.values() if each} == {"guest"}
    passwords = {group: each.password for group, each in seen.items() if each}
    assert passwords == {MAIN: b"guest", "fast": b""}


# Queues --------------------------------------------------------------------------------------------


def test_a_queue_is_declared_in_main_first_and_then_in_its_group(
    client: Client, front: Front, fast: World
) -> None:
    assert set(front.main.broker.vhosts["/"].queues) == {"here", "there"}
    assert set(fast.broker.vhosts["/"].queues) == {"there"}


def test_a_queue_that_its_group_does_not_take_closes_the_channel(client: Client, fast: World) -> None:
    with_other = methods.QueueDeclare(queue="there", durable=True, arguments=ELSEWHERE | {"x-max-length": 1})
    close = client.ask(1, with_other)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 50, 10)
    client.send(1, methods.ChannelCloseOk())
    client.ask(1, methods.ChannelOpen())
    assert client.declare("there", passive=True).message_count == 0


def test_a_queue_is_counted_where_it_is(client: Client) -> None:
    client.publish(1, "there", b"x", b"y")
    assert client.declare("there", passive=True).message_count == 2
    assert client.ask(1, methods.QueuePurge(queue="there")).message_count == 2
    client.publish(1, "there", b"z")
    assert client.ask(1, methods.QueueDelete(queue="there")) == methods.QueueDeleteOk(1)


def test_a_queue_is_deleted_in_its_group_first_and_then_in_main(
    client: Client, front: Front, fast: World
) -> None:
    client.publish(1, "there", b"x")
    close = client.ask(1, methods.QueueDelete(queue="there", if_empty=True))
    assert close.reply_code == 406
    assert "there" in front.main.broker.vhosts["/"].queues
    client.send(1, methods.ChannelCloseOk())
    client.ask(2, methods.QueueDelete(queue="there"))
    assert "there" not in front.main.broker.vhosts["/"].queues
    assert "there" not in fast.broker.vhosts["/"].queues


def test_a_queue_is_not_empty_while_main_has_messages_for_it(
    client: Client, front: Front, fast: World
) -> None:
    client.ask(2, methods.BasicGet(queue="there"))
    front.main.open().publish(1, "there", b"x", properties=PERSISTENT)
    close = client.ask(1, methods.QueueDelete(queue="there", if_empty=True))
    assert (close.reply_code, close.class_id, close.method_id) == (406, 50, 40)
    assert front.main.ready("there") == 1
    assert client.ask(2, methods.BasicGet(queue="there")) == methods.BasicGetEmpty()
    assert "there" in fast.broker.vhosts["/"].queues


def test_a_queue_that_main_and_its_group_do_not_agree_on_can_be_deleted(
    client: Client, front: Front, fast: World
) -> None:
    other = {"queue": "there", "durable": True, "arguments": ELSEWHERE | {"x-max-length": 5}}
    front.main.open().ask(1, methods.QueueDelete(queue="there"))
    assert client.ask(1, methods.QueueDeclare(**other)).reply_code == 406
    assert client.ask(2, methods.QueueDelete(queue="there")) == methods.QueueDeleteOk(0)
    assert client.ask(2, methods.QueueDeclare(**other)) == methods.QueueDeclareOk("there", 0, 0)


def test_what_need_not_be_answered_is_done_in_order_and_not_answered(client: Client, fast: World) -> None:
    client.write(
        encode_method(1, methods.QueueDeclare(queue="more", durable=True, no_wait=True, arguments=ELSEWHERE))
        + publish_frames(1, "more", b"x")
        + encode_method(1, methods.QueueDelete(queue="there", no_wait=True))
        + encode_method(1, methods.BasicGet(queue=""))
    )
    (answer,) = client.read_all()
    assert answer.body == b"x"
    assert set(fast.broker.vhosts["/"].queues) == {"more"}


def test_a_queue_without_a_name_is_the_one_that_was_declared_last(client: Client) -> None:
    client.declare("there", durable=True, arguments=ELSEWHERE)
    client.publish(1, "there", b"x")
    assert client.ask(1, methods.BasicGet(queue="")).body == b"x"
    assert client.ask(2, methods.BasicGet(queue="")).reply_code == 404


def test_a_queue_that_nobody_knows_is_not_found(client: Client) -> None:
    assert client.ask(1, methods.BasicConsume(queue="nowhere")).reply_code == 404


# Publishing ----------------------------------------------------------------------------------------


def test_a_message_is_given_to_each_group_that_has_a_queue_for_it(
    client: Client, front: Front, fast: World
) -> None:
    client.publish(1, "", b"x", exchange="both")
    assert (front.main.ready("here"), front.main.ready("there"), fast.ready("there")) == (1, 0, 1)


def test_a_message_is_confirmed_when_every_group_has_it(client: Client, front: Front, fast: World) -> None:
    client.ask(1, methods.ConfirmSelect())
    fast.syncing = False
    client.publish(1, "", b"x", exchange="both", properties=PERSISTENT)
    client.publish(1, "here", b"y", properties=PERSISTENT)
    assert client.read_all() == []
    fast.sync()
    front.turn()
    assert client.read_all() == [methods.BasicAck(2, True)]


def test_confirms_may_be_asked_for_twice(client: Client) -> None:
    client.ask(1, methods.ConfirmSelect())
    client.publish(1, "there", b"x")
    assert client.read_all() == [methods.BasicAck(1, False)]
    client.ask(1, methods.ConfirmSelect())
    client.publish(1, "there", b"x")
    assert client.read_all() == [methods.BasicAck(2, False)]


def test_a_mandatory_message_without_a_queue_is_returned_by_main(client: Client) -> None:
    client.publish(1, "nowhere", b"x", mandatory=True)
    (returned,) = client.read_all()
    assert (returned.method.reply_code, returned.body) == (312, b"x")
    client.publish(1, "there", b"x", mandatory=True)
    assert client.read_all() == []


def test_an_exchange_that_is_not_there_closes_the_channel(client: Client) -> None:
    client.publish(1, "k", b"x", exchange="nowhere")
    assert client.read().reply_code == 404


def test_a_queue_that_its_group_has_lost_keeps_its_messages_in_main(
    client: Client, front: Front, fast: World
) -> None:
    direct = fast.open()
    direct.ask(1, methods.QueueDelete(queue="there"))
    client.ask(1, methods.ConfirmSelect())
    front.main.syncing = False
    client.publish(1, "there", b"x", b"y", properties=PERSISTENT)
    assert client.read_all() == []
    front.main.sync()
    front.turn()
    assert client.read_all() == [methods.BasicAck(2, True)]
    assert front.main.ready("there") == 2


def test_consumers_see_what_the_client_published_to(client: Client, front: Front) -> None:
    client.ask(1, methods.QueueBind(queue="there", exchange="amq.topic", routing_key="a.*"))
    properties = encode_properties(Properties(content_type="text", headers={"a": 1}, delivery_mode=2))
    client.publish(1, "a.b", b"x", exchange="amq.topic", properties=properties)
    got = client.ask(1, methods.BasicGet(queue="there", no_ack=True))
    assert got.properties == decode_properties(properties)
    assert (got.method.exchange, got.method.routing_key) == ("amq.topic", "a.b")


@pytest.mark.parametrize("key", ["", "nowhere"])
def test_a_client_cannot_name_queues_as_a_front_does(client: Client, front: Front, key: str) -> None:
    properties = encode_properties(Properties(headers={"x-tidemark-to": ["here"], "a": 1}))
    client.publish(1, key, b"x", properties=properties, mandatory=True)
    (returned,) = client.read_all()
    assert (returned.method.reply_code, returned.method.routing_key, returned.body) == (312, key, b"x")
    assert returned.properties.headers["a"] == 1
    assert front.main.ready("here") == 0


def test_copies_go_to_queues_of_both_groups(client: Client, front: Front, fast: World) -> None:
    properties = encode_properties(Properties(headers={"CC": ["here"], "BCC": ["there"]}))
    client.publish(1, "", b"x", properties=properties)
    assert (front.main.ready("here"), fast.ready("there")) == (1, 1)


def test_a_message_for_more_queues_than_fit_into_a_frame_reaches_them_all(front: Front, fast: World) -> None:
    client = front.open(frame_max=4096)
    client.ask(1, methods.ConfirmSelect())
    for number in range(40):
        client.declare(f"{number:0200}", durable=True, arguments=ELSEWHERE)
        client.ask(1, methods.QueueBind(queue=f"{number:0200}", exchange="amq.fanout"))
    client.publish(1, "", b"x", exchange="amq.fanout")
    assert client.read_all() == [methods.BasicAck(1, False)]
    assert {fast.ready(f"{number:0200}") for number in range(40)} == {1}


def test_messages_for_more_queues_than_fit_into_a_frame_are_each_answered_for_all_of_them(
    front: Front,
) -> None:
    client = front.open(frame_max=4096)
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for number in range(40):
        limits = full if number == 39 else {}
        client.declare(f"{number:0200}", durable=True, arguments=ELSEWHERE | limits)
        client.ask(1, methods.QueueBind(queue=f"{number:0200}", exchange="amq.fanout"))
    client.publish(1, f"{39:0200}", b"x")
    client.ask(1, methods.ConfirmSelect())
    client.publish(1, "", b"1", b"2", b"3", b"4", exchange="amq.fanout")
    told: list[bool] = []
    for answer in client.read_all():
        told += [isinstance(answer, methods.BasicAck)] * (answer.delivery_tag - len(told))
    assert told == [False] * 4


def test_a_message_for_many_queues_is_sent_on_no_faster_than_groups_take_it() -> None:
    front = Front("fast", kept_bytes_max=20_000)
    client = front.open(channels=2)
    for number in range(20):
        client.declare(f"{number:0200}", durable=True, arguments=ELSEWHERE)
        client.ask(1, methods.QueueBind(queue=f"{number:0200}", exchange="amq.fanout"))
    for channel in (1, 2):
        client.ask(channel, methods.ConfirmSelect())
    (link,) = (link for link in front.wires if link.group == "fast")
    sent = [
        publish_frames(channel, "", b"%d: %d" % (channel, number), exchange="amq.fanout")
        for channel in (1, 2)
        for number in range(100)
    ]
    client.front_end.receive(memoryview(b"".join(sent)))
    assert 20_000 < link.waiting_bytes < 30_000
    assert not client.front_end.wants_read()
    front.turn()
    assert client.front_end.wants_read()
    assert {channel: answer.delivery_tag for channel, answer in client.inbox} == {1: 100, 2: 100}
    client.inbox.clear()
    got = [client.ask(1, methods.BasicGet(queue=f"{19:0200}", no_ack=True)).body for _ in range(200)]
    for channel in (1, 2):
        own = b"%d: " % channel
        assert [body for body in got if body.startswith(own)] == [own + b"%d" % each for each in range(100)]


def test_properties_that_leave_no_room_for_names_are_refused(front: Front) -> None:
    client = front.open(frame_max=4096)
    client.declare("q", durable=True, arguments=ELSEWHERE)
    client.publish(1, "q", b"x", properties=encode_properties(Properties(headers={"a": "x" * 4000})))
    assert [each.reply_code for each in client.read_all()] == [406]


@pytest.mark.parametrize(
    "use",
    [
        methods.BasicConsume(queue="there"),
        methods.BasicGet(queue="there"),
        methods.QueuePurge(queue="there"),
        methods.QueueDelete(queue="there"),
        methods.QueueDeclare(queue="there", passive=True),
    ],
    ids=lambda use: type(use).__name__,
)
def test_a_queue_that_its_group_never_got_is_made_by_whoever_uses_it_next(
    client: Client, front: Front, fast: World, use: methods.Method
) -> None:
    fast.open().ask(1, methods.QueueDelete(queue="there"))
    other = front.open()
    assert not isinstance(other.ask(1, use), methods.ChannelClose)
    assert ("there" in fast.broker.vhosts["/"].queues) is not isinstance(use, methods.QueueDelete)


@pytest.mark.parametrize(
    ("use", "denied"),
    [
        (methods.BasicConsume(queue="there"), "read"),
        (methods.BasicGet(queue="there"), "read"),
        (methods.QueuePurge(queue="there"), "read"),
        (methods.QueueDelete(queue="there"), "configure"),
    ],
    ids=lambda use: type(use).__name__,
)
def test_main_says_who_may_use_a_queue_of_another_group(
    client: Client, front: Front, use: methods.Method, denied: str
) -> None:
    allowed = {"configure": ".*", "write": ".*", "read": ".*"} | {denied: ""}
    front.main.broker.put(PermissionSpec("guest", "/", **allowed))
    close = client.ask(1, use)
    assert (close.reply_code, close.class_id, close.method_id) == (403, *methods.ids_of(use))


def test_who_may_only_read_a_queue_of_another_group_reads_it(client: Client, front: Front) -> None:
    client.publish(1, "there", b"x")
    front.main.broker.put(PermissionSpec("guest", "/", configure="", write="", read=".*"))
    assert client.ask(2, methods.BasicGet(queue="there")).body == b"x"


def test_a_large_message_is_cut_into_frames_that_everybody_takes(client: Client, fast: World) -> None:
    body = bytes(range(256)) * 2000
    client.write(
        encode_method(1, methods.BasicPublish(routing_key="there"))
        + publish_frames(2, "there", b"between")
        + publish_frames(1, "there", body)[len(encode_method(1, methods.BasicPublish(routing_key="there"))) :]
    )
    assert fast.ready("there") == 2
    client.send(1, methods.BasicConsume(queue="there", consumer_tag="c", no_ack=True))
    assert bodies(client.read_all()) == [b"between", body]


# The copy of the wiring ----------------------------------------------------------------------------


def test_a_message_waits_for_a_fresh_copy_and_what_follows_waits_for_it(client: Client, front: Front) -> None:
    client.ask(1, methods.ConfirmSelect())
    front.copy.slow = True
    client.publish(1, "there", b"one")
    client.publish(1, "here", b"two")
    client.publish(1, "there", b"three")
    client.send(1, methods.ExchangeDeclare(exchange="e"))
    assert client.read_all() == []
    front.copy.freshen()
    front.turn()
    assert client.read_all() == [methods.BasicAck(1, False)]
    assert len(front.copy.asked) == 1
    front.copy.freshen()
    front.turn()
    # One answer was good for both.
    assert not front.copy.asked
    assert sorted(each.delivery_tag for each in client.read_all() if isinstance(each, methods.BasicAck)) == [
        2,
        3,
    ]


def test_a_change_of_the_client_is_seen_by_what_it_publishes_behind_it(client: Client, front: Front) -> None:
    front.copy.slow = True
    client.publish(1, "here", b"one")
    client.write(
        encode_method(1, methods.QueueDeclare(queue="new", durable=True, no_wait=True, arguments=ELSEWHERE))
        + publish_frames(1, "new", b"two")
    )
    # Before the publish, before the declare, for the life that main has given the queue, and before the second publish.
    for _ in range(4):
        assert len(front.copy.asked) == 1
        front.copy.freshen()
        front.turn()
    assert front.worlds["fast"].ready("new") == 1


def test_a_client_that_sends_too_much_while_it_waits_is_read_no_further(client: Client, front: Front) -> None:
    front.copy.slow = True
    for _ in range(10):
        client.publish(1, "there", bytes(1 << 20))
    assert not client.front_end.wants_read()
    front.copy.slow = False
    front.copy.freshen()
    front.turn()
    assert client.front_end.wants_read()
    assert front.worlds["fast"].ready("there") == 10


def test_a_client_is_told_when_the_copy_does_not_get_fresh(client: Client, front: Front) -> None:
    front.copy.slow = True
    client.publish(1, "here", b"x")
    front.pass_ms(4_000)
    assert client.read_all() == []
    front.pass_ms(2_000)
    close = client.read()
    assert (close.reply_code, "wiring" in close.reply_text) == (320, True)
    front.copy.freshen()
    front.turn()
    assert front.main.ready("here") == 0


# Consuming -----------------------------------------------------------------------------------------


def consume_both(client: Client, **options: Any) -> None:
    for queue in ("here", "there"):
        client.send(1, methods.BasicConsume(queue=queue, consumer_tag=queue, **options))
    client.read_all()


def test_messages_of_both_groups_have_one_row_of_tags(client: Client, front: Front, fast: World) -> None:
    consume_both(client)
    client.publish(2, "", b"x", b"y", exchange="both")
    answers = client.read_all()
    assert tags(answers) == [1, 2, 3, 4]
    assert sorted(bodies(answers)) == [b"x", b"x", b"y", b"y"]
    client.send(1, methods.BasicAck(3, True))
    client.send(1, methods.BasicReject(4, False))
    assert client.read_all() == []
    client.send(1, methods.BasicRecover(True))
    assert client.read_all() == [methods.BasicRecoverOk()]
    assert front.main.ready("here") == fast.ready("there") == 0


def test_what_a_group_delivers_anew_while_another_is_asked_to_recover_can_be_settled(
    client: Client, front: Front, fast: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consume_both(client)
    client.publish(2, "", b"x", exchange="both")
    assert tags(client.read_all()) == [1, 2]
    (wire,) = (wire for link, wire in front.wires.items() if link.group == "fast")
    said: list[bytes] = []
    with monkeypatch.context() as slow:
        slow.setattr(wire, "hear", said.append)
        client.send(1, methods.BasicRecover(True))
        assert tags(client.read_all()) == [3]
    wire.hear(b"".join(said))
    front.turn()
    assert tags(client.read_all()) == [4]
    client.send(1, methods.BasicAck(3, False))
    client.send(1, methods.BasicAck(4, False))
    assert client.read_all() == []
    assert client.ask(1, methods.ChannelClose()) == methods.ChannelCloseOk()
    assert front.main.ready("here") == fast.ready("there") == 0


def test_what_is_given_back_goes_to_its_own_queue(client: Client, front: Front, fast: World) -> None:
    client.publish(2, "", b"x", exchange="both")
    first, second = (client.ask(1, methods.BasicGet(queue=queue)) for queue in ("here", "there"))
    assert (first.method.delivery_tag, second.method.delivery_tag) == (1, 2)
    assert client.ask(1, methods.BasicGet(queue="there")) == methods.BasicGetEmpty()
    client.send(1, methods.BasicNack(2, False, True))
    assert (front.main.ready("here"), fast.ready("there")) == (0, 1)
    client.send(1, methods.BasicNack(0, True, True))
    assert (front.main.ready("here"), fast.ready("there")) == (1, 1)


def test_an_unknown_tag_closes_the_channel_everywhere(client: Client, front: Front, fast: World) -> None:
    consume_both(client)
    client.publish(2, "", b"x", exchange="both")
    client.read_all()
    client.send(1, methods.BasicAck(3, False))
    close = client.read()
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 80)
    assert (front.main.ready("here"), fast.ready("there")) == (1, 1)
    client.send(1, methods.ChannelCloseOk())
    client.ask(1, methods.ChannelOpen())
    assert client.ask(1, methods.BasicGet(queue="there", no_ack=True)).body == b"x"


def test_what_is_not_acknowledged_is_not_remembered(client: Client) -> None:
    consume_both(client, no_ack=True)
    client.publish(2, "", b"x", b"y", exchange="both")
    assert tags(client.read_all()) == [1, 2, 3, 4]
    client.send(1, methods.BasicAck(1, False))
    assert client.read().reply_code == 406


def test_a_consumer_is_cancelled_where_it_is(client: Client, fast: World) -> None:
    consume_both(client)
    assert client.ask(1, methods.BasicCancel("there")) == methods.BasicCancelOk("there")
    client.publish(2, "there", b"x")
    assert client.read_all() == []
    assert fast.ready("there") == 1
    assert client.ask(1, methods.BasicCancel("nobody")) == methods.BasicCancelOk("nobody")


def test_a_consumer_whose_queue_goes_is_cancelled_by_its_group(client: Client) -> None:
    consume_both(client)
    client.send(2, methods.QueueDelete(queue="there"))
    assert methods.BasicCancel("there", True) in client.read_all()
    client.send(1, methods.BasicConsume(queue="here", consumer_tag="there"))
    assert client.read() == methods.BasicConsumeOk("there")


def test_a_consumer_tag_is_used_once_a_channel(client: Client) -> None:
    client.ask(1, methods.BasicConsume(queue="here", consumer_tag="c"))
    client.send(1, methods.BasicConsume(queue="there", consumer_tag="c"))
    close = client.read()
    assert (close.reply_code, close.class_id, close.method_id) == (530, 60, 20)


def test_prefetch_holds_in_groups_that_come_later(client: Client) -> None:
    client.ask(1, methods.BasicQos(prefetch_count=1))
    client.publish(2, "there", b"x", b"y")
    client.send(1, methods.BasicConsume(queue="there", consumer_tag="c"))
    answers = client.read_all()
    assert bodies(answers) == [b"x"]
    client.send(1, methods.BasicAck(1, False))
    assert bodies(client.read_all()) == [b"y"]


# Transactions --------------------------------------------------------------------------------------


def test_a_transaction_in_one_group_is_made_there(client: Client, fast: World) -> None:
    client.ask(1, methods.TxSelect())
    client.publish(1, "there", b"x")
    assert fast.ready("there") == 0
    client.ask(1, methods.TxCommit())
    assert fast.ready("there") == 1
    client.publish(1, "here", b"y")
    client.ask(1, methods.TxRollback())
    assert client.declare("here", passive=True).message_count == 0
    got = client.ask(1, methods.BasicGet(queue="there"))
    client.send(1, methods.BasicAck(got.method.delivery_tag, False))
    client.ask(1, methods.TxRollback())
    client.send(1, methods.BasicAck(got.method.delivery_tag, False))
    assert client.ask(1, methods.TxCommit()) == methods.TxCommitOk()


def test_a_transaction_for_a_queue_that_its_group_has_lost_is_kept_by_main(
    client: Client, front: Front, fast: World
) -> None:
    fast.open().ask(1, methods.QueueDelete(queue="there"))
    client.ask(1, methods.TxSelect())
    client.publish(1, "there", b"x")
    assert client.ask(1, methods.TxCommit()) == methods.TxCommitOk()
    assert front.main.ready("there") == 1
    client.publish(1, "here", b"y")
    assert client.ask(1, methods.TxCommit()) == methods.TxCommitOk()
    assert front.main.ready("here") == 1


def test_what_is_not_offered_is_not_offered_in_another_group_either(client: Client) -> None:
    client.publish(1, "there", b"x", immediate=True)
    assert client.read().reply_code == 540


def test_a_transaction_over_two_groups_is_refused(client: Client) -> None:
    client.ask(1, methods.TxSelect())
    client.publish(1, "there", b"x")
    client.publish(1, "here", b"x")
    close = client.read()
    assert close.reply_code == 540
    assert "a transaction stays in one group" in close.reply_text


# Channels and the connection -----------------------------------------------------------------------


def test_a_channel_is_closed_everywhere(client: Client, front: Front, fast: World) -> None:
    consume_both(client)
    client.publish(2, "", b"x", exchange="both")
    client.read_all()
    assert client.ask(1, methods.ChannelClose()) == methods.ChannelCloseOk()
    assert (front.main.ready("here"), fast.ready("there")) == (1, 1)
    client.ask(1, methods.ChannelOpen())
    assert client.ask(1, methods.BasicGet(queue="there")).body == b"x"


def test_a_channel_that_is_not_open_is_an_error_of_the_connection(client: Client) -> None:
    client.send(9, methods.BasicQos())
    assert client.read().reply_code == 504


def test_the_loss_of_a_group_that_the_client_uses_closes_its_connection(client: Client, front: Front) -> None:
    front.lose("fast")
    close = client.read()
    assert close.reply_code == 320
    assert "group 'fast'" in close.reply_text


def test_a_group_that_cannot_be_reached_is_a_reason_too(front: Front) -> None:
    front.away["fast"] = "nobody listens"
    client = front.open()
    client.send(1, methods.QueueDeclare(queue="q", durable=True, arguments=ELSEWHERE))
    close = client.read()
    assert close.reply_code == 320
    assert "group 'fast' cannot be reached: nobody listens" in close.reply_text


def test_what_is_published_right_before_a_close_reaches_a_group_that_is_still_dialled(
    client: Client, front: Front, fast: World
) -> None:
    other = front.open()
    other.write(publish_frames(1, "there", b"x") * 2 + encode_method(0, methods.ConnectionClose()))
    assert other.read_all() == [methods.ConnectionCloseOk()]
    assert fast.ready("there") == 2


def test_a_close_is_answered_when_a_group_that_was_still_dialled_has_it_all(
    client: Client, front: Front, fast: World
) -> None:
    fast.syncing = False
    other = front.open()
    published = publish_frames(1, "there", b"x", properties=PERSISTENT)
    other.write(
        encode_method(1, methods.ConfirmSelect(no_wait=True))
        + published
        + encode_method(0, methods.ConnectionClose())
    )
    assert other.read_all() == []
    fast.sync()
    front.turn()
    assert other.read_all() == [methods.BasicAck(1, False), methods.ConnectionCloseOk()]


def test_a_close_is_not_answered_when_a_group_cannot_be_given_what_the_client_sent(
    client: Client, front: Front
) -> None:
    front.away["fast"] = "nobody listens"
    other = front.open()
    other.write(publish_frames(1, "there", b"x") + encode_method(0, methods.ConnectionClose()))
    assert other.read_all() == []
    assert other.front_end.closed


def test_a_close_is_not_answered_when_a_group_refuses_what_the_client_sent(
    client: Client, front: Front, fast: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotAllowed(reason="not here")

    monkeypatch.setattr(fast.broker, "open_session", refuse)
    other = front.open()
    other.write(publish_frames(1, "there", b"x") + encode_method(0, methods.ConnectionClose()))
    assert other.read_all() == []
    assert other.front_end.closed


def test_what_a_group_returns_after_a_close_is_kept_by_main_before_that_is_answered(
    client: Client, front: Front, fast: World
) -> None:
    fast.open().ask(1, methods.QueueDelete(queue="there"))
    for other in (client, front.open()):
        other.write(
            publish_frames(1, "there", b"x", properties=PERSISTENT)
            + encode_method(0, methods.ConnectionClose())
        )
        assert other.read_all() == [methods.ConnectionCloseOk()]
    assert front.main.ready("there") == 2


def test_a_client_is_blocked_while_one_group_is(client: Client, front: Front) -> None:
    ends = {link.group: wire.front_end for link, wire in front.wires.items()}
    for group in (MAIN, "fast"):
        front.worlds[group].broker.blocked = "low"
        ends[group].block("low")
    client.publish(1, "", b"x", exchange="both")
    assert client.read_all() == [methods.ConnectionBlocked("low")]
    ends[MAIN].block(None)
    front.turn()
    assert client.read_all() == []
    ends["fast"].block(None)
    front.turn()
    assert client.read_all() == [methods.ConnectionUnblocked()]


def test_a_close_waits_for_what_channels_were_asked(client: Client, front: Front, fast: World) -> None:
    client.ask(1, methods.ConfirmSelect())
    front.copy.slow = True
    client.publish(1, "there", b"x", properties=PERSISTENT)
    client.send(0, methods.ConnectionClose())
    assert client.read_all() == []
    front.copy.freshen()
    front.turn()
    assert client.read_all() == [methods.BasicAck(1, False), methods.ConnectionCloseOk()]
    assert fast.ready("there") == 1


def test_what_makes_no_sense_is_an_error_of_the_connection(client: Client) -> None:
    client.write(b"\x09\x00\x01\x00\x00\x00\x00\xce")
    assert client.read().reply_code == 501
    client.send(0, methods.ConnectionCloseOk())
    assert client.front_end.closed


def test_a_stream_that_has_grown_where_it_lives_is_consumed_through_any_front() -> None:
    front = Front("fast")
    client = front.open()
    for shards in (2, 8):
        arguments = {"x-queue-type": "stream", "x-group": "fast", "x-stream-shards": shards}
        declared = client.ask(1, methods.QueueDeclare(queue="s", durable=True, arguments=arguments))
        assert isinstance(declared, methods.QueueDeclareOk)
    later = front.open()
    later.ask(1, methods.BasicQos(prefetch_count=10))
    consumed = later.ask(1, methods.BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
    assert isinstance(consumed, methods.BasicConsumeOk)
