"""The compiled scanner and its reference give the same answers about any bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fuzz.wire_streams import (
    FRAME_MAX,
    publish,
    scan,
    some_cuts,
    some_properties,
    some_stream,
    spoiled,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.errors import SyntaxFault
from tidemark.speed import PURE
from tidemark.wire.amqp091 import _scanner_py, scanner
from tidemark.wire.amqp091.properties import Properties, encode_properties
from tidemark.wire.amqp091.tables import DEPTH_MAX

compiled = pytest.importorskip("tidemark.wire.amqp091._scanner_c")

BODY_MAX = 20_000
DICE = st.integers(0, 2**32).map(Random)


def both(
    stream: bytes,
    cuts: list[int],
    discards: tuple[int, ...] = (),
    frame_max: int = FRAME_MAX,
    body_max: int = BODY_MAX,
    channel_max: int = 65535,
) -> tuple[Any, Any]:
    answers = [
        scan(module.Scanner(frame_max, body_max, channel_max), stream, cuts, discards)
        for module in (compiled, _scanner_py)
    ]
    return answers[0], answers[1]


def test_the_product_runs_the_compiled_scanner() -> None:
    module = _scanner_py if PURE else compiled
    assert scanner.Scanner is module.Scanner


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=5))
@example(b"", [])
@example(b"\x08\x00\x00\x00\x00\x00\x00\xce" * 3, [9])
def test_the_scanners_agree_about_any_bytes(stream: bytes, cuts: list[int]) -> None:
    ours, theirs = both(stream, cuts)
    assert ours == theirs


@settings(max_examples=300)
@given(DICE)
def test_the_scanners_agree_about_good_streams_cut_anywhere(dice: Random) -> None:
    stream = some_stream(dice)
    ours, theirs = both(stream, some_cuts(dice, len(stream)), body_max=dice.choice([50, BODY_MAX]))
    assert ours == theirs


@settings(max_examples=300)
@given(DICE)
def test_the_scanners_agree_about_spoiled_streams_limits_and_discards(dice: Random) -> None:
    stream = spoiled(dice, some_stream(dice, length=6))
    cuts = some_cuts(dice, len(stream))
    ours, theirs = both(
        stream,
        cuts,
        discards=tuple(dice.choice([0, 1, 2, 3]) for _ in cuts),
        frame_max=dice.choice([0, 64, FRAME_MAX]),
        body_max=dice.choice([0, 50, BODY_MAX]),
        channel_max=dice.choice([0, 2, 65535]),
    )
    assert ours == theirs


def test_a_stream_that_is_fed_byte_by_byte_is_understood_alike() -> None:
    stream = publish(1, body=b"x" * 9000) + publish(2, body=b"") + publish(1, body=b"z")
    ours, theirs = both(stream, [1] * len(stream))
    assert ours == theirs
    assert sum(len(events) for events, *_ in ours) == 3


@pytest.mark.parametrize("depth", [DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1])
@pytest.mark.parametrize("kind", [list, dict])
def test_the_scanners_agree_how_deep_headers_may_be_nested(depth: int, kind: type) -> None:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value] if kind is list else {"n": value}
    raw = encode_properties(Properties(headers={"n": value}))
    ours, theirs = inspected(compiled, raw), inspected(_scanner_py, raw)
    assert ours == theirs
    assert isinstance(ours, str) == (depth > DEPTH_MAX)


@given(st.one_of(st.binary(max_size=60), DICE.map(lambda d: spoiled(d, some_properties(d)))))
@example(b"")
@example(b"\x00")
@example(b"\x00\x02")
@example(b"\x00\x01\x00\x01\x00\x00")
@example(b"\x20\x00\xff\xff\xff\xff")
def test_the_scanners_agree_about_any_properties(raw: bytes) -> None:
    assert inspected(compiled, raw) == inspected(_scanner_py, raw)


@given(st.dictionaries(st.text("BCc", max_size=4), st.none() | st.just({"CC": 1}), max_size=3))
@example({"CC": None})
@example({"Cc": None})
@example({"BCC": None})
def test_the_scanners_agree_which_headers_ask_for_copies(headers: dict[str, Any]) -> None:
    raw = encode_properties(Properties(headers=headers))
    assert inspected(compiled, raw) == inspected(_scanner_py, raw)


def inspected(module: Any, raw: bytes) -> Any:
    try:
        return module.inspect_properties(raw)
    except SyntaxFault as error:
        return str(error)
