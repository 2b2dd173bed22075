"""Three private NATS servers in a cluster, with streams of three replicas whose every write is synced.

`sync_interval: always` makes JetStream answer a message when it is on the disk, as Tidemark and RabbitMQ do; without it
NATS answers from memory and syncs every two minutes. Each server is asked whether it is set so.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from bench import proc
from bench.cluster.contestants import NODES, QUEUE, Cluster, end_child
from bench.measure import RunFailedError
from bench.proc import ServerFailedError
from bench.streams import nats as single
from tidemark.cli.trial import free_ports

_START_S = 60.0
_API_S = 10.0
T = TypeVar("T")


class NatsCluster(Cluster):
    name = "nats"
    protocol = "nats"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._http_ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._streams: list[str] = []

    def start(self) -> None:
        ports = free_ports(3 * NODES)
        names = [f"n{number}" for number in range(1, NODES + 1)]
        routes = [f"nats://{proc.HOST}:{port}" for port in ports[2 * NODES :]]
        for number, name in enumerate(names):
            client, http, route = ports[number], ports[NODES + number], ports[2 * NODES + number]
            self.ports[name], self._http_ports[name] = client, http
            (self.folder / f"{name}.conf").write_text(
                f"server_name: {name}\n"
                f'listen: "{proc.HOST}:{client}"\n'
                f'http: "{proc.HOST}:{http}"\n'
                f'jetstream {{ store_dir: "{self.folder / name}", sync_interval: always }}\n'
                f'cluster {{ name: bench, listen: "{proc.HOST}:{route}", routes: {json.dumps(routes)} }}\n'
            )
            self.restart(name)
        for name in names:
            self._wait_ready(name)
        if not all(self._jsz(name)["config"].get("sync_always") for name in names):
            raise ServerFailedError("NATS does not say that it syncs every write")

    def _wait_ready(self, node: str) -> None:
        log = self.folder / f"{node}.log"
        proc.wait_until(lambda: b"Server is ready" in log.read_bytes(), self._processes[node], log, _START_S)

    def restart(self, node: str) -> None:
        with (self.folder / f"{node}.log").open("ab") as output:
            self._processes[node] = subprocess.Popen(
                [str(single.ensure_installed()), "-c", str(self.folder / f"{node}.conf")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )

    def stop(self) -> None:
        for process in self._processes.values():
            end_child(process)

    def reap(self, node: str) -> None:
        self._processes[node].wait()

    def pid(self, node: str) -> int:
        return self._processes[node].pid

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def declare(self) -> None:
        self.make_stream(QUEUE)

    def make_stream(self, name: str) -> None:
        """A stream of three replicas in files, whose subject is its name."""
        config = {"name": name, "subjects": [name], "storage": "file", "num_replicas": NODES}
        said = self._ask(lambda js: _api(js, f"STREAM.CREATE.{name}", config))
        if (kept := said["config"]["num_replicas"]) != NODES:
            raise ServerFailedError(f"the stream has {kept} replicas")
        self._streams.append(name)
        self.wait_whole()

    def remove_stream(self, name: str) -> None:
        self._ask(lambda js: _api(js, f"STREAM.DELETE.{name}", {}))
        self._streams.remove(name)

    def info(self, stream: str) -> dict[str, Any]:
        return self._ask(lambda js: _api(js, f"STREAM.INFO.{stream}", {}))

    def leader(self) -> str:
        stream = self._streams[-1] if self._streams else None
        return str(self.info(stream)["cluster"]["leader"]) if stream else next(iter(self.ports))

    def is_whole(self) -> bool:
        try:
            metas = [self._jsz(name).get("meta_cluster", {}) for name in self.ports]
            if any(not meta.get("leader") or meta.get("cluster_size") != NODES for meta in metas):
                return False
            return all(map(self._in_step, self._streams))
        except (OSError, RunFailedError, TimeoutError):
            return False

    def _in_step(self, stream: str) -> bool:
        cluster = self.info(stream)["cluster"]
        replicas = cluster.get("replicas", [])
        current = [one for one in replicas if one.get("current") and not one.get("offline")]
        return bool(cluster.get("leader")) and len(current) == NODES - 1

    def numbers(self, stream: str, count: int) -> list[int]:
        """The numbers that a stream holds, `count` of them."""

        async def read(connection: Any) -> list[int]:
            js = connection.jetstream()
            reader = await js.subscribe(stream, ordered_consumer=True)
            return [int((await reader.next_msg(timeout=_API_S)).data[:8]) for _ in range(count)]

        return self._ask(read)

    def _jsz(self, node: str) -> dict[str, Any]:
        url = f"http://{proc.HOST}:{self._http_ports[node]}/jsz"
        with urllib.request.urlopen(url, timeout=_API_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        import nats as client

        async def asked() -> T:
            connection = await client.connect([f"nats://{proc.HOST}:{port}" for port in self.ports.values()])
            try:
                return await question(connection)
            finally:
                await connection.close()

        return asyncio.run(asked())


async def _api(connection: Any, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    import nats.errors

    try:
        answer = await connection.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=_API_S)
    except nats.errors.Error as problem:
        raise RunFailedError(f"NATS did not answer {subject}: {problem}") from problem
    said: dict[str, Any] = json.loads(answer.data)
    if "error" in said:
        raise RunFailedError(f"NATS refused {subject}: {said['error']}")
    return said
