"""A Spark standalone cluster of the pip-installed PySpark on loopback: a master and workers, each a process of ours.

Workers have addresses of their own (127.0.0.1, 127.0.0.2, …), as machines have: Spark starts a second attempt of a slow
task only on another machine.

Invariant: `stop` ends every process that `start` began, and only these.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tidemark_spark.java import java_home
from tidemark_spark.session import FAST_START

READY_S = 60.0


class StandaloneCluster:
    def __init__(self, folder: Path, workers: int = 2, memory: str = "1200m") -> None:
        self._folder = folder
        self._workers = workers
        self._memory = memory
        self._port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> StandaloneCluster:
        """Start all of it and wait until each worker is registered."""
        base = "org.apache.spark.deploy"
        self._launch("master", f"{base}.master.Master", "--host", "127.0.0.1", "--port", str(self._port))
        self._wait("master", "I have been elected leader")
        for number in range(1, self._workers + 1):
            host = f"127.0.0.{number}"
            folder = str(self._folder / f"worker-{number}")
            arguments = ["--host", host, "-c", "1", "-m", self._memory, "-d", folder, self.url]
            self._launch(f"worker-{number}", f"{base}.worker.Worker", *arguments)
        for number in range(1, self._workers + 1):
            self._wait(f"worker-{number}", "Successfully registered with master")
        return self

    def stop(self) -> None:
        """End the workers (with the executors that they started), then the master."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _launch(self, name: str, *command: str) -> None:
        import pyspark

        spark_home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(spark_home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": FAST_START,
            "SPARK_LAUNCHER_OPTS": FAST_START,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
        }
        environment.pop("SPARK_LOCAL_IP", None)
        kind, *arguments = command
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [spark_home / "bin" / "spark-class", kind, "--webui-port", "0", *arguments],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
            )

    def _wait(self, name: str, words: str) -> None:
        deadline = time.monotonic() + READY_S
        while words not in self.log(name):
            assert all(process.poll() is None for process in self._processes), self.log(name)
            assert time.monotonic() < deadline, f"{name} is not ready:\n{self.log(name)}"
            time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
