"""The per-message loops of streams. This module only picks the implementation."""

from tidemark.broker.streams._core_py import EXAMINE_MAX, ROW_TOMBSTONE
from tidemark.broker.streams._rows_py import (
    FLAGS,
    KEY,
    NO_PROPERTIES,
    PROPERTIES,
    SEQUENCE,
    SLOT,
    TIMESTAMP,
    VALUE,
    rows_bytes,
)
from tidemark.speed import PURE

if PURE:
    from tidemark.broker.streams._core_py import StreamCore
    from tidemark.broker.streams._rows_py import conflict, gather, put_rows, select_keys
else:
    from tidemark.broker.streams._core_c import StreamCore
    from tidemark.broker.streams._rows_c import conflict, gather, put_rows, select_keys

__all__ = [
    "EXAMINE_MAX",
    "FLAGS",
    "KEY",
    "NO_PROPERTIES",
    "PROPERTIES",
    "ROW_TOMBSTONE",
    "SEQUENCE",
    "SLOT",
    "TIMESTAMP",
    "VALUE",
    "StreamCore",
    "conflict",
    "gather",
    "put_rows",
    "rows_bytes",
    "select_keys",
]
