"""Rows as tests compare them."""

from __future__ import annotations

Rows = list[tuple[bytes | None, bytes]]


def pairs(rows: object) -> Rows:
    return [(row.key, row.value) for row in rows]  # type: ignore[attr-defined]
