"""A copy of the wiring is fed change by change and then answers as the broker does: the same queues, the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import a_broker, a_queue, a_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.broker.channel import a_channel

from tidemark.broker.broker import Broker
from tidemark.broker.catalog import decode, delete, encode
from tidemark.broker.feed import WiringFeed, encoded
from tidemark.broker.wiring_copy import FreshCopy, WiringCopy
from tidemark.errors import (
    AccessRefused,
    ConnectionForced,
    NotFound,
    PeerFault,
    PreconditionFailed,
    TidemarkError,
)
from tidemark.model.runs import FLAGS, PROPERTIES, TTL
from tidemark.model.wiring import (
    GlobalParameterSpec,
    PermissionSpec,
    PolicySpec,
    QueueSpec,
    TopicPermissionSpec,
    UserSpec,
    VhostSpec,
)
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.properties import Properties, encode_properties

PLAIN = encode_properties(Properties())


class Front:
    """A front without a link: what it is told is in its copy at once."""

    def __init__(self, broker: Broker) -> None:
        self.feed = WiringFeed(broker)
        self.copy = WiringCopy(Amqp091Content(), broker.groups)
        self.told: list[bytes] = []
        for spec in self.feed.listen(self):
            self.copy.take(encoded(spec))

    def changed(self, change: bytes) -> None:
        self.told.append(change)
        self.copy.take(change)

    def waits(self, vhost: str, queue: str) -> None:
        pass

    def routes(
        self, exchange: str, key: str, *, user: str = "guest", **properties: Any
    ) -> dict[str, list[str]]:
        raw = encode_properties(Properties(**properties))
        return self.copy.routes("/", exchange.encode(), key.encode(), raw, user=user)


def a_main() -> Broker:
    broker = a_broker(users=("guest", "ann"))
    broker.mode, broker.other_groups = "standby", {"fast": "chain"}
    return broker


# The feed -----------------------------------------------------------------------------------------------------------


def test_a_front_is_told_what_is_there_and_every_change_durable_or_not() -> None:
    broker = a_main()
    session = a_session(broker)
    session.declare_queue("before")
    front = Front(broker)
    session.declare_queue("transient")
    session.declare_queue("mine", exclusive=True)
    session.declare_queue("there", durable=True, arguments={"x-group": "fast"})
    session.declare_exchange("x", "fanout")
    session.bind_queue("there", "x", "")
    session.delete_queue("transient")
    ops = [decode(change)["op"] for change in front.told]
    assert ops == ["queue.put"] * 3 + ["exchange.put", "binding.put", "queue.delete"]
    assert front.copy.group_of("/", "before") == front.copy.group_of("/", "mine") == "main"
    assert front.copy.group_of("/", "there") == "fast"
    assert front.copy.group_of("/", "transient") is None and front.copy.group_of("nowhere", "q") is None


def test_passwords_and_what_has_nothing_to_do_with_routing_are_not_told() -> None:
    broker = a_main()
    broker.put(UserSpec("eve", "scrypt$secret", ("impersonator",)))
    told = [encoded(spec) for spec in WiringFeed(broker).listen(Front(broker))]
    front = Front(broker)
    broker.put(UserSpec("eve", "scrypt$other", ("impersonator",)))
    broker.put(GlobalParameterSpec("colour", "blue"))
    assert [decode(change)["op"] for change in front.told] == ["user.put"]
    assert not any(b"scrypt" in change for change in told + front.told)
    assert front.copy.access.users["eve"].tags == ("impersonator",)


def test_the_broker_calls_nobody_when_nobody_listens() -> None:
    broker = a_main()
    assert broker.feed is None
    one, other = Front(broker), Front(broker)
    feed = WiringFeed(broker)
    feed.listen(one)
    feed.listen(other)
    feed.leave(one)
    assert broker.feed is not None
    feed.leave(other)
    feed.leave(other)
    assert broker.feed is None


def test_what_goes_with_a_deleted_virtual_host_is_gone_in_the_copy() -> None:
    broker = a_main()
    front = Front(broker)
    broker.put(VhostSpec("v"))
    broker.put(PermissionSpec("guest", "v", ".*", ".*", ".*"))
    broker.put_policy(PolicySpec("v", "p", ".*", "exchanges", 0, {"alternate-exchange": "amq.fanout"}))
    a_session(broker, vhost="v").declare_queue("q")
    assert front.copy.routes("v", b"", b"q", PLAIN, user="guest") == {"main": ["q"]}
    broker.delete_vhost("v")
    with pytest.raises(NotFound, match="no vhost 'v'"):
        front.copy.routes("v", b"", b"q", PLAIN, user="guest")
    broker.put(VhostSpec("v"))
    with pytest.raises(AccessRefused):
        front.copy.routes("v", b"", b"q", PLAIN, user="guest")
    assert not front.copy.policies


# Routing ----------------------------------------------------------------------------------------------------------


def test_a_message_goes_to_queues_of_several_groups() -> None:
    broker = a_main()
    front = Front(broker)
    session = a_session(broker)
    for name, group in (("a", "main"), ("b", "fast"), ("c", "fast")):
        session.declare_queue(name, durable=True, arguments={"x-group": group})
        session.bind_queue(name, "amq.topic", "k.#")
    assert front.routes("amq.topic", "k.1") == {"main": ["a"], "fast": ["b", "c"]}
    assert front.routes("amq.topic", "k.1") is front.routes("amq.topic", "k.1"), "it is worked out once"
    assert front.routes("", "b") == {"fast": ["b"]}
    assert front.routes("", "nobody") == {}
    assert front.routes("", "nobody", headers={"CC": ["a", "b"], "BCC": ["c", "b"]}) == {
        "main": ["a"],
        "fast": ["b", "c"],
    }
    session.unbind_queue("b", "amq.topic", "k.#")
    assert front.routes("amq.topic", "k.1") == {"main": ["a"], "fast": ["c"]}


def test_headers_alternates_and_exchanges_behind_exchanges_are_followed() -> None:
    broker = a_main()
    front = Front(broker)
    session = a_session(broker)
    for name in ("matched", "other"):
        session.declare_queue(name, durable=True, arguments={"x-group": "fast"})
    session.declare_exchange("first", "headers", arguments={"alternate-exchange": "rest"})
    session.declare_exchange("second", "fanout")
    session.declare_exchange("rest", "fanout")
    session.bind_exchange("second", "first", "", {"colour": "blue"})
    session.bind_queue("matched", "second", "")
    session.bind_queue("other", "rest", "")
    assert front.routes("first", "", headers={"colour": "blue"}) == {"fast": ["matched"]}
    assert front.routes("first", "", headers={"colour": "red"}) == {"fast": ["other"]}
    assert front.routes("first", "") == {"fast": ["other"]}
    broker.put_policy(PolicySpec("/", "p", "^second$", "exchanges", 0, {"alternate-exchange": "rest"}))
    session.unbind_queue("matched", "second", "")
    assert front.routes("second", "") == {"fast": ["other"]}
    broker.delete_policy("/", "p")
    assert front.routes("second", "") == {}


def test_what_a_copy_remembers_of_its_answers_does_not_grow_with_changes_of_the_wiring() -> None:
    broker = a_main()
    session = a_session(broker)
    session.declare_exchange("x", "topic")
    front = Front(broker)
    for _ in range(100):
        session.declare_queue("q", durable=True, arguments={"x-group": "fast"})
        assert front.routes("x", "a.b") == {}
        session.bind_queue("q", "x", "#")
        assert front.routes("x", "a.b") == front.routes("", "q") == {"fast": ["q"]}
        assert front.routes("x", "a.b") is front.routes("x", "a.b")
        broker.delete_queue(session.vhost.queues["q"])
    assert len(front.copy._known) == 2 and len(front.copy._groups) <= 2


def test_replies_to_a_private_queue_go_to_main() -> None:
    front = Front(a_main())
    key = "amq.rabbitmq.reply-to.abc"
    assert front.routes("", key) == {"main": [key]}
    a_queue(front.feed._broker, "q", durable=True, arguments={"x-group": "fast"})
    assert front.routes("", key, headers={"CC": ["q"]}) == {"main": [key], "fast": ["q"]}


def test_where_a_queue_will_live_is_known_before_it_is_declared() -> None:
    broker = a_main()
    front = Front(broker)
    broker.put_policy(PolicySpec("/", "p", "^f", "queues", 0, {"group": "fast"}))
    copy = front.copy
    assert copy.place("/", "f1", True, False, False, {}) == "fast"
    assert copy.place("/", "f1", False, False, False, {}) == "main"
    assert copy.place("/", "q", True, False, False, {"x-cluster-mode": "chain"}) == "fast"
    a_queue(broker, "fq", durable=True, arguments={"x-group": "main"})
    assert copy.place("/", "fq", True, False, False, {}) == "main", "that is where it is"
    with pytest.raises(PreconditionFailed, match="no group 'slow'"):
        copy.place("/", "q", True, False, False, {"x-group": "slow"})


def test_the_same_publishes_are_refused_with_the_same_words() -> None:
    broker = a_main()
    front = Front(broker)
    session = a_session(broker)
    session.declare_exchange("internal", "fanout", internal=True)
    session.declare_queue("q")
    broker.put(PermissionSpec("ann", "/", "", "^(amq.topic|internal|amq.default)$", ""))
    broker.put(TopicPermissionSpec("ann", "/", "amq.topic", "^ann.", ""))
    cases: list[tuple[str, str, str, dict[str, Any]]] = [
        ("ann", "amq.direct", "k", {}),
        ("ann", "amq.topic", "bob.1", {}),
        ("ann", "amq.topic", "ann.1", {}),
        ("ann", "internal", "", {}),
        ("guest", "missing", "", {}),
        ("ann", "", "q", {"user_id": "bob"}),
        ("ann", "", "q", {"expiration": "soon"}),
        ("ann", "", "q", {"expiration": "-1"}),
        ("ann", "", "q", {"headers": {"CC": "q"}}),
        ("ann", "", "q", {"headers": {"BCC": 5}}),
        ("ann", "", "q", {}),
    ]
    outcomes = [compared(broker, front, *case) for case in cases]
    assert sum(isinstance(one, str) for one in outcomes) == 9
    broker.put(UserSpec("ann", "", ("impersonator",)))
    assert compared(broker, front, "ann", "", "q", {"user_id": "bob"}) == ["q"]
    broker.delete_user("ann")
    with pytest.raises(AccessRefused, match="refused for user 'ann'"):
        front.routes("", "q", user="ann")


def compared(
    broker: Broker, front: Front, user: str, exchange: str, key: str, properties: dict[str, Any]
) -> Any:
    """What both make of it: the queues, or the error's text."""

    def outcome(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except TidemarkError as error:
            return f"{type(error).__name__}: {error}"

    def of_broker() -> list[Any]:
        channel = a_channel(broker, user=user)
        run = channel.a_run(key, b"", exchange=exchange, **properties)
        return list(channel.publishing.plan(run, 0).queues)

    here = outcome(of_broker)
    there = outcome(lambda: front.routes(exchange, key, user=user, **properties))
    run = a_channel(broker).a_run(key, b"", exchange=exchange, **properties)
    seen = run.number(0, FLAGS), run.number(0, TTL)
    where = "/", exchange.encode(), key.encode(), run.part(0, PROPERTIES)
    assert outcome(lambda: front.copy.routes(*where, user=user, seen=seen)) == there
    if isinstance(here, str):
        assert there == here
        return here
    expected: dict[str, list[str]] = {}
    for queue in here:
        expected.setdefault(queue.spec.group or "main", []).append(queue.name)
    assert there == expected
    return [queue.name for queue in here]


names = st.sampled_from(["a", "b", "c"])
sources = names | st.sampled_from(["amq.topic", "amq.headers", "amq.direct"])
keys = st.sampled_from(["a", "b", "#", "a.*"])
bound = st.sampled_from([{}, {"h": "1"}, {"x-match": "any", "h": "2"}])
groups = st.sampled_from([None, "main", "fast"])
patterns = st.sampled_from(["", ".*", "^a", "amq.default", "^(a|amq.*)$"])
steps = st.one_of(
    st.tuples(st.just("queue"), names, st.booleans(), groups),
    st.tuples(
        st.just("exchange"),
        names,
        st.sampled_from(["direct", "topic", "fanout", "headers"]),
        st.booleans(),
        groups,
    ),
    st.tuples(st.just("delete_queue"), names),
    st.tuples(st.just("delete_exchange"), names),
    st.tuples(st.just("bind_queue"), names, sources, keys, bound),
    st.tuples(st.just("unbind_queue"), names, sources, keys, bound),
    st.tuples(st.just("bind_exchange"), names, sources, keys, bound),
    st.tuples(st.just("policy"), names, patterns.filter(bool), names),
    st.tuples(st.just("no policy"), names),
    st.tuples(st.just("permission"), patterns),
    st.tuples(st.just("topic permission"), patterns),
    st.tuples(st.just("reconnect")),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(steps, max_size=20),
    st.lists(steps, max_size=20),
    st.sampled_from(["a", "b", "a.b"]),
    st.sampled_from(
        [{}, {"headers": {"h": "1"}}, {"headers": {"h": "2", "CC": ["b", "c"]}}, {"user_id": "x"}]
    ),
)
def test_whatever_happens_the_copy_answers_as_the_broker_does(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], key: str, properties: dict[str, Any]
) -> None:
    broker = a_main()
    perform(broker, before)
    front = Front(broker)
    perform(broker, after)
    again = Front(broker)
    for exchange in ("", "a", "b", "c", "amq.topic", "amq.headers", "amq.direct"):
        for user in ("guest", "ann"):
            first = compared(broker, front, user, exchange, key, properties)
            assert first == compared(broker, again, user, exchange, key, properties)
    assert set(front.copy.vhosts["/"].exchanges) == set(broker.vhosts["/"].exchanges)
    assert set(front.copy.vhosts["/"].queues) == set(broker.vhosts["/"].queues)


def perform(broker: Broker, history: list[tuple[Any, ...]]) -> None:
    session = a_session(broker)
    for what, *rest in history:
        try:
            match what, *rest:
                case "queue", name, durable, group:
                    arguments = {} if group is None else {"x-group": group}
                    session.declare_queue(name, durable=durable, exclusive=not durable, arguments=arguments)
                case "exchange", name, kind, durable, alternate:
                    arguments = {"alternate-exchange": "b"} if alternate else {}
                    session.declare_exchange(
                        name, kind, durable=durable, auto_delete=not durable, arguments=arguments
                    )
                case "policy", name, pattern, alternate:
                    broker.put_policy(
                        PolicySpec("/", name, pattern, "exchanges", 0, {"alternate-exchange": alternate})
                    )
                case "no policy", name:
                    broker.delete_policy("/", name)
                case "permission", pattern:
                    broker.put(PermissionSpec("ann", "/", "", pattern, ""))
                case "topic permission", pattern:
                    broker.put(TopicPermissionSpec("ann", "/", "amq.topic", pattern, ""))
                case ("reconnect",):
                    session.close()
                    session = a_session(broker)
                case _:
                    getattr(session, what)(*rest)
        except TidemarkError:
            pass
    session.close()


# Freshness ----------------------------------------------------------------------------------------------------------


class Link:
    """The link of a fresh copy, in the hands of a test."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.heard: list[str] = []
        self.failures: list[Exception] = []
        self.copy = FreshCopy(Amqp091Content(), self.asked.append, self.failures.append)

    def fresh(self, who: str) -> None:
        self.copy.fresh(lambda: self.heard.append(who))

    def opened(self) -> None:
        self.copy.greeted({"main": "standby"})
        self.copy.changed(encoded(VhostSpec("/")))
        self.copy.whole()


def test_one_who_fails_does_not_keep_the_others_from_their_answer() -> None:
    link = Link()
    link.opened()
    link.fresh("a")
    link.copy.fresh(lambda: [][0])
    link.fresh("c")
    link.copy.echoed(1)
    link.copy.echoed(2)
    assert link.heard == ["a", "c"] and [type(failure) for failure in link.failures] == [IndexError]


def test_one_echo_serves_all_who_asked_before_it_was_sent_and_nobody_else() -> None:
    link = Link()
    link.opened()
    link.fresh("a")
    link.fresh("b")
    link.fresh("c")
    assert link.asked == [1] and link.heard == []
    link.copy.echoed(1)
    assert link.heard == ["a"] and link.asked == [1, 2]
    link.copy.echoed(2)
    assert link.heard == ["a", "b", "c"] and link.asked == [1, 2]


def test_who_asks_before_the_wiring_is_whole_or_while_there_is_no_link_waits_for_an_echo_behind_it() -> None:
    link = Link()
    link.fresh("early")
    link.copy.greeted({"main": "standby"})
    link.fresh("between")
    assert link.asked == [] and link.copy.copy is None
    link.copy.whole()
    link.copy.echoed(1)
    assert link.heard == ["early", "between"]
    link.fresh("flying")
    link.fresh("waiting")
    link.copy.lost()
    link.fresh("without a link")
    assert not link.copy.up and link.asked == [1, 2]
    link.opened()
    assert link.asked == [1, 2, 3], "what was asked on the lost link is asked again"
    link.copy.echoed(3)
    assert link.heard[2:] == ["flying", "waiting", "without a link"]


def test_it_answers_from_the_newest_copy_that_is_whole_and_before_that_not_at_all() -> None:
    link = Link()
    copy = link.copy
    for ask in (
        lambda: copy.groups,
        lambda: copy.group_of("/", "q"),
        lambda: copy.place("/", "q", True, False, False, {}),
        lambda: copy.routes("/", b"", b"q", PLAIN, user="guest"),
    ):
        with pytest.raises(ConnectionForced, match="try again"):
            ask()
    link.opened()
    copy.changed(encoded(PermissionSpec("guest", "/", "", ".*", "")))
    copy.changed(encoded(QueueSpec("/", "q", number=1, group="fast")))
    assert copy.groups == {"main": "standby"} and copy.group_of("/", "q") == "fast"
    assert copy.place("/", "new", True, False, False, {}) == "main"
    assert copy.routes("/", b"", b"q", PLAIN, user="guest") == {"fast": ["q"]}


def test_an_answer_may_lead_to_the_next_question() -> None:
    link = Link()
    link.opened()
    link.copy.fresh(lambda: link.fresh("again"))
    link.copy.echoed(1)
    link.copy.echoed(2)
    assert link.heard == ["again"]


def test_an_echo_that_nobody_asked_for_is_a_fault() -> None:
    link = Link()
    link.opened()
    for number in (0, 1):
        with pytest.raises(PeerFault, match="was not asked for"):
            link.copy.echoed(number)


def test_a_new_copy_knows_who_was_made_again_before_it() -> None:
    """Else all that were let in since then would be taken for somebody else."""
    broker = a_main()
    copy = FreshCopy(Amqp091Content(), lambda _: None, lambda _: None)

    def told() -> None:
        copy.greeted(broker.groups)
        for spec in WiringFeed(broker).listen(Front(broker)):
            copy.changed(encoded(spec))
        copy.whole()

    told()
    first = copy.admission("/", "ann")
    user, permission = broker.access.users["ann"], broker.access.permissions["ann", "/"]
    copy.changed(encode(delete(user)))
    for spec in (user, permission):
        copy.changed(encoded(spec))
    again = copy.admission("/", "ann")
    assert first is not None and again is not None and first != again
    copy.lost()
    told()
    assert copy.admission("/", "ann") == again


def test_until_the_next_wiring_is_whole_the_old_copy_stays() -> None:
    link = Link()
    link.opened()
    link.copy.lost()
    link.copy.greeted({"main": "standby", "fast": "chain"})
    link.copy.changed(encoded(VhostSpec("new")))
    assert link.copy.copy is not None and set(link.copy.copy.vhosts) == {"/"}
    link.copy.lost()
    link.copy.greeted({"main": "standby", "fast": "chain"})
    link.copy.changed(encoded(VhostSpec("newer")))
    link.copy.whole()
    assert set(link.copy.copy.vhosts) == {"newer"} and "fast" in link.copy.copy.groups
