"""Reads Tidemark's snapshots as Arrow, and checks that they hold what was put."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.measure import RunFailedError
from bench.streams.peers import expect
from bench.streams.putting import KEYED
from bench.streams.wire import KEY_BYTES, VALUE_BYTES, Client
from bench.tidemark_server import TidemarkServer


@dataclass(slots=True)
class Scanned:
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    failure: Exception | None = None


def scan_once(client: Client, keys: int, *, hashed: bool) -> tuple[int, int]:
    """Rows and bytes of one snapshot that was read to its end."""
    marker: dict[str, Any] = {}
    opened = client.call({"op": "snapshot", "stream": KEYED})
    asked = {"op": "read", "snapshot": opened["snapshot"], "encoding": "arrow", "hash": hashed}
    rows = size = 0
    for count, payload in client.read(asked, marker):
        rows += count
        size += len(payload)
    client.call({"op": "close", "snapshot": opened["snapshot"]})
    expect("Tidemark", "rows in a snapshot", keys, rows)
    expect("Tidemark", "rows by the marker", keys, int(marker["count"]))
    return rows, size


def scan_for(
    server: TidemarkServer, client: Client, keys: int, go_on: Callable[[float], bool], *, hashed: bool = True
) -> Scanned:
    done = Scanned()
    began, cpu_before = time.perf_counter(), server.cpu_seconds()
    while go_on(time.perf_counter() - began):
        rows, size = scan_once(client, keys, hashed=hashed)
        done.rows += rows
        done.bytes += size
    done.seconds, done.cpu_s = time.perf_counter() - began, server.cpu_seconds() - cpu_before
    return done


class Scanner:
    """Reads snapshot after snapshot in a thread while its context is open."""

    def __init__(self, server: TidemarkServer, client: Client, keys: int) -> None:
        self._ending = threading.Event()
        self._arguments = (server, client, keys)
        self._thread = threading.Thread(target=self._run)
        self.done = Scanned()

    def _run(self) -> None:
        try:
            self.done = scan_for(*self._arguments, lambda _: not self._ending.is_set())
        except Exception as failure:
            self.done.failure = failure

    def __enter__(self) -> Scanner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self.done.failure is not None:
            raise self.done.failure


def check_rows(client: Client, keys: int) -> None:
    """Decode one snapshot whole: each key is there once, and each value begins with its key."""
    import pyarrow as pa

    marker: dict[str, Any] = {}
    opened = client.call({"op": "snapshot", "stream": KEYED})
    seen = np.zeros(keys, bool)
    for _, payload in client.read(
        {
            "op": "read",
            "snapshot": opened["snapshot"],
            "encoding": "arrow",
            "columns": ["key", "value", "sequence"],
        },
        marker,
    ):
        for batch in pa.ipc.open_stream(bytes(payload)):
            numbers = np.frombuffer(_bytes_of(batch.column("key"), KEY_BYTES), "<u8")
            values = np.frombuffer(_bytes_of(batch.column("value"), VALUE_BYTES), np.uint8)
            heads = values.reshape(-1, VALUE_BYTES)[:, :KEY_BYTES].copy().view("<u8")[:, 0]
            if not np.array_equal(numbers, heads):
                raise RunFailedError("Tidemark gave a key the value of another")
            seen[numbers] = True
    client.call({"op": "close", "snapshot": opened["snapshot"]})
    expect("Tidemark", "different keys in a snapshot", keys, int(seen.sum()))


def _bytes_of(column: Any, width: int) -> memoryview:
    """The bytes of a binary column whose values all have this width."""
    offsets = np.frombuffer(column.buffers()[1], "<i4", len(column) + 1, column.offset * 4)
    if not np.all(np.diff(offsets) == width):
        raise RunFailedError(f"Tidemark gave values that are not {width} bytes long")
    return memoryview(column.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
