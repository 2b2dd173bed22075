"""Links between members and to etcd are cut, one way or both, and healed; nothing confirmed is lost, and no two
members lead in one epoch."""

from __future__ import annotations

import time

import pytest
from system.cluster.cluster import PERSISTENT, Cluster, Publisher, Watch, drained, fresh, judge, wait_until

pytestmark = pytest.mark.timeout(150)

LEASE_S = 6.0
"""Longer than a lease, its loss noticed, and another leader chosen: 2 s and a half on a machine that does other things."""
CUT_S = 6.0
"""Longer than it takes to do without members that do not answer: 2 to 3.5 s there."""


@pytest.fixture
def queue(linked_cluster: Cluster) -> str:
    name = fresh("cut")
    linked_cluster.declare(name)
    return name


def settled(cluster: Cluster, publisher: Publisher, queue: str) -> None:
    """After the faults: whole again, nothing lost, all equal."""
    cluster.whole()
    judge(publisher, drained(cluster, queue))
    cluster.await_equal()


def test_a_leader_cut_off_from_everybody_is_replaced_and_confirms_nothing(
    linked_cluster: Cluster, queue: str
) -> None:
    """S-10, A-68, H-45, U-14, U-25: CUT the leader from etcd and all backups: it stops, another leads; heal: it follows.

    K-56: the one that managed the group is replaced, and alone it cannot leave anybody out. X-24: the side with etcd goes on.
    """
    leader = linked_cluster.leader
    others = linked_cluster.backups
    with Watch(linked_cluster) as watch, Publisher(linked_cluster, queue, only=(leader,)) as old:
        old.await_more(30)
        when = linked_cluster.cut(leader, "etcd", *others)
        told = len(old.confirmed)
        new_queue = fresh("cut")
        linked_cluster.trial.wait_whole(LEASE_S, others)
        took = time.monotonic() - when
        confirmed_by_old = old.confirmed[told:]
        linked_cluster.await_state(leader, "fenced", "joining")
        silent = len(old.confirmed)
        with linked_cluster.channel(others[0]) as channel:
            channel.queue_declare(new_queue, durable=True)
        with Publisher(linked_cluster, new_queue, only=tuple(others)) as new:
            new.await_more(30)
        assert len(old.confirmed) == silent, "a leader without its backups and lease went on confirming"
        linked_cluster.heal()
        linked_cluster.await_state(leader, "ready")
        old.await_more(10)

    print(
        f"{linked_cluster.mode}: cut off to another leader {took:.2f} s, {len(confirmed_by_old)} confirmed after the cut"
    )
    assert "active" not in watch.states[leader][1:], watch.states[leader]
    assert not watch.together, f"led at the same moment: {watch.together}"
    judge(new, drained(linked_cluster, new_queue))
    settled(linked_cluster, old, queue)


def test_a_leader_without_etcd_hands_over_in_time(linked_cluster: Cluster, queue: str) -> None:
    """H-45, U-15: CUT the leader from etcd only: its lease ends, it fences itself, a backup leads."""
    leader = linked_cluster.leader
    with (
        Watch(linked_cluster) as watch,
        Publisher(linked_cluster, queue, first=tuple(linked_cluster.backups)) as client,
    ):
        client.await_more(30)
        when = linked_cluster.cut(leader, "etcd")
        wait_until("another leads", lambda: linked_cluster.trial.leader() not in (None, leader), LEASE_S)
        client.await_more(20)
        gap = client.gap_after(when)
        linked_cluster.heal()
        linked_cluster.await_state(leader, "ready")

    print(f"{linked_cluster.mode}: leader without etcd, longest wait {gap * 1000:.0f} ms")
    assert not watch.together, f"led at the same moment: {watch.together}"
    assert gap < LEASE_S
    settled(linked_cluster, client, queue)


def test_a_leader_cut_off_from_its_backups_goes_on_without_them(linked_cluster: Cluster, queue: str) -> None:
    """S-10, H-33, F-72: CUT leader | backups, etcd reached by all: the leader leaves them out; heal: they are ready again."""
    leader, others = linked_cluster.leader, linked_cluster.backups
    with Watch(linked_cluster), Publisher(linked_cluster, queue, first=(leader,)) as client:
        client.await_more(30)
        when = linked_cluster.cut(leader, *others)
        client.await_more(20)
        gap = client.gap_after(when)
        linked_cluster.heal()
        for name in others:
            linked_cluster.await_state(name, "ready")
        client.await_more(20)

    print(f"{linked_cluster.mode}: leader without backups, longest wait {gap * 1000:.0f} ms")
    assert gap < CUT_S
    settled(linked_cluster, client, queue)


@pytest.mark.parametrize("way", ["to the backup", "from the backup"])
def test_a_link_that_is_cut_one_way_only_costs_a_backup_and_no_message(
    linked_cluster: Cluster, queue: str, way: str
) -> None:
    """S-10, F-38, H-79: HALF(leader>backup) and HALF(backup>leader): goes on without it, and heals."""
    leader, backup = linked_cluster.leader, linked_cluster.second
    with Watch(linked_cluster), Publisher(linked_cluster, queue, first=(leader,)) as client:
        client.await_more(30)
        ends = (leader, backup) if way == "to the backup" else (backup, leader)
        when = linked_cluster.cut(*ends, one_way=True)
        client.await_more(20)
        gap = client.gap_after(when)
        linked_cluster.heal()
        linked_cluster.await_state(backup, "ready")

    print(f"{linked_cluster.mode}: one way cut {way}, longest wait {gap * 1000:.0f} ms")
    assert 0.1 < gap < CUT_S, (
        "the cut must have been felt, and no longer than it takes to do without the backup"
    )
    settled(linked_cluster, client, queue)


def test_a_backup_cut_off_from_everybody_stops_nobody(linked_cluster: Cluster, queue: str) -> None:
    """F-71, U-14, X-24: CUT one backup from etcd, leader and the other: the majority goes on; it never leads."""
    leader, victim = linked_cluster.leader, linked_cluster.backups[-1]
    rest = [name for name in linked_cluster.names if name != victim]
    with Watch(linked_cluster) as watch, Publisher(linked_cluster, queue, first=(leader,)) as client:
        client.await_more(30)
        when = linked_cluster.cut(victim, "etcd", *rest)
        client.await_more(20)
        gap = client.gap_after(when)
        linked_cluster.heal()
        linked_cluster.await_state(victim, "ready")
        client.await_more(10)

    print(f"{linked_cluster.mode}: backup cut off, longest wait {gap * 1000:.0f} ms")
    assert "active" not in watch.states[victim]
    assert gap < CUT_S
    settled(linked_cluster, client, queue)


def test_a_confirm_waits_for_a_slow_backup(linked_cluster: Cluster, queue: str) -> None:
    """S-4, A-18: SLOW(leader, backup, 150 ms): a confirm takes at least there and back."""
    leader, backup = linked_cluster.leader, linked_cluster.second
    with linked_cluster.channel(leader) as channel:
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"0")
        linked_cluster.trial.slow(leader, backup, 150)
        began = time.monotonic()
        channel.basic_publish("", queue, b"1", mandatory=True)
        transient = time.monotonic() - began
        began = time.monotonic()
        channel.basic_publish("", queue, b"2", PERSISTENT, mandatory=True)
        took = time.monotonic() - began
    linked_cluster.heal()
    print(f"{linked_cluster.mode}: persistent {took * 1000:.0f} ms, transient {transient * 1000:.0f} ms")
    assert took >= 0.3
    with linked_cluster.channel() as channel:
        channel.queue_delete(queue)  # its transient messages are on the leader only
    linked_cluster.whole()


def test_a_slow_backup_is_left_out_and_comes_back_when_it_is_fast_again(
    linked_cluster: Cluster, queue: str
) -> None:
    """M9, K-5, K-54, S-4, X-23: SLOW(leader, backup, 400 ms): left out within seconds, publishing as before; heal: ready
    again, once."""
    leader, backup = linked_cluster.leader, linked_cluster.second
    with Publisher(linked_cluster, queue, first=(leader,)) as client:
        client.await_more(30)
        linked_cluster.trial.slow(leader, backup, 400)
        when = time.monotonic()
        wait_until(
            "the slow one is left out",
            lambda: backup not in linked_cluster.look()[leader].status["ready"],
            15,
        )
        took = time.monotonic() - when
        free = time.monotonic()
        client.await_more(100)
        gap = client.gap_after(free)
        linked_cluster.heal()
        linked_cluster.await_state(backup, "ready")
        back = time.monotonic()
        client.await_more(100)
        after = client.gap_after(back)

    print(
        f"{linked_cluster.mode}: slow to left out {took:.2f} s, longest wait then {gap * 1000:.0f} ms, after it came "
        f"back {after * 1000:.0f} ms"
    )
    assert linked_cluster.leader == leader
    assert "ms to acknowledge anything" in linked_cluster.log(leader)
    assert gap < 0.8, "publishers still wait for the slow one"
    settled(linked_cluster, client, queue)


def test_an_etcd_that_dies_stops_confirms_in_time_and_starts_them_again(
    linked_cluster: Cluster, queue: str
) -> None:
    """U-15: KILL etcd: nobody can prove that he leads; RESTART: the same cluster goes on, nothing is lost."""
    etcd = linked_cluster.trial.etcd
    assert etcd is not None
    with Watch(linked_cluster) as watch, Publisher(linked_cluster, queue) as client:
        client.await_more(30)
        etcd.kill()
        wait_until("nobody leads", lambda: "active" not in linked_cluster.states().values(), LEASE_S)
        silent = len(client.confirmed)
        time.sleep(0.5)
        assert len(client.confirmed) <= silent + 1
        etcd.start()
        assert etcd.process is not None
        linked_cluster.trial.processes["etcd"] = etcd.process
        client.await_more(20)
    assert not watch.together
    settled(linked_cluster, client, queue)
