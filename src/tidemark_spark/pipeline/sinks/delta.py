"""A Delta table, by the `deltalake` package: no Java, local folders and object stores.

A batch is one commit of the table: upserts and deletes are one MERGE by key. The commit has a number of ours, one more
than the last, as its application transaction, and the mark as its metadata. The number is part of the table's state, and
so is there whatever happens to the log; the mark is found by it in the history. (A table property would be a commit of
its own, which could not be atomic with the rows.) A commit is only made on top of the version that the mark was read
from: whoever comes second reads the mark again and decides again.

Invariant: no commit changes rows of this sink without saying how far they have got.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tidemark_spark.errors import SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tidemark_spark.pipeline.values import Change, Digest, Mode

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often a batch is tried again after another writer committed first."""
GONE = "_tidemark_deleted"
"""The column of what is merged that tells deletes from upserts."""
NEWEST = 20
"""Commits in which the mark is looked for first."""


class DeltaSink:
    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.pipeline = pipeline
        given = SinkOptions(name, options)
        self._uri = given.text("path")
        self._storage = {key: str(value) for key, value in given.table("storage_options").items()} or None
        self._properties = {key: str(value) for key, value in given.table("properties").items()}
        self._partition_by = given.names("partition_by")
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        self._compact_every = given.number("compact_every", 100)
        given.done()
        self._app = f"tidemark/{pipeline}/{name}"
        self._table: DeltaTable | None = None
        self._shape: TableShape | None = None
        self._prepared: pa.Schema | None = None
        self._since_compacted = 0

    # What a sink can do ----------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self._prepared = None
        with self._errors():
            self._table = self._load()
            return None if self._table is None else self._stored(self._table)[1]

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape = TableShape(self.name, mode, self._key_column, self._key)
        self._prepared = None
        with self._errors():
            self._table = self._load()
            self._fit(schema)

    def apply(self, change: Change) -> Applied:
        assert self._shape is not None, "prepare comes first"
        rows = self._shape.arrange(change.upserts)
        for attempt in range(ATTEMPTS):
            with self._errors():
                try:
                    applied = self._apply_once(change, rows, self._shape)
                except CommitFailedError:  # another writer was first: decide again
                    time.sleep(random.uniform(0, 0.02 * (attempt + 1)))
                    continue
                self._keep_in_shape(applied)
                return applied
        raise SinkUnavailable(
            sink=self.name, problem=f"other writers of {self._uri} committed first, {ATTEMPTS} times in a row"
        )

    def digest(self) -> Digest:
        with self._errors():
            table = self._fresh()
            rows = table.to_pyarrow_table(columns=[self._key_column, SEQUENCE])
            return digest_of((part.column(0), part.column(1)) for part in rows.to_batches())

    def reset(self, drop: bool) -> None:
        for _ in range(ATTEMPTS):
            with self._errors():
                table = self._load()
                if table is None:
                    return
                number, _ = self._stored(table)
                try:
                    if drop:
                        table.delete(commit_properties=self._commit(number + 1, None))
                    if not drop or table.transaction_version(self._app) != number + 1:
                        self._commit_nothing(table, self._commit(number + 1, None))
                except CommitFailedError:
                    continue
                self._prepared = None
                return
        raise SinkUnavailable(
            sink=self.name, problem=f"other writers of {self._uri} committed first, again and again"
        )

    def close(self) -> None:
        self._table = None
        self._prepared = None

    # One commit ------------------------------------------------------------------------------------------------

    def _apply_once(self, change: Change, rows: pa.Table, shape: TableShape) -> Applied:
        self._fit(change.upserts.schema)
        table = self._fresh()  # from here on this version is the one to commit on top of
        number, stored = self._stored(table)
        if decide(stored, change) is Decision.SKIP:
            return Applied(skipped=True)
        self._must_not_be_null(table, rows, shape)
        commit = self._commit(number + 1, change.mark)
        before, deleted = table.version(), 0
        try:
            if not shape.key or (not change.deletes.num_rows and not table.file_uris()):
                if rows.num_rows:
                    write_deltalake(table, rows, mode="append", commit_properties=commit)
            elif rows.num_rows or change.deletes.num_rows:
                deleted = self._merge(table, rows, change.deletes, shape, commit)
        except CommitFailedError:
            raise
        except DeltaError as error:
            self._refuse_row(rows, shape, error)
        # What this object says of its version is our own commit; others may have gone on from it meanwhile.
        if table.version() == before:
            # Nothing to change is no commit: the mark needs one all the same.
            self._commit_nothing(table, commit)
        table.update_incremental()
        if (table.transaction_version(self._app) or 0) <= number:
            raise CommitFailedError("the commit is not in the log")
        self._sync(before + 1, table.version())
        return Applied(skipped=False, upserted=rows.num_rows, deleted=deleted)

    def _merge(
        self,
        table: DeltaTable,
        rows: pa.Table,
        deletes: pa.Table,
        shape: TableShape,
        commit: CommitProperties,
    ) -> int:
        source = rows.append_column(GONE, pa.array([False] * rows.num_rows, pa.bool_()))
        if deletes.num_rows:
            gone = deletes.select([KEY]).rename_columns([self._key_column])
            gone = gone.append_column(GONE, pa.array([True] * gone.num_rows, pa.bool_()))
            source = pa.concat_tables([source, gone], promote_options="permissive")
        # A group of an aggregation may be NULL, so NULL is equal to NULL in results.
        same = "is not distinct from" if shape.mode == "update" else "="
        on = " AND ".join(f"(held.{ticked(name)} {same} new.{ticked(name)})" for name in shape.key)
        every = {ticked(name): f"new.{ticked(name)}" for name in rows.column_names}
        merger = table.merge(source, on, source_alias="new", target_alias="held", commit_properties=commit)
        if deletes.num_rows:
            merger = merger.when_matched_delete(f"new.{GONE}")
        merger = merger.when_matched_update(every, f"NOT new.{GONE}").when_not_matched_insert(
            every, f"NOT new.{GONE}"
        )
        return int(merger.execute()["num_target_rows_deleted"])

    def _commit(self, number: int, mark: Mark | None) -> CommitProperties:
        facts = {
            f"{self._app}.mark": "null" if mark is None else mark.to_json(),
            f"{self._app}.number": str(number),
        }
        return CommitProperties(
            custom_metadata=facts, max_commit_retries=0, app_transactions=[Transaction(self._app, number)]
        )

    def _commit_nothing(self, table: DeltaTable, commit: CommitProperties) -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=commit)

    def _stored(self, table: DeltaTable) -> tuple[int, Mark | None]:
        """The number of our last commit in this version of the table, and the mark that it stored."""
        number = table.transaction_version(self._app)
        if number is None:
            return 0, None
        for limit in (NEWEST, None):
            for entry in table.history(limit):
                if entry.get(f"{self._app}.number") == str(number):
                    text = entry[f"{self._app}.mark"]
                    return number, None if text == "null" else Mark.from_json(text)
        raise SinkRefused(
            sink=self.name,
            problem=(
                f"the log of {self._uri} no longer has commit {number} of this sink, which holds its mark (the log was "
                f"cleaned while the pipeline stood still); run `tidemark pipeline reset FILE --sink {self.name} --drop` "
                f"to fill it anew"
            ),
        )

    def _sync(self, first: int, last: int) -> None:
        """See that the commits are on disk, in a local folder: deltalake leaves that to the system."""
        folder = self._folder
        if folder is None:
            return
        for version in range(first, last + 1):
            entry = folder / "_delta_log" / f"{version:020}.json"
            if not entry.exists():
                continue
            for line in entry.read_text().splitlines():
                added = json.loads(line).get("add")
                if added:
                    sync_path(folder / unquote(added["path"]))
                    sync_path((folder / unquote(added["path"])).parent)
            sync_path(entry)
            sync_path(entry.parent)

    @property
    def _folder(self) -> Path | None:
        if "://" not in self._uri:
            return Path(self._uri)
        return Path(unquote(self._uri[7:])) if self._uri.startswith("file://") else None

    # The table -------------------------------------------------------------------------------------------------

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._storage)
        except TableNotFoundError:
            return None

    def _fresh(self) -> DeltaTable:
        """The newest version of the table that must be there."""
        folder = self._folder
        if self._table is None or (folder is not None and not (folder / "_delta_log").exists()):
            self._table = self._load()
        if self._table is None:
            self._prepared = None
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"there is no Delta table at {self._uri} any more; bring it back, or run `tidemark pipeline reset "
                    f"FILE --sink {self.name} --drop` to fill it anew"
                ),
            )
        self._table.update_incremental()
        return self._table

    def _fit(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it does not have; nothing if it was seen to fit before."""
        if self._prepared is not None and self._prepared.equals(schema):
            return
        shape = self._shape
        assert shape is not None
        wanted = shape.schema(schema)
        if self._table is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._table = DeltaTable.create(
                self._uri,
                wanted,
                mode="ignore",
                partition_by=list(self._partition_by) or None,
                configuration=self._properties,
                storage_options=self._storage,
            )
        drift = self._drift(self._table, wanted)
        if drift is not None:
            empty = self._stored(self._table)[1] is None and not self._table.file_uris()
            if not empty:
                raise drift
            write_deltalake(self._table, wanted.empty_table(), mode="overwrite", schema_mode="overwrite")
            self._table = self._load()
        self._prepared = schema

    def _drift(self, table: DeltaTable, wanted: pa.Schema) -> SchemaDrift | None:
        """Add what is missing; what differs is the answer."""
        # What Delta makes of our types (a list's item is called `element` there, say) is what is compared.
        delta = {field.name: field for field in delta_fields(wanted)}
        held = {field.name: field for field in table.schema().fields}
        missing = [field for name, field in delta.items() if name not in held]
        for name, field in delta.items():
            if name in held and held[name].type != field.type:
                has, gets = (str(f.type.to_json()).strip('"') for f in (held[name], field))
                return SchemaDrift(sink=self.name, column=name, has=has, gets=gets)
        if missing:
            table.alter.add_columns(missing)
            table.update_incremental()
        return None

    def _must_not_be_null(self, table: DeltaTable, rows: pa.Table, shape: TableShape) -> None:
        for field in table.schema().fields:
            if field.nullable or not rows.num_rows:
                continue
            if field.name not in rows.column_names:
                raise SinkRefused(
                    sink=self.name,
                    problem=f"column '{field.name}' of {self._uri} must not be NULL, and no row has it",
                )
            if rows[field.name].null_count:
                index = pc.index(pc.is_null(rows[field.name]), True).as_py()
                raise shape.refused(rows, index, f"column '{field.name}' must not be NULL")

    def _refuse_row(self, rows: pa.Table, shape: TableShape, error: DeltaError) -> NoReturn:
        """Say which row breaks a constraint of the table: deltalake prints it among its words."""
        text = str(error)
        if "failed validation check" not in text:
            raise error
        problem = "it breaks a CHECK constraint of the table"
        lines = [line.split("|") for line in text.splitlines() if line.startswith("|")]
        with contextlib.suppress(ValueError, IndexError):
            at = [word.strip() for word in lines[0]].index(SEQUENCE)
            index = pc.index(rows[SEQUENCE], int(lines[1][at])).as_py()
            if index >= 0:
                raise shape.refused(rows, index, problem) from error
        raise SinkRefused(sink=self.name, problem=f"a row does not fit: {one_line(error)}") from error

    def _keep_in_shape(self, applied: Applied) -> None:
        """Now and then make few large files out of many small ones, and remove those that nobody needs any more."""
        if applied.skipped or not self._compact_every or self._table is None:
            return
        self._since_compacted += 1
        if self._since_compacted < self._compact_every:
            return
        self._since_compacted = 0
        try:
            self._table.optimize.compact()
            self._table.vacuum(dry_run=False)
        except (DeltaError, OSError) as error:  # the batch is done: that is for another time
            log.warning("compaction of %s was put off: %s", self._uri, one_line(error))

    # Errors ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what the errors of deltalake mean."""
        try:
            yield
        except (DeltaError, OSError) as error:
            self._table = None
            text = one_line(error)
            if os.strerror(errno.ENOSPC) in text or getattr(error, "errno", None) == errno.ENOSPC:
                problem = f"the disk under {self._uri} is full; nothing of this batch was applied ({text})"
                raise SinkUnavailable(sink=self.name, problem=problem) from error
            if isinstance(error, CommitFailedError) or re.search(
                r"timed? ?out|connect|dns|503|reset by", text, re.I
            ):
                raise SinkUnavailable(sink=self.name, problem=f"{self._uri}: {text}") from error
            raise SinkRefused(sink=self.name, problem=f"{self._uri}: {text}") from error


def delta_fields(schema: pa.Schema) -> list[Field]:
    from deltalake import Schema

    return list(Schema.from_arrow(schema).fields)


def ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
