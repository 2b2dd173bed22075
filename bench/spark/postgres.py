"""A private PostgreSQL, and batches of rows into it: through the pipeline's sink, and by COPY alone.

The server keeps its defaults, durability included. Every round begins with empty tables of the same columns and the same
primary key, and puts two batches of new rows into them: the first into the empty table, the second, whose keys lie among
those of the first, into one that has rows. Then the sink gets new versions of the second batch. A bare COPY is given bytes
that were rendered before, in binary, in one transaction: what the server can do. COPY row by row is what a program
does that has the rows and not the bytes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench import proc
from bench.measure import Figures, RunFailedError
from bench.results import Results
from bench.spark import cases
from bench.spark.cases import Case, Scale
from bench.spark.processes import family_clock, in_turn, measured

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark_spark.pipeline.values import Change

_TABLE, _BARE = "through_sink", "bare"
_COLUMNS = "_sequence bigint, customer text, amount float8, quantity bigint, at timestamptz, note text"
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_EPOCH_2000_US = 946_684_800_000_000
_READY_S = 30
_CHUNK_BYTES = 1 << 20


class PostgresUnavailableError(RuntimeError):
    """PostgreSQL is not installed; the message says so."""


def binaries() -> Path:
    """The folder of initdb and postgres.

    Raises:
        PostgresUnavailableError
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).resolve().parent
    raise PostgresUnavailableError(
        "PostgreSQL is skipped: it is not installed (Debian: apt install postgresql)"
    )


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """A fresh server with default settings on a free port: its URL and its process."""
    programs = binaries()
    folder = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        user = pwd.getpwnam("postgres")
        account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        data, log = folder / "data", folder / "postgres.log"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **account,
        )
        [port] = proc.free_ports(1)
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", proc.HOST, "-k", ""]
        with log.open("wb") as out:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=folder, **account
            )
        url = f"postgresql://postgres@{proc.HOST}:{port}/postgres"
        try:
            proc.wait_until(lambda: _answers(url), process, log, _READY_S)
            yield url, process.pid
        finally:
            proc.stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def rows_of_orders(numbers: NDArray[np.int64], first_sequence: int) -> pa.Table:
    """Rows as a pipeline gives them to a sink: about 100 bytes each."""
    import pyarrow as pa

    count = len(numbers)
    random = np.random.default_rng(first_sequence)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
    text = letters[random.integers(0, 32, (1 << 20) + 40, dtype=np.uint8)].tobytes().decode()
    places = random.integers(0, 1 << 20, count)
    return pa.table(
        {
            "_key": pa.array([f"order-{number:010d}" for number in numbers]),
            "_sequence": pa.array(np.arange(count) + first_sequence, pa.int64()),
            "customer": pa.array([f"customer-{number % 9973}" for number in numbers]),
            "amount": pa.array(random.integers(1, 10**6, count) / 100),
            "quantity": pa.array(random.integers(1, 20, count), pa.int64()),
            "at": pa.array(1_700_000_000_000_000 + numbers * 1000, pa.timestamp("us", "UTC")),
            "note": pa.array([text[at : at + 40] for at in places]),
        }
    )


def binary_copy(table: pa.Table) -> bytes:
    """The same rows as PostgreSQL's COPY wants them in binary."""
    parts = [_SIGNATURE]
    for key, sequence, customer, amount, quantity, at, note in _tuples(table):
        key, customer, note = key.encode(), customer.encode(), note.encode()
        parts.append(
            b"".join(
                (
                    struct.pack(">hi", 7, len(key)),
                    key,
                    struct.pack(">iqi", 8, sequence, len(customer)),
                    customer,
                    struct.pack(">idiqiqi", 8, amount, 8, quantity, 8, at - _EPOCH_2000_US, len(note)),
                    note,
                )
            )
        )
    parts.append(struct.pack(">h", -1))
    return b"".join(parts)


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    at = table.schema.get_field_index("at")
    plain = table.set_column(at, "at", table["at"].cast(pa.int64()))
    return zip(*(column.to_pylist() for column in plain.columns), strict=True)


class _Sink:
    """The pipeline's sink with one batch after the other."""

    def __init__(self, url: str) -> None:
        from tidemark_spark.pipeline.sinks.postgres import PostgresSink

        self._options = {
            "name": "bench",
            "kind": "postgres",
            "from": "orders",
            "mode": "mirror",
            "url": url,
            "table": _TABLE,
        }
        self._sink = PostgresSink("bench", "bench", self._options)
        self._sink.open()
        self._end = 0
        self._batch = 0

    def change(self, table: pa.Table) -> Change:
        """The next micro-batch, with these rows."""
        from tidemark_spark.pipeline.values import Change, Mark

        start, self._end = self._end, self._end + table.num_rows
        mark = Mark(
            pipeline="bench",
            sink="bench",
            mode="mirror",
            query="bench",
            batch=self._batch,
            position={"orders": {"0": ("history", self._end)}},
            boundary=True,
            rows=table.num_rows,
            at_ms=int(time.time() * 1000),
        )
        self._batch += 1
        self._sink.prepare(table.schema, "mirror")
        start_at = {"orders": {"0": ("history", start)}} if start else {}
        return Change(mark, start_at, table, table.select(["_key", "_sequence"]).slice(0, 0))

    def apply(self, change: Change) -> None:
        applied = self._sink.apply(change)
        if applied.skipped or applied.upserted != change.upserts.num_rows:
            raise RunFailedError(f"the sink did something else than it was asked to: {applied}")

    def close(self, *, reset: bool) -> None:
        if reset:
            self._sink.reset(drop=True)
        self._sink.close()


def postgres(case: Case, scale: Scale, results: Results) -> None:
    """The figures of all rounds.

    Raises:
        RunFailedError: a table does not hold the rows afterwards.
        PostgresUnavailableError: there is no PostgreSQL.
    """
    import psycopg

    count = scale.rows(case.rows)
    numbers = np.arange(count) * 2
    first = rows_of_orders(numbers, 1)
    second = rows_of_orders(numbers + 1, count + 1)
    newer = rows_of_orders(numbers + 1, 2 * count + 1)
    ready = (binary_copy(first), binary_copy(second))
    with server() as (url, pid), psycopg.connect(url, autocommit=True) as connection:
        clocks = {"postgres": family_clock(pid), "driver": time.process_time}

        def timed(work: Callable[[], None]) -> Figures:
            with measured(clocks) as found:
                work()
            return {"rows_per_s": count / found["seconds"], **found.per_million(count)}

        def expect(table: str, *held: pa.Table) -> None:
            wanted = (2 * count, sum(int(each["_sequence"].to_numpy().sum()) for each in held))
            found = connection.execute(f"SELECT count(*), sum(_sequence)::bigint FROM {table}").fetchone()
            if found != wanted:
                raise RunFailedError(f"table {table} should have {wanted} rows and sum, but has {found}")

        def through_sink() -> dict[str, Figures]:
            sink = _Sink(url)
            found = {}
            try:
                for name, batch in ((cases.FIRST, first), (cases.TIDEMARK, second), (cases.UPDATES, newer)):
                    found[name] = timed(partial(sink.apply, sink.change(batch)))
                expect(_TABLE, first, newer)
            finally:
                sink.close(reset=True)
            return found

        def bare(write_second: Callable[[Any], None], how: str) -> list[Figures]:
            connection.execute(f'CREATE TABLE {_BARE} (key text COLLATE "C" PRIMARY KEY, {_COLUMNS})')
            try:
                figures = [
                    timed(lambda: _copied(connection, "(FORMAT BINARY)", _writer(ready[0]))),
                    timed(lambda: _copied(connection, how, write_second)),
                ]
                expect(_BARE, first, second)
            finally:
                connection.execute(f"DROP TABLE {_BARE}")
            return figures

        def by_copy() -> dict[str, Figures]:
            return dict(
                zip((cases.COPY_FIRST, cases.COPY), bare(_writer(ready[1]), "(FORMAT BINARY)"), strict=True)
            )

        def row_by_row(copy: Any) -> None:
            for row in zip(*(column.to_pylist() for column in second.columns), strict=True):
                copy.write_row(row)

        ways: dict[str, Callable[[], dict[str, Figures]]] = {
            "sink": through_sink,
            "copy": by_copy,
            "rowwise": lambda: {cases.ROWWISE: bare(row_by_row, "")[1]},
        }
        for number, way in in_turn(ways, scale.rounds + 1):
            connection.execute("CHECKPOINT")
            for name, figures in ways[way]().items():
                if number:  # the first round warms up
                    results.add(case.name, name, figures)


def _copied(connection: Any, how: str, write: Callable[[Any], None]) -> None:
    with (
        connection.transaction(),
        connection.cursor() as cursor,
        cursor.copy(f"COPY {_BARE} FROM STDIN {how}") as copy,
    ):
        write(copy)


def _writer(data: bytes) -> Callable[[Any], None]:
    """Hands over bytes that are ready."""

    def write(copy: Any) -> None:
        view = memoryview(data)
        for at in range(0, len(view), _CHUNK_BYTES):
            copy.write(view[at : at + _CHUNK_BYTES])

    return write
