"""How things end by the rules of a stream: by age, length, leases, purges, and with the stream itself.

What the broker ends is compared with what it was allowed to end, and with what must have ended by now.
"""

from __future__ import annotations

from tidemark.broker.streams.leases import GRACE_MS
from tidemark.sim.store import BrokenPromise
from tidemark.sim.stream_model import FOREVER, Seen, Step, StreamModel
from tidemark.sim.stream_world import BY_HEADER, RULES_MS, StreamWorld


class Rules(StreamWorld):
    def purge(self) -> None:
        """Everything in a stream ends."""
        name = self._other_name()
        model, stream = self.streams[name], self.life.stream(name)
        by, live = self.life.arena.next_seq, model.visible(FOREVER)
        count = stream.purge()
        if count != sum(row.value is not None or model.is_log for row in live):
            raise BrokenPromise(f"{count} messages of {name} were purged")
        if live:
            model.steps.append(Step(by, by, by))
            self._expect(by)
            self.count("purges")

    def grow(self) -> None:
        if "sharded" in self.streams:
            model = self.streams["sharded"]
            model.shards += self.dice.randint(0, 3)
            self.life.session.declare("sharded", {"x-stream-shards": model.shards})
            self._settle()

    def make_anew(self) -> None:
        """A stream is deleted, and another one of the same name made: nothing of the old one is in it."""
        name = self._other_name()
        if name == BY_HEADER:
            return
        for follower in self.followers:
            if follower.name == name:
                if follower.reader is not None:
                    follower.reader.close()
                follower.reader, follower.seq = None, 0
                follower.copy.clear()
        self.opened = [opened for opened in self.opened if opened.snapshot.stream.name != name]
        self.life.session.delete(name)
        self._declare_stream(name)
        self._settle()
        self.count("made anew")

    def time_passes(self) -> None:
        """Leases end, and streams let go of what their rules say."""
        life = self.life
        passed_ms = self.dice.choice((100, 1000, 1000, 3000, 12_000, GRACE_MS + 1000))
        self.now_ms += passed_ms
        life.node.turn(self.now_ms)
        self._completed()
        self._look_at_clock()
        low = life.arena.next_seq
        before = {name: life.stream(name).live_bytes for name in self.streams}
        shown = {name: life.stream(name).boundary for name in self.streams}
        life.node.tick(self.now_ms)
        for model in self.streams.values():
            self._ended_leases(model, low)
            self._ended_by_rule(model, before[model.name])
            if passed_ms >= RULES_MS and not life.node.alarms.disk:
                self._check_rules_done(model, shown[model.name])

    def _ended_leases(self, model: StreamModel, low: int) -> None:
        high = self.life.arena.next_seq - 1
        pins = {pin.name for pin in self.life.session.pins(model.name)}
        for pin, register in model.pins.items():
            over = model.until_ms.get(pin, 0) <= self.now_ms
            if register.now is not None and pin not in pins:
                if not over and not self._is_bounded(model):
                    raise BrokenPromise(f"{pin} of {model.name} was dropped before its lease ended")
                register.set(None, low, high)
                self.count("leases ended")
            elif register.now is not None and over and not self.life.node.alarms.disk:
                raise BrokenPromise(f"the lease of {pin} of {model.name} is over, but it is there")
        model.lapsed |= {each for each, (_, until_ms) in model.leases.items() if until_ms <= self.now_ms}
        stream = self.life.stream(model.name)
        bound = model.arguments.get("x-stream-pin-bytes-max")
        if self.life.node.alarms.disk or not isinstance(bound, int) or not stream.pins.by_name:
            return
        if stream.held_bytes > bound:
            raise BrokenPromise(f"pins of {model.name} keep {stream.held_bytes} bytes")

    def _ended_by_rule(self, model: StreamModel, live_bytes: int) -> None:
        """What a tick has ended, it was allowed to end."""
        stream = self.life.stream(model.name)
        steps = [Step(step.by, step.floor, step.purged) for step in stream.ends.steps]
        new = [step for step in steps if not model.steps or step.by > model.steps[-1].by]
        for step in new:
            before = model.visible(step.by - 1)
            values = [row for row in before if row.seq < step.floor and row.value is not None]
            self._check_floor(model, step, values, live_bytes)
            deletes = [row for row in before if row.seq <= step.purged and row.value is None]
            for row in deletes:
                self._check_purged(model, step, row)
            if not values and not deletes:
                self.count("idle steps")
            model.steps.append(step)
            self.count("ended", len(values))
            self.count("tombstones purged", len(deletes))

    def _check_floor(self, model: StreamModel, step: Step, values: list[Seen], live_bytes: int) -> None:
        if not values:
            return
        aged, length = model.arguments.get("x-max-age"), model.arguments.get("x-max-length-bytes")
        if isinstance(aged, str):
            ms = {row.seq: row.ms for row in model.versions}
            young = [row.seq for row in values if ms[row.seq] + 1000 * int(aged[:-1]) > self.now_ms]
            if young:
                raise BrokenPromise(f"{young} of {model.name} ended before their time")
        elif isinstance(length, int):
            less = sum(len(row.value or b"") for row in values[:-1])
            if live_bytes - less <= length:
                raise BrokenPromise(f"{model.name} ended more than it had to: {step}")
        else:
            raise BrokenPromise(f"{model.name} ended messages: {step}")

    def _check_purged(self, model: StreamModel, step: Step, row: Seen) -> None:
        lease_ms = model.arguments.get("x-stream-tombstone-lease", 7 * 86_400_000)
        assert isinstance(lease_ms, int)
        ms = next(version.ms for version in model.versions if version.seq == row.seq)
        if ms + lease_ms <= self.now_ms or row.seq < step.floor:
            return
        leased = model.leases.keys() - model.lapsed
        waiting = [consumer for consumer in leased if (model.marks[consumer].now or 0) < row.seq]
        if waiting or not leased:
            raise BrokenPromise(
                f"the delete {row.seq} of {model.name} was purged; {waiting} have not seen it"
            )

    def _check_rules_done(self, model: StreamModel, shown: int) -> None:
        """What must have ended by now has ended."""
        aged, length = model.arguments.get("x-max-age"), model.arguments.get("x-max-length-bytes")
        left = model.visible(FOREVER)
        if isinstance(aged, str):
            ms = {row.seq: row.ms for row in model.versions}
            age_ms = 1000 * int(aged[:-1])
            late = [
                row.seq
                for row in left
                if row.seq <= shown and ms[row.seq] + age_ms * 1.05 + 1000 < self.now_ms
            ]
            if late:
                raise BrokenPromise(f"{late} of {model.name} should have ended by their age")
        if isinstance(length, int) and model.last_seq <= shown:
            kept = sum(len(row.value or b"") for row in left)
            if kept > length:
                raise BrokenPromise(f"{model.name} keeps {kept} bytes")
