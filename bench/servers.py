"""What every server under test offers, and the null broker as the simplest of them."""

from __future__ import annotations

import re
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from bench import proc
from bench.build import BIN


class Server(AbstractContextManager["Server"], Protocol):
    """A broker that runs while its context is open, on loopback, with its own folder."""

    name: str
    port: int
    pid: int

    def pids(self) -> list[int]:
        """All processes whose CPU and memory are the broker's."""
        ...

    def cpu_seconds(self) -> float: ...

    def rss_bytes(self) -> int: ...


class ChildServer:
    """A server that is one child process and says when it is ready; on a port of its choice if it names one."""

    name = "server"
    _ready = re.compile(rb"amqp=127\.0\.0\.1:(\d+)")
    _ready_in_log = False
    """Else on standard output, which has a file of its own."""
    _start_timeout_s = 30.0
    _stop_timeout_s = 60.0
    _poll_s = 0.05

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.pid = 0

    def _command(self) -> list[str]:
        """How it is called; what it needs for that is made here, too."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str] | None:
        return None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{self.name}.log"
        said = log if self._ready_in_log else self._folder / "stdout"
        for path in (said, log):
            path.write_bytes(b"")
        with said.open("ab") as out, log.open("ab") as err:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self._folder,
                env=self._environment(),
            )
        self.pid = self._process.pid
        try:
            proc.wait_until(
                lambda: self._ready.search(said.read_bytes()) is not None,
                self._process,
                log,
                self._start_timeout_s,
                self._poll_s,
            )
        except BaseException:
            proc.stop(self._process)
            raise
        found = self._ready.search(said.read_bytes())
        assert found is not None
        if found.re.groups:
            self.port = int(found[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            proc.stop(self._process, timeout_s=self._stop_timeout_s)
            self._process = None

    def pids(self) -> list[int]:
        return proc.family(self.pid)

    def cpu_seconds(self) -> float:
        return proc.cpu_seconds(self.pids())

    def rss_bytes(self) -> int:
        return proc.rss_bytes(self.pids())


class NullBroker(ChildServer):
    """The C program that only forwards bytes: the floor for broker CPU."""

    name = "null"

    def _command(self) -> list[str]:
        return [str(BIN / "null_broker")]


class NullDurable(ChildServer):
    """The same with a disk: nothing is delivered or confirmed before it is synced. The floor for durable cases."""

    name = "null-durable"

    def _command(self) -> list[str]:
        return [str(BIN / "null_broker"), "--disk", str(self._folder / "null.bin")]
