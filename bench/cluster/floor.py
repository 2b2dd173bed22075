"""Three processes of the null cluster: what a message on three disks costs when nothing else is done (`bench/null_cluster.c`)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bench.build import BIN
from bench.cluster.contestants import NODES, Cluster
from bench.proc import ServerFailedError
from bench.servers import ChildServer


class _Node(ChildServer):
    """The leader if it is given followers, which must run already."""

    def __init__(self, folder: Path, name: str, followers: list[int]) -> None:
        super().__init__(folder)
        self.name = name
        self._followers = followers

    def _command(self) -> list[str]:
        words = [str(BIN / "null_cluster"), "--disk", str(self._folder / "null.bin")]
        return [*words, "--followers", ",".join(map(str, self._followers))] if self._followers else words


class FloorCluster(Cluster):
    name = "floor"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._nodes: dict[str, _Node] = {}
        self._running = ExitStack()

    def start(self) -> None:
        """The followers, then the leader, which is the last."""
        for number in range(NODES, 0, -1):
            name = f"n{number}"
            followers = list(self.ports.values()) if number == 1 else []
            node = self._running.enter_context(_Node(self.folder / name, name, followers))
            self._nodes[name], self.ports[name] = node, node.port

    def stop(self) -> None:
        self._running.close()

    def pid(self, node: str) -> int:
        return self._nodes[node].pid

    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes.values()]

    def leader(self) -> str:
        return "n1"

    def declare(self) -> None:
        """It has one queue, under whatever name."""

    def restart(self, node: str) -> None:
        raise ServerFailedError(
            f"{node} of the null cluster cannot come back: it has read nothing from its disk"
        )

    def reap(self, node: str) -> None:
        self._nodes[node].__exit__(None, None, None)

    def is_whole(self) -> bool:
        return len(self._nodes) == NODES
