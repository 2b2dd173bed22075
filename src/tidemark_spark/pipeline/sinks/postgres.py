"""A table of PostgreSQL.

Rows and mark are written in one transaction that begins by locking the mark's row (`FOR UPDATE`): a second driver waits
there, and then sees that its batch is done. Rows go in by COPY, straight from Arrow (ADBC), in the order of their keys:
into the table itself while all keys are new, else into a temporary table that is then merged. MERGE is faster than
ON CONFLICT, which asks the index twice for each new row, and unlike deleting and inserting it leaves columns and foreign
keys alone that are not the pipeline's. Results (mode update), whose key may be NULL, go in by ON CONFLICT.

Every statement of a batch is in its transaction, the temporary table too; there is no state of the session to lose.

Invariant: the mark changes only together with the rows, by whoever holds the lock on its row.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from typing import TYPE_CHECKING, Any, NoReturn

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from tidemark_spark.errors import SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.rendering import dumps
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of, find_refused
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tidemark_spark.pipeline.values import Change, Digest, Mode

MARKS = "tidemark_marks"
STAGE = "tidemark_stage"
GONE = "tidemark_gone"
SERVER_MIN = 150_000
ATTEMPTS = 10
"""How often a batch is tried again after a deadlock or the like with writers that are not ours."""

WIDER = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying", "character", "json", "jsonb", "uuid", "citext"),
    "jsonb": ("json", "text"),
    "numeric": ("numeric",),
}
"""Types of a table that take what the pipeline gives; a value that does not fit after all is a refused row."""

CONVERTED = ("json", "jsonb", "uuid", "citext")
"""Types to which PostgreSQL turns a text only when it is told to."""

RETRIED = ("40001", "40P01")  # serialization failure, deadlock
UNIQUE = "23505"
DISK_FULL = ("53100",)
GONE_TABLE = ("42P01",)
LOCK_WAIT = ("55P03",)
CLASSES_AWAY = ("08", "53", "57", "58")  # connection, resources, an operator, the system
CLASSES_ROW = ("22", "23")  # data that does not fit, constraints


class PostgresSink:
    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.pipeline = pipeline
        given = SinkOptions(name, options)
        self._url = given.text("url")
        if not re.match(r"postgres(ql)?://|\w+\s*=", self._url):
            raise given.wrong(
                "url", "must be postgresql://user:password@host:port/database, or key=value pairs of libpq"
            )
        if not is_escaped(self._url):
            # libpq would take what follows for the host, and say it in its error.
            raise given.wrong(
                "url",
                "has a user or password with a character that must be escaped: @ as %40, / as %2F, % as %25",
            )
        parts = given.text("table").split(".")
        if len(parts) > 2 or not all(parts):
            raise given.wrong("table", "must be a name, or a schema and a name with a dot between them")
        self._schema = parts[0] if len(parts) == 2 else None
        self._table = parts[-1]
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        self._wait_s = given.number("lock_timeout_s", 60, least=1)
        given.done()
        self._connection: adbc.Connection | None = None
        self._shape: TableShape | None = None
        self._prepared: pa.Schema | None = None
        self._held: dict[str, str] = {}
        self._guess = Guess()

    # What a sink can do ----------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self.close()
        self._connection = self._connect()
        with self._errors():
            [(version,)] = self._ask("SELECT current_setting('server_version_num')::int")
            if version < SERVER_MIN:
                raise SinkRefused(
                    sink=self.name,
                    problem=f"PostgreSQL {version // 10000} is too old: 15 or later is needed (MERGE)",
                )
            self._ensure_mark_row()
            return self._stored()

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape = TableShape(self.name, mode, self._key_column, self._key)
        self._prepared = None
        with self._errors():
            self._fit(schema)

    def apply(self, change: Change) -> Applied:
        shape = self._shape
        assert shape is not None, "prepare comes first"
        rows = shape.arrange(change.upserts)
        with self._errors():
            self._fit(change.upserts.schema)
            if shape.mode == "mirror":
                rows = rows.sort_by(self._key_column)  # neighbours in the index are written together
            staged = self._staged(rows)
            for attempt in range(ATTEMPTS):
                try:
                    return self._apply_once(change, staged, shape)
                except adbc.Error as error:
                    state = error.sqlstate or ""
                    if state == UNIQUE and attempt == 0:
                        continue  # perhaps somebody else inserted the key meanwhile
                    if state[:2] in CLASSES_ROW:
                        self._refuse_row(rows, staged, shape, error)
                    if state not in RETRIED:
                        raise
                    time.sleep(random.uniform(0, 0.02 * (attempt + 1)))
        raise SinkUnavailable(
            sink=self.name, problem=f"the batch met other writers {ATTEMPTS} times in a row"
        )

    def digest(self) -> Digest:
        with self._errors(), self._cursor() as cursor:
            cursor.execute(f"SELECT {quoted(self._key_column)}, {SEQUENCE} FROM {self._name}")
            return digest_of((part.column(0), part.column(1)) for part in cursor.fetch_record_batch())

    def reset(self, drop: bool) -> None:
        if self._connection is None:
            self.open()
        with self._errors(), self._transaction():
            self._lock()
            if drop:
                self._run(f"DROP TABLE IF EXISTS {self._name}")
            self._save(None)
        self._prepared = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._prepared = None
        if connection is not None:
            with contextlib.suppress(adbc.Error, RuntimeError):
                connection.close()

    # One transaction -------------------------------------------------------------------------------------------

    def _apply_once(self, change: Change, staged: pa.Table, shape: TableShape) -> Applied:
        with self._transaction():
            self._lock()
            stored = self._stored()
            if decide(stored, change) is Decision.SKIP:
                return Applied(skipped=True)
            self._must_exist(stored)
            deleted = self._delete(change.deletes) if change.deletes.num_rows else 0
            self._put(staged, shape, guess=self._guess.is_due())
            self._save(change.mark.to_json())
        return Applied(skipped=False, upserted=staged.num_rows, deleted=deleted)

    def _put(self, staged: pa.Table, shape: TableShape, guess: bool) -> None:
        if not staged.num_rows:
            return
        if self._is_alike(staged.schema) and (not shape.key or (guess and self._put_new(staged))):
            if not shape.key:
                self._copy(self._table, staged, schema=self._schema)
            return
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._types(staged.schema).items())
        self._run(f"CREATE TEMPORARY TABLE {STAGE} ({columns}) ON COMMIT DROP")
        self._copy(STAGE, staged, temporary=True)
        names = ", ".join(quoted(name) for name in staged.column_names)
        given = ", ".join(self._converted(f"new.{quoted(name)}", name) for name in staged.column_names)
        others = [name for name in staged.column_names if name not in shape.key]
        if shape.mode == "mirror":
            key = quoted(self._key_column)
            sets = ", ".join(
                f"{quoted(name)} = {self._converted(f'new.{quoted(name)}', name)}" for name in others
            )
            self._run(
                f"MERGE INTO {self._name} AS held USING {STAGE} AS new "
                f"ON held.{key} = {self._converted(f'new.{key}', self._key_column)} "
                f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({given})"
            )
            return
        insert = f"INSERT INTO {self._name} ({names}) SELECT {given} FROM {STAGE} AS new"
        if shape.key:
            sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
            insert += (
                f" ON CONFLICT ({self._key_list(shape)}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
            )
        self._run(insert)

    def _put_new(self, staged: pa.Table) -> bool:
        """Put rows straight into the table, where all of them are probably new; False, and nothing, if one is not."""
        self._run("SAVEPOINT before_rows")
        try:
            self._copy(self._table, staged, schema=self._schema)
        except adbc.Error as error:
            if error.sqlstate != UNIQUE:
                raise
            self._run("ROLLBACK TO SAVEPOINT before_rows")
            self._guess.was_wrong()
            return False
        self._guess.was_right()
        return True

    def _delete(self, keys: pa.Table) -> int:
        gone = self._staged(keys.select([KEY]))
        kind = self._types(gone.schema)[KEY]
        self._run(f"CREATE TEMPORARY TABLE {GONE} ({quoted(KEY)} {kind}) ON COMMIT DROP")
        self._copy(GONE, gone, temporary=True)
        same = f"held.{quoted(self._key_column)} = {self._converted(f'gone.{quoted(KEY)}', self._key_column)}"
        return self._run(f"DELETE FROM {self._name} AS held USING {GONE} AS gone WHERE {same}")

    def _refuse_row(self, rows: pa.Table, staged: pa.Table, shape: TableShape, error: adbc.Error) -> NoReturn:
        """Find the row that the table does not take, and say which it is."""
        problem = error

        def fits(part: pa.Table) -> bool:
            nonlocal problem
            self._run("BEGIN")
            try:
                self._put(part, shape, guess=False)
            except adbc.Error as refusal:
                if (refusal.sqlstate or "")[:2] not in CLASSES_ROW:
                    raise
                problem = refusal
                return False
            finally:
                self._run("ROLLBACK")
            return True

        index = find_refused(staged, fits) if staged.num_rows else None
        if index is None:
            raise SinkRefused(sink=self.name, problem=sentence(error)) from error
        raise shape.refused(rows, index, sentence(problem)) from error

    def _copy(
        self, table: str, rows: pa.Table, *, schema: str | None = None, temporary: bool = False
    ) -> None:
        with self._cursor() as cursor:
            more: dict[str, Any] = {"db_schema_name": schema} if schema else {}
            cursor.adbc_ingest(table, rows, mode="append", temporary=temporary, **more)

    def _is_alike(self, schema: pa.Schema) -> bool:
        """Whether the table has exactly the types of these rows, as COPY needs it."""
        return all(self._held.get(name) == kind for name, kind in self._types(schema).items())

    # Types -----------------------------------------------------------------------------------------------------

    def _staged(self, rows: pa.Table) -> pa.Table:
        """The rows as COPY takes them: what PostgreSQL has no type for as the text of JSON."""
        columns, fields = [], []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            kind = field.type
            if pa.types.is_dictionary(kind):
                column, kind = column.cast(kind.value_type), kind.value_type
            if pa.types.is_timestamp(kind) and kind.unit != "us":
                column = column.cast(pa.timestamp("us", kind.tz), safe=False)
            elif pa.types.is_null(kind):
                column = column.cast(pa.string())
            elif is_json(kind):
                texts = [None if value is None else dumps(value, kind) for value in column.to_pylist()]
                column = pa.chunked_array([pa.array(texts, pa.string())])
            columns.append(column)
            fields.append(pa.field(field.name, column.type))
        return pa.table(columns, schema=pa.schema(fields))

    def _types(self, schema: pa.Schema) -> dict[str, str]:
        return {field.name: self._type(field) for field in schema}

    def _type(self, field: pa.Field) -> str:
        """What PostgreSQL calls the type of a column."""
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return f"timestamp with{'' if kind.tz else 'out'} time zone"
        if is_json(kind):
            return "jsonb"
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return f"{self._type(pa.field(field.name, kind.value_type))}[]"
        name = PLAIN.get(kind)
        if name is None:
            raise SinkRefused(
                sink=self.name,
                problem=f"column '{field.name}' is {kind}, which PostgreSQL has no type for; CAST it in the transformation",
            )
        return name

    def _kind(self, column: str) -> str:
        """The type that a column of the table has, without its length."""
        return re.sub(r"\(.*?\)", "", self._held.get(column, ""))

    def _converted(self, expression: str, column: str) -> str:
        kind = self._kind(column)
        return f"{expression}::{kind}" if kind in CONVERTED else expression

    # The table -------------------------------------------------------------------------------------------------

    def _fit(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it does not have; nothing if it was seen to fit before."""
        if self._prepared is not None and self._prepared.equals(schema):
            return
        shape = self._shape
        assert shape is not None
        wanted = self._types(shape.schema(schema))
        with self._transaction():
            self._lock()  # two drivers that start at once do not make the table twice
            held = self._columns()
            if not held:
                self._must_exist(self._stored())
                self._create(wanted, shape)
            else:
                self._must_be_unique(shape)
            for name, kind in wanted.items() if held else ():
                if name not in held:
                    self._run(f"ALTER TABLE {self._name} ADD COLUMN {quoted(name)} {kind}")
                elif not takes(held[name], kind):
                    raise SchemaDrift(sink=self.name, column=name, has=held[name], gets=kind)
            self._held = self._columns()
        self._prepared = schema

    def _create(self, wanted: dict[str, str], shape: TableShape) -> None:
        columns = []
        for name, kind in wanted.items():
            # Keys are compared by their bytes, as the stream does; that is also the fastest way.
            collation = ' COLLATE "C"' if name in shape.key and kind == "text" else ""
            primary = " PRIMARY KEY" if shape.mode == "mirror" and name == self._key_column else ""
            columns.append(f"{quoted(name)} {kind}{collation}{primary}")
        self._run(f"CREATE TABLE {self._name} ({', '.join(columns)})")
        if shape.mode == "update":
            self._run(f"CREATE UNIQUE INDEX ON {self._name} ({self._key_list(shape)}) NULLS NOT DISTINCT")

    def _must_be_unique(self, shape: TableShape) -> None:
        if not shape.key:
            return
        found = self._ask(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
            f"WHERE i.indrelid = to_regclass({literal(self._name)}) AND i.indisunique AND i.indpred IS NULL "
            "GROUP BY i.indexrelid"
        )
        if not any(set(columns) == set(shape.key) for (columns,) in found):
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"table {self._name} has no unique index on {', '.join(shape.key)}; make one: "
                    f"CREATE UNIQUE INDEX ON {self._name} ({self._key_list(shape)})"
                ),
            )

    def _key_list(self, shape: TableShape) -> str:
        return ", ".join(quoted(name) for name in shape.key)

    def _columns(self) -> dict[str, str]:
        rows = self._ask(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = to_regclass({literal(self._name)}) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return dict(rows)

    def _must_exist(self, stored: Mark | None) -> None:
        [(found,)] = self._ask(f"SELECT to_regclass({literal(self._name)}) IS NOT NULL")
        if found:
            return
        if stored is not None:
            self._prepared = None
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"table {self._name} is not in the database, but the mark there says that it was filled; bring it "
                    f"back, or run `tidemark pipeline reset FILE --sink {self.name} --drop` to fill it anew"
                ),
            )
        if self._prepared is not None:
            self._prepared = None
            raise SinkRefused(
                sink=self.name, problem=f"table {self._name} was dropped; start the pipeline again"
            )

    # The mark --------------------------------------------------------------------------------------------------

    @property
    def _marks(self) -> str:
        return f"{quoted(self._schema)}.{MARKS}" if self._schema is not None else MARKS

    @property
    def _own(self) -> str:
        return f"pipeline = {literal(self.pipeline)} AND sink = {literal(self.name)}"

    def _ensure_mark_row(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                if not self._ask(f"SELECT 1 WHERE to_regclass({literal(self._marks)}) IS NOT NULL"):
                    if self._schema is not None:
                        self._run(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
                    self._run(
                        f"CREATE TABLE IF NOT EXISTS {self._marks} (pipeline text, sink text, mark text, "
                        "PRIMARY KEY (pipeline, sink))"
                    )
                # The row is there before the first batch, so that two first writers meet on it.
                self._run(
                    f"INSERT INTO {self._marks} VALUES ({literal(self.pipeline)}, {literal(self.name)}, NULL) "
                    "ON CONFLICT DO NOTHING"
                )
                return
            except adbc.IntegrityError:
                # IF NOT EXISTS does not hold between two who create at the same moment.
                if attempt == ATTEMPTS - 1:
                    raise

    def _lock(self) -> None:
        self._run(f"SET LOCAL lock_timeout = {self._wait_s * 1000}")
        if not self._ask(f"SELECT 1 FROM {self._marks} WHERE {self._own} FOR UPDATE"):
            raise SinkRefused(
                sink=self.name,
                problem=f"its row was removed from {self._marks} while the pipeline ran; start the pipeline again",
            )

    def _stored(self) -> Mark | None:
        rows = self._ask(f"SELECT mark FROM {self._marks} WHERE {self._own}")
        return Mark.from_json(rows[0][0]) if rows and rows[0][0] is not None else None

    def _save(self, mark: str | None) -> None:
        value = "NULL" if mark is None else literal(mark)
        self._run(f"UPDATE {self._marks} SET mark = {value} WHERE {self._own}")

    # Connection and errors -------------------------------------------------------------------------------------

    def _connect(self) -> adbc.Connection:
        try:
            # With autocommit there is no transaction between batches; ours are begun and ended in words.
            return adbc.connect(self._url, autocommit=True)
        except adbc.Error as error:
            text = sentence(error)
            if re.search(
                r"authentication failed|does not exist|no pg_hba.conf entry|invalid|missing \"=\"", text
            ):
                raise SinkRefused(sink=self.name, problem=text) from error
            raise SinkUnavailable(sink=self.name, problem=text) from error

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[adbc.Cursor]:
        if self._connection is None:
            raise SinkUnavailable(sink=self.name, problem="the connection to PostgreSQL is closed")
        cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _run(self, sql: str) -> int:
        """Run a statement; how many rows it changed."""
        with self._cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.rowcount)

    def _ask(self, sql: str) -> list[Any]:
        with self._cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    @property
    def _name(self) -> str:
        return (
            f"{quoted(self._schema)}.{quoted(self._table)}"
            if self._schema is not None
            else quoted(self._table)
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            # After a lost connection the server rolls back by itself.
            with contextlib.suppress(adbc.Error, SinkUnavailable):
                self._run("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what PostgreSQL's errors mean. After the loss of the connection it is closed: `open` makes a new one."""
        try:
            yield
        except adbc.Error as error:
            self._prepared = None
            state, text = error.sqlstate or "", sentence(error)
            if state in DISK_FULL:
                problem = f"the disk of PostgreSQL is full; nothing of this batch was applied ({text})"
                raise SinkUnavailable(sink=self.name, problem=problem) from error
            if state in LOCK_WAIT:
                problem = (
                    f"another writer held a lock for {self._wait_s} s (a second pipeline of this name, or a long "
                    f"transaction on {self._name}); pg_locks tells which ({text})"
                )
                raise SinkUnavailable(sink=self.name, problem=problem) from error
            lost = not state and error.status_code == adbc_driver_manager.AdbcStatusCode.IO
            if lost or state[:2] in CLASSES_AWAY:
                self.close()
                raise SinkUnavailable(sink=self.name, problem=text) from error
            if state in GONE_TABLE:
                raise SinkRefused(
                    sink=self.name, problem=f"{text}; was it dropped while the pipeline ran?"
                ) from error
            raise SinkRefused(sink=self.name, problem=text) from error


class Guess:
    """When to guess that all keys of a batch are new: always while that is so, and rarely while it is not."""

    def __init__(self) -> None:
        self._pause = 0
        self._batches = 0

    def is_due(self) -> bool:
        self._batches -= 1
        return self._batches < 0

    def was_right(self) -> None:
        self._pause = 0

    def was_wrong(self) -> None:
        self._pause = min(max(16, self._pause * 2), 1024)
        self._batches = self._pause


PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.null(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
}


def is_escaped(url: str) -> bool:
    """Whether user and password of a URL end at its first @, and have no % but in escapes."""
    found = re.match(r"postgres(?:ql)?://(?:(.*)@)?", url.partition("?")[0])
    login = (found and found[1]) or ""
    return not re.search(r"[@/]|%(?![0-9A-Fa-f]{2})", login)


def is_json(kind: pa.DataType) -> bool:
    """Nested values are JSON, but for lists of plain values, which are arrays."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_type
        return not (inner in PLAIN and not pa.types.is_null(inner) and not pa.types.is_int8(inner))
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


def takes(has: str, gets: str) -> bool:
    """Whether a column of one type takes values of the other."""
    if has == gets:
        return True
    plain_has, plain_gets = re.sub(r"\(.*?\)", "", has), re.sub(r"\(.*?\)", "", gets)
    if plain_gets == plain_has == "numeric" and has != "numeric":
        digits_has, digits_gets = ([int(d) for d in re.findall(r"\d+", kind)] for kind in (has, gets))
        (p_has, s_has), (p_gets, s_gets) = digits_has, digits_gets
        return s_has >= s_gets and p_has - s_has >= p_gets - s_gets
    return plain_has in WIDER.get(plain_gets, ())


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in a statement. A backslash has no meaning in it: standard_conforming_strings is on since 9.1."""
    return "'" + text.replace("'", "''") + "'"


def sentence(error: BaseException) -> str:
    """The server's own words in one line, without the driver's around them."""
    text = " ".join(str(error).split())
    found = re.search(r"(?:ERROR|FATAL): +(.*)", text) or re.search(r"Failed to connect: (.*)", text)
    text = found[1] if found else text
    return re.sub(r"\.? ?(?:SQLSTATE|Query was):.*$", "", text).strip()
