"""How a front names, in the headers of a message, the queues that it has found for it (`broker/listed.py` reads them).

The entries are put behind those that the message has, without decoding them (`wire/amqp091/publishes.py`). Entries of these
names that a client has sent mean nothing and are taken out first.

Invariant: whatever a client sends, what the broker reads in these headers was written here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tidemark.model.turns import Turn
from tidemark.model.wiring import EXCHANGE_HEADER, KEY_HEADER, LIFE_HEADER, TO_HEADER, TURN_HEADER
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.tables import Table

OURS = (TO_HEADER, EXCHANGE_HEADER, KEY_HEADER, LIFE_HEADER, TURN_HEADER)

_CONTENT = Amqp091Content()
_SIZE = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_MARK = b"x-tidemark-"


def parted(queues: Sequence[str], bytes_max: int) -> Iterator[Sequence[str]]:
    """The queues in as few stretches as have names of at most so many bytes each."""
    first, size = 0, 0
    for at, queue in enumerate(queues):
        size += 5 + len(queue.encode("utf-8", "surrogateescape"))
        if size > bytes_max and at > first:
            yield queues[first:at]
            first, size = at, 5 + len(queue.encode("utf-8", "surrogateescape"))
    yield queues[first:]


def entries(queues: Sequence[str], exchange: bytes, key: bytes) -> bytes:
    """The entries that send a message to these queues, and show it as published there."""
    names = b"".join(_text(queue.encode("utf-8", "surrogateescape")) for queue in queues)
    return b"".join(
        (
            _name(TO_HEADER),
            b"A",
            _SIZE.pack(len(names)),
            names,
            _name(EXCHANGE_HEADER),
            _text(exchange),
            _name(KEY_HEADER),
            _text(key),
        )
    )


def life_entry(incarnation: int) -> bytes:
    """The entry that lets only the queue take the message that is in this life."""
    return _name(LIFE_HEADER) + b"l" + _NUMBER.pack(incarnation)


def turn_entry(group: str, queue: str, turn: Turn, link: int) -> bytes:
    """The entry that says where a message waited, and in which turn it was taken there."""
    words = (word.encode("utf-8", "surrogateescape") for word in (group, queue, turn.of))
    numbers = (b"l" + _NUMBER.pack(number) for number in (turn.reign, turn.count, link))
    values = b"".join((*map(_text, words), *numbers))
    return b"".join((_name(TURN_HEADER), b"A", _SIZE.pack(len(values)), values))


def are_in(properties: bytes) -> bool:
    """Whether a client may have sent entries of these names."""
    return _MARK in properties


def without_entries(properties: bytes) -> tuple[bytes, Table]:
    """The properties as the client sent them, and what the entries said."""
    headers = _CONTENT.headers(properties)
    said = {name: headers.pop(name) for name in OURS if name in headers}
    return (_CONTENT.with_headers(properties, headers) if said else properties), said


def _name(name: str) -> bytes:
    raw = name.encode()
    return bytes([len(raw)]) + raw


def _text(raw: bytes) -> bytes:
    """A value: text, or bytes if it is none."""
    try:
        raw.decode()
        kind = b"S"
    except UnicodeDecodeError:
        kind = b"x"
    return kind + _SIZE.pack(len(raw)) + raw
