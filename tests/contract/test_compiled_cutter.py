"""The compiled cutter and its reference give the same pieces of any bytes."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Any

import pytest
from fuzz.wire_streams import FRAME_MAX, some_cuts, some_stream, spoiled
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.speed import PURE
from tidemark.wire.amqp091 import _cutter_py, cutter
from tidemark.wire.amqp091.frames import BODY, encode_content, encode_frame
from tidemark.wire.amqp091.methods import BasicAck, BasicDeliver, BasicGetOk, BasicReturn, encode_method
from tidemark.wire.amqp091.properties import NO_PROPERTIES

compiled = pytest.importorskip("tidemark.wire.amqp091._cutter_c")

DICE = st.integers(0, 2**32).map(Random)


def cut(one: Any, stream: bytes, cuts: list[int]) -> tuple[list[Any], str, int]:
    """All pieces of a stream that comes in reads of these sizes, what was wrong, and what is left over."""
    pieces: list[Any] = []
    rest, position = b"", 0
    for size in [*cuts, len(stream)]:
        data = rest + stream[position : position + size]
        position += size
        found, used = one.feed(memoryview(data))
        pieces += found
        rest = data[used:]
    return pieces, str(one.fault), len(rest)


def deliveries(dice: Random) -> bytes:
    """What a broker says to a client: deliveries of a few consumers on a few channels, and other things."""
    out = []
    for tag in range(1, dice.randrange(2, 12)):
        channel = dice.randrange(1, 3)
        body = b"x" * dice.choice([0, 1, 30, 200])
        method = dice.choice(
            [
                BasicDeliver(dice.choice(["a", "a", "b", ""]), tag, False, "e", "k"),
                BasicDeliver("a", tag, True, "", "q"),
                BasicGetOk(tag, False, "", "q", 3),
                BasicReturn(312, "NO_ROUTE", "", "q"),
                BasicAck(tag, True),
            ]
        )
        out.append(encode_method(channel, method))
        if not isinstance(method, BasicAck):
            out.append(encode_content(channel, NO_PROPERTIES, body, dice.choice([0, 64])))
    return b"".join(out)


def both(stream: bytes, cuts: list[int], **limits: Any) -> tuple[Any, Any]:
    ours, theirs = (
        cut(module.Cutter(limits.get("frame_max", FRAME_MAX), limits.get("channel_max", 65535), limits["whole"]), stream, cuts)
        for module in (compiled, _cutter_py)
    )  # fmt: skip
    return ours, theirs


def test_the_product_runs_the_compiled_cutter() -> None:
    assert cutter.Cutter is (_cutter_py if PURE else compiled).Cutter


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=5), st.booleans())
def test_the_cutters_agree_about_any_bytes(stream: bytes, cuts: list[int], whole: bool) -> None:
    ours, theirs = both(stream, cuts, whole=whole)
    assert ours == theirs


@settings(max_examples=200)
@given(DICE, st.booleans())
def test_the_cutters_agree_about_streams_good_and_spoiled(dice: Random, whole: bool) -> None:
    stream = dice.choice([deliveries, some_stream])(dice)
    if dice.random() < 0.5:
        stream = spoiled(dice, stream)
    ours, theirs = both(
        stream,
        some_cuts(dice, len(stream)),
        whole=whole,
        frame_max=dice.choice([0, 64, FRAME_MAX]),
        channel_max=dice.choice([0, 2, 65535]),
    )
    assert ours == theirs


@settings(max_examples=200)
@given(DICE, st.booleans())
def test_nothing_is_lost_or_changed_however_the_stream_is_cut(dice: Random, whole: bool) -> None:
    stream = deliveries(dice)
    pieces, fault, rest = cut(cutter.Cutter(0, whole=whole), stream, some_cuts(dice, len(stream)))
    assert (fault, rest) == ("None", 0)
    by_channel: dict[int, bytes] = {}
    for channel, _, _, frames in pieces:
        by_channel[channel] = by_channel.get(channel, b"") + frames
    if not whole:
        assert by_channel.get(-1, b"") == stream
    else:
        alone = cut(cutter.Cutter(0, whole=True), stream, [])[0]
        for number in {channel for channel, *_ in alone}:
            assert by_channel[number] == b"".join(
                frames for channel, _, _, frames in alone if channel == number
            )


@pytest.mark.parametrize("module", [compiled, _cutter_py])
def test_deliveries_to_one_consumer_are_one_piece(module: Any) -> None:
    def delivery(consumer: str, tag: int, body: bytes) -> bytes:
        method = encode_method(1, BasicDeliver(consumer, tag, False, "", "q"))
        return method + encode_content(1, NO_PROPERTIES, body, 64)

    first = [
        delivery("a", 1, b""),
        delivery("a", 2, b"x" * 100),
        delivery("a", 3, encode_frame(BODY, 1, b"")),
    ]
    other = delivery("b", 4, b"y")
    pieces, used = module.Cutter(0, whole=True).feed(b"".join([*first, other, first[0][:20]]))
    assert [(channel, code, count) for channel, code, count, _ in pieces] == [
        (1, cutter.DELIVER, 3),
        (1, cutter.DELIVER, 1),
    ]
    assert pieces[0][3] == b"".join(first)
    assert used == len(b"".join(first)) + len(other)
    assert module.retag(pieces[0][3], 1 << 40) == b"".join(
        [
            delivery("a", (1 << 40) + i, body)
            for i, body in enumerate([b"", b"x" * 100, encode_frame(BODY, 1, b"")])
        ]
    )


AT_THE_END_OF_A_PAGE = """
import ctypes, mmap, sys
from tidemark.wire.amqp091 import _cutter_c

data, page = sys.stdin.buffer.read(), mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert protect(base + page, page, 0) == 0
view = memoryview(memory)[page - len(data) : page]
view[:] = data
pieces, used = _cutter_c.Cutter(0, whole=True).feed(view)
print([piece[:3] for piece in pieces], used == len(data))
"""


def test_nothing_is_read_behind_the_last_byte() -> None:
    """The memory behind it may not be touched: whoever does so dies of it."""
    first = encode_method(1, BasicDeliver("b" * 200, 1, False, "", "q")) + encode_content(
        1, NO_PROPERTIES, b"", 64
    )
    second = encode_method(1, BasicDeliver("a", 2, False, "", "q"))
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END_OF_A_PAGE], input=first + second, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == f"[{(1, cutter.DELIVER, 1)}] True".split()
