"""The processes of the crash test: the driver with all that Spark starts for it, and a thread that never stops writing.

A driver has a session of its own, so everything that belongs to it can be found, stopped and killed, also workers
that Spark puts into process groups of their own.

Invariant: when `close` returns, nothing of a driver's session runs any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from helpers.broker import SOURCE
from spark.crash.audited import AUDIT
from spark.crash.model import CANCELLED, Model, Version

import tidemark.client
from tidemark_spark.session import FAST_START

TESTS = SOURCE.parent / "tests"
CUSTOMERS = ("ann", "bob", "eve", "ivan", "zoë")


class Driver:
    """One `tidemark pipeline run FILE --json`."""

    def __init__(self, file: Path, audit: Path, *, paths: tuple[Path, ...] = ()) -> None:
        self.file = file
        self.log = file.with_name("driver.log")
        self.states: dict[str, dict[str, Any]] = {}
        """Sink → the last line about it."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, SOURCE, TESTS))),
            "SPARK_LAUNCHER_OPTS": FAST_START,
            AUDIT: str(audit),
        }
        command = [sys.executable, "-m", "tidemark", "pipeline", "run", str(file), "--json"]
        command += ["--master", "local[2,4]", *SETTINGS]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """It runs, and no sink of it has failed."""
        assert self.process.poll() is None, f"the driver ended by itself: {self.told()}"
        failed = {sink: line["error"] for sink, line in self.states.items() if line["state"] == "failed"}
        assert not failed, f"sinks failed: {failed}; {self.told()}"

    def workers(self) -> dict[int, str]:
        """Processes of Spark's Python that a batch needs: workers that run tasks, their daemon, planners of sources."""
        found = {}
        for pid in session(self.pid):
            command = " ".join(command_of(pid)[1:])
            if command in WORKERS:
                found[pid] = WORKERS[command]
        return found

    def kill(self) -> None:
        """SIGKILL to the process group. Workers that are not in it are left to notice."""
        os.killpg(self.pid, signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        for pid in session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM: every sink finishes its batch. Its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"the driver did not stop in {timeout_s} s: {self.told()}") from None
        self._reap()
        return code

    def close(self) -> None:
        for pid in session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()

    def told(self) -> str:
        lines = {sink: (line["state"], line["error"]) for sink, line in self.states.items()}
        return f"{lines}; the end of its log:\n{self.log.read_text(errors='replace')[-2000:]}"

    def _reap(self) -> None:
        self.process.wait(30)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    facts = json.loads(line)
                    if facts.get("event") == "progress":
                        self.states[facts["sink"]] = facts


SETTINGS = [
    "--conf", f"spark.driver.extraJavaOptions={FAST_START}",
    "--conf", "spark.driver.memory=1g",
    "--conf", "spark.executor.heartbeatInterval=5s",
]  # fmt: skip


WORKERS = {
    "-m pyspark.daemon pyspark.worker": "worker",
    "-m pyspark.sql.streaming.python_streaming_source_runner": "planner",
}


def session(leader: int) -> list[int]:
    """The processes of a session that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            # pid (name) state parent group session …; the name may hold anything.
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(words[3]) == leader and words[0] != "Z":
                found.append(int(entry.name))
    return found


def command_of(pid: int) -> list[str]:
    try:
        return [word for word in Path(f"/proc/{pid}/cmdline").read_text().split("\0") if word] or [""]
    except OSError:
        return [""]


class Churn:
    """Rewrites and deletes keys all the time, by numbered puts: what is in doubt is sent again until it is answered.

    So every version has a receipt, and the model is exact.
    """

    def __init__(self, url: str, stream: str, model: Model, dice: random.Random, *, keys: int) -> None:
        self.model = model
        self.problem: BaseException | None = None
        self.resent = 0
        self.begun = self.done = 0
        """Puts that were sent, and those that are in the model."""
        self._url, self._stream = url, stream
        self._dice = dice
        self._keys = [f"order-{number}" for number in range(keys)]
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the churn does not stop"
        self.check()

    def check(self) -> None:
        if self.problem is not None:
            raise AssertionError("the churn failed") from self.problem

    def catch_up(self) -> None:
        """Wait until all that anybody can have seen by now is in the model."""
        begun, end = self.begun, time.monotonic() + 60
        while self.done < begun:
            self.check()
            assert time.monotonic() < end, "the producer has no answer"
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            with tidemark.client.connect(self._url, timeout=20, name="churn") as db:
                producer = db.producer("churn")
                self._write(producer, self._keys)
                while not self._stop.is_set():
                    self._write(producer, self._dice.sample(self._keys, self._dice.randint(1, 12)))
                    time.sleep(self._dice.expovariate(40))
        except BaseException as problem:
            self.problem = problem

    def _write(self, producer: tidemark.client.blocking.Producer, keys: list[str]) -> None:
        versions = [Version(key, self._value()) for key in keys]
        number = producer.last + 1
        self.begun += 1
        while True:
            try:
                receipt = producer.put_many(self._stream, versions, number=number)
                break
            except (tidemark.client.Unconfirmed, tidemark.client.NotConnected):
                self.resent += 1
        assert receipt.sequence - receipt.first + 1 == len(versions), receipt
        self.model.add(receipt.first, versions)
        self.done += 1

    def _value(self) -> bytes | None:
        self._count += 1
        chance = self._dice.random()
        if chance < 0.15:
            return None
        if chance < 0.17:
            return b"nonsense %d" % self._count
        status = CANCELLED if chance < 0.25 else "open"
        facts = {"customer": self._dice.choice(CUSTOMERS), "number": self._count, "status": status}
        return json.dumps(facts).encode()
