"""What can be asked of a broker, each as a value: what to send, how to read the answer, whether to send it twice.

The blocking and the asyncio client differ in how they wait and in nothing else: both take their `Call`s from here.
A call that is `repeatable` does no harm when it is sent again after a broken connection; of one that is not, the
client says `Unconfirmed` instead.

Invariant: a call is a plain value; it can be sent over any connection, any number of times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tidemark.client.rows import Writes, arrow_payload, is_arrow, properties_of, rows_of
from tidemark.client.values import (
    Bytes,
    Cut,
    Head,
    KeyRule,
    Lag,
    Layout,
    Mark,
    Marker,
    MemberInfo,
    Partition,
    PinInfo,
    Receipt,
    Row,
    Safety,
    StreamInfo,
    octets,
)
from tidemark.errors import NotFound, SyntaxFault
from tidemark.wire.stream.frames import Buffer
from tidemark.wire.stream.rows import decode_rows, encode_rows

T = TypeVar("T")
Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    header: Header
    parse: Callable[[Header, memoryview], T]
    payload: Sequence[Buffer] = ()
    repeatable: bool = True
    takes_away: bool = False
    """When it was sent again and there is nothing to take away, the first time did."""
    reads: bool = False
    """A member that does not lead can do it, too."""

    @property
    def name(self) -> str:
        """For messages: the operation and what it is about."""
        about = self.header.get("stream") or self.header.get("producer")
        return f"{self.header['op']} of {about!r}" if about else str(self.header["op"])

    @property
    def streams(self) -> set[str]:
        """All that it names."""
        named = {self.header.get("stream"), *self.header.get("streams", ())}
        for one in self.header.get("operations", ()):
            named |= {one.get("put"), one.get("mark"), one.get("into")}
        return {name for name in named if name}

    def answer(self, header: Header, payload: memoryview) -> T:
        """What the answer means.

        Raises:
            SyntaxFault: it does not hold what this version of the client needs.
        """
        try:
            return self.parse(header, payload)
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"the broker's answer to {self.name} cannot be understood: {problem!r}; is it another version?"
            raise SyntaxFault(reason=reason) from None


def on_branch(header: Header, history: str) -> Header:
    """A header whose positions all say of which history they are: where the caller did not, of the current one."""
    found = dict(header)
    if "history" in found and found["history"] is None:
        found["history"] = history
    for name in ("after", "from"):
        place = found.get(name)
        if isinstance(place, dict) and "history" in place and place["history"] is None:
            found[name] = {**place, "history": history}
    return found


class Seeing(Protocol):
    def header(self) -> Header | None: ...


def after_seen(header: Header, seen: Seeing) -> Header:
    """A header that says what the client has seen. What shows a moment that is past needs not wait for that."""
    told = None if "snapshot" in header or header["op"] in ("close", "members") else seen.header()
    return header if told is None else {**header, "seen": told}


def _nothing(_header: Header, _payload: memoryview) -> None:
    return None


# Streams ----------------------------------------------------------------------------------------


def stream_arguments(
    key: KeyRule | None = None,
    shards: int | None = None,
    max_age: str | None = None,
    max_bytes: int | None = None,
    tombstone_lease: float | None = None,
    history: float | None = None,
    pin_bytes_max: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Header:
    """The queue arguments that say the same; times in seconds, None leaves the broker's default."""
    found: Header = {
        "x-stream-key": "none" if key == "explicit" else key,
        "x-stream-shards": shards,
        "x-max-age": max_age,
        "x-max-length-bytes": max_bytes,
        "x-stream-tombstone-lease": _ms(tombstone_lease),
        "x-stream-history": _ms(history),
        "x-stream-pin-bytes-max": pin_bytes_max,
    }
    return {name: value for name, value in found.items() if value is not None} | dict(arguments or {})


def declare(stream: str, arguments: Header) -> Call[StreamInfo]:
    return Call({"op": "declare", "stream": stream, "arguments": arguments}, _info)


def delete_stream(stream: str) -> Call[None]:
    return Call({"op": "delete", "stream": stream}, _nothing, takes_away=True)


def forget_stream(stream: str, number: int) -> Call[None]:
    """Of a stream that lives in another group, forget the name, if it is still this one's; 0: whosever it is."""
    header: Header = {"op": "delete", "stream": stream, "stand_in": True, "number": number}
    return Call(header, _nothing, takes_away=True)


def info(stream: str) -> Call[StreamInfo]:
    return Call({"op": "info", "stream": stream}, _info, reads=True)


def list_streams() -> Call[list[StreamInfo]]:
    return Call(
        {"op": "list"}, lambda header, _: [_stream_info(one) for one in header["streams"]], reads=True
    )


def declared(stream: str, group: str, whole: str | None = None) -> Call[Header]:
    """What main says that a stream of another group is declared with; `whole` is the name that it is a partition of.

    Raises NotFound: main does not say that it lives there.
    """
    header: Header = {"op": "list"}
    if whole is not None:
        header = {"op": "partitions", "stream": whole, "partial": True}

    def parse(header: Header, _payload: memoryview) -> Header:
        for one in header["streams" if whole is None else "partitions"]:
            if (one["name" if whole is None else "stream"], one.get("group")) == (stream, group):
                return dict(one.get("arguments") or {})
        raise NotFound(reason=f"no stream {stream!r} in group {group!r}")

    return Call(header, parse)


def _info(header: Header, _payload: memoryview) -> StreamInfo:
    return _stream_info(header)


def _stream_info(facts: Header) -> StreamInfo:
    return StreamInfo(
        name=facts["name"],
        key=facts.get("key") or "none",
        shards=facts.get("shards", 1),
        live=facts.get("live", 0),
        tombstones=facts.get("tombstones", 0),
        last_sequence=facts.get("last_seq", 0),
        facts=facts,
        floor=facts.get("floor", 0),
        purged=facts.get("purged", 0),
        group=facts.get("group") or "",
    )


def placed(info: StreamInfo, group: str) -> StreamInfo:
    """A stream that was described on a connection to this group; one that lives elsewhere has said so itself."""
    return info if info.group else replace(info, group=group, facts={**info.facts, "group": group})


def partition(name: str, count: int, groups: Sequence[str] | None, arguments: Header) -> Call[Layout]:
    header: Header = {"op": "partition", "stream": name, "count": count, "arguments": arguments}
    return Call(header | ({} if groups is None else {"groups": list(groups)}), _layout)


def partitions(name: str, *, partial: bool = False) -> Call[Layout]:
    header: Header = {"op": "partitions", "stream": name}
    return Call(header | ({"partial": True} if partial else {}), _layout, reads=True)


def unpartition(name: str) -> Call[None]:
    return Call({"op": "unpartition", "stream": name}, _nothing, takes_away=True)


def _layout(header: Header, _payload: memoryview) -> Layout:
    found = tuple(
        Partition(one["stream"], one["group"], one.get("arguments") or {}, one.get("number", 0))
        for one in header["partitions"]
    )
    return Layout(header["name"], header["key"], found)


def members() -> Call[list[MemberInfo]]:
    return Call({"op": "members"}, _members, reads=True)


def _members(header: Header, _payload: memoryview) -> list[MemberInfo]:
    leader = header.get("leader")
    return [
        MemberInfo(one["name"], one["state"], one["role"], one.get("address") or "", one["name"] == leader)
        for one in header["members"]
    ]


def truncate(stream: str, upto: int | Header | None) -> Call[int]:
    return Call({"op": "truncate", "stream": stream, "upto": upto}, lambda header, _: int(header["ended"]))


def purge(stream: str) -> Call[int]:
    return Call({"op": "purge", "stream": stream}, lambda header, _: int(header["ended"]))


def heads(
    streams: Sequence[str], after: Mapping[str, int] | None, wait: float | None
) -> Call[dict[str, Head]]:
    header: Header = {"op": "heads", "streams": list(streams)}
    if after:
        header["after"] = dict(after)
    if wait:
        header["wait_ms"] = _ms(wait)
    return Call(header, _heads, reads=True)


def _heads(header: Header, _payload: memoryview) -> dict[str, Head]:
    return {
        name: Head(
            one["history"],
            one["sequence"],
            one.get("shards", 1),
            one.get("live", 0),
            one.get("number", 0),
            one.get("floor", 0),
            one.get("purged", 0),
        )
        for name, one in header["streams"].items()
    }


# Writing ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Numbered:
    """The number that makes a write known to the broker when it comes again."""

    producer: str
    number: int


def next_number(last: int, chosen: int | None) -> int:
    """The number of a producer's next write: the caller's own, or one more than the last.

    Raises:
        ValueError: numbers start at 1.
    """
    if chosen is not None and chosen < 1:
        raise ValueError("numbers of a producer start at 1")
    return last + 1 if chosen is None else chosen


def put(stream: str, rows: Writes | Any, numbered: Numbered | None = None) -> Call[Receipt]:
    """Rows of one stream: collected in `Writes`, or an Arrow table or record batch."""
    fields, payload = _encoded(rows)
    return _write({"op": "put", "stream": stream, **fields}, payload, numbered)


def _write(header: Header, payload: Sequence[Buffer], numbered: Numbered | None) -> Call[Receipt]:
    if numbered is not None:
        header |= {"producer": numbered.producer, "sequence": numbered.number}
    return Call(header, _receipt, payload, repeatable=numbered is not None)


def _encoded(rows: Writes | Any) -> tuple[Header, Sequence[Buffer]]:
    if isinstance(rows, Writes):
        return encode_rows(rows.batch())
    return arrow_payload(rows)


def writes(rows: Any) -> Writes | Any:
    """What `put` takes, from whatever a caller has: Arrow as it is, anything else row by row."""
    if isinstance(rows, Writes) or is_arrow(rows):
        return rows
    collected = Writes()
    collected.put_all(rows)
    return collected


def one_put(
    key: Bytes | None, value: Bytes, headers: Mapping[str, Any] | None, expected: int | None
) -> Writes:
    """What `put` takes, for a single row."""
    collected = Writes()
    collected.put(key, value, headers, expected)
    return collected


def one_delete(key: Bytes, expected: int | None) -> Writes:
    """What `put` takes, for the end of a single key."""
    collected = Writes()
    collected.delete(key, None, expected)
    return collected


def _receipt(header: Header, _payload: memoryview) -> Receipt:
    taken = sum(header.get("taken", ()))
    return Receipt(header["history"], header["last"], bool(header.get("duplicate")), header["first"], taken)


class Named(Protocol):
    """A stream, by its handle."""

    @property
    def name(self) -> str: ...


def stream_name(stream: str | Named) -> str:
    return stream if isinstance(stream, str) else stream.name


class Changes:
    """What a transaction is to do: it is only collected here, and sent as one batch at its end."""

    def __init__(self) -> None:
        self._operations = Operations()

    def put(
        self,
        stream: str | Named,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> None:
        """Put a row; with `expected` only if the key's newest sequence is this one (0: it has no value)."""
        self._operations.rows(stream_name(stream)).put(key, value, headers, expected)

    def put_many(self, stream: str | Named, rows: Any) -> None:
        """Put rows: (key, value) pairs, where the value None deletes the key, or an Arrow table."""
        if is_arrow(rows):
            self._operations.put_arrow(stream_name(stream), rows)
        else:
            self._operations.rows(stream_name(stream)).put_all(rows)

    def delete(self, stream: str | Named, key: Bytes, *, expected: int | None = None) -> None:
        """Delete a key; readers see a tombstone."""
        self._operations.rows(stream_name(stream)).delete(key, None, expected)

    def publish(
        self, exchange: str, key: str, body: Bytes, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Publish a message to an exchange, for the queues and streams that are bound to it."""
        self._operations.publish(exchange, key, body, headers)

    def publish_many(self, exchange: str, messages: Iterable[Sequence[Any]]) -> None:
        """Publish messages to an exchange: (routing key, body) or (routing key, body, headers)."""
        self._operations.publish_many(exchange, messages)

    def mark(
        self,
        stream: str | Named,
        consumer: str,
        sequence: int,
        *,
        shard: int | None = None,
        of: int | None = None,
    ) -> None:
        """Move a consumer's mark, so that what it made of a stream and how far it came are stored together.

        `shard` is one `of` as many as the snapshot or subscription had that was read.
        """
        self._operations.mark(stream_name(stream), consumer, sequence, shard, of)

    def copy(
        self, source: str | Named, first: int, last: int, *, into: str | Named, history: str | None = None
    ) -> None:
        """Copy rows of another stream, by their sequences, as they are: key, value, headers, deleted or not.

        Every sequence from `first` to `last` must be a row of `source` that is there, as after one put: its receipt
        has both. What many writers have staged so becomes visible at once, and what is not named never does. With
        the receipt's `history`, rows that a takeover took back are refused, too.
        """
        self._operations.copy(stream_name(source), first, last, stream_name(into), history)

    def take(self, queue: str, *, into: str | Named, limit: int) -> None:
        """Move up to `limit` ready messages of an AMQP queue into a stream: they end there and are rows here.

        The body is the value and properties are kept. The key is what the stream's rule says, as if the message was
        published to it; a stream with the key `log` keeps the routing key. The receipt's `taken` says how many.
        """
        self._operations.take(queue, stream_name(into), limit)

    def __len__(self) -> int:
        return len(self._operations)


class Operations:
    """The operations of a transaction, in order; neighbours of one stream are one put."""

    def __init__(self) -> None:
        self._operations: list[tuple[Header, Writes | Any | Sequence[Buffer]]] = []

    def __len__(self) -> int:
        return len(self._operations)

    def rows(self, stream: str) -> Writes:
        """Where puts and deletes of this stream are to be added now."""
        if self._operations:
            header, rows = self._operations[-1]
            if header.get("put") == stream and isinstance(rows, Writes):
                return rows
        added = Writes()
        self._operations.append(({"put": stream}, added))
        return added

    def put_arrow(self, stream: str, rows: Any) -> None:
        self._operations.append(({"put": stream}, rows))

    def publish(self, exchange: str, key: str, body: Bytes, headers: Mapping[str, Any] | None) -> None:
        header: Header = {"publish": exchange, "key": key}
        if headers:
            properties_of(headers)  # what AMQP cannot carry is refused here, not when the transaction is sent
            header["headers"] = dict(headers)
        self._operations.append((header, [octets(body)]))

    def publish_many(self, exchange: str, messages: Iterable[Sequence[Any]]) -> None:
        rows = Writes()
        rows.publish_all(messages)
        if len(rows):
            self._operations.append(({"publish": exchange}, rows))

    def mark(
        self, stream: str, consumer: str, sequence: int, shard: int | None, of: int | None = None
    ) -> None:
        header: Header = {"mark": stream, "consumer": consumer, "sequence": sequence}
        if shard is not None:
            header |= {"shard": shard, "of": _of(shard, of)}
        self._operations.append((header, []))

    def copy(self, source: str, first: int, last: int, into: str, history: str | None = None) -> None:
        if not 0 < first <= last:
            raise ValueError(f"{first} to {last} is no range of rows; a receipt has the first and the last")
        if self._operations:
            header, _ = self._operations[-1]
            if header.get("copy") == source and header["into"] == into and header["history"] == history:
                header["ranges"].append([first, last])
                return
        operation: Header = {"copy": source, "into": into, "history": history, "ranges": [[first, last]]}
        self._operations.append((operation, []))

    def take(self, queue: str, into: str, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"{limit} messages cannot be taken; at least 1")
        self._operations.append(({"take": queue, "into": into, "limit": limit}, []))

    def commit(self, numbered: Numbered | None = None) -> Call[Receipt]:
        operations: list[Header] = []
        payload: list[Buffer] = []
        for header, content in self._operations:
            if "put" in header or isinstance(content, Writes):
                fields, parts = _encoded(content)
                header = {**header, **fields}
            else:
                assert isinstance(content, list)
                parts = content
            if "put" in header or "publish" in header:
                header = {**header, "length": sum(len(part) for part in parts)}
            operations.append(header)
            payload += parts
        return _write({"op": "commit", "operations": operations}, payload, numbered)


def renumbered(call: Call[Receipt], numbered: Numbered) -> Call[Receipt]:
    """The same write under a producer's number."""
    return _write(dict(call.header), call.payload, numbered)


def producer(name: str) -> Call[int]:
    """The last number of a producer that is stored; 0 when it is new."""
    return Call({"op": "producer", "producer": name}, lambda header, _: int(header["last"]))


def forget_producer(name: str) -> Call[None]:
    return Call({"op": "forget", "producer": name}, _nothing)


def safe(receipt: Receipt, replicas: int, disks: int, wait: float) -> Call[Safety]:
    header: Header = {"op": "safe", "history": receipt.history, "sequence": receipt.sequence}
    header |= {"replicas": replicas, "disks": disks, "wait_ms": _ms(wait)}
    return Call(header, lambda header, _: header["safe"], reads=True)


# Reading ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """An open snapshot, as the broker describes it."""

    id: int | str
    history: str
    sequence: int
    after: int
    live: int
    tombstones: int
    complete_from: int
    shards: int = 1
    floor: int = 0
    purged: int = 0


def get(stream: str, key: Bytes) -> Call[Row | None]:
    return Call({"op": "get", "stream": stream}, _row, [octets(key)], reads=True)


def _row(header: Header, payload: memoryview) -> Row | None:
    if not header.get("found", True):
        return None
    [row] = rows_of(decode_rows(header, payload))
    return row


def snapshot(
    stream: str,
    *,
    after: int = 0,
    history: str | None = None,
    at: int | Header | None = None,
    pin: str | None = None,
    lease: float | None = None,
) -> Call[View]:
    header: Header = {"op": "snapshot", "stream": stream}
    if after:
        header["after"] = {"history": history, "sequence": after}
    if at is not None:
        header["at"] = at
    if pin is not None:
        header["pin"] = pin
    if lease is not None:
        header["lease_ms"] = _ms(lease)
    return Call(header, _view, reads=pin is None)


def _view(header: Header, _payload: memoryview) -> View:
    return View(
        id=header["snapshot"],
        history=header["history"],
        sequence=header["to"],
        after=header.get("after") or 0,
        live=header.get("live", 0),
        tombstones=header.get("tombstones", 0),
        complete_from=header.get("complete_from", 0),
        shards=header.get("shards", 1),
        floor=header.get("floor", 0),
        purged=header.get("purged", 0),
    )


def close_snapshot(id_: int | str) -> Call[None]:
    return Call({"op": "close", "snapshot": id_}, _nothing)


CUT = struct.Struct("<3q")


def cut(
    view: View,
    stream: str,
    pin: str | None,
    *,
    after: int = 0,
    until: int | None = None,
    shards: Sequence[int] | None = None,
    rows: int | None = None,
    bytes: int | None = None,
    parts: int | None = None,
    limit: int = 10_000,
) -> Call[list[Cut]]:
    header: Header = {"op": "cut"} | (
        {"snapshot": view.id} if pin is None else {"stream": stream, "pin": pin}
    )
    header |= {"after": after, "until": until, "shards": None if shards is None else list(shards)}
    header |= {"rows": rows, "bytes": bytes, "parts": parts, "limit": limit}
    return Call(header, _cuts, reads=True)


def _cuts(header: Header, payload: memoryview) -> list[Cut]:
    if len(payload) != CUT.size * header["pieces"]:
        raise ValueError(f"{len(payload)} bytes for {header['pieces']} pieces")
    return [Cut._make(piece) for piece in CUT.iter_unpack(payload)]


def lag(stream: str, after: int | Header | None, shards: Sequence[int] | None) -> Call[Lag]:
    header: Header = {"op": "lag", "stream": stream, "after": after}
    if shards is not None:
        header["shards"] = list(shards)
    return Call(header, lambda header, _: Lag(header["rows"], header["bytes"]), reads=True)


def pins(stream: str) -> Call[list[PinInfo]]:
    return Call(
        {"op": "pins", "stream": stream},
        lambda header, _: [
            PinInfo(
                one["pin"],
                one["sequence"],
                one["lease_until_ms"],
                one.get("bytes", 0),
                one.get("shards", 1),
                one.get("floor", 0),
                one.get("purged", 0),
            )
            for one in header["pins"]
        ],
        reads=True,
    )


def pinned(stream: str, pin: str) -> Call[View]:
    """The snapshot that a pin holds, found in the list of pins: nothing is renewed by looking."""

    def parse(header: Header, _payload: memoryview) -> View:
        for one in header["pins"]:
            if one["pin"] == pin:
                return View(
                    0, one.get("history", ""), one["sequence"], 0, 0, 0, 0, one.get("shards", 1),
                    one.get("floor", 0), one.get("purged", 0),
                )  # fmt: skip
        raise NotFound(reason=f"stream {stream!r} has no pin {pin!r}; make it with pin()")

    return Call({"op": "pins", "stream": stream}, parse, reads=True)


def release(stream: str, pin: str) -> Call[None]:
    return Call({"op": "release", "stream": stream, "pin": pin}, _nothing, takes_away=True)


def renew(stream: str, pin: str, lease: float) -> Call[None]:
    return Call({"op": "renew", "stream": stream, "pin": pin, "lease_ms": _ms(lease)}, _nothing)


# Marks ------------------------------------------------------------------------------------------


def register(stream: str, consumer: str, lease: float | None, passing: bool = False) -> Call[None]:
    header: Header = {"op": "register", "stream": stream, "consumer": consumer}
    if passing:
        header["passing"] = True
    if lease is not None:
        header["lease_ms"] = _ms(lease)
    return Call(header, _nothing)


def unregister(stream: str, consumer: str) -> Call[None]:
    return Call({"op": "unregister", "stream": stream, "consumer": consumer}, _nothing)


def move_mark(
    stream: str,
    consumer: str,
    sequence: int,
    history: str | None = None,
    shard: int | None = None,
    snapshot_end: int | None = None,
    of: int | None = None,
) -> Call[None]:
    header: Header = {"op": "mark", "stream": stream, "consumer": consumer, "sequence": sequence}
    header["history"] = history
    if shard is not None:
        header |= {"shard": shard, "of": _of(shard, of)}
    if snapshot_end is not None:
        header["snapshot_end"] = snapshot_end
    return Call(header, _nothing)


def _of(shard: int, of: int | None) -> int:
    """Raises ValueError: nobody knows of how many."""
    if of is None:
        raise ValueError(
            f"say of how many shards {shard} is one: of=snapshot.shards, or what the stream had when you began to "
            "read it; it may have grown since"
        )
    return of


def move_shards(
    stream: str,
    consumer: str,
    sequence: int,
    history: str,
    shards: Sequence[int],
    of: int | None,
    snapshot_end: int | None,
) -> Call[None]:
    """Move the mark of a consumer in some shards, of so many, all at once."""
    move: Header = {"mark": stream, "consumer": consumer, "sequence": sequence, "history": history}
    move |= {"of": of, "snapshot_end": snapshot_end}
    return Call({"op": "commit", "operations": [{**move, "shard": shard} for shard in shards]}, _nothing)


def reset_mark(stream: str, consumer: str, sequence: int) -> Call[None]:
    return Call({"op": "reset", "stream": stream, "consumer": consumer, "sequence": sequence}, _nothing)


def mark(stream: str, consumer: str) -> Call[Mark | None]:
    every = marks(stream, consumer)
    return Call(
        every.header,
        lambda header, payload: next(
            (one for one in every.parse(header, payload) if one.consumer == consumer), None
        ),
    )


def marks(stream: str, consumer: str | None = None) -> Call[list[Mark]]:
    header: Header = {"op": "marks", "stream": stream}
    if consumer is not None:
        header["consumer"] = consumer
    return Call(
        header,
        lambda header, _: [
            Mark(
                consumer=one["consumer"],
                history=one["history"],
                sequence=one["sequence"],
                snapshot_end=one.get("snapshot_end"),
                lease_until_ms=one.get("lease_until_ms"),
                expired=bool(one.get("expired")),
                shards=tuple(one.get("shards") or ()),
            )
            for one in header["marks"]
        ],
    )


def marker_of(facts: Header) -> Marker:
    """A marker as it stands in a header."""
    return Marker(
        facts["history"],
        facts["from"],
        facts["to"],
        facts["count"],
        facts.get("tombstones", 0),
        facts.get("hash"),
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))
