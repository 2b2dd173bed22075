"""What the scanner in use finds, whichever it is; `test_compiled_wire` compares the two."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fuzz.wire_streams import (
    FRAME_MAX,
    publish,
    publish_frames,
    scan,
    some_cuts,
    some_properties,
    some_stream,
    spoiled,
    told,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import (
    ChannelFault,
    CommandInvalid,
    FrameError,
    NotImplementedHere,
    SyntaxFault,
    UnexpectedFrame,
)
from tidemark.model.runs import (
    DIRECT_REPLY,
    HAS_COPIES,
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_USER_ID,
    IMMEDIATE,
    MANDATORY,
    PERSISTENT,
    PROPERTIES,
    PublishRun,
)
from tidemark.wire.amqp091.events import AckRun, Fault, Heartbeat, MethodFrame, Oversized
from tidemark.wire.amqp091.frames import BODY, HEADER, HEARTBEAT_FRAME, METHOD, encode_frame
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicQos,
    ChannelCloseOk,
    ChannelOpen,
    encode_method,
)
from tidemark.wire.amqp091.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
)
from tidemark.wire.amqp091.scanner import Scanner

BODY_MAX = 100_000


def scanner(**limits: int) -> Scanner:
    return Scanner(limits.pop("frame_max", FRAME_MAX), limits.pop("body_max", BODY_MAX), **limits)


def found(data: bytes, **limits: int) -> list[Any]:
    events, used = scanner(**limits).feed(memoryview(data))
    assert used == len(data)
    return [told(event) for event in events]


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return encode_method(channel, BasicAck(tag, multiple))


def row(key: bytes = b"q", body: bytes = b"") -> tuple[Any, ...]:
    return (b"", key, NO_PROPERTIES, body, 0, 0, -1)


# Runs ------------------------------------------------------------------------------------------


def test_consecutive_publishes_of_a_channel_are_one_run() -> None:
    data = publish(1, key="a", body=b"one") + publish(1, key="b") + publish(1, key="c", body=b"3")
    assert found(data) == [
        ("publishes", 1, [row(b"a", b"one"), row(b"b"), row(b"c", b"3")]),
    ]


def test_a_publish_that_is_whole_is_described_in_place() -> None:
    buffer = bytearray(publish(1, body=b"before"))
    events, _ = scanner().feed(memoryview(buffer))
    [run] = events
    assert isinstance(run, PublishRun)
    buffer[-7:-1] = b"after!"
    assert run.part(0, 6) == b"after!"


def test_channels_that_take_turns_keep_one_run_each_in_a_feed() -> None:
    data = publish(1, key="a") + publish(2, key="b") + publish(1, key="c") + publish(2, key="d")
    assert found(data) == [
        ("publishes", 1, [row(b"a"), row(b"c")]),
        ("publishes", 2, [row(b"b"), row(b"d")]),
    ]


def test_any_other_method_closes_the_run_of_its_channel_only() -> None:
    qos = encode_method(1, BasicQos())
    data = publish(1) + publish(2) + qos + publish(1) + publish(2) + ack(1) + publish(1)
    assert found(data) == [
        ("publishes", 1, [row()]),
        ("publishes", 2, [row(), row()]),
        MethodFrame(1, BasicQos()),
        ("publishes", 1, [row()]),
        AckRun(1, [(1, 1)]),
        ("publishes", 1, [row()]),
    ]


def test_single_acks_in_a_row_are_one_range_and_others_are_their_own() -> None:
    data = ack(1) + ack(2) + ack(3) + ack(5) + ack(9, True) + ack(10) + ack(11) + ack(0, True)
    assert found(data) == [AckRun(1, [(1, 3), (5, 5), (0, 9), (10, 11), (0, 0)])]


def test_acks_of_channels_that_take_turns_still_merge() -> None:
    data = ack(1) + ack(7, channel=2) + ack(2) + ack(8, channel=2) + ack(3)
    assert found(data) == [AckRun(1, [(1, 3)]), AckRun(2, [(7, 8)])]


def test_a_single_ack_of_tag_0_is_not_an_ack_of_everything() -> None:
    assert found(ack(1) + ack(0) + ack(2)) == [
        AckRun(1, [(1, 1)]),
        MethodFrame(1, BasicAck(0, False)),
        AckRun(1, [(2, 2)]),
    ]


def test_the_largest_tag_is_not_followed_by_a_smaller_one() -> None:
    assert found(ack(2**64 - 1) + ack(1)) == [AckRun(1, [(2**64 - 1, 2**64 - 1), (1, 1)])]


def test_heartbeats_are_found_between_other_frames() -> None:
    data = HEARTBEAT_FRAME + publish(1) + HEARTBEAT_FRAME + publish(1)
    assert found(data) == [Heartbeat(), ("publishes", 1, [row(), row()]), Heartbeat()]


# What a row says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "flags", "priority", "ttl_ms"),
    [
        (Properties(), 0, 0, -1),
        (Properties(delivery_mode=2), PERSISTENT, 0, -1),
        (Properties(delivery_mode=1, priority=7), 0, 7, -1),
        (Properties(expiration="60000"), HAS_EXPIRATION, 0, 60000),
        (Properties(expiration="0"), HAS_EXPIRATION, 0, 0),
        (Properties(expiration=""), HAS_EXPIRATION, 0, -2),
        (Properties(expiration="-5"), HAS_EXPIRATION, 0, -2),
        (Properties(expiration="1 s"), HAS_EXPIRATION, 0, -2),
        (Properties(expiration="9" * 19), HAS_EXPIRATION, 0, -2),
        (Properties(user_id="guest"), HAS_USER_ID, 0, -1),
        (Properties(reply_to="amq.rabbitmq.reply-to", expiration="5"), DIRECT_REPLY | HAS_EXPIRATION, 0, 5),
        (Properties(reply_to="amq.rabbitmq.reply-t0"), 0, 0, -1),
        (Properties(headers={}), HAS_HEADERS, 0, -1),
        (Properties(headers={"a": 1, "CC": ["x"]}), HAS_HEADERS | HAS_COPIES, 0, -1),
        (Properties(headers={"BCC": ["x"]}), HAS_HEADERS | HAS_COPIES, 0, -1),
        (Properties(headers={"a": {"CC": ["x"]}, "CCC": "CC"}), HAS_HEADERS, 0, -1),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2], ids=["in place", "gathered"])
def test_a_row_says_what_the_broker_needs_to_know_of_the_properties(
    properties: Properties, flags: int, priority: int, ttl_ms: int, pieces: int
) -> None:
    raw = encode_properties(properties)
    data = publish(1, body=b"ab", properties=raw, frame_max=8 + 2 // pieces)
    assert found(data) == [
        ("publishes", 1, [(b"", b"q", raw, b"ab", flags, priority, ttl_ms)]),
    ]


def test_mandatory_and_immediate_are_flags_of_the_row() -> None:
    data = publish(1, mandatory=True) + publish(1, immediate=True)
    [(_, _, rows)] = found(data)
    assert [flags for *_, flags, _, _ in rows] == [MANDATORY, IMMEDIATE]


# Content in pieces -----------------------------------------------------------------------------


def test_a_body_in_several_frames_is_a_run_of_one_between_the_others() -> None:
    large = b"x" * 10_000
    data = publish(1, key="a") + publish(1, body=large) + publish(1, key="b")
    assert found(data) == [
        ("publishes", 1, [row(b"a")]),
        ("publishes", 1, [row(body=large)]),
        ("publishes", 1, [row(b"b")]),
    ]


def test_a_gathered_run_stays_valid_when_the_read_buffer_is_used_again() -> None:
    under_test, buffer = scanner(), bytearray(100)
    found_events: list[Any] = []
    for frame in publish_frames(1, body=b"hello"):
        buffer[: len(frame)] = frame
        events, _ = under_test.feed(memoryview(buffer)[: len(frame)])
        found_events += events
        buffer[:] = bytes(100)
    assert [told(event) for event in found_events] == [("publishes", 1, [row(body=b"hello")])]


def test_content_of_several_channels_may_interleave_frame_by_frame() -> None:
    one, two = publish_frames(1, body=b"x" * 9000), publish_frames(2, body=b"y" * 9000)
    data = b"".join(a + b for a, b in zip(one, two, strict=True))
    assert found(data) == [
        ("publishes", 1, [row(body=b"x" * 9000)]),
        ("publishes", 2, [row(body=b"y" * 9000)]),
    ]


def test_the_buffer_grows_with_what_arrives_not_with_what_is_announced() -> None:
    under_test = scanner(body_max=1 << 40)
    method, header, body, *_ = publish_frames(1, body=b"x" * 9000)
    huge = bytearray(header)
    huge[11:19] = (1 << 40).to_bytes(8, "big")

    under_test.feed(memoryview(method + bytes(huge)))
    assert under_test.assembling_bytes == len("q") + len(NO_PROPERTIES)
    under_test.feed(memoryview(body))
    assert under_test.assembling_bytes == len("q") + len(NO_PROPERTIES) + FRAME_MAX - 8


def test_nothing_is_held_once_content_is_complete() -> None:
    under_test = scanner()
    under_test.feed(memoryview(publish(1, body=b"x" * 9000)))
    assert under_test.assembling_bytes == 0


def test_a_message_over_the_limit_is_reported_at_its_header_and_its_body_dropped() -> None:
    data = publish(1, body=b"x" * 9000) + encode_method(1, ChannelCloseOk()) + publish(1)
    assert found(data, body_max=8999) == [
        Oversized(1, 9000),
        MethodFrame(1, ChannelCloseOk()),
        ("publishes", 1, [row()]),
    ]
    assert found(publish(1, body=b"x" * 9000), body_max=9000) == [("publishes", 1, [row(body=b"x" * 9000)])]


@pytest.mark.parametrize("frames_before", [1, 2, 3])
def test_a_channel_that_we_closed_may_end_its_content_or_break_it_off(frames_before: int) -> None:
    frames = publish_frames(1, body=b"x" * 9000)
    before, after = b"".join(frames[:frames_before]), b"".join(frames[frames_before:])
    for rest in (after, b""):
        under_test = scanner()
        under_test.feed(memoryview(before))
        under_test.discard(1)
        assert under_test.assembling_bytes == 0

        close_ok = encode_method(1, ChannelCloseOk())
        events, _ = under_test.feed(memoryview(rest + close_ok + publish(1)))
        assert [told(event) for event in events] == [
            MethodFrame(1, ChannelCloseOk()),
            ("publishes", 1, [row()]),
        ]


def test_a_channel_without_content_is_as_strict_after_discard_as_before() -> None:
    under_test = scanner()
    under_test.discard(1)
    [fault], _ = under_test.feed(memoryview(encode_frame(BODY, 1, b"x")))
    assert isinstance(fault, Fault)


# Whatever way it is cut --------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(0, 2**32).map(Random))
def test_however_a_stream_is_cut_each_channel_says_the_same(dice: Random) -> None:
    stream = some_stream(dice)
    whole = scan(scanner(), stream, [])
    in_pieces = scan(scanner(), stream, some_cuts(dice, len(stream)))
    assert by_channel(in_pieces) == by_channel(whole)
    assert in_pieces[-1][1] <= len(stream)


def by_channel(answers: list[Any]) -> dict[int, list[Any]]:
    """The events of each channel with runs taken apart, since a cut may divide a run."""
    history: dict[int, list[Any]] = {}
    for event in (event for events, *_ in answers for event in events):
        match event:
            case ("publishes", channel, rows):
                history.setdefault(channel, []).extend(rows)
            case AckRun(channel, ranges):
                for first, last in ranges:
                    single = first or last + 1
                    tags = range(single, last + 1) or [("up to", last)]
                    history.setdefault(channel, []).extend(("ack", tag) for tag in tags)
            case Heartbeat():
                history.setdefault(0, []).append(event)
            case MethodFrame() | Oversized():
                history.setdefault(event.channel, []).append(event)
            case _:
                history.setdefault(-1, []).append(event)
    return history


@given(st.integers(0, 2**32).map(Random))
def test_the_properties_of_every_row_can_be_decoded(dice: Random) -> None:
    stream = b"".join(publish(1, properties=spoiled(dice, some_properties(dice))) for _ in range(3))
    events, _ = scanner().feed(stream)
    for run in events:
        if isinstance(run, PublishRun):
            for index in range(len(run)):
                decode_properties(run.part(index, PROPERTIES))


# What breaks the protocol --------------------------------------------------------------------------

METHOD_FRAME, HEADER_FRAME, BODY_FRAME = publish_frames(1, body=b"abc")
BAD_TABLE = encode_frame(HEADER, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00\x00\x00\x00\x03\x01kq")


def header_frame(class_id: int = 60, weight: int = 0, size: int = 3, rest: bytes = b"\0\0") -> bytes:
    start = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big")
    return encode_frame(HEADER, 1, start + rest)


@pytest.mark.parametrize(
    ("data", "error", "ids"),
    [
        pytest.param(b"AMQP\x00\x00\x09\x01", FrameError, (0, 0), id="a protocol header"),
        pytest.param(b"\x04\x00\x00\x00\x00\x00\x00", FrameError, (0, 0), id="unknown type"),
        pytest.param(b"\x01\x00\x01\x00\x00\x10\x00", FrameError, (0, 0), id="over frame_max"),
        pytest.param(METHOD_FRAME[:-1] + b"\xcf", FrameError, (0, 0), id="no end mark"),
        pytest.param(encode_frame(8, 0, b"x"), FrameError, (0, 0), id="heartbeat with payload"),
        pytest.param(encode_frame(8, 1, b""), CommandInvalid, (0, 0), id="heartbeat on channel 1"),
        pytest.param(HEADER_FRAME, UnexpectedFrame, (0, 0), id="header without publish"),
        pytest.param(BODY_FRAME, UnexpectedFrame, (0, 0), id="body without publish"),
        pytest.param(METHOD_FRAME + BODY_FRAME, UnexpectedFrame, (60, 40), id="body, no header"),
        pytest.param(METHOD_FRAME + HEADER_FRAME + HEADER_FRAME, UnexpectedFrame, (60, 40), id="two headers"),
        pytest.param(METHOD_FRAME + ack(1), UnexpectedFrame, (60, 80), id="method in content"),
        pytest.param(METHOD_FRAME + header_frame(class_id=50), UnexpectedFrame, (60, 40), id="other class"),
        pytest.param(METHOD_FRAME + header_frame(weight=1), UnexpectedFrame, (60, 40), id="with a weight"),
        pytest.param(
            METHOD_FRAME + encode_frame(HEADER, 1, b"\x00\x3c"), SyntaxFault, (60, 40), id="cut header"
        ),
        pytest.param(METHOD_FRAME + header_frame(rest=b""), SyntaxFault, (60, 40), id="no property flags"),
        pytest.param(METHOD_FRAME + BAD_TABLE, SyntaxFault, (60, 40), id="bad headers table"),
        pytest.param(
            METHOD_FRAME + HEADER_FRAME + encode_frame(BODY, 1, b"abcd"),
            FrameError,
            (60, 40),
            id="more body than announced",
        ),
        pytest.param(encode_frame(METHOD, 1, b"\x00\x3c"), SyntaxFault, (0, 0), id="no ids"),
        pytest.param(
            encode_frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x05a"), SyntaxFault, (60, 40), id="cut"
        ),
        pytest.param(
            encode_frame(METHOD, 1, b"\x00\x3c\x00\x50" + bytes(10)), SyntaxFault, (60, 80), id="long ack"
        ),
        pytest.param(
            encode_frame(METHOD, 1, b"\x00\x3c\x00\x63"), NotImplementedHere, (60, 99), id="no method"
        ),
        pytest.param(publish(0), CommandInvalid, (60, 40), id="publish on channel 0"),
    ],
)
def test_what_breaks_the_protocol_is_the_last_event_and_nothing_follows(
    data: bytes, error: type[Exception], ids: tuple[int, int]
) -> None:
    under_test = scanner()
    before = publish(2) + encode_method(1, ChannelOpen())
    events, used = under_test.feed(memoryview(before + data + publish(2)))

    *good, fault = events
    assert [told(event) for event in good] == [
        ("publishes", 2, [row()]),
        MethodFrame(1, ChannelOpen()),
    ]
    assert isinstance(fault, Fault)
    assert isinstance(fault.error, error)
    assert (fault.class_id, fault.method_id) == ids
    assert used == len(before + data + publish(2))
    assert under_test.feed(memoryview(publish(2))) == ([], len(publish(2)))
    assert under_test.assembling_bytes == 0


def test_a_frame_that_is_refused_is_not_waited_for() -> None:
    assert isinstance(scanner().feed(b"\x01\x00\x01\x7f\xff\xff\xff")[0][0], Fault)


def test_a_channel_over_the_negotiated_number_is_refused() -> None:
    [fault], _ = scanner(channel_max=2).feed(publish(3))
    assert isinstance(fault, Fault)
    assert isinstance(fault.error, ChannelFault)


def test_limits_may_change_between_feeds() -> None:
    under_test = scanner(frame_max=4096)
    under_test.frame_max = 20_000
    data = publish(1, body=b"x" * 9000, frame_max=20_000)
    events, _ = under_test.feed(data)
    assert [told(event) for event in events] == [("publishes", 1, [row(body=b"x" * 9000)])]


def test_a_fault_does_not_keep_the_read_buffer() -> None:
    buffer = bytearray(METHOD_FRAME + BAD_TABLE)
    events, _ = scanner().feed(memoryview(buffer))
    assert isinstance(events[-1], Fault)
    buffer.clear()  # fails while anybody holds a view
