"""The properties of a message, as they stand in its content header.

    +-------+- - - -+----------------------------------------+
    | flags | flags | the values whose flag is set, in order |
    +-------+- - - -+----------------------------------------+

Flag bit 15 is the first property, bit 2 the last; bit 0 says that another word of flags follows,
in which nothing is defined. Messages travel and rest with these bytes as they came: they are
decoded only where a feature looks at them (headers exchange, dead lettering, the admin API).

Invariant: what the scanner lets through decodes here without error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidemark.errors import SyntaxFault
from tidemark.wire.amqp091.tables import Table, decode_table, encode_table


@dataclass(slots=True)
class Properties:
    """Every property of the basic class; None is absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


PERSISTENT_MODE: Final = 2
NO_PROPERTIES: Final = b"\x00\x00"
CONTINUED: Final = 1
"""Flag bit: one more word of flags follows."""
UNKNOWN: Final = 2
"""The one flag bit of the first word that no property has."""

_WORD = struct.Struct(">H")
_LONG_LONG = struct.Struct(">Q")


def read_flags(raw: bytes | memoryview) -> tuple[int, int]:
    """The first word of flags, and the position of the first value.

    Raises:
        SyntaxFault: truncated, or a flag that no property has.
    """
    if len(raw) < 2:
        raise SyntaxFault(reason="a content header ends before its property flags")
    (flags,) = _WORD.unpack_from(raw)
    if flags & UNKNOWN:
        raise SyntaxFault(reason=f"property flags {flags:#06x} name a property that does not exist")
    position, word = 2, flags
    while word & CONTINUED:
        if len(raw) < position + 2:
            raise SyntaxFault(reason="a content header ends before its property flags")
        (word,) = _WORD.unpack_from(raw, position)
        if word & ~CONTINUED:
            raise SyntaxFault(reason=f"property flags {word:#06x} name a property that does not exist")
        position += 2
    return flags, position


def decode_properties(raw: bytes | memoryview) -> Properties:
    """Properties from their flags on, as a row of a `PublishRun` holds them.

    Raises:
        SyntaxFault: truncated, followed by other bytes, or a flag that no property has.
    """
    flags, position = read_flags(raw)
    properties = Properties()
    bit = 15
    for name, read, _ in _FIELDS:
        if flags >> bit & 1:
            value, position = read(raw, position, name)
            setattr(properties, name, value)
        bit -= 1
    if position != len(raw):
        raise SyntaxFault(reason=f"{len(raw) - position} bytes follow the last property")
    return properties


def encode_properties(properties: Properties) -> bytes:
    """The raw form, flags first.

    Raises:
        ValueError: a value that its property cannot hold.
    """
    flags, bit = 0, 15
    parts = [b""]
    for name, _, write in _FIELDS:
        value = getattr(properties, name)
        if value is not None:
            flags |= 1 << bit
            try:
                parts.append(write(value))
            except (struct.error, OverflowError, ValueError) as error:
                raise ValueError(f"property {name} cannot be {value!r:.60}: {error}") from None
        bit -= 1
    parts[0] = _WORD.pack(flags)
    return b"".join(parts)


# One reader and one writer for each of the four kinds of property ------------------------------


def _read_text(raw: bytes | memoryview, position: int, name: str) -> tuple[str, int]:
    start = position + 1
    if start > len(raw):
        raise _truncated(name)
    end = start + raw[position]
    if end > len(raw):
        raise _truncated(name)
    return str(raw[start:end], "utf-8", "surrogateescape"), end


def _write_text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    return bytes([len(encoded)]) + encoded


def _read_octet(raw: bytes | memoryview, position: int, name: str) -> tuple[int, int]:
    if position >= len(raw):
        raise _truncated(name)
    return raw[position], position + 1


def _write_octet(value: int) -> bytes:
    return bytes([value])


def _read_time(raw: bytes | memoryview, position: int, name: str) -> tuple[int, int]:
    if len(raw) - position < 8:
        raise _truncated(name)
    return _LONG_LONG.unpack_from(raw, position)[0], position + 8


def _read_headers(raw: bytes | memoryview, position: int, _name: str) -> tuple[Table, int]:
    return decode_table(raw, position)


def _truncated(name: str) -> SyntaxFault:
    return SyntaxFault(reason=f"a content header ends in the middle of property {name}")


_Read = Callable[[bytes | memoryview, int, str], tuple[Any, int]]
_Write = Callable[[Any], bytes]
_TEXT: tuple[_Read, _Write] = (_read_text, _write_text)
_OCTET: tuple[_Read, _Write] = (_read_octet, _write_octet)

_FIELDS: tuple[tuple[str, _Read, _Write], ...] = (
    ("content_type", *_TEXT),
    ("content_encoding", *_TEXT),
    ("headers", _read_headers, encode_table),
    ("delivery_mode", *_OCTET),
    ("priority", *_OCTET),
    ("correlation_id", *_TEXT),
    ("reply_to", *_TEXT),
    ("expiration", *_TEXT),
    ("message_id", *_TEXT),
    ("timestamp", _read_time, _LONG_LONG.pack),
    ("type", *_TEXT),
    ("user_id", *_TEXT),
    ("app_id", *_TEXT),
    ("cluster_id", *_TEXT),
)
