"""Clusters of four and five real members: halves, and leaders that die one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from system.cluster.cluster import Cluster, Publisher, Watch, drained, fresh, judge

pytestmark = pytest.mark.timeout(240)

TAKEOVER_S = 12.0
"""Longer than a lease, another leader, and doing without all that were cut off with the one before."""


@pytest.fixture(scope="module", params=[(4, "standby"), (5, "chain")], ids=["four-standby", "five-chain"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes, mode = request.param
    cluster = Cluster(tmp_path_factory.mktemp("large"), mode, nodes=nodes, proxies=True)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def test_of_two_halves_the_one_that_reaches_etcd_goes_on(large: Cluster) -> None:
    """S-10, U-15, U-25: CUT {leader, …} | {…, etcd}: an even number of members needs no vote of its own, as etcd decides."""
    queue = fresh("halves")
    large.declare(queue)
    order = [large.leader, *large.backups]
    lost, left = order[: len(order) // 2], order[len(order) // 2 :]

    with Watch(large) as watch, Publisher(large, queue, only=tuple(left)) as client:
        client.await_more(30)
        for name in lost:
            when = large.cut(name, "etcd", *left)
        client.await_more(30)
        gap = client.gap_after(when)
        leader = large.leader
        assert leader in left
        large.heal()
        for name in lost:
            large.await_state(name, "ready", timeout_s=30)
        client.await_more(30)

    print(f"{large.mode}, {len(order)} members: {len(lost)} cut off to the next confirm {gap:.2f} s")
    assert not watch.together, f"led at the same moment: {watch.together}"
    assert gap < TAKEOVER_S
    large.whole()
    judge(client, drained(large, queue))
    large.await_equal()


def test_leaders_that_die_one_after_the_other_leave_everything_to_the_last(large: Cluster) -> None:
    """S-8, H-32, K-56: KILL the leader, publish at the next, KILL that, … until one is left; RESTART all; EQ."""
    queue = fresh("one-by-one")
    large.declare(queue)
    gaps = []

    with Watch(large) as watch, Publisher(large, queue) as client:
        for _ in range(len(large.names) - 1):
            client.await_more(20)
            when = large.kill(large.leader)
            client.await_more(5)
            gaps.append(client.gap_after(when))
        began = time.monotonic()
        large.whole()
        client.await_more(20)

    shown = ", ".join(f"{gap * 1000:.0f}" for gap in gaps)
    print(
        f"{large.mode}: kill -9 to the next confirm {shown} ms; whole {time.monotonic() - began:.1f} s after that"
    )
    assert not watch.together, f"led at the same moment: {watch.together}"
    assert max(gaps) < TAKEOVER_S
    judge(client, drained(large, queue))
    large.await_equal()
