"""What a front and main's leader say on a link of kind WIRING. Little-endian.

    0        4      5
    +--------+------+-------------------------------------------+
    | length | kind | body                                      |      length counts what follows it
    +--------+------+-------------------------------------------+

    leader ─ Greeting ─► front      who it is, its epoch, the groups of the cluster with their modes
           ─ Change … ─►            all the wiring, one thing each, as the catalog writes it
           ─ Whole ─►               that was all; what follows is news
           ─ Change … ─►            every change, in the order in which it is made
           ◄─ Echo(n) ─             "what do I not know yet?"
           ─ … Echo(n) ─►           nothing: all before this is all that there was when you asked
           ─ Waiting(v, q) ─►       messages wait in this queue of that virtual host for a front to move them on
           ─ Elsewhere ─►           in place of a greeting, by a member that does not lead: who does

The leader of another group than main says the same, but has no wiring: only Waiting follows its Whole.

Either side says Ping when it has said nothing for a while. Names and texts are as in `codec.py`.

Invariant: what a decoder holds is never more than one frame, and never more of it than has arrived.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from tidemark.errors import PeerFault
from tidemark.model.peers import Name
from tidemark.wire.peer.codec import COUNT, Buffer, Fields, name

HEAD: Final = struct.Struct("<IB")
NUMBER: Final = struct.Struct("<Q")
CHANGE_BYTES_MAX: Final = 64 << 20
"""Arguments and definitions have no limit but that of the requests that they came in."""
OTHER_BYTES_MAX: Final = 1 << 20
GROUPS_MAX: Final = 1024


class Kind(IntEnum):
    GREETING = 1
    CHANGE = 2
    WHOLE = 3
    ECHO = 4
    PING = 5
    ELSEWHERE = 6
    WAITING = 7


KINDS: Final = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Greeting:
    member: Name
    epoch: int
    groups: dict[str, str] = field(default_factory=dict)
    """All groups of the cluster, main too, with their modes."""


@dataclass(slots=True)
class Change:
    raw: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    pass


@dataclass(frozen=True, slots=True)
class Echo:
    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Elsewhere:
    leader: Name
    """Empty: nobody leads now."""
    address: str = ""
    """Where it listens for members and fronts, HOST:PORT; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class Waiting:
    vhost: str
    queue: str


Message: TypeAlias = Greeting | Change | Whole | Echo | Ping | Elsewhere | Waiting


def encode(message: Message) -> bytes:
    """One message as a frame. Raises ValueError: a name in it cannot be told."""
    match message:
        case Change(raw):
            return encode_change(raw)
        case Greeting(member, epoch, groups):
            pairs = [name(group) + name(mode) for group, mode in groups.items()]
            return _frame(Kind.GREETING, name(member), NUMBER.pack(epoch), COUNT.pack(len(pairs)), *pairs)
        case Whole():
            return _frame(Kind.WHOLE)
        case Echo(number):
            return _frame(Kind.ECHO, NUMBER.pack(number))
        case Ping():
            return _frame(Kind.PING)
        case Elsewhere(leader, address):
            return _frame(Kind.ELSEWHERE, name(leader), name(address))
        case Waiting(vhost, queue):
            return _frame(Kind.WAITING, _any_name(vhost), _any_name(queue))


def encode_change(raw: bytes) -> bytes:
    """The same, without a value in between: there are many of them."""
    return HEAD.pack(1 + len(raw), Kind.CHANGE) + raw


def _any_name(text: str) -> bytes:
    """A name that clients have given: at most 255 bytes, of any kind. Raises ValueError: it is longer, or no text."""
    raw = text.encode("utf-8", "surrogateescape")
    return bytes([len(raw)]) + raw


def _frame(kind: Kind, *body: bytes) -> bytes:
    inside = b"".join(body)
    return HEAD.pack(1 + len(inside), kind) + inside


class Decoder:
    """The reading side of one link, from behind the handshake on."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: Buffer) -> list[Message]:
        """What is whole now.

        Raises:
            PeerFault: bytes that nobody sends here. Nothing after them can be read.
        """
        found: list[Message] = []
        self._partial += data
        view, at = memoryview(self._partial), 0
        try:
            while len(view) - at >= HEAD.size:
                length, kind = HEAD.unpack_from(view, at)
                most = CHANGE_BYTES_MAX if kind == Kind.CHANGE else OTHER_BYTES_MAX
                if kind not in KINDS or not 1 <= length <= most:
                    raise PeerFault(reason=f"a frame of kind {kind} with {length} bytes is not about wiring")
                end = at + 4 + length
                if end > len(view):
                    break
                found.append(_message(kind, view[at + HEAD.size : end]))
                at = end
        finally:
            view.release()
        del self._partial[:at]
        return found


def _message(kind: int, body: memoryview) -> Message:
    if kind == Kind.CHANGE:
        return Change(bytes(body))
    fields = Fields(body)
    message: Message
    if kind == Kind.GREETING:
        member, [epoch] = fields.name(), NUMBER.unpack(fields.take(NUMBER.size))
        groups = {fields.name(): fields.name() for _ in range(fields.count(GROUPS_MAX))}
        message = Greeting(member, epoch, groups)
    elif kind == Kind.ECHO:
        message = Echo(*NUMBER.unpack(fields.take(NUMBER.size)))
    elif kind == Kind.ELSEWHERE:
        message = Elsewhere(fields.name(), fields.name())
    elif kind == Kind.WAITING:
        vhost, queue = (bytes(fields.take(fields.byte())) for _ in range(2))
        message = Waiting(vhost.decode("utf-8", "surrogateescape"), queue.decode("utf-8", "surrogateescape"))
    else:
        message = Whole() if kind == Kind.WHOLE else Ping()
    fields.finish()
    return message
