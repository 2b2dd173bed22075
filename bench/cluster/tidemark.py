"""Tidemark members and an etcd, as `tidemark cluster up` starts them, at default settings: three, or as many as wanted."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.cluster import wire
from bench.cluster.contestants import NODES, QUEUE, WHOLE_S, Cluster
from bench.proc import ServerFailedError
from tidemark.cli import CommandError
from tidemark.cli.trial import ETCD, Mode, Place, Process, Seen, Trial
from tidemark.model.wiring import MAIN


class TidemarkCluster(Cluster):
    mode: Mode = "standby"

    def __init__(self, folder: Path, *, nodes: int = NODES, chains: int = 0) -> None:
        """With `chains` there are so many groups s1, s2, … beside main, and a front on each node."""
        super().__init__(folder)
        self._nodes = nodes
        self.chains = [f"s{number}" for number in range(1, chains + 1)]
        groups: dict[str, Mode] = {MAIN: "standby", **dict.fromkeys(self.chains, "chain")} if chains else {}
        self.trial = Trial.create(folder, nodes=nodes, mode=self.mode, groups=groups, detached=False)
        self.ports = _ports(self.trial.members)
        self.fronts = _ports(self.trial.fronts)
        """Where clients connect that go through fronts."""

    def start(self) -> None:
        try:
            self.trial.up()
        except CommandError as problem:
            raise ServerFailedError(str(problem)) from problem

    def stop(self) -> None:
        if stubborn := self.trial.down():
            raise ServerFailedError(f"{', '.join(stubborn)} did not stop when asked")

    def pid(self, node: str) -> int:
        return self.trial.processes[node].pid

    def pids(self) -> list[int]:
        return [process.pid for process in self.trial.processes.values() if process.state != "gone"]

    def process(self, node: str) -> Process:
        return self.trial.processes[node]

    def etcd_pid(self) -> int:
        return self.trial.processes[ETCD].pid

    def leader(self) -> str:
        return self.order()[0]

    def order(self, group: str = MAIN) -> list[str]:
        """The members of a group as its leader names them: itself first, of a chain one after the other."""
        leader = self.trial.leader(group)
        if leader is None:
            raise ServerFailedError("nobody leads")
        ready = self.see(leader).status.get("ready", [])
        return [leader, *(name for name in ready if name != leader)]

    def declare(self) -> None:
        with wire.AmqpLink(self.ports[self.leader()]) as link:
            link.declare(QUEUE)

    def reap(self, node: str) -> None:
        self.process(node).wait_gone(10)

    def restart(self, node: str) -> None:
        self.trial.start(node)

    def is_whole(self) -> bool:
        states = [seen.state for seen in self.trial.look()]
        return states.count("active") == 1 and states.count("ready") == self._nodes - 1

    def wait_whole(self, timeout_s: float = WHOLE_S) -> None:
        try:
            self.trial.wait_whole(timeout_s)
        except CommandError as problem:
            raise ServerFailedError(str(problem)) from problem

    def see(self, node: str) -> Seen:
        return self.trial.look([node])[0]


class Standby(TidemarkCluster):
    name = "tidemark-standby"
    mode = "standby"


class Chain(TidemarkCluster):
    name = "tidemark-chain"
    mode = "chain"


def _ports(places: dict[str, Place]) -> dict[str, int]:
    return {name: int(place.amqp.rpartition(":")[2]) for name, place in places.items()}


def etcd_version() -> str:
    """Of the etcd on this machine; empty without one."""
    program = shutil.which("etcd")
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    return done.stdout.partition("\n")[0].rpartition(" ")[2]
