"""Keeps a server busy with requests that were encoded before, and counts its answers.

All servers are loaded the same way: one connection, a fixed number of payloads on their way, nothing encoded and
nothing decoded in the measured phase but what tells an answer from an error. So the load side costs a fraction of
a core, and what is measured is the server. Every client library would be the limit instead.

Invariant: when `pump` returns, every request that was sent has been answered.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.measure import Figures, RunFailedError
from bench.proc import HOST

Buffer = bytes | bytearray | memoryview
_RECEIVE_BYTES = 1 << 18
_SILENCE_S = 60


class Answers(Protocol):
    """Tells answers in the bytes that come back, however they are cut."""

    def feed(self, data: bytes) -> int:
        """How many more answers are whole now.

        Raises:
            RunFailedError: one of them is an error.
        """
        ...


class Marks:
    """Answers that each hold one certain sequence of bytes, and never one of the others."""

    def __init__(self, each: bytes, never: tuple[bytes, ...]) -> None:
        self._each = each
        self._never = never
        self._tail = b""

    def feed(self, data: bytes) -> int:
        found = self._tail + data
        for wrong in self._never:
            if wrong in found:
                at = found.index(wrong)
                raise RunFailedError(f"the server answered {found[at : at + 200]!r}")
        count = found.count(self._each)
        # The end may be the beginning of a mark or of an error; what was counted must not be counted again.
        counted_upto = found.rfind(self._each) + len(self._each) if count else 0
        longest = max(map(len, (self._each, *self._never)))
        self._tail = found[max(counted_upto, len(found) - longest + 1) :]
        return count


@dataclass(frozen=True, slots=True)
class Pumped:
    """What happened in the measured phase."""

    rows: int
    seconds: float
    cpu_s: float
    """Of the server."""
    busy: float
    """The share of one core that the load side took."""
    p50_ms: float
    p99_ms: float
    """From handing a payload to the socket until its last answer."""
    total_rows: int
    """Of all phases, for comparison with what the server has stored."""

    @property
    def per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s / self.rows * 1e6

    def figures(self, name: str) -> Figures:
        return {
            f"{name}_per_s": self.per_s,
            f"{name}_cpu_s_per_million": self.cpu_s_per_million,
            f"{name}_p99_ms": self.p99_ms,
            f"generator_busy_{name}": self.busy,
        }


def connect(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel's own time limits: with Python's the socket would not block, and MSG_WAITALL not wait.
    for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", _SILENCE_S, 0))
    return connection


def receive(connection: socket.socket, bytes_max: int = _RECEIVE_BYTES) -> bytes:
    """What has come.

    Raises:
        RunFailedError: the server closed the connection, or said nothing for a minute.
    """
    try:
        data = connection.recv(bytes_max)
    except BlockingIOError:
        raise RunFailedError(f"the server was silent for {_SILENCE_S} s") from None
    except OSError as gone:
        raise RunFailedError(f"the server ended the connection: {gone}") from gone
    if not data:
        raise RunFailedError("the server closed the connection")
    return data


def send(connection: socket.socket, data: Buffer) -> None:
    """Send all of it.

    Raises:
        RunFailedError: the server closed the connection, or took nothing for a minute.
    """
    try:
        connection.sendall(data)
    except OSError as gone:
        raise RunFailedError(f"the server took no more: {gone}") from gone


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: `payload()` gives bytes that hold `requests` requests of `rows` rows in all."""

    payload: Callable[[], Buffer]
    requests: int
    rows: int
    window: int = 4
    """Payloads on their way at once."""


def pump(
    connection: socket.socket,
    load: Load,
    answers: Answers,
    cpu_seconds: Callable[[], float],
    seconds: float,
    warmup_s: float = 0.0,
) -> Pumped:
    """Send for so long after the warm-up, then wait for what is still open.

    The measured phase is longer when fewer payloads than are on their way at once were answered in it: a server
    may answer many at a time, and then be silent for long.

    Raises:
        RunFailedError: the server answered an error, or too much, or went away.
    """
    sent_at: list[float] = []
    answered = 0
    latencies: list[float] = []
    start = time.perf_counter()
    first = _Reading(0, start, cpu_seconds(), time.process_time())
    last: _Reading | None = None
    warm = warmup_s <= 0
    least = load.requests * load.window
    while last is None or answered < len(sent_at) * load.requests:
        while last is None and len(sent_at) - answered // load.requests < load.window:
            payload = load.payload()
            sent_at.append(time.perf_counter())
            send(connection, payload)
        whole = answered // load.requests
        answered += answers.feed(receive(connection))
        now = time.perf_counter()
        if answered > len(sent_at) * load.requests:
            raise RunFailedError(f"{answered} answers to {len(sent_at) * load.requests} requests")
        if warm and last is None:
            latencies += [now - at for at in sent_at[whole : answered // load.requests]]
        if not warm and now - start >= warmup_s:
            warm = True
            first = _Reading(answered, now, cpu_seconds(), time.process_time())
        elif warm and last is None and now - first.at >= seconds and answered - first.answered >= least:
            last = _Reading(answered, now, cpu_seconds(), time.process_time())
    rows_per_answer = load.rows / load.requests
    wall = last.at - first.at
    latencies.sort()
    return Pumped(
        rows=round((last.answered - first.answered) * rows_per_answer),
        seconds=wall,
        cpu_s=last.cpu_s - first.cpu_s,
        busy=(last.own_s - first.own_s) / wall,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        total_rows=len(sent_at) * load.rows,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    answered: int
    at: float
    cpu_s: float
    own_s: float


def percentile(ordered: list[float], share: float) -> float:
    """Of values in order; 0 when there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def opening_figures(times: list[float]) -> Figures:
    """Of opening snapshots, from the seconds that each took."""
    ordered = sorted(times)
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {f"open_{name}_us": percentile(ordered, share) * 1e6 for name, share in shares}
