"""Frames of the stream protocol: cut anywhere, read the same; what is no frame is refused before it is held."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import FrameError
from tidemark.wire.stream.frames import HEAD, HEADER_BYTES_MAX, Frame, FrameReader, Kind, encode_frame

MAX = 1 << 16

headers = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), 1 << 63), st.text(max_size=20)),
    max_size=4,
)
frames = st.builds(
    lambda *it: it,
    st.sampled_from(Kind),
    st.integers(0, (1 << 32) - 1),
    headers,
    st.binary(max_size=300),
    st.booleans(),
)


def written(kind: Kind, request: int, header: dict[str, Any], payload: bytes, last: bool) -> bytes:
    return b"".join(encode_frame(kind, request, header, [payload], last))


def seen(frame: Frame) -> tuple[Any, ...]:
    return frame.kind, frame.request, frame.header, bytes(frame.payload), frame.last


def a_head(
    length: int = 12, kind: int = 1, flags: int = 0, zero: int = 0, request: int = 1, header: int = 0
) -> bytes:
    return HEAD.pack(length, kind, flags, zero, request, header)


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 2500), max_size=12))
def test_frames_are_read_as_written_however_the_bytes_are_cut(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(written(*frame) for frame in sent)
    reader, got = FrameReader(MAX), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        # As the shell does it: the buffer is used again for the next read.
        buffer = bytearray(data[start:end])
        got += [seen(frame) for frame in reader.feed(memoryview(buffer))]
        buffer[:] = b"\xee" * len(buffer)

    assert got == sent
    assert reader.partial_bytes == 0


def test_a_payload_starts_at_a_multiple_of_eight() -> None:
    for length in range(20):
        head, payload = encode_frame(Kind.DATA, 1, {"a": "x" * length}, [b"payload"])
        assert len(head) % 8 == 0
        assert payload == b"payload"


def test_a_frame_within_one_read_is_not_copied() -> None:
    data = memoryview(bytearray(written(Kind.REQUEST, 1, {}, b"payload", False)))
    [frame] = FrameReader(MAX).feed(data)
    data[-7:] = b"changed"
    assert bytes(frame.payload) == b"changed"


def test_a_frame_that_is_too_large_is_refused_by_its_first_bytes_alone() -> None:
    reader = FrameReader(100)
    with pytest.raises(FrameError, match="a frame of 101 bytes is over the 100 allowed here"):
        list(reader.feed(a_head(length=97)))
    assert reader.partial_bytes == 0


def test_a_frame_that_never_ends_costs_only_what_has_arrived() -> None:
    reader = FrameReader(1 << 30)
    assert list(reader.feed(a_head(length=(1 << 30) - 4))) == []
    assert list(reader.feed(b"x" * 1000)) == []
    assert reader.partial_bytes == 1016


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (a_head(kind=0), "not the beginning of a frame"),
        (a_head(kind=9), "not the beginning of a frame"),
        (a_head(flags=2), "not the beginning of a frame"),
        (a_head(zero=7), "not the beginning of a frame"),
        (a_head(length=11), "does not fit"),
        (a_head(length=0), "does not fit"),
        (a_head(length=20, header=9), "does not fit"),
        (a_head(length=MAX - 4, header=HEADER_BYTES_MAX + 1), "does not fit"),
        (b"GET / HTTP/1.1\r\n", "over the"),
    ],
)
@pytest.mark.parametrize("cut", [16, 3])
def test_what_is_no_frame_is_refused(head: bytes, words: str, cut: int) -> None:
    reader = FrameReader(MAX)
    parts = (head[:cut], head[cut:], b"x" * 100)
    with pytest.raises(FrameError, match=words):
        assert [list(reader.feed(part)) for part in parts]


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b"7", b'"x"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"1" * 10_000, b'{"a":' * 50_000],
)
def test_a_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    data = a_head(length=12 + len(text), header=len(text)) + text
    with pytest.raises(FrameError, match="a frame's header"):
        list(FrameReader(1 << 20).feed(data))


def test_frames_before_a_broken_one_are_still_read() -> None:
    good = written(Kind.PING, 0, {}, b"", False)
    frames = FrameReader(MAX).feed(good + good + a_head(kind=77))
    assert [next(frames).kind, next(frames).kind] == [Kind.PING, Kind.PING]
    with pytest.raises(FrameError):
        next(frames)


def test_names_that_are_not_unicode_survive() -> None:
    [frame] = FrameReader(MAX).feed(written(Kind.ANSWER, 1, {"name": "\udcff"}, b"", True))
    assert frame.header == json.loads('{"name": "\\udcff"}')
