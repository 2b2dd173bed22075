"""A table of an embedded DuckDB file.

Rows and mark are written in one DuckDB transaction, which is on disk when it commits. A row is replaced by deleting
its key and inserting it again: one hash join over the key column, for which the table needs no index (with a primary
key a batch of updates takes many times as long, and a list column longer still). The mark is one row a sink in the
table `tidemark_marks` of the same file; two writers meet on that row: DuckDB lets one commit, and the other one reads
the mark again and decides again. Between processes DuckDB has a lock on the whole file.

Invariant: a key is at most once in the table; the mark changes only together with the rows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import duckdb

from tidemark_spark.errors import SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of, find_refused
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from tidemark_spark.pipeline.values import Change, Digest, Mode

T = TypeVar("T")

MARKS = "tidemark_marks"
ATTEMPTS = 20
"""How often a batch is tried again after another writer of the same process committed first."""

WIDER = {
    "TINYINT": ("SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    "SMALLINT": ("INTEGER", "BIGINT", "HUGEINT"),
    "INTEGER": ("BIGINT", "HUGEINT"),
    "BIGINT": ("HUGEINT",),
    "FLOAT": ("DOUBLE",),
}
"""Types of a table that hold every value of a narrower type of the rows."""


class DuckDBSink:
    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.pipeline = pipeline
        given = SinkOptions(name, options)
        self._path = Path(given.text("path"))
        parts = given.text("table").split(".")
        if len(parts) > 2 or not all(parts):
            raise given.wrong("table", "must be a name, or a schema and a name with a dot between them")
        self._schema, self._table = parts if len(parts) == 2 else ["main", *parts]
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        given.done()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._shape: TableShape | None = None
        self._prepared: pa.Schema | None = None

    # What a sink can do ----------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self.close()
        self._connection = self._connect()
        return self._until_alone(self._first_look)

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape = TableShape(self.name, mode, self._key_column, self._key)
        self._until_alone(lambda: self._fit_alone(schema))

    def apply(self, change: Change) -> Applied:
        return self._until_alone(lambda: self._apply_once(change))

    def digest(self) -> Digest:
        with self._errors():
            with self._transaction():
                self._must_exist()
            key = quoted(self._key_column)
            held = self._db.sql(f"SELECT {key}, {SEQUENCE} FROM {self._name}")
            return digest_of((part.column(0), part.column(1)) for part in held.to_arrow_reader())

    def reset(self, drop: bool) -> None:
        if self._connection is None:
            self.open()
        self._until_alone(lambda: self._forget(drop))

    def _forget(self, drop: bool) -> None:
        with self._transaction():
            if drop:
                self._run(f"DROP TABLE IF EXISTS {self._name}")
            self._run(
                f"UPDATE {MARKS} SET mark = NULL WHERE pipeline = ? AND sink = ?", [self.pipeline, self.name]
            )
        self._prepared = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._prepared = None
        if connection is not None:
            with contextlib.suppress(duckdb.Error):
                connection.close()

    # One transaction -------------------------------------------------------------------------------------------

    def _until_alone(self, work: Callable[[], T]) -> T:
        """Do it again, from the beginning, when another writer of this process was first."""
        for attempt in range(ATTEMPTS):
            try:
                with self._errors():
                    return work()
            except duckdb.TransactionException as error:
                problem = one_line(error)
                time.sleep(random.uniform(0, 0.005 * (attempt + 1)))
        raise SinkUnavailable(
            sink=self.name,
            problem=f"other writers of {self._path} were first, {ATTEMPTS} times in a row ({problem})",
        )

    def _apply_once(self, change: Change) -> Applied:
        shape = self._shape
        assert shape is not None, "prepare comes first"
        rows = shape.arrange(change.upserts)
        deleted = 0
        try:
            with self._transaction():
                if decide(self._stored(), change) is Decision.SKIP:
                    return Applied(skipped=True)
                self._fit(change.upserts.schema)
                if change.deletes.num_rows:
                    deleted = self._delete(change.deletes)
                self._put(rows, shape)
                self._run(
                    f"UPDATE {MARKS} SET mark = ? WHERE pipeline = ? AND sink = ?",
                    [change.mark.to_json(), self.pipeline, self.name],
                )
        except (duckdb.IntegrityError, duckdb.DataError) as error:
            self._prepared = None
            self._refuse_row(rows, shape, error)
        except BaseException:
            self._prepared = None  # what was added to the table in the transaction is gone
            raise
        return Applied(skipped=False, upserted=rows.num_rows, deleted=deleted)

    def _put(self, rows: pa.Table, shape: TableShape) -> None:
        if not rows.num_rows:
            return
        with self._seen_as("_tidemark_rows", rows):
            if shape.key:
                # A group of an aggregation may be NULL, so NULL is equal to NULL here.
                same = " IS NOT DISTINCT FROM " if shape.mode == "update" else " = "
                on = " AND ".join(f"held.{quoted(k)}{same}new.{quoted(k)}" for k in shape.key)
                self._run(f"DELETE FROM {self._name} AS held USING _tidemark_rows AS new WHERE {on}")
            self._run(f"INSERT INTO {self._name} BY NAME SELECT * FROM _tidemark_rows")

    def _delete(self, keys: pa.Table) -> int:
        with self._seen_as("_tidemark_keys", keys):
            [(count,)] = self._run(
                f"DELETE FROM {self._name} AS held USING _tidemark_keys AS gone "
                f"WHERE held.{quoted(self._key_column)} = gone.{quoted(KEY)}"
            )
            return int(count)

    @contextlib.contextmanager
    def _seen_as(self, name: str, rows: pa.Table) -> Iterator[None]:
        """Lets SQL see rows of Arrow, where they are."""
        self._db.register(name, rows)
        try:
            yield
        finally:
            # In a transaction that has failed this fails, too; the name is then taken over by the next rows.
            with contextlib.suppress(duckdb.Error):
                self._db.unregister(name)

    def _refuse_row(self, rows: pa.Table, shape: TableShape, error: duckdb.Error) -> NoReturn:
        """Find the row that the table does not take, and say which it is."""
        problem = error

        def fits(part: pa.Table) -> bool:
            nonlocal problem
            self._run("BEGIN")
            try:
                self._fit(rows.schema)
                self._put(part, shape)
            except (duckdb.IntegrityError, duckdb.DataError) as refusal:
                problem = refusal
                return False
            finally:
                self._roll_back()
                self._prepared = None
            return True

        index = find_refused(rows, fits) if rows.num_rows else None
        if index is None:
            raise SinkRefused(sink=self.name, problem=one_line(error)) from error
        raise shape.refused(rows, index, one_line(problem)) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # After some errors (in COMMIT, of a constraint) DuckDB has ended the transaction itself.
        with contextlib.suppress(duckdb.Error):
            self._run("ROLLBACK")

    # The table -------------------------------------------------------------------------------------------------

    def _fit_alone(self, schema: pa.Schema) -> None:
        """In one transaction, so that table and mark are seen at one moment: another writer may be making both."""
        self._prepared = None
        try:
            with self._transaction():
                self._fit(schema)
        except BaseException:
            self._prepared = None
            raise

    def _fit(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it does not have; nothing if it was seen to fit before."""
        if self._prepared is not None and self._prepared.equals(schema):
            self._must_exist()
            return
        shape = self._shape
        assert shape is not None
        wanted = self._types(shape.schema(schema))
        held = self._columns()
        if not held:
            self._must_exist_if_marked()
            columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
            self._run(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
            self._run(f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})")
        else:
            by_name = {name.lower(): kind for name, kind in held.items()}
            for name, kind in wanted.items():
                has = by_name.get(name.lower())
                if has is None:
                    self._run(f"ALTER TABLE {self._name} ADD COLUMN {quoted(name)} {kind}")
                elif has != kind and has not in WIDER.get(kind, ()):
                    raise SchemaDrift(sink=self.name, column=name, has=has, gets=kind)
        self._prepared = schema

    def _types(self, schema: pa.Schema) -> dict[str, str]:
        """What DuckDB calls the types of these columns."""
        with self._seen_as("_tidemark_shape", schema.empty_table()):
            rows = self._run("DESCRIBE SELECT * FROM _tidemark_shape")
        return {row[0]: row[1] for row in rows}

    def _columns(self) -> dict[str, str]:
        rows = self._run(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = current_database() "
            "AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?) ORDER BY column_index",
            [self._schema, self._table],
        )
        return dict(rows)

    def _must_exist(self) -> None:
        if not self._columns():
            self._prepared = None
            self._must_exist_if_marked()
            raise SinkRefused(
                sink=self.name, problem=f"table '{self._schema}.{self._table}' is not in {self._path}"
            )

    def _must_exist_if_marked(self) -> None:
        if self._stored() is not None:
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"table '{self._schema}.{self._table}' is not in {self._path}, but the mark there says that it was "
                    f"filled; bring it back, or run `tidemark pipeline reset FILE --sink {self.name} --drop` to fill it "
                    f"anew"
                ),
            )

    # The mark --------------------------------------------------------------------------------------------------

    def _first_look(self) -> Mark | None:
        # The row is there before the first batch, so that two first writers meet on it.
        self._run(
            f"CREATE TABLE IF NOT EXISTS {MARKS} "
            "(pipeline VARCHAR NOT NULL, sink VARCHAR NOT NULL, mark VARCHAR, PRIMARY KEY (pipeline, sink))"
        )
        with contextlib.suppress(duckdb.ConstraintException):  # another one put it there at the same moment
            self._run(f"INSERT OR IGNORE INTO {MARKS} VALUES (?, ?, NULL)", [self.pipeline, self.name])
        return self._stored()

    def _stored(self) -> Mark | None:
        rows = self._run(
            f"SELECT mark FROM {MARKS} WHERE pipeline = ? AND sink = ?", [self.pipeline, self.name]
        )
        return Mark.from_json(rows[0][0]) if rows and rows[0][0] is not None else None

    # Connection and errors -------------------------------------------------------------------------------------

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return duckdb.connect(str(self._path))
        except OSError as error:
            raise SinkRefused(sink=self.name, problem=f"{self._path}: {error.strerror}") from error
        except duckdb.Error as error:
            text = one_line(error)
            if "Could not set lock" in text:
                holder = re.search(r"Conflicting lock is held in (.*?)\. ", text + " ")
                by = f" ({holder[1]})" if holder else ""
                raise SinkUnavailable(
                    sink=self.name,
                    problem=f"{self._path} is open in another process{by}; DuckDB lets one process write at a time",
                ) from error
            raise self._translated(error) from error

    def _run(self, sql: str, values: list[Any] | None = None) -> list[Any]:
        # A result that is not read to its end keeps the connection busy.
        return self._db.execute(sql, values).fetchall()

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise SinkUnavailable(sink=self.name, problem=f"{self._path} is not open")
        return self._connection

    @property
    def _name(self) -> str:
        return f"{quoted(self._schema)}.{quoted(self._table)}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what DuckDB's errors mean. A conflict passes as it is; after an error of the disk the file is closed."""
        try:
            yield
        except duckdb.TransactionException as error:
            if "invalidated" in str(error) or "No space" in str(error):
                self.close()
                raise self._translated(error) from error
            raise
        except duckdb.Error as error:
            if isinstance(error, duckdb.OperationalError | duckdb.InternalError):
                self.close()  # DuckDB refuses all work on a file that it could not write to, until it is opened again
            raise self._translated(error) from error

    def _translated(self, error: duckdb.Error) -> SinkRefused | SinkUnavailable:
        text = one_line(error)
        if os.strerror(errno.ENOSPC) in text or "max_temp_directory_size" in text:
            return SinkUnavailable(
                sink=self.name,
                problem=f"the disk under {self._path} is full; nothing of this batch was applied ({text})",
            )
        if isinstance(error, duckdb.OutOfMemoryException):
            return SinkRefused(
                sink=self.name, problem=f"DuckDB has too little memory; lower max_rows_per_batch ({text})"
            )
        if "invalidated" in text:
            return SinkUnavailable(sink=self.name, problem=f"{self._path} must be opened again ({text})")
        return SinkRefused(sink=self.name, problem=f"{self._path}: {text}")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
