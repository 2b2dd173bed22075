"""Reads of a stream at members that do not lead.

One writer writes as in `work_streams`; readers stay with whichever member takes them, leader or follower, and go to another now
and then. What they are shown must be complete, as far as any leader has said so: then it is there for ever after, on whatever
member. At one member a snapshot is never older than the one before; a client that comes from another member says what it has
seen and would be made to wait, so an older one there is allowed.

Invariant: `shown` holds, of every key, the newest version that any reader was shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from tidemark.broker.streams.session import StreamSession
from tidemark.errors import NotAllowed, NotFound, TidemarkError
from tidemark.sim.cluster.clients import StreamClient
from tidemark.sim.cluster.machine import READS
from tidemark.sim.cluster.work_streams import STREAM, Keyed, Seen, read
from tidemark.sim.cluster.world import World
from tidemark.sim.store import BrokenPromise


class Shown:
    """What readers were shown, all of them together."""

    def __init__(self) -> None:
        self.newest: dict[bytes | None, tuple[int, bytes | None]] = {}
        """By key: sequence and value."""

    def check(self, where: str, boundary: int, rows: Iterable[Seen]) -> None:
        """A snapshot of `boundary` shows these: nothing that it should hold and that was shown before is gone."""
        found = {key: (seq, value) for seq, key, value in rows}
        for key, (seq, value) in self.newest.items():
            if seq > boundary:
                continue
            now = found.get(key)
            if now is None or now[0] < seq or (now[0] == seq and now[1] != value):
                raise BrokenPromise(
                    f"{STREAM} was shown with {key!r} of {seq}; at {boundary} {where} shows {now and now[0]}"
                )
        for key, version in found.items():
            if version[0] > self.newest.get(key, (0, None))[0]:
                self.newest[key] = version


class FarReader(StreamClient):
    kind = READS

    def __init__(self, world: World, name: str, shown: Shown, first: int) -> None:
        super().__init__(world, name)
        self._shown = shown
        self._boundary = 0
        """Of the last snapshot on this connection."""
        self._at = first
        self.connect()

    def ready(self) -> None:
        self._boundary = 0

    def look(self) -> None:
        def work(session: StreamSession) -> tuple[Any, int, int]:
            complete = self.world.complete_at(session.broker)
            serving = self.world.serving
            leads = serving is not None and serving.node.broker is session.broker
            with session.snapshot(STREAM) as snapshot:
                return (leads, complete, snapshot.seq, read(snapshot)[0]), 0, 0

        self.call(work, lambda found: self._looked(*found), self._failed)

    def _looked(self, leads: bool, complete: int, boundary: int, rows: list[Seen]) -> None:
        if boundary > complete:
            raise BrokenPromise(f"{self.name} is shown {STREAM} at {boundary}, but {complete} is complete")
        if boundary < self._boundary:
            raise BrokenPromise(
                f"{self.name} was shown {STREAM} at {self._boundary} and is now shown it at {boundary}"
            )
        self._boundary = boundary
        self._shown.check("a member", boundary, rows)
        self.world.count("reads at the leader" if leads else "reads at a follower")

    def move(self) -> None:
        """Read elsewhere."""
        if self.open and not self._calls:
            self.abandon()

    def _failed(self, error: TidemarkError | None) -> None:
        if error is not None and not isinstance(error, NotFound | NotAllowed):
            raise BrokenPromise(f"{self.name} is refused: {error}") from error


class Far(Keyed):
    """A writer and a reader at the leader, and others that read anywhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shown = Shown()
        self.far = [FarReader(self.world, f"far{number}", self.shown, number) for number in range(3)]
        self.actions |= {
            "look far": (10, self._look),
            "move": (1, lambda dice: dice.choice(self.far).move()),
        }

    def _look(self, dice: Random) -> None:
        dice.choice(self.far).look()

    def waiting(self) -> str | None:
        if any(reader._calls for reader in self.far):
            return "a far reader waits for an answer"
        return super().waiting()

    def leave(self) -> None:
        super().leave()
        for reader in self.far:
            reader.leave()

    def check_member(self, name: str, session: StreamSession, serving: bool) -> None:
        super().check_member(name, session, serving)
        if self.writer.declared:
            with session.snapshot(STREAM) as snapshot:
                self.shown.check(name, snapshot.seq, read(snapshot)[0])
