"""Publishing: returns, copies, identity of the sender, replies."""

from __future__ import annotations

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import (
    Connect,
    Inbox,
    channel_refused,
    connection_refused,
    drain,
    eventually,
    get_one,
    put,
    sync,
)
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

REPLY_TO = "amq.rabbitmq.reply-to"

# Mandatory and immediate ----------------------------------------------------------------------


def test_a_mandatory_message_without_a_queue_comes_back_as_312(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.publish(1, "amq.direct", name, b"stray", bits=1)

    frame, _, body = raw.expect_content(amqp.RETURN)
    arguments = frame.arguments
    assert (arguments.short(), arguments.shortstr()) == (312, "NO_ROUTE")
    assert (arguments.shortstr(), arguments.shortstr()) == ("amq.direct", name)
    assert body == b"stray"


def test_a_returned_message_carries_its_properties(raw: RawConnection, name: str) -> None:
    raw.handshake()
    properties = b"\x80\x00" + amqp.shortstr("text/plain")
    raw.publish(1, "", name, b"", properties, bits=1)
    assert raw.expect_content(amqp.RETURN)[1:] == (properties, b"")


def test_a_message_without_a_queue_is_dropped_when_it_is_not_mandatory(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.publish(1, "", name, b"stray")
    raw.declare_queue(1, name, bits=4)
    raw.get(1, name)
    raw.expect(amqp.GET_EMPTY)


def test_a_mandatory_message_with_a_queue_does_not_come_back(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"fine", bits=1)
    raw.get(1, name)
    assert raw.expect_content(amqp.GET_OK)[2] == b"fine"


def test_a_return_comes_before_the_confirm_of_the_same_message(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CONFIRM_SELECT, b"\0")
    raw.expect(amqp.CONFIRM_SELECT_OK)
    raw.publish(1, "", name, b"stray", bits=1)
    raw.expect_content(amqp.RETURN)
    assert raw.expect(amqp.ACK).arguments.longlong() == 1


def test_pika_reports_an_unroutable_message(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", name, b"stray", mandatory=True)


def test_immediate_is_not_implemented(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"now", bits=2)
    closed = raw.closing()
    assert (closed.code, closed.method) == (540, amqp.PUBLISH)


def test_publishing_to_a_missing_exchange_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_refused(404):
        channel.basic_publish(name, "k", b"x")
        sync(channel)


# Copies -----------------------------------------------------------------------------------------


def test_cc_and_bcc_send_copies_and_only_bcc_is_removed(channel: BlockingChannel, name: str) -> None:
    queues = [f"{name}-{role}" for role in ("to", "cc", "bcc")]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
    put(channel, queues[0], b"x", headers={"CC": [queues[1]], "BCC": [queues[2]], "mine": "kept"})

    for queue in queues:
        method, properties, body = get_one(channel, queue)
        assert (method.routing_key, body) == (queues[0], b"x")
        assert properties.headers == {"CC": [queues[1]], "mine": "kept"}


def test_a_queue_named_by_key_and_cc_gets_one_copy(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"once", headers={"CC": [queue], "BCC": [queue, queue]})
    assert drain(channel, queue) == [b"once"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_that_are_no_list_are_406(channel: BlockingChannel, queue: str, header: str) -> None:
    with channel_refused(406):
        put(channel, queue, b"x", headers={header: queue})
        sync(channel)


def test_copies_work_through_a_topic_exchange(channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.copied.*")
    channel.basic_publish(
        "amq.topic", f"{queue}.other", b"x",
        pika.BasicProperties(headers={"CC": [f"{queue}.copied.here"]}),
    )  # fmt: skip
    assert drain(channel, queue) == [b"x"]


# Who sent it -----------------------------------------------------------------------------------


def test_the_user_id_of_the_login_is_kept(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"x", user_id="guest")
    assert get_one(channel, queue)[1].user_id == "guest"


def test_another_user_id_is_406(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(406):
        put(channel, queue, b"x", user_id="somebody-else")
        sync(channel)


# Direct reply-to -------------------------------------------------------------------------------


def test_direct_reply_to_brings_the_answer_without_a_queue(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    replies = Inbox(channel, REPLY_TO, auto_ack=True)
    put(channel, queue, b"question", reply_to=REPLY_TO, correlation_id="7")
    server = connect().channel()
    _, question, _ = get_one(channel, queue)
    assert question.reply_to.startswith(f"{REPLY_TO}.")
    server.basic_publish("", question.reply_to, b"answer", pika.BasicProperties(correlation_id="7"))

    [answer] = replies.wait(1)
    assert (answer.body, answer.properties.correlation_id) == (b"answer", "7")
    assert answer.method.exchange == ""


def test_direct_reply_to_needs_no_ack_mode(channel: BlockingChannel) -> None:
    with channel_refused(406):
        channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=False)


def test_asking_for_a_direct_reply_without_consuming_it_is_406(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(406):
        put(channel, queue, b"question", reply_to=REPLY_TO)
        sync(channel)


def test_consuming_direct_replies_twice_on_a_channel_is_406(channel: BlockingChannel) -> None:
    Inbox(channel, REPLY_TO, auto_ack=True)
    with channel_refused(406):
        Inbox(channel, REPLY_TO, auto_ack=True)


def test_a_server_can_ask_whether_the_one_who_asked_is_still_there(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    asker = connect()
    asking = asker.channel()
    Inbox(asking, REPLY_TO, auto_ack=True)
    put(asking, queue, b"question", reply_to=REPLY_TO)
    _, question, _ = get_one(channel, queue)
    assert channel.queue_declare(question.reply_to, passive=True).method.queue == question.reply_to

    asker.close()
    with channel_refused(404):
        for _ in range(100):
            channel.queue_declare(question.reply_to, passive=True)


def test_a_direct_reply_to_nobody_is_unroutable(
    channel: BlockingChannel, connect: Connect, queue: str
) -> None:
    asker = connect()
    asking = asker.channel()
    Inbox(asking, REPLY_TO, auto_ack=True)
    put(asking, queue, b"question", reply_to=REPLY_TO)
    _, question, _ = get_one(channel, queue)
    asker.close()
    channel.confirm_delivery()

    def comes_back() -> bool:
        try:
            channel.basic_publish("", question.reply_to, b"late", mandatory=True)
        except UnroutableError:
            return True
        return False

    eventually(comes_back)


# Misuse ----------------------------------------------------------------------------------------


def test_a_header_with_a_bad_table_is_an_error_of_the_connection(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"", b"\x20\x00" + amqp.longstr(b"\x01a?nonsense"))
    closed = raw.last_words()
    assert closed is None or closed.code in (501, 502, 541)


def test_a_made_up_reply_to_name_is_unroutable_or_refused(
    raw: RawConnection, channel: BlockingChannel
) -> None:
    raw.handshake()
    raw.publish(1, "", f"{REPLY_TO}.made.up", b"x", bits=1)
    assert raw.read_frame().method in (amqp.RETURN, amqp.CHANNEL_CLOSE, amqp.CLOSE)
    sync(channel)


def test_a_publish_on_the_default_exchange_with_an_empty_key_is_dropped(
    channel: BlockingChannel,
) -> None:
    channel.basic_publish("", "", b"nowhere")
    sync(channel)


def test_the_connection_survives_a_thousand_unroutable_mandatory_messages(
    channel: BlockingChannel, name: str
) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _ch, _method, _props, body: returned.append(body))
    for number in range(1000):
        channel.basic_publish("", name, b"%d" % number, mandatory=True)
    sync(channel)
    channel.connection.process_data_events(0.1)
    assert returned == [b"%d" % number for number in range(1000)]


def test_a_connection_error_is_told_once_for_all_its_channels(connect: Connect, queue: str) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    with connection_refused(503):
        first.exchange_declare("x-" + queue, "no-such-type")
    assert second.is_closed
