"""The load side of streams counts every answer once, however it is cut, and takes no error for one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure import RunFailedError
from bench.streams import wire
from bench.streams.pump import Answers, Load, Marks, Pumped, connect, pump
from bench.streams.redis import _last_id
from tidemark.wire.stream.frames import FrameReader
from tidemark.wire.stream.rows import decode_rows


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.integers(0, 40), st.lists(st.integers(0, 10_000)))
def test_marks_are_counted_once_however_the_bytes_are_cut(count: int, places: list[int]) -> None:
    marks = Marks(b'"seq":', (b'"error"',))
    data = b'MSG _I 1 30\r\n{"stream":"s","seq":12}\r\n' * count

    assert sum(marks.feed(part) for part in cut(data, places)) == count


@given(st.lists(st.integers(0, 10_000)))
def test_an_error_among_answers_is_noticed_however_it_is_cut(places: list[int]) -> None:
    parts = cut(b":0\r\n:0\r\n-ERR no\r\n:0\r\n", places)

    with pytest.raises(RunFailedError, match="the server answered b'-ERR"):
        list(map(Marks(b":0\r\n", (b"-ERR",)).feed, parts))


@given(st.integers(0, 20), st.lists(st.integers(0, 10_000)))
def test_frames_are_counted_once_however_the_bytes_are_cut(count: int, places: list[int]) -> None:
    answers = wire.FrameAnswers()

    assert sum(answers.feed(part) for part in cut(frame(wire.ANSWER) * count, places)) == count


def test_an_error_frame_is_noticed_with_its_words() -> None:
    with pytest.raises(RunFailedError, match=r'Tidemark answered \{"message": "no"\}'):
        wire.FrameAnswers().feed(frame(wire.ANSWER) + frame(wire.ERROR, b'{"message": "no"}'))


def frame(kind: int, header: bytes = b"{}") -> bytes:
    return wire.HEAD.pack(12 + len(header), kind, 1, 0, 7, len(header)) + header


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_a_batch_is_what_the_broker_reads_and_carries_the_keys_it_was_aimed_at(
    rows: int, keyed: bool
) -> None:
    batch = wire.Batch("s", rows, keyed=keyed)
    batch.aim(5, np.zeros(rows, np.uint64))
    keys = np.arange(100, 100 + rows, dtype=np.uint64)

    [read] = FrameReader(1 << 20).feed(bytes(batch.aim(9, keys)))

    assert (read.request, read.header["op"], read.header["stream"]) == (9, "put", "s")
    for number, row in enumerate(decode_rows(read.header, read.payload), 100):
        raw = number.to_bytes(8, "little")
        assert row.key == (raw if keyed else None)
        assert row.value == raw + b"v" * 92


class Reversing:
    """A server that answers each byte with the same byte, or as it is told otherwise."""

    def __init__(self, answer: bytes = b".", close_after: int = 1 << 60) -> None:
        self._answer = answer
        self._close_after = close_after

    def serve(self, connection: socket.socket) -> None:
        taken = 0
        with connection, suppress(OSError):
            while data := connection.recv(7):
                taken += len(data)
                if taken > self._close_after:
                    return
                connection.sendall(self._answer * len(data))


@contextmanager
def serving(server: Reversing) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: server.serve(listener.accept()[0]))
        thread.start()
        with connect(listener.getsockname()[1]) as connection:
            yield connection
        thread.join(5)
        assert not thread.is_alive()


def pumped(server: Reversing, answers: Answers | None = None, requests: int = 10) -> Pumped:
    with serving(server) as connection:
        load = Load(lambda: b"x" * requests, requests, 5 * requests)
        return pump(connection, load, answers or Marks(b".", (b"!",)), lambda: 3.0, 0.05, 0.02)


def test_rows_are_those_of_the_measured_phase_and_all_were_answered() -> None:
    done = pumped(Reversing())

    assert 0 < done.rows < done.total_rows
    assert done.total_rows % 50 == 0
    assert done.seconds >= 0.05
    assert done.cpu_s == 0
    assert 0 < done.p50_ms <= done.p99_ms


def test_a_phase_lasts_until_as_many_were_answered_as_are_on_their_way() -> None:
    class Slow(Reversing):
        def serve(self, connection: socket.socket) -> None:
            time.sleep(0.2)
            super().serve(connection)

    done = pumped(Slow())

    assert done.rows >= 4 * 50


def test_more_answers_than_requests_are_noticed() -> None:
    with pytest.raises(RunFailedError, match="answers to"):
        pumped(Reversing(b".."))


def test_a_server_that_goes_away_is_noticed() -> None:
    with pytest.raises(RunFailedError, match=r"closed the connection|took no more|ended the connection"):
        pumped(Reversing(close_after=0))


def test_an_error_from_the_server_ends_the_run() -> None:
    with pytest.raises(RunFailedError, match="the server answered b'!"):
        pumped(Reversing(b"!"))


def test_reading_a_redis_stream_goes_on_behind_the_last_entry() -> None:
    entry = b"*2\r\n$3\r\n%s\r\n*2\r\n$8\r\n00000001\r\n$3\r\nabc\r\n"

    assert _last_id(bytearray(b"*2\r\n" + entry % b"1-0" + entry % b"1-7")) == b"1-7"
