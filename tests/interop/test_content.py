"""Bodies of every size and properties byte for byte."""

from __future__ import annotations

import hashlib
import random
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Connect, Inbox, drain_messages, get_one, put
from helpers.raw import RawConnection, long, longlong, longstr, octet, short, shortstr, table
from pika.adapters.blocking_connection import BlockingChannel

MIB = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 131063, 131064, 131065, 262128, MIB])
def test_a_body_of_any_size_comes_back_as_it_went(channel: BlockingChannel, queue: str, size: int) -> None:
    body = random.Random(size).randbytes(size)
    put(channel, queue, body)
    assert get_one(channel, queue)[2] == body


def test_a_body_of_32_mib_comes_back_as_it_went(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, exclusive=True)
    body = random.Random(1).randbytes(32 * MIB)
    channel.confirm_delivery()
    put(channel, name, body, delivery_mode=2)
    received = get_one(channel, name)[2]
    assert len(received) == len(body)
    assert hashlib.sha256(received).digest() == hashlib.sha256(body).digest()


def test_empty_bodies_and_full_ones_may_alternate(channel: BlockingChannel, queue: str) -> None:
    bodies = [b"", b"x", b"", b"", bytes(200_000), b""]
    inbox = Inbox(channel, queue, auto_ack=True)
    put(channel, queue, *bodies)
    inbox.wait(len(bodies))
    assert inbox.bodies == bodies


def test_a_body_in_many_small_frames_is_one_message(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    body = bytes(range(256)) * 4
    raw.send_method(1, amqp.PUBLISH, short(0) + shortstr("") + shortstr(name) + octet(0))
    raw.send_frame(amqp.HEADER, 1, short(60) + short(0) + longlong(len(body)) + short(0))
    for at in range(0, len(body), 3):
        raw.send_frame(amqp.BODY, 1, body[at : at + 3])
    raw.get(1, name)
    assert raw.expect_content(amqp.GET_OK)[2] == body


def test_contents_on_two_channels_may_interleave(raw: RawConnection, name: str) -> None:
    raw.handshake(channels=2)
    raw.declare_queue(1, name, bits=4)
    for channel in (1, 2):
        raw.send_method(channel, amqp.PUBLISH, short(0) + b"\0" + shortstr(name) + b"\0")
    for channel in (2, 1):
        raw.send_frame(amqp.HEADER, channel, short(60) + short(0) + longlong(4) + short(0))
    for piece in (b"ab", b"cd"):
        for channel in (1, 2):
            raw.send_frame(amqp.BODY, channel, piece)
    bodies = []
    for channel in (1, 2):
        raw.send_method(channel, amqp.TX_SELECT)  # a round trip: both are in the queue after it
        raw.expect(amqp.TX_SELECT_OK)
    for _ in range(2):
        raw.get(1, name)
        bodies.append(raw.expect_content(amqp.GET_OK)[2])
    assert bodies == [b"abcd", b"abcd"]


def test_a_body_longer_than_its_header_says_is_refused(
    tidemark_only: None, raw: RawConnection, name: str
) -> None:
    raw.handshake()
    raw.send_method(1, amqp.PUBLISH, short(0) + shortstr("") + shortstr(name) + octet(0))
    raw.send_frame(amqp.HEADER, 1, short(60) + short(0) + longlong(4) + short(0))
    raw.send_frame(amqp.BODY, 1, b"abcde")
    closed = raw.last_words()
    assert closed is None or closed.code in (501, 505, 541)


# Properties -----------------------------------------------------------------------------------

EVERY_KIND = table(
    {
        "bool": b"t\x01",
        "int8": b"b" + struct.pack(">b", -7),
        "uint8": b"B" + octet(200),
        "int16": b"s" + struct.pack(">h", -300),
        "uint16": b"u" + short(60000),
        "int32": b"I" + struct.pack(">i", -70000),
        "uint32": b"i" + long(4_000_000_000),
        "int64": b"l" + struct.pack(">q", -(2**40)),
        "float": b"f" + struct.pack(">f", 1.5),
        "double": b"d" + struct.pack(">d", -2.25),
        "decimal": b"D" + octet(2) + struct.pack(">i", 12345),
        "string": b"S" + longstr("text: žluť 交換 🌊"),
        "not-utf8": b"S" + longstr(b"\xff\x00\xfe"),
        "bytes": b"x" + longstr(b"\x00\x01\x02"),
        "time": b"T" + longlong(1_700_000_000),
        "nothing": b"V",
        "table": b"F" + table({"inner": b"F" + table({"deep": b"I" + long(1)}), "empty": b"F" + longstr(b"")}),
        "array": b"A" + longstr(b"I" + long(1) + b"S" + longstr("two") + b"A" + longstr(b"") + b"V"),
        "": b"S" + longstr("an empty name"),
    }
)  # fmt: skip

ALL_FOURTEEN = (
    b"\xff\xfc"
    + shortstr("text/plain")
    + shortstr("utf-8")
    + EVERY_KIND
    + octet(2)
    + octet(9)
    + shortstr("correlation")
    + shortstr("reply-here")
    + shortstr("60000")
    + shortstr("message-1")
    + longlong(1_700_000_001)
    + shortstr("a.type")
    + shortstr("guest")
    + shortstr("an-app")
    + shortstr("cluster")
)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x00\x00",
        b"\x20\x00" + EVERY_KIND,
        b"\x20\x00" + longstr(b""),
        ALL_FOURTEEN,
        b"\x80\x00" + shortstr("x" * 255),
        b"\x00\x40" + longlong(2**63 - 1),
    ],
    ids=["none", "headers", "empty-table", "all", "longest-string", "far-time"],
)
@pytest.mark.parametrize("way", ["get", "consume"])
def test_properties_come_back_byte_for_byte(
    raw: RawConnection, name: str, properties: bytes, way: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"body", properties)
    if way == "get":
        raw.get(1, name)
        _, received, body = raw.expect_content(amqp.GET_OK)
    else:
        raw.consume(1, name, bits=2)
        _, received, body = raw.expect_content(amqp.DELIVER)
    assert received == properties
    assert body == b"body"


def test_pika_gets_every_property_as_it_gave_it(channel: BlockingChannel, queue: str) -> None:
    headers: dict[str, Any] = {
        "text": "žluť",
        "number": -5,
        "large": 2**40,
        "yes": True,
        "none": None,
        "price": Decimal("12.50"),
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "list": [1, "two", [3, {"four": 4}]],
        "table": {"inner": {"deep": "value"}},
    }
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="somewhere",
        expiration="600000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="order",
        user_id="guest",
        app_id="shop",
        cluster_id="c",
    )
    channel.basic_publish("", queue, b"x", sent)
    received = get_one(channel, queue)[1]
    received_headers, sent.headers = received.headers, None
    received.headers = None
    assert received == sent
    when = received_headers.pop("when")
    assert when.replace(tzinfo=UTC) == headers.pop("when")
    assert received_headers == headers


def test_a_nested_header_comes_back(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    nested = longstr(b"")
    for _ in range(30):
        nested = table({"n": b"F" + nested})
    raw.publish(1, "", name, b"", b"\x20\x00" + nested)
    raw.get(1, name)
    assert raw.expect_content(amqp.GET_OK)[1] == b"\x20\x00" + nested


def test_a_header_nested_ten_thousand_deep_is_refused_and_harms_nobody(
    tidemark_only: None, raw: RawConnection, channel: BlockingChannel, name: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    nested = longstr(b"")
    for _ in range(10_000):
        nested = longstr(b"\x01nF" + nested)
    raw.publish(1, "", name, b"", b"\x20\x00" + nested)
    assert raw.closing().code in (501, 502)
    put(channel, name, b"fine")


def test_routing_keys_may_be_any_utf8(channel: BlockingChannel, queue: str) -> None:
    for key in ("", "with space", "žluť.交換.🌊", "a" * 255):
        channel.queue_bind(queue, "amq.direct", queue[:9] + key[:240])
        channel.basic_publish("amq.direct", queue[:9] + key[:240], key.encode())
    got = drain_messages(channel, queue)
    assert [body.decode() for _, _, body in got] == ["", "with space", "žluť.交換.🌊", "a" * 255]
    assert [method.routing_key for method, _, _ in got][2] == queue[:9] + "žluť.交換.🌊"
