"""Members are killed, frozen and stopped under load; nothing confirmed is lost and publishing goes on.

TIDEMARK_FAILOVER_ROUNDS says how often the repeated ones repeat (5 unless told), TIDEMARK_FAILOVER_SEED replays the
dice of a run; the seed is printed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from statistics import median

import pytest
from helpers.history import Committed, Confirmed, Killed, Settled, check, explain
from pika.exceptions import AMQPError
from system.cluster.cluster import (
    PERSISTENT,
    Cluster,
    ClusterTraffic,
    Publisher,
    Watch,
    connect,
    drained,
    fresh,
    judge,
)

ROUNDS = int(os.environ.get("TIDEMARK_FAILOVER_ROUNDS", "5"))
SEED = int(os.environ.get("TIDEMARK_FAILOVER_SEED", str(random.SystemRandom().randrange(1 << 32))))
MEDIAN_S = 1.0
"""Half of the failovers take less, also on a machine that does other things."""
FAILOVER_S = 4.0
"""Longer than any takes there."""
FROZEN_S = 3.5
"""The same for a leader that stands still, and is replaced when its lease of 2 s has ended."""
ON_ITS_WAY_S = 0.1
"""What all members had when one was frozen may still be confirmed then."""

pytestmark = pytest.mark.timeout(120 + ROUNDS * 40)


def told(what: str, seconds: list[float]) -> None:
    shown = sorted(seconds)
    print(f"{what}: median {median(shown) * 1000:.0f} ms, longest {shown[-1] * 1000:.0f} ms, n={len(shown)}")


# Kills -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_leader_killed_again_and_again_loses_nothing_that_was_confirmed(cluster: Cluster) -> None:
    """S-1, A-13, H-1, H-5, H-53, K-60: KILL the leader under load, RESTART it, next round.

    H-17: the publisher has a fixed list of addresses, and goes on whichever of them leads.
    """
    print(f"TIDEMARK_FAILOVER_SEED={SEED} TIDEMARK_FAILOVER_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    queue = fresh("killed")
    cluster.declare(queue)
    gaps = []

    with Watch(cluster) as watch, Publisher(cluster, queue) as publisher:
        for _ in range(ROUNDS):
            publisher.await_more(dice.randint(1, 200))
            leader = cluster.leader
            when = cluster.kill(leader)
            publisher.await_more(20)
            gaps.append(publisher.gap_after(when))
            cluster.whole()

    told(f"{cluster.mode}: kill -9 of the leader to the next confirm", gaps)
    judge(publisher, drained(cluster, queue))
    cluster.await_equal()
    assert median(gaps) < MEDIAN_S and max(gaps) < FAILOVER_S
    assert len(watch.leaders) > ROUNDS


@pytest.mark.slow
def test_mixed_traffic_keeps_every_promise_while_members_are_killed(cluster: Cluster) -> None:
    """S-1, S-2, S-16, A-16, A-17, A-19, H-72, H-73: publishers, transactions, moves and consumers; any member dies."""
    print(f"TIDEMARK_FAILOVER_SEED={SEED} TIDEMARK_FAILOVER_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    traffic = ClusterTraffic(cluster, SEED, fresh("mixed"))
    traffic.start()

    for number in range(ROUNDS):
        time.sleep(dice.uniform(0.1, 1.5))
        victim = cluster.leader if number % 3 != 2 else dice.choice(cluster.backups)
        cluster.kill(victim)
        traffic.history.append(Killed())
        time.sleep(dice.uniform(0.0, 2.0))
        traffic.check_alive()
        cluster.whole()
        traffic.broker_restarted()
    traffic.drain()
    traffic.look_for_leftovers()

    violations = check(traffic.history)
    counts = Counter(violation.kind for violation in violations)
    first = "\n".join(explain(traffic.history, violation) for violation in violations[:3])
    assert not violations, f"{dict(counts)}, seed {SEED}:\n{first}"
    seen = Counter(type(event) for event in traffic.history)
    assert seen[Confirmed] > 20 * ROUNDS and seen[Settled] > 20 * ROUNDS and seen[Committed] > ROUNDS
    traffic.remove()


def test_a_backup_that_is_killed_stops_nothing_and_comes_back_equal(cluster: Cluster) -> None:
    """H-53, F-44: KILL a backup under load; RESTART: it catches up; EQ. H-67, X-6: a dirty store may rejoin a leader that lives."""
    queue = fresh("backup")
    cluster.declare(queue)
    leader, victim = cluster.leader, cluster.backups[0]

    with Publisher(cluster, queue, first=(leader,)) as publisher:
        publisher.await_more(50)
        when = cluster.kill(victim)
        publisher.await_more(50)
        gap = publisher.gap_after(when)
        cluster.restart(victim)
        cluster.await_state(victim, "ready")
        publisher.await_more(20)

    told(f"{cluster.mode}: kill -9 of a backup to the next confirm", [gap])
    assert gap < FAILOVER_S
    assert cluster.leader == leader and not publisher.again, "the clients must not notice"
    cluster.await_equal()
    judge(publisher, drained(cluster, queue))


def test_two_of_three_may_die_one_after_the_other(cluster: Cluster) -> None:
    """H-32, H-74, S-8: KILL the leader, publish at once to the next one, KILL that too: nothing confirmed is lost. K-56: whoever
    leads next manages the group and leaves out those that are dead."""
    queue = fresh("twice")
    cluster.declare(queue)

    with Publisher(cluster, queue) as publisher:
        publisher.await_more(30)
        cluster.kill(cluster.leader)
        publisher.await_more(1)
        cluster.kill(cluster.leader)
        publisher.await_more(10)

    judge(publisher, drained(cluster, queue))
    cluster.whole()


# Freezing ----------------------------------------------------------------------------------------------------------


def test_a_frozen_leader_is_replaced_and_confirms_nothing_when_it_thaws(cluster: Cluster) -> None:
    """S-10, A-71, H-45: STOP the leader: another leads within 3 s; CONT: it follows, and what it took is not confirmed."""
    queue, stale = fresh("frozen"), fresh("stale")
    cluster.declare(queue, stale)
    leader = cluster.leader
    late = connect([cluster.address(leader)])
    channel = late.channel()
    channel.confirm_delivery()
    answers: list[str] = []

    def publish_to_the_frozen_one() -> None:
        try:
            channel.basic_publish("", stale, b"7", PERSISTENT)
            answers.append("confirmed")
        except (AMQPError, OSError):
            answers.append("broken")

    with Watch(cluster) as watch, Publisher(cluster, queue, first=tuple(cluster.backups)) as publisher:
        publisher.await_more(30)
        when = cluster.freeze(leader)
        waiting = threading.Thread(target=publish_to_the_frozen_one, daemon=True)
        waiting.start()
        publisher.await_more(20)
        gap = publisher.gap_after(when)
        assert cluster.leader != leader
        cluster.thaw(leader)
        cluster.await_state(leader, "ready")
        publisher.await_more(20)
        waiting.join(20)

    told(f"{cluster.mode}: SIGSTOP of the leader to the next confirm", [gap])
    assert gap < FROZEN_S
    assert answers == ["broken"], "a leader that was replaced confirmed a message"
    assert "active" not in watch.states[leader][watch.states[leader].index("frozen") :]
    judge(publisher, drained(cluster, queue))
    assert drained(cluster, stale) == []
    cluster.await_equal()


def test_a_frozen_backup_is_left_out_and_comes_back(cluster: Cluster) -> None:
    """H-33, A-64: STOP a backup: confirms go on after the time it is given, CONT: it is ready again; EQ."""
    queue = fresh("slow")
    cluster.declare(queue)
    leader, victim = cluster.leader, cluster.backups[-1]

    with Publisher(cluster, queue, first=(leader,)) as publisher:
        publisher.await_more(30)
        when = cluster.freeze(victim)
        publisher.await_more(20)
        gap = publisher.gap_after(when)
        cluster.thaw(victim)
        cluster.await_state(victim, "ready")
        publisher.await_more(20)

    told(f"{cluster.mode}: SIGSTOP of a backup to the next confirm", [gap])
    assert gap < 5.0
    dropped = cluster.left_out(leader, victim, when)
    early = [at - when for at in publisher.times if when + ON_ITS_WAY_S < at < dropped]
    assert not early, f"confirmed without a member that was still ready: {early[:5]}"
    assert cluster.leader == leader
    judge(publisher, drained(cluster, queue))
    cluster.await_equal()


# Stops and starts --------------------------------------------------------------------------------------------------


def test_a_member_that_was_away_catches_up_and_can_lead(cluster: Cluster) -> None:
    """H-53, H-48, EQ: what came and went while it was away is there and gone when it leads."""
    queue, emptied = fresh("away"), fresh("emptied")
    cluster.declare(queue, emptied)
    with Publisher(cluster, emptied) as before:
        before.await_more(100)
    away = cluster.backups[0]
    cluster.stop(away)
    with Publisher(cluster, queue) as publisher:
        publisher.await_more(300)
    assert drained(cluster, emptied) == before.confirmed
    cluster.whole()
    cluster.await_equal()

    for name in [name for name in cluster.names if name != away]:
        cluster.kill(name)
        if cluster.trial.processes[away].state == "running" and cluster.leader == away:
            break
    assert cluster.leader == away
    assert drained(cluster, emptied) == []
    judge(publisher, drained(cluster, queue))
    cluster.whole()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=["in order", "backwards", "mixed"])
def test_after_a_crash_of_all_any_order_of_starts_brings_everything_back(
    cluster: Cluster, order: tuple[int, ...]
) -> None:
    """S-9, A-43, H-57, X-7: KILL all at once under load, RESTART in any order: every confirmed message is there."""
    queue = fresh("total")
    cluster.declare(queue)
    publisher = Publisher(cluster, queue)
    publisher.start()
    publisher.await_more(100)
    cluster.kill(*cluster.names)

    for place in order:
        cluster.restart(cluster.names[place])
        time.sleep(0.7)
    cluster.whole()
    publisher.await_more(10)
    publisher.finish()

    judge(publisher, drained(cluster, queue))
    cluster.await_equal()


def test_a_cluster_that_was_stopped_starts_again_with_everything(cluster: Cluster) -> None:
    """H-54..57: a clean stop of all, and a start: SET; all equal."""
    queue = fresh("stopped")
    cluster.declare(queue)
    with Publisher(cluster, queue) as publisher:
        publisher.await_more(100)
    cluster.stop(*cluster.names)

    cluster.whole()

    cluster.await_equal()
    judge(publisher, drained(cluster, queue))


def test_a_leader_that_is_asked_to_stop_hands_over(cluster: Cluster) -> None:
    """H-52: SIGTERM to the leader under load: exit 0, another leads, nothing lost."""
    queue = fresh("handed")
    cluster.declare(queue)
    leader = cluster.leader
    with Publisher(cluster, queue) as publisher:
        publisher.await_more(50)
        when = time.monotonic()
        cluster.stop(leader)
        publisher.await_more(20)
        gap = publisher.gap_after(when)
    told(f"{cluster.mode}: SIGTERM of the leader to the next confirm", [gap])
    assert gap < FAILOVER_S
    cluster.whole()
    judge(publisher, drained(cluster, queue))
    cluster.await_equal()
