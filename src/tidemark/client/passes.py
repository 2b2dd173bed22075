"""What can be read any number of times, and what is known of it without asking.

The blocking and the asyncio client share these; each adds how a pass waits for its rows.

Invariant: `_last` is the newest pass, however far it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.client.errors import Interrupted
from tidemark.client.operations import Header, View
from tidemark.client.reading import Progress, Range, Reading, read_header
from tidemark.client.values import DiffSummary, Marker, Receipt
from tidemark.client.waiting import Lost

if TYPE_CHECKING:
    import pyarrow as pa


class Passes:
    """Something that can be read, in whole or in part, any number of times."""

    def __init__(self, stream: str, expected: int, progress: Progress | None) -> None:
        self._stream = stream
        self._expected = expected
        self._progress = progress
        self._last: Reading | None = None

    @property
    def marker(self) -> Marker | None:
        """The marker of the last pass that was read to its end, verified; None before."""
        return None if self._last is None else self._last.marker

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a pass as Arrow that had no rows; with rows, their batches have it."""
        return None if self._last is None else self._last.schema

    def _reading(self, part: Range, encoding: Any) -> Reading:
        self._last = Reading(
            self._stream,
            self._request(part),
            encoding,
            hashed=part.hashed,
            expected=self._expected,
            progress=self._progress,
        )
        return self._last

    def _request(self, part: Range) -> Header:
        raise NotImplementedError

    def _interrupted(self, lost: Lost, position: int = 0) -> Interrupted:
        return Interrupted(stream=self._stream, position=position, problem=lost.problem)


class OfView(Passes):
    """Passes over a view that shows the same for as long as it exists."""

    _view: View
    _pin: str | None

    @property
    def sequence(self) -> int:
        """It sees everything up to this one."""
        return self._view.sequence

    @property
    def history(self) -> str:
        return self._view.history

    @property
    def shards(self) -> int:
        """Into how many it is divided, also when the stream has grown since."""
        return self._view.shards

    @property
    def floor(self) -> int:
        """Rows with a lower sequence had ended by retention, truncate or purge; see `Head.floor`."""
        return self._view.floor

    @property
    def purged(self) -> int:
        """Deletes up to here are not told; see `Head.purged`."""
        return self._view.purged

    def _request(self, part: Range) -> Header:
        return read_header(self._view, self._stream, self._pin, part)


class OfSnapshot(OfView):
    """Passes over a view that is held open."""

    @property
    def position(self) -> Receipt:
        """Its end, to go on from: `snapshot(after=…)`, `follow(start=…)`."""
        return Receipt(self._view.history, self._view.sequence, first=self._view.after)

    def __len__(self) -> int:
        """How many rows it has, deleted ones included, as the broker counted when it was opened."""
        return self._view.live + self._view.tombstones


class OfDiff(Passes):
    """Passes over what lies between two snapshots."""

    _ends: tuple[int | Header | None, int | Header | None]

    @property
    def summary(self) -> DiffSummary:
        """How many; known when a pass was read to its end."""
        found = {} if self._last is None else self._last.summary
        if not found:
            raise ValueError("read the difference to its end first")
        return DiffSummary(found["changed"], found["deleted"])

    def _request(self, part: Range) -> Header:
        a, b = self._ends
        return {"op": "diff", "stream": self._stream, "a": a, "b": b, **part.fields()}
