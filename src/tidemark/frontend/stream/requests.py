"""What can be asked of a connection that is open: one method for each operation of the protocol.

`OPERATIONS` names them. Each reads the fields of the request's header, calls the broker's `StreamSession`, and
answers, or leaves the answer to the disk, or begins a `Work`. Nothing has changed when one raises. A member that does
not lead performs those that only read (`following.py`).

Invariant: `_snapshots` are the snapshots that the peer has open; they go with the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tidemark.broker.session import Session
from tidemark.broker.streams import partitions
from tidemark.broker.streams.commit import Batch, Committed, Copy, Move, Operation, Publish, Put, Take
from tidemark.broker.streams.cuts import PIECES, Cutter
from tidemark.broker.streams.marks import Mark
from tidemark.broker.streams.positions import AtTime, FromMark, Position
from tidemark.broker.streams.reader import Offset
from tidemark.broker.streams.session import At, StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.errors import CommandInvalid, NotAllowed, NotFound, SyntaxFault
from tidemark.frontend import tails
from tidemark.frontend.stream import batches, following
from tidemark.frontend.stream.copying import Copying
from tidemark.frontend.stream.counts import Count, Truncate
from tidemark.frontend.stream.feeds import Follow, Range, Scan, Shape
from tidemark.frontend.stream.fields import Fields
from tidemark.frontend.stream.polls import Heads, Safe
from tidemark.frontend.stream.work import Link
from tidemark.model.rows import RowBatch
from tidemark.wire.amqp091.properties import PERSISTENT_MODE, Properties, encode_properties
from tidemark.wire.stream.rows import ENCODING, encode_rows

WRITES = frozenset({"put", "commit"})
"""Operations that wait while publishers must."""
SHOWS = frozenset({"get", "snapshot", "read", "diff", "follow"})
"""Operations that show rows, or begin to."""
PIN_LEASE_MS = 3_600_000
"""Of a pin that does not ask for another one."""
COUNTS_MAX = 16
"""Most cuts and lags of one connection that are under way."""
HEADED_ROWS_MAX = 4096
"""Most rows in one Arrow batch with headers, which are made one by one."""
_INT64 = struct.Struct("<q")


class Requests:
    def __init__(self, link: Link, session: Session) -> None:
        self._link = link
        self._session = session
        self._streams = StreamSession(session, by_front=bool(link.peer.front))
        self._snapshots: dict[int, Snapshot] = {}
        self._next_snapshot = 1
        self._publishes = False

    def perform(self, request: int, header: dict[str, Any], payload: memoryview) -> None:
        """Do what a request asks.

        Raises:
            TidemarkError: it cannot be done; nothing was.
        """
        op = header.get("op")
        operation = OPERATIONS.get(op) if isinstance(op, str) else None
        if operation is None:
            raise CommandInvalid(
                reason=f"there is no operation {op!r:.60}; there are {', '.join(OPERATIONS)}"
            )
        fields = Fields(header, str(op))
        streams, services = self._session.broker.streams, self._link.services
        if not streams.leads:
            following.check_reads(str(op), fields, services.topology(), self._link.peer.tls)
        if services.tails_only and op in SHOWS and not (op == "snapshot" and "pin" in fields):
            self._check_shown(fields)
        if streams.leads:
            operation(self, request, fields, payload)
            return
        seen = following.seen_by(str(op), fields)
        if following.missing(streams, services, seen) is None:
            operation(self, request, fields, payload)
        else:
            self._link.begin(
                following.Until(
                    self._link,
                    request,
                    streams,
                    seen,
                    payload,
                    lambda kept: operation(self, request, fields, kept),
                )
            )

    def _check_shown(self, fields: Fields) -> None:
        """Raises NotATail: other members show this.

        A snapshot that was opened while this one did is read to its end. What the leader does not have at all nobody need look for
        elsewhere, so that is what it says.
        """
        number = fields.number("snapshot", None)
        opened = None if number is None else self._opened(number)
        if opened is not None and opened.pin is None:
            return
        name = fields.text("stream") if opened is None else opened.stream.name
        refusal = tails.refusal(self._link.services, name, tls=self._link.peer.tls)
        if refusal is None:
            return
        if self._session.broker.streams.leads:
            self._streams.stream(name, "read")
            if opened is None and "pin" in fields:
                self._streams.pinned(name, fields.text("pin")).close()
        raise refusal

    def close(self) -> None:
        """The connection is gone."""
        for snapshot in self._snapshots.values():
            snapshot.close()
        self._snapshots.clear()
        if self._publishes:
            self._publishes = False
            self._session.counts.publishers -= 1
        self._session.close()

    # Streams ---------------------------------------------------------------------------------------

    def _declare(self, request: int, fields: Fields, _: memoryview) -> None:
        name = fields.text("stream")
        safe_at = self._streams.declare(name, fields.table("arguments"))
        self._link.answer_when_durable(request, self._told(name), catalog=safe_at)

    def _told(self, name: str) -> dict[str, Any]:
        """What is known here of a stream: all, or in which group it lives."""
        group = self._streams.elsewhere(name)
        if group:
            spec = self._session.queue(name).spec
            return {"name": name, "group": group, "arguments": spec.arguments, "number": spec.life}
        return _described(self._streams.stream(name, None))

    def _delete(self, request: int, fields: Fields, _: memoryview) -> None:
        stand_in, number = fields.flag("stand_in", False), fields.number("number", 0)
        safe_at = self._streams.delete(fields.text("stream"), stand_in=stand_in, number=number)
        self._link.answer_when_durable(request, {}, catalog=safe_at)

    def _partition(self, request: int, fields: Fields, _: memoryview) -> None:
        name = fields.text("stream")
        count, groups = fields.number("count", least=1), fields.texts("groups")
        safe_at = partitions.declare(self._streams, name, count, groups, fields.table("arguments"))
        self._link.answer_when_durable(request, asdict(partitions.find(self._streams, name)), catalog=safe_at)

    def _partitions(self, request: int, fields: Fields, _: memoryview) -> None:
        found = partitions.find(self._streams, fields.text("stream"), partial=fields.flag("partial", False))
        self._link.answer(request, asdict(found))

    def _unpartition(self, request: int, fields: Fields, _: memoryview) -> None:
        safe_at = partitions.delete(self._streams, fields.text("stream"))
        self._link.answer_when_durable(request, {}, catalog=safe_at)

    def _info(self, request: int, fields: Fields, _: memoryview) -> None:
        self._link.answer(request, _described(self._streams.stream(fields.text("stream"), "read")))

    def _list(self, request: int, _: Fields, __: memoryview) -> None:
        self._link.answer(request, {"streams": [self._told(name) for name in self._streams.names()]})

    def _truncate(self, request: int, fields: Fields, _: memoryview) -> None:
        self._begin_truncation(request, fields.text("stream"), _place(fields, "upto"), tell=False)

    def _purge(self, request: int, fields: Fields, _: memoryview) -> None:
        self._begin_truncation(request, fields.text("stream"), None, tell=True)

    def _begin_truncation(self, request: int, name: str, upto: int | Position | None, *, tell: bool) -> None:
        truncation = self._streams.truncation(name, upto, tell=tell)
        self._link.begin(Truncate(self._link, request, self._streams.stream(name, "read"), truncation))

    # Writing ---------------------------------------------------------------------------------------

    def _put(self, request: int, fields: Fields, payload: memoryview) -> None:
        stream = fields.text("stream")
        allowance = batches.Allowance(self._link.config)
        operations: list[Operation] = [
            Put(stream, rows) for rows in batches.decode(fields, payload, allowance)
        ]
        self._commit_batch(request, fields, operations)

    def _commit(self, request: int, fields: Fields, payload: memoryview) -> None:
        operations: list[Operation] = []
        allowance = batches.Allowance(self._link.config)
        at = 0
        for part in fields.inners("operations"):
            allowance.part()
            end = at + part.number("length", 0)
            if end > len(payload):
                raise part.wrong(
                    "length", f"at most the {len(payload) - at} bytes that are left of the payload"
                )
            operations += self._operations(part, payload[at:end], allowance)
            at = end
        if at != len(payload):
            raise SyntaxFault(reason=f"the operations take {at} bytes, but the payload has {len(payload)}")
        self._commit_batch(request, fields, operations)

    def _operations(self, part: Fields, payload: memoryview, allowance: batches.Allowance) -> list[Operation]:
        if "put" in part:
            return [Put(part.text("put"), rows) for rows in batches.decode(part, payload, allowance)]
        if "publish" in part:
            mandatory = part.flag("mandatory", True)
            exchange, key = part.text("publish"), part.text("key", "")
            if "count" in part:
                return batches.messages(exchange, part, payload, allowance, mandatory)
            return [Publish(exchange, key, _properties(part), bytes(payload), mandatory)]
        if "mark" in part:
            return [_move(part, part.text("mark"), part.history() if "history" in part else None)]
        if "copy" in part:
            history = part.history() if "history" in part else None
            return [Copy(part.text("copy"), part.ranges("ranges"), part.text("into"), history)]
        if "take" in part:
            return [Take(part.text("take"), part.text("into"), part.number("limit", least=1))]
        raise SyntaxFault(
            reason="an operation of a commit must have 'put', 'publish', 'mark', 'copy' or 'take'"
        )

    def _commit_batch(self, request: int, fields: Fields, operations: list[Operation]) -> None:
        producer = fields.text("producer", None)
        sequence = fields.number("sequence", None) if producer is None else fields.number("sequence")
        batch = Batch(operations, producer, sequence)
        if not any(isinstance(operation, Copy | Take) for operation in operations):
            self._committed(request, self._store(batch))
            return
        known = self._streams.known(batch)
        if known is not None:
            self._committed(request, known)
            return
        config = self._link.config
        copier = self._streams.copier(batch, config.put_rows_max, config.put_slow_rows_max)

        def commit(request: int, batch: Batch) -> None:
            taken = copier.taken
            self._committed(request, self._store(batch), taken)

        self._link.begin(Copying(self._link, request, copier, commit))

    def _store(self, batch: Batch) -> Committed:
        done = self._streams.commit(batch)
        counts = self._session.counts
        if not self._publishes:
            self._publishes = True
            counts.publishers += 1
        if not done.duplicate:
            rows = sum(each.rows.count for each in batch.operations if isinstance(each, Put))
            counts.received += rows
            counts.routed += rows
        return done

    def _committed(self, request: int, done: Committed, taken: Sequence[int] = ()) -> None:
        answer = {
            "history": done.history.hex(),
            "first": done.first_seq,
            "last": done.last_seq,
            "duplicate": done.duplicate,
        }
        if taken:
            answer["taken"] = list(taken)
        self._link.answer_when_durable(request, answer, journal=done.safe_at)

    def _producer(self, request: int, fields: Fields, _: memoryview) -> None:
        last, safe_at = self._streams.producer(fields.text("producer"))
        self._link.answer_when_durable(request, {"last": last}, journal=safe_at)

    def _forget(self, request: int, fields: Fields, _: memoryview) -> None:
        safe_at = self._streams.forget_producer(fields.text("producer"))
        self._link.answer_when_durable(request, {}, journal=safe_at)

    # Reading ---------------------------------------------------------------------------------------

    def _get(self, request: int, fields: Fields, payload: memoryview) -> None:
        key = fields.octets("key")
        row = self._streams.get(fields.text("stream"), bytes(payload) if key is None else key)
        if row is None:
            self._link.answer(request, {"found": False})
        else:
            batch = RowBatch.build([row])
            batch.sequences, batch.timestamps = _INT64.pack(row.seq), _INT64.pack(row.ms)
            header, parts = encode_rows(batch)
            self._link.answer(request, {"found": True, **header}, parts)

    def _snapshot(self, request: int, fields: Fields, _: memoryview) -> None:
        name = fields.text("stream")
        if len(self._snapshots) >= self._link.config.snapshots_max:
            limit = self._link.config.snapshots_max
            raise NotAllowed(
                reason=f"this connection has {limit} snapshots open (stream.snapshots_max); close one first, in the "
                "client by `with` or close()"
            )
        safe_at = 0
        if "pin" in fields:
            snapshot, safe_at = self._streams.pin(
                name, fields.text("pin"), fields.number("lease_ms", PIN_LEASE_MS, least=1), at=_at(fields)
            )
        else:
            snapshot = self._streams.snapshot(name, after=_after(fields), at=_at(fields))
        number, self._next_snapshot = self._next_snapshot, self._next_snapshot + 1
        self._snapshots[number] = snapshot
        stream = snapshot.stream
        ended = stream.ends.at(snapshot.seq)
        answer: dict[str, Any] = {
            "snapshot": number,
            "history": snapshot.history.hex(),
            "to": snapshot.seq,
            "after": snapshot.after,
            "live": stream.live,
            "tombstones": stream.tombstones,
            "complete_from": stream.oldest_snapshot,
            "floor": ended.floor,
            "purged": ended.purged,
            "shards": snapshot.shards,
        }
        self._link.answer_when_durable(request, answer, journal=safe_at)

    def _read(self, request: int, fields: Fields, _: memoryview) -> None:
        number = fields.number("snapshot", None)
        if number is None:
            snapshot = self._streams.pinned(fields.text("stream"), fields.text("pin"))
        else:
            snapshot = self._opened(number)
        try:
            part = Range(
                after=max(fields.number("after", 0), snapshot.after),
                until=fields.number("until", None),
                shards=_shards(fields, snapshot.shards),
                key_from=fields.octets("key_from"),
                key_to=fields.octets("key_to"),
            )
            scan = Scan(
                self._link,
                request,
                snapshot,
                self._shape(fields, snapshot.shards),
                part,
                fields.number("credit", None),
                fields.flag("hash", True),
                keep=number is not None,
                conclude=lambda marker: {"marker": marker},
            )
        except BaseException:
            if number is None:
                snapshot.close()
            raise
        self._link.begin(scan)

    def _opened(self, number: int) -> Snapshot:
        snapshot = self._snapshots.get(number)
        if snapshot is None:
            raise NotFound(reason=f"this connection has no snapshot {number} open")
        return snapshot

    def _shape(self, fields: Fields, shards: int) -> Shape:
        config = self._link.config
        encoder, columns = batches.encoder_for(fields, shards)
        size = fields.number("batch_bytes", config.batch_bytes, least=1)
        rows_max = config.batch_rows_max
        if columns & batches.PROPERTIES and encoder.encoding != ENCODING:
            rows_max = min(rows_max, HEADED_ROWS_MAX)
        return Shape(encoder, columns, rows_max, min(size, config.frame_bytes_max // 2))

    def _check_counts(self) -> None:
        """Each keeps what it has found until it is answered."""
        if sum(isinstance(work, Count) for work in self._link.works()) >= COUNTS_MAX:
            raise NotAllowed(
                reason=f"{COUNTS_MAX} cuts and lags of this connection are under way; wait for one to be answered"
            )

    def _cut(self, request: int, fields: Fields, _: memoryview) -> None:
        self._check_counts()
        number = fields.number("snapshot", None)
        if number is None:
            snapshot = self._streams.pinned(fields.text("stream"), fields.text("pin"))
        else:
            snapshot = self._opened(number)
        try:
            cutter = Cutter(
                snapshot,
                after=fields.number("after", 0),
                until=fields.number("until", None),
                shards=_shards(fields, snapshot.shards),
                rows=fields.number("rows", None),
                bytes=fields.number("bytes", None),
                parts=fields.number("parts", None),
                limit=fields.number("limit", PIECES),
            )
        except BaseException:
            if number is None:
                snapshot.close()
            raise
        history = snapshot.history.hex()
        self._link.begin(
            Count(
                self._link,
                request,
                cutter,
                keep=number is not None,
                conclude=lambda request, cutter: self._link.answer(
                    request, {"history": history, "pieces": cutter.count}, [cutter.numbers.tobytes()]
                ),
            )
        )

    def _lag(self, request: int, fields: Fields, _: memoryview) -> None:
        name = fields.text("stream")
        stream = self._streams.stream(name, "read")
        shards = _shards(fields, stream.policy.shards)
        history = self._session.broker.streams.history.hex()
        place, sequence = _place(fields, "after"), stream.caught_up()
        after = stream.check_position(place) if isinstance(place, Position) else place

        def answer(request: int, rows: int, size: int) -> None:
            told = {"history": history, "sequence": sequence, "rows": rows, "bytes": size}
            self._link.answer(request, told)

        known = None if shards is not None and after < sequence else stream.behind(after)
        if known is not None:
            answer(request, *known)
            return
        self._check_counts()
        snapshot = self._streams.lagging(name)
        try:
            cutter = Cutter(snapshot, after=after, shards=shards)
        except BaseException:
            snapshot.close()
            raise
        self._link.begin(
            Count(
                self._link,
                request,
                cutter,
                keep=False,
                conclude=lambda request, cutter: answer(request, *cutter.numbers[1:]),
            )
        )

    def _close(self, request: int, fields: Fields, _: memoryview) -> None:
        if "request" in fields:
            self._link.cancel(fields.number("request"))
        else:
            number = fields.number("snapshot")
            snapshot = self._opened(number)
            for work in self._link.works():
                if isinstance(work, Scan | Count) and work.snapshot is snapshot:
                    self._link.refuse(work.request, NotFound(reason=f"snapshot {number} was closed"))
            del self._snapshots[number]
            snapshot.close()
        self._link.answer(request, {})

    def _diff(self, request: int, fields: Fields, _: memoryview) -> None:
        snapshot = self._streams.diff(fields.text("stream"), _place(fields, "a"), _at(fields, "b"))
        try:
            scan = Scan(
                self._link,
                request,
                snapshot,
                self._shape(fields, snapshot.shards),
                Range(after=snapshot.after, shards=_shards(fields, snapshot.shards)),
                fields.number("credit", None),
                fields.flag("hash", True),
                keep=False,
                conclude=lambda marker: {
                    "changed": marker["count"],
                    "deleted": marker["tombstones"],
                    "marker": marker,
                },
            )
        except BaseException:
            snapshot.close()
            raise
        self._link.begin(scan)

    def _follow(self, request: int, fields: Fields, _: memoryview) -> None:
        name = fields.text("stream")
        offset = _offset(fields)
        stream = self._streams.stream(name, "read")
        shape = self._shape(fields, stream.policy.shards)
        credit, hashed = fields.number("credit", None), fields.flag("hash", True)
        reader = self._streams.reader(name, offset, shards=_shards(fields, stream.policy.shards))
        resumes = isinstance(offset, Position | FromMark)
        self._link.begin(Follow(self._link, request, reader, shape, credit, hashed, resumes=resumes))

    # Pins --------------------------------------------------------------------------------------------

    def _pins(self, request: int, fields: Fields, _: memoryview) -> None:
        history = self._session.broker.streams.history.hex()
        pins = [
            {
                "pin": pin.name,
                "history": history,
                "sequence": pin.seq,
                "shards": pin.shards,
                "lease_until_ms": pin.lease_until_ms,
                "bytes": pin.bytes_kept,
                "floor": pin.floor,
                "purged": pin.purged,
            }
            for pin in self._streams.pins(fields.text("stream"))
        ]
        number = self._streams.stream(fields.text("stream"), "read").number
        self._link.answer(request, {"pins": pins, "number": number})

    def _release(self, request: int, fields: Fields, _: memoryview) -> None:
        safe_at = self._streams.release(fields.text("stream"), fields.text("pin"))
        self._link.answer_when_durable(request, {}, journal=safe_at)

    def _renew(self, request: int, fields: Fields, _: memoryview) -> None:
        lease_ms = fields.number("lease_ms", least=1)
        safe_at = self._streams.renew(fields.text("stream"), fields.text("pin"), lease_ms)
        self._link.answer_when_durable(request, {}, journal=safe_at)

    # Marks -------------------------------------------------------------------------------------------

    def _mark(self, request: int, fields: Fields, _: memoryview) -> None:
        name, consumer = fields.text("stream"), fields.text("consumer")
        if "sequence" not in fields:
            mark = self._streams.mark(name, consumer)
            self._link.answer(request, {"mark": None if mark is None else told(mark)})
            return
        done = self._streams.commit(Batch([_move(fields, name, fields.history())]))
        self._link.answer_when_durable(request, {}, journal=done.safe_at)

    def _marks(self, request: int, fields: Fields, _: memoryview) -> None:
        wanted = fields.text("consumer", None)
        marks = self._streams.marks(fields.text("stream"))
        found = [told(mark) for mark in marks if wanted is None or mark.consumer == wanted]
        self._link.answer(request, {"marks": found})

    def _register(self, request: int, fields: Fields, _: memoryview) -> None:
        lease_ms = fields.number("lease_ms", None, least=1)
        safe_at = self._streams.register(
            fields.text("stream"), fields.text("consumer"), lease_ms, passing=fields.flag("passing", False)
        )
        self._link.answer_when_durable(request, {}, journal=safe_at)

    def _unregister(self, request: int, fields: Fields, _: memoryview) -> None:
        safe_at = self._streams.unregister(fields.text("stream"), fields.text("consumer"))
        self._link.answer_when_durable(request, {}, journal=safe_at)

    def _reset(self, request: int, fields: Fields, _: memoryview) -> None:
        safe_at = self._streams.reset_mark(
            fields.text("stream"), fields.text("consumer"), fields.number("sequence", 0)
        )
        self._link.answer_when_durable(request, {}, journal=safe_at)

    # News --------------------------------------------------------------------------------------------

    def _safe(self, request: int, fields: Fields, _: memoryview) -> None:
        history, sequence = fields.history(), fields.number("sequence")
        replicas, disks = fields.number("replicas", 1), fields.number("disks", 1)
        streams = self._session.broker.streams

        def ask() -> str:
            return str(streams.safe(history, sequence, replicas, disks))

        ask()  # what cannot be asked is refused at once
        self._link.begin(Safe(self._link, request, fields.number("wait_ms", 0), streams, ask))

    def _members(self, request: int, _: Fields, __: memoryview) -> None:
        history = self._session.broker.streams.history.hex()
        self._link.answer(
            request, {"node": self._link.services.name, "history": history, **self._link.members()}
        )

    def _heads(self, request: int, fields: Fields, _: memoryview) -> None:
        names = fields.texts("streams")
        if names is None:
            raise fields.wrong("streams", "a list of streams")
        names = list(dict.fromkeys(names))
        streams = {name: self._streams.stream(name, "read") for name in names}
        given = fields.inner("after", None)
        after = {} if given is None else {name: given.number(name, -1) for name in names}
        wait_ms = fields.number("wait_ms", 0)
        self._link.begin(Heads(self._link, request, streams, after, wait_ms, self._head))

    def _head(self, stream: Stream) -> dict[str, Any]:
        ended = stream.ends.at(stream.boundary)
        return {
            "history": self._session.broker.streams.history.hex(),
            "sequence": stream.boundary,
            "shards": stream.policy.shards,
            "live": stream.live,
            "number": stream.number,
            "floor": ended.floor,
            "purged": ended.purged,
        }


OPERATIONS: dict[str, Callable[[Requests, int, Fields, memoryview], None]] = {
    "declare": Requests._declare,
    "delete": Requests._delete,
    "info": Requests._info,
    "list": Requests._list,
    "truncate": Requests._truncate,
    "purge": Requests._purge,
    "put": Requests._put,
    "partition": Requests._partition,
    "partitions": Requests._partitions,
    "unpartition": Requests._unpartition,
    "commit": Requests._commit,
    "producer": Requests._producer,
    "forget": Requests._forget,
    "get": Requests._get,
    "snapshot": Requests._snapshot,
    "read": Requests._read,
    "close": Requests._close,
    "cut": Requests._cut,
    "lag": Requests._lag,
    "diff": Requests._diff,
    "follow": Requests._follow,
    "pins": Requests._pins,
    "release": Requests._release,
    "renew": Requests._renew,
    "mark": Requests._mark,
    "marks": Requests._marks,
    "register": Requests._register,
    "unregister": Requests._unregister,
    "reset": Requests._reset,
    "safe": Requests._safe,
    "heads": Requests._heads,
    "members": Requests._members,
}


def _described(stream: Stream) -> dict[str, Any]:
    stream.caught_up()
    return {**asdict(stream.stream()), "arguments": stream.spec.arguments}


def _properties(part: Fields) -> bytes:
    """AMQP properties of a message that is published: persistent, with these headers."""
    headers = part.table("headers") or None
    try:
        return encode_properties(Properties(headers=headers, delivery_mode=PERSISTENT_MODE))
    except (ValueError, TypeError) as problem:
        raise SyntaxFault(reason=f"these headers cannot be sent: {problem!s:.100}") from None


def _move(fields: Fields, stream: str, history: bytes | None) -> Move:
    """A mark that is to move; `of` is how many shards its reader was told of."""
    if "shard" in fields and "of" not in fields:
        raise SyntaxFault(
            reason="a mark that moves in one 'shard' must say 'of' how many: those that the snapshot or subscription "
            "that was read had (its answer has 'shards'). The stream may have grown since"
        )
    return Move(
        stream,
        fields.text("consumer"),
        fields.number("sequence"),
        fields.number("shard", None),
        history,
        fields.number("snapshot_end", 0),
        fields.number("of", None, least=1),
    )


def _at(fields: Fields, name: str = "at") -> At:
    """Which state of the stream: the newest, the one at a sequence or position, or the one at a time."""
    if isinstance(fields.raw(name), dict):
        place = fields.inner(name)
        return f"time:{place.number('ms')}" if "ms" in place else _position(place)
    return fields.number(name, None)


def _position(place: Fields) -> Position:
    return Position(place.history(), place.number("sequence"))


def _place(fields: Fields, name: str) -> int | Position:
    """A sequence, or `{history, sequence}`, which is refused when it is not on our branch."""
    if isinstance(fields.raw(name), dict):
        return _position(fields.inner(name))
    return fields.number(name)


def _after(fields: Fields) -> int | Position:
    """Where a snapshot begins: behind a position on a history, or at the beginning."""
    after = fields.inner("after", None)
    return 0 if after is None else _position(after)


def _offset(fields: Fields) -> Offset:
    match fields.raw("from"):
        case None:
            return "next"
        case "first" | "last" | "next" as word:
            return word  # type: ignore[no-any-return]
        case str():
            raise fields.wrong("from", "first, last, next or an object")
    start = fields.inner("from")
    if "mark" in start:
        return FromMark(start.text("mark"))
    if "ms" in start:
        return AtTime(start.number("ms"))
    return _position(start)


def _shards(fields: Fields, count: int) -> tuple[int, ...] | None:
    """Shards of a stream, or of a snapshot of it, that has so many."""
    shards = fields.numbers("shards")
    if shards is None:
        return None
    if not shards or max(shards) >= count:
        raise fields.wrong("shards", f"shards of this stream, which are 0 to {count - 1}")
    return tuple(sorted(set(shards)))


def told(mark: Mark) -> dict[str, Any]:
    """A mark as it stands in an answer."""
    found: dict[str, Any] = {
        "consumer": mark.consumer,
        "history": mark.history.hex(),
        "sequence": mark.seq,
        "snapshot_end": mark.snapshot_end,
        "lease_until_ms": mark.until_ms if mark.lease_ms else None,
        "expired": mark.expired,
    }
    if mark.shards > 1:
        found["shards"] = [point.seq for point in mark.points]
    return found
