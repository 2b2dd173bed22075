"""A node over a simulated disk, seen through its stream sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from unit.node.world import NodeWorld

from tidemark.broker.streams.commit import Batch, Committed, Put
from tidemark.broker.streams.core import gather
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.model.arena import EVERYTHING
from tidemark.model.rows import Row, RowBatch
from tidemark.model.runs import Taken

EVERY = 1 << 40
COLUMNS = 1 | 2 | 8 | 32
DAY_MS = 86_400_000

Value = bytes | None
"""None: a delete."""


def rows(*changes: tuple[bytes | None, Value], expected: Iterable[int] | None = None) -> RowBatch:
    wanted = list(expected) if expected is not None else [-1] * len(changes)
    return RowBatch.build(
        [
            Row(key, value or b"", tombstone=value is None, expected=want)
            for (key, value), want in zip(changes, wanted, strict=True)
        ]
    )


def at_once() -> StreamWorld:
    """A node with broker.show = "at-once": consumers see what is not durable yet."""
    world = NodeWorld()
    settings = world.node.settings
    world.node.settings = replace(settings, broker=replace(settings.broker, show="at-once"))
    world.node.arena.shown_seq = EVERYTHING
    return StreamWorld(world)


class StreamWorld:
    """One node; `crash` gives what the next process finds."""

    def __init__(self, node: NodeWorld | None = None) -> None:
        self.world = node or NodeWorld()
        self.broker = self.world.broker
        self.streams = self.broker.streams
        self.session = StreamSession(self.broker.open_session("/", "guest", None, "test"))

    # What happens -----------------------------------------------------------------------------

    def declare(self, name: str = "s", **arguments: Any) -> Stream:
        """`declare("s", key="routing-key", history=1000)`"""
        named = {"max_age": "x-max-age", "max_length_bytes": "x-max-length-bytes"}
        table = {
            named.get(word, "x-stream-" + word.replace("_", "-")): value for word, value in arguments.items()
        }
        self.session.declare(name, {"x-stream-key": "routing-key", **table})
        self.turn()
        return self.stream(name)

    def stream(self, name: str = "s") -> Stream:
        found: Any = self.broker.vhosts["/"].queues[name]
        return found

    def put(
        self, *changes: tuple[bytes | None, Value], to: str = "s", turn: bool = True, **more: Any
    ) -> Committed:
        committed = self.session.commit(
            Batch([Put(to, rows(*changes, expected=more.pop("expected", None)))], **more)
        )
        if turn:
            self.turn()
        return committed

    def turn(self) -> None:
        self.world.turn()

    def rest(self, elapsed_ms: int = 0) -> None:
        """Time passes, then a tick."""
        self.world.now_ms += elapsed_ms
        self.world.node.turn(self.world.now_ms)
        self.world.node.tick(self.world.now_ms)
        self.turn()

    def compact(self) -> None:
        """Long enough for compaction to have rewritten whatever it wants to."""
        self.world.rest(slices=150, elapsed_ms=100)

    def crash(self, power: bool = True) -> StreamWorld:
        return StreamWorld(self.world.crash(power))

    @property
    def now_ms(self) -> int:
        return self.world.now_ms

    # What is then true ------------------------------------------------------------------------

    def content(self, snapshot: Snapshot, **how: Any) -> list[tuple[int, bytes | None, Value]]:
        """(sequence, key, value) of all rows, in small bites."""
        found: list[tuple[int, bytes | None, Value]] = []
        after = None
        while (taken := snapshot.take(3, 1 << 20, after=after, **how)) is not None:
            found += self.described(snapshot.stream, taken)
            after = snapshot.position
        return found

    def described(self, stream: Stream, taken: Taken) -> list[tuple[int, bytes | None, Value]]:
        return [
            (row.seq, row.key, None if row.tombstone else row.value) for row in gather(stream, taken, COLUMNS)
        ]

    def now(self, name: str = "s", **how: Any) -> list[tuple[bytes | None, Value]]:
        """(key, value) of what a snapshot shows, in order."""
        with self.session.snapshot(name, **how) as snapshot:
            return [(key, value) for _, key, value in self.content(snapshot)]
