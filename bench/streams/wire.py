"""The load side of the stream protocol: requests that are encoded once, and answers that are hardly looked at.

A `Batch` is a whole put request in one buffer. Before it is sent again, only its request number, its keys and the
first bytes of its values are written anew, which takes a few microseconds for a thousand rows.

    | length u32 | kind u8 | flags u8 | zero u16 | request u32 | header length u32 | header, JSON | payload |

The payload of a put in encoding "rows": offsets and bytes of the keys, offsets and bytes of the values, each padded
to a multiple of 8. `docs/stream-protocol.md` describes all of it.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.measure import RunFailedError
from bench.streams import pump

PREAMBLE = b"TIDE\x00\x00\x01\x00"
HEAD = struct.Struct("<IBBHII")
REQUEST, ANSWER, ERROR, DATA, CREDIT, PING, PONG, GOODBYE = range(1, 9)
LAST = 1
KEY_BYTES = 8
VALUE_BYTES = 100
_REQUEST_AT = 8
_SCRATCH_BYTES = 8 << 20

Keys = NDArray[np.uint64]


def request(number: int, header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (
        HEAD.pack(HEAD.size - 4 + len(text) + len(payload), REQUEST, 0, 0, number, len(text)) + text + payload
    )


class Batch:
    """A put of `rows` rows, with or without keys. The value of a row begins with its key."""

    def __init__(self, stream: str, rows: int, *, keyed: bool) -> None:
        parts: list[bytes] = []
        columns: list[tuple[str, int, int]] = []
        for name, width in (("keys", KEY_BYTES), ("values", VALUE_BYTES)):
            if name == "values" or keyed:
                offsets = (np.arange(rows + 1, dtype="<i4") * width).tobytes()
                columns.append((name, len(offsets), rows * width))
                parts += [_padded(offsets), _padded(b"v" * (rows * width))]
        header = {"op": "put", "stream": stream, "count": rows, "encoding": "rows", "columns": columns}
        self.rows = rows
        self.data = bytearray(request(1, header, b"".join(parts)))
        end = len(self.data) - (-rows * VALUE_BYTES % 8)
        values = np.frombuffer(self.data, np.uint8, rows * VALUE_BYTES, end - rows * VALUE_BYTES)
        self._heads = values.reshape(rows, VALUE_BYTES)[:, :KEY_BYTES]
        self._keys: NDArray[np.uint8] | None = None
        if keyed:
            at = len(self.data) - sum(map(len, parts)) + len(parts[0])
            self._keys = np.frombuffer(self.data, np.uint8, rows * KEY_BYTES, at).reshape(rows, KEY_BYTES)

    def aim(self, number: int, keys: Keys) -> bytearray:
        """The request with this number and these keys, good until the next call."""
        struct.pack_into("<I", self.data, _REQUEST_AT, number)
        raw = keys.astype("<u8", copy=False).view(np.uint8).reshape(self.rows, KEY_BYTES)
        self._heads[:] = raw
        if self._keys is not None:
            self._keys[:] = raw
        return self.data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class FrameAnswers:
    """Counts answers to puts; their headers are not read unless they are errors."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int:
        data = self._rest + data
        at, count, end = 0, 0, len(data)
        while end - at >= HEAD.size:
            length, kind, _, _, _, header_bytes = HEAD.unpack_from(data, at)
            if end - at < 4 + length:
                break
            if kind == ANSWER:
                count += 1
            elif kind != PING:
                raise _refused(kind, data[at + HEAD.size : at + HEAD.size + header_bytes])
            at += 4 + length
        self._rest = data[at:]
        return count


def _refused(kind: int, header: bytes) -> RunFailedError:
    return RunFailedError(f"Tidemark answered {header.decode(errors='replace').strip()[:400]} (kind {kind})")


class Client:
    """One connection, one request at a time, besides what `pump` does with `connection`."""

    def __init__(self, port: int) -> None:
        self.connection: socket.socket = pump.connect(port)
        self._number = 0
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        pump.send(self.connection, PREAMBLE)
        self.call(
            {
                "op": "hello",
                "mechanism": "PLAIN",
                "user": "guest",
                "password": "guest",
                "vhost": "/",
                "client": {"name": "bench", "version": "1"},
            }
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def call(self, header: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        """What the broker answers.

        Raises:
            RunFailedError: an error.
        """
        self._number += 1
        pump.send(self.connection, request(self._number, header, payload))
        while True:
            kind, _, answer, _ = self._frame()
            if kind == ANSWER:
                return answer

    def read(self, header: dict[str, Any], marker: dict[str, Any]) -> Iterator[tuple[int, memoryview]]:
        """Rows and payload of each frame of an answer; the payload is good until the next one. Fills `marker`."""
        self._number += 1
        pump.send(self.connection, request(self._number, header))
        while True:
            kind, _, answer, payload = self._frame()
            if kind == DATA:
                yield answer["count"], payload
            elif kind == ANSWER:
                marker.update(answer["marker"])
                return

    def _frame(self) -> tuple[int, int, dict[str, Any], memoryview]:
        while True:
            length, kind, flags, _, _, header_bytes = HEAD.unpack(self._exactly(HEAD.size))
            header = bytes(self._exactly(header_bytes))
            payload = self._exactly(length - (HEAD.size - 4) - header_bytes)
            if kind in (ERROR, GOODBYE):
                raise _refused(kind, header)
            if kind != PING:
                return kind, flags, json.loads(header) if header else {}, payload

    def _exactly(self, size: int) -> memoryview:
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(size))
        got = 0
        while got < size:
            try:
                more = self.connection.recv_into(self._scratch[got:size], 0, socket.MSG_WAITALL)
            except OSError as gone:
                raise RunFailedError(f"Tidemark ended the connection: {gone}") from gone
            if not more:
                raise RunFailedError("Tidemark closed the connection")
            got += more
        return self._scratch[:size]
