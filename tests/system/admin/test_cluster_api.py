"""The cluster as the management API shows it, on real brokers, while one of them dies."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.amqp import eventually
from helpers.api import Api, live
from helpers.broker import parse_address
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    running = Cluster(tmp_path_factory.mktemp("admin-cluster") / "trial", "chain").start()
    yield running
    running.close()


def api_of(cluster: Cluster, name: str) -> Api:
    return Api(parse_address(cluster.trial.members[name].admin))


def members(api: Api) -> dict[str, Any]:
    return {one["name"]: one for one in api.get("/members")}


def test_members_takeovers_and_the_takeover_table_follow_a_failover_live(cluster: Cluster) -> None:
    apis = {name: api_of(cluster, name) for name in cluster.names}
    before = eventually(
        lambda: (
            (found := members(apis[cluster.names[0]]))
            and sorted(one["role"] for one in found.values()) == ["head", "middle", "tail"]
            and found
        )
    )
    [leader] = [name for name, one in before.items() if one["leader"]]
    tail = next(name for name, one in before.items() if one["role"] == "tail")
    for api in apis.values():
        seen = members(api)
        assert set(seen) == set(cluster.names)
        assert {name: one["admin"] for name, one in seen.items()} == {
            name: cluster.trial.members[name].admin for name in cluster.names
        }
        assert [name for name, one in seen.items() if one["leader"]] == [leader]
        assert all(one["mode"] == "chain" for one in seen.values())
    led = members(apis[leader])
    assert led[leader]["position"] == 0 and led[leader]["here"]
    assert [one["lag"] for one in led.values() if one["lag"] is not None], (
        "the head knows how far the next one is"
    )

    # Whoever does not lead shows everything, lets people log in, and changes nothing.
    follower = apis[tail]
    token = follower.token()
    refused = follower("PUT", "/queues/%2F/elsewhere", {}, headers={"Authorization": f"Bearer {token}"})
    assert (refused.status_code, refused.json()["error"]) == (503, "not_leading")
    epoch = before[leader]["epoch"]
    histories = len(follower.get("/histories"))

    with live(follower, "/members", "/takeovers") as events:
        next(events), next(events)
        cluster.kill(leader)
        killed = time.monotonic()
        heir = None
        for _, data in events:
            if data["path"] == "/members":
                heir = next((one for one in data["body"] if one["leader"] and one["name"] != leader), None)
            if heir is not None or time.monotonic() - killed > 30:
                break
    assert heir is not None and heir["epoch"] > epoch
    assert heir["role"] == "head"

    [newest, *_] = eventually(
        lambda: (rows := follower.get("/takeovers")) and rows[0]["epoch"] > epoch and rows, 20
    )
    assert (newest["from"], newest["to"]) == (leader, heir["name"])
    assert 100 < newest["took_ms"] < 30_000
    assert abs(newest["at_ms"] - time.time() * 1000) < 60_000
    assert eventually(lambda: len(follower.get("/histories")) > histories, 20)
    assert eventually(lambda: members(follower)[leader]["state"] == "away", 20)


def test_a_promotion_by_a_command_is_audited(cluster: Cluster) -> None:
    name = cluster.names[0]
    found = members(api_of(cluster, name))
    [leader] = [one["name"] for one in found.values() if one["leader"]]
    backup = next(one["name"] for one in found.values() if not one["leader"])
    answer = api_of(cluster, leader)("POST", "/tidemark/cluster/nonsense", {})
    assert answer.status_code == 404
    api_of(cluster, backup)("POST", "/tidemark/cluster/promote", {})
    audit = (cluster.trial.data(backup) / "audit.jsonl").read_text()
    assert '"path": "/api/tidemark/cluster/promote"' in audit
