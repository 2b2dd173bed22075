"""Where a queue lives: what is asked for, who decides, and the stand-in that main has for a queue of another group."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from builders import a_broker, a_queue, a_session
from unit.broker.channel import a_channel

from tidemark.broker.broker import Broker
from tidemark.broker.definitions import export, import_definitions
from tidemark.broker.groups import place
from tidemark.broker.queue import Queue
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import PolicySpec, QueueSpec

GROUPS = {"fast": "chain", "wide": "chain", "safe": "standby"}


def a_main(**groups: str) -> Broker:
    """A broker that leads main, in a cluster with these other groups."""
    broker = a_broker()
    broker.mode, broker.other_groups = "standby", groups or GROUPS
    return broker


def declared(broker: Broker, name: str = "q", **arguments: Any) -> Queue:
    return a_queue(
        broker, name, durable=True, arguments={key.replace("_", "-"): arguments[key] for key in arguments}
    )


def governed(broker: Broker, pattern: str = ".*", **definition: Any) -> None:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    broker.put_policy(PolicySpec("/", f"p{pattern}", pattern, "all", 0, keys))


# Who decides ------------------------------------------------------------------------------------------------------


def test_a_queue_without_a_wish_lives_in_main() -> None:
    assert declared(a_main()).spec.group == ""


def test_a_queue_lives_in_the_group_that_it_asks_for() -> None:
    broker = a_main()
    assert declared(broker, "a", x_group="fast").spec.group == "fast"
    assert declared(broker, "b", x_group="main").spec.group == ""
    assert declared(broker, "c", x_group=b"safe").spec.group == "safe"
    assert declared(broker, "d", x_group="wide", x_cluster_mode="chain").spec.group == "wide"


def test_a_queue_that_asks_for_a_mode_lives_in_a_group_that_has_it() -> None:
    broker = a_main()
    names = [f"q{n}" for n in range(200)]
    chained = Counter(declared(broker, name, x_cluster_mode="chain").spec.group for name in names)
    assert set(chained) == {"fast", "wide"} and min(chained.values()) > 60
    standby = Counter(declared(broker, name + "s", x_cluster_mode="standby").spec.group for name in names)
    assert set(standby) == {"", "safe"} and min(standby.values()) > 60, "main has this mode, too"


def test_the_choice_among_groups_is_always_the_same_and_new_groups_leave_most_queues_where_they_are() -> None:
    specs = [QueueSpec("/", f"q{n}", True, arguments={"x-cluster-mode": "chain"}) for n in range(300)]
    two = {"main": "standby", "a": "chain", "b": "chain"}
    chosen = [place(spec, two) for spec in specs]
    assert chosen == [place(spec, dict(reversed(two.items()))) for spec in specs]
    assert place(QueueSpec("/", "orders", True, arguments={"x-cluster-mode": "chain"}), two) == "b"
    moved = [
        new
        for old, new in zip(chosen, (place(s, two | {"c": "chain"}) for s in specs), strict=True)
        if new != old
    ]
    assert set(moved) == {"c"} and len(moved) < 150


def test_a_policy_stands_between_the_wish_and_main() -> None:
    broker = a_main()
    governed(broker, "^fast", group="fast")
    governed(broker, "^chained", cluster_mode="chain")
    governed(broker, "^both", group="safe", cluster_mode="chain")
    assert declared(broker, "fast.1").spec.group == "fast"
    assert declared(broker, "fast.2", x_group="safe").spec.group == "safe"
    assert declared(broker, "fast.3", x_cluster_mode="standby").spec.group in ("", "safe")
    assert declared(broker, "chained").spec.group in ("fast", "wide")
    assert declared(broker, "both").spec.group == "safe", "a group is the stronger wish"
    assert declared(broker, "other").spec.group == ""


def test_a_policy_passes_by_what_cannot_live_elsewhere_and_groups_that_are_gone() -> None:
    broker = a_main()
    governed(broker, group="fast")
    session = a_session(broker)
    session.declare_queue("transient")
    session.declare_queue("mine", exclusive=True)
    session.declare_queue("short", durable=True, auto_delete=True)
    session.declare_queue("expiring", durable=True, arguments={"x-expires": 1000})
    named = session.declare_queue("", durable=True).name
    queues = broker.vhosts["/"].queues
    names = ("transient", "mine", "short", "expiring", named)
    assert [queues[name].spec.group for name in names] == [""] * 5
    broker.other_groups = {"safe": "standby"}
    assert declared(broker, "later").spec.group == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-group": "slow"}, "invalid arg 'x-group'.* no group 'slow', only 'main', 'fast', 'wide', 'safe'"),
        (
            {"x-cluster-mode": "ring"},
            r"invalid arg 'x-cluster-mode'.* no group has the mode 'ring'; there is 'main' \('standby'\)",
        ),
        ({"x-group": "fast", "x-cluster-mode": "standby"}, "mode of group 'fast' is 'chain', not 'standby'"),
        ({"x-group": 7}, "unacceptable_type"),
        ({"x-cluster-mode": True}, "unacceptable_type"),
    ],
)
def test_a_wish_for_what_there_is_not_is_refused(arguments: dict[str, Any], words: str) -> None:
    broker = a_main()
    with pytest.raises(PreconditionFailed, match=words):
        a_session(broker).declare_queue("q", durable=True, arguments=arguments)
    assert "q" not in broker.vhosts["/"].queues


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "a queue that is not durable lives in the group 'main'"),
        ({"exclusive": True}, "lives in the group 'main'"),
        ({"durable": True, "auto_delete": True}, "an auto-delete queue"),
        ({"durable": True, "arguments": {"x-expires": 1000}}, "a queue that expires"),
        ({"durable": True, "name": ""}, "a queue that the broker has named"),
    ],
)
@pytest.mark.parametrize("wish", [{"x-group": "fast"}, {"x-cluster-mode": "chain"}])
def test_a_wish_of_a_queue_that_must_be_in_main_is_refused(
    options: dict[str, Any], words: str, wish: dict[str, Any]
) -> None:
    session = a_session(a_main())
    options = {"name": "q", **options, "arguments": {**options.get("arguments", {}), **wish}}
    with pytest.raises(PreconditionFailed, match=words):
        session.declare_queue(options.pop("name"), **options)


def test_a_wish_that_main_itself_meets_is_for_every_queue() -> None:
    session = a_session(a_main())
    for name, wish in (("a", {"x-group": "main"}), ("b", {"x-cluster-mode": "standby"})):
        session.declare_queue(name, arguments=wish)
        assert session.vhost.queues[name].spec.group == ""


def test_a_broker_that_stands_alone_has_one_group_and_its_mode() -> None:
    session = a_session(a_broker())
    session.declare_queue("q", durable=True, arguments={"x-group": "main", "x-cluster-mode": "alone"})
    with pytest.raises(PreconditionFailed, match="only 'main'"):
        session.declare_queue("r", durable=True, arguments={"x-group": "fast"})
    with pytest.raises(PreconditionFailed, match="no group has the mode 'chain'"):
        session.declare_queue("r", durable=True, arguments={"x-cluster-mode": "chain"})


def test_in_another_group_a_queue_is_here_whatever_chose_the_group() -> None:
    broker = a_broker()
    broker.mode, broker.group = "chain", "fast"
    for name, arguments in (
        ("a", {"x-group": "fast"}),
        ("b", {"x-cluster-mode": "chain"}),
        ("c", {"x-cluster-mode": "standby"}),
    ):
        assert a_queue(broker, name, durable=True, arguments=arguments).spec.group == ""
    with pytest.raises(PreconditionFailed, match="this is the group 'fast'; declare it in 'main'"):
        a_queue(broker, "d", durable=True, arguments={"x-group": "safe"})


def test_the_wishes_are_compared_when_a_queue_is_declared_again() -> None:
    broker = a_main()
    declared(broker, x_group="fast")
    declared(broker, x_group="fast")
    for other in ({}, {"x-group": "safe"}, {"x-group": "fast", "x-cluster-mode": "chain"}):
        with pytest.raises(
            PreconditionFailed, match=r"inequivalent arg 'x-(group|cluster-mode)' for queue 'q'"
        ):
            a_session(broker).declare_queue("q", durable=True, arguments=other)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"group": "slow"}, "group 'slow' cannot be had: there is only 'main', 'fast', 'wide', 'safe'"),
        ({"cluster-mode": "ring"}, "mode 'ring' cannot be had"),
        ({"group": 5}, "5 is not a valid group"),
    ],
)
def test_a_policy_for_what_there_is_not_is_refused(definition: dict[str, Any], words: str) -> None:
    with pytest.raises(PreconditionFailed, match=words):
        governed(a_main(), **definition)


# The stand-in ------------------------------------------------------------------------------------------------------


def test_the_stand_in_is_a_durable_queue_that_takes_messages_and_bindings() -> None:
    broker = a_main()
    queue = declared(broker, x_group="fast")
    assert queue.durable and queue.spec.in_catalog and queue.number in broker.journaled
    channel = a_channel(broker)
    channel.session.bind_queue("q", "amq.fanout", "")
    channel.publish("", b"by another way", exchange="amq.fanout", delivery_mode=2)
    assert channel.drain("q") == [b"by another way"]


def test_the_stand_in_is_on_every_member_however_little_of_the_queue_is_kept() -> None:
    broker = a_main()
    queue = declared(broker, x_group="fast", x_replicate="none")
    assert queue.spec.replicate == "messages" and queue.spec.in_catalog


def test_no_policy_lets_the_stand_in_expire() -> None:
    """Whoever uses the queue does so in its group: here it always looks unused."""
    broker = a_main()
    channel = a_channel(broker)
    declared(broker, x_group="fast")
    declared(broker, "here")
    governed(broker, expires=100)
    channel.turn(1000)
    assert list(broker.vhosts["/"].queues) == ["q"]


def test_the_group_is_in_the_catalog_and_comes_back_from_it() -> None:
    broker = a_main()
    declared(broker, x_cluster_mode="chain")
    group = broker.vhosts["/"].queues["q"].spec.group
    for changes in (broker.catalog.changes, broker.image()):  # type: ignore[attr-defined]
        again = a_broker(replaying=changes)
        assert again.vhosts["/"].queues["q"].spec.group == group, "whatever groups there are then"


OLD_IMAGE = [
    {"op": "numbers.put", "next": 8},
    {"op": "vhost.put", "name": "/", "description": "", "tags": []},
    {"op": "user.put", "name": "guest", "password_hash": "", "tags": ["administrator"]},
    {"op": "permission.put", "user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
    {"op": "queue.put", "vhost": "/", "name": "old", "durable": True, "exclusive": False, "auto_delete": False,
     "arguments": {"x-max-length": 5}, "number": 3},
    {"op": "queue.put", "vhost": "/", "name": "newer", "durable": True, "exclusive": False, "auto_delete": False,
     "arguments": {}, "number": 7, "replicate": "configuration"},
    {"op": "binding.put", "vhost": "/", "source": "amq.direct", "destination": "old", "to_queue": True, "key": "k",
     "arguments": {}},
]  # fmt: skip


def test_a_catalog_from_before_there_were_groups_is_read_as_it_was_meant() -> None:
    broker = a_broker(replaying=[json.dumps(change).encode() for change in OLD_IMAGE])
    queues = broker.vhosts["/"].queues
    assert {name: (queue.number, queue.spec.group) for name, queue in queues.items()} == {
        "old": (3, ""),
        "newer": (7, ""),
    }
    a_session(broker).declare_queue("old", durable=True, arguments={"x-max-length": 5})
    assert a_queue(broker, "next", durable=True).number == 8


def test_definitions_carry_the_wish_and_are_placed_anew() -> None:
    broker = a_main()
    declared(broker, x_group="fast")
    document = export(broker)
    [queue] = document["queues"]
    assert queue["arguments"] == {"x-group": "fast"} and "group" not in queue
    other = a_main(fast="chain")
    import_definitions(other, document)
    assert other.vhosts["/"].queues["q"].spec.group == "fast"
    nowhere = a_broker()
    with pytest.raises(PreconditionFailed, match="no group 'fast'"):
        import_definitions(nowhere, document)
    assert not nowhere.vhosts["/"].queues


# Deleting -----------------------------------------------------------------------------------------------------------


def test_a_queue_of_another_group_is_deleted_through_a_front_only() -> None:
    """LC3: one that is declared again is a new one, never the old one with its messages."""
    broker = a_main()
    declared(broker, "q", x_group="fast")
    with pytest.raises(PreconditionFailed, match="lives in group 'fast': delete it through a front"):
        a_session(broker).delete_queue("q")
    by_front = broker.open_session("/", "guest", None, "front", by_front=True)
    by_front.delete_queue("q")
    assert "q" not in broker.vhosts["/"].queues


def test_a_virtual_host_is_not_deleted_while_it_has_queues_elsewhere() -> None:
    broker = a_main()
    declared(broker, "q", x_group="fast")
    declared(broker, "here")
    with pytest.raises(PreconditionFailed, match="has 1 queues in other groups, such as 'q' in 'fast'"):
        broker.delete_vhost("/")
    assert set(broker.vhosts["/"].queues) == {"q", "here"}


def test_what_is_left_of_a_group_that_is_gone_can_be_deleted() -> None:
    broker = a_main()
    declared(broker, "q", x_group="fast")
    declared(broker, "r", x_group="fast")
    broker.other_groups = {"safe": "standby"}
    a_session(broker).delete_queue("q")
    broker.delete_vhost("/")
    assert not broker.vhosts
