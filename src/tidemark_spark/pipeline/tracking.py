"""How each sink is doing, in numbers: what the live view, the JSON lines, the metrics and the status file all show.

A `Tracker` belongs to one sink. The query's thread tells it of batches, the watcher of the lag, and everybody else
asks for a `SinkStatus`, which is a frozen picture.

The lag in rows is the number of unique keys that changed behind the mark, as the broker counts them. The lag in seconds
is how long ago the stream was first seen to be further than the mark; before that is known, the age of the mark.

Invariant: the numbers of a status belong together; they are taken under one lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark_spark.pipeline.values import Applied, Mark

RATE_WINDOW_S = 30.0
HEADS_MAX = 3600


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (State.STOPPED, State.DONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    sink: str
    kind: str
    mode: str
    state: State
    batches: int
    rows: int
    """Keys read from the stream in this run, tombstones included; in the modes append and update: results."""
    upserted: int
    deleted: int
    dead_letters: int
    dropped: int
    skipped_batches: int
    """Batches that the sink held already."""
    rows_per_s: float
    lag_rows: int | None
    lag_s: float | None
    eta_s: float | None
    batch: int | None
    sequence: int | None
    """The sink holds everything up to here."""
    boundary: bool
    """What it holds is one state of the stream."""
    boundary_at_ms: int | None
    """When it last did."""
    restarts: int
    error: str | None
    note: str | None
    offending: dict[str, Any] | None
    """The last row that failed an expectation, as far as it is known."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"state": self.state.value}


class Tracker:
    def __init__(
        self,
        sink: str,
        kind: str,
        mode: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.sink = sink
        self._kind, self._mode = kind, mode
        self._clock, self._wall_ms = clock, wall_ms
        self._lock = threading.Lock()
        self._state = State.STARTING
        self._mark: Mark | None = None
        self._batches = self._rows = self._upserted = self._deleted = 0
        self._dead = self._dropped = self._skipped = self._restarts = 0
        self._done: deque[tuple[float, float, int]] = deque()
        self._heads: deque[tuple[float, int]] = deque(maxlen=HEADS_MAX)
        self._lag_rows: int | None = None
        self._boundary_at: int | None = None
        self._error: str | None = None
        self._note: str | None = None
        self._offending: dict[str, Any] | None = None

    # What happens -------------------------------------------------------------------------------

    def opened(self, mark: Mark | None) -> None:
        """The sink says how far it has got."""
        with self._lock:
            self._mark = mark
            if mark is not None and mark.boundary:
                self._boundary_at = mark.at_ms

    def became(self, state: State, *, error: str | None = None, note: str | None = None) -> None:
        with self._lock:
            if state is State.RETRYING:
                self._restarts += 1
            self._state = state
            self._note = note
            if error is not None or state is State.DONE:
                self._error = error

    def applied(self, mark: Mark, done: Applied, *, began: float, dead_letters: int, dropped: int) -> None:
        """A batch is in the sink, or was before."""
        with self._lock:
            self._state = State.STOPPING if self._state is State.STOPPING else State.RUNNING
            self._batches += 1
            self._error = self._note = None
            self._dead += dead_letters
            self._dropped += dropped
            if done.skipped:
                self._skipped += 1
                return
            self._mark = mark
            self._rows += mark.rows
            self._upserted += done.upserted
            self._deleted += done.deleted
            self._done.append((began, self._clock(), mark.rows))
            if mark.boundary:
                self._boundary_at = mark.at_ms

    def rejected(self, row: dict[str, Any]) -> None:
        """A row failed an expectation."""
        with self._lock:
            self._offending = {**row, "at_ms": self._wall_ms()}

    def set_aside(self, dead_letters: int, dropped: int) -> None:
        """Rows that were rejected beside the batches."""
        with self._lock:
            self._dead += dead_letters
            self._dropped += dropped

    def behind(self, rows: int, head: int) -> None:
        """So many rows lie behind the mark, and the stream goes up to there."""
        with self._lock:
            self._lag_rows = rows
            if not self._heads or self._heads[-1][1] < head:
                self._heads.append((self._clock(), head))

    # What is asked ------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        with self._lock:
            return self._state

    @property
    def mark(self) -> Mark | None:
        with self._lock:
            return self._mark

    def status(self) -> SinkStatus:
        with self._lock:
            now = self._clock()
            rate = self._rate(now)
            sequence = reached(self._mark)
            lag_s = self._lag_s(now, sequence or 0)
            # Results come at another rate than rows do.
            eta = self._lag_rows / rate if self._lag_rows and rate > 0 and self._mode == "mirror" else None
            return SinkStatus(
                sink=self.sink,
                kind=self._kind,
                mode=self._mode,
                state=self._state,
                batches=self._batches,
                rows=self._rows,
                upserted=self._upserted,
                deleted=self._deleted,
                dead_letters=self._dead,
                dropped=self._dropped,
                skipped_batches=self._skipped,
                rows_per_s=rate,
                lag_rows=self._lag_rows,
                lag_s=lag_s,
                eta_s=0.0 if self._lag_rows == 0 else eta,
                batch=None if self._mark is None else self._mark.batch,
                sequence=sequence,
                boundary=self._mark is not None and self._mark.boundary,
                boundary_at_ms=self._boundary_at,
                restarts=self._restarts,
                error=self._error,
                note=self._note,
                offending=self._offending,
            )

    def _rate(self, now: float) -> float:
        while len(self._done) > 1 and self._done[0][1] < now - RATE_WINDOW_S:
            self._done.popleft()
        if not self._done or self._done[-1][1] < now - RATE_WINDOW_S:
            return 0.0
        begin, last = self._done[0][0], self._done[-1][1]
        return sum(rows for _, _, rows in self._done) / max(last - begin, 0.001)

    def _lag_s(self, now: float, sequence: int) -> float | None:
        if self._lag_rows is None:
            return None
        if self._lag_rows == 0:
            return 0.0
        while len(self._heads) > 1 and self._heads[0][1] <= sequence:
            self._heads.popleft()
        since = now - self._heads[0][0] if self._heads and self._heads[0][1] > sequence else 0.0
        if self._batches == 0 and self._mark is not None:
            return max(since, (self._wall_ms() - self._mark.at_ms) / 1000)
        return since


def reached(mark: Mark | None) -> int | None:
    """The sequence up to which a sink holds everything, in all shards and streams."""
    if mark is None:
        return None
    return min((at for shards in mark.position.values() for _, at in shards.values()), default=0)
