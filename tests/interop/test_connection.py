"""Opening, tuning, keeping alive and closing a connection."""

from __future__ import annotations

import time

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Connect, connection_refused
from helpers.broker import Address
from helpers.raw import Closed, RawConnection, long, longstr, octet, short, shortstr
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

# Header and start --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [b"HTTP/1.1", b"AMQP\x00\x02\x00\x00", b"AMQP\x01\x01\x00\x0a", b"\x00" * 8],
    ids=["http", "version-2", "amqp-0-10", "zeros"],
)
def test_a_wrong_protocol_header_is_answered_with_ours_and_the_socket_closed(
    raw: RawConnection, header: bytes
) -> None:
    raw.send(header)
    assert raw.read_bytes(8) == amqp.PROTOCOL_HEADER
    assert raw.ended()


def test_a_header_that_comes_byte_by_byte_is_understood(raw: RawConnection) -> None:
    for byte in amqp.PROTOCOL_HEADER:
        raw.send(bytes([byte]))
        time.sleep(0.005)
    raw.expect(amqp.START)


def test_the_server_says_what_it_can_do(raw: RawConnection) -> None:
    properties = raw.start()

    assert {"PLAIN", "AMQPLAIN"} <= set(properties["mechanisms"])
    assert {"product", "version", "capabilities"} <= set(properties)
    offered = {name for name, on in properties["capabilities"].items() if on}
    assert offered >= {
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    }


# Login -------------------------------------------------------------------------------------


def test_a_wrong_password_is_told_as_403_to_a_client_that_can_hear_it(raw: RawConnection) -> None:
    raw.start()
    raw.start_ok(response=b"\0guest\0wrong", capabilities=("authentication_failure_close",))

    closed = raw.closing()
    assert closed.code == 403
    assert "ACCESS_REFUSED" in closed.text


def test_a_wrong_password_ends_the_socket_of_a_client_that_cannot_hear_403(
    raw: RawConnection,
) -> None:
    raw.start()
    raw.start_ok(response=b"\0guest\0wrong")

    with pytest.raises(amqp.ConnectionEnded):
        raw.read_frame()


def test_an_unknown_user_is_refused_like_a_wrong_password(connect: Connect) -> None:
    with pytest.raises(ProbableAuthenticationError, match="403"):
        connect(user="nobody-knows-me", password="guest")


def test_amqplain_logs_in(raw: RawConnection) -> None:
    raw.start()
    response = shortstr("LOGIN") + b"S" + longstr("guest")
    response += shortstr("PASSWORD") + b"S" + longstr("guest")
    raw.start_ok(mechanism="AMQPLAIN", response=response)
    raw.expect(amqp.TUNE)


def test_a_mechanism_that_was_not_offered_ends_the_connection(raw: RawConnection) -> None:
    raw.start()
    raw.start_ok(mechanism="SOMETHING-ELSE")
    closed = raw.last_words()
    assert closed is None or closed.code in (403, 503, 530, 540)


@pytest.mark.parametrize("response", [b"guest", b"\0guest", b"\0\0"])
def test_a_malformed_plain_response_is_refused(raw: RawConnection, response: bytes) -> None:
    raw.start()
    raw.start_ok(response=response, capabilities=("authentication_failure_close",))
    closed = raw.last_words()
    assert closed is None or closed.code in (403, 501, 502)


def test_an_unknown_virtual_host_is_530(raw: RawConnection) -> None:
    raw.start()
    raw.start_ok()
    raw.expect(amqp.TUNE)
    raw.tune_ok()
    raw.open_vhost("no-such-host")

    closed = raw.closing()
    assert closed.code == 530
    assert closed.method == amqp.OPEN
    assert "no-such-host" in closed.text


def test_pika_tells_an_unknown_virtual_host_apart(connect: Connect) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        connect(virtual_host="no-such-host")


# Tuning ------------------------------------------------------------------------------------


def test_the_server_offers_frame_channel_and_heartbeat_limits(raw: RawConnection) -> None:
    raw.start()
    raw.start_ok()

    arguments = raw.expect(amqp.TUNE).arguments
    assert arguments.short() == 2047
    assert arguments.long() == 131072
    assert arguments.short() == 60


@pytest.mark.parametrize(
    ("channel_max", "frame_max"),
    [(2047, 4095), (2047, 1048576), (65535, 131072)],
    ids=["frames-too-small", "frames-over-the-offer", "channels-over-the-offer"],
)
def test_tuning_outside_the_offer_ends_the_connection(
    raw: RawConnection, channel_max: int, frame_max: int
) -> None:
    raw.start()
    raw.start_ok()
    raw.expect(amqp.TUNE)
    raw.tune_ok(channel_max=channel_max, frame_max=frame_max)

    closed = raw.last_words()
    assert closed is None or closed.code == 530


def test_the_smallest_frame_size_is_4096(raw: RawConnection, name: str) -> None:
    raw.handshake(frame_max=4096)
    raw.declare_queue(1, name, bits=4)
    body = bytes(range(256)) * 64
    raw.send(amqp.encode_publish(1, "", name, body, frame_max=4096))
    raw.get(1, name)

    raw.expect(amqp.GET_OK)
    assert raw.read_frame().kind == amqp.HEADER
    received = b""
    while len(received) < len(body):
        frame = raw.read_frame()
        assert len(frame.payload) <= 4096 - 8
        received += frame.payload
    assert received == body


def test_a_frame_over_the_agreed_size_is_501(raw: RawConnection) -> None:
    raw.handshake(frame_max=4096)
    raw.send(amqp.encode_publish(1, "", "nowhere", b"x" * 5000, frame_max=8192))
    assert raw.closing().code == 501


def test_a_frame_that_does_not_end_with_the_end_octet_is_501(raw: RawConnection) -> None:
    raw.handshake()
    raw.send(b"\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x0a\x00")
    assert raw.closing().code == 501


def test_a_channel_over_the_agreed_number_is_refused(raw: RawConnection) -> None:
    raw.handshake(channel_max=2, channels=2)
    raw.send_method(3, amqp.CHANNEL_OPEN, shortstr(""))
    assert raw.closing().code in (504, 530)


# Heartbeats --------------------------------------------------------------------------------


def test_the_server_sends_heartbeats_and_closes_a_silent_peer(raw: RawConnection) -> None:
    raw.handshake(heartbeat=1)
    begin = time.monotonic()

    frame = raw.read_frame(timeout_s=3)
    assert (frame.kind, frame.channel, frame.payload) == (amqp.HEARTBEAT, 0, b"")
    assert raw.ended(timeout_s=8)
    assert 1.0 < time.monotonic() - begin < 8


def test_a_peer_that_sends_only_heartbeats_is_kept(raw: RawConnection) -> None:
    raw.handshake(heartbeat=1)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        raw.send_frame(amqp.HEARTBEAT, 0, b"")
        time.sleep(0.4)
    raw.open_channel(2)


def test_without_heartbeats_nothing_is_sent_to_an_idle_peer(raw: RawConnection) -> None:
    raw.handshake(heartbeat=0)
    with pytest.raises(TimeoutError):
        raw.read_frame(timeout_s=2)


# Wrong frames ------------------------------------------------------------------------------


def test_a_channel_method_before_channel_open_is_504(raw: RawConnection) -> None:
    raw.handshake(channels=0)
    raw.send_method(1, amqp.QOS, long(0) + short(1) + octet(0))

    closed = raw.closing()
    assert closed.code == 504
    assert closed.method in ((0, 0), amqp.QOS)


def test_a_channel_class_on_channel_0_is_an_error_of_the_connection(raw: RawConnection) -> None:
    raw.handshake(channels=0)
    raw.send_method(0, amqp.CHANNEL_OPEN, shortstr(""))
    closed = raw.last_words()
    assert closed is None or closed.code in (503, 504), closed


def test_a_connection_method_on_a_channel_is_an_error_of_the_connection(
    raw: RawConnection,
) -> None:
    raw.handshake()
    raw.send_method(1, amqp.TUNE_OK, short(1) + long(4096) + short(0))
    assert raw.closing().code in (503, 504)


def test_a_content_header_without_a_publish_is_505(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_frame(amqp.HEADER, 1, short(60) + short(0) + amqp.longlong(0) + short(0))
    assert raw.closing().code == 505


def test_a_body_without_a_header_is_505(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_frame(amqp.BODY, 1, b"orphan")
    assert raw.closing().code == 505


def test_a_method_in_the_middle_of_content_is_505(raw: RawConnection) -> None:
    raw.handshake()
    publish = short(0) + shortstr("") + shortstr("nowhere") + octet(0)
    raw.send_method(1, amqp.PUBLISH, publish)
    raw.send_method(1, amqp.PUBLISH, publish)

    closed = raw.closing()
    assert closed.code == 505
    assert closed.method == amqp.PUBLISH


def test_a_header_for_another_class_than_the_method_is_505(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.PUBLISH, short(0) + shortstr("") + shortstr("x") + octet(0))
    raw.send_frame(amqp.HEADER, 1, short(50) + short(0) + amqp.longlong(0) + short(0))
    assert raw.closing().code == 505


def test_an_unknown_method_is_refused(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, (60, 200))
    assert raw.closing().code in (501, 503, 540)


def test_an_unknown_class_is_refused(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, (99, 10))
    closed = raw.last_words()
    assert closed is None or closed.code in (501, 503, 540), closed


def test_an_unknown_kind_of_frame_is_refused(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_frame(77, 1, b"what")
    assert raw.closing().code in (501, 505)


def test_a_method_cut_short_is_refused(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.QOS, b"\x00\x00")
    assert raw.closing().code in (501, 502, 541)


def test_garbage_on_one_connection_leaves_the_others_alone(
    broker: Address, connection: pika.BlockingConnection, raw: RawConnection
) -> None:
    raw.handshake()
    raw.send(b"\xff" * 4096)
    closed = raw.last_words()
    assert closed is None or closed.code == 501

    assert connection.channel().is_open


# Closing -----------------------------------------------------------------------------------


def test_a_clean_close_is_answered(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(0, amqp.CLOSE, short(200) + shortstr("bye") + short(0) + short(0))
    raw.expect(amqp.CLOSE_OK)


def test_the_socket_ends_after_our_close_ok(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_frame(amqp.BODY, 1, b"orphan")
    raw.closing()
    raw.send_method(0, amqp.CLOSE_OK)
    assert raw.ended()


def test_a_channel_error_names_the_method_that_caused_it(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.QUEUE_DECLARE, short(0) + shortstr("no-such-queue") + octet(1) + amqp.EMPTY_TABLE)
    closed = raw.channel_closing()
    assert closed == Closed(404, closed.text, amqp.QUEUE_DECLARE)
    assert closed.text == "NOT_FOUND - no queue 'no-such-queue' in vhost '/'"


def test_a_connection_error_names_the_method_that_caused_it(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.consume(1, name, "twice")
    raw.send_method(
        1, amqp.CONSUME, short(0) + shortstr(name) + shortstr("twice") + octet(0) + amqp.EMPTY_TABLE
    )
    closed = raw.closing()
    assert (closed.code, closed.method) == (530, amqp.CONSUME)


def test_a_new_secret_is_accepted(connection: pika.BlockingConnection, raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(0, amqp.UPDATE_SECRET, longstr("guest") + shortstr("renewed"))
    raw.expect(amqp.UPDATE_SECRET_OK)
    raw.open_channel(2)


def test_a_dropped_socket_gives_back_what_its_consumers_held(
    broker: Address, connect: Connect, name: str
) -> None:
    channel = connect().channel()
    channel.queue_declare(name, auto_delete=False)
    channel.basic_publish("", name, b"held")
    with RawConnection(broker) as other:
        other.handshake()
        other.consume(1, name)
        other.expect_content(amqp.DELIVER)

    deadline = time.monotonic() + 5
    method = None
    while method is None and time.monotonic() < deadline:
        method, _, body = channel.basic_get(name, auto_ack=True)
    assert method is not None
    assert method.redelivered
    assert body == b"held"
    channel.queue_delete(name)


def test_a_connection_error_reaches_pika_with_its_code(connect: Connect, name: str) -> None:
    channel = connect().channel()
    channel.queue_declare(name, exclusive=True)
    with connection_refused(540):
        channel._impl._send_method(
            pika.spec.Basic.Publish(routing_key=name, immediate=True), (pika.BasicProperties(), b"")
        )
        channel.exchange_declare("amq.direct", passive=True)
