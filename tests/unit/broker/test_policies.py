"""Policies: which one applies, what it does at once, what it can say, and that it is kept."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

import pytest
from builders import a_broker, a_session
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.allowance import MESSAGES
from tidemark.broker.arguments import Overflow
from tidemark.broker.broker import Broker
from tidemark.broker.definitions import export, import_definitions
from tidemark.broker.patterns import Pattern, is_quick
from tidemark.broker.policies import JOINED_MAX, KEYS
from tidemark.broker.streams.stream import Stream
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.model.records import Reason, RecordType
from tidemark.model.wiring import OperatorPolicySpec, PolicySpec, VhostSpec


@pytest.fixture
def channel() -> TestChannel:
    return a_channel(a_broker())


def put(
    broker: Broker,
    name: str = "p",
    pattern: str = ".*",
    apply_to: str = "all",
    priority: int = 0,
    *,
    operator: bool = False,
    vhost: str = "/",
    **definition: Any,
) -> int:
    kind = OperatorPolicySpec if operator else PolicySpec
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return broker.put_policy(kind(vhost, name, pattern, apply_to, priority, keys))


def declare(broker: Broker, name: str = "q", durable: bool = True, **arguments: Any) -> Any:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    a_session(broker).declare_queue(name, durable=durable, arguments=table)
    return broker.vhosts["/"].queues[name]


def a_stream(broker: Broker, name: str = "s", **arguments: Any) -> Stream:
    stream = declare(broker, name, queue_type="stream", **arguments)
    assert isinstance(stream, Stream)
    return stream


# Which one applies ------------------------------------------------------------------------------------


def test_the_highest_priority_applies_and_only_that() -> None:
    broker = a_broker()
    queue = declare(broker)
    put(broker, "low", priority=1, max_length=1, message_ttl=5)
    put(broker, "high", priority=2, max_length=7)
    assert queue.applied_policy == "high"
    assert queue.effective_policy_definition == {"max-length": 7}
    assert (queue.policy.length_max, queue.policy.message_ttl_ms) == (7, None)
    broker.delete_policy("/", "high")
    assert (queue.applied_policy, queue.policy.length_max, queue.ttl_ms) == ("low", 1, 5)
    broker.delete_policy("/", "low")
    assert (queue.applied_policy, queue.effective_policy_definition, queue.ttl_ms) == (None, {}, -1)


def test_a_policy_that_is_changed_to_a_lower_priority_gives_way() -> None:
    broker = a_broker()
    queue = declare(broker)
    put(broker, "a", priority=5, max_length=1)
    put(broker, "b", priority=4, max_length=2)
    put(broker, "a", priority=3, max_length=1)
    assert queue.applied_policy == "b"
    put(broker, "a", priority=6, max_length=1)
    assert queue.applied_policy == "a"
    put(broker, "a", "^nothing", priority=6, max_length=1)
    assert queue.applied_policy == "b"


def test_of_equal_priorities_the_first_by_name_applies_whatever_came_first() -> None:
    for order in (("a", "b"), ("b", "a")):
        broker = a_broker()
        for name in order:
            put(broker, name, priority=3, max_length=ord(name))
        assert declare(broker).applied_policy == "a"


@pytest.mark.parametrize(
    ("apply_to", "expected"),
    {
        "all": {"classic", "quorum", "stream", "exchange"},
        "queues": {"classic", "quorum", "stream"},
        "classic_queues": {"classic"},
        "quorum_queues": {"quorum"},
        "streams": {"stream"},
        "exchanges": {"exchange"},
    }.items(),
)
def test_a_policy_applies_to_what_it_says(apply_to: str, expected: set[str]) -> None:
    broker = a_broker()
    objects = {
        "classic": declare(broker, "a"),
        "quorum": declare(broker, "b", queue_type="quorum"),
        "stream": a_stream(broker, "c"),
        "exchange": broker.vhosts["/"].exchanges["amq.topic"],
    }
    put(broker, apply_to=apply_to, max_length_bytes=100)
    assert {kind for kind, one in objects.items() if one.applied_policy == "p"} == expected


def test_a_key_that_a_kind_of_queue_cannot_have_keeps_the_whole_policy_from_it_as_in_rabbitmq() -> None:
    broker = a_broker()
    classic, quorum, stream = (
        declare(broker, "a"),
        declare(broker, "b", queue_type="quorum"),
        a_stream(broker),
    )
    put(broker, "counted", priority=9, delivery_limit=3, max_length=10)
    put(broker, "aged", priority=8, max_age="1h")
    put(broker, "rest", max_length_bytes=9)
    assert [one.applied_policy for one in (classic, quorum, stream)] == ["rest", "counted", "aged"]
    assert (quorum.policy.delivery_limit, classic.policy.delivery_limit) == (3, None)
    assert stream.policy.age_ms_max == 3_600_000


def test_the_pattern_is_searched_for_in_the_name_of_the_same_virtual_host() -> None:
    broker = a_broker(vhosts=("/", "other"))
    queue, plain = declare(broker, "orders.dlq"), declare(broker, "amq-orders")
    put(broker, pattern="dlq$", max_length=3)
    put(broker, pattern=".*", vhost="other", max_length=4)
    put(broker, "not", pattern=r"^(?!orders\.).*", max_length=5)
    assert (queue.applied_policy, plain.applied_policy) == ("p", "not")


def test_a_queue_that_is_declared_later_goes_by_it_from_its_first_message(channel: TestChannel) -> None:
    put(channel.broker, pattern="^q", max_length=2)
    declare(channel.broker)
    channel.publish("q", b"1", b"2", b"3")
    channel.turn()
    assert [channel.get("q", no_ack=True).body for _ in range(2)] == [b"2", b"3"]  # type: ignore[union-attr]


# With arguments and operator policies -----------------------------------------------------------------


def test_of_an_argument_and_a_policy_the_smaller_limit_holds() -> None:
    broker = a_broker()
    queue = declare(broker, max_length=5, message_ttl=100, expires=50_000, max_length_bytes=70)
    put(broker, max_length=9, message_ttl=10, expires=90_000, max_length_bytes=7)
    policy = queue.policy
    assert (policy.length_max, policy.message_ttl_ms) == (5, 10)
    assert (policy.expires_ms, policy.length_bytes_max) == (50_000, 7)


def test_of_an_argument_and_a_policy_that_is_no_limit_the_argument_holds() -> None:
    broker = a_broker()
    queue = declare(
        broker, dead_letter_exchange="mine", dead_letter_routing_key="k", overflow="drop-head", max_length=1
    )
    put(broker, dead_letter_exchange="theirs", dead_letter_routing_key="x", overflow="reject-publish")
    policy = queue.policy
    assert (policy.dead_letter_exchange, policy.dead_letter_key) == ("mine", "k")
    assert policy.overflow is Overflow.DROP_HEAD


def test_an_operator_policy_makes_limits_smaller_and_never_larger() -> None:
    broker = a_broker()
    queue = declare(broker)
    put(broker, max_length=10, message_ttl=5, dead_letter_exchange="d")
    put(broker, "o", operator=True, max_length=3, message_ttl=50, expires=9)
    assert (queue.applied_policy, queue.applied_operator_policy) == ("p", "o")
    assert queue.effective_policy_definition == {
        "max-length": 3,
        "message-ttl": 5,
        "dead-letter-exchange": "d",
        "expires": 9,
    }
    broker.delete_policy("/", "p")
    assert queue.effective_policy_definition == {"max-length": 3, "message-ttl": 50, "expires": 9}
    assert (queue.policy.length_max, queue.policy.dead_letter_exchange) == (3, None)
    broker.delete_policy("/", "o", operator=True)
    assert queue.effective_policy_definition == {}


def test_a_consumer_timeout_of_0_is_for_ever_and_so_no_way_round_an_operator_policy() -> None:
    broker = a_broker()
    own, other = declare(broker, "own", consumer_timeout=0), declare(broker, "other")
    put(broker, "o", operator=True, consumer_timeout=60_000)
    put(broker, consumer_timeout=0)
    assert (broker.timeout_ms(own), broker.timeout_ms(other)) == (60_000, 60_000)
    assert other.effective_policy_definition == {"consumer-timeout": 60_000}
    broker.delete_policy("/", "o", operator=True)
    assert (broker.timeout_ms(own), broker.timeout_ms(other)) == (0, 0)


def test_what_is_remembered_of_different_declarations_is_bounded() -> None:
    broker = a_broker()
    put(broker, max_length=10)
    session = a_session(broker)
    for length in range(JOINED_MAX + 10):
        session.declare_queue("q", arguments={"x-max-length": length})
        session.delete_queue("q")
    assert len(broker.vhosts["/"].rules.applied("classic", "q")._joined) <= JOINED_MAX


def test_an_operator_policy_may_say_limits_only() -> None:
    broker = a_broker()
    with pytest.raises(
        PreconditionFailed, match=r'\[\{<<"overflow">>,<<"drop-head">>\}\] are not recognised'
    ):
        put(broker, operator=True, overflow="drop-head")
    assert broker.operator_policies == {}


def test_a_policy_and_an_operator_policy_of_the_same_name_are_two() -> None:
    broker = a_broker()
    queue = declare(broker)
    put(broker, "same", max_length=5)
    put(broker, "same", operator=True, max_length=4)
    broker.delete_policy("/", "same")
    assert (queue.applied_policy, queue.applied_operator_policy) == (None, "same")


# At once ----------------------------------------------------------------------------------------------


def test_a_shorter_length_ends_the_oldest_messages_in_the_next_turn(channel: TestChannel) -> None:
    queue = declare(channel.broker)
    channel.publish("q", *(b"%d" % n for n in range(10)), delivery_mode=2)
    channel.turn()
    put(channel.broker, max_length=4)
    channel.turn()
    assert (queue.ready, queue.evicted) == (4, 6)
    assert channel.get("q").body == b"6"  # type: ignore[union-attr]
    [record] = [told for told in channel.broker.journal.told if told[0] is RecordType.SETTLED]
    assert record[2] is Reason.EVICTED


def test_a_length_that_is_not_there_any_more_ends_nothing(channel: TestChannel) -> None:
    queue = declare(channel.broker)
    put(channel.broker, max_length=2)
    broker = channel.broker
    broker.delete_policy("/", "p")
    channel.publish("q", b"1", b"2", b"3")
    channel.turn()
    assert queue.ready == 3


def test_a_very_long_queue_that_must_become_short_does_so_over_several_turns(channel: TestChannel) -> None:
    queue = declare(channel.broker, durable=False)
    for _ in range(5):
        channel.publish("q", *[b"x"] * (MESSAGES // 2))
        channel.turn()
    put(channel.broker, max_length=10)
    channel.turn()
    assert 10 < queue.ready <= 5 * MESSAGES // 2
    assert channel.broker.next_wake_ms() <= channel.broker.now_ms
    for _ in range(4):
        channel.turn()
    assert queue.ready == 10
    assert channel.broker.next_wake_ms() > channel.broker.now_ms


def test_what_is_too_much_in_bytes_goes_in_slices_and_never_more_than_must(channel: TestChannel) -> None:
    queue = declare(channel.broker)
    channel.publish("q", *(b"x" * (n % 7) for n in range(2000)), delivery_mode=2)
    channel.turn()
    written = len(channel.settled())
    put(channel.broker, max_length_bytes=100)
    channel.turn()
    sizes = [n % 7 for n in range(2000)]
    while sum(sizes) > 100:
        del sizes[0]
    assert (queue.ready, queue.ready_bytes) == (len(sizes), sum(sizes))
    assert len(channel.settled()) - written <= 10


def test_what_comes_is_never_more_than_what_goes_of_a_full_queue(channel: TestChannel) -> None:
    declare(channel.broker, durable=False)
    put(channel.broker, max_length=10)
    for _ in range(3):
        channel.publish("q", *[b"x"] * (MESSAGES + 1000))
        channel.turn()
        assert channel.broker.vhosts["/"].queues["q"].ready == 10


def test_messages_keep_the_time_to_live_that_they_came_with_as_in_rabbitmq(channel: TestChannel) -> None:
    queue = declare(channel.broker)
    channel.publish("q", b"before")
    channel.turn()
    put(channel.broker, message_ttl=1000)
    channel.turn(5000)
    assert queue.ready == 1
    channel.publish("q", b"after")
    channel.get("q", no_ack=True)
    channel.turn(999)
    assert queue.ready == 1
    channel.turn(2)
    assert queue.ready == 0


def test_refusing_begins_and_ends_with_the_policy_for_publishers_that_have_their_route(
    channel: TestChannel,
) -> None:
    declare(channel.broker)
    channel.publish("q", b"1", b"2")
    put(channel.broker, max_length=2, overflow="reject-publish")
    assert channel.publish("q", b"3").refused == [0]
    put(channel.broker, max_length=3, overflow="reject-publish")
    assert channel.publish("q", b"4", b"5").refused == [1]
    channel.broker.delete_policy("/", "p")
    assert channel.publish("q", b"6").refused == []


def test_dead_letters_go_where_the_policy_says_when_they_die(channel: TestChannel) -> None:
    broker = channel.broker
    declare(broker)
    for name in ("one", "two"):
        declare(broker, name)
    channel.publish("q", b"a", b"b", b"c")
    put(broker, pattern="^q$", dead_letter_exchange="", dead_letter_routing_key="one")
    channel.nack(channel.get("q").tag, requeue=False)  # type: ignore[union-attr]
    put(broker, pattern="^q$", dead_letter_exchange="", dead_letter_routing_key="two")
    channel.nack(channel.get("q").tag, requeue=False)  # type: ignore[union-attr]
    broker.delete_policy("/", "p")
    channel.nack(channel.get("q").tag, requeue=False)  # type: ignore[union-attr]
    assert [channel.get(name, no_ack=True).body for name in ("one", "two")] == [b"a", b"b"]  # type: ignore[union-attr]
    assert channel.get("two") is None


def test_a_delivery_limit_counts_from_when_it_is_there(channel: TestChannel) -> None:
    queue = declare(channel.broker, queue_type="quorum")
    channel.publish("q", b"bad")
    for _ in range(5):
        channel.nack(channel.get("q").tag)  # type: ignore[union-attr]
    put(channel.broker, delivery_limit=6)
    channel.nack(channel.get("q").tag)  # type: ignore[union-attr]
    assert queue.ready == 1
    channel.nack(channel.get("q").tag)  # type: ignore[union-attr]
    assert queue.ready == 0


def test_a_new_time_without_use_begins_when_the_policy_comes(channel: TestChannel) -> None:
    broker = channel.broker
    broker.turn(1_000_000)
    declare(broker)
    broker.turn(2_000_000)
    put(broker, expires=5000)
    broker.turn(2_004_999)
    assert "q" in broker.vhosts["/"].queues
    put(broker, expires=10_000)
    broker.turn(2_014_998)
    assert "q" in broker.vhosts["/"].queues
    broker.turn(2_014_999)
    assert "q" not in broker.vhosts["/"].queues


def test_a_time_without_use_that_is_taken_away_ends_nothing(channel: TestChannel) -> None:
    broker = channel.broker
    broker.turn(1_000_000)
    declare(broker)
    put(broker, expires=5000)
    broker.delete_policy("/", "p")
    broker.turn(9_000_000)
    assert "q" in broker.vhosts["/"].queues


def test_an_alternate_exchange_comes_and_goes_for_publishers_that_have_their_route(
    channel: TestChannel,
) -> None:
    broker = channel.broker
    queue = declare(broker, "lost")
    channel.session.declare_exchange("x", "direct")
    channel.session.declare_exchange("other", "fanout")
    channel.session.bind_queue("lost", "other", "")
    assert channel.publish("k", b"1", exchange="x", mandatory=True).returned
    put(broker, pattern="^x$", apply_to="exchanges", alternate_exchange="other")
    exchange = broker.vhosts["/"].exchanges["x"]
    assert (exchange.applied_policy, exchange.alternate) == ("p", "other")
    assert not channel.publish("k", b"2", exchange="x", mandatory=True).returned
    broker.delete_policy("/", "p")
    assert channel.publish("k", b"3", exchange="x", mandatory=True).returned
    assert queue.ready == 1


def test_the_alternate_exchange_of_an_argument_is_stronger() -> None:
    broker = a_broker()
    a_session(broker).declare_exchange("x", "direct", arguments={"alternate-exchange": "own"})
    put(broker, alternate_exchange="policy")
    assert broker.vhosts["/"].exchanges["x"].alternate == "own"
    a_session(broker).delete_exchange("x")


def test_a_stream_goes_by_the_limits_of_its_policy_and_keeps_its_shards() -> None:
    broker = a_broker()
    stream = a_stream(broker, max_age="2h", stream_pin_bytes_max=10)
    put(broker, max_age="1h", max_length_bytes=99, stream_pin_bytes_max=50, stream_tombstone_lease=7)
    broker.streams.grow(stream, 4)
    policy = stream.policy
    assert (policy.age_ms_max, policy.length_bytes_max, policy.shards) == (3_600_000, 99, 4)
    assert (policy.pin_bytes_max, policy.tombstone_lease_ms) == (10, 7)
    broker.delete_policy("/", "p")
    assert (stream.policy.age_ms_max, stream.policy.length_bytes_max) == (7_200_000, None)
    assert stream.policy.shards == 4


def test_a_declaration_is_compared_with_the_arguments_and_not_with_the_policy() -> None:
    broker = a_broker()
    declare(broker, max_length=5)
    put(broker, max_length=1)
    declare(broker, max_length=5)
    with pytest.raises(PreconditionFailed, match="received the value '1'"):
        declare(broker, max_length=1)


def test_ten_thousand_queues_go_by_a_new_policy_in_some_tens_of_milliseconds() -> None:
    broker = a_broker()
    session = a_session(broker)
    for number in range(10_000):
        session.declare_queue(f"service-{number}.orders")
    for number in range(10):
        put(broker, f"other {number}", pattern=f"^nobody-{number}", priority=number, max_length=1)

    def took(change: Any) -> float:
        started = time.process_time()
        change()
        broker.turn(broker.now_ms)
        return time.process_time() - started

    spent = [took(partial(put, broker, pattern=r"\.orders$", max_length=100 + n)) for n in range(5)]
    spent_deleting = took(lambda: broker.delete_policy("/", "p"))
    assert all(queue.applied_policy is None for queue in broker.queues.values())
    assert min(spent) < 0.2, spent  # some 25 ms where nothing else runs
    assert spent_deleting < 0.5


# What it can say --------------------------------------------------------------------------------------


BAD: dict[str, Any] = {
    "message-ttl": [-1, "1", 1.5, True, None, 1 << 60],
    "expires": [0, -1, "x"],
    "max-length": [-1, []],
    "max-length-bytes": [-1, {}],
    "overflow": ["drop-tail", 1],
    "dead-letter-exchange": [1, "x" * 256],
    "dead-letter-routing-key": [1],
    "delivery-limit": [-1],
    "consumer-timeout": [-1, "30 min"],
    "alternate-exchange": [1],
    "max-age": ["1x", 5, "0s"],
    "stream-tombstone-lease": [-1],
    "stream-pin-bytes-max": [-1],
    "queue-mode": ["fast"],
    "queue-version": [3, True],
    "queue-leader-locator": ["nearest"],
    "initial-cluster-size": [-1],
    "stream-max-segment-size-bytes": ["1"],
    "ha-mode": ["some"],
    "ha-sync-mode": ["x"],
    "ha-sync-batch-size": ["x"],
    "ha-promote-on-shutdown": ["x"],
    "ha-promote-on-failure": ["x"],
    "dead-letter-strategy": ["x"],
    "max-in-memory-length": [-1],
    "max-in-memory-bytes": [-1],
    "queue-master-locator": [1],
    "group": [1, "fast"],
    "cluster-mode": [1, "chain", "standby"],
    "replicate": [1, "some"],
}
GOOD: dict[str, Any] = {
    "overflow": "reject-publish-dlx",
    "dead-letter-exchange": "x",
    "dead-letter-routing-key": "",
    "alternate-exchange": "a",
    "max-age": "7D",
    "queue-mode": "lazy",
    "queue-version": 2,
    "queue-leader-locator": "balanced",
    "ha-mode": "exactly",
    "ha-params": 2,
    "ha-sync-mode": "automatic",
    "ha-promote-on-shutdown": "always",
    "ha-promote-on-failure": "when-synced",
    "dead-letter-strategy": "at-least-once",
    "queue-master-locator": "min-masters",
    "group": "main",
    "cluster-mode": "alone",
    "replicate": "all",
}


def test_every_key_is_tried() -> None:
    assert BAD.keys() | {"ha-params"} == KEYS.keys()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_takes_good_values_and_refuses_others(key: str) -> None:
    broker = a_broker()
    broker.put_policy(PolicySpec("/", "p", ".*", "all", 0, {key: GOOD.get(key, 5)}))
    for value in BAD.get(key, []):
        with pytest.raises(PreconditionFailed, match=r"^Validation failed\n\n"):
            broker.put_policy(PolicySpec("/", "p", ".*", "all", 0, {key: value}))
    assert broker.policies["/", "p"].definition == {key: GOOD.get(key, 5)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"definition": {"message-ttl": "x"}}, 'Validation failed\n\n<<"x">> is not a valid message TTL\n'),
        ({"definition": {"overflow": 1}}, "Validation failed\n\n1 is not a valid overflow value\n"),
        (
            {"definition": {"colour": "red"}},
            'Validation failed\n\n[{<<"colour">>,<<"red">>}] are not recognised policy settings\n',
        ),
        ({"definition": {}}, "Validation failed\n\nno policy provided\n"),
        ({"definition": [1]}, "Validation failed\n\ndefinition must be a dictionary: [1]\n"),
        ({"priority": "x"}, 'Validation failed\n\npriority should be a number, actually was <<"x">>\n'),
        ({"pattern": 7}, "Validation failed\n\npattern should be a binary but was 7\n"),
        ({"pattern": "("}, "Validation failed\n\npattern should be regular expression but is invalid: "),
        ({"apply_to": "people"}, "Validation failed\n\napply-to 'people' unrecognised; should be one of: "),
        ({"name": ""}, "Validation failed\n\nthe name of a policy has 1 to 255 bytes\n"),
        (
            {"definition": {"cluster-mode": "chain"}},
            "Validation failed\n\nmode 'chain' cannot be had: this broker stands",
        ),
        (
            {"definition": {"replicate": "some"}},
            'Validation failed\n\n<<"some">> is not a valid replicate value\n',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_rabbitmqs_words(changes: dict[str, Any], words: str) -> None:
    broker = a_broker()
    given: dict[str, Any] = {
        "name": "p",
        "pattern": "q",
        "apply_to": "all",
        "priority": 0,
        "definition": {"max-length": 1},
    }
    with pytest.raises(PreconditionFailed) as refused:
        broker.put_policy(PolicySpec("/", **(given | changes)))
    assert str(refused.value).startswith(words)
    assert broker.policies == {}


def test_a_cluster_has_the_mode_that_it_has() -> None:
    broker = a_broker()
    broker.mode = "standby"
    put(broker, cluster_mode="standby", replicate="messages")
    with pytest.raises(
        PreconditionFailed, match="mode 'chain' cannot be had: this cluster's mode is 'standby'"
    ):
        put(broker, cluster_mode="chain")


def test_what_is_not_there_is_not_found() -> None:
    broker = a_broker()
    with pytest.raises(NotFound, match="no policy 'p' in vhost '/'"):
        broker.delete_policy("/", "p")
    with pytest.raises(NotFound, match="no operator policy 'p' in vhost '/'"):
        broker.delete_policy("/", "p", operator=True)
    with pytest.raises(NotFound, match="no vhost 'nowhere'"):
        put(broker, vhost="nowhere", max_length=1)


# Patterns that take long ------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [r"^(a|a)*$", r"^(a|aa)+$", r"^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_would_take_for_ever_is_refused_in_no_time(pattern: str) -> None:
    broker = a_broker()
    started = time.thread_time()
    with pytest.raises(PreconditionFailed, match=r"takes too long|invalid"):
        put(broker, pattern=pattern, max_length=1)
    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    "pattern", ["((((a{1000}){1000}){1000}){1000})", "a{99999999}", "(" * 1000, "a" * 1025]
)
def test_a_pattern_that_would_take_all_memory_is_refused(pattern: str) -> None:
    with pytest.raises(PreconditionFailed, match="pattern should"):
        put(a_broker(), pattern=pattern, max_length=1)


def test_a_name_on_which_a_pattern_takes_too_long_does_not_match_and_is_reported() -> None:
    broker = a_broker()
    put(broker, pattern="^q(b|b)*$", max_length=1)  # harmless for all names that are here
    queue = declare(broker, "q" + "b" * 200 + "!")
    assert queue.applied_policy is None
    assert broker.slow_patterns() == [("/", "p")]
    assert broker.slow_patterns() == []
    assert declare(broker, "qbb").applied_policy == "p"


def test_many_names_on_which_a_pattern_takes_too_long_cost_little() -> None:
    broker = a_broker()
    for number in range(500):
        declare(broker, "q" + "b" * 200 + str(number))
    broker.put(PolicySpec("/", "p", "^q(b|b)*$", "all", 0, {"max-length": 1}))
    started = time.thread_time()
    broker.put(PolicySpec("/", "p", "^q(b|b)*$", "all", 0, {"max-length": 2}))
    assert time.thread_time() - started < 2


def test_names_on_which_a_pattern_takes_too_long_take_it_from_no_other_name() -> None:
    broker = a_broker()
    put(broker, "dead", pattern="^q(b|b)*$", apply_to="queues", dead_letter_exchange="d")
    put(broker, "over it", pattern="^q", apply_to="queues", priority=5, max_length=9)
    for number in range(8):
        declare(broker, "q" + "b" * 200 + f"{number}!")
    queue = declare(broker, "qb")
    broker.delete_policy("/", "over it")
    assert queue.applied_policy == "dead"
    again = a_broker(replaying=broker.image())
    assert again.vhosts["/"].queues["qb"].applied_policy == "dead"


def test_many_names_on_which_a_pattern_takes_nearly_too_long_cost_little() -> None:
    broker = a_broker()
    for number in range(500):
        declare(broker, "ab" * 13 + str(number))
    started = time.process_time()
    with pytest.raises(PreconditionFailed, match="takes too long"):
        put(broker, pattern="^(a|b|ab)*[xy]$", max_length=1)
    broker.put(PolicySpec("/", "p", "^(a|b|ab)*[xy]$", "all", 0, {"max-length": 2}))
    assert time.process_time() - started < 3
    assert broker.slow_patterns() == [("/", "p")]


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        ("^amq\\.", True),
        (".*", True),
        (r"^(?!amq\.).*", True),
        ("^(a|b|c)$", True),
        ("a*b*", False),
        ("(ab)*", False),
        ("(a|a)+", False),
        ("a?b?", False),
        (r"(a)\1", False),
    ],
)
def test_patterns_that_repeat_one_thing_are_left_to_python(pattern: str, quick: bool) -> None:
    assert is_quick(pattern) is quick
    Pattern(pattern).search("amq.gen-abc")


@pytest.mark.parametrize(
    "pattern",
    [r"(?:foo){e<=3}x*", r"(a|b)+\{e}", r"(a)+\\{e}", "[{e}]+a*", "(a){2}b*", "(a){,2}b*{", "{}a*b*"],
)
def test_a_pattern_that_may_take_long_means_the_same_as_in_python(pattern: str) -> None:
    for name in ("foo", "zzz", "foo{e<=3}xx", "ab{e}", "a\\{e}", "{", "aab", "aab{", "e", "{}"):
        assert not is_quick(pattern)
        assert bool(Pattern(pattern).search(name)) == bool(re.search(pattern, name)), name


# Kept -------------------------------------------------------------------------------------------------


def test_policies_are_in_the_catalog_and_in_force_after_a_restart() -> None:
    broker = a_broker()
    declare(broker)
    a_session(broker).declare_exchange("x", "direct", durable=True)
    put(broker, max_length=5, alternate_exchange="a")
    put(broker, "o", operator=True, max_length=4)
    put(broker, "gone", max_length=1)
    broker.delete_policy("/", "gone")
    for replayed in (broker.catalog.changes, broker.image()):
        again = a_broker(replaying=replayed)
        queue = again.vhosts["/"].queues["q"]
        assert (queue.applied_policy, queue.applied_operator_policy, queue.policy.length_max) == ("p", "o", 4)
        assert again.vhosts["/"].exchanges["x"].alternate == "a"
        assert again.image() == broker.image()


@pytest.mark.parametrize("pattern", ["{}", "q{,}"])
def test_a_count_without_numbers_is_no_reason_to_fail(pattern: str) -> None:
    broker = a_broker()
    put(broker, pattern=pattern, max_length=1)
    assert a_broker(replaying=broker.image()).policies == broker.policies


def test_policies_go_with_their_virtual_host() -> None:
    broker = a_broker(vhosts=("/", "other"))
    put(broker, vhost="other", max_length=1)
    put(broker, vhost="other", operator=True, max_length=1)
    put(broker, max_length=2)
    broker.delete_vhost("other")
    assert (list(broker.policies), broker.operator_policies) == ([("/", "p")], {})
    broker.put(VhostSpec("other"))
    session = a_session(broker)
    assert session.vhost.rules.applied("classic", "q").policy == "p"
    assert broker.vhosts["other"].rules.applied("classic", "q").policy is None


def test_a_policy_of_an_older_catalog_that_was_never_checked_does_no_harm() -> None:
    broker = a_broker()
    queue = declare(broker)
    broker.put(PolicySpec("/", "p", ".*", "all", 0, {"colour": 1, "max-length": 3, "expires": "soon"}))
    broker.put(PolicySpec("/", "bad", "(", "queues", 9, {"max-length": 1}))
    broker.put(PolicySpec("/", "odd", ".*", "people", 9, {"max-length": 1}))
    assert (queue.applied_policy, queue.policy.length_max, queue.policy.expires_ms) == ("p", 3, None)


def test_definitions_carry_policies_and_operator_policies_as_rabbitmq_writes_them() -> None:
    broker = a_broker()
    put(broker, "p", "^q", "classic_queues", 7, max_length=5)
    put(broker, "o", operator=True, max_length=4)
    document = export(broker)
    assert document["policies"] == [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^q",
            "apply-to": "classic_queues",
            "priority": 7,
            "definition": {"max-length": 5},
        }
    ]
    assert document["parameters"] == [
        {
            "vhost": "/",
            "component": "operator_policy",
            "name": "o",
            "value": {"pattern": ".*", "apply-to": "all", "priority": 0, "definition": {"max-length": 4}},
        }
    ]
    other = a_broker()
    queue = declare(other)
    import_definitions(other, document)
    assert (queue.applied_policy, queue.applied_operator_policy, queue.policy.length_max) == ("p", "o", 4)
    assert import_definitions(other, document).made == {}
    assert export(other)["policies"] == document["policies"]
