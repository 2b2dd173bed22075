"""Rows as messages to an exchange, messages and mark in one transaction of the broker.

Any AMQP consumer gets them from the queues (or streams) that are bound there. All messages of a batch become visible
together, with the mark in the stream `tidemark.pipeline.marks` (see `stream.py`): none is lost and none is published
twice, whatever is killed. A message that no queue wants refuses the whole batch, as does a full queue.

In mode mirror a message says what a key is now; it has the headers `tidemark-key` and `tidemark-sequence`. A deleted key is an
empty message with the header `x-tombstone`, which is what a keyed stream takes for a delete.

Invariant: a message is published in the transaction that moves the mark over its row.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark_spark.errors import OptionError, SinkRefused
from tidemark_spark.pipeline.sinks.rendering import bytes_of, json_rows, texts
from tidemark_spark.pipeline.sinks.stream import SEQUENCE_HEADER, MarkedBroker
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, key_text
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Digest, Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.client.blocking import Transaction
    from tidemark_spark.pipeline.values import Change, Mode

KEY_HEADER = "tidemark-key"
TOMBSTONE_HEADER = "x-tombstone"
ROUTING_KEY_BYTES_MAX = 255

Message = tuple[str, bytes, dict[str, Any]]
"""Routing key, body, headers."""


class AMQPSink:
    """A `Sink` of all modes that can only be added to: it has no digest, and nothing can be dropped."""

    batch_rows_max = 32_000
    """What fits into one transaction of a broker with default settings (`stream.put_slow_rows_max`)."""
    batch_bytes_max = 32 << 20
    """Of values in the source; messages are about as large, and a request has 64 MiB (`stream.frame_bytes_max`)."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        given = SinkOptions(name, options)
        self._name = name
        self._exchange = given.get("exchange")
        if not isinstance(self._exchange, str):
            raise given.wrong("exchange", "must be the name of an exchange; '' is the default exchange")
        self._template = Template(given.text("routing_key", "{_key}"), given)
        self._key_column = given.text("key_column", "key")
        given.names("key")  # of mode update: messages need none
        self._body_column: str | None = given.text("body_column") if "body_column" in options else None
        self._deletes = given.text("deletes", "publish")
        if self._deletes not in ("publish", "ignore"):
            raise given.wrong(
                "deletes", "is 'publish' (an empty message with the header x-tombstone) or 'ignore'"
            )
        self._broker = MarkedBroker(name, pipeline, self._exchange, given)
        given.done()

    # Sink ---------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        return self._broker.open()

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape(mode).schema(schema)
        for column in self._template.columns:
            if column not in schema.names:
                raise self._wrong(
                    "routing_key", f"no column '{column}'; the rows have {', '.join(schema.names)}"
                )
        if mode == "mirror" and self._deletes == "publish" and set(self._template.columns) - {KEY}:
            raise self._wrong(
                "routing_key",
                "of a deleted key only {_key} is known; use that alone, or say deletes = 'ignore'",
            )
        if self._body_column is not None:
            if self._body_column not in schema.names:
                raise self._wrong(
                    "body_column", f"no column '{self._body_column}'; the rows have {', '.join(schema.names)}"
                )
            kind = schema.field(self._body_column).type
            if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise self._wrong(
                    "body_column", f"'{self._body_column}' is {kind}; a body is a text or binary, so CAST it"
                )

    def apply(self, change: Change) -> Applied:
        shape = self._shape(change.mark.mode)
        rows = shape.arrange(change.upserts)
        messages = self._puts(shape, rows, change.upserts)
        puts = len(messages)
        if self._deletes == "publish" and change.deletes.num_rows:
            messages += self._gone(change.deletes)

        def fill(transaction: Transaction) -> None:
            if messages:
                transaction.publish_many(self._exchange, messages)

        if self._broker.commit(change, fill):
            return Applied(skipped=False, upserted=puts, deleted=len(messages) - puts)
        return Applied(skipped=True)

    def digest(self) -> Digest:
        raise SinkRefused(
            sink=self._name,
            problem="published messages are not kept here, so they cannot be compared; bind a stream to the exchange and "
            "compare that",
        )

    def reset(self, drop: bool) -> None:
        if drop:
            raise SinkRefused(
                sink=self._name,
                problem="messages that were published cannot be taken back; without --drop everything is published again",
            )
        self._broker.set_mark(None)

    def close(self) -> None:
        self._broker.close()

    # Messages -----------------------------------------------------------------------------------

    def _shape(self, mode: Mode) -> TableShape:
        # Messages of mode update are one behind the other like those of append: no column must make them unique.
        return TableShape(self._name, "append" if mode == "update" else mode, self._key_column, ())

    def _puts(self, shape: TableShape, rows: pa.Table, upserts: pa.Table) -> list[Message]:
        keys = self._routing_keys(shape, rows, upserts)
        if self._body_column is None:
            bodies = list(json_rows(rows))
        else:
            column = upserts[self._body_column]
            if column.null_count:
                at = column.to_pylist().index(None)
                raise shape.refused(rows, at, f"its column '{self._body_column}' is NULL")
            bodies = bytes_of(column)
        if shape.mode != "mirror":
            return [(key, body, {}) for key, body in zip(keys, bodies, strict=True)]
        named = zip(keys, bodies, bytes_of(upserts[KEY]), upserts[SEQUENCE].to_pylist(), strict=True)
        return [
            (key, body, {KEY_HEADER: key_text(of), SEQUENCE_HEADER: sequence})
            for key, body, of, sequence in named
        ]

    def _gone(self, deletes: pa.Table) -> list[Message]:
        keys = self._routing_keys(self._shape("mirror"), deletes, deletes)
        pairs = zip(keys, bytes_of(deletes[KEY]), deletes[SEQUENCE].to_pylist(), strict=True)
        return [
            (key, b"", {KEY_HEADER: key_text(of), SEQUENCE_HEADER: sequence, TOMBSTONE_HEADER: True})
            for key, of, sequence in pairs
        ]

    def _routing_keys(self, shape: TableShape, rows: pa.Table, named: pa.Table) -> list[str]:
        """The template filled in; `named` has the pipeline's names of the columns, `rows` the sink's."""
        made: list[str] = []
        for at, key in enumerate(self._template.fill(named)):
            try:
                text = key.decode()
            except UnicodeDecodeError:
                raise shape.refused(rows, at, "its routing key is not text") from None
            if len(key) > ROUTING_KEY_BYTES_MAX:
                raise shape.refused(
                    rows, at, f"its routing key has {len(key)} bytes; AMQP takes {ROUTING_KEY_BYTES_MAX}"
                )
            made.append(text)
        return made

    def _wrong(self, option: str, problem: str) -> OptionError:
        return OptionError(option=f"{self._name}.{option}", problem=problem)


class Template:
    """A routing key with columns in it: `orders.{country}.{status}`."""

    def __init__(self, text: str, given: SinkOptions) -> None:
        self._parts: list[tuple[bytes, str | None]] = []
        try:
            for literal, field, form, conversion in string.Formatter().parse(text):
                if form or conversion or field == "":
                    raise ValueError
                self._parts.append((literal.encode(), field))
        except ValueError:
            raise given.wrong("routing_key", f"'{text}' is not like 'orders.{{column}}'") from None

    @property
    def columns(self) -> list[str]:
        return [field for _, field in self._parts if field is not None]

    def fill(self, rows: pa.Table) -> list[bytes]:
        """One for each row; NULL is an empty word."""
        pieces: list[list[bytes]] = []
        for literal, field in self._parts:
            pieces.append([literal] * rows.num_rows)
            if field is not None:
                pieces.append([text or b"" for text in texts(rows[field])])
        return [b"".join(row) for row in zip(*pieces, strict=True)]
