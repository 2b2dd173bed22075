"""Rows as a peer wants them, and as it sends them: the encodings "rows" and "arrow" behind one interface.

Invariant: properties that came in were read once, so whoever reads them later can.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, Final, Protocol

from tidemark.broker.streams.commit import Operation, PublishMany
from tidemark.errors import ContentTooLarge, SyntaxFault
from tidemark.frontend.stream.config import StreamConfig
from tidemark.frontend.stream.fields import Fields
from tidemark.model.rows import Column, RowBatch
from tidemark.model.runs import HAS_USER_ID
from tidemark.speed import PURE
from tidemark.wire.stream import rows
from tidemark.wire.stream.arrow import ArrowEncoder
from tidemark.wire.stream.arrow_reader import PROPERTIES_BYTES_MAX, decode_arrow
from tidemark.wire.stream.frames import Buffer

if PURE:
    from tidemark.wire.amqp091._scanner_py import inspect_properties
else:
    from tidemark.wire.amqp091._scanner_c import inspect_properties

KEY, VALUE, PROPERTIES, SEQUENCE, TIMESTAMP, FLAGS, SLOT = (1 << bit for bit in range(7))
"""What `gather` is asked for."""

COLUMNS: Final = {
    "key": KEY | FLAGS,
    "value": VALUE,
    "deleted": FLAGS,
    "headers": PROPERTIES,
    "sequence": SEQUENCE,
    "timestamp": TIMESTAMP,
    "shard": SLOT,
}
DEFAULT_COLUMNS: Final = ("key", "value", "deleted", "sequence", "timestamp")


class Encoder(Protocol):
    """Batches of one answer on their way out."""

    encoding: str

    def empty(self) -> list[Buffer]:
        """What a reader gets that gets no rows."""

    def encode(self, batch: RowBatch) -> tuple[dict[str, Any], list[Buffer]]:
        """Fields of the frame's header, and its payload."""


class RowsEncoder:
    encoding = rows.ENCODING

    def empty(self) -> list[Buffer]:
        return []

    def encode(self, batch: RowBatch) -> tuple[dict[str, Any], list[Buffer]]:
        return rows.encode_rows(batch)


def encoder_for(fields: Fields, shards: int) -> tuple[Encoder, int]:
    """What the fields `encoding` and `columns` ask for, and the columns to gather for it.

    Raises:
        SyntaxFault
    """
    names = tuple(fields.texts("columns") or DEFAULT_COLUMNS)
    mask = 0
    for name in names:
        if name not in COLUMNS:
            raise SyntaxFault(reason=f"there is no column '{name:.60}'; there are {', '.join(COLUMNS)}")
        mask |= COLUMNS[name]
    if len(set(names)) != len(names):
        raise fields.wrong("columns", "a list of different columns")
    encoding = fields.text("encoding", rows.ENCODING)
    if encoding == rows.ENCODING:
        return RowsEncoder(), mask
    if encoding == ArrowEncoder.encoding:
        return ArrowEncoder(names, shards), mask
    raise fields.wrong("encoding", "'rows' or 'arrow'")


class Allowance:
    """What one request may bring, so that nobody else waits long for it."""

    def __init__(self, config: StreamConfig) -> None:
        self._limits = {
            "put_rows_max": ("rows", config.put_rows_max),
            "put_slow_rows_max": ("rows with headers or conditions", config.put_slow_rows_max),
            "put_parts_max": ("operations and record batches", config.put_parts_max),
        }
        self._taken = dict.fromkeys(self._limits, 0)

    def rows(self, count: int, slow: int) -> None:
        """So many rows come, and so many headers and conditions. Raises ContentTooLarge."""
        self._take("put_rows_max", count)
        self._take("put_slow_rows_max", slow)

    def part(self) -> None:
        """An operation, or a record batch. Raises ContentTooLarge."""
        self._take("put_parts_max", 1)

    def _take(self, name: str, count: int) -> None:
        self._taken[name] += count
        what, limit = self._limits[name]
        if self._taken[name] > limit:
            raise ContentTooLarge(
                reason=f"a request may bring {limit} {what} (stream.{name}), this one brings more; send it in parts"
            )


def decode(fields: Fields, payload: Buffer, allowance: Allowance) -> list[RowBatch]:
    """The rows of a put; they point into the payload.

    Raises:
        SyntaxFault
        ContentTooLarge: more rows than one request may bring.
    """
    encoding = fields.text("encoding", rows.ENCODING)
    if encoding == ArrowEncoder.encoding:
        return decode_arrow(payload, allowance)
    if encoding != rows.ENCODING:
        raise fields.wrong("encoding", "'rows' or 'arrow'")
    batch = rows.decode_rows(fields.values(), payload)
    is_slow = batch.properties is not None or batch.expected is not None
    allowance.rows(batch.count, batch.count if is_slow else 0)
    if batch.properties is not None:
        _check_properties(batch.properties)
    return [batch]


def messages(
    exchange: str, fields: Fields, payload: Buffer, allowance: Allowance, mandatory: bool
) -> list[Operation]:
    """Many messages to one exchange, as rows: keys are routing keys, values bodies. Each counts as a slow row.

    Raises:
        SyntaxFault
        ContentTooLarge: more than one request may bring.
    """
    found: list[Operation] = []
    for batch in decode(fields, payload, allowance):
        if batch.expected is not None:
            raise fields.wrong("columns", "keys, values and properties: messages have no conditions")
        if batch.properties is None:
            allowance.rows(0, batch.count)
        found.append(PublishMany(exchange, batch, mandatory))
    return found


def _check_properties(column: Column) -> None:
    offsets, data = array("i", bytes(column[0])), bytes(column[1])
    for at, end in pairwise(offsets):
        if end - at > PROPERTIES_BYTES_MAX:
            raise SyntaxFault(reason=f"the headers of a row have at most {PROPERTIES_BYTES_MAX} bytes in all")
        if at < end and inspect_properties(data[at:end])[0] & HAS_USER_ID:
            raise SyntaxFault(reason="the properties of a row must not name a user")
