"""The compiled frames give the same answers and the same errors as the plain ones, about any bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.model import records
from tidemark.speed import PURE
from tidemark.store import _frames_py as plain
from tidemark.store import frames as chosen

compiled = pytest.importorskip("tidemark.store._frames_c")

PLACE = 7 << 36 | 4096


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError:
        return "ValueError"


names = st.binary(max_size=6)


@st.composite
def record_rows(draw: st.DrawFn) -> bytes:
    """Some records with rising sequences."""
    seq, data = draw(st.integers(1, 1000)), b""
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(
            st.sampled_from(["message", "message", "settled", "ranges", "counted", "takeover", "catalog"])
        )
        if kind == "message":
            numbers = st.integers(0, 5) | st.sampled_from([0x7FFFFEFF, 0x7FFFFF00, 0x7FFFFFFF, 1 << 31])
            targets = tuple(draw(st.lists(numbers, min_size=1, max_size=4)))
            record = records.encode_message(
                seq,
                targets,
                5,
                None,
                0,
                True,
                draw(names),
                draw(names),
                draw(names),
                draw(st.binary(max_size=40)),
            )
            flags = record[5] | draw(st.sampled_from([0, records.TOMBSTONE]))
            data += record[:5] + bytes([flags]) + record[6:]
            seq += len(targets)
            continue
        numbers = draw(st.lists(st.integers(1, 2000), max_size=5))
        if kind == "settled":
            data += records.encode_settled(seq, 5, 3, 0, struct.pack(f"<{len(numbers)}Q", *numbers), False)
        elif kind == "ranges":
            pairs = [value for number in numbers for value in (number, 3)]
            data += records.encode_settled(seq, 5, 3, 0, struct.pack(f"<{len(pairs)}Q", *pairs), True)
        elif kind == "counted":
            data += records.encode_counted(seq, 5, 2, [(number, 1) for number in numbers])
        elif kind == "takeover":
            data += records.encode_takeover(seq, 5, bytes(16))
        else:
            data += records.encode_catalog(seq, 5, draw(names))
        seq += 1
    return data


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Frames in a chain, perhaps with a byte changed and the end cut off."""
    data, previous = bytearray(), 99
    for rows in draw(st.lists(record_rows(), max_size=5)):
        frame = bytearray(64) + rows
        flags = plain.END if not rows and draw(st.booleans()) else 0
        previous, _ = plain.seal(
            memoryview(frame),
            PLACE + len(data),
            5,
            draw(st.integers(0, 1 << 40)),
            previous,
            flags,
            plain.Survey(),
        )
        data += frame
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    data += draw(st.binary(max_size=80))
    return bytes(data[: len(data) - draw(st.sampled_from([0, 0, 1, 8, 64]))])


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
@example(b"123456789", 0)
def test_the_checksum_is_the_same_by_instruction_by_table_and_in_python(data: bytes, crc: int) -> None:
    assert compiled.crc32c(data, crc) == compiled.crc32c_by_table(data, crc) == plain.crc32c(data, crc)


@pytest.mark.parametrize("size", [767, 768, 769, 1536, 12287, 12288, 12296, 30000, 70000])
@pytest.mark.parametrize("start", [0, 3])
def test_the_checksum_of_many_bytes_is_the_same_however_they_are_divided(size: int, start: int) -> None:
    data = random.Random(size).randbytes(size + start)[start:]
    assert compiled.crc32c(data, 5) == compiled.crc32c_by_table(data, 5) == plain.crc32c(data, 5)
    assert compiled.crc32c(data[size // 3 :], compiled.crc32c(data[: size // 3], 5)) == plain.crc32c(data, 5)


def test_the_checksum_is_castagnolis() -> None:
    assert compiled.crc32c(b"123456789") == 0xE3069283


@given(record_rows(), st.binary(max_size=64), st.integers(0, 3))
def test_records_are_walked_surveyed_and_sealed_alike(rows: bytes, tail: bytes, cut: int) -> None:
    data = rows + tail if cut == 0 else rows[: len(rows) - 8 * cut]
    assert answer(compiled.walk, data, 0, len(data)) == answer(plain.walk, data, 0, len(data))

    ours, theirs = plain.Survey(), plain.Survey()
    assert answer(compiled.survey, data, 0, len(data), ours) == answer(
        plain.survey, data, 0, len(data), theirs
    )
    assert ours == theirs

    one, two = bytearray(64) + data, bytearray(64) + data
    arguments = (PLACE, 12345, 678, 9, 0)
    sealed = answer(compiled.seal, memoryview(one), *arguments, ours)
    assert sealed == answer(plain.seal, memoryview(two), *arguments, theirs)
    assert (one, ours) == (two, theirs)


@settings(max_examples=300)
@given(segments(), st.booleans())
def test_scans_agree_on_every_frame_and_on_why_they_stopped(data: bytes, chained: bool) -> None:
    assert compiled.scan(data, PLACE, 99, chained) == plain.scan(data, PLACE, 99, chained)


@given(segments(), st.integers(0, 200))
def test_the_same_frame_is_found_behind_damage(data: bytes, start: int) -> None:
    start -= start % 8
    assert compiled.find(data, start, PLACE) == plain.find(data, start, PLACE)


@given(record_rows(), st.sets(st.integers(1, 1020)), st.booleans(), st.booleans(), st.booleans())
def test_compaction_keeps_the_same_records(
    rows: bytes, held: set[int], ends: bool, any_live: bool, tombstones: bool
) -> None:
    results = []
    for twin in (compiled, plain):
        frame, moves, asked = bytearray(b"before.."), [(9, 9, 9)], []

        def holds(queue: int, seq: int, asked: list[Any] = asked) -> bool:
            asked.append((queue, seq))
            return seq in held

        def keeps_end(kind: int, seq: int, record: bytes, asked: list[Any] = asked) -> bool:
            asked.append((kind, seq, record))
            return ends

        def keeps_tombstone(target: int, seq: int, asked: list[Any] = asked) -> bool:
            asked.append((target, seq, "tombstone"))
            return tombstones and target % 2 == 1

        asks = (holds if any_live else None, keeps_end, keeps_tombstone)
        outcome = answer(twin.sift, rows, 0, len(rows), *asks, frame, moves)
        results.append((outcome, frame, moves, asked))
    assert results[0] == results[1]


@pytest.mark.skipif(PURE, reason="this run chose the plain ones")
def test_the_product_runs_the_compiled_ones() -> None:
    for name in ("crc32c", "find", "scan", "seal", "sift", "survey", "walk"):
        assert getattr(chosen, name) is getattr(compiled, name)
