"""Work of consumers that follow a stream: they keep a copy by what they are given, and move a mark.

At every marker the copy must be what the stream holds there. Who was away for so long that deletes were purged is told to
start over.
"""

from __future__ import annotations

from typing import Any

from tidemark.broker.streams.positions import FromMark, Position
from tidemark.broker.streams.snapshots import Marker
from tidemark.errors import PinExpired, StreamReset
from tidemark.sim.store import BrokenPromise
from tidemark.sim.stream_model import FOREVER, Register, StreamModel, digest
from tidemark.sim.stream_world import Follower, StreamWorld, rows_of


class Following(StreamWorld):
    def follow(self) -> None:
        """A consumer goes on reading, and moves its mark."""
        if not self.followers:
            return
        follower = self.dice.choice(self.followers)
        model, session = self.streams[follower.name], self.life.session
        try:
            if follower.reader is None:
                self._resume(follower, model)
            for _ in range(self.dice.choice((1, 3, 30))):
                if not self._step(follower, model):
                    break
        except StreamReset as error:
            if not 0 < follower.seq < model.purged and not 0 < error.seq < model.purged:
                raise BrokenPromise(f"{follower.name} at {follower.seq}: {error}") from error
            self._start_over(follower, model)
        except PinExpired as error:
            if not (self._is_bounded(model) or "nobody" in error.problem):
                raise BrokenPromise(f"a reader of {follower.name}: {error.problem}") from error
            assert follower.reader is not None
            follower.given, follower.begun_at = [], follower.reader.after
            self.count("expired")
            return
        if self.dice.random() < 0.5 and follower.seq:
            wait, low = self.dice.random() < 0.5, self.life.arena.next_seq
            safe_at = session.move(
                follower.name,
                follower.consumer,
                follower.history,
                follower.seq,
                snapshot_end=follower.snapshot_end,
                wait=wait,
            )
            self._mark_moved(
                follower.name, follower.consumer, follower.seq, low, safe_at if wait else FOREVER
            )
            if wait:
                self._expect(safe_at)
        if follower.reader is not None and self.dice.random() < 0.1:
            follower.reader.close()
            follower.reader = None

    def _resume(self, follower: Follower, model: StreamModel) -> None:
        session = self.life.session
        mark = session.mark(follower.name, follower.consumer)
        self._check_mark(model, follower.consumer)
        offset: Any = Position(follower.history, follower.seq, follower.snapshot_end)
        if mark is not None and mark.seq <= follower.seq and self.dice.random() < 0.5:
            offset, follower.seq = FromMark(follower.consumer), mark.seq
            if not follower.seq:
                follower.copy.clear()  # who begins at the start begins with nothing
            self.count("resumed")
        elif not follower.seq:
            offset = "first"
        follower.reader = session.reader(follower.name, offset, markers=True)
        if follower.reader.after != follower.seq:
            raise BrokenPromise(
                f"{follower.consumer} was at {follower.seq}, goes on at {follower.reader.after}"
            )
        follower.given, follower.begun_at = [], follower.reader.after

    def _step(self, follower: Follower, model: StreamModel) -> bool:
        reader = follower.reader
        assert reader is not None
        found = reader.next(self.dice.choice((1, 5, 100)), self.dice.choice((1, 5000, 1 << 30)))
        if found is None:
            if reader.after < self.life.stream(model.name).boundary:
                raise BrokenPromise(f"{follower.consumer} gets nothing though it is at {reader.after}")
            return False
        if isinstance(found, Marker):
            self._check_marker(follower, model, found)
        else:
            for row in rows_of(reader.stream, found):
                follower.given.append(row)
                key = row.seq if row.key is None else row.key
                if row.value is None:
                    follower.copy.pop(key, None)
                else:
                    follower.copy[key] = row
        follower.history, follower.seq = reader.history, reader.after
        follower.snapshot_end = reader.snapshot_end
        return True

    def _check_marker(self, follower: Follower, model: StreamModel, marker: Marker) -> None:
        self._check_boundary(model.name, marker.to)
        given, follower.given = follower.given, []
        begun_at, follower.begun_at = follower.begun_at, marker.to
        if marker.from_ != begun_at:
            raise BrokenPromise(f"a marker from {marker.from_} where {follower.consumer} was at {begun_at}")
        self._check_rows(
            f"what {follower.consumer} was given of ({marker.from_}, {marker.to}]",
            given,
            model.visible(marker.to, marker.from_),
        )
        values = sum(row.value is not None for row in given)
        if (marker.count, marker.tombstones, marker.digest) != (values, len(given) - values, digest(given)):
            raise BrokenPromise(f"the marker at {marker.to} of {model.name} does not say what was given")
        floor, _ = model.ended(marker.to)
        copied = sorted(row for row in follower.copy.values() if row.seq >= floor)
        wanted = [row for row in model.visible(marker.to) if row.value is not None]
        self._check_rows(f"the copy of {model.name} at {marker.to}", copied, wanted)
        self.count("markers")

    def _start_over(self, follower: Follower, model: StreamModel) -> None:
        self.count("resets")
        if follower.reader is not None:
            follower.reader.close()
        follower.reader, follower.seq, follower.snapshot_end = None, 0, 0
        follower.copy.clear()
        register = model.marks.get(follower.consumer)
        if register is not None and register.now is not None:
            safe_at = self.life.session.reset_mark(follower.name, follower.consumer, 0)
            register.set(0, safe_at)
            self._expect(safe_at)

    def _check_mark(self, model: StreamModel, consumer: str) -> None:
        mark = self.life.session.mark(model.name, consumer)
        register = model.marks.get(consumer)
        got, wanted = None if mark is None else mark.seq, None if register is None else register.now
        if got != wanted:
            raise BrokenPromise(f"the mark of {consumer} is {got}, not {wanted}")

    def register(self) -> None:
        """A consumer wants to be told of deletes."""
        if self.followers:
            follower = self.dice.choice(self.followers)
            model = self.streams[follower.name]
            lease_ms = self.dice.choice((1000, 100_000))
            safe_at = self.life.session.register(follower.name, follower.consumer, lease_ms)
            register = model.marks.setdefault(follower.consumer, Register(None, [(0, 0, None)]))
            register.set(register.now or 0, safe_at)
            model.leases[follower.consumer] = lease_ms, self.now_ms + lease_ms
            model.lapsed.discard(follower.consumer)
            self._expect(safe_at)

    def forget_consumer(self) -> None:
        if self.followers:
            follower = self.dice.choice(self.followers)
            model = self.streams[follower.name]
            register = model.marks.get(follower.consumer)
            if register is not None and register.now is not None:
                safe_at = self.life.session.unregister(follower.name, follower.consumer)
                register.set(None, safe_at)
                model.leases.pop(follower.consumer, None)
                model.lapsed.discard(follower.consumer)
                self._expect(safe_at)
