from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.errors import SyntaxFault
from tidemark.model.values import (
    Decimal,
    Float32,
    Int8,
    Int16,
    Int64,
    RawString,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from tidemark.wire.amqp091.tables import DEPTH_MAX, decode_entries, decode_table, encode_table


def is_not_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    half = 1 << (bits - 1)
    return st.integers(-half, half - 1) if signed else st.integers(0, 2 * half - 1)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    integers(64, signed=True),
    integers(8, signed=True).map(Int8),
    integers(8, signed=False).map(UInt8),
    integers(16, signed=True).map(Int16),
    integers(16, signed=False).map(UInt16),
    integers(32, signed=False).map(UInt32),
    integers(32, signed=True).map(Int64),
    integers(64, signed=False).map(Timestamp),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.builds(Decimal, integers(8, signed=False), integers(32, signed=False)),
    st.text(),
    st.binary(),
    st.binary(min_size=1).filter(is_not_utf8).map(RawString),
)
NAMES = st.text(max_size=60)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
)


def with_types(value: Any) -> Any:
    """The value with the type of every part, since Int8(1) == 1 == True."""
    if isinstance(value, dict):
        return {name: with_types(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_types(each) for each in value]
    return type(value), value


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_a_table_comes_back_with_the_same_values_of_the_same_types(table: dict[str, Any]) -> None:
    raw = encode_table(table)
    decoded, end = decode_table(raw)
    assert with_types(decoded) == with_types(table)
    assert end == len(raw)


@given(st.binary(max_size=60))
@example(b"\x00\x00\x00\x02\x01a")
@example(b"\x00\x00\x00\x01")
def test_any_bytes_are_a_table_or_a_syntax_fault(raw: bytes) -> None:
    try:
        table, _ = decode_table(raw)
    except SyntaxFault:
        return
    again = encode_table(table)
    assert encode_table(decode_table(again)[0]) == again


@pytest.mark.parametrize(
    ("letter", "raw", "value"),
    [
        ("t", "01", True),
        ("b", "ff", Int8(-1)),
        ("B", "ff", UInt8(255)),
        ("s", "ffff", Int16(-1)),
        ("U", "ffff", Int16(-1)),
        ("u", "ffff", UInt16(65535)),
        ("I", "ffffffff", -1),
        ("i", "ffffffff", UInt32(4294967295)),
        ("l", "0000000000000005", Int64(5)),
        ("L", "ffffffffffffffff", Int64(-1)),
        ("l", "0000000100000000", 1 << 32),
        ("f", "3f000000", Float32(0.5)),
        ("d", "3fe0000000000000", 0.5),
        ("D", "020000013a", Decimal(2, 314)),
        ("T", "ffffffffffffffff", Timestamp(2**64 - 1)),
        ("S", "00000002c3a9", "é"),
        ("S", "00000001ff", RawString(b"\xff")),
        ("x", "0000000161", b"a"),
        ("A", "0000000474017401", [True, True]),
        ("F", "00000003016b56", {"k": None}),
        ("V", "", None),
    ],
)
def test_each_type_letter_is_read_as_rabbitmq_writes_it(letter: str, raw: str, value: Any) -> None:
    table = decode_entries(b"\x01k" + letter.encode() + bytes.fromhex(raw))
    assert with_types(table) == {"k": with_types(value)}


@pytest.mark.parametrize(
    ("value", "letter"),
    [
        (True, b"t"),
        (1, b"I"),
        (-(1 << 31), b"I"),
        (1 << 31, b"l"),
        (0.5, b"d"),
        ("a", b"S"),
        (b"a", b"x"),
        ([], b"A"),
        ((), b"A"),
        ({}, b"F"),
        (None, b"V"),
        (math.nan, b"d"),
    ],
)
def test_a_plain_value_is_written_with_the_letter_that_clients_expect(value: Any, letter: bytes) -> None:
    assert encode_table({"k": value})[6:7] == letter


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"n": v}], ids=["arrays", "tables"])
def test_nesting_is_taken_up_to_the_limit_and_refused_beyond_it(wrap: Any) -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX - 1):
        value = wrap(value)
    assert decode_table(encode_table({"n": value}))[0] == {"n": value}

    with pytest.raises(SyntaxFault, match="nested"):
        decode_table(encode_table({"n": wrap(value)}))


def test_a_table_made_of_nothing_but_nesting_does_not_exhaust_the_stack() -> None:
    raw = b""
    for _ in range(20_000):
        raw = b"\x00F" + len(raw).to_bytes(4, "big") + raw
    with pytest.raises(SyntaxFault, match="nested"):
        decode_entries(raw)


def test_a_length_beyond_the_end_is_refused_wherever_it_stands() -> None:
    for raw in (b"\x05k", b"\x01kS\x00\x00\x00\x05a", b"\x01kF\xff\xff\xff\xff", b"\x01kI\x00"):
        with pytest.raises(SyntaxFault, match="middle of a field"):
            decode_entries(raw)


def test_an_unknown_type_letter_is_refused_by_name() -> None:
    with pytest.raises(SyntaxFault, match="b'q'"):
        decode_entries(b"\x01kq")


@pytest.mark.parametrize(
    "table", [{"k": 1 << 63}, {"k": UInt8(256)}, {"k" * 256: 1}, {"k": object()}, {"k": Decimal(0, -1)}]
)
def test_what_no_type_holds_is_not_written(table: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"holds it|over 255|cannot hold"):
        encode_table(table)
