"""Deliveries of streams, compiled and not: the same bytes, and what a client reads from them."""

from __future__ import annotations

import struct
from random import Random
from types import ModuleType
from typing import Any

import pytest
from fuzz.wire_streams import some_properties
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.model import _arena_py, _runs_py, keys
from tidemark.model.records import KEYED, TOMBSTONE, encode_message
from tidemark.wire.amqp091 import _deliveries_py
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties

compiled = pytest.importorskip("tidemark.wire.amqp091._deliveries_c")
_arena_c = pytest.importorskip("tidemark.model._arena_c")
_runs_c = pytest.importorskip("tidemark.model._runs_c")

HISTORY = bytes(range(16))
DICE = st.integers(0, 2**32).map(Random)


class Side:
    """One implementation of everything, with a stream of its own in it."""

    def __init__(self, deliveries: ModuleType, arena: ModuleType, runs: ModuleType, kind: int) -> None:
        self.arena = arena.Arena()
        self.writer = arena.Writer(self.arena, 1)
        self.taken = runs.Taken(0)
        self.key_kind, self.key_name = kind, b"id"
        self._encode = deliveries.encode_stream_deliveries

    def add(self, record: bytes, seq: int, size: int, tombstone: bool) -> None:
        loc = self.writer.append(record)
        self.taken.add(0, seq, loc, size, 4 if tombstone else 0, 0)

    def key_at(self, loc: int) -> bytes | None:
        return keys.key_of(self.arena.record(loc), self.key_kind, self.key_name)

    def encoded(self, frame_max: int) -> bytes:
        found: bytes = self._encode(self.arena, self, self.taken, 7, b"tag", 100, frame_max, HISTORY)
        return found


def both(kind: int) -> list[Side]:
    return [
        Side(_deliveries_py, _arena_py, _runs_py, kind),
        Side(compiled, _arena_c, _runs_c, kind),
    ]


def some_headers(dice: Random) -> dict[str, Any]:
    names = ["id", "a", "x-stream-offset", "x-stream-", "x-tombstone", "x-tombston", "x-stream", "é"]
    values: list[Any] = [True, 1, 1 << 40, 1.5, "text", b"\xff", None, [1, {"x-stream-key": 2}], {"n": 3}]
    return {dice.choice(names): dice.choice(values) for _ in range(dice.randrange(5))}


@settings(max_examples=200, deadline=None)
@given(DICE)
def test_both_encode_the_deliveries_of_a_stream_alike(dice: Random) -> None:
    sides = both(dice.choice((keys.NO_KEY, keys.ROUTING_KEY, keys.MESSAGE_ID, keys.HEADER)))
    for number in range(dice.randrange(6)):
        body = dice.randbytes(dice.choice((0, 1, 100, 300)))
        properties = some_properties(dice)
        if dice.random() < 0.6:
            made = Properties(
                headers=some_headers(dice), content_type="t", message_id=dice.choice((None, "m"))
            )
            properties = encode_properties(made)
        keyed = dice.choice((b"", b"key", b"\xff\xfe", b"k" * 100))
        tombstone = dice.random() < 0.3
        record = encode_message(
            number,
            (1, 2),
            1000,
            None,
            0,
            True,
            b"exchange",
            b"routing",
            properties,
            body,
            keyed,
            (KEYED if keyed else 0) | (TOMBSTONE if tombstone else 0),
        )
        for side in sides:
            side.add(record, number * 3, len(body), tombstone)
    frame_max = dice.choice((0, 128, 256, 131072))
    assert sides[0].encoded(frame_max) == sides[1].encoded(frame_max)


@pytest.mark.parametrize("side", [0, 1], ids=["python", "compiled"])
def test_a_client_reads_the_place_of_a_message_beside_its_own_headers(side: int) -> None:
    stream = both(keys.ROUTING_KEY)[side]
    own = {"mine": [1, None], "x-stream-offset": 9, "x-tombstone": True}
    properties = encode_properties(Properties(content_type="text/plain", headers=own, priority=3))
    record = encode_message(5, (1,), 0, None, 3, True, b"", b"k", properties, b"")
    stream.add(record, 5, 0, True)
    data = stream.encoded(0)

    _, _, size = struct.unpack_from(">BHI", data)
    header = data[8 + size :]
    _, _, size = struct.unpack_from(">BHI", header)
    read = decode_properties(header[7 + 12 : 7 + size])
    assert (read.content_type, read.priority) == ("text/plain", 3)
    assert read.headers == {
        "x-stream-offset": 5,
        "x-stream-history": HISTORY.hex(),
        "x-stream-key": "k",
        "x-tombstone": True,
        "mine": [1, None],
    }


@pytest.mark.parametrize("side", [0, 1], ids=["python", "compiled"])
@pytest.mark.parametrize("own", [{}, {"x-stream-offset": 9}], ids=["fast", "slow"])
def test_a_key_that_does_not_fit_into_the_header_frame_is_left_out(side: int, own: dict[str, Any]) -> None:
    properties = encode_properties(Properties(headers=own))
    sizes = {}
    for length in (200, 65_535):
        stream = both(keys.NO_KEY)[side]
        stream.add(
            encode_message(5, (1,), 0, None, 0, True, b"", b"", properties, b"body", b"k" * length, KEYED),
            5,
            4,
            False,
        )
        data = stream.encoded(4096)
        _, _, size = struct.unpack_from(">BHI", data)
        header = data[8 + size :]
        _, _, size = struct.unpack_from(">BHI", header)
        assert size + 8 <= 4096
        read = decode_properties(header[7 + 12 : 7 + size])
        assert read.headers is not None and read.headers["x-stream-offset"] == 5
        sizes[length] = len(read.headers.get("x-stream-key", ""))
    assert sizes == {200: 200, 65_535: 0}
