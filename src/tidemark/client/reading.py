"""Reading many rows: the two machines between the frames of one request and the rows of a caller.

`Reading` is one pass over a snapshot, a pin or a difference. `Following` is a subscription: it remembers how far it
came, so that after a broken connection the same subscription goes on there, and when the consumer's mark is to move.
Both say how many bytes the broker may send next (`credit`), so that a slow reader never fills our memory.

Invariant: rows are handed on only in the order in which they came, and a marker only when it is true of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidemark.client.operations import Call, Header, View, marker_of, move_mark, move_shards
from tidemark.client.rows import COLUMNS, HASHED, ROW_COLUMNS, Tally, arrow_of, batch_of_arrow, rows_of
from tidemark.client.values import Bytes, Mark, Marker, Receipt, Row, milliseconds, octets
from tidemark.model.rows import RowBatch
from tidemark.wire.stream.rows import decode_rows

if TYPE_CHECKING:
    import pyarrow as pa

CREDIT_BYTES = 8 << 20
"""What may be on its way to us for one request; half of it is granted again when it has been used."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with rows read so far and rows expected in all."""
Commit: TypeAlias = Literal["boundary", "each"]
OnReset: TypeAlias = Literal["raise", "restart"]
Position: TypeAlias = "int | Receipt | Marker | Mark | Batch"
"""A place in a stream: a bare sequence, or better something that also knows its history."""
Start: TypeAlias = Literal["first", "last", "next"] | int | datetime | Receipt | Marker | Mark


class Credit:
    """How much of what was granted has been used."""

    def __init__(self, size: int = CREDIT_BYTES) -> None:
        self.size = size
        self._used = 0

    def used(self, size: int) -> int:
        """So many bytes are done with; what to grant now, 0 for nothing yet."""
        self._used += size
        if self._used < self.size // 2:
            return 0
        granted, self._used = self._used, 0
        return granted


# A pass over a snapshot ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which rows of a snapshot, and which of their columns."""

    after: int | None = None
    until: int | None = None
    shards: Sequence[int] | None = None
    key_from: Bytes | None = None
    key_to: Bytes | None = None
    columns: Sequence[str] | None = None
    batch_bytes: int | None = None
    verify: bool = True
    """Off: the hash of what comes is not checked, only how much it is. The broker saves the work, too."""

    def fields(self) -> Header:
        """As they stand in a header; checked, so that a typing error is found before anything is sent.

        Raises:
            ValueError: a column that does not exist.
        """
        if self.columns is not None and (unknown := [name for name in self.columns if name not in COLUMNS]):
            raise ValueError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        found: Header = {
            "after": self.after,
            "until": self.until,
            "shards": None if self.shards is None else list(self.shards),
            "key_from": None if self.key_from is None else encode_key(self.key_from),
            "key_to": None if self.key_to is None else encode_key(self.key_to),
            "columns": None if self.columns is None else list(self.columns),
            "batch_bytes": self.batch_bytes,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def hashed(self) -> bool:
        return self.verify and (self.columns is None or set(self.columns) >= HASHED)


def encode_key(key: Bytes) -> str:
    """A key in a header: base64, for it may be any bytes."""
    import base64

    return base64.b64encode(octets(key)).decode()


class Reading:
    """One request that reads rows to their end."""

    def __init__(
        self,
        stream: str,
        header: Header,
        encoding: Literal["rows", "arrow"],
        *,
        hashed: bool = True,
        expected: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.stream = stream
        self.position = 0
        self.marker: Marker | None = None
        self.summary: Header = {}
        self.schema: Any = None
        self.credit = Credit()
        self._encoding = encoding
        self._tally = Tally(hashed)
        self._hashed = hashed
        self._expected = expected
        self._progress = progress
        self.header = {**header, "encoding": encoding, "credit": self.credit.size}
        if not hashed:
            self.header["hash"] = False

    def rows(self, header: Header, payload: memoryview) -> list[Row]:
        batch = decode_rows(header, payload, values_needed=False)
        self._tally.add(batch)
        self._advance(header)
        return rows_of(batch)

    def batches(self, header: Header, payload: memoryview) -> list[pa.RecordBatch]:
        import pyarrow as pa

        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            found = [one for one in reader if one.num_rows]
        for one in found:
            if self._hashed:
                self._tally.add(batch_of_arrow(one))
            else:
                self._tally.add_count(one.num_rows)
        self._advance(header)
        return found

    def finish(self, header: Header, payload: memoryview) -> None:
        """The answer came: nothing more follows.

        Raises:
            MarkerMismatch: what came is not what was sent.
        """
        self.summary = header
        if self._encoding == "arrow" and len(payload):
            import pyarrow as pa

            with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
                self.schema = reader.schema
        if header.get("marker"):
            self.marker = self._tally.verify(self.stream, marker_of(header["marker"]))
            self.position = max(self.position, self.marker.end)

    def _advance(self, header: Header) -> None:
        self.position = max(self.position, header.get("position", 0))
        if self._progress is not None:
            self._progress(self._tally.rows, max(self._expected, self._tally.rows))


def read_header(view: View, stream: str, pin: str | None, part: Range) -> Header:
    """What asks for a part of a snapshot; of a pin by its name, which any connection may."""
    which: Header = {"snapshot": view.id} if pin is None else {"stream": stream, "pin": pin}
    return {"op": "read", **which, **part.fields()}


# A subscription -----------------------------------------------------------------------------------


class Batch:
    """Rows of a stream as a subscription brought them, or the boundary that ends a snapshot, or both.

    At a batch with a `marker` everything up to `position` has come: who commits there, and only there, never
    shows half of a transaction.
    """

    __slots__ = ("_batch", "_rows", "history", "marker", "position", "reset", "size")

    def __init__(
        self,
        batch: RowBatch | None,
        position: int,
        history: str,
        marker: Marker | None = None,
        *,
        reset: bool = False,
        size: int = 0,
    ) -> None:
        self._batch = batch
        self._rows: list[Row] | None = None
        self.position = position
        """The sequence up to which everything was looked at."""
        self.history = history
        self.marker = marker
        """Set when a snapshot ends here."""
        self.reset = reset
        """What the consumer holds is no longer known to be right: empty it, the stream starts anew behind this."""
        self.size = size

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            self._rows = [] if self._batch is None else rows_of(self._batch)
        return self._rows

    def to_arrow(self) -> pa.Table:
        return arrow_of(RowBatch(count=0, values=(bytes(4), b"")) if self._batch is None else self._batch)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return 0 if self._batch is None else self._batch.count

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} rows up to {self.position}, marker={self.marker}, reset={self.reset}>"


class Following:
    """How far a subscription is, and what its consumer has finished with."""

    def __init__(
        self,
        stream: str,
        *,
        consumer: str | None,
        start: Start | None,
        commit: Commit | None,
        shards: Sequence[int] | None,
        columns: Sequence[str] | None,
    ) -> None:
        if commit not in ("boundary", "each", None):
            raise ValueError(f"commit is 'boundary', 'each' or None, not {commit!r}")
        self.stream = stream
        self.consumer = consumer
        self.credit = Credit()
        self._commit = commit if consumer is not None else None
        self._shards = shards
        self._of: int | None = None
        """How many shards the stream had when this reading began."""
        self._fields = Range(shards=shards, columns=columns or ROW_COLUMNS).fields()
        self._hashed = Range(columns=columns).hashed
        self._start = _start(start, consumer)
        self._tally = Tally(self._hashed)
        self._position: tuple[str, int] | None = None

    def begin(self, *, anew: bool = False) -> Header:
        """What to ask for: the start, or where a broken connection left us; `anew` from the first row."""
        self.credit = Credit()
        self._tally = Tally(self._hashed)
        origin: Any = self._start
        if anew:
            self._position, origin = None, "first"
        elif self._position is not None:
            history, sequence = self._position
            origin = {"history": history, "sequence": sequence}
        header: Header = {"op": "follow", "stream": self.stream, "from": origin, "encoding": "rows"}
        return {**header, **self._fields, "credit": self.credit.size}

    @property
    def from_mark(self) -> bool:
        """It is to begin at the consumer's mark, which the member that leads knows."""
        return self._position is None and isinstance(self._start, dict) and "mark" in self._start

    def begin_at(self, mark: Mark) -> None:
        """That is where the mark is."""
        self._start = {"history": mark.history or None, "sequence": mark.sequence}

    def begin_at_least(self, mark: Mark | None, shards: int) -> None:
        """The same for those shards that are read, of so many: where the last of them is. None: at the beginning."""
        if mark is None:
            self._start = "first"
            return
        if self._shards is not None and len(mark.shards) == shards:
            mark = mark._replace(sequence=min(mark.shards[shard] for shard in self._shards))
        self.begin_at(mark)

    @property
    def sharded(self) -> bool:
        return self._shards is not None

    def arrived(self, header: Header, payload: memoryview, history: str) -> Batch | None:
        """What a frame brought; `history` is the one of the connection. None: only where the stream begins.

        Raises:
            MarkerMismatch: the rows since the last boundary are not those of the marker.
        """
        size = len(payload)
        if header.get("marker"):
            marker = self._tally.verify(self.stream, marker_of(header["marker"]))
            self._tally = Tally(self._hashed)
            self._position = marker.history, marker.end
            return Batch(None, marker.end, marker.history, marker, size=size)
        if "count" not in header:
            self._position = header.get("history", history), header.get("after", 0)
            self._of = header.get("shards")
            return None
        batch = decode_rows(header, payload, values_needed=False)
        self._tally.add(batch)
        position = header["position"]
        history = header.get("history", history)
        self._position = history, position
        return Batch(batch, position, history, size=size)

    def done(self, batch: Batch) -> bool:
        """The caller has finished with a batch: must the consumer's mark move to its position?"""
        if batch.reset:
            return False
        return self._commit == "each" or (self._commit == "boundary" and batch.marker is not None)

    def mark(self, batch: Batch) -> Call[None]:
        """Moves the consumer's mark to the end of a batch: in the shards that are read, others may read the rest."""
        assert self.consumer is not None
        end = None if batch.marker is None else batch.marker.end
        if self._shards is None:
            return move_mark(self.stream, self.consumer, batch.position, batch.history, None, end)
        return move_shards(
            self.stream, self.consumer, batch.position, batch.history, self._shards, self._of, end
        )


def _start(start: Start | None, consumer: str | None) -> Any:
    if start is None:
        return {"mark": consumer} if consumer is not None else "first"
    match start:
        case "first" | "last" | "next":
            return start
        case datetime():
            return {"ms": milliseconds(start)}
        case Receipt(history=history, sequence=sequence) | Mark(history=history, sequence=sequence):
            return {"history": history, "sequence": sequence}
        case Marker(history=history, end=sequence):
            return {"history": history, "sequence": sequence}
        case int():
            return {"history": None, "sequence": start}
    raise TypeError(
        f"a stream is followed from 'first', 'last', 'next', a sequence, a time or a mark, not {start!r}"
    )


# Positions ----------------------------------------------------------------------------------------


def sequence_of(position: Position) -> int:
    return position_of(position)[1]


def position_of(position: Position) -> tuple[str | None, int]:
    """History, if it is known, and sequence."""
    match position:
        case Receipt(history=history, sequence=sequence) | Mark(history=history, sequence=sequence):
            return history, sequence
        case Marker(history=history, end=sequence):
            return history, sequence
        case Batch():
            return position.history, position.position
        case int():
            return None, position
    raise TypeError(f"a position is a sequence, receipt, marker, mark or batch, not {position!r}")


def place_of(place: Position | datetime | None) -> int | Header | None:
    """A place as it stands in a header: with its history where that is known, so that a lost one is refused."""
    if place is None:
        return None
    if isinstance(place, datetime):
        return {"ms": milliseconds(place)}
    history, sequence = position_of(place)
    return sequence if not history else {"history": history, "sequence": sequence}


def moment_of(sequence: Position | None, time: datetime | float | None) -> int | Header:
    """When a snapshot is to be, as it stands in a header."""
    if (sequence is None) == (time is None):
        raise TypeError("give either a sequence or a time")
    place = place_of(sequence)
    if place is None:
        assert time is not None
        return {"ms": milliseconds(time)}
    return place
