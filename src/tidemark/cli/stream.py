"""`tidemark stream`: put, read and follow streams from a terminal or a script.

Each command is a few calls of `tidemark.client`. Rows on standard output are text for people or, with `--json`,
one JSON object a line; keys and values that are no UTF-8 are written as `key_base64` and `value_base64`, and `put`
reads the same. Progress of long reads goes to standard error, and only to a terminal. A name that is no stream's may be
that of a partitioned one; what cannot be done with all partitions at once says so.

Invariant: a file that `snapshot` was asked to write appears whole, with a marker that was checked, or not at all.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import dropwhile, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidemark.cli import CommandError
from tidemark.cli.output import details, show
from tidemark.errors import NotFound
from tidemark.model.partitions import partition_of

if TYPE_CHECKING:
    from tidemark.client import Batch, Client, Partitioned, Row, Stream
    from tidemark.client.blocking import Rows
    from tidemark.client.partitioned import Parts

T = TypeVar("T")
U = TypeVar("U")

app = typer.Typer(
    help="Use streams: put, get, snapshot, tail; pins, marks and differences.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Name = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
Key = Annotated[str, typer.Argument(help="The key.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Of a partitioned stream, only this one.")]
Columns = Annotated[
    str,
    typer.Option(
        help="Only these, with commas: key, value, deleted, headers, sequence, timestamp, shard.",
        show_default="all but shard",
    ),
]
BATCH_ROWS = 1000
Line = tuple[int, tuple[Any, ...]]
"""Its number, and the row that it has."""
FORMATS = ("jsonl", "csv", "arrow", "parquet")


@app.callback()
def connect(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_STREAM_URL",
            help="The broker's AMQP address; several are separated by commas, tidemarks:// is TLS.",
        ),
    ] = "tidemark://guest:guest@127.0.0.1:5672/",
    timeout: Annotated[float, typer.Option(help="Seconds that a call may take.")] = 30.0,
) -> None:
    context.obj = lambda: _client(url, timeout)


def _client(url: str, timeout: float) -> Client:
    import tidemark.client

    try:
        return tidemark.client.connect(url, timeout=timeout, name="tidemark stream")
    except ValueError as problem:
        raise CommandError(f"--url: {problem}", 2) from None


def _either(of_a_stream: Callable[[], T], of_a_partitioned: Callable[[], U]) -> T | U:
    """Do it with the stream of a name, or if there is none with the partitioned one."""
    try:
        return of_a_stream()
    except NotFound as missing:
        try:
            return of_a_partitioned()
        except NotFound as problem:
            # One that is there, but not whole, has more to say.
            raise (missing if "no partitioned stream" in str(problem) else problem) from None


def _found(db: Client, name: str, partition: int | None = None) -> Stream | Partitioned:
    """The stream of this name, or else the partitioned one, or of that one partition."""
    if partition is None:
        return _either(lambda: db.stream(name), lambda: db.partitioned(name))
    parts = db.partitioned(name).partitions
    if partition >= len(parts):
        raise CommandError(f"stream '{name}' has the partitions 0 to {len(parts) - 1}, and no {partition}", 2)
    return parts[partition]


def _one(db: Client, name: str) -> Stream:
    """The stream of this name, for what is done with one only."""
    from tidemark.client import Partitioned

    found = _found(db, name)
    if not isinstance(found, Partitioned):
        return found
    raise CommandError(
        f"stream '{name}' is partitioned; do this with one of {found.partitions[0].name} to "
        f"{found.partitions[-1].name}",
        2,
    )


def _place(db: Client, name: str, partition: int | None) -> Callable[[bytes | None], None]:
    """Sees that a key is not written to a partition where nobody would look for it."""
    count = 0 if partition is None else len(db.partitioned(name))

    def check(key: bytes | None) -> None:
        if partition is None or key is None or (right := partition_of(key, count)) == partition:
            return
        raise CommandError(
            f"key '{_shown(key)}' belongs to partition {right} of '{name}', not to {partition}", 2
        )

    return check


# Streams ------------------------------------------------------------------------------------------


@app.command()
def create(
    context: typer.Context,
    name: Name,
    key: Annotated[
        str,
        typer.Option(
            help="explicit, routing-key, message-id or header:<name>: where keys come from; log: keys bury nothing."
        ),
    ] = "explicit",
    shards: Annotated[int | None, typer.Option(help="Parts into which keys are spread.")] = None,
    max_age: Annotated[str | None, typer.Option(help="Keep rows this long: 7D, 12h, 30m, 10s.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Keep this much.")] = None,
    history: Annotated[float | None, typer.Option(help="Seconds that older versions are kept.")] = None,
    tombstone_lease: Annotated[
        float | None, typer.Option(help="Seconds that deletes wait for consumers that are away.")
    ] = None,
    pin_bytes_max: Annotated[int | None, typer.Option(help="What pins may keep at most.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Make so many streams under one name; for ever.")
    ] = None,
    groups: Annotated[
        str,
        typer.Option(
            help="Groups that the partitions go to in turn, with commas.", show_default="all but main"
        ),
    ] = "",
) -> None:
    """Create a stream, or see that it is there with the same properties."""
    if groups and partitions is None:
        raise CommandError("--groups is for a stream with --partitions", 2)
    properties: dict[str, Any] = {
        "key": key,
        "shards": shards,
        "max_age": max_age,
        "max_bytes": max_bytes,
        "history": history,
        "tombstone_lease": tombstone_lease,
        "pin_bytes_max": pin_bytes_max,
    }
    with context.obj() as db:
        if partitions is None:
            db.stream(name, create=True, **properties)
        else:
            where = [one.strip() for one in groups.split(",")] if groups else None
            db.partitioned(name, create=partitions, groups=where, **properties)


@app.command("list")
def list_streams(context: typer.Context, as_json: Json = False) -> None:
    """All streams of the virtual host that you may read."""
    with context.obj() as db:
        found = [dict(one.facts) for one in db.streams()]
    columns = (
        "name",
        "key",
        "shards",
        "live",
        "live_bytes",
        "tombstones",
        "boundary",
        "pins",
        "marks",
        "group",
    )
    show(found, columns, as_json=as_json)


@app.command("show")
def show_stream(
    context: typer.Context, name: Name, partition: Partition = None, as_json: Json = False
) -> None:
    """Everything about one stream, or the partitions of a partitioned one."""
    with context.obj() as db:
        info = _found(db, name, partition).info()
    if isinstance(info, list):
        columns = ("name", "group", "key", "shards", "live", "live_bytes", "tombstones", "last_seq")
        show([dict(one.facts) for one in info], columns, as_json=as_json)
        return
    facts = dict(info.facts)
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        details(facts)


@app.command()
def grow(
    context: typer.Context, name: Name, shards: Annotated[int, typer.Argument(help="How many then.")]
) -> None:
    """Spread a stream over more shards, while everything goes on."""
    with context.obj() as db:
        print(f"{name} has {_one(db, name).grow(shards).shards} shards")


@app.command()
def truncate(
    context: typer.Context,
    name: Name,
    upto: Annotated[int, typer.Argument(help="The last sequence that ends.", min=0)],
    as_json: Json = False,
) -> None:
    """End everything up to a sequence, as retention does; pins go on to show it."""
    with context.obj() as db:
        ended = _one(db, name).truncate(upto)
    _line(
        {"stream": name, "ended": ended}, f"{ended} rows of {name} up to sequence {upto} have ended", as_json
    )


@app.command()
def purge(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """End all that is in a stream; consumers that come back are told to start over."""
    with context.obj() as db:
        ended = _one(db, name).purge()
    _line({"stream": name, "ended": ended}, f"{ended} rows of {name} have ended", as_json)


@app.command()
def drop(context: typer.Context, name: Name) -> None:
    """Delete a stream, or a partitioned one, with everything in it, its marks and its pins."""
    with context.obj() as db:
        _either(lambda: db.delete_stream(name), lambda: db.delete_partitioned(name))


# Rows -----------------------------------------------------------------------------------------------


@app.command()
def put(
    context: typer.Context,
    name: Name,
    key: Annotated[
        str | None, typer.Argument(help="The key; without it rows are read from standard input.")
    ] = None,
    value: Annotated[str | None, typer.Argument(help="The value; without it, or -, standard input.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of the row.")
    ] = None,
    expected: Annotated[
        int | None, typer.Option(help="Only if the key is at this sequence; 0: only if it has no value.")
    ] = None,
    separator: Annotated[str, typer.Option(help="Between key and value of a line.")] = "\t",
    producer: Annotated[
        str | None,
        typer.Option(help="Number the lines under this name: the same input again stores nothing twice."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Lines that are stored together, all or none.")
    ] = BATCH_ROWS,
    partition: Partition = None,
    as_json: Json = False,
) -> None:
    """Store a row, or all rows of standard input.

    A line is a JSON object, {"key": "k", "value": "v", "headers": {}, "deleted": false}, or key, separator and
    value, or in a stream without keys just the value. Lines of a partitioned stream are stored together, all or none,
    within each partition.
    """
    from tidemark.client import Partitioned

    headers = _headers(header)
    if key is None and (headers or expected is not None):
        raise CommandError("--header and --expected are for a row that is given as KEY VALUE", 2)
    with context.obj() as db:
        if key is not None:
            raw = sys.stdin.buffer.read() if value in (None, "-") else str(value).encode()
            _place(db, name, partition)(key.encode())
            receipt = _found(db, name, partition).put(key, raw, headers=headers, expected=expected)
            _receipt(receipt, as_json)
            return
        stream = _found(db, name, partition)
        lines = _lines(separator, _place(db, name, partition))
        if isinstance(stream, Partitioned):
            _put_parts(stream, lines, producer, batch, as_json)
            return
        stored, last = _put_lines(stream, lines, producer, batch)
    if as_json:
        print(json.dumps({"rows": stored, **({} if last is None else last._asdict())}))
    else:
        print(f"{stored} rows stored" + ("" if last is None else f", the last at sequence {last.sequence}"))


def _lines(separator: str, check: Callable[[bytes | None], None]) -> Iterator[Line]:
    """The rows of standard input with the numbers of their lines."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        row = _parsed(line, number, separator)
        check(row[0])
        yield number, row


def _put_lines(stream: Stream, lines: Iterator[Line], producer: str | None, batch: int) -> tuple[int, Any]:
    stored, last = 0, None
    # A producer is of the group that the stream lives in.
    numbered = None if producer is None else stream.client.producer(producer)
    if numbered is not None:
        lines = dropwhile(lambda line: line[0] <= numbered.last, lines)  # stored since an earlier run
    while rows := list(islice(lines, batch)):
        pairs = [row for _, row in rows]
        if numbered is None:
            last = stream.put_many(pairs)
        else:
            last = numbered.put_many(stream, pairs, number=rows[-1][0])
        stored += len(rows)
    return stored, last


def _put_parts(
    stream: Partitioned, lines: Iterator[Line], producer: str | None, batch: int, as_json: bool
) -> None:
    """The same for a partitioned stream."""
    stored, count = 0, len(stream)
    last: list[Any] = [None] * count
    numbered = None if producer is None else stream.producer(producer)
    while rows := list(islice(lines, batch)):
        if numbered is None:
            receipts = stream.put_many([row for _, row in rows])
            stored += len(rows)
        else:
            receipts = [None] * count
            parts: dict[int, list[Line]] = {}
            for number, row in rows:
                # Without a key the line's number says where, so that it is the same next time.
                at = number % count if row[0] is None else partition_of(row[0], count)
                if number > numbered.producers[at].last:
                    parts.setdefault(at, []).append((number, row))
            for at, mine in parts.items():
                pairs = [row for _, row in mine]
                receipts[at] = numbered.producers[at].put_many(
                    stream.partitions[at], pairs, number=mine[-1][0]
                )
                stored += len(mine)
        last = [new or old for new, old in zip(receipts, last, strict=True)]
    if as_json:
        print(json.dumps({"rows": stored, "partitions": [one and one._asdict() for one in last]}))
    else:
        print(f"{stored} rows stored in {sum(one is not None for one in last)} of {count} partitions")


def _parsed(line: bytes, number: int, separator: str) -> tuple[Any, ...]:
    """(key, value) or (key, value, headers) of a line."""
    line = line.rstrip(b"\r\n")
    if not line.startswith(b"{"):
        head, found, tail = line.partition(separator.encode())
        return (head, tail) if found else (None, line)
    try:
        row = json.loads(line)
        key, value = _field(row, "key"), _field(row, "value")
    except ValueError as problem:
        raise CommandError(f"line {number} of the input is not a row: {problem}", 2) from None
    if row.get("deleted"):
        return key, None
    if value is None:
        raise CommandError(f'line {number} of the input has no "value"', 2)
    return key, value, row.get("headers") or None


def _field(row: dict[str, Any], name: str) -> bytes | None:
    if (text := row.get(f"{name}_base64")) is not None:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError):
            raise ValueError(f"{name}_base64 is no base64") from None
    found = row.get(name)
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found).encode()


def _headers(given: list[str] | None) -> dict[str, str] | None:
    headers = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--header {text!r} is not NAME=VALUE", 2)
        headers[name] = value
    return headers or None


def _receipt(receipt: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(receipt._asdict()))
    else:
        print(f"stored at sequence {receipt.sequence} of history {receipt.history}")


@app.command()
def get(
    context: typer.Context, name: Name, key: Key, partition: Partition = None, as_json: Json = False
) -> int:
    """Print the newest value of a key; exit 1 when it has none."""
    with context.obj() as db:
        row = _found(db, name, partition).get(key)
    if row is None:
        raise CommandError(f"stream '{name}' has no value for key '{key}'")
    if as_json:
        print(json.dumps(_plain(row), ensure_ascii=False))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(row.value)
        if sys.stdout.isatty():
            print()
    return 0


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    key: Key,
    expected: Annotated[int | None, typer.Option(help="Only if the key is at this sequence.")] = None,
    partition: Partition = None,
    as_json: Json = False,
) -> None:
    """Delete a key. To delete a whole stream, see 'drop'."""
    with context.obj() as db:
        _place(db, name, partition)(key.encode())
        _receipt(_found(db, name, partition).delete(key, expected=expected), as_json)


@app.command()
def tail(
    context: typer.Context,
    name: Name,
    start: Annotated[
        str, typer.Option("--from", help="first, last, next, a sequence, or a time as 2026-01-31T12:00:00.")
    ] = "next",
    consumer: Annotated[
        str | None, typer.Option(help="Go on at the mark of this consumer, and move it at each boundary.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option(help="Stop when nothing came for so many seconds.", show_default="never")
    ] = None,
    markers: Annotated[bool, typer.Option("--markers", help="Also print boundaries.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over when the consumer was away for too long.")
    ] = False,
    partition: Partition = None,
    as_json: Json = False,
) -> None:
    """Print rows as they come, until it is interrupted; of a partitioned stream behind the number of their partition."""
    from tidemark.client import Partitioned

    begin = None if consumer is not None else _start(start)
    with context.obj() as db:
        stream = _found(db, name, partition)
        if isinstance(begin, int) and isinstance(stream, Partitioned):
            raise CommandError(f"a sequence is one of a partition: give --from {begin} with --partition", 2)
        follower = stream.follow(
            consumer,
            start=begin,
            idle=idle,
            on_reset="restart" if restart else "raise",
        )
        for found in follower:
            if isinstance(found, tuple):
                _print_batch(found[1], markers, as_json, {"partition": found[0]}, f"{found[0]}\t")
            else:
                _print_batch(found, markers, as_json)


def _print_batch(
    batch: Batch, markers: bool, as_json: bool, facts: dict[str, Any] | None = None, head: str = ""
) -> None:
    """Print a batch; `facts` and `head` say of which partition it is."""
    facts = facts or {}
    if batch.reset:
        _line(facts | {"reset": True}, f"{head}-- start over: forget all rows before", as_json)
    for row in batch:
        _line(facts | _plain(row) if as_json else {}, head + _text_of(row), as_json)
    if markers and batch.marker is not None:
        marker = batch.marker
        words = f"-- boundary at {marker.end}: {marker.count} values, {marker.tombstones} deletes"
        _line(facts | {"marker": _marker(marker)}, head + words, as_json)
    sys.stdout.flush()


def _start(text: str) -> Any:
    if text in ("first", "last", "next"):
        return text
    if text.isdecimal():
        return int(text)
    return _time(text, "--from")


def _time(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{option} {text!r} is no time such as 2026-01-31T12:00:00", 2) from None


def _line(facts: dict[str, Any], words: str, as_json: bool) -> None:
    print(json.dumps(facts, ensure_ascii=False) if as_json else words)


def _text_of(row: Row) -> str:
    value = "(deleted)" if row.deleted else _shown(row.value)
    key = [] if row.key is None else [_shown(row.key)]
    return "\t".join([str(row.sequence), row.time.isoformat(timespec="milliseconds"), *key, value])


def _shown(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return repr(raw)
    return text if text.isprintable() else repr(text)


def _plain(row: Row) -> dict[str, Any]:
    """A row as JSON."""
    found: dict[str, Any] = {}
    for name, raw in (("key", row.key), ("value", row.value)):
        if raw is None or (row.deleted and name == "value"):
            continue
        try:
            found[name] = raw.decode()
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(raw).decode()
    if row.deleted:
        found["deleted"] = True
    if headers := row.headers:
        found["headers"] = json.loads(json.dumps(headers, default=str))
    return found | {"sequence": row.sequence, "timestamp_ms": row.timestamp_ms}


def _marker(marker: Any) -> dict[str, Any]:
    return {
        name: getattr(marker, name) for name in ("history", "start", "end", "count", "tombstones", "hash")
    }


# Snapshots --------------------------------------------------------------------------------------------


@app.command()
def snapshot(
    context: typer.Context,
    name: Name,
    form: Annotated[str, typer.Option("--format", help="jsonl, csv, arrow or parquet.")] = "jsonl",
    out: Annotated[str, typer.Option(help="File; - is standard output.")] = "-",
    at: Annotated[int | None, typer.Option(help="As it was at this sequence.")] = None,
    as_of: Annotated[str | None, typer.Option(help="As it was at this time: 2026-01-31T12:00:00.")] = None,
    pin: Annotated[str | None, typer.Option(help="The one that this pin holds.")] = None,
    after: Annotated[int, typer.Option(help="Only what changed after this sequence.")] = 0,
    key_from: Annotated[str | None, typer.Option(help="Only keys from this one on …")] = None,
    key_to: Annotated[str | None, typer.Option(help="… and below this one.")] = None,
    columns: Columns = "",
    partition: Partition = None,
) -> None:
    """Write what a stream holds, frozen and verified against the broker's marker, to a file.

    The last line on standard error has the marker, of a partitioned stream one line each. A file appears only when all of it
    is there and right.
    """
    from tidemark.client import Partitioned
    from tidemark.client.partitioned import Parts

    if form not in FORMATS:
        raise CommandError(f"--format {form!r} is not one of {', '.join(FORMATS)}", 2)
    if out == "-" and form in ("arrow", "parquet") and sys.stdout.isatty():
        raise CommandError(f"{form} is not for a terminal; give --out FILE", 2)
    if sum(one is not None for one in (at, as_of, pin)) > 1:
        raise CommandError("give one of --at, --as-of and --pin", 2)
    moment = None if as_of is None else _time(as_of, "--as-of")
    part: dict[str, Any] = {"key_from": key_from, "key_to": key_to}
    if columns:
        part["columns"] = [one.strip() for one in columns.split(",")]
    with context.obj() as db, _progress(f"reading {name}") as progress:
        stream = _found(db, name, partition)
        rows: Rows | Parts[Any]
        if isinstance(stream, Partitioned):
            if after or at is not None or as_of is not None:
                raise CommandError("--after, --at and --as-of are about one stream: give --partition, too", 2)
            rows = stream.snapshot(progress=progress) if pin is None else stream.pinned(pin)
        elif pin is not None:
            rows = stream.pinned(pin)
            part["after"] = after
        elif at is not None or as_of is not None:
            rows = stream.as_of(sequence=at, time=moment, progress=progress)
            part["after"] = after
        else:
            rows = stream.snapshot(after=after or None, progress=progress)
        try:
            _write(rows, form, out, part)
        except ValueError as problem:
            raise CommandError(str(problem), 2) from None
        found = rows.markers if isinstance(rows, Parts) else [rows.marker]
    for number, marker in enumerate(found):
        assert marker is not None
        verdict = "verified" if marker.verified else "rows counted"
        print(
            f"partition {number}: " if len(found) > 1 else "",
            f"{marker.count} values and {marker.tombstones} deletes up to sequence {marker.end} of history "
            f"{marker.history}, hash {marker.hash}: {verdict}",
            sep="",
            file=sys.stderr,
        )


def _write(rows: Rows | Parts[Any], form: str, out: str, part: dict[str, Any]) -> None:
    writer = {"jsonl": _write_jsonl, "csv": _write_csv, "arrow": _write_arrow, "parquet": _write_parquet}[
        form
    ]
    if out == "-":
        sys.stdout.flush()
        writer(rows, sys.stdout.buffer, part)
        sys.stdout.buffer.flush()
        return
    target = Path(out)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            writer(rows, file, part)
        partial.replace(target)
    except OSError as problem:
        raise CommandError(f"{out} cannot be written: {problem.strerror}", 2) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_jsonl(rows: Rows | Parts[Any], file: IO[bytes], part: dict[str, Any]) -> None:
    for row in rows.rows(**part):
        file.write(json.dumps(_plain(row), ensure_ascii=False).encode() + b"\n")


def _write_csv(rows: Rows | Parts[Any], file: IO[bytes], part: dict[str, Any]) -> None:
    import io

    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    lines = csv.writer(text)
    lines.writerow(("key", "value", "deleted", "sequence", "timestamp"))
    for row in rows.rows(**part):
        key = "" if row.key is None else _shown(row.key)
        lines.writerow(
            (key, _text(row.value), "true" if row.deleted else "", row.sequence, row.time.isoformat())
        )
    text.flush()
    text.detach()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()


def _write_arrow(rows: Rows | Parts[Any], file: IO[bytes], part: dict[str, Any]) -> None:
    pa = _pyarrow()
    _write_batches(rows, part, lambda schema: pa.ipc.new_stream(pa.PythonFile(file, "w"), schema))


def _write_parquet(rows: Rows | Parts[Any], file: IO[bytes], part: dict[str, Any]) -> None:
    pa = _pyarrow()
    from pyarrow import parquet

    _write_batches(rows, part, lambda schema: parquet.ParquetWriter(pa.PythonFile(file, "w"), schema))


def _write_batches(rows: Rows | Parts[Any], part: dict[str, Any], opened: Callable[[Any], Any]) -> None:
    writer = None
    for batch in rows.batches(**part):
        writer = writer or opened(batch.schema)
        writer.write_batch(batch)
    if writer is None:
        writer = opened(rows.schema)
    writer.close()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise CommandError("this needs pyarrow: pip install pyarrow, or use --format jsonl or csv") from None
    return pyarrow


@contextmanager
def _progress(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error when that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command()
def diff(
    context: typer.Context,
    name: Name,
    a: Annotated[int, typer.Argument(help="A sequence.")],
    b: Annotated[int, typer.Argument(help="A later one.")],
    as_json: Json = False,
) -> None:
    """What changed and what was deleted after A, up to B."""
    with context.obj() as db:
        difference = _one(db, name).diff(a, b)
        for row in difference:
            if as_json:
                print(json.dumps(_plain(row), ensure_ascii=False))
            else:
                key = "" if row.key is None else _shown(row.key)
                print(f"deleted\t{key}" if row.deleted else f"changed\t{key}\t{_shown(row.value)}")
        changed, deleted = difference.summary
    print(f"{changed} changed, {deleted} deleted", file=sys.stderr)


# Pins and marks -----------------------------------------------------------------------------------------

Pin = Annotated[str, typer.Argument(help="Name of the pin.")]
Consumer = Annotated[str, typer.Argument(help="Name of the consumer.")]


@app.command()
def pin(
    context: typer.Context,
    name: Name,
    pin_name: Pin,
    lease: Annotated[float, typer.Option(help="Seconds that it is kept.")] = 3600.0,
    at: Annotated[int | None, typer.Option(help="As it was at this sequence.")] = None,
    as_json: Json = False,
) -> None:
    """Keep what a stream holds now readable under a name; the same name again renews it."""
    with context.obj() as db:
        held = _one(db, name).pin(pin_name, lease=lease, at=at)
    facts = {"pin": pin_name, "sequence": held.sequence, "history": held.history}
    _line(facts, f"pin '{pin_name}' holds '{name}' at sequence {held.sequence}", as_json)


@app.command()
def unpin(context: typer.Context, name: Name, pin_name: Pin) -> None:
    """Let go of a pin; what only it kept is freed."""
    with context.obj() as db:
        _one(db, name).pinned(pin_name).release()


@app.command()
def pins(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """The pins of a stream and what they keep from being freed."""
    with context.obj() as db:
        found = [one._asdict() for one in _one(db, name).pins()]
    show(found, ("name", "sequence", "lease_until_ms", "bytes_kept"), as_json=as_json)


@app.command()
def marks(
    context: typer.Context,
    name: Name,
    as_json: Json = False,
) -> None:
    """How far the consumers of a stream have come."""
    with context.obj() as db:
        found = [one._asdict() for one in _one(db, name).marks()]
    columns = ("consumer", "sequence", "snapshot_end", "lease_until_ms", "expired", "history")
    show(found, columns, as_json=as_json)


@app.command()
def reset(
    context: typer.Context,
    name: Name,
    consumer: Consumer,
    to: Annotated[int, typer.Option(help="Sequence behind which it goes on; 0 is the beginning.")] = 0,
) -> None:
    """Send a consumer back, or ahead."""
    with context.obj() as db:
        _one(db, name).reset_mark(consumer, to)


@app.command()
def forget(context: typer.Context, name: Name, consumer: Consumer) -> None:
    """Forget a consumer and its mark: deletes no longer wait for it."""
    with context.obj() as db:
        _one(db, name).unregister(consumer)
