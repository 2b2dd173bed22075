"""The key of a message in a stream, its slot, and the hashes that stand for keys and rows.

A stream's *rule* (kind and name) says where the key of a message is: nowhere, the routing key, the message-id
or a header. A record can say it itself (KEYED, KEYLESS), which goes before the rule. A message without what
the rule asks for has no key: it is its own, and nothing buries it.

A header counts as a key when it is a string or bytes (as they are), an integer (as decimal text) or a boolean
(`true`, `false`). Properties are read as they came from a stranger: what does not hold together has no key.

The *slot* of a key is the upper half of its CRC-32C; shards are ranges of slots.

Invariant: the same record has the same key, slot and digest for ever and on every node.
"""

from __future__ import annotations

import struct

from tidemark.model import records

NO_KEY = 0
ROUTING_KEY = 1
MESSAGE_ID = 2
HEADER = 3
LOG = 4
"""Nowhere either; a key that a record says itself is kept with it, and buries nothing."""

DIGEST_KEY = b"tidemark-marker."
DIGEST_MASK = (1 << 128) - 1

Buffer = bytes | bytearray | memoryview

_INTEGERS = {
    "b": "b",
    "B": "B",
    "s": "h",
    "U": "h",
    "u": "H",
    "I": "i",
    "i": "I",
    "l": "q",
    "L": "q",
    "T": "Q",
}
"""Letters of the field table that are integers, as `struct` spells them."""
_FIXED = {"t": 1, "f": 4, "d": 8, "D": 5, "V": 0} | {k: struct.calcsize(v) for k, v in _INTEGERS.items()}
_LONG = "SxFA"
"""Letters whose value is a length and as many bytes."""

_TABLE = [0] * 256
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE[_byte] = _crc


def _crc32c(data: Buffer) -> int:
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def slot_of(key: Buffer) -> int:
    """Where a key stands among 65,536 slots."""
    return _crc32c(key) >> 16


def slot_of_seq(seq: int) -> int:
    """The slot of a message without a key."""
    return _crc32c(seq.to_bytes(8, "little")) >> 16


# Hashes ----------------------------------------------------------------------------------


def _siphash(key: bytes, data: bytes, compress: int, finish: int) -> bytes:
    mask = 0xFFFFFFFFFFFFFFFF
    k0, k1 = struct.unpack("<QQ", key)
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0 = (v0 + v1) & mask
            v1 = (v1 << 13 | v1 >> 51) & mask ^ v0
            v0 = (v0 << 32 | v0 >> 32) & mask
            v2 = (v2 + v3) & mask
            v3 = (v3 << 16 | v3 >> 48) & mask ^ v2
            v0 = (v0 + v3) & mask
            v3 = (v3 << 21 | v3 >> 43) & mask ^ v0
            v2 = (v2 + v1) & mask
            v1 = (v1 << 17 | v1 >> 47) & mask ^ v2
            v2 = (v2 << 32 | v2 >> 32) & mask

    whole = len(data) & ~7
    last = (len(data) & 0xFF) << 56 | int.from_bytes(data[whole:], "little")
    for word in (*struct.unpack_from(f"<{whole // 8}Q", data), last):
        v3 ^= word
        rounds(compress)
        v0 ^= word
    v2 ^= 0xEE
    rounds(finish)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    rounds(finish)
    return struct.pack("<QQ", first, v0 ^ v1 ^ v2 ^ v3)


def sip128(secret: bytes, data: Buffer) -> bytes:
    """SipHash-2-4 with 128 bits of result; `secret` has 16 bytes."""
    return _siphash(secret, bytes(data), 2, 4)


def row_digest(seq: int, tombstone: bool, key: Buffer | None, body: Buffer) -> int:
    """What a row adds to the hash of a snapshot: SipHash-1-3 of 128 bits over all that it says."""
    flags = tombstone | (2 if key is None else 0)
    name = b"" if key is None else bytes(key)
    data = struct.pack("<QBI", seq, flags, len(name)) + name + bytes(body)
    return int.from_bytes(_siphash(DIGEST_KEY, data, 1, 3), "little")


# Keys of records ---------------------------------------------------------------------------


def key_of(record: Buffer, kind: int, name: bytes) -> bytes | None:
    """The key of a MESSAGE record under a stream's rule; None: it has none."""
    flags = record[5]
    head = records.HEAD.unpack_from(record)
    count, exchange_len, key_len, keyed_len = head[3], *head[8:11]
    at = records.HEAD_BYTES + 4 * count + exchange_len
    if flags & records.KEYLESS:
        return None
    if flags & records.KEYED:
        return bytes(record[at + key_len : at + key_len + keyed_len])
    if kind == ROUTING_KEY:
        return bytes(record[at : at + key_len])
    if kind == MESSAGE_ID:
        return _message_id(_properties(record))
    if kind == HEADER:
        found = _header(_properties(record), name)
        return None if found is None else _text(*found)
    return None


def says_tombstone(record: Buffer) -> bool:
    """An empty body and TOMBSTONE, or the header `x-tombstone` true."""
    if records.HEAD.unpack_from(record)[7]:
        return False
    if record[5] & records.TOMBSTONE:
        return True
    found = _header(_properties(record), b"x-tombstone")
    return found is not None and found[0] == "t" and found[1] != b"\0"


def _properties(record: Buffer) -> bytes:
    head = records.HEAD.unpack_from(record)
    at = records.HEAD_BYTES + 4 * head[3] + sum(head[8:11])
    return bytes(record[at : at + head[11]])


def _values(properties: bytes) -> tuple[int, int]:
    """The first word of flags and where the values begin; (0, 0) if that does not hold together."""
    at = 0
    while True:
        if len(properties) < at + 2:
            return 0, 0
        word = int.from_bytes(properties[at : at + 2], "big")
        at += 2
        if not word & 1:
            return int.from_bytes(properties[:2], "big"), at


def _skip_text(data: bytes, at: int) -> int:
    """Behind the short string at `at`; past the end if it is cut off."""
    return at + 1 + data[at] if at < len(data) else at + 1


def _message_id(properties: bytes) -> bytes | None:
    flags, at = _values(properties)
    if not flags & 1 << 7:
        return None
    for bit in range(15, 7, -1):
        if flags & 1 << bit:
            if bit in (12, 11):  # delivery-mode, priority
                at += 1
            elif bit == 13:  # headers
                at += 4 + int.from_bytes(properties[at : at + 4], "big")
            else:
                at = _skip_text(properties, at)
    end = _skip_text(properties, at)
    return properties[at + 1 : end] if end <= len(properties) else None


def _header(properties: bytes, name: bytes) -> tuple[str, bytes] | None:
    """Letter and bytes of the value of a header."""
    flags, at = _values(properties)
    if not flags & 1 << 13:
        return None
    for bit in (15, 14):
        if flags & 1 << bit:
            at = _skip_text(properties, at)
    end = at + 4 + int.from_bytes(properties[at : at + 4], "big")
    at += 4
    if end > len(properties):
        return None
    while at < end:
        start, at = at + 1, _skip_text(properties, at)
        if at >= end:
            return None
        found = properties[start:at] == name
        letter = chr(properties[at])
        at += 1
        if letter in _LONG:
            size = int.from_bytes(properties[at : at + 4], "big") if at + 4 <= end else 1 << 32
            at += 4
        elif letter in _FIXED:
            size = _FIXED[letter]
        else:
            return None
        if at + size > end:
            return None
        if found:
            return letter, properties[at : at + size]
        at += size
    return None


def _text(letter: str, value: bytes) -> bytes | None:
    if letter in "Sx":
        return value
    if letter == "t":
        return b"true" if value != b"\0" else b"false"
    if letter in _INTEGERS:
        return b"%d" % struct.unpack(">" + _INTEGERS[letter], value)[0]
    return None
