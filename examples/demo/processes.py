"""The processes of the demo: a broker and a pipeline, each of which can be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import AMQPError


class Broker:
    """One `tidemark serve`, on the same port and data whenever it is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"tidemark://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        command = [sys.executable, "-m", "tidemark", "serve", "--data", str(self._folder / "data")]
        command += ["--amqp", f"127.0.0.1:{self.port}", "--admin", "127.0.0.1:0"]
        log_file = self._folder / "broker.log"
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline().strip()
        if not ready:
            raise SystemExit(log_file.read_text())
        facts = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.port = int(facts["amqp"].rpartition(":")[2])

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(timeout=30)

    def connect(self) -> pika.BlockingConnection:
        for attempt in range(100):
            try:
                return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
            except (AMQPError, OSError):
                if attempt == 99:
                    raise
                time.sleep(0.1)
        raise AssertionError


class Pipeline:
    """One `tidemark pipeline run FILE --json`: what it reports is kept, newest first asked for."""

    def __init__(self, file: Path, folder: Path, url: str) -> None:
        self._file = file
        self._folder = folder
        self._environment = {**os.environ, "TIDEMARK_URL": url, "DEMO": str(folder)}
        self.reports: list[dict[str, Any]] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tidemark", "pipeline", "run", str(self._file), "--json", *arguments]
        with (self._folder / "pipeline.log").open("ab") as log:
            # A session of its own, so that Spark's JVM and Python workers can be killed with it.
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=[self._process], daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self.reports.append({**json.loads(line), "seen": time.monotonic()})

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and all its workers at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """Ask it to stop at the next boundary; what is left of its processes goes with it."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, command: str) -> tuple[int, Any]:
        """`tidemark pipeline COMMAND FILE --json`: its exit code and what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "tidemark", "pipeline", command, str(self._file), "--json"],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=180,
        )
        if not done.stdout.strip():
            raise SystemExit(f"`tidemark pipeline {command}` said:\n{done.stderr}")
        return done.returncode, json.loads(done.stdout)

    def log(self) -> str:
        return (self._folder / "pipeline.log").read_text()
