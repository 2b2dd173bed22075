"""Rows and markers as a broker sends them, for scripted peers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from client.peer import HISTORY

from tidemark.model.rows import Row, RowBatch, rows_digest
from tidemark.wire.stream.rows import encode_rows


def batch(rows: Sequence[tuple[int, bytes | None, bytes | None]]) -> RowBatch:
    """Rows of (sequence, key, value); the value None is a tombstone."""
    built = RowBatch.build([Row(key, value or b"", tombstone=value is None) for _, key, value in rows])
    built.sequences = struct.pack(f"<{len(rows)}q", *(seq for seq, _, _ in rows))
    built.timestamps = struct.pack(f"<{len(rows)}q", *(1_700_000_000_000 + seq for seq, _, _ in rows))
    return built


def data(rows: Sequence[tuple[int, bytes | None, bytes | None]]) -> tuple[dict[str, Any], list[bytes]]:
    header, parts = encode_rows(batch(rows))
    return {**header, "position": rows[-1][0]}, [bytes(part) for part in parts]


def marker(
    rows: Sequence[tuple[int, bytes | None, bytes | None]], start: int = 0, **changed: Any
) -> dict[str, Any]:
    dead = sum(value is None for _, _, value in rows)
    found = {
        "history": HISTORY,
        "from": start,
        "to": rows[-1][0] if rows else start,
        "count": len(rows) - dead,
        "tombstones": dead,
        "hash": f"{rows_digest(batch(rows)) if rows else 0:032x}",
    }
    return {**found, **changed}
