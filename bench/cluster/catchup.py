"""A member comes back with an empty store: how fast it is filled, and what publishers feel of it.

The member is stopped, its data removed, and started again, twice: alone, for the rate; and while a load generator
publishes with confirms as fast as it can, for what that load loses. When the member began and was done is in its log, to a
millisecond: it is `catch-up` when the leader has answered it, before the first record comes, and `ready` at the end. How
much the leader has complete it is asked ten times a second: an answer takes a millisecond of what the load is measured on.

The bulk copy sends as many bytes as the member's journal has through a loopback socket and writes them in pieces of
1 MB, each synced: what any copy could reach at most on this machine, measured before and after.

Invariant: a rate is told only if the member says that it is ready and holds as much as the leader did at its start.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.build import BIN
from bench.cluster.cases import Case, Scale
from bench.cluster.contestants import WHOLE_S
from bench.cluster.tidemark import TidemarkCluster
from bench.measure import Figures, RunFailedError
from bench.measure import _call as call
from bench.proc import HOST, stop
from tidemark.cli.trial import ask

PIECE_BYTES = 1 << 20
_POLL_S = 0.1
_DAY_S = 86400
_STATE = re.compile(r"^(\d\d:\d\d:[\d.]+) .* state of the member +state=(\S+)", re.MULTILINE)
_ANSWER_S = 10.0


def catch_up(case: Case, cluster: TidemarkCluster, scale: Scale, folder: Path) -> Figures:
    """The figures of one run.

    Raises:
        RunFailedError: the member was not ready in time, or the load ended.
    """
    leader = cluster.leader()
    member = next(name for name in reversed(cluster.ports) if name != leader)
    _fill(cluster.ports[leader], case.size, scale.messages)
    alone = _return_empty(cluster, leader, member)
    size = journal_bytes(cluster.trial.data(member))
    bulk = (bulk_copy(folder, size) + bulk_copy(folder, size)) / 2
    figures = {
        "messages": float(alone.records),
        "journal_bytes": float(size),
        "catch_up_s": alone.seconds,
        "messages_per_s": alone.records / alone.seconds,
        "bytes_per_s": size / alone.seconds,
        "bulk_bytes_per_s": bulk,
        "share_of_bulk": size / alone.seconds / bulk,
        "start_to_ready_s": alone.from_start_s,
    }
    return figures | _beside_load(case, cluster, leader, member, scale)


def _fill(port: int, size: int, count: int) -> None:
    words = ("--publish-only", "--durable", "--persistent", "--confirm", "1000", "--prefix", "backlog")
    call([str(BIN / "load"), "--port", str(port), *words, "--count", str(count), "--size", str(size)])


# The member ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Returned:
    """How a member was filled."""

    began: float
    """When the leader had answered it, by the monotonic clock."""
    ended: float
    """When it was ready."""
    records: int
    from_start_s: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def _return_empty(cluster: TidemarkCluster, leader: str, member: str) -> Returned:
    _empty(cluster, member)
    return _start(cluster, leader, member)


def _empty(cluster: TidemarkCluster, member: str) -> None:
    cluster.trial.stop(member)
    shutil.rmtree(cluster.trial.data(member))


def _start(cluster: TidemarkCluster, leader: str, member: str) -> Returned:
    goal = cluster.see(leader).end("durable")
    if not goal:
        raise RunFailedError("the leader does not say how far its journal is")
    admin, log = cluster.trial.members[member].admin, cluster.trial.log(member)
    before = log.stat().st_size
    started = time.monotonic()
    cluster.restart(member)
    while True:
        said = ask(admin)
        if said.get("state") == "ready" and int(said.get("durable", {}).get("journal", 0)) >= goal:
            break
        if time.monotonic() > started + WHOLE_S:
            raise RunFailedError(f"{member} is not ready after {WHOLE_S:.0f} s: {said.get('why', 'silent')}")
        time.sleep(_POLL_S)
    states = states_told(log.read_bytes()[before:].decode(errors="replace"))
    began = next(at for state, at in states if state == "catch-up")
    ended = next(at for state, at in reversed(states) if state == "ready")
    return Returned(began, ended, goal, ended - started)


def states_told(log: str) -> list[tuple[str, float]]:
    """The states that a member's log tells, and when it was in them, by the monotonic clock."""
    monotonic, wall = time.monotonic(), time.time()
    now = time.localtime(wall)
    today = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec + wall % 1
    found = []
    for at, state in _STATE.findall(log):
        hours, minutes, seconds = at.split(":")
        second = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        ago = (today - second + 1) % _DAY_S - 1  # a millisecond is not rounded to a day
        found.append((state, monotonic - ago))
    return found


def journal_bytes(data: Path) -> int:
    """What is in the journal's segments. They are laid out before they are written: zeros at their end do not count."""
    total = 0
    for path in data.glob("seg-*.log"):
        with contextlib.suppress(FileNotFoundError):  # a member that runs gives segments back
            total += _used_bytes(path)
    return total


def _used_bytes(path: Path) -> int:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - PIECE_BYTES)
            file.seek(start)
            used = len(file.read(end - start).rstrip(b"\0"))
            if used:
                return start + used
            end = start
    return 0


# The load beside it ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """How far the leader's journal is complete, over time."""

    admin: str
    seen: list[tuple[float, int]]

    def rate(self, began: float, ended: float) -> float:
        """Between these moments, which may both lie between two answers: there it is on a straight line.

        Raises:
            RunFailedError: the leader does not answer after the last of them.
        """
        self.await_answer(ended)
        times, ends = zip(*self.seen, strict=True)
        first, last = np.interp((began, ended), times, ends)
        return float(last - first) / (ended - began)

    def await_answer(self, after: float) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while not self.seen or self.seen[-1][0] < after:
            if time.monotonic() > deadline:
                raise RunFailedError(f"the leader has not answered for {_ANSWER_S:.0f} s: no rate")
            time.sleep(_POLL_S)


@contextmanager
def _watched(admin: str) -> Iterator[Watch]:
    watch, over = Watch(admin, []), threading.Event()

    def look() -> None:
        while True:
            complete = ask(admin).get("complete")
            if complete:
                watch.seen.append((time.monotonic(), int(complete["journal"])))
            if over.wait(_POLL_S):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        watch.await_answer(0)
        yield watch
    finally:
        over.set()
        thread.join()


def _beside_load(case: Case, cluster: TidemarkCluster, leader: str, member: str, scale: Scale) -> Figures:
    _empty(cluster, member)
    words = [
        "--publish-only",
        "--durable",
        "--persistent",
        "--confirm",
        str(case.window),
        "--prefix",
        "front",
    ]
    words += ["--port", str(cluster.ports[leader]), "--size", str(case.size), "--seconds", "600"]
    load = subprocess.Popen([str(BIN / "load"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with _watched(cluster.trial.members[leader].admin) as watch:
            time.sleep(scale.warmup_s)
            quiet_from = time.monotonic()
            time.sleep(scale.seconds)
            quiet_until = time.monotonic()
            returned = _start(cluster, leader, member)
            after = time.monotonic()
            time.sleep(scale.seconds)
            if load.poll() is not None:
                said = load.stdout.read().decode(errors="replace") if load.stdout else ""
                raise RunFailedError(f"the load ended: {said[-300:]}")
            before = watch.rate(quiet_from, quiet_until)
            during = watch.rate(returned.began, returned.ended)
            whole = watch.rate(after, time.monotonic())
    finally:
        stop(load)
    return {
        "foreground_before_per_s": before,
        "foreground_during_per_s": during,
        "foreground_whole_per_s": whole,
        "foreground_loss": 1 - during / before,
        "foreground_loss_of_whole": 1 - during / whole,
        "loaded_catch_up_s": returned.seconds,
    }


# The bulk copy ---------------------------------------------------------------------------------------


def bulk_copy(folder: Path, size: int) -> float:
    """Bytes a second through a loopback socket into a file, every piece synced before the next is read."""
    path = folder / "bulk-copy"
    with socket.create_server((HOST, 0)) as listener:
        sender = threading.Thread(target=_send, args=(listener.getsockname()[1], size), daemon=True)
        sender.start()
        taker, _ = listener.accept()
        try:
            with taker:
                return _take(taker, path, size)
        finally:
            sender.join()
            path.unlink(missing_ok=True)


def _send(port: int, size: int) -> None:
    piece = os.urandom(PIECE_BYTES)
    with socket.create_connection((HOST, port)) as connection:
        for start in range(0, size, PIECE_BYTES):
            connection.sendall(piece[: size - start])


def _take(connection: socket.socket, path: Path, size: int) -> float:
    buffer = memoryview(bytearray(PIECE_BYTES))
    began, left = time.monotonic(), size
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while left:
            piece = buffer[: min(left, PIECE_BYTES)]
            if connection.recv_into(piece, len(piece), socket.MSG_WAITALL) != len(piece):
                raise RunFailedError("the bulk copy ended too early")
            _write_all(piece, lambda data: os.write(file, data))
            os.fdatasync(file)
            left -= len(piece)
    finally:
        os.close(file)
    return size / (time.monotonic() - began)


def _write_all(piece: memoryview, write: Callable[[memoryview], int]) -> None:
    while piece:
        piece = piece[write(piece) :]
