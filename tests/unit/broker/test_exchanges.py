"""What each type of exchange makes of a message, and what may be declared."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import pytest
from builders import a_broker, a_session
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.broker.exchanges import PREDECLARED, TYPES, check_exchange, key_text
from tidemark.broker.session import Session
from tidemark.errors import CommandInvalid, PreconditionFailed
from tidemark.model import keys, records
from tidemark.model.values import (
    Decimal,
    Float32,
    Int8,
    Int16,
    Int64,
    RawString,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from tidemark.model.wiring import ExchangeSpec
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.properties import Properties, encode_properties


def bound(kind: str, *bindings: tuple[str, str, dict[str, Any]]) -> Session:
    """A session with an exchange `x` of this type, and queues bound as (queue, key, arguments)."""
    session = a_session(a_broker())
    session.declare_exchange("x", kind, arguments={"x-partitions": 1} if kind == "x-partition" else {})
    for queue, key, arguments in bindings:
        session.declare_queue(queue)
        session.bind_queue(queue, "x", key, arguments)
    return session


def reached(session: Session, key: str, headers: dict[str, Any] | None = None) -> list[str]:
    return [queue.name for queue in session.vhost.route_message("x", key, headers or {})]


def test_direct_wants_the_very_same_key() -> None:
    session = bound("direct", ("red", "r", {}), ("blue", "b", {}), ("both", "r", {}), ("both", "b", {}))
    assert reached(session, "r") == ["red", "both"]
    assert reached(session, "b") == ["blue", "both"]
    assert reached(session, "R") == []


def test_fanout_takes_every_key() -> None:
    session = bound("fanout", ("one", "k", {}), ("two", "", {}))
    assert reached(session, "whatever") == ["one", "two"]


def test_topic_takes_patterns_and_keeps_the_order_of_the_bindings() -> None:
    session = bound(
        "topic", ("last.word", "#.b", {}), ("all", "#", {}), ("exact", "a.b", {}), ("one", "*", {})
    )
    assert reached(session, "a.b") == ["last.word", "all", "exact"]
    assert reached(session, "a") == ["all", "one"]


def test_headers_looks_at_headers_and_not_at_the_key() -> None:
    session = bound(
        "headers", ("a", "k", {"h": 1}), ("b", "k", {"h": 2}), ("any", "k", {"x-match": "any", "h": 1})
    )
    assert reached(session, "other", {"h": 1}) == ["a", "any"]
    assert reached(session, "k", {}) == []


@pytest.mark.parametrize("kind", TYPES)
def test_a_queue_with_several_matching_bindings_is_reached_once(kind: str) -> None:
    key = "0" if kind == "x-partition" else "k"
    session = bound(kind, ("q", key, {}), ("q", key, {"note": "2"}), ("p", key, {}), ("q", key, {"note": 3}))
    session.bind_queue("q", "x", "#", {})
    assert reached(session, "k", {"note": 3}) == ["q", "p"]


@pytest.mark.parametrize("kind", TYPES)
def test_a_binding_with_other_arguments_is_another_binding(kind: str) -> None:
    key = "0" if kind == "x-partition" else "k"
    session = bound(kind, ("q", key, {"note": 1}), ("q", key, {"note": 2}))
    session.unbind_queue("q", "x", key, {"note": 1})
    assert reached(session, "k", {"note": 2}) == ["q"]
    session.unbind_queue("q", "x", key, {"note": 2})
    assert reached(session, "k", {"note": 2}) == []


def test_the_order_of_arguments_does_not_make_another_binding() -> None:
    session = bound("direct", ("q", "k", {"a": 1, "b": 2}))
    session.unbind_queue("q", "x", "k", {"b": 2, "a": 1})
    assert reached(session, "k") == []


def test_arguments_that_differ_in_type_only_are_different_bindings() -> None:
    session = bound("direct", ("q", "k", {"a": 1}), ("q", "k", {"a": True}), ("q", "k", {"a": 1.0}))
    assert len(session.vhost.exchanges["x"].bindings) == 3


def a_partitioned(count: int = 4, **arguments: Any) -> Session:
    """A session with an exchange `x` of so many partitions, and the queue `q<i>` bound for each."""
    session = a_session(a_broker())
    session.declare_exchange("x", "x-partition", arguments={"x-partitions": count, **arguments})
    for number in range(count):
        session.declare_queue(f"q{number}")
        session.bind_queue(f"q{number}", "x", str(number))
    return session


def test_a_partition_is_chosen_by_the_crc_of_the_key_and_always_the_same() -> None:
    """Whoever computes CRC-32 modulo the number of partitions knows where a key is."""
    session = a_partitioned()
    for key in ("", "a", "order-17", "\u00e4"):
        assert reached(session, key) == [f"q{zlib.crc32(key.encode()) % 4}"]
    counts = Counter(reached(session, f"key-{n}")[0] for n in range(4000))
    assert len(counts) == 4 and min(counts.values()) > 800


def test_a_partition_may_be_chosen_by_a_header_and_without_it_by_the_key() -> None:
    session = a_partitioned(**{"x-partition-key": "header:id"})
    for value, raw in (("a", b"a"), (b"\xff", b"\xff"), (17, b"17"), (Timestamp(5), b"5"), (True, b"true")):
        assert reached(session, "k", {"id": value}) == [f"q{zlib.crc32(raw) % 4}"], value
    for headers in ({}, {"id": 1.5}, {"id": ["a"]}, {"id": None}):
        assert reached(session, "k", headers) == [f"q{zlib.crc32(b'k') % 4}"], "a stream makes no key of that"


VALUES = st.one_of(
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.binary(min_size=1, max_size=5).filter(lambda raw: not is_text(raw)).map(RawString),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int64),
    st.integers(0, 255).map(UInt8),
    st.integers(-128, 127).map(Int8),
    st.integers(0, 0xFFFF).map(UInt16),
    st.integers(-(1 << 15), (1 << 15) - 1).map(Int16),
    st.integers(0, 0xFFFFFFFF).map(UInt32),
    st.integers(0, (1 << 64) - 1).map(Timestamp),
    st.floats(),
    st.floats(width=32).map(Float32),
    st.builds(Decimal, st.integers(0, 255), st.integers(0, 0xFFFFFFFF)),
    st.none(),
    st.just([1, "a"]),
    st.just({"a": 1}),
)
"""One of each kind that a header can be."""


def is_text(raw: bytes) -> bool:
    return raw.decode("utf-8", "ignore").encode() == raw


@given(VALUES)
@example(Timestamp(5))
@example(True)
def test_routing_makes_the_same_key_of_a_header_as_a_stream(value: Any) -> None:
    """Else versions of one key would be in several partitions."""
    properties = encode_properties(Properties(headers={"other": 1, "id": value}))
    record = records.encode_message(1, (1,), 0, None, 0, True, b"", b"k", properties, b"")
    found = Amqp091Content().headers(properties)["id"]
    assert key_text(found) == keys.key_of(record, keys.HEADER, b"id")


def test_keys_of_one_partition_share_a_route() -> None:
    """Millions of keys are a few routes: what is remembered does not depend on them."""
    session = a_partitioned()
    routes = {id(session.vhost.resolve(b"x", b"key-%d" % n)): None for n in range(1000)}
    assert len(routes) == 4
    number = zlib.crc32(b"0") % 4
    assert [queue.name for queue in session.vhost.resolve(b"x", b"0").queues] == [f"q{number}"]


def test_where_the_key_is_looked_at_again_routes_are_not_shared() -> None:
    session = a_partitioned(1)
    session.declare_exchange("y", "direct")
    session.declare_queue("red")
    session.bind_queue("red", "y", "r")
    session.bind_exchange("y", "x", "0")
    assert [queue.name for queue in session.vhost.resolve(b"x", b"r").queues] == ["q0", "red"]
    assert [queue.name for queue in session.vhost.resolve(b"x", b"b").queues] == ["q0"]
    session.unbind_exchange("y", "x", "0")
    assert session.vhost.resolve(b"x", b"r") is session.vhost.resolve(b"x", b"b")


def test_a_partition_without_a_queue_takes_nothing() -> None:
    session = a_partitioned(1)
    session.unbind_queue("q0", "x", "0")
    assert reached(session, "k") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "'x-partitions'"),
        ({"x-partitions": 0}, "from 1 to 1024"),
        ({"x-partitions": 1025}, "from 1 to 1024"),
        ({"x-partitions": True}, "from 1 to 1024"),
        ({"x-partitions": "3"}, "from 1 to 1024"),
        ({"x-partitions": 3, "x-partition-key": "message-id"}, "'routing-key' or 'header:<name>'"),
        ({"x-partitions": 3, "x-partition-key": "header:"}, "'routing-key' or 'header:<name>'"),
        ({"x-partitions": 3, "x-partition-key": 5}, "'routing-key' or 'header:<name>'"),
    ],
)
def test_partitions_that_make_no_sense_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PreconditionFailed, match=words):
        check_exchange(ExchangeSpec("/", "x", "x-partition", arguments=arguments))


def test_the_number_of_partitions_is_for_ever() -> None:
    session = a_partitioned(4)
    session.declare_exchange("x", "x-partition", arguments={"x-partitions": 4})
    for other in ({"x-partitions": 5}, {"x-partitions": 4, "x-partition-key": "header:id"}):
        with pytest.raises(PreconditionFailed, match="inequivalent arg"):
            session.declare_exchange("x", "x-partition", arguments=other)


def test_every_vhost_has_the_predeclared_exchanges() -> None:
    vhost = a_broker().vhosts["/"]
    assert {name: x.type for name, x in vhost.exchanges.items()} == PREDECLARED
    assert all(x.spec.durable for x in vhost.exchanges.values())


@pytest.mark.parametrize("kind", ["", "Direct", "x-delayed-message", "default"])
def test_an_unknown_type_is_refused(kind: str) -> None:
    with pytest.raises(CommandInvalid, match=f"unknown exchange type '{kind}'"):
        check_exchange(ExchangeSpec("/", "x", kind))


@pytest.mark.parametrize("alternate", [1, None, True, b"x", ["x"]])
def test_an_alternate_exchange_must_be_named_by_a_string(alternate: Any) -> None:
    with pytest.raises(PreconditionFailed, match="for arg 'alternate-exchange' in exchange 'x' in vhost '/'"):
        check_exchange(ExchangeSpec("/", "x", "direct", arguments={"alternate-exchange": alternate}))
