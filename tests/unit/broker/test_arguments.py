"""Queue arguments: what they mean, what is refused, what counts as the same."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.broker.arguments import (
    Overflow,
    QueuePolicy,
    StreamReading,
    check_equivalent,
    check_queue_arguments,
    check_stream_reading,
    interval_ms,
)
from tidemark.errors import PreconditionFailed
from tidemark.model.values import Int8, Int16, Int64, Timestamp, UInt32


def check(durable: bool = True, exclusive: bool = False, **arguments: Any) -> QueuePolicy:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return check_queue_arguments("q", "/", named, durable, exclusive)


def test_no_arguments_are_no_rules() -> None:
    assert check() == QueuePolicy()


def test_every_argument_becomes_a_rule() -> None:
    assert check(
        x_queue_type="quorum",
        x_message_ttl=Int64(5),
        x_expires=UInt32(6),
        x_max_length=Int8(7),
        x_max_length_bytes=8,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="dlx",
        x_dead_letter_routing_key="key",
        x_max_priority=Int16(9),
        x_single_active_consumer=True,
        x_delivery_limit=10,
    ) == QueuePolicy(
        kind="quorum",
        message_ttl_ms=5,
        expires_ms=6,
        length_max=7,
        length_bytes_max=8,
        overflow=Overflow.REJECT_PUBLISH_DLX,
        dead_letter_exchange="dlx",
        dead_letter_key="key",
        priorities=9,
        single_active_consumer=True,
        delivery_limit=10,
    )


def test_arguments_without_effect_here_and_unknown_ones_are_ignored() -> None:
    ignored = {"x_queue_mode": "lazy", "x_queue_version": 2, "x_queue_leader_locator": "balanced"}
    assert check(**ignored, x_dead_letter_strategy="at-least-once", x_nobody="knows", note=1) == QueuePolicy()


REFUSED = [
    ("x_message_ttl", -1, "{value_negative,-1}"),
    ("x_message_ttl", "soon", '"expected integer, got longstr"'),
    ("x_message_ttl", True, '"expected integer, got bool"'),
    ("x_message_ttl", 1.5, '"expected integer, got double"'),
    ("x_message_ttl", Timestamp(5), '"expected integer, got timestamp"'),
    ("x_message_ttl", 1 << 32, "{value_too_large,4294967296}"),
    ("x_expires", 0, "{value_zero,0}"),
    ("x_expires", -5, "{value_negative,-5}"),
    ("x_expires", "never", '"expected integer, got longstr"'),
    ("x_max_length", -1, "{value_negative,-1}"),
    ("x_max_length", "many", '"expected integer, got longstr"'),
    ("x_max_length_bytes", -1, "{value_negative,-1}"),
    ("x_overflow", "burst", "invalid_overflow"),
    ("x_overflow", 1, "{unacceptable_type,signedint}"),
    ("x_max_priority", -1, "{value_negative,-1}"),
    ("x_max_priority", 256, "{max_value_exceeded,256}"),
    ("x_max_priority", "high", '"expected integer, got longstr"'),
    ("x_dead_letter_exchange", 7, "{unacceptable_type,signedint}"),
    ("x_dead_letter_routing_key", "k", "routing_key_but_no_dlx_defined"),
    ("x_dead_letter_strategy", "sometimes", "invalid_dlx_strategy"),
    ("x_single_active_consumer", "yes", "{unacceptable_type,longstr}"),
    ("x_queue_mode", "fast", "invalid_queue_mode"),
    ("x_delivery_limit", -1, "{value_negative,-1}"),
    ("x_queue_type", "no-such-type", "\"unsupported queue type 'no-such-type'\""),
    ("x_queue_type", 3, "{unacceptable_type,signedint}"),
]


@pytest.mark.parametrize(("argument", "value", "problem"), REFUSED)
def test_a_bad_value_is_refused_with_its_name_and_problem(argument: str, value: Any, problem: str) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        check(**{argument: value})
    name = argument.replace("_", "-")
    assert str(refusal.value) == f"invalid arg '{name}' for queue 'q' in vhost '/': {problem}"


@pytest.mark.parametrize(
    ("flags", "property_"),
    [({"durable": False}, "non-durable"), ({"exclusive": True}, "exclusive-owner")],
)
def test_a_quorum_queue_must_be_durable_and_shared(flags: dict[str, bool], property_: str) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"invalid property '{property_}' for queue 'q' in vhost '/'"
    ):
        check(**flags, x_queue_type="quorum")


SAME = [
    ({}, {}),
    ({"x-message-ttl": 5}, {"x-message-ttl": Int64(5)}),
    ({"x-max-length": Int8(5)}, {"x-max-length": UInt32(5)}),
    ({}, {"x-queue-type": "classic"}),
    ({"note": 1}, {"note": 2}),
    ({}, {"x-queue-leader-locator": "balanced"}),
]


@pytest.mark.parametrize(("current", "received"), SAME)
def test_equal_values_of_any_width_are_the_same_queue(current: Any, received: Any) -> None:
    check_equivalent("q", "/", current, received)
    check_equivalent("q", "/", received, current)


OTHER = [
    (
        {},
        {"x-message-ttl": 5},
        "x-message-ttl",
        "received the value '5' of type 'signedint' but current is none",
    ),
    (
        {"x-max-length": Int64(10)},
        {},
        "x-max-length",
        "received none but current is the value '10' of type 'long'",
    ),
    (
        {"x-single-active-consumer": True},
        {"x-single-active-consumer": 1},
        "x-single-active-consumer",
        "received the value '1' of type 'signedint' but current is the value 'true' of type 'bool'",
    ),
    (
        {},
        {"x-queue-type": "quorum"},
        "x-queue-type",
        "received the value 'quorum' of type 'longstr' but current is the value 'classic' of type 'longstr'",
    ),
]


@pytest.mark.parametrize(("current", "received", "argument", "words"), OTHER)
def test_another_value_is_another_queue(current: Any, received: Any, argument: str, words: str) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        check_equivalent("q", "/", current, received)
    assert str(refusal.value) == f"inequivalent arg '{argument}' for queue 'q' in vhost '/': {words}"


def test_a_dead_letter_key_that_no_message_could_carry_is_refused() -> None:
    assert check(x_dead_letter_exchange="dlx", x_dead_letter_routing_key="k" * 255)
    for key in ("k" * 256, "é" * 128):
        with pytest.raises(PreconditionFailed, match="max_bytes_exceeded,255"):
            check(x_dead_letter_exchange="dlx", x_dead_letter_routing_key=key)


READINGS: list[tuple[dict[str, Any], StreamReading]] = [
    ({}, StreamReading(offset="next")),
    ({"x-stream-offset": "last"}, StreamReading(offset="last")),
    ({"x-stream-offset": b"first"}, StreamReading(offset="first")),
    ({"x-stream-offset": 17}, StreamReading(offset=None, from_seq=17)),
    ({"x-stream-offset": Int64(-3)}, StreamReading(offset=None, from_seq=0)),
    ({"x-stream-offset": Timestamp(9)}, StreamReading(offset=None, from_ms=9000)),
    ({"x-stream-offset": "90s"}, StreamReading(offset=None, from_ms=910_000)),
    ({"x-stream-offset": "5Y"}, StreamReading(offset=None, from_ms=0)),
    ({"x-stream-offset": "mark"}, StreamReading(offset="mark", consumer="tag")),
    (
        {"x-stream-offset": "mark", "x-stream-consumer": "me", "x-stream-commit": "each"},
        StreamReading(offset="mark", consumer="me", each=True),
    ),
    ({"x-stream-consumer": "me", "x-stream-commit": "boundary"}, StreamReading(consumer="me")),
    (
        {"x-stream-markers": True, "x-stream-shards": [2, 0, 2], "x-stream-on-reset": "restart"},
        StreamReading(markers=True, shards=(0, 2), restart=True),
    ),
]


@pytest.mark.parametrize(("arguments", "reading"), READINGS, ids=str)
def test_a_consumer_of_a_stream_says_where_it_begins(
    arguments: dict[str, Any], reading: StreamReading
) -> None:
    assert check_stream_reading("s", "/", "tag", arguments, now_ms=1_000_000) == reading


@pytest.mark.parametrize("word", ["", "s", "5", "5x", "-5m", "5.0m", "٥m", "1234567890s", "5mm"])
def test_what_is_no_interval_has_no_length(word: str) -> None:
    assert interval_ms(word) is None
