"""Three brokers that hold the same, and a SIGKILL to the one that leads, in the middle of the traffic.

It starts `tidemark cluster up` in a temporary folder, publishes numbered orders with pika, each confirmed, over the
addresses of all members, while a worker consumes and acknowledges them. It kills the leader, says how long publishing
stood still, starts the dead member again, and in the end compares what was confirmed with what was received.
Everything is stopped and removed at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

PATIENCE_S = 60


class Cluster:
    """What `tidemark cluster` started in a folder."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder = folder
        members = json.loads(self.run("up", "--nodes", "3", "--mode", mode, "--json"))
        self.addresses = [member["amqp"] for member in members]

    def run(self, *words: str) -> str:
        command = [
            sys.executable,
            "-m",
            "tidemark",
            "cluster",
            *words,
            "--dir",
            str(self._folder / "cluster"),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"'tidemark cluster {words[0]}' failed")
        return done.stdout

    def status(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("status", "--json"))
        return found

    def wait(self, states: list[str]) -> list[dict[str, Any]]:
        """Until the members are this, in whatever order."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            rows = self.status()
            if sorted(row["state"] for row in rows) == sorted(states):
                return rows
            if time.monotonic() > deadline:
                raise SystemExit(f"the members do not become {states}: {rows}")
            time.sleep(0.1)

    def connect(self) -> pika.BlockingConnection:
        """To whichever member answers first: one that does not lead passes us on."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for address in self.addresses:
                host, _, port = address.rpartition(":")
                try:
                    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=2))
                except (AMQPError, AMQPConnectorException, OSError):
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.02)


class Publisher(threading.Thread):
    """Publishes 1, 2, 3, … each confirmed before the next; one without its confirm is sent again."""

    def __init__(self, cluster: Cluster, orders: int) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._orders = orders
        self.times: list[float] = []
        """When each was confirmed."""
        self.again = 0

    def run(self) -> None:
        while len(self.times) < self._orders:
            try:
                channel = self._cluster.connect().channel()
                channel.confirm_delivery()
                while len(self.times) < self._orders:
                    body = str(len(self.times) + 1).encode()
                    channel.basic_publish(
                        "", "orders", body, pika.BasicProperties(delivery_mode=2), mandatory=True
                    )
                    self.times.append(time.monotonic())
                channel.connection.close()
            except (AMQPError, OSError):
                self.again += 1

    def wait(self, count: int) -> None:
        while len(self.times) < count and self.is_alive():
            time.sleep(0.01)

    def pause_after(self, when: float) -> float:
        times = [when, *(at for at in list(self.times) if at > when)]
        return max((later - at for at, later in pairwise(times)), default=0.0)


class Worker(threading.Thread):
    """Consumes the orders, acknowledges each, and notes what it has seen."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.seen: set[int] = set()
        self.twice = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            try:
                channel = self._cluster.connect().channel()
                channel.basic_qos(prefetch_count=200)
                for method, _, body in channel.consume("orders", inactivity_timeout=0.2):
                    if self.done.is_set():
                        break
                    if method is None:
                        continue
                    self.twice += int(body) in self.seen
                    self.seen.add(int(body))
                    channel.basic_ack(method.delivery_tag)
                channel.connection.close()
            except (AMQPError, OSError):
                time.sleep(0.02)


def story(folder: Path, mode: str, orders: int) -> bool:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    say(f"three brokers start, mode {mode}, and an etcd that decides who leads")
    cluster = Cluster(folder, mode)
    try:
        leader = next(
            row["name"] for row in cluster.wait(["active", "ready", "ready"]) if row["state"] == "active"
        )
        say(
            f"{leader} leads, the others are ready: nothing is confirmed before all three have it on their disks"
        )
        with cluster.connect() as connection:
            connection.channel().queue_declare("orders", durable=True)
        publisher, worker = Publisher(cluster, orders), Worker(cluster)
        worker.start()
        publisher.start()
        say(f"pika publishes {orders:,} orders, each confirmed; a worker takes them")
        publisher.wait(orders // 3)
        when = time.monotonic()
        cluster.run("kill", leader)
        say(f"SIGKILL to {leader}, without warning, after {len(publisher.times):,} confirms")
        publisher.wait(orders // 2)
        rows = cluster.wait(["active", "down", "ready"])
        new = next(row for row in rows if row["state"] == "active")
        pause = publisher.pause_after(when)
        say(
            f"{new['name']} leads, epoch {new['epoch']}; publishing stood still for {pause * 1000:,.0f} ms at most"
        )
        cluster.run("start", leader)
        cluster.wait(["active", "ready", "ready"])
        say(f"{leader} is back, has caught up and is ready")
        publisher.join()
        deadline = time.monotonic() + PATIENCE_S
        wanted = set(range(1, len(publisher.times) + 1))
        while not wanted <= worker.seen and time.monotonic() < deadline:
            time.sleep(0.05)
        worker.done.set()
        worker.join()
    finally:
        cluster.run("down")
    lost = wanted - worker.seen
    say("all members are stopped")
    print(f"\n  confirmed {len(wanted):>8,}   received {len(worker.seen & wanted):>8,}   lost {len(lost):,}")
    print(f"  sent again after the kill: {publisher.again:,}; received twice: {worker.twice:,}")
    return not lost and len(wanted) == orders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=6_000)
    parser.add_argument("--mode", choices=("standby", "chain"), default="standby")
    given = parser.parse_args()
    if shutil.which("etcd") is None:
        print("This chapter needs etcd (Debian and Ubuntu: apt-get install etcd-server); it is left out.")
        return 0
    # Two busy threads share one interpreter here; with the usual 5 ms a turn they would mostly wait for it.
    sys.setswitchinterval(0.0002)
    with tempfile.TemporaryDirectory(prefix="tidemark-demo-") as folder:
        return 0 if story(Path(folder), given.mode, given.orders) else 1


if __name__ == "__main__":
    sys.exit(main())
