"""Routes: where messages go, and when what is remembered of that ends."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker, a_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.broker.config import BrokerConfig
from tidemark.broker.session import Session
from tidemark.broker.vhost import ByHeaders
from tidemark.errors import NotFound, TidemarkError
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec


def wired() -> Session:
    """Exchanges a (topic) -> b (fanout) -> c (direct), a queue q at the end of them, a queue at each."""
    session = a_session()
    for name, kind in (("a", "topic"), ("b", "fanout"), ("c", "direct")):
        session.declare_exchange(name, kind)
        session.declare_queue(f"at-{name}")
        session.bind_queue(f"at-{name}", name, "k")
    session.bind_exchange("b", "a", "k")
    session.bind_exchange("c", "b", "")
    session.declare_queue("q")
    session.bind_queue("q", "c", "k")
    return session


def names(session: Session, exchange: str, key: str = "k") -> list[str]:
    route = session.vhost.resolve(exchange.encode(), key.encode())
    assert route.alive
    return [queue.name for queue in route.queues]  # type: ignore[attr-defined]


# Where messages go --------------------------------------------------------------------------------


def test_a_message_follows_bindings_from_exchange_to_exchange() -> None:
    session = wired()
    assert names(session, "a") == ["at-a", "at-b", "at-c", "q"]
    assert names(session, "b") == ["at-b", "at-c", "q"]
    assert names(session, "a", "other") == []


def test_a_ring_of_exchanges_ends() -> None:
    session = wired()
    session.bind_exchange("a", "c", "k")
    assert sorted(names(session, "c")) == ["at-a", "at-b", "at-c", "q"]


def test_an_exchange_bound_to_itself_can_be_used_and_deleted() -> None:
    session = a_session()
    session.declare_exchange("x", "fanout")
    session.bind_exchange("x", "x", "")
    assert names(session, "x") == []
    session.delete_exchange("x")
    assert "x" not in session.vhost.exchanges


def test_the_default_exchange_leads_to_the_queue_of_that_name() -> None:
    session = wired()
    assert names(session, "", "q") == ["q"]
    assert names(session, "", "nobody") == []


def test_an_unknown_exchange_is_not_found() -> None:
    with pytest.raises(NotFound, match="no exchange 'nope' in vhost '/'"):
        a_session().vhost.resolve(b"nope", b"k")


def test_what_matches_nothing_goes_to_the_alternate_and_its_alternate() -> None:
    session = a_session()
    session.declare_exchange("x", "direct", arguments={"alternate-exchange": "y"})
    session.declare_exchange("y", "direct", arguments={"alternate-exchange": "z"})
    assert names(session, "x") == []

    session.declare_exchange("z", "fanout")
    session.declare_queue("q")
    session.bind_queue("q", "z", "")
    assert names(session, "x") == ["q"]
    session.declare_queue("p")
    session.bind_queue("p", "y", "k")
    assert names(session, "x") == ["p"]


def test_alternates_in_a_ring_end() -> None:
    session = a_session()
    for here, there in (("x", "y"), ("y", "x")):
        session.declare_exchange(here, "direct", arguments={"alternate-exchange": there})
    assert names(session, "x") == []


def test_the_default_exchange_can_be_an_alternate() -> None:
    session = a_session()
    session.declare_exchange("x", "direct", arguments={"alternate-exchange": ""})
    assert names(session, "x", "q") == []
    session.declare_queue("q")
    assert names(session, "x", "q") == ["q"]


def test_names_and_keys_that_are_not_utf8_are_told_apart() -> None:
    session = a_session()
    session.declare_exchange("x", "direct")
    for name, key in (("one", "\udcff"), ("two", "\udcfe")):
        session.declare_queue(name)
        session.bind_queue(name, "x", key)
    [queue] = session.vhost.resolve(b"x", b"\xff").queues
    assert queue is session.vhost.queues["one"]


# Plain and not ------------------------------------------------------------------------------------


def test_a_route_is_plain_when_it_has_queues_that_take_everything() -> None:
    session = a_session()
    session.declare_queue("q")
    assert session.vhost.resolve(b"", b"q").plain
    assert not session.vhost.resolve(b"", b"nobody").plain


def test_a_route_with_a_queue_that_may_refuse_is_not_plain() -> None:
    session = a_session()
    session.declare_queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    route = session.vhost.resolve(b"", b"q")
    assert not route.plain
    assert [queue.number for queue in route.queues] == list(route.targets)


def test_a_route_that_passes_a_headers_exchange_asks_for_each_message() -> None:
    session = wired()
    session.bind_queue("q", "amq.headers", "", {"h": 1})
    session.bind_exchange("amq.headers", "a", "k")
    assert isinstance(session.vhost.resolve(b"amq.headers", b""), ByHeaders)
    assert isinstance(session.vhost.resolve(b"a", b"k"), ByHeaders)
    assert not isinstance(session.vhost.resolve(b"a", b"other"), ByHeaders)
    assert [q.name for q in session.vhost.route_message("amq.headers", "", {"h": 1})] == ["q"]


# When routes end ----------------------------------------------------------------------------------


def test_a_route_is_shared_while_nothing_changes() -> None:
    session = wired()
    assert session.vhost.resolve(b"a", b"k") is session.vhost.resolve(b"a", b"k")


CHANGES: dict[str, Any] = {
    "bind": lambda s: s.bind_queue("at-a", "c", "k"),
    "unbind": lambda s: s.unbind_queue("q", "c", "k"),
    "delete the queue": lambda s: s.delete_queue("q"),
    "delete an exchange on the way": lambda s: s.delete_exchange("b"),
    "unbind an exchange on the way": lambda s: s.unbind_exchange("b", "a", "k"),
    "change permissions": lambda s: s.broker.put(PermissionSpec("guest", "/", "", "", "")),
    "change topic permissions": lambda s: s.broker.put(TopicPermissionSpec("guest", "/", "a", "", "")),
    "delete the user": lambda s: s.broker.delete_user("guest"),
    "delete the vhost": lambda s: s.broker.delete_vhost("/"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_ends_the_routes_that_it_matters_to(change: Any) -> None:
    session = wired()
    route = session.vhost.resolve(b"a", b"k")
    change(session)
    assert not route.alive


def test_a_new_queue_ends_no_route_but_its_own() -> None:
    session = wired()
    kept, own = session.vhost.resolve(b"a", b"k"), session.vhost.resolve(b"", b"new")
    session.declare_queue("new")
    assert kept.alive
    assert not own.alive


def test_a_binding_of_a_direct_exchange_ends_no_route_with_another_key() -> None:
    session = wired()
    kept, ended = session.vhost.resolve(b"c", b"other"), session.vhost.resolve(b"c", b"new")
    session.bind_queue("q", "c", "new")
    assert kept.alive
    assert not ended.alive


def test_no_more_routes_are_remembered_than_the_limit_and_forgotten_ones_are_ended() -> None:
    session = a_session(a_broker(config=BrokerConfig(routes_max=10)))
    routes = [session.vhost.resolve(b"", b"%d" % number) for number in range(25)]
    assert sum(route.alive for route in routes) <= 10
    session.declare_queue("24")
    assert not routes[24].alive


EXCHANGES = ["a", "b", "c", "amq.topic", "amq.fanout"]
KEYS = ["k", "l", "k.l", ""]
steps = st.one_of(
    st.tuples(
        st.just("declare_exchange"),
        st.sampled_from("abc"),
        st.sampled_from(["direct", "topic", "fanout"]),
        st.sampled_from([None, "a", "b", "amq.fanout", ""]),
    ),
    st.tuples(st.just("delete_exchange"), st.sampled_from("abc")),
    st.tuples(st.just("declare_queue"), st.sampled_from(KEYS[:3])),
    st.tuples(st.just("delete_queue"), st.sampled_from(KEYS[:3])),
    *(
        st.tuples(
            st.just(what), st.sampled_from(ends), st.sampled_from(EXCHANGES), st.sampled_from([*KEYS, "#"])
        )
        for what, ends in (
            ("bind_queue", KEYS[:3]),
            ("unbind_queue", KEYS[:3]),
            ("bind_exchange", EXCHANGES),
            ("unbind_exchange", EXCHANGES),
        )
    ),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=30))
def test_whatever_changes_a_living_route_is_what_a_fresh_look_would_find(history: list[Any]) -> None:
    session = a_session()
    vhost = session.vhost
    held: dict[tuple[str, str], Any] = {}
    for what, *rest in history:
        try:
            if what == "declare_exchange":
                name, kind, alternate = rest
                arguments = {} if alternate is None else {"alternate-exchange": alternate}
                session.declare_exchange(name, kind, arguments=arguments)
            else:
                getattr(session, what)(*rest)
        except TidemarkError:
            pass
        for (exchange, key), route in held.items():
            if route.alive:
                assert route.queues == vhost.route_message(exchange, key, {})
        for exchange in [name for name in vhost.exchanges if not vhost.exchanges[name].by_headers]:
            for key in KEYS:
                held[exchange, key] = vhost.resolve(exchange.encode(), key.encode())
