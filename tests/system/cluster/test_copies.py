"""Real members with `cluster.copies_min`: a confirm stands for so many disks, or there is none."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, Publisher, drained, fresh, judge, wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    cluster = Cluster(tmp_path / "pair", "standby", nodes=2, settings={"cluster.copies_min": "2"})
    yield cluster.start()
    cluster.close()


def test_publishers_wait_while_the_leader_has_the_only_copy(pair: Cluster) -> None:
    """K-49: with M=2 nothing is confirmed while B is away; what was sent meanwhile is confirmed when it is back."""
    queue, backup, leader = fresh("two-copies"), pair.backups[0], pair.leader
    pair.declare(queue)

    with Publisher(pair, queue, first=(leader,)) as publisher:
        publisher.await_more(20)
        pair.kill(backup)
        wait_until("the leader is alone", lambda: pair.status(leader)["ready"] == [leader])
        alone = len(publisher.confirmed)
        time.sleep(1)
        assert len(publisher.confirmed) == alone, "something was confirmed that one disk has"
        health = pair.admin(leader, "GET", "/api/overview")
        assert "cluster.copies_min" in health["alarms"]
        pair.restart(backup)
        publisher.await_more(20)

    judge(publisher, drained(pair, queue))
    pair.await_equal()
