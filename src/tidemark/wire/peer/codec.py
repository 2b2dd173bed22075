"""Frames between members: one message, or one unit of a log. Little-endian.

    0        4      5      8         16
    +--------+------+------+---------+----------------------------------------+
    | length | kind | zero | epoch   | body                                   |
    +--------+------+------+---------+----------------------------------------+

`length` counts what follows it. A kind with its highest bit set is advice: whoever does not know it passes it over, so that a newer
member can say it to an older one. Any other kind that is not known ends the link, for behind a gap nothing may be acknowledged: what
carries records, acks or epochs is never advice. Every frame carries the epoch that its sender believes in; a PING has none, so it says 0.
The body of a unit is a head and the records as they lie in the store:

    16     17     20        24         32        40       48
    +------+------+---------+----------+---------+--------+-------------------+
    | log  | zero | crc-32  | previous | first   | last   | records ...       |
    +------+------+---------+----------+---------+--------+-------------------+

The checksum covers the records: what a follower writes under a checksum of its own is what the leader had. A name or text
is its length and UTF-8; a history is 16 bytes; ends are two sequences, the catalog's first.

`Decoder` takes the bytes as they come. A frame that lies whole in one read is used where it lies; one that does not
is gathered in a buffer of its own, each byte copied once.

Invariant: what a decoder holds is never more than one frame, and never more of it than has arrived.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, Literal, TypeAlias, cast

from tidemark.errors import PeerFault
from tidemark.model.peers import (
    Acked,
    Census,
    Closing,
    Compare,
    Completed,
    Ends,
    Hello,
    Log,
    Message,
    Offer,
    Outdated,
    Takeover,
    Unit,
)
from tidemark.wire.peer.checksum import checksum

Buffer: TypeAlias = bytes | bytearray | memoryview

HEAD: Final = struct.Struct("<IB3sQ")
HEAD_BYTES: Final = HEAD.size
UNIT: Final = struct.Struct("<B3sIQQQ")
UNIT_BYTES: Final = UNIT.size
SEQUENCES: Final = struct.Struct("<QQ")
TAKEOVER: Final = struct.Struct("<16sQQ")
CENSUS: Final = struct.Struct("<IQQ")
COUNT: Final = struct.Struct("<I")
REVISION: Final = struct.Struct("<Q")
"""At the end of an offer, if it says one: members that never need one need not know of it."""
ACKED: Final = struct.Struct("<IB3sQQQI")
"""The whole frame when nobody reads through the reader: with `COMPLETED`, what comes for every group of records."""
COMPLETED: Final = struct.Struct("<IB3sQQQQQ")
ZERO: Final = bytes(3)

MESSAGE_BYTES_MAX: Final = 1 << 20
UNIT_BYTES_MAX: Final = 1 << 30
"""Largest payload of a unit; a frame of the store is as large as the largest message or transaction."""
TABLE_MAX: Final = 16_384
"""The newest takeovers that are told. One that is missing can only make a reader fetch more than it needs."""
BEHIND_MAX: Final = 1024
CENSUSES_MAX: Final = 4096
NAME_BYTES_MAX: Final = 255
REASON_BYTES_MAX: Final = 4096


class Kind(IntEnum):
    HELLO = 1
    OFFER = 2
    ACKED = 3
    COMPLETED = 4
    OUTDATED = 5
    UNIT = 6
    PING = 7
    CLOSING = 8
    COMPARE = 9


KINDS: Final = frozenset(Kind)
ADVICE: Final = 0x80
"""The bit of a kind that may be passed over."""
Verdict: TypeAlias = Literal["resume", "rewind", "reset", "refuse"]
VERDICTS: Final[tuple[Verdict, ...]] = ("resume", "rewind", "reset", "refuse")

NO_FIELD: Final = "a frame ends in the middle of a field"

# Writing -----------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """One message as a frame."""
    match message:
        case Hello(member, epoch, cluster, durable, table, whole):
            rows = [
                TAKEOVER.pack(bytes.fromhex(one.history), one.first.catalog, one.first.journal)
                for one in table[:TABLE_MAX]
            ]
            facts = [bytes([whole]), name(member), name(cluster), _ends(durable)]
            return _frame(Kind.HELLO, epoch, *facts, COUNT.pack(len(rows)), *rows)
        case Offer(epoch, verdict, to, ends, reason, revision):
            kind = bytes([VERDICTS.index(verdict)])
            more = [REVISION.pack(revision)] if revision else []
            return _frame(Kind.OFFER, epoch, kind, _ends(to), _ends(ends), _text(reason), *more)
        case Acked(epoch, durable, ()):
            return ACKED.pack(ACKED.size - 4, Kind.ACKED, ZERO, epoch, durable.catalog, durable.journal, 0)
        case Acked(epoch, durable, behind):
            each = [name(member) + _ends(ends) for member, ends in behind]
            return _frame(Kind.ACKED, epoch, _ends(durable), COUNT.pack(len(each)), *each)
        case Completed(epoch, upto, floor, floor_at):
            said = upto.catalog, upto.journal, floor, floor_at
            return COMPLETED.pack(COMPLETED.size - 4, Kind.COMPLETED, ZERO, epoch, *said)
        case Outdated(epoch):
            return _frame(Kind.OUTDATED, epoch)
        case Closing(epoch, upto):
            return _frame(Kind.CLOSING, epoch, _ends(upto))
        case Compare(epoch, at, streams, first, last, censuses):
            each = [CENSUS.pack(one.number, one.count, one.digest) for one in censuses]
            facts = [_ends(at), bytes([streams]), SEQUENCES.pack(first, last), COUNT.pack(len(each))]
            return _frame(Kind.COMPARE, epoch, *facts, *each)


def encode_unit(epoch: int, unit: Unit) -> list[Buffer]:
    """A unit as the pieces to be written one behind the other; the payload is not copied."""
    payload = unit.payload
    length = HEAD_BYTES - 4 + UNIT_BYTES + len(payload)
    head = HEAD.pack(length, Kind.UNIT, ZERO, epoch)
    facts = UNIT.pack(unit.log, ZERO, checksum(payload), unit.previous, unit.first, unit.last)
    return [head + facts, payload]


def name(text: str) -> bytes:
    """A name, 255 bytes at most."""
    raw = text.encode()
    if len(raw) > NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(raw)} bytes is too long")
    return bytes([len(raw)]) + raw


def _text(text: str) -> bytes:
    """A sentence, cut if it is too long."""
    raw = text.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    return COUNT.pack(len(raw)) + raw


def _ends(ends: Ends) -> bytes:
    return SEQUENCES.pack(ends.catalog, ends.journal)


def _frame(kind: Kind, epoch: int, *body: bytes) -> bytes:
    inside = b"".join(body)
    return HEAD.pack(HEAD_BYTES - 4 + len(inside), kind, ZERO, epoch) + inside


PING: Final = _frame(Kind.PING, 0)

# Reading -----------------------------------------------------------------------------------------------------------


class Decoder:
    """The reading side of one link, from behind the handshake on."""

    __slots__ = ("_partial", "_unit_bytes_max")

    def __init__(self, unit_bytes_max: int = UNIT_BYTES_MAX) -> None:
        self._unit_bytes_max = unit_bytes_max
        self._partial = bytearray()
        """The beginning of a frame whose end has not come yet."""

    @property
    def partial_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: Buffer) -> list[Message | tuple[int, Unit]]:
        """What is whole now: messages, and units with the epoch that they were sent in. A ping and unknown advice are nothing.

        The payload of a unit lies in `data`, or in a buffer that nobody else has: use or copy it before the next read.

        Raises:
            PeerFault: bytes that no member sends. Nothing after them can be read.
        """
        found: list[Message | tuple[int, Unit]] = []
        view = memoryview(data)
        at, end = 0, len(view)
        if self._partial:
            at = self._complete(view)
            if at < 0:
                return found
            whole, self._partial = memoryview(self._partial), bytearray()
            self._read(whole, found)
        while end - at >= HEAD_BYTES:
            size = self._size(view, at)
            if end - at < size:
                break
            self._read(view[at : at + size], found)
            at += size
        if at < end:
            self._partial += view[at:end]
        return found

    def _complete(self, view: memoryview) -> int:
        """Add to the unfinished frame. Returns how much of `view` that took, or -1: all, and more is missing."""
        partial, at = self._partial, 0
        if len(partial) < HEAD_BYTES:
            at = min(HEAD_BYTES - len(partial), len(view))
            partial += view[:at]
            if len(partial) < HEAD_BYTES:
                return -1
        missing = self._size(partial, 0) - len(partial)
        partial += view[at : at + missing]
        return at + missing if len(view) - at >= missing else -1

    def _size(self, data: Buffer, at: int) -> int:
        """The bytes of the frame that starts there, its head checked before any more of it is read."""
        length, kind, zero, _ = HEAD.unpack_from(data, at)
        if zero != ZERO or not kind & ~ADVICE:
            raise PeerFault(reason=f"kind {kind} is not the beginning of a frame between members")
        if kind not in KINDS and not kind & ADVICE:
            raise PeerFault(
                reason=f"frames of kind {kind} are needed and not known here: upgrade this member"
            )
        least = HEAD_BYTES - 4 + (UNIT_BYTES if kind == Kind.UNIT else 0)
        most = HEAD_BYTES - 4 + MESSAGE_BYTES_MAX
        if kind == Kind.UNIT:
            most = least + self._unit_bytes_max
        elif kind == Kind.PING:
            most = least
        if not least <= length <= most:
            raise PeerFault(reason=f"a frame of kind {kind} cannot have {length + 4} bytes")
        return cast(int, length + 4)

    def _read(self, frame: memoryview, found: list[Message | tuple[int, Unit]]) -> None:
        _, kind, _, epoch = HEAD.unpack_from(frame)
        if kind == Kind.UNIT:
            found.append((epoch, _unit(frame)))
        elif kind == Kind.ACKED and len(frame) == ACKED.size:
            _, _, _, _, catalog, journal, count = ACKED.unpack(frame)
            if count:
                raise PeerFault(reason=NO_FIELD)
            found.append(Acked(epoch, Ends(catalog, journal)))
        elif kind == Kind.COMPLETED and len(frame) == COMPLETED.size:
            _, _, _, _, catalog, journal, floor, floor_at = COMPLETED.unpack(frame)
            found.append(Completed(epoch, Ends(catalog, journal), floor, floor_at))
        elif kind in KINDS and kind != Kind.PING:
            found.append(_message(kind, epoch, Fields(frame[HEAD_BYTES:])))


def _unit(frame: memoryview) -> Unit:
    log, zero, said, previous, first, last = UNIT.unpack_from(frame, HEAD_BYTES)
    payload = frame[HEAD_BYTES + UNIT_BYTES :]
    if log > Log.JOURNAL or zero != ZERO or not previous < first <= last or not payload:
        raise PeerFault(
            reason=f"a unit of log {log} cannot go from {first} to {last} behind {previous} with {len(payload)} bytes"
        )
    if checksum(payload) != said:
        raise PeerFault(reason=f"the checksum of the unit {first} to {last} of log {log} is wrong")
    return Unit(Log(log), previous, first, last, payload)


def _message(kind: int, epoch: int, fields: Fields) -> Message:
    message: Message
    if kind == Kind.HELLO:
        whole, member, cluster, durable = fields.flag(), fields.name(), fields.name(), fields.ends()
        table = tuple(fields.takeover() for _ in range(fields.count(TABLE_MAX)))
        message = Hello(member, epoch, cluster, durable, table, whole)
    elif kind == Kind.OFFER:
        said = fields.verdict(), fields.ends(), fields.ends(), fields.text()
        message = Offer(epoch, *said, fields.revision() if fields.left else 0)
    elif kind == Kind.ACKED:
        durable = fields.ends()
        behind = tuple((fields.name(), fields.ends()) for _ in range(fields.count(BEHIND_MAX)))
        message = Acked(epoch, durable, behind)
    elif kind == Kind.COMPLETED:
        message = Completed(epoch, fields.ends(), *fields.sequences())
    elif kind == Kind.CLOSING:
        message = Closing(epoch, fields.ends())
    elif kind == Kind.COMPARE:
        at, streams, (first, last) = fields.ends(), fields.flag(), fields.sequences()
        censuses = tuple(fields.census() for _ in range(fields.count(CENSUSES_MAX)))
        message = Compare(epoch, at, streams, first, last, censuses)
    else:
        message = Outdated(epoch)
    fields.finish()
    return message


class Fields:
    """The fields of a frame, one after the other. What is not there raises `PeerFault`."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int) -> memoryview:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise PeerFault(reason=NO_FIELD)
        return self._data[start : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def flag(self) -> bool:
        value = self.byte()
        if value > 1:
            raise PeerFault(reason=f"{value} is neither yes nor no")
        return bool(value)

    def name(self) -> str:
        return self._decoded(self.byte())

    def text(self) -> str:
        return self._decoded(self.count(REASON_BYTES_MAX))

    def count(self, most: int) -> int:
        [count] = COUNT.unpack(self.take(COUNT.size))
        if count > most:
            raise PeerFault(reason=f"{count} is over the {most} that a frame may have")
        return cast(int, count)

    @property
    def left(self) -> bool:
        """Whether there is another field."""
        return self._at < len(self._data)

    def revision(self) -> int:
        [revision] = REVISION.unpack(self.take(REVISION.size))
        return cast(int, revision)

    def ends(self) -> Ends:
        return Ends(*self.sequences())

    def sequences(self) -> tuple[int, int]:
        return cast(tuple[int, int], SEQUENCES.unpack(self.take(SEQUENCES.size)))

    def takeover(self) -> Takeover:
        history, catalog, journal = TAKEOVER.unpack(self.take(TAKEOVER.size))
        return Takeover(history.hex(), Ends(catalog, journal))

    def census(self) -> Census:
        return Census(*CENSUS.unpack(self.take(CENSUS.size)))

    def verdict(self) -> Verdict:
        number = self.byte()
        if number >= len(VERDICTS):
            raise PeerFault(reason=f"verdict {number} is unknown")
        return VERDICTS[number]

    def finish(self) -> None:
        if self._at != len(self._data):
            raise PeerFault(reason=f"{len(self._data) - self._at} bytes are left over in a frame")

    def _decoded(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise PeerFault(reason="a name or text is not UTF-8") from None
