"""What a pipeline hands to a sink, and what the sink keeps to know how far it has got.

A micro-batch arrives as a `Change`: rows to put, keys to delete, and the `Mark` that is true when both are done. The
sink stores the mark in the same transaction as the rows. So the sink itself is the truth about its progress; Spark's
checkpoint is a cache of it.

Two kinds of batches are told apart by `Mark.mode`:

- `mirror`: rows are the newest versions of keys, and `start` and `Mark.position` say which part of the stream they
  are. What was applied is compared by position, so that even a new checkpoint cannot apply something twice.
- `append` and `update`: rows are results (of an aggregation, say) that have no place in the stream. What was applied
  is compared by Spark's query and batch number.

Invariant: `decide` answers SKIP exactly when the stored mark already covers the change.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidemark_spark.errors import ResultsMissing, SinkAhead, SinkBehind, SinkOfAnotherQuery

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["mirror", "append", "update"]

Shards = dict[str, tuple[str, int]]
"""Shard → (history, sequence): everything up to that sequence has been seen."""

Position = dict[str, Shards]
"""Stream → its shards."""

KEY = "_key"
"""The column that holds the stream's key, in what transformations see and give."""
SEQUENCE = "_sequence"
"""The column that holds the sequence of the version that a row was made from."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one sink of one pipeline has got."""

    pipeline: str
    sink: str
    mode: Mode
    query: str
    """Spark's id of the query, kept in its checkpoint."""
    batch: int
    position: Position
    boundary: bool
    """The position is the end of a whole snapshot: the sink shows one state of the stream, not part of one."""
    rows: int
    """Rows in this batch, before the sink looked at them."""
    at_ms: int
    numbers: dict[str, int] = field(default_factory=dict)
    """Stream → its number, which another stream of the same name does not have."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Mark:
        facts: dict[str, Any] = json.loads(text)
        facts["position"] = {
            stream: {shard: (history, sequence) for shard, (history, sequence) in shards.items()}
            for stream, shards in facts["position"].items()
        }
        return cls(**facts)


@dataclass(frozen=True, slots=True)
class Change:
    """One micro-batch for one sink."""

    mark: Mark
    start: Position
    """Where the batch begins; a stream that is not named begins at its beginning. Empty unless mode is mirror."""
    upserts: pa.Table
    """Rows to put. In mode mirror with the columns KEY and SEQUENCE, each key once."""
    deletes: pa.Table
    """Keys to remove: KEY and SEQUENCE. Empty unless mode is mirror."""


class Decision(enum.Enum):
    APPLY = "apply"
    SKIP = "skip"


def decide(stored: Mark | None, change: Change) -> Decision:
    """Whether a change is still to be applied to a sink that holds `stored`. Called inside the sink's transaction.

    A sink without a mark holds nothing: only the first batch may be applied to it. A batch that begins before what the sink
    holds and ends behind it would put rows again, and its snapshot may be older than the one that the sink is in
    the middle of: only somebody else can have brought the sink there.

    Raises:
        SinkBehind: the change begins behind what the sink holds; rows in between would be missing.
        SinkAhead: the sink holds a part of what the change brings.
        SinkOfAnotherQuery: results of another checkpoint are in the sink.
        ResultsMissing: results of batches before this one are not.
    """
    mark = change.mark
    if mark.mode != "mirror" or (stored is not None and stored.mode != "mirror"):
        return _decide_by_batch(stored, mark)
    held = {} if stored is None else stored.position
    missing, ahead = 0, 0
    for stream, shards in mark.position.items():
        starts = _spread(change.start.get(stream, {}), shards)
        holds = _spread(held.get(stream, {}), shards)
        for shard, (_, end) in shards.items():
            start, at = starts[shard], holds[shard]
            if at < start:
                raise SinkBehind(pipeline=mark.pipeline, sink=mark.sink, stream=stream, held=at, start=start)
            missing += at < end
            ahead += at > start
    if missing and ahead:
        raise SinkAhead(pipeline=mark.pipeline, sink=mark.sink)
    return Decision.APPLY if missing or stored is None else Decision.SKIP


def _spread(known: Shards, over: Shards) -> dict[str, int]:
    """The sequence that each shard of `over` is at. A stream that has grown since has moved keys between shards: then
    every shard is only as far as the hindmost was."""
    if known.keys() == over.keys():
        return {shard: sequence for shard, (_, sequence) in known.items()}
    hindmost = min((sequence for _, sequence in known.values()), default=0)
    return dict.fromkeys(over, hindmost)


def _decide_by_batch(stored: Mark | None, mark: Mark) -> Decision:
    if stored is not None and (stored.query != mark.query or stored.mode != mark.mode):
        raise SinkOfAnotherQuery(
            pipeline=mark.pipeline, sink=mark.sink, stored=stored.query, query=mark.query
        )
    held = -1 if stored is None else stored.batch
    if mark.batch > held + 1:
        # Spark runs every batch, also one without rows.
        raise ResultsMissing(
            pipeline=mark.pipeline, sink=mark.sink, held=None if stored is None else held, batch=mark.batch
        )
    return Decision.SKIP if held >= mark.batch else Decision.APPLY


@dataclass(frozen=True, slots=True)
class Applied:
    """What a sink did with a change."""

    skipped: bool
    upserted: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """Which versions a sink (or a stream) holds: equal digests mean the same keys at the same sequences.

    `hash` is the sum modulo 2^128 of the first 16 bytes (little-endian) of SHA-256 over, for each row: the sequence
    as 8 bytes little-endian, then the key.
    """

    rows: int
    hash: str
    """32 hex digits."""
