"""How much of a queue a cluster keeps (x-replicate, the policy key and the setting), with real processes.

What each member holds is asked of its management API; a queue that a member does not have is None there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.etcd import PROGRAM
from pika.exceptions import ChannelClosedByBroker
from system.cluster.cluster import PERSISTENT, Cluster, drained, fresh, wait_until

pytestmark = pytest.mark.timeout(240)

MODES = ("standby", "chain")
WAYS = ("none", "configuration", "messages")
KEPT: dict[str, int | None] = {"none": None, "configuration": 0, "messages": 3}
"""What is left of three messages when another member leads."""


def declare(cluster: Cluster, name: str, way: str | None = None, exchange: str = "amq.fanout") -> str:
    with cluster.channel() as channel:
        arguments = None if way is None else {"x-replicate": way}
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, exchange, name)
    return name


def publish(cluster: Cluster, key: str, *numbers: int, exchange: str = "") -> None:
    """Persistent, each confirmed."""
    with cluster.channel() as channel:
        channel.confirm_delivery()
        for number in numbers:
            channel.basic_publish(exchange, key, b"%d" % number, PERSISTENT, mandatory=True)


def delete(cluster: Cluster, *names: str) -> None:
    """Members differ in what they hold of these; the next test may want to see them equal."""
    with cluster.channel() as channel:
        for name in names:
            channel.queue_delete(name)


def held(cluster: Cluster, member: str, *names: str) -> dict[str, int | None]:
    found = cluster.queues(member)
    return {name: found.get(name) for name in names}


def await_held(cluster: Cluster, member: str, expected: dict[str, int | None]) -> None:
    """Counts of the management API follow within a moment."""
    wait_until(f"{member} has {expected}", lambda: held(cluster, member, *expected) == expected)


def ends(cluster: Cluster) -> dict[str, Any]:
    return {name: seen.status["durable"] for name, seen in cluster.look().items()}


def test_a_failover_leaves_of_each_queue_what_it_asked_for(cluster: Cluster) -> None:
    """H-21 (none: absent on the others), H-22 (configuration: there, empty, its binding works), H-23 (messages: all of it)."""
    names = {way: fresh(way) for way in WAYS}
    for way, name in names.items():
        declare(cluster, name, way)
        publish(cluster, name, 1, 2, 3)
    leader = cluster.leader
    await_held(cluster, leader, dict.fromkeys(names.values(), 3))
    for backup in cluster.backups:
        await_held(cluster, backup, {names[way]: KEPT[way] for way in WAYS})

    cluster.kill(leader)
    await_held(cluster, cluster.leader, {names[way]: KEPT[way] for way in WAYS})
    publish(cluster, "", 4, exchange="amq.fanout")
    assert drained(cluster, names["configuration"]) == [4]
    assert drained(cluster, names["messages"]) == [1, 2, 3, 4]
    cluster.whole()
    for member in cluster.names:
        await_held(
            cluster,
            member,
            {names["none"]: None, names["configuration"]: 0, names["messages"]: 0},
        )
    cluster.await_equal()
    delete(cluster, *names.values())


def test_using_a_queue_that_is_not_replicated_is_no_matter_of_the_others(cluster: Cluster) -> None:
    """A-2: unreplicated queues coexist with replicated ones; their use adds nothing to the logs that members read."""
    names = {way: declare(cluster, fresh(way), way) for way in ("none", "configuration")}
    wait_until("the logs are alike", lambda: len({str(one) for one in ends(cluster).values()}) == 1)
    before = ends(cluster)
    for name in names.values():
        publish(cluster, name, *range(300))
        assert drained(cluster, name) == list(range(300))
    assert ends(cluster) == before
    kept = declare(cluster, fresh("messages"))
    publish(cluster, kept, 1)
    assert ends(cluster) != before, "else the logs are not what is looked at"
    delete(cluster, kept, *names.values())


def test_a_message_to_several_kinds_is_kept_by_those_that_keep(cluster: Cluster) -> None:
    """A crash of all members: the one record that names all of them fills only the queue that keeps its messages."""
    names = {way: declare(cluster, fresh(way), way) for way in WAYS}
    publish(cluster, "", 1, 2, 3, exchange="amq.fanout")
    await_held(cluster, cluster.leader, dict.fromkeys(names.values(), 3))
    cluster.kill(*cluster.names)
    cluster.whole()
    for member in cluster.names:
        await_held(cluster, member, {names[way]: KEPT[way] for way in WAYS})
    assert drained(cluster, names["messages"]) == [1, 2, 3]
    cluster.await_equal()
    delete(cluster, *names.values())


def test_a_policy_decides_for_queues_that_are_declared_from_then_on(cluster: Cluster) -> None:
    name, policy = fresh("governed"), fresh("policy")
    declare(cluster, name)
    publish(cluster, name, 1, 2, 3)
    rule = {"pattern": f"^{name}", "definition": {"replicate": "configuration"}, "apply-to": "queues"}
    cluster.admin(cluster.leader, "PUT", f"/api/policies/%2F/{policy}", rule)
    later = declare(cluster, f"{name}-later")
    publish(cluster, later, 1, 2, 3)
    cluster.kill(cluster.leader)
    await_held(cluster, cluster.leader, {name: 3, later: 0})
    cluster.whole()
    cluster.admin(cluster.leader, "DELETE", f"/api/policies/%2F/{policy}")
    delete(cluster, name, later)


def test_what_cannot_be_is_said_to_the_client(cluster: Cluster) -> None:
    for arguments, words in (
        ({"x-replicate": "some"}, "'some' is none of"),
        ({"x-replicate": "none", "x-queue-type": "stream"}, "a queue of type 'stream' is on all members"),
    ):
        with cluster.channel() as channel, pytest.raises(ChannelClosedByBroker) as refused:
            channel.queue_declare(fresh("never"), durable=True, arguments=arguments)
        assert refused.value.reply_code == 406
        assert words in refused.value.reply_text


# The setting ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[(mode, default) for mode in MODES for default in WAYS], ids=" ".join)
def defaulting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    """Two members with a setting of their own, in each mode."""
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    mode, default = request.param
    cluster = Cluster(tmp_path / "cluster", mode, nodes=2, settings={"cluster.replicate": default})
    yield cluster.start(), default
    cluster.close()


@pytest.mark.slow
def test_the_setting_decides_where_the_argument_does_not(defaulting: tuple[Cluster, str]) -> None:
    """H-24: broker default × argument, 3 × 4, each seen before and after a failover."""
    cluster, default = defaulting
    expected: dict[str, int | None] = {}
    for way in (None, *WAYS):
        name = declare(cluster, fresh(way or "unsaid"), way)
        publish(cluster, name, 1, 2, 3)
        expected[name] = KEPT[way or default]
    await_held(cluster, cluster.leader, dict.fromkeys(expected, 3))
    await_held(cluster, cluster.backups[0], expected)
    cluster.kill(cluster.leader)
    await_held(cluster, cluster.leader, expected)
