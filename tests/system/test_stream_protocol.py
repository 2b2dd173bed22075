"""The stream protocol over real sockets: TLS, slow readers, frames of any size, kill -9, a clean stop."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.broker import BrokerProcess
from helpers.certificates import Authority

from tidemark.model.rows import Row, RowBatch
from tidemark.wire.stream.frames import PREAMBLE, Frame, FrameReader, Kind, encode_frame
from tidemark.wire.stream.rows import decode_rows, encode_rows

pa = pytest.importorskip("pyarrow")


class Peer:
    """A blocking client of one socket, without a library."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._reader = FrameReader(1 << 28)
        self._inbox: list[Frame] = []
        self._number = 0
        raw.settimeout(30)
        raw.sendall(PREAMBLE)
        self.told = self.ask("hello", user="guest", password="guest").header

    @classmethod
    def to(cls, broker: BrokerProcess) -> Peer:
        return cls(socket.create_connection((broker.address.host, broker.address.port)))

    def send(self, op: str, payload: Any = (), **fields: Any) -> int:
        self._number += 1
        self.raw.sendall(b"".join(encode_frame(Kind.REQUEST, self._number, {"op": op, **fields}, payload)))
        return self._number

    def next(self) -> Frame:
        while not self._inbox:
            data = self.raw.recv(1 << 18)
            if not data:
                raise EOFError
            self._inbox += self._reader.feed(data)
        return self._inbox.pop(0)

    def until(self, request: int) -> Iterator[Frame]:
        """The frames about a request, to its last."""
        while True:
            frame = self.next()
            if frame.request == request:
                assert frame.kind is not Kind.ERROR, frame.header
                yield frame
                if frame.last:
                    return

    def ask(self, op: str, payload: Any = (), **fields: Any) -> Frame:
        *_, last = self.until(self.send(op, payload, **fields))
        return last

    def put(self, stream: str, rows: list[Row]) -> dict[str, Any]:
        header, parts = encode_rows(RowBatch.build(rows))
        return self.ask("put", parts, stream=stream, **header).header


def test_a_slow_reader_gets_everything_and_is_not_run_over(own_broker: BrokerProcess) -> None:
    writer, reader = Peer.to(own_broker), Peer.to(own_broker)
    writer.ask("declare", stream="s")
    value = os.urandom(1000)
    for part in range(20):
        writer.put("s", [Row(b"%d-%d" % (part, i), value) for i in range(1000)])
    number = reader.send(
        "read", snapshot=reader.ask("snapshot", stream="s").header["snapshot"], encoding="arrow"
    )

    answer = writer.put("s", [Row(b"late", b"")])  # the reader has not read a byte, and holds nobody up
    *batches, end = reader.until(number)

    rows = sum(pa.ipc.open_stream(frame.payload).read_all().num_rows for frame in batches)
    assert rows == end.header["marker"]["count"] == 20_000
    assert end.header["marker"]["to"] < answer["last"]


def test_a_frame_of_tens_of_megabytes_goes_both_ways(own_broker: BrokerProcess) -> None:
    peer = Peer.to(own_broker)
    peer.ask("declare", stream="s")
    value = os.urandom(24 << 20)
    peer.put("s", [Row(b"big", value), Row(b"small", b"x")])
    *batches, end = peer.until(
        peer.send("read", snapshot=peer.ask("snapshot", stream="s").header["snapshot"])
    )
    rows = [row for frame in batches for row in decode_rows(frame.header, frame.payload)]
    assert [(row.key, row.value) for row in rows] == [(b"big", value), (b"small", b"x")]
    assert end.header["marker"]["count"] == 2


def test_what_was_answered_is_there_after_a_kill(own_broker: BrokerProcess) -> None:
    peer = Peer.to(own_broker)
    peer.ask("declare", stream="s")
    receipts = [peer.put("s", [Row(b"%d" % i, b"x" * 100)]) for i in range(50)]
    pinned = peer.ask("snapshot", stream="s", pin="p").header
    *_, before = peer.until(peer.send("read", stream="s", pin="p"))
    peer.put("s", [Row(b"%d" % i, b"later") for i in range(50)])
    own_broker.kill()
    own_broker.start()

    again = Peer.to(own_broker)
    *_, after = again.until(again.send("read", stream="s", pin="p"))
    assert after.header["marker"]["hash"] == before.header["marker"]["hash"]
    assert after.header["marker"]["to"] == pinned["to"]
    assert again.told["history"] != peer.told["history"]
    for receipt in receipts:
        place = {"history": receipt["history"], "sequence": receipt["last"]}
        assert again.ask("safe", **place).header == {"safe": "yes"}


def test_a_clean_stop_says_goodbye(own_broker: BrokerProcess) -> None:
    peer = Peer.to(own_broker)
    peer.ask("declare", stream="s")
    follow = peer.send("follow", stream="s")
    assert peer.next().request == follow
    own_broker.stop()

    frame = peer.next()
    assert (frame.kind, frame.header["error"]) == (Kind.GOODBYE, "connection.forced")
    with pytest.raises(EOFError):
        peer.next()


def test_tls_carries_it_too(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_broker("--amqps", f"127.0.0.1:{port}", "--set", f"tls.certificate={authority.issue('server')}")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    raw = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")

    peer = Peer(raw)
    peer.ask("declare", stream="s")
    peer.put("s", [Row(b"%d" % i, bytes(1000)) for i in range(3000)])
    *batches, end = peer.until(
        peer.send("read", snapshot=peer.ask("snapshot", stream="s").header["snapshot"], encoding="arrow")
    )
    assert sum(pa.ipc.open_stream(frame.payload).read_all().num_rows for frame in batches) == 3000
    assert end.header["marker"]["count"] == 3000
