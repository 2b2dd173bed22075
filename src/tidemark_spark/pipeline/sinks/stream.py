"""Rows in another stream of Tidemark, rows and mark in one transaction of the broker.

The mark is a row of the stream `tidemark.pipeline.marks` beside the target, on the same broker; where the target lives in
another group of a cluster than main, of `tidemark.pipeline.marks.<group>`, which lives there too. It is put in the same
transaction as the batch, with `expected` = the sequence at which it was read: the broker stores all of it, or, when
somebody else moved the mark meanwhile, nothing. So a zombie is fenced, and a transaction whose answer was lost is
settled by reading the mark again. (Numbered transactions of a producer would not do: numbers of batches start again with a
new checkpoint, and the broker would take new rows for old ones.)

A value is the row as JSON, with `_sequence`, or the bytes of one column (`value_column`); then the sequence travels in a header.

Where the source lives does not matter: the mark only tells of it.

Invariant: rows and mark are of the same transaction.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tidemark.client
from tidemark.client import Conflict, NotConnected, TimedOut, Unconfirmed
from tidemark.client import operations as ops
from tidemark.errors import CommandInvalid, ContentTooLarge, LoginRefused, NotFound, TidemarkError
from tidemark.model.wiring import MAIN
from tidemark_spark.errors import GroupsDiffer, OptionError, PipelineError, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.rendering import bytes_of, json_rows, keys_of
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of, key_text
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Digest, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tidemark.client import Client, Row, Stream
    from tidemark.client.blocking import Transaction
    from tidemark_spark.pipeline.values import Change, Mode

MARKS = "tidemark.pipeline.marks"
"""The stream that holds the marks of all sinks of this broker; with a group behind it, of those of that group."""
SEQUENCE_HEADER = "tidemark-sequence"
DROPPING = b"dropping"
"""Instead of a mark: rows are being removed, and whoever finds this goes on with it."""
DELETE_ROWS = 100_000
ATTEMPTS = 3


class StreamSink:
    """A `Sink` of all modes."""

    batch_bytes_max = 32 << 20
    """Of values in the source; rows are about as large, and a request has 64 MiB (`stream.frame_bytes_max`)."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        given = SinkOptions(name, options)
        self._name = name
        self._stream = given.text("stream")
        self._shards = given.number("shards", 1, least=1)
        self._key_column = given.text("key_column", KEY)
        self._key = given.names("key")
        self._value_column: str | None = given.text("value_column") if "value_column" in options else None
        # What fits into one transaction with default settings: rows with headers take more of the broker's time.
        self.batch_rows_max = 500_000 if self._value_column is None else 32_000
        self._broker = MarkedBroker(name, pipeline, self._stream, given, stream=self._stream)
        given.done()
        if f"{self._stream}.".startswith(f"{MARKS}."):
            raise given.wrong("stream", f"'{MARKS}' holds the marks; choose another")

    # Sink ---------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        return self._broker.open(self._finish_drop)

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        shape = self._shape(mode)
        named = shape.schema(schema)
        if self._value_column is not None:
            if self._value_column not in named.names:
                problem = f"there is no column '{self._value_column}'; the rows have {', '.join(named.names)}"
                raise OptionError(option=f"{self._name}.value_column", problem=problem)
            kind = named.field(self._value_column).type
            if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
                problem = f"'{self._value_column}' is {kind}; a value is a text or binary, so CAST it"
                raise OptionError(option=f"{self._name}.value_column", problem=problem)
        with self._broker.errors():
            db = self._broker.client()
            try:
                db.stream(self._stream)
            except NotFound:
                db.stream(self._stream, create=True, key="explicit", shards=self._shards)

    def apply(self, change: Change) -> Applied:
        shape = self._shape(change.mark.mode)
        rows = shape.arrange(change.upserts)
        batch = self._batch(shape, rows, change)

        def fill(transaction: Transaction) -> None:
            if batch.num_rows:
                transaction.put_many(self._stream, batch)

        if self._broker.commit(change, fill):
            return Applied(skipped=False, upserted=rows.num_rows, deleted=change.deletes.num_rows)
        return Applied(skipped=True)

    def digest(self) -> Digest:
        with self._broker.errors(), self._broker.client().stream(self._stream).snapshot() as snapshot:
            columns = ["key", "value", "deleted", "sequence", "headers"]
            pairs = [
                (row.key, self._source_sequence(row))
                for row in snapshot.rows(columns=columns)
                if not row.deleted
            ]
        return digest_of([([key for key, _ in pairs], [sequence for _, sequence in pairs])])

    def reset(self, drop: bool) -> None:
        if drop:
            self._broker.set_mark(DROPPING)
            self._finish_drop()
        self._broker.set_mark(None)

    def close(self) -> None:
        self._broker.close()

    # Rows ---------------------------------------------------------------------------------------

    def _shape(self, mode: Mode) -> TableShape:
        return TableShape(self._name, mode, self._key_column, self._key)

    def _batch(self, shape: TableShape, rows: pa.Table, change: Change) -> pa.Table:
        """Puts and deletes as the client takes them."""
        count, gone = rows.num_rows, change.deletes.num_rows
        if shape.key:
            keys: list[bytes | None] = [*keys_of(rows, shape.key)]
        elif self._key:
            keys = [*keys_of(rows, self._key)]
        else:
            keys = [None] * count
        with_sequence = shape.mode == "mirror" and self._value_column is not None
        if self._value_column is not None:
            column = rows[self._value_column]
            if column.null_count:
                at = column.to_pylist().index(None)
                raise shape.refused(rows, at, f"its column '{self._value_column}' is NULL")
            values = bytes_of(column)
        else:
            hidden = [KEY] if shape.mode == "mirror" and self._key_column == KEY else []
            values = list(json_rows(rows.drop_columns(hidden)))
        if gone:
            keys += bytes_of(change.deletes[KEY])
            values += [b""] * gone
        columns: dict[str, pa.Array] = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "deleted": pa.array([False] * count + [True] * gone, pa.bool_()),
        }
        if with_sequence:
            headers = [
                [{"key": SEQUENCE_HEADER, "value": str(one).encode()}] for one in rows[SEQUENCE].to_pylist()
            ]
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns["headers"] = pa.array(headers + [[]] * gone, kind)
        return pa.table(columns)

    def _source_sequence(self, row: Row) -> int:
        try:
            if self._value_column is None:
                return int(json.loads(row.value)[SEQUENCE])
            return int(row.headers[SEQUENCE_HEADER])
        except (ValueError, KeyError, TypeError):
            key = key_text(row.key or b"")
            problem = f"the row '{key}' of stream '{self._stream}' was not put by this sink; give it a stream of its own"
            raise SinkRefused(sink=self._name, problem=problem) from None

    def _finish_drop(self) -> None:
        """End every row: as deletes, which readers of the stream hear of, and rows without keys at once."""
        with self._broker.errors():
            try:
                stream = self._broker.client().stream(self._stream)
            except NotFound:
                return
            for keys in self._live_keys():
                if None in keys:
                    stream.purge()
                    return
                stream.put_many([(key, None) for key in keys])

    def _live_keys(self) -> Iterator[list[bytes | None]]:
        with self._broker.client().stream(self._stream).snapshot() as snapshot:
            keys = [row.key for row in snapshot.rows(columns=["key", "deleted"]) if not row.deleted]
        for at in range(0, len(keys), DELETE_ROWS):
            yield keys[at : at + DELETE_ROWS]


class MarkedBroker:
    """A broker that keeps a sink's mark in the transaction of each batch. Also for the sink `amqp`.

    A transaction is of one group of a cluster: that of `stream`, without one of main, where exchanges are.
    """

    def __init__(
        self, sink: str, pipeline: str, target: str, given: SinkOptions, *, stream: str | None = None
    ) -> None:
        self._sink = sink
        self._stream = stream
        self._url = given.text("url", "tidemark://guest:guest@127.0.0.1:5672/")
        self._timeout_s = given.number("timeout_s", 60, least=1)
        # With the target: another one begins with nothing.
        self._key = f"{pipeline}/{sink}/{target}"
        self._db: Client | None = None
        self._kept: Stream | None = None
        """The marks, beside a target that is there."""
        self._finish_drop: Callable[[], None] | None = None

    def open(self, finish_drop: Callable[[], None] | None = None) -> Mark | None:
        self.close()
        self._finish_drop = finish_drop
        with self.errors():
            return self._stored()[0]

    def client(self) -> Client:
        """The connection, made when it is first needed; it mends itself."""
        if self._db is None:
            try:
                db = tidemark.client.connect(
                    self._url, timeout=self._timeout_s, name=f"tidemark pipeline {self._key}"
                )
            except ValueError as problem:
                raise OptionError(option=f"{self._sink}.url", problem=str(problem)) from None
            self._db = db
        return self._db

    def _marks(self) -> Stream:
        """The stream of marks in the group of the target. While there is no target, those of main: it begins with nothing.

        Raises:
            GroupsDiffer: what has its name lives in another one.
            SinkRefused: the target is a partitioned stream.
        """
        if self._kept is None:
            db = self.client()
            target = self._target(db)
            home = db.group_name if target is None else target.client.group_name
            name = MARKS if home == MAIN else f"{MARKS}.{home}"
            try:
                found = db.stream(name)
            except NotFound:
                arguments = None if home == db.group_name else {"x-group": home}
                found = db.stream(name, create=True, key="explicit", arguments=arguments)
            if (group := found.client.group_name) != home:
                stream = self._stream or self._key
                raise GroupsDiffer(stream=stream, group=home, helper=name, helper_group=group)
            if target is None and self._stream is not None:
                return found
            self._kept = found
        return self._kept

    def _target(self, db: Client) -> Stream | None:
        """The stream that rows go to; None: there is none, or none yet."""
        if self._stream is None:
            return None
        try:
            return db.stream(self._stream)
        except NotFound:
            pass
        try:
            count = len(db.call(ops.partitions(self._stream)).partitions)
        except (NotFound, CommandInvalid):
            return None
        raise SinkRefused(
            sink=self._sink,
            problem=f"'{self._stream}' is a partitioned stream, and no transaction spans its {count} partitions, so a batch "
            f"and its mark cannot be stored together; name one stream",
        )

    def commit(self, change: Change, fill: Callable[[Transaction], None]) -> bool:
        """What `fill` adds and the mark, all or nothing; False when `decide` says that it is there already."""
        doubts = 0
        while True:
            with self.errors():
                stored, at = self._stored()
                if decide(stored, change) is Decision.SKIP:
                    return False
                marks = self._marks()
                transaction = marks.client.transaction()
                fill(transaction)
                transaction.put(marks.name, self._key, change.mark.to_json(), expected=at)
                try:
                    transaction.commit()
                    return True
                except Conflict:
                    continue  # somebody moved the mark: look again
                except Unconfirmed:
                    doubts += 1
                    if doubts == ATTEMPTS:
                        raise
                except (ContentTooLarge, ValueError) as problem:
                    raise self._too_large(change, problem) from None

    def set_mark(self, value: bytes | None) -> None:
        with self.errors():
            marks = self._marks()
            if value is not None:
                marks.put(self._key, value)
            elif marks.get(self._key) is not None:
                marks.delete(self._key)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = self._kept = None

    def errors(self) -> Errors:
        return Errors(self._sink)

    def _stored(self) -> tuple[Mark | None, int]:
        """The mark, and what to expect of its row."""
        row = self._marks().get(self._key)
        if row is not None and row.value == DROPPING:
            assert self._finish_drop is not None
            self._finish_drop()
            self.set_mark(None)
            row = None
        return (None, 0) if row is None else (Mark.from_json(row.value), row.sequence)

    def _too_large(self, change: Change, problem: Exception) -> SinkRefused:
        rows = change.upserts.num_rows + change.deletes.num_rows
        return SinkRefused(
            sink=self._sink,
            problem=f"a batch of {rows:,} rows does not fit into one transaction of the broker ({problem}). Lower "
            "max_rows_per_batch of the pipeline, or raise that setting of the broker",
        )


class Errors:
    """What the client raises, as a sink says it."""

    def __init__(self, sink: str) -> None:
        self._sink = sink

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotConnected | TimedOut | Unconfirmed):
            raise SinkUnavailable(sink=self._sink, problem=str(error)) from None
        if isinstance(error, LoginRefused):
            raise SinkRefused(
                sink=self._sink, problem=f"{error}; check the user and password in url"
            ) from None
        if isinstance(error, TidemarkError) and not isinstance(error, PipelineError):
            raise SinkRefused(sink=self._sink, problem=str(error)) from None
