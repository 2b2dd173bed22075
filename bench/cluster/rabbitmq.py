"""Three private RabbitMQ nodes that form a cluster by themselves, with quorum queues of three members.

The nodes share an epmd and a cookie of their own. `VHOST` makes quorum queues by default, so that the load generator,
which declares plain durable queues, gets one; quorum queues take as many members as there are nodes, up to five.
Commands of the command line tools cost an Erlang start each, so there is one only where nothing else tells.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

from bench import proc, rabbitmq
from bench.cluster import wire
from bench.cluster.contestants import NODES, QUEUE, Cluster, end_child
from bench.proc import ServerFailedError
from tidemark.cli.trial import free_ports

_START_S = 120.0
_TOOL_S = 60.0


class RabbitNode(rabbitmq.RabbitMQ):
    """One of three; the cluster lays out its ports and folders."""

    def __init__(self, folder: Path, home: Path, name: str, ports: tuple[int, int], epmd_port: int) -> None:
        super().__init__(folder)
        self.port, self._distribution_port = ports
        self.node = name
        self._home = home
        self._epmd_port = epmd_port

    @property
    def alive(self) -> bool:
        return self._server is not None and self._server.poll() is None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self._server is not None
        return self._server

    def environment(self) -> dict[str, str]:
        own = self._environment(self._distribution_port, self._epmd_port)
        return own | {"HOME": str(self._home), "RABBITMQ_NODENAME": self.node}

    def configure(self, nodes: list[str]) -> None:
        self._folder.mkdir(parents=True)
        members = (f"cluster_formation.classic_config.nodes.{n} = {node}" for n, node in enumerate(nodes, 1))
        lines = [
            f"listeners.tcp.1 = {proc.HOST}:{self.port}",
            "log.file.level = warning",
            "cluster_formation.peer_discovery_backend = classic_config",
            "cluster_formation.randomized_startup_delay_range.min = 0",
            "cluster_formation.randomized_startup_delay_range.max = 0",
            *members,
        ]
        (self._folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self._folder / "enabled_plugins").write_text("[].\n")

    def launch(self) -> None:
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [str(rabbitmq.ensure_installed())],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )

    def wait_listening(self) -> None:
        proc.wait_until(lambda: proc.speaks_amqp(self.port), self.running, self._log, _START_S)
        self.pid = self._beam_pid()

    def end(self) -> None:
        if self._server is None:
            return
        helpers = {}
        if self._server.poll() is None:
            helpers = proc.start_times(
                pid for pid in proc.family(self._server.pid) if pid != self._server.pid
            )
        end_child(self._server)
        proc.wait_gone(helpers)
        self._server = None


class RabbitCluster(Cluster):
    name = "rabbitmq"
    vhost = "bench"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._nodes: dict[str, RabbitNode] = {}
        self._epmd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        rabbitmq.ensure_installed()
        cookie = self.folder / ".erlang.cookie"
        cookie.touch(0o600)
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        epmd_port, *ports = free_ports(1 + 2 * NODES)
        names = [f"n{number}x{epmd_port}@localhost" for number in range(1, NODES + 1)]
        for number, name in enumerate(names):
            pair = (ports[2 * number], ports[2 * number + 1])
            node = RabbitNode(self.folder / f"n{number + 1}", self.folder, name, pair, epmd_port)
            node.configure(names)
            self._nodes[name] = node
            self.ports[name] = node.port
        first = self._nodes[names[0]]
        with (self.folder / "epmd.log").open("wb") as log:
            self._epmd = subprocess.Popen(
                ["epmd", "-address", proc.HOST, "-port", str(epmd_port)],
                env=first.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # The first founds the cluster; nodes that start together may each found one of their own.
        for group in (names[:1], names[1:]):
            for name in group:
                self._nodes[name].launch()
            for name in group:
                self._nodes[name].wait_listening()
        self._tool("rabbitmqctl", "add_vhost", self.vhost, "--default-queue-type", "quorum")
        self._tool("rabbitmqctl", "set_permissions", "-p", self.vhost, "guest", ".*", ".*", ".*")

    def stop(self) -> None:
        for node in self._nodes.values():
            node.end()
        if self._epmd is not None:
            proc.stop(self._epmd)
            self._epmd = None

    def pid(self, node: str) -> int:
        return self._nodes[node].pid

    def pids(self) -> list[int]:
        return [pid for node in self._nodes.values() if node.alive for pid in proc.family(node.pid)]

    def reap(self, node: str) -> None:
        self._nodes[node].end()

    def restart(self, node: str) -> None:
        self._nodes[node].launch()
        self._nodes[node].wait_listening()

    def thaw(self, node: str) -> None:
        """Start it again: a node that was given up by the others does not find its way back by itself."""
        self.kill(node)
        self.reap(node)
        self.restart(node)

    def declare(self) -> None:
        port = next(iter(self.ports.values()))
        with wire.AmqpLink(port, self.vhost) as link:
            link.declare(QUEUE, {"x-queue-type": "quorum", "x-quorum-initial-group-size": NODES})
        found = [len(queue["members"]) for queue in self._queues() if queue["name"] == QUEUE]
        if found != [NODES]:
            raise ServerFailedError(f"the quorum queue has {found} members, not {NODES}")

    def leader(self) -> str:
        """Of `QUEUE`; before there is one, the first node: a queue is led by the node that its client is at."""
        for queue in self._queues():
            if queue["name"] == QUEUE:
                return str(queue["leader"])
        return next(iter(self.ports))

    def is_whole(self) -> bool:
        status = json.loads(self._tool("rabbitmqctl", "cluster_status", "--formatter", "json"))
        if len(status["running_nodes"]) != NODES:
            return False
        return all(len(queue["online"]) == NODES for queue in self._queues())

    def _queues(self) -> list[dict[str, Any]]:
        columns = ("name", "leader", "members", "online")
        found = self._tool("rabbitmqctl", "list_queues", "-p", self.vhost, *columns, "--formatter", "json")
        return list(json.loads(found))

    def _tool(self, program: str, *words: str) -> str:
        node = next(node for node in self._nodes.values() if node.alive)
        path = rabbitmq.ensure_installed().parent / program
        done = subprocess.run(
            [str(path), "-q", "-n", node.node, *words],
            env=os.environ | node.environment(),
            capture_output=True,
            text=True,
            timeout=_TOOL_S,
        )
        if done.returncode:
            raise ServerFailedError(
                f"{program} {words[0]} failed: {(done.stderr or done.stdout).strip()[:400]}"
            )
        return done.stdout
