"""Starts, kills, stops and restarts a real PostgreSQL server for a test.

`PostgresProcess` makes a cluster in a folder of its own and runs `postgres` on a free loopback port. PostgreSQL refuses
to run as root, so there it runs as the user `postgres` of Debian's package. A restart uses the same port and data.

Invariant: `process` is None exactly when no process of ours is running.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

READY_S = 30.0


def find_binaries() -> Path | None:
    """The folder of initdb and postgres; None where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class PostgresProcess:
    """One server over one data folder."""

    def __init__(self, *settings: str) -> None:
        binaries = find_binaries()
        assert binaries is not None, "PostgreSQL is not installed"
        self._binaries = binaries
        self._settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(self.folder, account.pw_uid, account.pw_gid)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> PostgresProcess:
        """Make the cluster on the first call, start the server and wait until it answers."""
        data = self.folder / "data"
        if not data.exists():
            command = [
                self._binaries / "initdb",
                "-D",
                data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-sync",
            ]
            subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._as)
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            *self._settings,
        ]
        command = [self._binaries / "postgres", "-D", data, *(word for s in settings for word in ("-c", s))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._as)
        self._wait_until_ready()
        return self

    def kill(self) -> None:
        """SIGKILL to the server; its other processes see that and end by themselves."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """The fast end: open transactions are rolled back, connections closed."""
        self._end(signal.SIGINT)

    def restart(self) -> PostgresProcess:
        if self.process is not None:
            self.stop()
        return self.start()

    def close(self) -> None:
        """End it and remove its data; for the end of a fixture."""
        if self.process is not None:
            self.kill()
        time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None, "the server is not running"
        self.process.send_signal(number)
        self.process.wait(READY_S)
        self.process = None

    def _wait_until_ready(self) -> None:
        import psycopg

        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process is not None
            code = self.process.poll()
            if code is not None:
                # After a kill the old server's processes may hold its memory a moment longer: the caller starts anew.
                self.process = None
                raise AssertionError(f"postgres ended with {code}:\n{self._log()}")
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            time.sleep(0.05)
        raise AssertionError(f"postgres was not ready in {READY_S} s:\n{self._log()}")

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]
