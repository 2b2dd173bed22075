"""A backup that can be taken again, byte for byte, while every key is being rewritten.

A pin keeps a snapshot readable under a name, for any number of readers, until it is released or its lease ends.
The backup is read as Arrow in two halves, by key, as two machines could do it; then read again after all keys have
changed, and compared by the markers' hashes, which add up: hash(half) + hash(half) = hash(whole).

    python examples/streams/pinned_backup.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

import tidemark.client

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"
STREAM, ROWS = "backup-stock", 20_000

with tidemark.client.connect(URL) as db, tempfile.TemporaryDirectory() as folder:
    stock = db.stream(STREAM, create=True)
    numbers = range(ROWS)
    stock.put_many(
        pa.table({"key": [f"item-{n:06}" for n in numbers], "value": [f"{n % 97}" for n in numbers]})
    )

    pin = stock.pin("nightly", lease=600)
    hashes = []
    for part, bounds in {"low": {"key_to": "item-010000"}, "high": {"key_from": "item-010000"}}.items():
        table = pin.to_arrow(**bounds)
        parquet.write_table(table, Path(folder) / f"{part}.parquet")
        assert pin.marker is not None and pin.marker.verified and pin.marker.hash is not None
        hashes.append(int(pin.marker.hash, 16))
        print(f"{part}: {table.num_rows} rows, hash {pin.marker.hash}")

    stock.put_many((f"item-{n:06}", b"sold out") for n in numbers)
    [info] = stock.pins()
    print(f"all rewritten; the pin keeps {info.bytes_kept} bytes of the past")

    again = pin.to_arrow()
    assert pin.marker is not None and pin.marker.hash is not None
    assert int(pin.marker.hash, 16) == sum(hashes) % 2**128, "not what it was"
    assert "sold out" not in set(again.column("value").cast(pa.string()).to_pylist())
    print(f"read again: {again.num_rows} rows, the same hash")

    pin.release()
    db.delete_stream(STREAM)
