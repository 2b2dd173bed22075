"""The cluster as the management API shows it, on real brokers, while one of them dies."""

from __future__ import annotations

import os
import shutil
import socket
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
    """Q-12: membership is shown by every member, and whoever watches is told of a change when it happens.

    K-40: roles, place by place. K-62, K-64: the takeover table has one row more after a takeover.
    """
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
    admin = cluster.trial.members[leader].admin
    assert refused.json()["reason"] == f"this is {tail}, which is ready: {leader} leads; ask it at {admin}"
    # Nobody needs to be refused to learn it.
    standing = follower.get("/tidemark/standing")
    assert (standing["leads"], standing["leader"], standing["leader_admin"]) == (False, leader, admin)
    headers = follower("GET", "/whoami").headers
    assert [headers[f"x-tidemark-{word}"] for word in ("member", "state", "leader", "leader-admin")] == [
        tail,
        "ready",
        leader,
        admin,
    ]
    assert apis[leader].get("/tidemark/standing")["leads"]
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
    assert 0 < newest["took_ms"] < 30_000
    assert abs(newest["at_ms"] - time.time() * 1000) < 60_000
    assert eventually(lambda: len(follower.get("/histories")) > histories, 20)
    assert eventually(lambda: members(follower)[leader]["state"] == "away", 20)


def test_a_change_that_is_long_in_coming_is_refused_when_another_leads_meanwhile(cluster: Cluster) -> None:
    """Made here it would part the log of this member from those of the others."""
    apis = {name: api_of(cluster, name) for name in cluster.names}
    found = eventually(
        lambda: (
            (seen := members(apis[cluster.names[0]]))
            and all(one["state"] in ("active", "ready") for one in seen.values())
            and seen
        )
    )
    leader = next(name for name, one in found.items() if one["leader"])
    heir = next(name for name, one in found.items() if not one["leader"])
    address, body = apis[leader].address, b'{"pattern": "x", "definition": {"max-length": 1}}'
    with socket.create_connection((address.host, address.port), 20) as link:
        link.sendall(
            b"PUT /api/policies/%2F/late HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body[:1]
        )
        time.sleep(0.2)
        assert apis[heir]("POST", "/tidemark/cluster/promote", {}).status_code == 200
        eventually(lambda: apis[leader]("PUT", "/queues/%2F/other", {}).status_code == 503, 20)
        link.sendall(body[1:])
        assert link.recv(65536).split()[1] == b"503"
    eventually(lambda: apis[heir]("PUT", "/queues/%2F/after", {}).status_code in (201, 204), 20)
    for api in apis.values():
        eventually(lambda api=api: api("GET", "/queues/%2F/after").status_code == 200, 20)
        assert api.get("/policies") == []


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
