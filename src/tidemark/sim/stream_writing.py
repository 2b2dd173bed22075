"""Work that writes: batches over several streams and a queue, producers that send again, rows that are staged and copied.

Whatever is committed is noted in the model, with the sequences that it must have got.

Invariant: a batch is in the model exactly if the broker took it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.broker.streams.commit import Batch, Committed, Copy, Move, Operation, Publish, Put
from tidemark.errors import Conflict, DiskFull, PinExpired, PreconditionFailed
from tidemark.model.rows import ANY, Row, RowBatch
from tidemark.sim.store import BrokenPromise
from tidemark.sim.stream_model import FOREVER, Step, StreamModel, Version
from tidemark.sim.stream_world import (
    BANK,
    BY_HEADER,
    PRODUCERS,
    QUEUE,
    STAGING,
    Numbered,
    Part,
    Sent,
    StreamWorld,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties


class Writing(StreamWorld):
    def _value(self) -> bytes:
        longest = 12_000 if self.dice.random() < 0.02 else self.size
        return self.dice.randbytes(3) * (self.dice.randrange(longest) // 3)

    def _row(self, conditions: bool, model: StreamModel) -> Row:
        dice = self.dice
        key = None if dice.random() < 0.1 else self._key()
        deletes = key is not None and dice.random() < 0.2
        expected = ANY
        if conditions and dice.random() < 0.6:
            found = model.current(key) if key is not None else None
            right = found.seq if found is not None else 0
            expected = dice.choice((right, right, right, 0, right + 1, max(0, right - 1)))
        return Row(key, b"" if deletes else self._value(), tombstone=deletes, expected=expected)

    def _rows(self, name: str) -> list[Row]:
        conditions = self.dice.random() < 0.2
        return [self._row(conditions, self.streams[name]) for _ in range(self._many())]

    def _many(self) -> int:
        return self.dice.choice((3, 8, 20) if self.busy else (1, 1, 3, 8))

    def put(self) -> None:
        name = self._other_name()
        self._commit_some([Part("put", name, self._rows(name))])

    def transaction(self) -> None:
        """Rows to several streams, messages to the queue, marks: together or not at all."""
        parts: list[Part] = []
        for _ in range(self.dice.randint(1, 4)):
            kind = self.dice.choice(("put", "put", "queue", "both", "mark"))
            if kind == "put":
                name = self._other_name()
                parts.append(Part("put", name, self._rows(name)))
            elif kind == "mark":
                name = self._name()
                seq = self.dice.randint(0, self.life.stream(name).caught_up())
                parts.append(Part("mark", name, seq=seq))
            else:
                model = self.streams[BY_HEADER]
                row = self._row(False, model)
                parts.append(Part(kind, BY_HEADER, [row]))
        self._commit_some(parts)

    def _commit_some(self, parts: list[Part]) -> None:
        if self.dice.random() < 0.3:
            producer = self.dice.choice(PRODUCERS)
            number = self.producers[producer].now + self.dice.choice((1, 1, 5))
            self._commit(parts, producer, number)
        else:
            self._commit(parts)

    def send_again(self) -> None:
        """A producer is not sure whether a batch arrived."""
        producer = self.dice.choice(PRODUCERS)
        if self.batches[producer]:
            batch = self.dice.choice(self.batches[producer])
            # Where a mark was to go may have been taken back by a crash.
            parts = [part for part in batch.parts if part.kind != "mark"]
            for part in parts:
                part.rows = [replace(row, expected=ANY) for row in part.rows]
            known = self.producers[producer].now >= batch.number
            if not parts or (not known and any(part.name in BANK for part in parts)):
                return  # nothing is left of it, or the balances have changed since
            self.count("sent again", known)
            self._commit(parts, producer, batch.number)

    def _operation(self, part: Part) -> Operation:
        match part.kind:
            case "put":
                return Put(part.name, RowBatch.build(part.rows))
            case "mark":
                return Move(part.name, "moved by a batch", part.seq)
        [row] = part.rows
        headers: dict[str, Any] = {} if row.key is None else {"k": row.key.decode()}
        if row.tombstone:
            headers["x-tombstone"] = True
        properties = encode_properties(Properties(headers=headers))
        if part.kind == "queue":
            return Publish("", QUEUE, properties, row.value)
        return Publish("both", "", properties, row.value)

    def _commit(
        self,
        parts: list[Part],
        producer: str | None = None,
        number: int | None = None,
        operations: list[Operation] | None = None,
    ) -> None:
        """Commit what the parts say; `operations` do the same in another way."""
        if any(part.kind == "both" for part in parts):
            # A batch that publishes to a stream cannot expect anything of its keys.
            for part in parts:
                if part.name == BY_HEADER:
                    part.rows = [replace(row, expected=ANY) for row in part.rows]
        life, low = self.life, self.life.arena.next_seq
        duplicate = producer is not None and number is not None and number <= self.producers[producer].now
        conflict = not duplicate and any(
            self._conflicts(name, parts) for name in {part.name for part in parts if part.kind == "put"}
        )
        if operations is None:
            operations = [self._operation(part) for part in parts]
        try:
            committed = life.session.commit(Batch(operations, producer, number))
        except (Conflict, DiskFull) as error:
            if life.arena.next_seq != low:
                raise BrokenPromise(f"a batch was refused ({error}), but something was written") from error
            if isinstance(error, DiskFull):
                raise
            if not conflict:
                raise BrokenPromise(f"a conflict where there is none: {error}") from error
            self.count("conflicts")
            return
        if conflict:
            raise BrokenPromise("a batch was stored though a key was not where it was expected")
        if committed.duplicate != duplicate:
            raise BrokenPromise(f"number {number} of {producer}: duplicate is {committed.duplicate}")
        self._expect(committed.safe_at)
        if duplicate:
            if life.arena.next_seq != low:
                raise BrokenPromise(f"batch {number} of {producer} was stored twice")
            return
        self._note(parts, committed, low)
        if producer is not None and number is not None:
            self.producers[producer].set(number, low, committed.safe_at)
            self.batches[producer].append(Numbered(number, parts))

    def _conflicts(self, name: str, parts: list[Part]) -> bool:
        puts = [part.rows for part in parts if part.kind == "put" and part.name == name]
        return any(row.expected != ANY for rows in puts for row in rows) and (
            self.streams[name].conflict([row for rows in puts for row in rows]) is not None
        )

    def _note(self, parts: list[Part], committed: Committed, low: int) -> None:
        """The batch happened: so it does in the model."""
        seq, first, last = low, 0, 0
        for part in parts:
            model = self.streams.get(part.name)
            assert model is not None
            for row in part.rows:
                value = None if row.tombstone and part.kind != "queue" else row.value
                if part.kind == "put":
                    first, last = first or seq, seq
                if part.kind == "both":
                    # One record, two sequences. Which of them is the stream's is not for us to say.
                    in_stream = self._place_in(BY_HEADER, seq)
                    in_queue = seq + 1 if in_stream == seq else seq
                    self.queue[in_queue] = Sent(in_queue, row.value)
                    if row.key is None:
                        value = row.value
                    model.versions.append(Version(in_stream, row.key, value, self.now_ms))
                    seq += 1
                elif part.kind == "queue":
                    self.queue[seq] = Sent(seq, row.value)
                else:
                    model.versions.append(Version(seq, row.key, value, self.now_ms))
                seq += 1
        if (committed.first_seq, committed.last_seq) != (first, last):
            raise BrokenPromise(f"rows {first} to {last} have a receipt for {committed}")
        for part in parts:
            if part.kind == "mark":
                self._mark_moved(part.name, "moved by a batch", part.seq, low, committed.safe_at)
        self.written.append((low, committed.safe_at))

    def _place_in(self, name: str, seq: int) -> int:
        return seq if self.life.stream(name).holds(seq) else seq + 1

    def consume(self) -> None:
        """Some messages of the queue are taken and acknowledged."""
        queue: Any = self.life.broker.vhosts["/"].queues[QUEUE]
        taken = queue.take(self.dice.choice((1, 3, 20)), 1 << 40)
        if taken is None:
            return
        for _, seq, loc, *_ in taken:
            sent = self.queue.get(seq)
            if sent is None or sent.taken.now:
                raise BrokenPromise(f"the queue gives {seq}, which nobody sent or which was consumed")
            if self.life.arena.message(loc).body != sent.body:
                raise BrokenPromise(f"message {seq} of the queue has another body")
            sent.taken.set(True, self.life.arena.next_seq, FOREVER)
        queue.settle_taken(taken)
        self._turn()
        for _, seq, *_ in taken:
            self.queue[seq].taken.written_by(self.life.node.journal.last_seq)

    # Staged rows ----------------------------------------------------------------------------------------

    def stage(self) -> None:
        """Rows for later. Nobody but their own copy needs them."""
        low = self.life.arena.next_seq
        self._commit(
            [Part("put", STAGING, [self._row(False, self.streams[STAGING]) for _ in range(self._many())])]
        )
        self.staged.append((low, self.streams[STAGING].versions[-1].seq))

    def copy_staged(self) -> None:
        """Some of what was staged goes into a stream, with a row of its own and perhaps a number."""
        if not self.staged:
            return
        dice, session, staging = self.dice, self.life.session, self.streams[STAGING]
        ranges = [self._a_range() for _ in range(dice.choice((1, 1, 2, 3)))]
        shown = {row.seq: row for row in staging.visible(self.life.stream(STAGING).caught_up())}
        wanted = [seq for first, last in ranges for seq in range(first, last + 1)]
        rows = [shown[seq] for seq in wanted if seq in shown]
        into = self._other_name()
        parts = [
            Part("put", into, [Row(key, value or b"", tombstone=value is None) for _, key, value in rows])
        ]
        parts.append(Part("put", into, [self._row(False, self.streams[into])]))
        operations: list[Operation] = [Copy(STAGING, ranges, into), self._operation(parts[1])]
        producer = dice.choice(PRODUCERS) if dice.random() < 0.5 else None
        number = None if producer is None else self.producers[producer].now + 1
        copier = None
        try:
            copier = session.copier(Batch(operations, producer, number))
            goes_on = True
            while goes_on:
                goes_on = copier.step()
                if dice.random() < 0.3:
                    self._meanwhile()
            operations = list(copier.batch.operations)
            if len(rows) < len(wanted):
                raise BrokenPromise(
                    f"{ranges} were copied though only {len(rows)} of {len(wanted)} rows are there"
                )
            self._commit(parts, producer, number, operations)
            self.count("copies")
        except PreconditionFailed as error:
            if len(rows) == len(wanted):
                raise BrokenPromise(f"{ranges} are all there, but are not copied: {error}") from error
            self.count("copies refused")
        except PinExpired as error:
            if "deleted" not in error.problem:
                raise
        finally:
            if copier is not None:
                copier.close()

    def _a_range(self) -> tuple[int, int]:
        """One that was staged, or a part of it, or somewhat more."""
        first, last = self.dice.choice(self.staged)
        return self.dice.choice(
            (
                (first, last),
                (first, last),
                (first, last),
                (last, last),
                (first, last + 1),
                (max(1, first - 1), last),
            )
        )

    def _meanwhile(self) -> None:
        """What may happen between two slices of a copy."""
        match self.dice.randrange(3):
            case 0:
                self._turn()
            case 1:
                self.life.node.maintain(self.now_ms, 1 << 20)
            case 2:
                self._truncate(STAGING)

    def truncate(self) -> None:
        self._truncate(self._other_name())

    def _truncate(self, name: str) -> None:
        """Everything up to some sequence ends, in one step or several; sometimes not all of them are made."""
        dice, arena, model = self.dice, self.life.arena, self.streams[name]
        newest = arena.next_seq - 1
        upto = dice.choice((dice.randint(0, newest), dice.randint(max(0, newest - 20), newest), newest + 5))
        try:
            work = self.life.session.truncation(name, upto)
        except PreconditionFailed as error:
            if upto <= newest:
                raise BrokenPromise(f"{name} is not truncated up to {upto} of {newest}: {error}") from error
            return
        if upto > newest:
            raise BrokenPromise(f"{name} was truncated up to {upto}, but the newest sequence is {newest}")
        look, goes_on = dice.choice((2, 10, 1 << 20)), True
        while goes_on and dice.random() < 0.9:
            by, ended, after = arena.next_seq, work.ended, work.position
            goes_on = work.step(self.now_ms, look)
            rows = [row for row in model.visible(FOREVER) if row.seq <= work.position]
            if work.ended - ended != len(rows):
                raise BrokenPromise(
                    f"{work.ended - ended} rows of {name} ended, not {len(rows)} up to {work.position}"
                )
            if (arena.next_seq > by) != bool(rows):
                raise BrokenPromise(
                    f"{len(rows)} rows of {name} behind {after} ended in {arena.next_seq - by} records"
                )
            if rows:
                deletes = not model.is_log and any(row.value is None for row in rows)
                model.steps.append(Step(by, work.position + 1, max(model.purged, deletes and work.position)))
                self.count("truncated", len(rows))
        if work.ended:
            self._expect(work.safe_at)
