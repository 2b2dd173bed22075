"""Starts, kills, stops and restarts a real redis-server for a test.

It listens on a free loopback port and keeps an append-only file that is synced with every command, so that what it
answered is there after a SIGKILL.

Invariant: `process` is None exactly when no process of ours is running.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

READY_S = 20.0
PROGRAM = shutil.which("redis-server")


class RedisProcess:
    """One Redis over one directory."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self._arguments = arguments

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self.process is not None, "Redis is not running"
        return self.process.pid

    def start(self) -> RedisProcess:
        """Start it and wait until it answers."""
        assert self.process is None, "Redis is running already"
        assert PROGRAM is not None, "redis-server is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            port = self.port or free_port()
            command = [
                PROGRAM,
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self.folder),
                "--save",
                "",
            ]
            command += ["--appendonly", "yes", "--appendfsync", "always", *self._arguments]
            with (self.folder / "redis.log").open("ab") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            if self._ready(port):
                self.port = port
                return self
            self.close()  # somebody else took the port
        raise AssertionError("Redis did not start:\n" + (self.folder / "redis.log").read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> RedisProcess:
        """Start again on the same port and data."""
        if self.process is not None:
            self.kill()
        return self.start()

    def close(self) -> None:
        """End it whatever its state; for the end of a fixture."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait(20)
        self.process = None

    def _ready(self, port: int) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as link:
                link.sendall(b"PING\r\n")
                if link.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                    return True
            time.sleep(0.02)
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
