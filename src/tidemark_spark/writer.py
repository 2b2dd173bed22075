"""`df.write` and `df.writeStream` with format "tidemark": rows of a DataFrame become rows of a stream, all or nothing.

    task ──put──▶ staging stream ◀──copy── commit, on the driver ──▶ target

Each task puts its rows, in chunks, into a staging stream that belongs to the query (or to the job of a batch write) and
reports the ranges of sequences that it wrote. When all tasks are done, the driver sends one transaction that copies those
ranges into the target; the broker does it in one step. What a failed, a speculative or a forgotten task staged is
referred to by nobody. The transaction of a micro-batch is numbered with the batch, under a producer named after the
query: a batch that comes again is a duplicate, which changes nothing, and a driver that was replaced while it slept finds
that a newer batch is there and stops. Rows in staging end with the query's next commits, at the latest after a day, and
the names of staging streams say when they were begun, so that any later write can delete those that are over.

A put into staging needs no number: one that is in doubt is made again, and what the first may have stored is referred to
by nobody. Only commits are numbered, and the producer of a job without a key is forgotten when it is done, so that a
broker which remembers so many producers does not lose that of a query that is stopped.

A target that lives in another group of a cluster is written there: its staging stream is made in the same group, for a transaction is of
one. A partitioned stream is several targets. Where a row goes is told by the row itself, so a batch that comes again has the same
rows for each of them; each is committed by itself, under a producer of its own, and those that have the batch skip it.

A delete is a row with `deleted` true, or, when there is no such column, one whose value is null. Of two rows with one
key in the same batch the later wins within a partition; between partitions it is open which.

Invariant: a reader of the target (of a partitioned stream: of one partition) sees, for each batch, all of its rows or none, once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
)

import tidemark.client
from tidemark.client import Client, NotConnected, Receipt, TimedOut, Unconfirmed
from tidemark.client.blocking import Transaction
from tidemark.errors import (
    AccessRefused,
    CommandInvalid,
    ContentTooLarge,
    DiskFull,
    NotFound,
    PublishersBlocked,
    TidemarkError,
)
from tidemark.model.partitions import partition_of
from tidemark.model.wiring import MAIN
from tidemark_spark.errors import (
    BatchTooLarge,
    BrokerAway,
    ColumnsRefused,
    GroupsDiffer,
    OptionError,
    RowsRefused,
    WriterFenced,
)
from tidemark_spark.options import Option, duration, flag, parse_options, text, url

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidemark.spark")
T = TypeVar("T")

CHUNK_BYTES = 8 << 20
CHUNK_BYTES_LEAST = 256 << 10
"""The same where a task writes to many partitions, for each of which it holds as much."""
CHUNK_ROWS = 64 << 10
CHUNK_ROWS_WITH_HEADERS = 8 << 10
"""One put of a task at most, well below what a client may put at once."""
PIECE_BYTES = 32 << 20
"""About one transaction of a write that need not be atomic."""
RECORD_BYTES = 64
"""About what the journal takes for a row besides its own bytes."""
KEY_BYTES_MAX = 65_535
CALL_S = 15.0
"""After so long without an answer another connection is tried."""
PAUSE_S = 0.2
AWAY = (NotConnected, TimedOut, Unconfirmed, PublishersBlocked, DiskFull)
"""What passes by itself."""
STAGING_AGE = "1D"
STAGING_AGE_HOURS = 24
QUERY_HOURS = 7 * 24
"""After so long a query goes on in another staging stream."""
SWEEP_S = 3600.0
"""How often a process looks for staging streams that are over."""
TARGET_BYTES_MAX = 160
"""Of a stream's name, in the name of a staging stream; of a longer one there is a hash."""
TRUNCATE_BYTES = 16 << 20
"""What may lie in a query's staging stream after it was committed."""
QUERY = "sql.streaming.queryId"

READ_ONLY = frozenset({"stream", "shard", "sequence", "history", "timestamp", "partition"})
"""What only a read has: not written, so that what was read from one stream can be written to another as it is."""

_URL = Option(
    "tidemark.url", url, None, "where the broker is: tidemark://user:password@host:port,host:port/vhost"
)
_COMMON = (
    _URL,
    Option("stream", text, None, "the stream to write to"),
    Option("createStream", flag, False, "whether to create it when it is not there"),
    Option("retryTimeout", duration, 120.0, "how long a broker that is away is waited for"),
)
BATCH: tuple[Option, ...] = (
    *_COMMON,
    Option(
        "idempotencyKey", text, None, "a name for this write: a second one with the same name writes nothing"
    ),
    Option(
        "atomic", flag, True, "false: the rows may become visible in several pieces, and may be any number"
    ),
)
STREAM: tuple[Option, ...] = (
    *_COMMON,
    Option("checkpointLocation", text, None, "where Spark keeps the query's progress"),
)
SPARKS_OWN = frozenset({"queryname"})
"""What Spark adds to the options of a query's sink by itself; it says nothing about a stream."""


class Target(NamedTuple):
    """A stream that is written to, and the group of the cluster that it lives in."""

    stream: str
    group: str = MAIN


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was told, checked. Plain data: it travels to the tasks."""

    url: str
    stream: str
    create: bool
    retry_s: float
    idempotency_key: str | None = None
    atomic: bool = True
    targets: tuple[Target, ...] = ()
    """Where the stream was found (`find_target`): one, or in their order the partitions that it is a name for."""

    def producer(self, target: Target, name: str) -> str:
        """The producer of this name for one of the targets: those of partitions count by themselves."""
        return name if target.stream == self.stream else f"{name}/{target.stream}"


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write`.

    Raises:
        OptionError, ColumnsRefused: before any task is started. So are the broker's refusals.
    """
    if overwrite:
        raise OptionError(
            option="mode",
            problem="overwrite is not possible: rows replace those with the same key. Use append, and "
            "`tidemark stream purge` first if nothing of the old is to stay",
        )
    chosen = _options(options, BATCH)
    if chosen.idempotency_key is not None and not chosen.atomic:
        raise OptionError(
            option="idempotencyKey", problem="needs a write in one piece; leave out atomic=false"
        )
    return BatchWriter(chosen, shape_of(schema, chosen.stream))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG001
    """The writer of `df.writeStream`. In mode complete (`overwrite`) every batch has every key: each is put again.

    Raises:
        OptionError, ColumnsRefused: before any task is started. So are the broker's refusals.
    """
    own = {name: value for name, value in options.items() if name.lower() not in SPARKS_OWN}
    chosen = _options(own, STREAM)
    return StreamWriter(chosen, shape_of(schema, chosen.stream))


def _options(given: Mapping[str, str], table: Sequence[Option]) -> WriteOptions:
    if any(name.lower() == "path" for name in given):
        raise OptionError(
            option="path", problem="save() and start() take no path; name the stream with option stream"
        )
    found = parse_options(given, table, known=BATCH)
    if found["tidemark.url"] is None:
        raise OptionError(
            option="tidemark.url",
            problem="is needed: where the broker is, such as tidemark://guest:guest@127.0.0.1:5672/",
        )
    if found["stream"] is None:
        raise OptionError(option="stream", problem="is needed: the name of the stream to write to")
    return WriteOptions(
        url=found["tidemark.url"],
        stream=found["stream"],
        create=found["createStream"],
        retry_s=found["retryTimeout"],
        idempotency_key=found.get("idempotencyKey"),
        atomic=found.get("atomic", True),
    )


# Columns -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the columns of a stream's rows are in a DataFrame; None: it does not have that one."""

    stream: str
    value: int
    key: int | None = None
    deleted: int | None = None
    headers: int | None = None

    @property
    def rows_max(self) -> int:
        return CHUNK_ROWS if self.headers is None else CHUNK_ROWS_WITH_HEADERS

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch as the broker takes them.

        Raises:
            RowsRefused: one of them cannot be stored.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        value = _bytes(batch.column(self.value))
        key = None if self.key is None else _bytes(batch.column(self.key))
        columns = {} if key is None else {"key": key}
        deleted = None
        if self.deleted is not None:
            deleted = pc.fill_null(batch.column(self.deleted), False)
            self._none(
                value.null_count and pc.and_(pc.is_null(value), pc.invert(deleted)),
                key,
                "its value is null and it is not deleted; write an empty value, or set deleted",
            )
        elif value.null_count:
            deleted = pc.is_null(value)
        columns["value"] = pc.fill_null(value, b"") if value.null_count else value
        if deleted is not None and pc.any(deleted).as_py():
            nobody = deleted if key is None else key.null_count and pc.and_(pc.is_null(key), deleted)
            self._none(nobody, key, "a row that is deleted must have a key")
            columns["deleted"] = deleted
        if key is not None and (pc.max(pc.binary_length(key)).as_py() or 0) > KEY_BYTES_MAX:
            longer = pc.greater(pc.binary_length(key), KEY_BYTES_MAX)
            self._none(longer, key, f"a key has at most {KEY_BYTES_MAX} bytes")
        if self.headers is not None:
            columns["headers"] = batch.column(self.headers)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _none(self, bad: Any, key: pa.Array | None, problem: str) -> None:
        """Refuse the first row of which it is true."""
        import pyarrow.compute as pc

        if bad is not False and bad != 0 and pc.any(bad).as_py():
            row = pc.index(bad, True).as_py()
            raise RowsRefused(
                stream=self.stream, key=shown(None if key is None else key[row].as_py()), problem=problem
            )


def _bytes(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column if column.type == pa.binary() else column.cast(pa.binary())


def shown(key: bytes | None) -> str:
    """A key for a message: as text where it is text, not too long."""
    if key is None:
        return "null"
    try:
        whole = f"'{key.decode()}'"
    except UnicodeDecodeError:
        whole = f"0x{key.hex()}"
    return whole if len(whole) <= 80 else f"{whole[:76]}…"


def shape_of(schema: StructType, stream: str) -> Shape:
    """Which column of a DataFrame is which.

    Raises:
        ColumnsRefused: one is missing, unknown or of a type that a stream does not have.
    """
    places: dict[str, int] = {}
    for at, name in enumerate(map(str.lower, schema.names)):
        if places.setdefault(name, at) != at:
            raise ColumnsRefused(stream=stream, problem=f"there are two columns '{name}'")
    if "value" not in places:
        raise ColumnsRefused(
            stream=stream,
            problem=f"there is no column 'value' (there are: {', '.join(schema.names)}). Make one of all others with "
            f"to_json(struct(*)) AS value",
        )
    for column in schema.fields:
        if problem := _problem(column.name.lower(), column.dataType):
            raise ColumnsRefused(stream=stream, problem=f"column '{column.name}' {problem}")
    return Shape(stream, places["value"], places.get("key"), places.get("deleted"), places.get("headers"))


def _problem(name: str, kind: DataType) -> str | None:
    """What is wrong with a column; None: nothing."""
    if name in READ_ONLY:
        return None
    if name in ("key", "value"):
        if _is_bytes(kind):
            return None
        return f"is {kind.simpleString()}, not string or binary; CAST it, or use to_json for what has fields"
    if name == "deleted":
        return None if isinstance(kind, BooleanType) else f"is {kind.simpleString()}, not boolean"
    if name == "headers":
        if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and _is_bytes(kind.valueType):
            return None
        if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            parts = [part.dataType for part in kind.elementType.fields]
            named = [part.name.lower() for part in kind.elementType.fields]
            if named == ["key", "value"] and isinstance(parts[0], StringType) and _is_bytes(parts[1]):
                return None
        return f"is {kind.simpleString()}, not map<string,string> or array<struct<key string, value binary>>"
    return "is not one of a stream; leave it out, or put it into the value with to_json(struct(*)) AS value"


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType, CharType, VarcharType))


# Staging, in the tasks -----------------------------------------------------------------------------


class Part(NamedTuple):
    """Rows of a staging stream, both ends included."""

    staging: str
    first: int
    last: int
    history: str
    """In which they have these sequences."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task wrote for one target: ranges of sequences of the staging stream, both ends included."""

    query: str
    staging: str
    ranges: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes of each range."""
    histories: list[str] = field(default_factory=list)
    """Of each range: the broker's history that its receipt names."""
    target: int = 0
    """Which of the targets."""

    @property
    def parts(self) -> list[Part]:
        return [
            Part(self.staging, first, last, history)
            for (first, last), history in zip(self.ranges, self.histories, strict=True)
        ]

    @property
    def rows(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass
class StagedApart(WriterCommitMessage):
    """What a task wrote for several targets."""

    parts: list[Staged]


class Link:
    """What a process keeps between tasks and batches: a connection, and what it has seen to."""

    def __init__(self, options: WriteOptions) -> None:
        self.client = tidemark.client.connect(
            options.url, timeout=min(CALL_S, max(1.0, options.retry_s)), name="tidemark-spark-writer"
        )
        self.targets: dict[str, tuple[Target, ...]] = {}
        """Where streams were found."""
        self.known: set[str] = set()
        """Staging streams that were found or created."""
        self.left: dict[str, int] = {}
        """Bytes of committed rows in staging streams that were not truncated since."""
        self.swept = float("-inf")
        """When it last looked for staging streams that are over."""

    def of(self, target: Target) -> Client:
        """The connection to the group of a target."""
        return self.client.group(target.group)


_links: dict[tuple[int, str], Link] = {}


def _link(options: WriteOptions) -> Link:
    # By process: what a parent opened before it forked is the parent's.
    place = os.getpid(), options.url
    if place not in _links:
        _links[place] = Link(options)
    return _links[place]


def _patiently(options: WriteOptions, do: Callable[[Link], T]) -> T:
    """Do it, again while the broker is away or has no room. What is done must do no harm when it is done twice.

    Raises:
        BrokerAway: for longer than the options allow.
    """
    begun = time.monotonic()
    while True:
        try:
            return do(_link(options))
        except AWAY as problem:
            waited = time.monotonic() - begun
            if waited >= options.retry_s:
                work = f"writing to stream '{options.stream}'"
                raise BrokerAway(work=work, waited_s=waited, problem=str(problem)) from None
            time.sleep(PAUSE_S)


def stage(
    options: WriteOptions, shape: Shape, query: str, staging: str, batches: Iterable[pa.RecordBatch]
) -> Staged:
    """Put the rows of one task into the staging stream.

    Raises:
        RowsRefused, BrokerAway, TidemarkError: the task is to fail; what it has staged means nothing.
    """
    staged = Staged(query, staging)
    for chunk in _chunks(map(shape.rows, batches), shape.rows_max):
        _put(options, staged, chunk)
    return staged


def stage_apart(
    options: WriteOptions,
    shape: Shape,
    query: str,
    staging: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> StagedApart:
    """The same for several targets, each with a staging stream: `divided` says which rows are whose."""
    count = len(staging)
    staged = [Staged(query, name, target=at) for at, name in enumerate(staging)]
    bytes_max = max(CHUNK_BYTES // count, CHUNK_BYTES_LEAST)
    chunks = [Chunks(shape.rows_max, bytes_max) for _ in staged]
    for batch in map(shape.rows, batches):
        for at, part in divided(batch, count):
            for chunk in chunks[at].add(part):
                _put(options, staged[at], chunk)
    for one, rest in zip(staged, chunks, strict=True):
        for chunk in rest.end():
            _put(options, one, chunk)
    return StagedApart([one for one in staged if one.ranges])


def divided(rows: pa.RecordBatch, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by partition. One without a key goes by its value: the same row must go to the same partition each time it comes."""
    import pyarrow as pa

    values = rows.column("value").to_pylist()
    keys = rows.column("key").to_pylist() if "key" in rows.schema.names else [None] * rows.num_rows
    places: dict[int, list[int]] = {}
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        places.setdefault(partition_of(value if key is None else key, count), []).append(place)
    for at in sorted(places):
        yield at, rows.take(pa.array(places[at], pa.int64()))


class Chunks:
    """Batches joined and split so that each part is as large as one put may be."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._held: list[pa.RecordBatch] = []
        self._rows = self._size = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """What is large enough now."""
        for part in _parts(batch, self._rows_max):
            if self._held and (
                self._rows + part.num_rows > self._rows_max
                or self._size + part.nbytes > self._bytes_max
                or _differ(self._held[0], part)
            ):
                yield from self.end()
            self._held.append(part)
            self._rows += part.num_rows
            self._size += part.nbytes

    def end(self) -> Iterator[pa.Table]:
        """What is left."""
        import pyarrow as pa

        if self._held:
            held, self._held, self._rows, self._size = self._held, [], 0, 0
            yield pa.Table.from_batches(held)


def _chunks(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """The same rows in the same order, as large as one put may be."""
    chunks = Chunks(rows_max, CHUNK_BYTES)
    for batch in batches:
        yield from chunks.add(batch)
    yield from chunks.end()


def _differ(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether one has deletes and the other none."""
    return bool(one.schema != other.schema)


def _parts(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows > 1 and (rows > rows_max or batch.nbytes > CHUNK_BYTES):
        yield from _parts(batch.slice(0, rows // 2), rows_max)
        yield from _parts(batch.slice(rows // 2), rows_max)
    elif rows:
        yield batch


def _put(options: WriteOptions, staged: Staged, chunk: pa.Table) -> None:
    target = options.targets[staged.target]

    def do(link: Link) -> Receipt:
        if staged.staging not in link.known:
            _make_staging(link, staged.staging, target)
            link.known.add(staged.staging)
        try:
            return tidemark.client.Stream(link.of(target), staged.staging).put_many(chunk)
        except NotFound:
            link.known.discard(staged.staging)  # somebody deleted it
            raise

    try:
        try:
            receipt = _patiently(options, do)
        except NotFound:
            receipt = _patiently(options, do)
    except (ContentTooLarge, ValueError) as problem:
        if chunk.num_rows == 1:
            key = chunk.column("key")[0].as_py() if "key" in chunk.column_names else None
            raise RowsRefused(stream=target.stream, key=shown(key), problem=str(problem)) from None
        half = chunk.num_rows // 2
        _put(options, staged, chunk.slice(0, half))
        _put(options, staged, chunk.slice(half))
        return
    assert receipt.sequence - receipt.first + 1 == chunk.num_rows, "a put has one range of sequences"
    staged.ranges.append((receipt.first, receipt.sequence))
    staged.sizes.append(chunk.nbytes)
    staged.histories.append(receipt.history)


def _make_staging(link: Link, name: str, target: Target) -> None:
    """In the group of the target, so that one transaction can copy from one to the other.

    Raises:
        GroupsDiffer: it is there, and lives in another one.
    """
    elsewhere = target.group != link.client.group_name
    arguments = {"x-group": target.group} if elsewhere else None
    made = link.client.stream(name, create=True, key="log", max_age=STAGING_AGE, arguments=arguments)
    if (group := made.client.group_name) != target.group:
        raise GroupsDiffer(stream=target.stream, group=target.group, helper=name, helper_group=group)


# Committing, on the driver -------------------------------------------------------------------------


def find_target(options: WriteOptions) -> WriteOptions:
    """See that the target is there, once a process, and where: the options, with `targets`.

    Raises:
        OptionError: it is not, and is not to be created.
    """

    def do(link: Link) -> tuple[Target, ...]:
        if options.stream not in link.targets:
            link.targets[options.stream] = _targets(link.client, options)
        return link.targets[options.stream]

    try:
        return replace(options, targets=_patiently(options, do))
    except NotFound:
        raise OptionError(
            option="stream",
            problem=f"there is no stream '{options.stream}'; create it with `tidemark stream create {options.stream}`, "
            f"or write with the option createStream=true",
        ) from None


def _targets(client: Client, options: WriteOptions) -> tuple[Target, ...]:
    """Raises NotFound: there is neither a stream of this name nor a partitioned one, and none is to be created."""
    try:
        if not options.create:
            with contextlib.suppress(NotFound):
                found = client.stream(options.stream)
                return (Target(found.name, found.client.group_name),)
        partitions = client.partitioned(options.stream).partitions
    except (NotFound, CommandInvalid):
        if not options.create:
            raise
        made = client.stream(options.stream, create=True)
        return (Target(made.name, made.client.group_name),)
    for one in partitions:
        # If only main has it, this makes it in its group. Who may not look at it is told when he writes to it.
        with contextlib.suppress(AccessRefused, NotFound):
            one.client.see(one.name)
    return tuple(Target(one.name, one.client.group_name) for one in partitions)


def publish(
    options: WriteOptions, target: Target, name: str, number: int | None, parts: Sequence[Part]
) -> tuple[Receipt | None, int]:
    """Copy ranges of staged rows into the target in one transaction of producer `name`; without any, its number is stored.

    Returns the receipt and the producer's last number. Without a `number` it is the next one.

    Raises:
        ContentTooLarge: it is too much for one transaction; nothing was stored.
        LostBranch, StreamReset: what was staged was taken back; nothing was stored.
    """
    chosen: list[int] = [] if number is None else [number]

    def do(link: Link) -> tuple[Receipt | None, int]:
        client = link.of(target)
        producer = client.producer(name)
        if not chosen:
            chosen.append(producer.last + 1)
        with producer.transaction(number=chosen[0]) as tx:
            _copy(tx, parts, target.stream)
            if not parts:
                tx.put_many(target.stream, [])  # a batch without operations has no number
        last = client.producer(name).last if tx.receipt and tx.receipt.duplicate else chosen[0]
        return tx.receipt, last

    return _patiently(options, do)


def _copy(tx: Transaction, parts: Sequence[Part], target: str) -> None:
    for staging, first, last, history in parts:
        tx.copy(staging, first, last, into=target, history=history)


def rehearse(options: WriteOptions, target: Target, parts: Sequence[Part]) -> None:
    """Let the broker look at a transaction that it refuses in the end: nothing is stored.

    Raises:
        ContentTooLarge: it is too much for one transaction.
    """

    def do(link: Link) -> None:
        tx = link.of(target).transaction()
        # No row without a key is at a sequence. It comes first, so that the broker compares no others.
        tx.put(target.stream, None, b"", expected=1)
        _copy(tx, parts, target.stream)
        try:
            tx.commit()
        except (ContentTooLarge, *AWAY):
            raise
        except TidemarkError:
            return  # the conflict; of anything else the commit itself tells

    _patiently(options, do)


def _check_sizes(
    options: WriteOptions, given: Sequence[tuple[Target, Sequence[Staged]]], streaming: bool
) -> None:
    """See that no target gets more than one transaction may have, before the first of them is written.

    The first has the most bytes, so that it is the first to be refused for them. Another one may have more rows or ranges.

    Raises:
        BatchTooLarge: nothing was written.
    """
    counts = {target: _counts(staged) for target, staged in given}
    for target, staged in given[1:]:
        rows, ranges = counts[target]
        rows_first, ranges_first = counts[given[0][0]]
        # What came in one put is not too much: a put has the same limits.
        if ranges > 1 and (rows > rows_first or ranges > ranges_first):
            try:
                rehearse(options, target, [part for each in staged for part in each.parts])
            except ContentTooLarge as problem:
                raise _too_large(target, staged, problem, streaming) from None


def _counts(staged: Sequence[Staged]) -> tuple[int, int]:
    """Rows, and ranges of them."""
    return sum(each.rows for each in staged), sum(len(each.ranges) for each in staged)


def _too_large(
    target: Target, staged: Sequence[Staged], problem: ContentTooLarge, streaming: bool
) -> BatchTooLarge:
    return BatchTooLarge(
        stream=target.stream,
        rows=sum(each.rows for each in staged),
        size=sum(each.size for each in staged),
        problem=problem.reason,
        streaming=streaming,
    )


def _given(
    options: WriteOptions, messages: Iterable[WriterCommitMessage | None]
) -> list[tuple[Target, list[Staged]]]:
    """What tasks staged, by target, the one with the most bytes first; a task that failed has no message."""
    found: dict[int, list[Staged]] = {}
    for message in messages:
        parts = message.parts if isinstance(message, StagedApart) else [message]
        for one in parts:
            if isinstance(one, Staged) and one.ranges:
                found.setdefault(one.target, []).append(one)
    by_size = sorted(found, key=lambda at: -sum(one.size + RECORD_BYTES * one.rows for one in found[at]))
    return [(options.targets[at], found[at]) for at in by_size]


def _write(
    options: WriteOptions, shape: Shape, query: str, names: Sequence[str], rows: Iterator[pa.RecordBatch]
) -> Staged | StagedApart:
    """What a task does; `names` are the staging streams of the targets."""
    if len(names) == 1:
        return stage(options, shape, query, names[0], rows)
    return stage_apart(options, shape, query, names, rows)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        self._options = find_target(options)
        self._shape = shape

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | StagedApart:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(QUERY) if context is not None else None
        if query is None:
            raise RuntimeError("Spark did not tell the task which query it is of")
        now, options = time.time(), self._options
        names = [staging_of(target.stream, "query", query, now) for target in options.targets]
        return _write(options, self._shape, query, names, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        given = _given(self._options, messages)
        _check_sizes(self._options, given, streaming=True)
        for target, staged in given:
            self._commit(target, staged, batchId)
        if given:
            sweep(self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to take back: no reader has seen anything, and the next commit truncates what was staged.

        It is not done here, because this driver may be one that was replaced: what lies in staging may be its successor's.
        """

    def _commit(self, target: Target, staged: Sequence[Staged], batch: int) -> None:
        """Write the batch to one target, unless it has it.

        Raises:
            WriterFenced: it has a newer one.
        """
        options = self._options
        [query] = {each.query for each in staged}
        parts = [part for each in staged for part in each.parts]
        producer = options.producer(target, f"spark.{query}")
        try:
            receipt, last = publish(options, target, producer, batch + 1, parts)
        except ContentTooLarge as problem:
            raise _too_large(target, staged, problem, streaming=True) from None
        if last > batch + 1:
            raise WriterFenced(stream=target.stream, query=query, batch=batch, newest=last - 1)
        if receipt is not None and not receipt.duplicate:
            for staging in {each.staging for each in staged}:  # two, when a week ends while tasks run
                self._clean(target, staging, [each for each in staged if each.staging == staging])

    def _clean(self, target: Target, staging: str, committed: Sequence[Staged]) -> None:
        """End what was committed. It may fail: the batch is written, and rows in staging end by themselves."""
        link = _link(self._options)
        upto = max(last for each in committed for _, last in each.ranges)
        size = sum(each.size for each in committed)
        left = link.left.get(staging, TRUNCATE_BYTES) + size  # a first commit cleans up after a crash
        if left >= TRUNCATE_BYTES:
            with contextlib.suppress(TidemarkError):
                tidemark.client.Stream(link.of(target), staging).truncate(upto)
                left = 0
        link.left[staging] = left


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        self._options = find_target(options)
        self._shape = shape
        self._job = uuid.uuid4().hex
        now = time.time()
        self._staging = [staging_of(one.stream, "job", self._job, now) for one in self._options.targets]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | StagedApart:
        return _write(self._options, self._shape, self._job, self._staging, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._options
        given = _given(options, messages)
        if options.atomic:
            _check_sizes(options, given, streaming=False)
        if options.idempotency_key is not None:  # a second write is none, also where this one has no rows
            written = {target for target, _ in given}
            given += [(target, []) for target in options.targets if target not in written]
        for target, staged in given:
            self._commit(target, staged)
        # Without the staging streams nothing of this job can be committed again, so nobody need know that it was.
        if self._clean() and options.idempotency_key is None:
            for target in options.targets:
                with contextlib.suppress(TidemarkError):
                    _link(options).of(target).forget_producer(self._producer(target))

    def _commit(self, target: Target, staged: Sequence[Staged]) -> None:
        options = self._options
        parts = [part for each in staged for part in each.parts]
        try:
            if options.idempotency_key is not None:
                self._publish_once(target, options.idempotency_key, parts)
            elif options.atomic:
                publish(options, target, self._producer(target), 1, parts)
            else:
                for piece in _pieces(staged):
                    self._publish_any(target, piece)
        except ContentTooLarge as problem:
            raise _too_large(target, staged, problem, streaming=False) from None

    def _producer(self, target: Target) -> str:
        return self._options.producer(target, f"spark.job.{self._job}")

    def _publish_once(self, target: Target, key: str, parts: Sequence[Part]) -> None:
        receipt, _ = publish(self._options, target, producer_of(target.stream, key), 1, parts)
        if parts and receipt is not None and receipt.duplicate:
            log.warning(
                "nothing was written to stream '%s': a write with the idempotencyKey '%s' was there already. If these "
                "rows are others, write them with another key",
                target.stream,
                key,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        self._clean()

    def _publish_any(self, target: Target, parts: Sequence[Part]) -> None:
        """In one transaction if it can be, else in as few as needed."""
        try:
            publish(self._options, target, self._producer(target), None, parts)
        except ContentTooLarge:
            if len(parts) > 1:
                halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
            else:
                [part] = parts
                if part.first == part.last:
                    raise
                middle = (part.first + part.last) // 2
                halves = [part._replace(last=middle)], [part._replace(first=middle + 1)]
            for half in halves:
                self._publish_any(target, half)

    def _clean(self) -> bool:
        """Delete what was staged. It may fail (False): rows in staging end by themselves, and later so do the streams."""
        sweep(self._options)
        gone = [self._is_gone(name) for name in self._staging]
        return all(gone)

    def _is_gone(self, staging: str) -> bool:
        try:
            _link(self._options).client.delete_stream(staging)
        except NotFound:
            return True  # nothing was staged
        except TidemarkError:
            return False
        return True


def producer_of(stream: str, key: str) -> str:
    """The producer of all writes to a stream that have this key."""
    return f"spark.key.{hashlib.sha256(json.dumps([stream, key]).encode()).hexdigest()}"


# Staging streams -----------------------------------------------------------------------------------

_STAGING = re.compile(r"spark\.staging\..+\.(job|query)-([0-9]{6,7})-[0-9a-f-]{32,36}")


def staging_of(target: str, kind: Literal["job", "query"], who: str, now: float) -> str:
    """Where the rows of a job or of a query are staged. The hour in the name is when the stream was begun."""
    name = target.encode()
    if len(name) > TARGET_BYTES_MAX:
        target = hashlib.sha256(name).hexdigest()
    hour = int(now) // 3600
    if kind == "query":
        hour -= hour % QUERY_HOURS
    return f"spark.staging.{target}.{kind}-{hour}-{who}"


def abandoned(streams: Iterable[str], now: float) -> list[str]:
    """Staging streams so old that their rows have ended by age: nobody can commit them any more."""
    found = []
    for stream in streams:
        if match := _STAGING.fullmatch(stream):
            used = QUERY_HOURS if match[1] == "query" else 0
            if now / 3600 - int(match[2]) > used + 2 * STAGING_AGE_HOURS:
                found.append(stream)
    return found


def sweep(options: WriteOptions) -> None:
    """Delete staging streams of stopped queries and killed jobs, of all targets. It may fail: the next write does it."""
    link = _link(options)
    if time.monotonic() - link.swept < SWEEP_S:
        return
    link.swept = time.monotonic()
    with contextlib.suppress(TidemarkError):
        for stream in abandoned([stream.name for stream in link.client.streams()], time.time()):
            with contextlib.suppress(TidemarkError):
                link.client.delete_stream(stream)


def _pieces(staged: Sequence[Staged]) -> Iterator[list[Part]]:
    """All ranges, in portions of about a transaction's size."""
    held: list[Part] = []
    size = 0
    for each in staged:
        for part, more in zip(each.parts, each.sizes, strict=True):
            if held and size + more > PIECE_BYTES:
                yield held
                held, size = [], 0
            held.append(part)
            size += more
    if held:
        yield held
