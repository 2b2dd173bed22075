"""Streams of a whole broker on a lying disk: random work, crashes at random moments, and a model of plain lists.

    python -m tidemark.sim.streams --seed 17            replay one run and print what happened
    python -m tidemark.sim.streams --seeds 1000         look for a run that breaks a promise

The real node (broker, streams, store, compaction, checkpoints, paging) runs over `SimDisk`. Batches over several
streams and a queue, conditional puts, producers that send again, snapshots, pins, marks, followers that keep a
copy, retention, time that passes, and in half of the runs truncations and rows that are staged and then copied:
whatever is done is done to the model (`sim/stream_model.py`) too. After a crash the journal has kept everything up to
some sequence L; the model is cut there, and then every answer must be the model's. The kinds of work are in modules of
their own (`stream_writing`, `stream_reading`, `stream_following`, `stream_rules`); here is the run, its crashes, and what
is looked at afterwards. What must hold beside the model's answers:

* L is not below what was called durable, and lies inside no batch;
* a pin that was durable is there and shows what it showed, byte for byte, with the same hash;
* the accounts of the bank, spread over two streams, add up in every pair of snapshots;
* nothing ends but by the rules of its stream; a follower is told of every delete, or to start over;
* what is copied is all of the rows that were named, or nothing when one of them is not there.

Invariant: a run is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.errors import DiskFailed, DiskFull, TidemarkError
from tidemark.model.rows import Row
from tidemark.sim.disk import SimDisk
from tidemark.sim.seeds import command
from tidemark.sim.store import ROOM, BrokenPromise
from tidemark.sim.stream_following import Following
from tidemark.sim.stream_model import FOREVER, StreamModel
from tidemark.sim.stream_reading import Reading
from tidemark.sim.stream_rules import Rules
from tidemark.sim.stream_world import (
    ACCOUNTS,
    BANK,
    BY_HEADER,
    DEPOSIT,
    KINDS,
    QUEUE,
    STAGING,
    Follower,
    Part,
)
from tidemark.sim.stream_writing import Writing
from tidemark.store.check import check_store
from tidemark.store.checkpoint import PREFIX

WORK = {
    "put": 22,
    "transaction": 10,
    "transfer": 8,
    "send_again": 4,
    "consume": 3,
    "open_snapshot": 4,
    "close_snapshot": 2,
    "read_snapshot": 5,
    "pin": 5,
    "release": 3,
    "look_at_pins": 4,
    "look_back": 5,
    "look_up": 3,
    "follow": 14,
    "register": 4,
    "forget_consumer": 2,
    "purge": 2,
    "grow": 1,
    "make_anew": 1,
    "turn": 16,
    "time_passes": 9,
    "maintain": 10,
    "rest": 3,
    "look_at_all": 3,
    "crash": 4,
    "restart_cleanly": 1,
    "squeeze": 1,
    "break_disk": 1,
}
"""The methods of a run, and how often each is called."""
STAGED_WORK = WORK | {"truncate": 4, "stage": 6, "copy_staged": 8}
"""The same of runs that stage rows: those with odd seeds."""


class StreamRun(Writing, Reading, Following, Rules):
    """One run of one seed."""

    def __init__(self, seed: int, steps: int = 90, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(seed, steps, say)
        self.work = STAGED_WORK if seed % 2 else WORK
        self._declare()

    # The run --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises BrokenPromise or whatever broke."""
        for _ in range(self.steps):
            self.step(self.dice.choices(list(self.work), list(self.work.values()))[0])
        self.crash()
        self.finish()

    def step(self, name: str) -> None:
        """One of the kinds of work, a moment after the one before."""
        self.now_ms += self.dice.choice((0, 1, 20, 200))
        self.say(f"{name} at {self.life.arena.next_seq}")
        self._do(getattr(self, name))

    def _do(self, action: Callable[[], None]) -> None:
        self.life.node.at(self.now_ms)
        self._look_at_clock()
        try:
            action()
        except DiskFull:
            self.say("     the disk is full")
            self.count("full")
        self._look_at_clock()

    def _declare(self) -> None:
        names = [*BANK, BY_HEADER, *self.dice.sample(sorted(KINDS), self.dice.choice((1, 2, 3)))]
        for name in names:
            self._declare_stream(name)
        if self.work is STAGED_WORK:
            self._declare_stream(STAGING)
        session = self.life.session.session
        session.declare_queue(QUEUE, durable=True)
        session.declare_exchange("both", "fanout", durable=True)
        session.bind_queue(QUEUE, "both", "")
        session.bind_queue(BY_HEADER, "both", "")
        rows: dict[str, list[Row]] = {name: [] for name in BANK}
        for name, account in ACCOUNTS:
            rows[name].append(Row(account, self._balance(DEPOSIT)))
        self._commit([Part("put", name, some) for name, some in rows.items()])
        self._settle()
        for name in names:
            if self.dice.random() < (0.3 if name in BANK else 0.9):
                self.followers.append(Follower(name, f"follower of {name}"))

    # The bank -------------------------------------------------------------------------------------------

    def _balance(self, amount: int) -> bytes:
        return b"%d " % amount + bytes(self.dice.randrange(self.size))

    def transfer(self) -> None:
        """Money goes from one account to another, perhaps in another stream, once or several times."""
        for _ in range(self.dice.choice((1, 1, 3))):
            giver, taker = self.dice.sample(ACCOUNTS, 2)
            self._transfer(giver, taker, self.dice.randint(1, 50))
            if self.dice.random() < 0.3:
                self.maintain()
        if self.dice.random() < 0.5:
            self._completed()
            self.look_at_all()

    def _transfer(self, giver: tuple[str, bytes], taker: tuple[str, bytes], amount: int) -> None:
        parts = []
        for (name, account), change in ((giver, -amount), (taker, amount)):
            found = self.streams[name].current(account)
            before = int(found.value.split()[0]) if found is not None and found.value is not None else 0
            row = Row(account, self._balance(before + change))
            if before + change == 0:
                row = Row(account, b"", tombstone=True)
            parts.append(Part("put", name, [row]))
        self._commit_some(parts)

    # Turns and upkeep -----------------------------------------------------------------------------------

    def turn(self) -> None:
        made = self.life.node.journal.checkpointer.made
        self.life.node.turn(self.now_ms)
        self._may_end_after_checkpoint(made)
        self._completed()

    def _may_end_after_checkpoint(self, made: int) -> None:
        """A checkpoint got its name, and sometimes that is the last thing that happens."""
        checkpointer = self.life.node.journal.checkpointer
        if checkpointer.made > made and self.disk.capacity == ROOM and self.dice.random() < 0.5:
            self.crash()

    def maintain(self) -> None:
        for _ in range(self.dice.choice((1, 1, 5))):
            self.now_ms += 10
            made = self.life.node.journal.checkpointer.made
            self.life.node.maintain(self.now_ms, self.dice.choice((1, 8000, 1 << 20)))
            self._may_end_after_checkpoint(made)
            if self.dice.random() < 0.3:
                self._completed()

    def rest(self) -> None:
        """Nothing happens for a while: compaction comes to its end."""
        for _ in range(self.dice.randint(5, 25)):
            self.now_ms += 60
            self._turn()
            self.life.node.maintain(self.now_ms, 1 << 20)
            self.life.node.watch(0, 1 << 40, 1 << 40)

    def squeeze(self) -> None:
        """The disk has little room for a while."""
        used = self.disk.capacity - self.disk.free_bytes()
        self.disk.capacity = used + self.dice.choice((0, 0, 50_000, 100_000))
        actions = [
            self.put,
            self.transaction,
            self.transfer,
            self.pin,
            self.release,
            self.purge,
            self.turn,
            self.maintain,
            self.follow,
            self.time_passes,
        ]
        size, self.size = self.size, 9000
        for _ in range(self.dice.randint(1, 25)):
            self._do(self.dice.choice(actions))
        self.size = size
        self.disk.capacity = ROOM
        for _ in range(12):
            self.now_ms += 200
            self.life.node.turn(self.now_ms)
            self.life.node.maintain(self.now_ms, 1)
            self._completed()
        self.life.node.watch(0, 1 << 40, 1 << 40)
        if self.life.node.alarms.disk:
            raise BrokenPromise("there is room again, but publishers are still blocked")

    def break_disk(self) -> None:
        """An operation of the disk fails. The node stops for good, and the next process goes on."""
        self.life.may_fail = True
        self.disk.fail_next(self.dice.randrange(30))
        actions = [self.put, self.transaction, self.pin, self.release, self.turn, self.maintain]
        try:
            for _ in range(50):
                self._do(self.dice.choice(actions))
                if self.life.node.failed is not None:
                    break
        except DiskFailed:
            self.say("     the disk failed")
        self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    # Restarts -------------------------------------------------------------------------------------------

    def restart_cleanly(self) -> None:
        node = self.life.node
        node.close(self.now_ms)
        for _ in range(1000):
            self._completed()
            if node.closed():
                break
        self._restart(self.disk.crash(power=self.dice.random() < 0.5))
        if not self.life.report.found.startswith("clean("):
            raise BrokenPromise(f"the node was closed, but found {self.life.report.found}")

    def crash(self) -> None:
        self.count("crashes")
        if self.dice.random() < 0.3:
            self.life.node.turn(self.now_ms)
        self._restart(self.disk.crash(power=self.dice.random() < 0.7))
        if self.dice.random() < 0.3:
            # The machine dies again before anything happened.
            self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    def _restart(self, disk: SimDisk) -> None:
        self.disk = disk
        for name in disk.list(PREFIX):
            if self.dice.random() < 0.1:
                # A checkpoint that rots costs time, and nothing else.
                disk.flip(name, self.dice.randrange(disk.size(name)), self.dice.randrange(8))
        self.now_ms += self.dice.choice((10, 1000, 10_000))
        self.opened.clear()
        for follower in self.followers:
            follower.reader = None
        self._count_compactions()
        self.life = self._start()
        self._check_recovered()
        if self.dice.random() < 0.2:
            for finding in check_store(disk):
                raise BrokenPromise(f"the store check complains after recovery: {finding}")

    def _check_recovered(self) -> None:
        report = self.life.report
        upto = report.last_seq
        self.say(f"     recovered up to {upto}, promised was {self.promised}; {report.torn}")
        self.say(f"     checkpoint {report.checkpoint}, {report.dropped} dropped; {report.unusable}")
        self.count("checkpoints", bool(report.checkpoint))
        self.count("torn", report.torn is not None)
        if upto < self.promised:
            raise BrokenPromise(f"recovered up to {upto}, but {self.promised} had been called safe")
        for first, last in self.written:
            if first <= upto < last:
                raise BrokenPromise(f"the batch {first} to {last} was cut in two at {upto}")
        if self.life.arena.next_seq <= upto:
            raise BrokenPromise(f"sequence {self.life.arena.next_seq} would be given again")
        self.receipts.clear()
        self.written = [(first, last) for first, last in self.written if last <= upto]
        for name, producer in self.producers.items():
            last = self.life.session.producer_last(name)
            if [last] != producer.possible(upto):
                raise BrokenPromise(f"{name} was at {producer.possible(upto)}, not {last}")
            producer.found(last)
        for model in self.streams.values():
            model.cut(upto)
            self._recover_state(model, upto)
        self._recover_queue(upto)
        self.look_at_all()
        self.look_at_pins()

    def _recover_state(self, model: StreamModel, upto: int) -> None:
        stream = self.life.stream(model.name)
        pins = {pin.name: pin for pin in self.life.session.pins(model.name)}
        for name, register in model.pins.items():
            at = pins[name].seq if name in pins else None
            if at not in register.possible(upto):
                raise BrokenPromise(
                    f"{name} of {model.name} is at {at}; it can be {register.possible(upto)} after {upto}"
                )
            register.found(at)
            if name in pins:
                model.until_ms[name] = pins[name].lease_until_ms
        if pins.keys() - model.pins.keys():
            raise BrokenPromise(f"pins of {model.name} that nobody made: {pins.keys()}")
        model.leases.clear()
        model.lapsed.clear()
        for consumer, mark_register in model.marks.items():
            mark = stream.marks.by_name.get(consumer)
            seq = None if mark is None else mark.seq
            if seq not in mark_register.possible(upto):
                raise BrokenPromise(
                    f"the mark of {consumer} is {seq}; it can be {mark_register.possible(upto)} after {upto}"
                )
            mark_register.found(seq)
            if mark is not None and mark.lease_ms:
                model.leases[consumer] = mark.lease_ms, mark.until_ms
                if mark.expired:
                    model.lapsed.add(consumer)
        if stream.marks.by_name.keys() - model.marks.keys():
            raise BrokenPromise(f"marks of {model.name} that nobody made")

    def _recover_queue(self, upto: int) -> None:
        queue: Any = self.life.broker.vhosts["/"].queues[QUEUE]
        self.queue = {seq: sent for seq, sent in self.queue.items() if seq <= upto}
        found: dict[int, bytes] = {}
        taken_all = []
        while (taken := queue.take(1000, 1 << 40)) is not None:
            taken_all.append(taken)
            found |= {seq: self.life.arena.message(loc).body for _, seq, loc, *_ in taken}
        for taken in taken_all:
            for index, *_ in taken:
                queue.requeue(taken.lane, index, False)
        for seq, sent in self.queue.items():
            if (seq not in found) not in sent.taken.possible(upto):
                raise BrokenPromise(
                    f"message {seq} of the queue is {'there again' if seq in found else 'lost'}"
                )
            sent.taken.found(seq not in found)
        if list(found) != sorted(found) or any(
            seq not in self.queue or self.queue[seq].body != body for seq, body in found.items()
        ):
            raise BrokenPromise("the queue has another order, other bodies, or messages that nobody sent")
        self.queue = {seq: sent for seq, sent in self.queue.items() if not sent.taken.now}

    def _count_compactions(self) -> None:
        self.count("compactions", self.life.node.journal.statistics().compactions)

    # What must be true ----------------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """What every stream shows now, the counts, and the bank."""
        money: list[int] = []
        for model in self.streams.values():
            stream = self.life.stream(model.name)
            with self.life.session.snapshot(model.name) as snapshot:
                self._check_boundary(model.name, snapshot.seq)
                got = self._read(snapshot)
            self._check_rows(f"{model.name} at {snapshot.seq}", got, model.visible(snapshot.seq))
            if snapshot.seq < model.last_seq <= self.life.arena.shown_seq:
                raise BrokenPromise(f"{model.name} is shown at {snapshot.seq}, and all is durable")
            newest = model.visible(FOREVER)
            values = sum(row.value is not None or model.is_log for row in newest)
            if (stream.live, stream.tombstones) != (values, len(newest) - values):
                raise BrokenPromise(
                    f"{model.name} counts {stream.live} and {stream.tombstones}, not {values} and "
                    f"{len(newest) - values}"
                )
            if stream.live_bytes != sum(len(row.value or b"") for row in newest):
                raise BrokenPromise(f"{model.name} counts {stream.live_bytes} bytes")
            if model.name in BANK:
                money += [int(row.value.split()[0]) for row in got if row.value is not None]
        if money and sum(money) != DEPOSIT * len(ACCOUNTS):
            raise BrokenPromise(f"the accounts add up to {sum(money)}")

    def finish(self) -> None:
        """Everybody goes: nothing of the past is kept then, and the room on the disk comes back."""
        for model in self.streams.values():
            for pin, register in model.pins.items():
                if register.now is not None:
                    self.life.session.release(model.name, pin)
        self._settle()
        for _ in range(4):
            self.now_ms += 1_000_000
            self.life.node.turn(self.now_ms)
            self.life.node.tick(self.now_ms)
            self._settle()
        for model in self.streams.values():
            stream = self.life.stream(model.name)
            if stream.held:
                raise BrokenPromise(f"{model.name} keeps {stream.held} superseded messages for nobody")
            if "x-stream-tombstone-lease" in model.arguments and stream.tombstones:
                raise BrokenPromise(f"{model.name} keeps {stream.tombstones} tombstones after their lease")
        state = self.life.broker.streams.state
        if state.held or state.tombstones > 1:  # the newest record may be one
            raise BrokenPromise(f"the state keeps {state.held} old records and {state.tombstones} tombstones")
        for _ in range(60):
            self.now_ms += 2000
            self._turn()
            self.life.node.maintain(self.now_ms, 1 << 20)
        self._count_compactions()
        live = sum(
            self.life.stream(name).live_bytes + 150 * self.life.stream(name).live for name in self.streams
        )
        live += sum(len(sent.body) + 150 for sent in self.queue.values())
        used = sum(segment.used for segment in self.life.node.journal.segments)
        if used > 4 * live + 4 * self.config.segment_bytes:
            raise BrokenPromise(f"{used} bytes on the disk for {live} that are live")


def run_seed(seed: int, say: Callable[[str], None] = lambda _: None) -> StreamRun:
    """One run.

    Raises:
        BrokenPromise: with the command that replays it.
    """
    try:
        run = StreamRun(seed, say=say)
        run.run()
    except (AssertionError, TidemarkError, ValueError, KeyError, IndexError, TypeError) as problem:
        raise BrokenPromise(
            f"{type(problem).__name__}: {problem}\nreplay: python -m tidemark.sim.streams --seed {seed}"
        ) from problem
    return run


if __name__ == "__main__":
    raise SystemExit(command("Run streams over a disk that loses, tears and fills up.", run_seed))
