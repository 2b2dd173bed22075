"""What every cluster under test offers: three nodes that can be loaded, killed, frozen and started again.

Invariant: a process gets a signal only through the handle that it was started with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import proc
from bench.proc import ServerFailedError

NODES = 3
WHOLE_S = 120.0
QUEUE = "replicated"
"""The queue or stream of the failover cases."""


class Cluster(ABC):
    """Three nodes that run while the context is open, on loopback, each with its own folder."""

    name = ""
    protocol = "amqp"
    vhost = "/"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        """Where clients connect, by node."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
            self.wait_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """End everything, frozen nodes too."""

    @abstractmethod
    def pid(self, node: str) -> int:
        """The process that is the node: the one that a kill must hit."""

    @abstractmethod
    def pids(self) -> list[int]:
        """All processes whose CPU is the cluster's, whoever decides about its leader included."""

    @abstractmethod
    def leader(self) -> str:
        """The node that leads `QUEUE`, or everything where that is one and the same."""

    @abstractmethod
    def declare(self) -> None:
        """Make `QUEUE`, replicated three times."""

    @abstractmethod
    def restart(self, node: str) -> None:
        """Start a node that was killed, on its data; does not wait for it."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether all nodes hold everything, as far as the cluster itself says."""

    @abstractmethod
    def reap(self, node: str) -> None:
        """Wait for the end of a node that was killed."""

    def wait_whole(self, timeout_s: float = WHOLE_S) -> None:
        """Wait until all nodes are there and have everything.

        Raises:
            ServerFailedError: it takes too long.
        """
        wait_for(self.is_whole, f"{self.name}: not all three nodes are in step", timeout_s)

    def cpu_seconds(self) -> float:
        return proc.cpu_seconds(self.pids())

    def kill(self, node: str) -> float:
        """SIGKILL; returns the moment, by the monotonic clock. `reap` waits for its end."""
        when = time.monotonic()
        os.kill(self.pid(node), signal.SIGKILL)
        return when

    def freeze(self, node: str) -> float:
        when = time.monotonic()
        os.kill(self.pid(node), signal.SIGSTOP)
        return when

    def thaw(self, node: str) -> None:
        os.kill(self.pid(node), signal.SIGCONT)


def wait_for(true: Callable[[], bool], otherwise: str, timeout_s: float, poll_s: float = 0.1) -> None:
    """Wait for something.

    Raises:
        ServerFailedError: with these words, when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise ServerFailedError(f"{otherwise} after {timeout_s:.0f} s")
        time.sleep(poll_s)


def end_child(process: subprocess.Popen[bytes], timeout_s: float = 30) -> None:
    """Ask a child to end that may be frozen."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
    proc.stop(process, timeout_s)
