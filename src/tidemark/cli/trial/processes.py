"""Processes of a trial and the ports that they get.

Invariant: a process is only ever signalled while its start time is the one that was noted when it was started.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tidemark
from tidemark.cli import CommandError

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
STOP_S = 20.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was started for a trial, perhaps by another call."""

    pid: int
    born: int
    """When it was started, as the system counts; 0 where that is not known."""

    @property
    def state(self) -> Literal["running", "frozen", "gone"]:
        letter, born = _look(self.pid)
        if letter in "ZX" or born != self.born:
            return "gone"
        return "frozen" if letter in "Tt" else "running"

    def signal(self, number: signal.Signals) -> None:
        if self.state != "gone":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            # Our own child leaves a corpse until somebody looks at it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if self.state == "gone":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait_gone(STOP_S)

    def stop(self) -> bool:
        """Ask it to end, insist if it does not; whether it did as it was asked."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.wait_gone(STOP_S):
            return True
        self.kill()
        return False


def _look(pid: int) -> tuple[str, int]:
    """State letter and start time of a process; X if there is none."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return "X", 0
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "X", 0
        return "R", 0
    return facts[0], int(facts[19])


def launch(command: list[str], log: Path, *, detached: bool) -> Process:
    """Start a process whose output goes to a file. `detached`: it stays when we end."""
    source = str(Path(tidemark.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=detached,
        )
    _, born = _look(started.pid)
    started.returncode = 0  # `Process` looks after it from here on
    return Process(started.pid, born)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Signals that end us wait until this is done."""
    if threading.current_thread() is not threading.main_thread():  # nobody is interrupted there
        yield
        return
    came: list[int] = []
    handled = [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, lambda one, _: came.append(one)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came[:1]:
            signal.raise_signal(signal.Signals(one))


_given: set[int] = set()
"""Ports that were found free: whoever they are for may not listen there yet when others are looked for."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, that were given to nobody else here, and that the system gives to no outgoing
    connection later."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise CommandError(f"there are not {count} free ports from {PORTS[0]} to {PORTS[-1]}")


def is_taken(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as problem:
            return problem.errno == errno.EADDRINUSE
        return False
