"""The sinks of the product, watched: what arrives at them and what they answer is written down before and after.

A pipeline's file names these classes as the kind of its sinks. Each is the real sink; `apply` writes a line to the file
TIDEMARK_CRASH_AUDIT, lets the real one do its work, and writes another line. A line is one write to a file that is
only appended to, and a SIGKILL does not take back what was written.

The class at the end has a planted fault, of the kind that the crash test is there to find.

Invariant: a batch that a sink has applied has a first line, and one that it answered has both.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

import psycopg

from tidemark_spark.errors import SinkUnavailable
from tidemark_spark.pipeline.sinks.duckdb import DuckDBSink
from tidemark_spark.pipeline.sinks.postgres import PostgresSink
from tidemark_spark.pipeline.sinks.redis import RedisSink
from tidemark_spark.pipeline.sinks.stream import StreamSink
from tidemark_spark.pipeline.values import Applied, Decision, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tidemark_spark.pipeline.values import Change, Digest, Mode, Position

AUDIT = "TIDEMARK_CRASH_AUDIT"


class Audited:
    def apply(self, change: Change) -> Applied:
        mark = change.mark
        facts = {
            "pid": os.getpid(),
            "sink": mark.sink,
            "query": mark.query,
            "batch": mark.batch,
            "start": place(change.start),
            "end": place(mark.position),
            "boundary": mark.boundary,
            "content": content(change),
        }
        write(facts)
        done: Applied = super().apply(change)  # type: ignore[misc]
        write(facts | {"applied": not done.skipped})
        return done


class AuditedPostgres(Audited, PostgresSink):
    pass


class AuditedRedis(Audited, RedisSink):
    pass


class AuditedDuckDB(Audited, DuckDBSink):
    pass


class AuditedStream(Audited, StreamSink):
    pass


def place(position: Position) -> int:
    """The one sequence that a batch begins or ends at: all shards are on one node."""
    found = {sequence for shards in position.values() for _, sequence in shards.values()}
    assert len(found) <= 1, f"shards at different places: {position}"
    return found.pop() if found else 0


def content(change: Change) -> str:
    """A hash of all that a batch brings, whatever the order in which tasks brought it."""

    def rows(table: Any) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())

    return hashlib.sha256(repr((rows(change.upserts), rows(change.deletes))).encode()).hexdigest()[:24]


def write(facts: dict[str, Any]) -> None:
    file = os.open(os.environ[AUDIT], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(file)


# Planted faults -----------------------------------------------------------------------------------------


class Eager:
    """Puts the rows in one transaction and the mark in the next, as a sink would that delivers at least once."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self._own = pipeline, name
        self._url = options["url"]
        self._db: psycopg.Connection[Any] | None = None

    def open(self) -> Mark | None:
        self.close()
        try:
            self._db = db = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
            db.execute(
                "CREATE TABLE IF NOT EXISTS tidemark_marks (pipeline text, sink text PRIMARY KEY, mark text)"
            )
            row = db.execute("SELECT mark FROM tidemark_marks WHERE sink = %s", self._own[1:]).fetchone()
        except psycopg.OperationalError as error:
            raise SinkUnavailable(sink=self._own[1], problem=str(error)) from None
        return Mark.from_json(row[0]) if row else None

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        pass

    def apply(self, change: Change) -> Applied:
        db = self._db
        assert db is not None
        try:
            row = db.execute("SELECT mark FROM tidemark_marks WHERE sink = %s", self._own[1:]).fetchone()
            if decide(Mark.from_json(row[0]) if row else None, change) is Decision.SKIP:
                return Applied(skipped=True)
            with db.transaction(), db.cursor() as rows:
                rows.executemany(
                    "DELETE FROM orders WHERE key = %s",
                    [(row["_key"],) for row in change.deletes.to_pylist()],
                )
                rows.executemany(
                    "INSERT INTO orders VALUES (%(_key)s, %(_sequence)s, %(customer)s, %(number)s) ON CONFLICT (key) DO "
                    "UPDATE SET _sequence = excluded._sequence, customer = excluded.customer, number = excluded.number",
                    change.upserts.to_pylist(),
                )
            time.sleep(0.3)
            db.execute(
                "INSERT INTO tidemark_marks VALUES (%s, %s, %s) ON CONFLICT (sink) DO UPDATE SET mark = excluded.mark",
                (*self._own, change.mark.to_json()),
            )
        except psycopg.OperationalError as error:
            raise SinkUnavailable(sink=self._own[1], problem=str(error)) from None
        return Applied(skipped=False, upserted=change.upserts.num_rows, deleted=change.deletes.num_rows)

    def digest(self) -> Digest:
        raise NotImplementedError

    def reset(self, drop: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class AuditedEager(Audited, Eager):
    pass
