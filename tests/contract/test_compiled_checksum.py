"""The compiled checksum of a unit is zlib's, about any bytes and wherever they lie."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.speed import PURE
from tidemark.wire.peer import _checksum_py as plain
from tidemark.wire.peer import checksum as chosen

compiled = pytest.importorskip("tidemark.wire.peer._checksum_c")


@given(st.binary(max_size=400))
@example(b"")
@example(b"123456789")
def test_the_checksum_is_the_same_by_instruction_and_by_zlib(data: bytes) -> None:
    assert compiled.checksum(data) == plain.checksum(data)


@pytest.mark.parametrize("start", [0, 1, 8, 15])
def test_every_length_about_a_fold_and_every_place_gives_what_zlib_gives(start: int) -> None:
    data = memoryview(random.Random(start).randbytes(400_000 + start))[start:]
    for size in (*range(600), 65_535, 65_536, 65_544, 399_999, 400_000):
        assert compiled.checksum(data[:size]) == zlib.crc32(data[:size]), size


def test_one_bit_that_is_wrong_is_seen_wherever_it_is() -> None:
    data = bytearray(random.Random(1).randbytes(1000))
    right = compiled.checksum(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert compiled.checksum(data) != right
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.skipif(PURE, reason="this run chose the plain one")
def test_the_product_runs_the_compiled_one() -> None:
    assert chosen.checksum is compiled.checksum
