"""The compiled writer of publishes and its reference give the same bytes, and the scanner reads back what they were."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fuzz.wire_streams import message, some_properties
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.model import _runs_c, _runs_py
from tidemark.model.runs import FLAGS, HAS_HEADERS
from tidemark.speed import PURE
from tidemark.wire.amqp091 import _publishes_py, _scanner_c, _scanner_py, publishes
from tidemark.wire.amqp091.frames import encode_content
from tidemark.wire.amqp091.properties import decode_properties
from tidemark.wire.amqp091.tables import encode_table

compiled = pytest.importorskip("tidemark.wire.amqp091._publishes_c")

DICE = st.integers(0, 2**32).map(Random)
ENTRIES = encode_table({"x-tidemark-to": ["a", "b"], "x-tidemark-key": "k"})[4:]


def some_publishes(dice: Random) -> bytes:
    out = []
    for _ in range(dice.randrange(1, 12)):
        exchange, key = dice.choice([b"", b"e"]), dice.choice([b"a", b"a", b"b", b""])
        body = b"x" * dice.choice([0, 1, 50, 300])
        properties = some_properties(dice)
        out.append(
            _publishes_py.publish_frame(1, exchange, key, dice.randrange(4))
            + encode_content(1, properties, body, 0)
        )
    return b"".join(out)


def run_of(scanner: Any, data: bytes) -> Any:
    [run], used = scanner.Scanner(0, 1 << 20).feed(data)
    assert used == len(data)
    return run


def test_the_product_runs_the_compiled_writer() -> None:
    assert publishes.encode_publishes is (_publishes_py if PURE else compiled).encode_publishes


@settings(max_examples=300)
@given(DICE)
def test_the_writers_agree(dice: Random) -> None:
    data = some_publishes(dice)
    ours, theirs = run_of(_scanner_c, data), run_of(_scanner_py, data)
    assert isinstance(ours, _runs_c.PublishRun)
    assert isinstance(theirs, _runs_py.PublishRun)
    first = dice.randrange(len(ours))
    last = dice.randrange(first, len(ours)) + 1
    head = dice.choice([b"", _publishes_py.publish_frame(1, b"", b"", 0)])
    entries, frame_max = dice.choice([b"", ENTRIES]), dice.choice([0, 128, 4096])
    written = compiled.encode_publishes(ours, first, last, head, entries, frame_max)
    assert written == _publishes_py.encode_publishes(theirs, first, last, head, entries, frame_max)
    mask = dice.choice([0, HAS_HEADERS])
    assert compiled.stretch(ours, first, mask) == _publishes_py.stretch(theirs, first, mask)
    assert [compiled.encode_publishes(ours, 0, len(ours), b"", b"", 0)] == [data]


@settings(max_examples=100)
@given(DICE)
def test_entries_stand_behind_the_headers_and_change_nothing_else(dice: Random) -> None:
    before = run_of(_scanner_c, some_publishes(dice))
    after = run_of(_scanner_c, compiled.encode_publishes(before, 0, len(before), b"", ENTRIES, 0))
    for row in range(len(before)):
        was, now = message(before, row), message(after, row)
        old, new = decode_properties(was[2]), decode_properties(now[2])
        headers = new.headers or {}
        assert headers.pop("x-tidemark-to") == ["a", "b"]
        assert headers.pop("x-tidemark-key") == "k"
        new.headers = headers if old.headers is not None or headers else None
        assert (was[:2], was[3], old) == (now[:2], now[3], new)
        assert after.number(row, FLAGS) & HAS_HEADERS
