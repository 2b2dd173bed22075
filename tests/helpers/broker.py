"""Starts, kills, stops and restarts a real Tidemark broker for a test.

`BrokerProcess` runs `python -m tidemark serve` on free loopback ports with its own data
directory, waits for the ready line and keeps standard error in a log file beside the data.
A restart uses the same ports and the same data, so clients reconnect to where they were.

Invariant: `process` is None exactly when no process of ours is running.
"""

from __future__ import annotations

import os
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).resolve().parents[2] / "src"
READY_S = 30.0
STOP_S = 20.0


class BrokerStartError(AssertionError):
    """The broker did not print its ready line; the text ends with its log."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens, and who may log in there."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    tls: ssl.SSLContext | None = None

    def url(self, vhost: str = "%2F") -> str:
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{vhost}"


def parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host or "127.0.0.1", int(port))


class BrokerProcess:
    """One broker process over one data directory."""

    def __init__(self, data: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.data = data
        self.log_path = data.with_name(data.name + ".log")
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_line = ""
        self._arguments: Sequence[str] = arguments
        self._environment = environment or {}
        self._amqp = "127.0.0.1:0"
        self._admin = "127.0.0.1:0"

    @property
    def address(self) -> Address:
        return parse_address(self._amqp)

    @property
    def admin(self) -> Address:
        return parse_address(self._admin)

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    def launch(self) -> None:
        """Start the process and do not wait for it.

        It stays in our process group, so that what ends the test run as a whole ends it too.
        """
        assert self.process is None, "the broker is running already"
        environment = os.environ | {"PYTHONPATH": str(SOURCE)} | self._environment
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._program(), *self._command()], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env=environment,
            )  # fmt: skip

    def _program(self) -> list[str]:
        return ["-m", "tidemark"]

    def _command(self) -> list[str]:
        listen = ["--amqp", self._amqp, "--admin", self._admin]
        return ["serve", "--data", str(self.data), *listen, *self._arguments]

    def start(self, timeout_s: float = READY_S) -> Self:
        """Start the process and wait until it says that it is ready.

        Raises:
            BrokerStartError: it ended, or said nothing for `timeout_s`.
        """
        self.launch()
        try:
            self.ready_line = self._read_ready_line(time.monotonic() + timeout_s)
        except BrokerStartError:
            self.kill()
            raise
        facts = dict(word.split("=", 1) for word in self.ready_line.split() if "=" in word)
        self._amqp, self._admin = facts["amqp"], facts.get("admin", "")
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        self._signal(signal.SIGKILL)
        self._reap(STOP_S)

    def stop(self) -> None:
        """SIGTERM: a clean end, which is exit code 0 within the time allowed."""
        self._signal(signal.SIGTERM)
        try:
            code = self._reap(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not stop in {STOP_S} s{self._log()}") from None
        assert code == 0, f"the broker stopped with exit code {code}{self._log()}"

    def restart(self) -> Self:
        """Start again on the same ports and data, after a clean stop if it still runs."""
        if self.process is not None:
            self.stop()
        return self.start()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it whatever its state; for the end of a fixture."""
        if self.process is not None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _reap(self, timeout_s: float) -> int:
        assert self.process is not None
        code = self.process.wait(timeout_s)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def _read_ready_line(self, deadline: float) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        seen = b""
        while not seen.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([output], [], [], left_s)[0]:
                raise BrokerStartError(f"no ready line in time, only {seen!r}{self._log()}")
            if not (piece := os.read(output, 4096)):
                raise BrokerStartError(f"it ended before it was ready{self._log()}")
            seen += piece
        line = seen.decode().strip()
        if not line.startswith("tidemark ready "):
            raise BrokerStartError(f"its first line is {line!r}{self._log()}")
        return line

    def _log(self) -> str:
        return "; the end of its log:\n" + self.log_path.read_text(errors="replace")[-3000:]
