"""Policies in a cluster: every member knows them, only the leader acts by them, and who leads next goes on by them."""

from __future__ import annotations

import time
import urllib.error
from typing import Any
from urllib.parse import quote

import pytest
from system.cluster.cluster import PERSISTENT, Cluster, drained, fresh, wait_until

pytestmark = pytest.mark.timeout(240)


def put_policy(
    cluster: Cluster, name: str, pattern: str, definition: dict[str, Any], kind: str = "policies"
) -> None:
    body = {"pattern": pattern, "definition": definition, "apply-to": "queues", "priority": 1}
    cluster.admin(cluster.leader, "PUT", f"/api/{kind}/%2F/{name}", body)


def governed(cluster: Cluster, member: str, queue: str) -> tuple[str | None, str | None, dict[str, Any]]:
    found = cluster.admin(member, "GET", f"/api/queues/%2F/{quote(queue)}")
    return found["policy"], found["operator_policy"], found["effective_policy_definition"]


def publish(cluster: Cluster, queue: str, first: int, last: int) -> None:
    with cluster.channel() as channel:
        channel.confirm_delivery()
        for number in range(first, last + 1):
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT, mandatory=True)


def test_a_policy_and_what_it_ended_outlive_the_leader(cluster: Cluster) -> None:
    queue, policy = fresh("governed"), fresh("policy")
    cluster.declare(queue)
    publish(cluster, queue, 1, 20)
    put_policy(cluster, policy, f"^{queue}$", {"max-length": 9})
    put_policy(cluster, policy, f"^{queue}$", {"max-length": 7}, "operator-policies")
    leader = cluster.leader
    expected = (policy, policy, {"max-length": 7})
    wait_until("the leader acts by it", lambda: cluster.queues(leader)[queue] == 7)
    for member in cluster.names:
        wait_until(f"{member} knows it", lambda member=member: governed(cluster, member, queue) == expected)
        wait_until(f"{member} has as many", lambda member=member: cluster.queues(member)[queue] == 7)
    cluster.await_equal()

    cluster.kill(leader)
    assert governed(cluster, cluster.leader, queue) == expected
    publish(cluster, queue, 21, 23)
    assert drained(cluster, queue) == [17, 18, 19, 20, 21, 22, 23]
    cluster.whole()
    cluster.await_equal()
    assert governed(cluster, leader, queue) == expected


def test_a_member_that_was_away_while_a_policy_became_stricter_has_what_the_leader_left(
    cluster: Cluster,
) -> None:
    """What ended meanwhile comes to it with the journal; it ends nothing by itself, and nothing else."""
    queue, policy = fresh("waiting"), fresh("policy")
    put_policy(cluster, policy, f"^{queue}$", {"message-ttl": 60_000, "max-length": 5})
    cluster.declare(queue)
    publish(cluster, queue, 1, 5)
    cluster.await_equal()
    away = cluster.backups[0]
    cluster.kill(away)
    put_policy(cluster, policy, f"^{queue}$", {"max-length": 3})
    cluster.restart(away)
    cluster.whole()
    cluster.await_equal()
    for member in cluster.names:
        assert cluster.queues(member)[queue] == 3
    assert drained(cluster, queue) == [3, 4, 5]


def test_a_policy_that_is_deleted_does_not_come_back_with_a_member_that_was_away(cluster: Cluster) -> None:
    queue, policy = fresh("free"), fresh("policy")
    cluster.declare(queue)
    put_policy(cluster, policy, f"^{queue}$", {"max-length": 1})
    away = cluster.backups[0]
    wait_until("it is everywhere", lambda: governed(cluster, away, queue)[0] == policy)
    cluster.kill(away)
    cluster.admin(cluster.leader, "DELETE", f"/api/policies/%2F/{policy}")
    cluster.restart(away)
    cluster.whole()
    wait_until("it is gone everywhere", lambda: governed(cluster, away, queue) == (None, None, {}))
    cluster.kill(cluster.leader)
    publish(cluster, queue, 1, 3)
    time.sleep(0.2)
    assert drained(cluster, queue) == [1, 2, 3]


def test_a_policy_cannot_ask_for_another_mode_than_the_clusters(cluster: Cluster) -> None:
    other = "chain" if cluster.mode == "standby" else "standby"
    put_policy(cluster, fresh("policy"), "^nothing$", {"cluster-mode": cluster.mode, "replicate": "all"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        put_policy(cluster, fresh("policy"), "^nothing$", {"cluster-mode": other})
    assert refused.value.code == 400
    assert f"this cluster's mode is '{cluster.mode}'" in refused.value.read().decode()
