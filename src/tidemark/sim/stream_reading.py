"""Work that reads: snapshots and pins, the past, and single keys. What is seen is what the model says, byte for byte."""

from __future__ import annotations

from tidemark.broker.streams.policy import SLOTS, shard_slots
from tidemark.errors import HistoryGone, NotFound, PinExpired, StreamReset
from tidemark.sim.store import BrokenPromise
from tidemark.sim.stream_model import Register, Seen, StreamModel, digest
from tidemark.sim.stream_world import IDLE_MS, Opened, StreamWorld


class Reading(StreamWorld):
    # Snapshots ------------------------------------------------------------------------------------------

    def open_snapshot(self) -> None:
        if len(self.opened) < 6:
            name = self._name()
            snapshot = self.life.session.snapshot(name)
            self._check_boundary(name, snapshot.seq)
            model = self.streams[name]
            self.opened.append(Opened(snapshot, model.visible(snapshot.seq), model.shards, self.now_ms))
            self.count("snapshots")

    def close_snapshot(self) -> None:
        if self.opened:
            self.opened.pop(self.dice.randrange(len(self.opened))).snapshot.close()

    def read_snapshot(self) -> None:
        """A range of an open snapshot, perhaps of some shards, is what it was when it was opened."""
        if not self.opened:
            return
        opened = self.dice.choice(self.opened)
        snapshot = opened.snapshot
        model = self.streams[snapshot.stream.name]
        after = self.dice.randint(0, snapshot.seq)
        until = self.dice.randint(after, snapshot.seq)
        shard = self.dice.randrange(opened.shards) if self.dice.random() < 0.5 else None
        if self.dice.random() < 0.4:
            after, until, shard = 0, snapshot.seq, None
        low, end = (0, SLOTS) if shard is None else shard_slots(shard, opened.shards)
        wanted = model.visible(snapshot.seq, after, until, (low, end))
        idle = opened.used_ms <= self.now_ms - IDLE_MS
        try:
            snapshot.begin_again()
            got = self._read(snapshot, after, until=until, shards=shard)
        except PinExpired as error:
            self.opened.remove(opened)
            self.count("expired")
            if not (idle or self._is_bounded(model) or "deleted" in error.problem):
                raise BrokenPromise(f"a snapshot of {model.name} expired: {error.problem}") from error
            return
        opened.used_ms = self.now_ms
        self._check_rows(f"({after}, {until}] of the snapshot of {model.name} at {snapshot.seq}", got, wanted)
        if shard is None and (after, until) == (0, snapshot.seq) and got != opened.rows:
            raise BrokenPromise(f"the snapshot of {model.name} at {snapshot.seq} has changed")
        marker = snapshot.marker()
        values = sum(row.value is not None for row in got)
        if (marker.count, marker.tombstones, marker.digest) != (values, len(got) - values, digest(got)):
            raise BrokenPromise(f"a marker of {model.name} at {snapshot.seq} does not say what was read")
        tally = snapshot.tally(after=after, until=until, shards=shard)
        if tally != (values, len(got) - values, sum(len(row.value or b"") for row in got)):
            raise BrokenPromise(f"a tally of {model.name} at {snapshot.seq} is {tally}")

    # Pins -----------------------------------------------------------------------------------------------

    def pin(self) -> None:
        name, pin = self._name(), f"pin {self.dice.randrange(2)}"
        model, life = self.streams[name], self.life
        register = model.pins.get(pin)
        known = register.now if register is not None else None
        lease_ms = self.dice.choice((2000, 30_000, 1_000_000))
        snapshot, safe_at = life.session.pin(name, pin, lease_ms)
        snapshot.close()
        if known is not None and snapshot.seq != known:
            raise BrokenPromise(f"{pin} of {name} was at {known} and is now at {snapshot.seq}")
        if register is None:
            register = model.pins[pin] = Register(None, [(0, 0, None)])
        register.set(snapshot.seq, safe_at)
        model.until_ms[pin] = self.now_ms + lease_ms
        self._expect(safe_at)
        self.count("pins")

    def release(self) -> None:
        name = self._name()
        model = self.streams[name]
        pins = [pin for pin, register in model.pins.items() if register.now is not None]
        if pins:
            pin = self.dice.choice(pins)
            safe_at = self.life.session.release(name, pin)
            model.pins[pin].set(None, safe_at)
            self._expect(safe_at)

    def look_at_pins(self) -> None:
        for model in self.streams.values():
            self._check_pins(model)

    def _check_pins(self, model: StreamModel) -> None:
        for pin, register in model.pins.items():
            try:
                with self.life.session.pinned(model.name, pin) as snapshot:
                    got = self._read(snapshot)
                    marker = snapshot.marker()
            except (NotFound, PinExpired) as error:
                if register.now is not None:
                    raise BrokenPromise(f"{pin} of {model.name} is gone: {error}") from error
                continue
            if snapshot.seq != register.now:
                raise BrokenPromise(f"{pin} of {model.name} is at {snapshot.seq}, not {register.now}")
            wanted = model.visible(snapshot.seq)
            self._check_rows(f"{pin} of {model.name} at {snapshot.seq}", got, wanted)
            if marker.digest != digest(wanted):
                raise BrokenPromise(f"{pin} of {model.name} has another hash")
            self.count("pins read")

    # The past, and single keys --------------------------------------------------------------------------

    def look_back(self) -> None:
        """A snapshot of the past, or the difference of two points."""
        name = self._name()
        model, stream = self.streams[name], self.life.stream(name)
        boundary = stream.caught_up()
        at = self.dice.randint(max(0, boundary - 60), boundary)
        after = self.dice.choice((0, self.dice.randint(0, at)))
        when: int | str = at
        if self.dice.random() < 0.3:
            ms = self.now_ms - self.dice.choice((0, 200, 1000, 5000))
            when, after = f"time:{ms}", 0
            at = max((row.seq for row in model.versions if row.ms <= ms and row.seq <= boundary), default=0)
        else:
            at = self._whole_at(name, at)
            after = min(after, at)
        kept_ms = model.arguments.get("x-stream-history", 0)
        assert isinstance(kept_ms, int)
        before = max((seq for ms, seq in self.clock if ms <= self.now_ms - kept_ms), default=0)
        must = at >= model.last_seq or (kept_ms > 0 and at >= before)
        try:
            snapshot = self.life.session.diff(name, after, when)
        except HistoryGone as error:
            if must:
                raise BrokenPromise(f"{name} cannot show {when} of {boundary}: {error}") from error
            return
        except StreamReset as error:
            if not 0 < after < model.purged:
                raise BrokenPromise(f"the difference of {after} and {at} of {name}: {error}") from error
            return
        with snapshot:
            if isinstance(when, str):
                if snapshot.seq < at or any(at < row.seq <= snapshot.seq for row in model.versions):
                    raise BrokenPromise(f"{name} at {when} is {snapshot.seq}, not {at}")
                at = snapshot.seq
            got = self._read(snapshot)
        self._check_rows(f"{name} at {when} behind {after}", got, model.visible(at, after))
        self.count("looked back", at < model.last_seq)

    def _whole_at(self, name: str, at: int) -> int:
        """Where a snapshot at this sequence really is: before the batch, if the stream has rows of it behind `at`."""
        for first, last in self.written:
            if first <= at < last:
                later = [row.seq for row in self.streams[name].versions if at < row.seq <= last]
                if any(self.life.stream(name).holds(seq) for seq in later):
                    return first - 1
        return at

    def look_up(self) -> None:
        """Single keys."""
        name = self._name()
        model = self.streams[name]
        seen = (
            {}
            if model.is_log
            else {row.key: row for row in model.visible(self.life.stream(name).caught_up())}
        )
        for _ in range(3):
            key = self._key()
            row, wanted = self.life.session.get(name, key), seen.get(key)
            got = None if row is None else Seen(row.seq, row.key, row.value)
            if got != (wanted if wanted is not None and wanted.value is not None else None):
                raise BrokenPromise(f"{key!r} of {name} is {got}, not {wanted}")
