"""Starts, freezes, kills and restarts a real etcd for a test.

One process on free loopback ports with a directory of its own. A restart uses the same ports and the same data, so that
whoever talked to it finds it where it was. Its clocks are short: it elects itself within half a second.

Invariant: `process` is None exactly when no process of ours is running.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

READY_S = 20.0
PROGRAM = shutil.which("etcd") or "/usr/bin/etcd"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Etcd:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / "etcd.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._client, self._peer = free_port(), free_port()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._client}"

    def start(self) -> Etcd:
        """Start it and wait until it answers."""
        assert self.process is None, "etcd is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        own, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        command = [PROGRAM, "--name", "test", "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync"]
        command += ["--listen-client-urls", own, "--advertise-client-urls", own]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"test={peer}", "--logger", "zap", "--log-level", "error"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_S
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError("etcd did not start:\n" + self.log_path.read_text()[-2000:])
            time.sleep(0.02)
        return self

    def healthy(self) -> bool:
        try:
            answer = httpx.get(f"http://{self.endpoint}/health", timeout=1)
        except httpx.HTTPError:
            return False
        return answer.is_success and answer.json().get("health") == "true"

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def close(self) -> None:
        """End it whatever its state; for the end of a fixture."""
        if self.process is not None:
            self.kill()

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        # Its threads may run on for a moment, and answer what comes in it.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    # What it holds -------------------------------------------------------------------------------------------

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"http://{self.endpoint}/v3/{path}", json=body, timeout=5)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def put(self, key: str, value: str) -> None:
        self.call("kv/put", {"key": _base64(key), "value": _base64(value)})

    def get(self, key: str) -> str | None:
        found = self.call("kv/range", {"key": _base64(key)}).get("kvs", [])
        return base64.b64decode(found[0]["value"]).decode() if found else None

    def keys(self, prefix: str) -> list[str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("kv/range", {"key": _base64(prefix), "range_end": _base64(end), "keys_only": True})
        return [base64.b64decode(one["key"]).decode() for one in found.get("kvs", [])]

    def delete(self, key: str) -> None:
        self.call("kv/deleterange", {"key": _base64(key)})

    def revision(self) -> int:
        return int(self.call("kv/range", {"key": _base64("x")})["header"]["revision"])

    def compact(self) -> None:
        """Forget every version but the newest."""
        self.call("kv/compaction", {"revision": str(self.revision()), "physical": True})


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
