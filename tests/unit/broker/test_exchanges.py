"""What each type of exchange makes of a message, and what may be declared."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker, a_session

from tidemark.broker.exchanges import PREDECLARED, TYPES, check_exchange
from tidemark.broker.session import Session
from tidemark.errors import CommandInvalid, PreconditionFailed
from tidemark.model.wiring import ExchangeSpec


def bound(kind: str, *bindings: tuple[str, str, dict[str, Any]]) -> Session:
    """A session with an exchange `x` of this type, and queues bound as (queue, key, arguments)."""
    session = a_session(a_broker())
    session.declare_exchange("x", kind)
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
    session = bound(kind, ("q", "k", {}), ("q", "k", {"note": "2"}), ("p", "k", {}), ("q", "k", {"note": 3}))
    session.bind_queue("q", "x", "#", {})
    assert reached(session, "k", {"note": 3}) == ["q", "p"]


@pytest.mark.parametrize("kind", TYPES)
def test_a_binding_with_other_arguments_is_another_binding(kind: str) -> None:
    session = bound(kind, ("q", "k", {"note": 1}), ("q", "k", {"note": 2}))
    session.unbind_queue("q", "x", "k", {"note": 1})
    assert reached(session, "k", {"note": 2}) == ["q"]
    session.unbind_queue("q", "x", "k", {"note": 2})
    assert reached(session, "k", {"note": 2}) == []


def test_the_order_of_arguments_does_not_make_another_binding() -> None:
    session = bound("direct", ("q", "k", {"a": 1, "b": 2}))
    session.unbind_queue("q", "x", "k", {"b": 2, "a": 1})
    assert reached(session, "k") == []


def test_arguments_that_differ_in_type_only_are_different_bindings() -> None:
    session = bound("direct", ("q", "k", {"a": 1}), ("q", "k", {"a": True}), ("q", "k", {"a": 1.0}))
    assert len(session.vhost.exchanges["x"].bindings) == 3


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
