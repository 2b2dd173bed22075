"""The store keeps its promises on the real disk as on the simulated one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemark.runtime.disk import FileDisk
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import Process
from tidemark.store.check import check_store

WORKER = """
import sys
from pathlib import Path
from random import Random
from tidemark.runtime.disk import FileDisk
from tidemark.sim.store import Process
process = Process(FileDisk(Path(sys.argv[1])), Random(), 0)
queue = int(sys.argv[2])
journal = process.store.journal
number = 0
while True:
    waiting = []
    for _ in range(5):
        waiting.append((process.publish((queue,), b"%08d" % number + bytes(number % 3000)), number))
        number += 1
    process.turn()
    journal.maintain(process, number, 100_000)
    while journal.durable_seq < waiting[-1][0]:
        journal.completed()
    print(number, flush=True)
    if number % 50 == 0:
        process.consume(queue, 40)
"""


class Simulated:
    def __init__(self, _path: Path) -> None:
        self.disk = SimDisk()

    def open(self) -> Any:
        return self.disk

    def reopen(self, disk: Any) -> Any:
        return disk.crash()


class Real:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> Any:
        return FileDisk(self.path)

    def reopen(self, disk: Any) -> Any:
        disk.close()
        return FileDisk(self.path)


def settle(process: Process) -> None:
    while not process.store.idle:
        process.store.completed()


@pytest.mark.parametrize("kind", [Simulated, Real])
def test_messages_ends_and_wiring_come_back(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    where = kind(tmp_path / "data")
    process = Process(where.open(), Random(1), 0)
    process.store.catalog.append(b'{"wiring": 1}', 0)
    for number in range(400):
        process.publish((1, 2) if number % 3 else (3,), b"%d" % number + bytes(number))
        if number % 7 == 0:
            process.turn()
            process.store.journal.maintain(process, number, 1 << 20)
    process.consume(1, 150)
    process.consume(3, 100)
    process.housekeeping()
    settle(process)
    contents = process.contents()

    again = Process(where.reopen(process.disk), Random(2), 0)
    assert again.contents() == contents
    assert again.changes == [b'{"wiring": 1}']
    assert list(check_store(again.disk)) == []
    again.stop()
    third = Process(where.reopen(again.disk), Random(3), 0)
    assert third.report.found.startswith("clean(")
    assert third.contents() == contents
    if isinstance(third.disk, FileDisk):
        third.disk.close()


@pytest.mark.parametrize("batches", [10, 35, 60, 85])
def test_a_process_that_is_killed_has_kept_all_that_it_called_durable(batches: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    confirmed = {}
    for queue in (1, 2):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "data"), str(queue)],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(batches)]
        assert all(lines), "the worker ended by itself"
        os.kill(worker.pid, signal.SIGKILL)
        confirmed[queue] = int([*lines, *worker.stdout.read().split()][-1])
        worker.wait()
        worker.stdout.close()

    process = Process(FileDisk(tmp_path / "data"), Random(1), 0)
    for queue, count in confirmed.items():
        bodies = [body for _, body in process.contents()[queue]]
        numbers = [int(body[:8]) for body in bodies]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[-1] >= count - 1
        # Every fifty messages forty are consumed; the last of these ends may not have become durable.
        assert numbers[0] % 40 == 0
        assert numbers[0] <= 40 * ((numbers[-1] + 1) // 50)
        assert numbers[0] >= 40 * ((count - 1) // 50 - 1)
        assert all(len(body) == 8 + int(body[:8]) % 3000 for body in bodies)
    assert list(check_store(process.disk)) == []
    process.disk.close()
