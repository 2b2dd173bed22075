"""Policies in any order of changes: what applies at the end is what a broker has that was declared under them.

The model is the broker itself: one that gets the last policies first and then the same objects. What one has come to by
changes, the other has from the beginning.
"""

from __future__ import annotations

from typing import Any

from builders import a_broker, a_session
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.broker.channel import TestChannel

from tidemark.broker.broker import Broker
from tidemark.broker.policies import APPLY_TO
from tidemark.model.wiring import OperatorPolicySpec, PolicySpec

NAMES = ["a", "b", "ab", "ba.x", "amq-c"]
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
}
LIMITS = ("message-ttl", "expires", "max-length", "max-length-bytes")
definitions = st.dictionaries(
    st.sampled_from([*LIMITS, *LIMITS, "delivery-limit"]), st.integers(1, 5), min_size=1, max_size=2
)
others = st.fixed_dictionaries(
    {},
    optional={
        "overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
        "dead-letter-exchange": st.sampled_from(["", "d"]),
        "dead-letter-routing-key": st.sampled_from(["k", ""]),
        "alternate-exchange": st.sampled_from(["amq.fanout", "nowhere"]),
        "max-age": st.sampled_from(["1h", "2h"]),
        "queue-mode": st.just("lazy"),
        "consumer-timeout": st.integers(0, 5),
    },
)
patterns = st.sampled_from([".*", ".*", ".*", "^a", "b", "x$", "^(?!amq)", "(a|b)+$", "nothing"])
applied_to = st.one_of(st.sampled_from(["all", "queues"]), st.sampled_from(sorted(APPLY_TO)))
policies = st.builds(
    lambda name, pattern, apply_to, priority, limits, rest: PolicySpec(
        "/", name, pattern, apply_to, priority, {**limits, **rest}
    ),
    st.sampled_from("pqr"),
    patterns,
    applied_to,
    st.integers(0, 2),
    definitions,
    st.one_of(st.just({}), others),
)
operator_policies = st.builds(
    lambda name, pattern, apply_to, priority, limits: OperatorPolicySpec(
        "/", name, pattern, apply_to, priority, limits
    ),
    st.sampled_from("pq"),
    patterns,
    applied_to,
    st.integers(0, 2),
    definitions,
)
deletes = st.tuples(st.booleans(), st.sampled_from("pqr"))
queues = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.sampled_from(["classic", *KINDS]),
        st.dictionaries(st.sampled_from([f"x-{name}" for name in LIMITS]), st.integers(1, 5), max_size=2),
    ),
)


def declare(broker: Broker, declared: dict[str, tuple[str, dict[str, Any]]]) -> None:
    session = a_session(broker)
    for name in NAMES[:3]:
        session.declare_exchange(name, "direct")
    for name, (kind, arguments) in declared.items():
        own = arguments if kind != "stream" else {"x-max-length-bytes": 3} if arguments else {}
        session.declare_queue(name, durable=True, arguments={**KINDS[kind], **own})


def governed(broker: Broker) -> dict[str, Any]:
    """All that policies decide, by object."""
    vhost = broker.vhosts["/"]
    found: dict[str, Any] = {}
    for exchange in vhost.exchanges.values():
        leads_here = {
            name for name, naming in vhost._alternate_of.items() for one in naming if one == exchange.name
        }
        found[f"exchange {exchange.name}"] = (
            exchange.applied_policy,
            exchange.applied_operator_policy,
            exchange.effective_policy_definition,
            exchange.alternate,
            leads_here,
        )
    for queue in vhost.queues.values():
        found[f"queue {queue.name}"] = (
            queue.applied_policy,
            queue.applied_operator_policy,
            queue.effective_policy_definition,
            queue.policy,
            queue.ttl_ms,
            queue.guarded,
            getattr(queue, "evicts", None),
            queue.count_header,
        )
    return found


@given(st.lists(st.one_of(policies, operator_policies, deletes), max_size=10), queues, st.integers(0, 10))
@settings(max_examples=300)
def test_what_is_in_force_does_not_depend_on_what_came_first(
    changes: list[Any], declared: dict[str, tuple[str, dict[str, Any]]], before: int
) -> None:
    broker = a_broker()
    for number, change in enumerate(changes):
        if number == before:
            declare(broker, declared)
        if isinstance(change, PolicySpec):
            broker.put_policy(change)
        else:
            operator, name = change
            known: Any = broker.operator_policies if operator else broker.policies
            if ("/", name) in known:
                broker.delete_policy("/", name, operator=operator)
    if before >= len(changes):
        declare(broker, declared)
    fresh = a_broker()
    for spec in (*broker.policies.values(), *broker.operator_policies.values()):
        fresh.put_policy(spec)
    declare(fresh, declared)
    assert governed(broker) == governed(fresh)
    assert (
        governed(a_broker(replaying=broker.catalog.changes)).items()
        >= {key: value for key, value in governed(broker).items() if key.startswith("queue")}.items()
    )


@given(
    st.lists(
        st.one_of(
            st.integers(0, 9).map(lambda n: ("put", n)), st.just(("delete", 0)), st.just(("publish", 3))
        ),
        max_size=12,
    ),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_queue_is_never_longer_after_a_turn_than_the_smaller_of_its_limits(
    steps: list[tuple[str, int]], own: int | None, buried: bool
) -> None:
    broker = a_broker()
    channel = TestChannel(a_session(broker))
    channel.session.declare_queue("dead")
    arguments = {} if own is None else {"x-max-length": own}
    channel.session.declare_queue("q", arguments=arguments)
    queue, dead = broker.vhosts["/"].queues["q"], broker.vhosts["/"].queues["dead"]
    published = expected = 0
    limit: int | None = None
    for step, number in steps:
        if step == "put":
            more = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"} if buried else {}
            broker.put_policy(PolicySpec("/", "p", "^q$", "queues", 0, {"max-length": number, **more}))
            limit = number
        elif step == "delete" and limit is not None:
            broker.delete_policy("/", "p")
            limit = None
        elif step == "publish":
            channel.publish("q", *(b"%d" % (published + n) for n in range(number)))
            published += number
            expected += number
        channel.turn()
        bounds = [bound for bound in (own, limit) if bound is not None]
        expected = min([expected, *bounds])
        assert queue.ready == expected
        kept = [] if not expected else [channel.get("q") for _ in range(expected)]
        bodies = [delivery.body for delivery in kept if delivery is not None]
        assert bodies == [b"%d" % n for n in range(published - expected, published)]
        for delivery in kept:
            assert delivery is not None
            channel.nack(delivery.tag)
    assert dead.ready <= published - expected
