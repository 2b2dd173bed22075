"""Whatever happens in whatever order, streams give the answers of a plain list.

The model is the list of what was committed, split into what is durable and what is not yet. Of the latter a crash
keeps some from the front, since a frame of the journal that is full goes to the disk before the turn ends: whole
batches, up to where the new history begins. A follower keeps a copy of the stream by what its reader is given,
resumes by its own position after every crash, and compares at every marker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.broker.streams.world import DAY_MS, StreamWorld, rows

from tidemark.broker.streams.commit import Batch, Put
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.reader import Reader
from tidemark.broker.streams.snapshots import Marker, Snapshot
from tidemark.errors import StreamReset
from tidemark.model.arena import EVERYTHING

KEYS = [b"a", b"b", b"c", b"d", b"e"]
NAMES = ["s", "t"]
Change = tuple[int, bytes | None, bytes | None]
PURGE = b"\0purge"


@dataclass
class Follower:
    """A consumer that keeps a copy."""

    position: Position
    copy: dict[bytes, bytes] = field(default_factory=dict)
    reader: Reader | None = None


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = StreamWorld()
        self.durable: dict[str, list[Change]] = {name: [] for name in NAMES}
        self.pending: list[tuple[str, Change]] = []
        self.batches: list[tuple[int, int]] = []
        """First and last sequence of each that is not durable yet."""
        self.pins: dict[tuple[str, str], tuple[list[Change], int]] = {}
        """What a pin shows, and the sequence of its record; 0 when that is durable."""
        self.open: list[tuple[Snapshot, list[Change]]] = []
        self.marks: dict[str, int] = {}
        self.counter = 0
        for name in NAMES:
            self.world.declare(name, tombstone_lease=3000)
        self.followers = {name: Follower(Position(b"", 0)) for name in NAMES}

    # What should be there -------------------------------------------------------------------------

    def state_at(self, name: str, seq: int) -> dict[bytes, tuple[int, bytes]]:
        found: dict[bytes, tuple[int, bytes]] = {}
        for at, key, value in self.durable[name]:
            if at > seq:
                break
            if key == PURGE:
                found.clear()
            elif value is None:
                found.pop(key or b"", None)
            else:
                found[key or b""] = at, value
        return found

    def settle(self, upto: int = EVERYTHING) -> None:
        """What was written up to here is durable; what was written behind it is lost."""
        for name, change in self.pending:
            if change[0] <= upto:
                self.durable[name].append(change)
        self.pending.clear()
        self.batches.clear()
        self.pins = {which: (content, 0) for which, (content, seq) in self.pins.items() if seq <= upto}

    # What happens ---------------------------------------------------------------------------------

    @rule(
        parts=st.lists(
            st.tuples(
                st.sampled_from(NAMES),
                st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=4),
            ),
            min_size=1,
            max_size=2,
        ),
        width=st.sampled_from([40, 1500]),  # a few wide rows fill a frame
    )
    def put(self, parts: list[tuple[str, list[tuple[bytes, bool]]]], width: int) -> None:
        operations, expected = [], []
        for name, changes in parts:
            made: list[tuple[bytes | None, bytes | None]] = []
            for key, deletes in changes:
                self.counter += 1
                value = None if deletes else b"%d" % self.counter * width
                made.append((key, value))
                expected.append((name, key, value))
            operations.append(Put(name, rows(*made)))
        committed = self.world.session.commit(Batch(operations))
        assert committed.last_seq - committed.first_seq == len(expected) - 1
        self.batches.append((committed.first_seq, committed.last_seq))
        for offset, (name, key, value) in enumerate(expected):
            self.pending.append((name, (committed.first_seq + offset, key, value)))

    @rule()
    def turn(self) -> None:
        self.world.turn()
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: str) -> None:
        stream = self.world.stream(name)
        if stream.live + stream.tombstones:
            stream.purge()
            self.pending.append((name, (stream.ends.last.by, PURGE, None)))

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.world.rest(seconds * 1000)
        self.settle()

    @rule()
    def compact(self) -> None:
        self.world.compact()
        self.settle()

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.world = self.world.crash(power)
        _, begins = self.world.streams.histories[0]
        assert begins > max((change[0] for changes in self.durable.values() for change in changes), default=0)
        assert not [batch for batch in self.batches if batch[0] < begins <= batch[1]], "cut in two"
        self.settle(begins - 1)
        for name in NAMES:
            found = {(name, pin.name) for pin in self.world.session.pins(name)}
            assert found == {which for which in self.pins if which[0] == name}
        self.open.clear()
        for follower in self.followers.values():
            follower.reader = None
        for consumer, seq in self.marks.items():
            mark = self.world.session.mark("s", consumer)
            assert mark is not None and mark.seq == seq

    @rule(name=st.sampled_from(NAMES), pin=st.sampled_from(["p", "q"]))
    def pin(self, name: str, pin: str) -> None:
        snapshot, safe_at = self.world.session.pin(name, pin, DAY_MS * 1000)
        content = self.world.content(snapshot)
        if (name, pin) in self.pins:
            assert content == self.pins[name, pin][0]
        else:
            self.pins[name, pin] = content, safe_at
        snapshot.close()

    @precondition(lambda self: any(seq == 0 for _, seq in self.pins.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        which = data.draw(st.sampled_from(sorted(key for key, (_, seq) in self.pins.items() if seq == 0)))
        self.world.session.release(*which)
        self.turn()
        del self.pins[which]

    @rule(name=st.sampled_from(NAMES))
    def open_snapshot(self, name: str) -> None:
        if len(self.open) < 3:
            snapshot = self.world.session.snapshot(name)
            self.open.append((snapshot, self.world.content(snapshot)))

    @precondition(lambda self: self.open)
    @rule()
    def close_snapshot(self) -> None:
        self.open.pop(0)[0].close()

    @rule(consumer=st.sampled_from(["c1", "c2"]), registered=st.booleans())
    def move(self, consumer: str, registered: bool) -> None:
        seq = self.world.stream("s").caught_up()
        if registered:
            self.world.session.register("s", consumer, DAY_MS)
        self.world.session.move("s", consumer, None, seq)
        self.turn()
        self.marks[consumer] = max(self.marks.get(consumer, 0), seq)

    @rule(name=st.sampled_from(NAMES), bites=st.integers(1, 4))
    def follow(self, name: str, bites: int) -> None:
        follower, world = self.followers[name], self.world
        stream = world.stream(name)
        try:
            if follower.reader is None:
                with world.session.snapshot(name, after=follower.position):
                    follower.reader = Reader(stream, follower.position.seq, markers=True)
            for _ in range(bites):
                found = follower.reader.next(2, 1 << 20)
                if found is None:
                    break
                if isinstance(found, Marker):
                    state = self.state_at(name, found.to)
                    assert follower.copy == {key: value for key, (_, value) in state.items()}
                else:
                    for _, key, value in world.described(stream, found):
                        if value is None:
                            follower.copy.pop(key or b"", None)
                        else:
                            follower.copy[key or b""] = value
                follower.position = Position(world.streams.history, follower.reader.after)
        except StreamReset:
            follower.position, follower.reader = Position(b"", 0), None
            follower.copy.clear()

    # What must be true ------------------------------------------------------------------------------

    @invariant()
    def what_is_shown_is_what_was_committed(self) -> None:
        for name in NAMES:
            with self.world.session.snapshot(name) as snapshot:
                content = self.world.content(snapshot)
                state = self.state_at(name, snapshot.seq)
                assert [seq for seq, _, _ in content] == sorted(seq for seq, _, _ in content)
                assert {key: (seq, value) for seq, key, value in content if value is not None} == state
                assert all(key not in state for _, key, value in content if value is None)

    @invariant()
    def snapshots_and_pins_do_not_change(self) -> None:
        for snapshot, content in self.open:
            assert self.world.content(snapshot) == content
        for (name, pin), (content, _) in self.pins.items():
            with self.world.session.pinned(name, pin) as snapshot:
                assert self.world.content(snapshot) == content

    @invariant()
    def counts_add_up(self) -> None:
        for name in NAMES:
            stream = self.world.stream(name)
            assert stream.entries == stream.live + stream.tombstones + stream.held
            if not self.open and not any(which[0] == name for which in self.pins) and not self.pending:
                follower = self.followers[name].reader
                if follower is None or follower._snapshot is None:
                    assert stream.held == 0


StreamMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestStreamsAgainstAModel = StreamMachine.TestCase


def test_of_what_nobody_was_told_of_a_crash_keeps_some_from_the_front() -> None:
    kept = set()
    for seed in range(50):
        machine = StreamMachine()
        machine.world.world.disk.dice.seed(seed)
        for _ in range(2):
            for key in KEYS:
                machine.put(parts=[("s", [(key, False)]), ("t", [(key, False)])], width=800)
            machine.pin(name="s", pin="p")
            machine.purge(name="t")

        machine.crash(power=seed % 2 == 0)

        machine.what_is_shown_is_what_was_committed()
        machine.snapshots_and_pins_do_not_change()
        machine.counts_add_up()
        kept.add((len(machine.durable["s"]), len(machine.pins)))
    assert {(0, 0), (5, 1)} <= kept and len(kept) > 3, "the runs were not of all kinds"
