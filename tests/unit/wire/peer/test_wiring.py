"""Frames between a front and main's leader: cut anywhere, read the same; other bytes are refused and never held."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import PeerFault
from tidemark.wire.peer.wiring import (
    CHANGE_BYTES_MAX,
    HEAD,
    OTHER_BYTES_MAX,
    Change,
    Decoder,
    Echo,
    Elsewhere,
    Greeting,
    Kind,
    Message,
    Ping,
    Waiting,
    Whole,
    encode,
)

names = st.text(max_size=60)
any_names = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
"""As clients give them."""
numbers = st.integers(0, (1 << 64) - 1)
messages = st.one_of(
    st.builds(Greeting, names, numbers, st.dictionaries(names, names, max_size=4)),
    st.builds(Change, st.binary(max_size=300)),
    st.builds(Echo, numbers),
    st.builds(Elsewhere, names, names),
    st.builds(Waiting, names, any_names),
    st.sampled_from([Whole(), Ping()]),
)


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 2000), max_size=8))
def test_what_was_sent_is_read_however_it_is_cut(sent: list[Message], cuts: list[int]) -> None:
    data = b"".join(map(encode, sent))
    decoder = Decoder()
    found: list[Message] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        found += decoder.feed(data[start:end])
    assert found == sent and decoder.partial_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        HEAD.pack(1, 0),
        HEAD.pack(1, 99),
        HEAD.pack(0, Kind.PING),
        HEAD.pack(CHANGE_BYTES_MAX + 1, Kind.CHANGE),
        HEAD.pack(OTHER_BYTES_MAX + 1, Kind.GREETING),
        HEAD.pack(2, Kind.PING) + b"x",
        HEAD.pack(5, Kind.ECHO) + bytes(4),
        HEAD.pack(3, Kind.ELSEWHERE) + b"\x01\xff",
        b"AMQP\x00\x00\x09\x01",
    ],
)
def test_what_nobody_sends_here_is_refused(data: bytes) -> None:
    with pytest.raises(PeerFault):
        Decoder().feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    decoder = Decoder()
    try:
        decoder.feed(data)
    except PeerFault:
        return
    assert decoder.partial_bytes <= len(data)
