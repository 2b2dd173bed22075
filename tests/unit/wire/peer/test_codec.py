"""Frames between members: cut anywhere, read the same; bytes that no member sends are refused and never held."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.errors import PeerFault
from tidemark.model.peers import (
    Acked,
    Census,
    Closing,
    Compare,
    Completed,
    Ends,
    Hello,
    Log,
    Message,
    Offer,
    Outdated,
    Takeover,
    Unit,
)
from tidemark.wire.peer.codec import (
    ADVICE,
    HEAD,
    HEAD_BYTES,
    MESSAGE_BYTES_MAX,
    PING,
    TABLE_MAX,
    UNIT_BYTES,
    UNIT_BYTES_MAX,
    ZERO,
    Decoder,
    Kind,
    encode,
    encode_unit,
)

TOP = (1 << 64) - 1
sequences = st.integers(0, TOP)
numbers = st.integers(0, (1 << 32) - 1)
ends = st.builds(Ends, sequences, sequences)
names = st.text(max_size=60)
histories = st.binary(min_size=16, max_size=16).map(bytes.hex)
takeovers = st.builds(Takeover, histories, ends)
messages = st.one_of(
    st.builds(
        Hello, names, sequences, names, ends, st.lists(takeovers, max_size=5).map(tuple), st.booleans()
    ),
    st.builds(
        Offer,
        sequences,
        st.sampled_from(["resume", "rewind", "reset", "refuse"]),
        ends,
        ends,
        st.text(max_size=50),
    ),
    st.builds(Acked, sequences, ends, st.lists(st.tuples(names, ends), max_size=4).map(tuple)),
    st.builds(Completed, sequences, ends, sequences, sequences),
    st.builds(Outdated, sequences),
    st.builds(Closing, sequences, ends),
    st.builds(
        Compare,
        sequences,
        ends,
        st.booleans(),
        sequences,
        sequences,
        st.lists(st.builds(Census, numbers, sequences, sequences), max_size=4).map(tuple),
    ),
)


def a_unit(first: int = 5, last: int = 9, payload: bytes = b"records!", log: Log = Log.JOURNAL) -> Unit:
    return Unit(log, first - 1, first, last, memoryview(payload))


units = st.builds(
    lambda first, more, payload, log: a_unit(first, first + more, payload, log),
    st.integers(1, 1 << 60),
    st.integers(0, 1000),
    st.binary(min_size=1, max_size=200),
    st.sampled_from(Log),
)
sent = st.one_of(messages, st.tuples(sequences, units), st.none())


def written(one: Message | tuple[int, Unit] | None) -> bytes:
    """None is a ping."""
    if one is None:
        return PING
    return b"".join(encode_unit(*one)) if isinstance(one, tuple) else encode(one)


def held(found: list[Message | tuple[int, Unit]]) -> list[object]:
    """As it is now: the buffer is used again."""
    return [
        (one[0], one[1].log, one[1].previous, one[1].first, one[1].last, bytes(one[1].payload))
        if isinstance(one, tuple)
        else one
        for one in found
    ]


@given(st.lists(sent, max_size=6), st.lists(st.integers(0, 1500), max_size=12))
def test_what_was_sent_is_read_however_the_bytes_are_cut(
    all_sent: list[Message | tuple[int, Unit] | None], cuts: list[int]
) -> None:
    data = b"".join(written(one) for one in all_sent)
    decoder, got = Decoder(), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        buffer = bytearray(data[start:end])
        got += held(decoder.feed(memoryview(buffer)))
        buffer[:] = b"\xee" * len(buffer)

    assert got == held([one for one in all_sent if one is not None])
    assert decoder.partial_bytes == 0


@given(
    st.one_of(
        st.binary(max_size=300),
        # Frames with something changed in them come further than noise.
        st.builds(
            lambda one, at, value: b"".join(
                [
                    written(one)[: at % len(written(one))],
                    bytes([value]),
                    written(one)[at % len(written(one)) + 1 :],
                ]
            ),
            sent,
            st.integers(0, 1000),
            st.integers(0, 255),
        ),
    ),
    st.integers(1, 50),
)
@example(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", 7)
@example(b"AMQP\x00\x00\x09\x01" * 4, 3)
def test_any_bytes_are_messages_or_a_fault_and_cost_no_more_than_themselves(data: bytes, step: int) -> None:
    decoder = Decoder()
    try:
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
            assert decoder.partial_bytes <= len(data)
    except PeerFault:
        pass


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HEAD.pack(12, 0, ZERO, 1), "kind 0 is not the beginning"),
        (HEAD.pack(12, ADVICE, ZERO, 1), "kind 128 is not the beginning"),
        (HEAD.pack(12, max(Kind) + 1, ZERO, 1), "kind 10 are needed and not known"),
        (HEAD.pack(13 + MESSAGE_BYTES_MAX, ADVICE + 1, ZERO, 1), "a frame of kind 129 cannot have"),
        (HEAD.pack(12, Kind.OUTDATED, b"\0\1\0", 1), "is not the beginning"),
        (HEAD.pack(11, Kind.OUTDATED, ZERO, 1), "cannot have 15 bytes"),
        (HEAD.pack(13, Kind.PING, ZERO, 0), "cannot have 17 bytes"),
        (HEAD.pack(13 + MESSAGE_BYTES_MAX, Kind.HELLO, ZERO, 1), "a frame of kind 1 cannot have"),
        (HEAD.pack(13 + UNIT_BYTES + UNIT_BYTES_MAX, Kind.UNIT, ZERO, 1), "a frame of kind 6 cannot have"),
        (HEAD.pack(11 + UNIT_BYTES, Kind.UNIT, ZERO, 1), "a frame of kind 6 cannot have"),
    ],
)
@pytest.mark.parametrize("cut", [16, 3])
def test_a_head_that_cannot_be_is_refused_before_anything_else_is_read(
    head: bytes, words: str, cut: int
) -> None:
    decoder = Decoder()
    with pytest.raises(PeerFault, match=words):
        assert [decoder.feed(part) for part in (head[:cut], head[cut:])]
    assert decoder.partial_bytes <= HEAD_BYTES


def test_a_unit_that_never_ends_costs_only_what_has_arrived() -> None:
    decoder = Decoder()
    head = HEAD.pack(12 + UNIT_BYTES + UNIT_BYTES_MAX, Kind.UNIT, ZERO, 1)
    assert decoder.feed(head) == []
    assert decoder.feed(b"x" * 1000) == []
    assert decoder.partial_bytes == HEAD_BYTES + 1000


def test_a_unit_whose_bytes_changed_on_the_way_is_refused() -> None:
    data = bytearray(written((7, a_unit(payload=b"an order of 10"))))
    data[-1] ^= 1
    with pytest.raises(PeerFault, match="the checksum of the unit 5 to 9 of log 1 is wrong"):
        Decoder().feed(data)


@pytest.mark.parametrize(
    "unit",
    [
        Unit(Log.JOURNAL, 5, 5, 9, memoryview(b"x")),
        Unit(Log.JOURNAL, 4, 5, 4, memoryview(b"x")),
        Unit(Log.JOURNAL, 4, 5, 9, memoryview(b"")),
        Unit(2, 4, 5, 9, memoryview(b"x")),  # type: ignore[arg-type]
    ],
)
def test_a_unit_that_does_not_rise_or_is_empty_is_refused(unit: Unit) -> None:
    with pytest.raises(PeerFault, match="a unit of log"):
        Decoder().feed(written((1, unit)))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (encode(Outdated(3))[:0] + HEAD.pack(13, Kind.OUTDATED, ZERO, 3) + b"x", "1 bytes are left over"),
        (HEAD.pack(20, Kind.COMPLETED, ZERO, 3) + bytes(8), "ends in the middle of a field"),
        (HEAD.pack(13, Kind.HELLO, ZERO, 3) + b"\x02", "2 is neither yes nor no"),
        (HEAD.pack(15, Kind.HELLO, ZERO, 3) + b"\x01\x01\xff", "not UTF-8"),
        (HEAD.pack(13, Kind.OFFER, ZERO, 3) + b"\x09", "verdict 9 is unknown"),
        (
            HEAD.pack(12 + 23, Kind.HELLO, ZERO, 3) + bytes(19) + (TABLE_MAX + 1).to_bytes(4, "little"),
            "is over the 16384",
        ),
    ],
)
def test_a_message_whose_inside_cannot_be_is_refused(frame: bytes, words: str) -> None:
    with pytest.raises(PeerFault, match=words):
        Decoder().feed(frame)


def test_of_a_long_table_the_newest_takeovers_are_told() -> None:
    table = tuple(Takeover(f"{number:032x}", Ends(number, number)) for number in range(TABLE_MAX + 5))
    [hello] = Decoder().feed(encode(Hello("a", 1, "", Ends(), table)))
    assert isinstance(hello, Hello)
    assert hello.table == table[:TABLE_MAX]


def test_the_payload_of_a_unit_is_not_copied_on_its_way_out() -> None:
    unit = a_unit()
    assert encode_unit(1, unit)[1] is unit.payload
