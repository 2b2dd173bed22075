"""The catalog: changes as JSON, and a broker that is the sum of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import a_broker, a_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.broker import catalog
from tidemark.broker.broker import Broker
from tidemark.errors import StoreForeign, TidemarkError
from tidemark.model import values
from tidemark.model.wiring import (
    FIRST_TRANSIENT_NUMBER,
    BindingSpec,
    ExchangeSpec,
    GlobalParameterSpec,
    ParameterSpec,
    PermissionSpec,
    PolicySpec,
    QueueSpec,
    Spec,
    TopicPermissionSpec,
    UserSpec,
    VhostSpec,
)
from tidemark.wire.amqp091.tables import decode_table, encode_table

# Values and changes -----------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(["$", "of", "\udc80"])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=5)
    | st.integers(-100, 100).map(values.Int8)
    | st.integers(0, 100).map(values.UInt16)
    | st.integers(-100, 100).map(values.Int64)
    | st.integers(0, 1 << 40).map(values.Timestamp)
    | st.floats(width=32, allow_nan=False).map(values.Float32)
    | st.binary(max_size=3).map(values.RawString)
    | st.builds(values.Decimal, st.integers(0, 9), st.integers(0, 1 << 31))
)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


def types(value: Any) -> Any:
    """The types all the way down."""
    if isinstance(value, dict):
        return {name: types(item) for name, item in value.items()}
    if isinstance(value, list):
        return [types(item) for item in value]
    return type(value)


@given(anything)
def test_any_argument_comes_back_from_json_with_its_type(value: Any) -> None:
    back = values.from_json(json.loads(json.dumps(values.to_json(value))))
    assert back == value
    assert types(back) == types(value)


def test_every_type_of_value_that_a_client_can_send_can_be_written_down() -> None:
    wanted = {
        "t": True, "b": values.Int8(-1), "B": values.UInt8(1), "s": values.Int16(-1), "u": values.UInt16(1),
        "I": 1, "i": values.UInt32(1), "l": values.Int64(1), "f": values.Float32(0.5), "d": 0.5,
        "D": values.Decimal(2, 125), "S": "text", "raw": values.RawString(b"\xff"), "x": b"bytes",
        "A": [1, "a"], "F": {"inner": None}, "T": values.Timestamp(1), "V": None,
    }  # fmt: skip
    received, _ = decode_table(encode_table(wanted))
    broker = a_broker()
    a_session(broker).declare_queue("q", durable=True, arguments=received)

    again = a_broker(replaying=broker.image()).vhosts["/"].queues["q"].spec.arguments
    assert again == received
    assert types(again) == types(received)


def test_a_value_that_the_catalog_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="a set has no place"):
        values.to_json({"a": [{1}]})


arguments = st.dictionaries(texts, anything, max_size=3)
specs: st.SearchStrategy[Spec] = st.one_of(
    st.builds(VhostSpec, texts, texts, st.lists(texts, max_size=2).map(tuple)),
    st.builds(ExchangeSpec, texts, texts, texts, st.booleans(), st.booleans(), st.booleans(), arguments),
    st.builds(
        QueueSpec, texts, texts, st.booleans(), st.booleans(), st.booleans(), arguments, st.integers(1, 9)
    ),
    st.builds(BindingSpec, texts, texts, texts, st.booleans(), texts, arguments),
    st.builds(UserSpec, texts, texts, st.lists(texts, max_size=2).map(tuple)),
    st.builds(PermissionSpec, texts, texts, texts, texts, texts),
    st.builds(TopicPermissionSpec, texts, texts, texts, texts, texts),
    st.builds(PolicySpec, texts, texts, texts, texts, st.integers(0, 9), arguments),
    st.builds(ParameterSpec, texts, texts, texts, anything),
    st.builds(GlobalParameterSpec, texts, anything),
)


@given(specs)
def test_every_spec_comes_back_from_its_change(spec: Spec) -> None:
    assert catalog.read(catalog.decode(catalog.encode(catalog.put(spec)))) == spec


@given(specs)
def test_a_delete_names_what_identifies_the_thing(spec: Spec) -> None:
    back = catalog.read(catalog.decode(catalog.encode(catalog.delete(spec))))
    [kind] = [kind for kind in catalog.KINDS.values() if kind.spec is type(spec)]
    assert all(getattr(back, name) == getattr(spec, name) for name in kind.identity)


@pytest.mark.parametrize("op", ["queue.rename", "stream.put", "numbers.delete", "put", "", None, 7])
def test_a_change_of_an_unknown_kind_is_refused(op: Any) -> None:
    with pytest.raises(StoreForeign, match="unknown to this version"):
        a_broker().apply({"op": op})


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"1"])
def test_what_is_no_change_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreForeign, match="not a change of the catalog"):
        catalog.decode(raw)


# What is logged ---------------------------------------------------------------------------------


def logged_by(broker: Broker) -> list[str]:
    ops = broker.catalog.ops()  # type: ignore[attr-defined]
    broker.catalog.changes.clear()  # type: ignore[attr-defined]
    return list(ops)


def test_durable_things_are_logged_and_others_are_not() -> None:
    broker = a_broker()
    session = a_session(broker)
    logged_by(broker)

    session.declare_exchange("x", "topic", durable=True)
    session.declare_queue("q", durable=True)
    session.bind_queue("q", "x", "#")
    assert logged_by(broker) == ["exchange.put", "queue.put", "binding.put"]

    session.declare_exchange("tx", "topic")
    session.declare_queue("tq")
    session.declare_queue("mine", durable=True, exclusive=True)
    session.bind_queue("q", "tx", "#")
    session.bind_queue("tq", "x", "#")
    session.bind_queue("mine", "x", "#")
    session.bind_exchange("tx", "x", "#")
    session.delete_queue("tq")
    session.delete_exchange("tx")
    session.close()
    assert logged_by(broker) == []

    session = a_session(broker)
    session.unbind_queue("q", "x", "#")
    session.delete_queue("q")
    session.delete_exchange("x")
    assert logged_by(broker) == ["binding.delete", "queue.delete", "exchange.delete"]


def test_a_durable_exchange_that_goes_by_itself_is_logged_too() -> None:
    broker = a_broker()
    session = a_session(broker)
    session.declare_exchange("x", "fanout", durable=True, auto_delete=True)
    session.declare_queue("q")
    session.bind_queue("q", "x", "")
    logged_by(broker)

    session.delete_queue("q")
    assert logged_by(broker) == ["exchange.delete"]
    assert "x" not in session.vhost.exchanges


def test_replaying_does_not_delete_what_a_transient_binding_kept() -> None:
    broker = a_broker()
    session = a_session(broker)
    session.declare_exchange("x", "fanout", durable=True, auto_delete=True)
    session.declare_queue("durable", durable=True)
    session.declare_queue("transient")
    session.bind_queue("durable", "x", "")
    session.bind_queue("transient", "x", "")
    session.delete_queue("durable")

    again = a_broker(replaying=broker.catalog.changes)  # type: ignore[attr-defined]
    assert "x" in again.vhosts["/"].exchanges


def test_what_is_declared_is_safe_when_its_change_is() -> None:
    broker = a_broker()
    session, other = a_session(broker), a_session(broker)
    declared = session.declare_queue("q", durable=True)
    assert declared.safe_at == broker.catalog.last_seq > 0
    assert other.declare_queue("q", durable=True).safe_at == declared.safe_at
    assert session.declare_queue("t").safe_at == 0


# Numbers ----------------------------------------------------------------------------------------


def test_a_number_is_never_given_to_a_second_queue_even_after_a_restart() -> None:
    broker = a_broker()
    session = a_session(broker)
    first = [session.declare_queue(name, durable=True).name for name in "abc"]
    numbers = {session.vhost.queues[name].number for name in first}
    for name in first:
        session.delete_queue(name)

    for changes in (broker.catalog.changes, broker.image()):  # type: ignore[attr-defined]
        again = a_broker(replaying=changes)
        session = a_session(again)
        session.declare_queue("d", durable=True)
        assert session.vhost.queues["d"].number not in numbers


def test_transient_queues_have_numbers_that_no_durable_queue_ever_gets() -> None:
    broker = a_broker()
    session = a_session(broker)
    session.declare_queue("transient")
    session.declare_queue("mine", exclusive=True, durable=True)
    session.declare_queue("durable", durable=True)
    numbers = {name: queue.number for name, queue in session.vhost.queues.items()}
    assert numbers["transient"] >= FIRST_TRANSIENT_NUMBER
    assert numbers["mine"] >= FIRST_TRANSIENT_NUMBER
    assert numbers["durable"] < FIRST_TRANSIENT_NUMBER
    assert len(set(numbers.values())) == 3


# The image --------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
sources = st.sampled_from([*NAMES, "amq.topic", "amq.match"])
flags = st.booleans()
bound = st.dictionaries(st.sampled_from(["x-match", "h"]), st.sampled_from(["all", "any"]), max_size=2)
steps = st.one_of(
    st.tuples(
        st.just("declare_exchange"), names, st.sampled_from(["direct", "topic", "headers"]), flags, flags
    ),
    st.tuples(st.just("delete_exchange"), names),
    st.tuples(st.just("declare_queue"), names, flags, flags, flags),
    st.tuples(st.just("delete_queue"), names),
    st.tuples(st.just("bind_queue"), names, sources, names, bound),
    st.tuples(st.just("unbind_queue"), names, sources, names, bound),
    st.tuples(st.just("bind_exchange"), names, sources, names, bound),
    st.tuples(st.just("unbind_exchange"), names, sources, names, bound),
    st.tuples(st.just("reconnect")),
)


def perform(broker: Broker, history: list[tuple[Any, ...]]) -> None:
    session = a_session(broker)
    for what, *rest in history:
        try:
            match what:
                case "declare_exchange":
                    name, kind, durable, auto_delete = rest
                    session.declare_exchange(name, kind, durable=durable, auto_delete=auto_delete)
                case "declare_queue":
                    name, durable, exclusive, auto_delete = rest
                    session.declare_queue(name, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
                case "reconnect":
                    session.close()
                    session = a_session(broker)
                case _:
                    getattr(session, what)(*rest)
        except TidemarkError:
            pass
    session.close()


def durable_things(broker: Broker) -> set[bytes]:
    return set(broker.image())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_whatever_was_declared_log_and_image_both_bring_it_back(history: list[tuple[Any, ...]]) -> None:
    broker = a_broker()
    perform(broker, history)

    image = broker.image()
    assert a_broker(replaying=image).image() == image
    from_log = a_broker(replaying=broker.catalog.changes)  # type: ignore[attr-defined]
    assert durable_things(from_log) == durable_things(broker)


def made_durable(step: tuple[Any, ...]) -> tuple[Any, ...]:
    match step:
        case ("declare_exchange", name, kind, _, auto_delete):
            return "declare_exchange", name, kind, True, auto_delete
        case ("declare_queue", name, _, _, auto_delete):
            return "declare_queue", name, True, False, auto_delete
        case _:
            return step


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps.map(made_durable), max_size=25), st.lists(names, min_size=1, max_size=2).map(".".join))
def test_a_restarted_broker_sends_to_the_same_queues_in_the_same_order(
    history: list[tuple[Any, ...]], key: str
) -> None:
    broker = a_broker()
    perform(broker, history)
    here, there = broker.vhosts["/"], a_broker(replaying=broker.image()).vhosts["/"]

    assert set(here.exchanges) == set(there.exchanges)
    for exchange in here.exchanges:
        before = [queue.name for queue in here.route_message(exchange, key, {"h": "all"})]
        after = [queue.name for queue in there.route_message(exchange, key, {"h": "all"})]
        assert before == after


# Defaults ---------------------------------------------------------------------------------------


def test_an_empty_catalog_gets_the_default_user_and_vhost_once() -> None:
    broker = a_broker(vhosts=(), users=())
    broker.create_defaults()
    assert list(broker.vhosts) == ["/"]
    assert broker.access.users["guest"].tags == ("administrator",)
    assert a_session(broker).declare_queue("q").name == "q"

    logged = broker.catalog.last_seq
    broker.create_defaults()
    assert broker.catalog.last_seq == logged


def test_a_catalog_whose_default_user_was_deleted_does_not_get_it_back() -> None:
    broker = a_broker(vhosts=(), users=())
    broker.create_defaults()
    broker.delete_user("guest")

    again = a_broker(replaying=broker.image())
    again.create_defaults()
    assert "guest" not in again.access.users
