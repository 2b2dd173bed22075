"""One cluster with both modes at once, behind fronts: main (standby) and fast (chain), three members each, three fronts.

Members and fronts are killed under load; nothing confirmed is lost, publishing goes on, and every queue keeps its order.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import httpx
import pytest
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, Consumer, Publisher, fresh, judge, wait_until

from tidemark import config as configuration
from tidemark.cli.doctor import network
from tidemark.cli.trial import Mode

GROUPS: dict[str, Mode] = {"main": "standby", "fast": "chain"}
FAILOVER_S = 6.0
"""Longer than it takes, on a machine that does other things as well."""
LOG_LINES = 40

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    made = Cluster(tmp_path_factory.mktemp("together"), "standby", groups=GROUPS)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, shared: Cluster) -> Iterator[Cluster]:
    failed = request.session.testsfailed
    yield shared.whole()
    if request.session.testsfailed > failed:
        for name in (*shared.trial.members, *shared.trial.fronts):
            print(f"--- {name}", *shared.log(name).splitlines()[-LOG_LINES:], sep="\n")


class Wired:
    """A topic exchange with a queue of main, and queues of fast that came there by x-cluster-mode, by x-group and by a policy."""

    def __init__(self, cluster: Cluster) -> None:
        self.exchange = fresh("orders")
        self.here, by_mode, by_group, by_policy = (
            fresh(word) for word in ("here", "mode", "group", "policy")
        )
        self.there = [by_mode, by_group, by_policy]
        policy = {"pattern": f"^{by_policy}$", "apply-to": "queues", "definition": {"cluster-mode": "chain"}}
        cluster.admin(cluster.leader, "PUT", f"/api/policies/%2F/{by_policy}", policy)
        cluster.declare(self.here, by_policy)
        cluster.declare(by_mode, **{"x-cluster-mode": "chain"})
        cluster.declare(by_group, **{"x-group": "fast"})
        with cluster.channel() as channel:
            channel.exchange_declare(self.exchange, "topic", durable=True)
            for queue in self.queues:
                channel.queue_bind(queue, self.exchange, "new.#")

    @property
    def queues(self) -> list[str]:
        return [self.here, *self.there]


def test_each_group_is_led_on_a_node_of_its_own(shared: Cluster) -> None:
    """As it was started: work is spread before anybody has to do something about it. K-52: a node has one role in each group,
    and another in the next."""
    assert [shared.leader_of(group) for group in GROUPS] == ["main-n1", "fast-n2"]


def test_what_a_queue_asks_for_says_where_it_lives(cluster: Cluster) -> None:
    wired = Wired(cluster)

    shown = {queue["name"]: queue["group"] for queue in cluster.admin(cluster.leader, "GET", "/api/queues")}

    assert {queue: shown[queue] for queue in wired.queues} == {
        wired.here: "main", **dict.fromkeys(wired.there, "fast")
    }  # fmt: skip
    assert set(wired.there) <= set(cluster.queues(cluster.leader_of("fast")))
    assert wired.here not in cluster.queues(cluster.leader_of("fast"))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_clients_of_fronts_are_not_left_with_a_leader_that_hangs(cluster: Cluster, group: str) -> None:
    """S-10, A-71: STOP the leader of a group: who publishes through a front goes on with the next one, though the link to the
    frozen one stays open; nothing confirmed is lost."""
    wired = Wired(cluster)
    victim = cluster.leader_of(group)

    with contextlib.ExitStack() as clients:
        consumers = [clients.enter_context(Consumer(cluster, queue, first=("n2",))) for queue in wired.queues]
        with Publisher(cluster, "new.order", exchange=wired.exchange, first=("n1",)) as publisher:
            publisher.await_more(50)
            cluster.freeze(victim)
            publisher.await_more(50, 30)
            cluster.thaw(victim)
            cluster.whole()
            publisher.await_more(20)
        found = [consumer.await_all(publisher) for consumer in consumers]

    for numbers in found:
        judge(publisher, numbers)


@pytest.mark.slow
def test_nothing_confirmed_is_lost_when_leaders_of_both_groups_and_a_front_are_killed(
    cluster: Cluster,
) -> None:
    """S-1, S-14, S-21, A-13, H-5, H-53: KILL the leader of one group, of the other, and the publisher's front, under load;
    SET, ORD and EQ for each queue of either group. K-53: order is that of each queue; there is none between groups."""
    wired = Wired(cluster)
    gaps = {}

    with contextlib.ExitStack() as clients:
        consumers = [clients.enter_context(Consumer(cluster, queue, first=("n2",))) for queue in wired.queues]
        with Publisher(cluster, "new.order", exchange=wired.exchange, first=("n1",)) as publisher:
            for victim in (cluster.leader_of("fast"), cluster.leader_of("main"), "n1"):
                publisher.await_more(50)
                when = cluster.kill(victim)
                publisher.await_more(20)
                gaps[victim] = publisher.gap_after(when)
                cluster.whole()
        found = [consumer.await_all(publisher) for consumer in consumers]

    shown = ", ".join(f"{victim} {gap * 1000:.0f} ms" for victim, gap in gaps.items())
    print(f"{len(publisher.confirmed)} confirmed; from the kill to the next confirm: {shown}")
    for numbers in found:
        judge(publisher, numbers)
    cluster.await_equal()
    assert max(gaps.values()) < FAILOVER_S


def test_publishing_to_one_group_goes_on_while_the_other_has_no_leader(cluster: Cluster) -> None:
    """S-10: a group that cannot work holds up nobody who does not need it."""
    wired = Wired(cluster)
    fast = cluster.trial.of("fast")

    with Publisher(cluster, wired.here, first=("n3",)) as publisher:
        when = cluster.kill(*fast)
        publisher.await_more(50)
        gap = publisher.gap_after(when)

    assert gap < 1.0 and not publisher.again
    assert cluster.trial.leader("fast") is None


def test_a_front_tells_health_metrics_and_connections(cluster: Cluster) -> None:
    place = cluster.trial.fronts["n3"]
    wired = Wired(cluster)
    with cluster.channel("n3") as channel:
        channel.queue_declare(wired.there[0], passive=True)

        assert httpx.get(f"http://{place.admin}/health").json() == {"status": "ok"}
        told = httpx.get(f"http://{place.admin}/api/front").json()
        assert (told["name"], told["state"], told["connections"]) == ("n3", "serving", 1)
        assert told["clients"][0]["links"] == {"main": "open", "fast": "open"}
        text = httpx.get(f"http://{place.admin}/metrics").text
        assert "tidemark_front_connections 1.0" in text
        assert 'tidemark_front_links{group="fast"} 1.0' in text and "tidemark_front_wiring_up 1.0" in text
    wait_until(
        "nobody is connected",
        lambda: httpx.get(f"http://{place.admin}/api/front").json()["connections"] == 0,
    )


def test_doctor_finds_a_group_without_members(cluster: Cluster) -> None:
    trial = cluster.trial
    flags = {
        "cluster.name": trial.name,
        "listen.peer": "127.0.0.1:0",
        "cluster.groups": "fast=chain,gone=standby",
        "cluster.etcd": trial.etcd_address,
    }
    found = {one.text.split(":")[0]: one.level.name for one in network.groups(configuration.load(flags))}
    assert found == {"group fast has 3 members": "ok", "no member of group gone is there": "fail"}


def test_a_member_joins_a_group(cluster: Cluster) -> None:
    """S-5: an empty member of one group gets what that group holds, and nothing of the other."""
    wired = Wired(cluster)
    with Publisher(cluster, wired.there[0]) as publisher:
        publisher.await_more(20)
        assert cluster.trial.join("fast") == ["fast-n4"]
        cluster.whole()

    cluster.await_equal()
    held = cluster.queues("fast-n4")
    assert held[wired.there[0]] == len(publisher.confirmed) and wired.here not in held


def test_what_is_published_to_one_group_is_in_the_log_of_no_other(cluster: Cluster) -> None:
    """K-51: a group more is a leader more, with a journal of its own: what one has to write costs the others nothing."""
    wired = Wired(cluster)
    for queue, busy, idle in ((wired.there[0], "fast", "main"), (wired.here, "main", "fast")):
        before = {group: journal(cluster, group) for group in GROUPS}
        with Publisher(cluster, queue) as publisher:
            publisher.await_more(100)
        assert journal(cluster, busy) >= before[busy] + 100
        assert journal(cluster, idle) == before[idle]


def journal(cluster: Cluster, group: str) -> int:
    """Where the journal of a group's leader ends."""
    end: int = cluster.look()[cluster.leader_of(group)].status["ends"]["journal"]
    return end
