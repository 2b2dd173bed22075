"""A leader that hangs while clients are connected to it through somebody else: a front of one group, or another member."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from helpers.broker import Address
from helpers.etcd import PROGRAM
from helpers.front import FrontProcess
from pika.exceptions import AMQPError, ConnectionClosedByBroker
from system.cluster.cluster import Cluster, Publisher, drained, fresh, judge

pytestmark = pytest.mark.timeout(120)

HEARD_S = 4.5
"""The lease of 2 s, the front's own 2 s of silence beside it, and a busy machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    made = Cluster(tmp_path / "cluster", "standby")
    yield made.start()
    made.close()


@pytest.fixture
def front(cluster: Cluster, tmp_path: Path) -> Iterator[FrontProcess]:
    trial = cluster.trial
    secret = ("--cluster.name", trial.name, "--cluster.secret-file", str(trial.secret_file))
    places = ",".join(f"{name}@{place.peer}" for name, place in trial.members.items())
    process = FrontProcess(tmp_path / "front", "--name", "f", *secret, main=places).start()
    yield process
    process.close()


class Idle(threading.Thread):
    """A client that is connected and does nothing until it hears the end."""

    def __init__(self, where: Address) -> None:
        super().__init__(daemon=True)
        # A heartbeat of a minute would tell it much later.
        parameters = pika.ConnectionParameters(where.host, where.port, heartbeat=60)
        self._connection = pika.BlockingConnection(parameters)
        self.error: AMQPError | None = None
        self.heard_s = 0.0
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._connection.process_data_events(30)
        except AMQPError as error:
            self.error, self.heard_s = error, time.monotonic()


def test_whoever_is_connected_through_a_front_or_a_backup_is_cut_loose_from_a_leader_that_hangs(
    cluster: Cluster, front: FrontProcess
) -> None:
    """U-11, S-10: nobody needs heartbeats to find out, and nothing that was confirmed is lost."""
    queue, leader, backups, here = fresh("through"), cluster.leader, cluster.backups, front.address
    cluster.declare(queue)
    at_front, at_backup = Idle(here), Idle(cluster.address(backups[0]))
    through: Any = SimpleNamespace(addresses=lambda *_: [here])
    with Publisher(through, queue) as publisher:
        publisher.await_more(20)

        frozen_s = cluster.freeze(leader)
        for idle in (at_front, at_backup):
            idle.join(30)
        publisher.await_more(20)

    heard = [idle.heard_s - frozen_s for idle in (at_front, at_backup)]
    gap_s = publisher.gap_after(frozen_s)
    print(f"SIGSTOP to the close: at the front {heard[0]:.1f} s, at a backup {heard[1]:.1f} s; "
          f"to the next confirm through the front {gap_s:.1f} s")  # fmt: skip
    assert isinstance(at_front.error, ConnectionClosedByBroker) and at_front.error.reply_code == 320
    assert "leads now; connect again" in at_front.error.reply_text
    assert at_backup.error is not None and max(heard) < HEARD_S
    assert gap_s < HEARD_S + 1.5
    judge(publisher, drained(cluster, queue, *backups))
