"""A real backup whose store fails: what becomes of it, and what publishers notice (`cluster.on_store_error`).

The store is made to fail by a limit of the system: from some size on no file of that process can be written any more.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, Publisher, drained, fresh, judge, wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

FULL_BYTES = 4 << 20
PAD_BYTES = 64 << 10


@pytest.fixture(params=["quit", "leave"])
def choosing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    cluster = Cluster(
        tmp_path / "cluster",
        "standby",
        settings={"cluster.on_store_error": request.param, "log.level": "info"},
    )
    yield cluster.start(), request.param
    cluster.close()


def fail_store(cluster: Cluster, name: str) -> None:
    resource.prlimit(cluster.trial.processes[name].pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))


def test_a_backup_whose_store_fails_stops_nobody_and_heals_when_it_is_started_again(
    choosing: tuple[Cluster, str],
) -> None:
    """H-26 (it ends), H-27 and H-86 (it stays up and can never lead), H-29 (nobody stands still for long)."""
    cluster, choice = choosing
    queue = fresh("queue")
    cluster.declare(queue)
    leader, (victim, _) = cluster.leader, cluster.backups
    fail_store(cluster, victim)
    out = "down" if choice == "quit" else "failed"
    with Publisher(cluster, queue, first=(leader,), pad=PAD_BYTES) as publisher:
        wait_until(f"{victim} is {out}", lambda: cluster.states()[victim] == out)
        publisher.await_more(20)
        assert publisher.longest_gap() < 3
        if choice == "leave":
            assert "store failed" in cluster.log(victim)
            assert "see to its disk and start it again" in str(cluster.look()[victim].status["why"])
            with cluster.channel(victim) as channel:  # it passes clients on
                assert channel.queue_declare(queue, passive=True).method.message_count > 0
            cluster.kill(leader)
            publisher.await_more(20)
            assert cluster.leader not in (leader, victim)
            with cluster.channel(victim) as channel:
                assert channel.queue_declare(queue, passive=True).method.message_count > 0
            cluster.kill(victim)
    cluster.whole()
    cluster.await_equal()
    judge(publisher, drained(cluster, queue))
