"""The inner loops of streams, called in this process: no network, no disk, no event loop.

It is the limit of what the broker around them can reach. `python -m bench.streams.core KIND KEYS SECONDS` prints
the figures as one JSON object, under the names that the broker's figures have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from bench.cases import BATCH, Kind
from bench.measure import Figures
from bench.streams.pump import opening_figures
from bench.streams.wire import KEY_BYTES, VALUE_BYTES
from tidemark.broker.streams.core import StreamCore, gather, put_rows
from tidemark.frontend.stream.batches import encoder_for
from tidemark.frontend.stream.fields import Fields
from tidemark.model.arena import MEMORY, Arena, Writer
from tidemark.model.rows import RowBatch
from tidemark.speed import PURE

_FILL_ROWS = 10_000
_OPENS = 2_000
_ROWS_MAX, _BYTES_MAX = 65_536, 1 << 20
_NOW_MS = 1_700_000_000_000


class Rows:
    """One batch whose keys and values are written anew for each put."""

    def __init__(self, count: int, *, keyed: bool = True) -> None:
        def offsets(width: int) -> bytes:
            return (np.arange(count + 1, dtype="<i4") * width).tobytes()

        self._keys = np.zeros(count, "<u8")
        self._values = np.full((count, VALUE_BYTES), ord("v"), np.uint8)
        self.batch = RowBatch(
            count=count,
            keys=(offsets(KEY_BYTES), _raw(self._keys)) if keyed else None,
            values=(offsets(VALUE_BYTES), _raw(self._values)),
        )

    def aim(self, keys: Any) -> RowBatch:
        self._keys[:] = keys
        self._values[:, :KEY_BYTES] = self._keys.view(np.uint8).reshape(-1, KEY_BYTES)
        return self.batch


def _raw(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


class Inside:
    """A stream with this many keys."""

    def __init__(self, keys: int) -> None:
        self.arena = Arena()
        self.writer = Writer(self.arena, MEMORY)
        self.keys = keys
        self.core = self.stream(1)
        fill = Rows(_FILL_ROWS)
        for start in range(0, keys, _FILL_ROWS):
            self.put(self.core, fill.aim(np.minimum(np.arange(start, start + _FILL_ROWS), keys - 1)))
        assert self.core.live == keys

    def stream(self, number: int) -> StreamCore:
        return StreamCore(self.arena, number, 0, b"", os.urandom(16), [])

    def put(self, core: StreamCore, batch: RowBatch) -> int:
        """As the broker does it: into the arena and the index, and what was superseded leaves."""
        _, last = put_rows(core, self.writer, batch, _NOW_MS, b"")
        core.release(last)
        return last


def keyed(inside: Inside, seconds: float) -> Figures:
    random = np.random.default_rng()
    found: Figures = {}
    for name, core in (("unkeyed", inside.stream(2)), ("keyed", inside.core)):
        rows, spent, count = Rows(BATCH, keyed=name == "keyed"), 0.0, 0
        while spent < seconds:
            batch = rows.aim(random.integers(0, inside.keys, BATCH))
            began = time.process_time()
            inside.put(core, batch)
            spent += time.process_time() - began
            count += BATCH
        found |= {f"{name}_per_s": count / spent, f"{name}_cpu_s_per_million": spent / count * 1e6}
    assert inside.core.live == inside.keys
    return found | {"share_of_unkeyed": found["keyed_per_s"] / found["unkeyed_per_s"]}


def opened(inside: Inside, seconds: float) -> Figures:
    del seconds
    core, rows, times = inside.core, Rows(BATCH), []
    random = np.random.default_rng()
    for _ in range(_OPENS):
        last = inside.put(core, rows.aim(random.integers(0, inside.keys, BATCH)))
        began = time.perf_counter()
        core.hold(last)
        times.append(time.perf_counter() - began)
        core.unhold(last)
    return opening_figures(times)


def scan(inside: Inside, seconds: float) -> Figures:
    """Take, hash, gather and encode as Arrow, with the sizes of batches that the broker has."""
    core = inside.core
    encoder, columns = encoder_for(Fields({"encoding": "arrow"}, "read"), 1)
    snapshot = inside.arena.next_seq - 1
    found: Figures = {}
    for prefix, hashed in (("", True), ("unhashed_", False)):
        spent, rows, size = 0.0, 0, 0
        while spent < seconds:
            after, before = 0, rows
            began = time.process_time()
            while (taken := core.take(snapshot, after, snapshot, _ROWS_MAX, _BYTES_MAX)) is not None:
                after = core.position
                if hashed:
                    core.digest(taken)
                _, parts = encoder.encode(gather(core, taken, columns))
                rows += len(taken)
                size += sum(len(part) for part in parts)
            spent += time.process_time() - began
            assert rows - before == inside.keys
        found |= {f"{prefix}rows_per_s": rows / spent, f"{prefix}rows_per_cpu_s": rows / spent}
        if hashed:
            found["bytes_per_s"] = size / spent
    return found


def memory(inside: Inside, seconds: float) -> Figures:
    """After the fill, and after as many updates as there are keys."""
    del seconds
    filled = inside.core.memory_bytes
    random, rows = np.random.default_rng(), Rows(BATCH)
    for _ in range(0, inside.keys, BATCH):
        inside.put(inside.core, rows.aim(random.integers(0, inside.keys, BATCH)))
    return {
        "index_bytes_per_key": filled / inside.keys,
        "updated_bytes_per_key": inside.core.memory_bytes / inside.keys,
    }


_MEASURES = {
    Kind.STREAM_KEYED: keyed,
    Kind.STREAM_OPEN: opened,
    Kind.STREAM_SCAN: scan,
    Kind.STREAM_MEMORY: memory,
}


def main(kind: str, keys: str, seconds: str) -> None:
    if PURE:
        raise SystemExit("the inner loops are measured compiled; TIDEMARK_PURE is set")
    print(json.dumps(_MEASURES[Kind[kind]](Inside(int(keys)), float(seconds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
