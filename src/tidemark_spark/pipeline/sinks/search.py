"""Rows as documents of a full-text index in a folder, searched without a server (tantivy).

A batch deletes the documents of its keys, adds the new ones, replaces the one document that holds the mark, and commits
once: tantivy writes a new list of segments and makes it valid by renaming one file, so a reader and a crash see all of
the batch or nothing of it. (A commit has room for a payload; the Python binding does not hand it out, hence a document.)

An index has one writer. Its lock ends with its process; a second run of the same pipeline, or a zombie, finds it taken and
is told by whom. The lock is taken by the first change, not by `open`: looking at a sink disturbs nobody.

What a column becomes: texts are full text, or exact when they are named in `exact` (or when `text` names others); numbers,
booleans and times are what they are; decimals are searched as floating point; lists of these have several values; structs
and maps are searched by path; everything else is its JSON as exact text.

Invariant: documents and mark are of the same commit.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tidemark_spark.errors import SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.rendering import bytes_of, json_rows, keys_of
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Digest, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark_spark.pipeline.values import Change, Mode

INFO = "_tidemark"
"""The field that only the document with the mark has; its value is that document's content."""
INFO_ID = "_tidemark_id"
ID = "_id"
"""In mode update: the key, made of several columns."""
TERM_BYTES_MAX = 65_530
"""An exact text that is longer would be stored and never found."""
DISK_BYTES_MIN = 4 << 20
LOCK_FILE = ".tantivy-writer.lock"


class SearchSink:
    """A `Sink` of all modes."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        given = SinkOptions(name, options)
        self._name = name
        self._pipeline = pipeline
        self._path = Path(given.text("path"))
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        self._text = given.names("text")
        self._exact = given.names("exact")
        self._tokenizer = given.text("tokenizer", "default")
        if self._tokenizer not in ("default", "en_stem", "whitespace"):
            raise given.wrong("tokenizer", "is 'default', 'en_stem' (English word stems) or 'whitespace'")
        if both := set(self._text) & set(self._exact):
            raise given.wrong("exact", f"names '{min(both)}', and so does text; a column is one of them")
        self._memory_mb = given.number("memory_mb", 64, least=16)
        given.done()
        self._index: tantivy.Index | None = None
        self._writer: tantivy.IndexWriter | None = None
        self._info = Info(pipeline, name)

    # Sink ---------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self.close()
        return self._load().mark

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        shape = self._shape(mode)
        columns = {field.name: self._kind(field) for field in shape.schema(schema)}
        if mode == "mirror":
            columns[self._key_column] = f"key {schema.field(KEY).type}"
            columns[SEQUENCE] = "integer"
        elif mode == "update":
            columns[ID] = "key text"
        for listed in (*self._text, *self._exact):
            if listed not in columns:
                raise SinkRefused(
                    sink=self._name,
                    problem=f"text or exact names a column '{listed}' that the rows do not have",
                )
        if self._index is None:
            self._load()
        if self._index is None:
            self._create(columns)
        for name, kind in columns.items():
            has = self._info.columns.get(name, "not there")
            if has != kind:
                raise SchemaDrift(sink=self._name, column=name, has=has, gets=kind)

    def apply(self, change: Change) -> Applied:
        writer, info = self._writing(), self._load()
        if self._index is None:
            self.close()
            raise self._deleted()
        if decide(info.mark, change) is Decision.SKIP:
            return Applied(skipped=True)
        shape = self._shape(change.mark.mode)
        rows = shape.arrange(change.upserts)
        try:
            self._change(writer, shape, rows, change)
            self._replace_info(writer, Info(self._pipeline, self._name, info.columns, change.mark))
            writer.commit()
        except BaseException as error:
            failure = self._failed(error) if isinstance(error, OSError | ValueError) else None
            self._release()
            if failure is not None:
                raise failure from error
            raise
        return Applied(skipped=False, upserted=rows.num_rows, deleted=change.deletes.num_rows)

    def digest(self) -> Digest:
        info = self._load()
        if self._index is None:
            return digest_of([])
        searcher = self._index.searcher()
        found = searcher.search(
            self._rows_only(tantivy.Query.all_query()), max(1, searcher.num_docs), count=False
        )
        places = [place for _, place in found.hits]
        keys = [_text(searcher.doc(place), self._key_column).encode() for place in places]
        if info.columns.get(self._key_column, "").endswith("binary"):
            keys = [base64.b64decode(key) for key in keys]
        return digest_of([(keys, searcher.fast_field_values(SEQUENCE, places) if places else [])])

    def reset(self, drop: bool) -> None:
        info = self._load()
        if self._index is None:
            return
        writer = self._writing()
        if drop:
            # One rename: whatever happens later, the index is gone whole.
            gone = self._path.with_name(f"{self._path.name}.dropped-{os.getpid()}")
            self._path.rename(gone)
            self.close()
            shutil.rmtree(gone)
            return
        self._replace_info(writer, Info(self._pipeline, self._name, info.columns, None))
        writer.commit()

    def close(self) -> None:
        self._release()
        self._index = None
        self._info = Info(self._pipeline, self._name)

    # Searching ----------------------------------------------------------------------------------

    def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """The best documents for a query, best first, each with its `_score`; while a pipeline writes, too.

        Words are looked for in the full-text columns; `column:word`, `"a phrase"`, `AND`, `OR`, `-not`, `column:[1 TO 5]`
        and `*` are understood.

        Raises:
            SinkRefused: there is no index yet, or the query cannot be understood.
        """
        info = self._load()
        if self._index is None:
            raise SinkRefused(
                sink=self._name, problem=f"there is no index at {self._path} yet; run the pipeline first"
            )
        words = [name for name, kind in info.columns.items() if kind == "full text"]
        try:
            parsed = self._index.parse_query(query, words or list(info.columns))
        except ValueError as error:
            known = ", ".join(sorted(info.columns))
            raise SinkRefused(
                sink=self._name, problem=f"the query cannot be understood: {error}. Columns are {known}"
            ) from None
        searcher = self._index.searcher()
        hits = searcher.search(self._rows_only(parsed), max(1, limit), count=False).hits
        return [{"_score": score, **self._document(searcher.doc(place), info)} for score, place in hits]

    def _document(self, document: tantivy.Document, info: Info) -> dict[str, Any]:
        found: dict[str, Any] = document.to_dict()
        return {
            name: found.get(name) if info.columns[name].startswith("list") else (found.get(name) or [None])[0]
            for name in info.columns
        }

    def _rows_only(self, query: tantivy.Query) -> tantivy.Query:
        assert self._index is not None
        info = tantivy.Query.term_query(self._index.schema, INFO_ID, INFO_ID, "basic")
        return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.MustNot, info)])

    # The index ----------------------------------------------------------------------------------

    def _load(self) -> Info:
        """What the index says of itself now.

        Raises:
            SinkRefused: what is in the folder is not this sink's index.
        """
        if not (self._path / "meta.json").exists():
            self._index = None
            self._info = Info(self._pipeline, self._name)
            return self._info
        try:
            if self._index is None:
                self._index = tantivy.Index.open(str(self._path))
            self._index.reload()
            searcher = self._index.searcher()
            hits = searcher.search(
                tantivy.Query.term_query(self._index.schema, INFO_ID, INFO_ID, "basic"), 1
            ).hits
            info = Info.from_json(_text(searcher.doc(hits[0][1]), INFO)) if hits else None
        except (ValueError, OSError) as error:
            raise SinkRefused(
                sink=self._name, problem=f"the index at {self._path} cannot be read: {error}"
            ) from None
        if info is None or (info.pipeline, info.sink) != (self._pipeline, self._name):
            owner = f"of sink '{info.sink}' of pipeline '{info.pipeline}'" if info else "not of a pipeline"
            raise SinkRefused(
                sink=self._name, problem=f"the index at {self._path} is {owner}; choose another path"
            )
        self._info = info
        return info

    def _create(self, columns: dict[str, str]) -> None:
        if self._path.exists() and any(self._path.iterdir()):
            raise SinkRefused(
                sink=self._name,
                problem=f"the folder {self._path} has files in it and no index; choose an empty one",
            )
        builder = tantivy.SchemaBuilder()
        for name, kind in columns.items():
            self._add_field(builder, name, kind)
        builder.add_text_field(INFO_ID, stored=False, tokenizer_name="raw", index_option="basic")
        builder.add_text_field(INFO, stored=True, tokenizer_name="raw", index_option="basic")
        # Made beside its place and moved there with its first document: nobody ever sees an index that says nothing.
        new = self._path.with_name(f"{self._path.name}.new-{os.getpid()}")
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            writer = tantivy.Index(builder.build(), str(new)).writer(self._memory_mb << 20, 1)
            self._replace_info(writer, Info(self._pipeline, self._name, columns, None))
            writer.commit()
            writer.wait_merging_threads()
            new.rename(self._path)
        except (OSError, ValueError) as error:
            shutil.rmtree(new, ignore_errors=True)
            if not (self._path / "meta.json").exists():  # else another process was faster, which is as good
                raise self._failed(error) from error
        self._load()

    def _add_field(self, builder: tantivy.SchemaBuilder, name: str, kind: str) -> None:
        plain = kind.removeprefix("list of ")
        if plain == "full text":
            builder.add_text_field(name, stored=True, tokenizer_name=self._tokenizer)
        elif plain == "exact text" or plain.startswith("key "):
            builder.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
        elif plain == "integer":
            builder.add_integer_field(name, stored=True, indexed=True, fast=True)
        elif plain == "floating point":
            builder.add_float_field(name, stored=True, indexed=True, fast=True)
        elif plain == "boolean":
            builder.add_boolean_field(name, stored=True, indexed=True, fast=True)
        elif plain == "time":
            builder.add_date_field(name, stored=True, indexed=True, fast=True)
        else:
            builder.add_json_field(name, stored=True, tokenizer_name=self._tokenizer)

    def _kind(self, field: pa.Field) -> str:
        """What a column becomes, in words; two kinds with the same words are the same."""
        kind, types = field.type, pa.types
        if (types.is_list(kind) or types.is_large_list(kind)) and _is_simple(kind.value_type):
            return f"list of {self._kind(pa.field(field.name, kind.value_type))}"
        if types.is_string(kind) or types.is_large_string(kind):
            is_text = field.name in self._text or (not self._text and field.name not in self._exact)
            return "full text" if is_text else "exact text"
        if types.is_boolean(kind):
            return "boolean"
        if types.is_integer(kind):
            return "integer"
        if types.is_floating(kind) or types.is_decimal(kind):
            return "floating point"
        if types.is_timestamp(kind) or types.is_date(kind):
            return "time"
        if types.is_struct(kind) or types.is_map(kind):
            return "object"
        return "exact text"

    # Writing ------------------------------------------------------------------------------------

    def _writing(self) -> tantivy.IndexWriter:
        """The writer, with its lock.

        Raises:
            SinkUnavailable: another process has it.
        """
        if self._writer is None:
            if self._index is None:
                self._load()
            if self._index is None:
                raise SinkRefused(
                    sink=self._name, problem=f"there is no index at {self._path}; was it deleted?"
                )
            try:
                self._writer = self._index.writer(self._memory_mb << 20, 1)
            except ValueError as error:
                if "LockBusy" not in str(error):
                    raise self._failed(error) from error
                raise SinkUnavailable(
                    sink=self._name,
                    problem=f"{holder(self._path / LOCK_FILE)} is writing the index at {self._path}; an index has one "
                    "writer: stop the other run of this pipeline",
                ) from None
        return self._writer

    def _change(self, writer: tantivy.IndexWriter, shape: TableShape, rows: pa.Table, change: Change) -> None:
        assert self._index is not None
        columns = self._info.columns
        documents = rows
        if shape.mode == "update":
            ids = [key.decode() for key in keys_of(rows, shape.key)]
            documents = rows.append_column(ID, pa.array(ids, pa.string()))
        documents = pa.table(
            {name: _fitted(documents[name], columns[name]) for name in documents.column_names},
        )
        self._check_lengths(shape, rows, documents)
        key_field = {"mirror": self._key_column, "update": ID, "append": None}[shape.mode]
        if key_field is not None and self._index.searcher().num_docs > 1:
            for key in documents[key_field].to_pylist():
                writer.delete_documents_by_term(key_field, key)
        for key in _fitted(change.deletes[KEY], "key").to_pylist() if change.deletes.num_rows else ():
            writer.delete_documents_by_term(self._key_column, key)
        for at, document in enumerate(json_rows(documents, nulls=False)):
            try:
                writer.add_json(document.decode())
            except ValueError as error:
                if "could not be parsed" in str(error):
                    raise shape.refused(rows, at, str(error)) from None
                raise  # the writer has ended, which is not this row's fault

    def _check_lengths(self, shape: TableShape, rows: pa.Table, documents: pa.Table) -> None:
        for name in documents.column_names:
            kind = self._info.columns[name]
            if kind == "exact text" or kind.startswith("key "):
                lengths = pc.binary_length(documents[name])
                if (pc.max(lengths).as_py() or 0) > TERM_BYTES_MAX:
                    at = pc.index(pc.greater(lengths, TERM_BYTES_MAX), True).as_py()
                    problem = f"an exact text has at most {TERM_BYTES_MAX:,} bytes, and '{name}' has more"
                    raise shape.refused(rows, at, problem)

    def _replace_info(self, writer: tantivy.IndexWriter, info: Info) -> None:
        writer.delete_documents_by_term(INFO_ID, INFO_ID)
        writer.add_json(json.dumps({INFO_ID: INFO_ID, INFO: info.to_json()}))

    def _release(self) -> None:
        """Let go of the lock, and of what was not committed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # Not by forgetting it: the traceback of an error may still hold it.
            with contextlib.suppress(ValueError, OSError):
                writer.wait_merging_threads()

    def _deleted(self) -> SinkRefused:
        problem = (
            f"there is no index at {self._path}; was it deleted? Put it back, or start over with reset --drop"
        )
        return SinkRefused(sink=self._name, problem=problem)

    def _failed(self, error: BaseException) -> SinkRefused | SinkUnavailable:
        # The writer's threads do not say why they ended; a disk without room is the usual reason.
        left = shutil.disk_usage(self._path if self._path.exists() else self._path.parent).free
        if "No space left" in str(error) or left < DISK_BYTES_MIN:
            problem = f"the disk under {self._path} is full; nothing of this batch was applied"
            return SinkUnavailable(sink=self._name, problem=problem)
        return SinkRefused(sink=self._name, problem=f"the index at {self._path} cannot be written: {error}")

    def _shape(self, mode: Mode) -> TableShape:
        return TableShape(self._name, mode, self._key_column, self._key)


class Info:
    """What the index says of itself: whose it is, its columns, and its mark."""

    def __init__(
        self, pipeline: str, sink: str, columns: dict[str, str] | None = None, mark: Mark | None = None
    ) -> None:
        self.pipeline = pipeline
        self.sink = sink
        self.columns = columns or {}
        self.mark = mark

    def to_json(self) -> str:
        mark = None if self.mark is None else self.mark.to_json()
        return json.dumps(
            {"pipeline": self.pipeline, "sink": self.sink, "columns": self.columns, "mark": mark}
        )

    @classmethod
    def from_json(cls, text: str) -> Info:
        facts = json.loads(text)
        mark = None if facts["mark"] is None else Mark.from_json(facts["mark"])
        return cls(facts["pipeline"], facts["sink"], facts["columns"], mark)


def _text(document: tantivy.Document, field: str) -> str:
    value = document.get_first(field)
    assert isinstance(value, str)
    return value


def _is_simple(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    )


def _fitted(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A column whose JSON is what the index reads for this kind."""
    types = pa.types
    if kind.startswith("key") and not types.is_string(column.type):
        if types.is_binary(column.type) or types.is_large_binary(column.type):
            return pa.chunked_array(
                [[base64.b64encode(key).decode() for key in bytes_of(column)]], pa.string()
            )
        return column.cast(pa.string())
    if kind == "time":
        if types.is_timestamp(column.type) and column.type.tz is not None:
            return column
        return column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    if kind == "exact text" and not types.is_string(column.type):
        table = pa.table({"": column})
        # What has no kind of its own is found by its JSON: `{"":…}` without its ends.
        texts = [
            json.loads(row)[""] if types.is_binary(column.type) else row[4:-1].decode()
            for row in json_rows(table)
        ]
        return pa.chunked_array([[None if text in (None, "null") else text for text in texts]], pa.string())
    if kind.startswith("list of ") and column.null_count == 0 and not _has_inner_nulls(column):
        return column
    if kind.startswith("list of "):
        cleaned = [
            None if value is None else [one for one in value if one is not None]
            for value in column.to_pylist()
        ]
        return pa.chunked_array([cleaned], column.type)
    return column


def _has_inner_nulls(column: pa.ChunkedArray) -> bool:
    return any(chunk.flatten().null_count for chunk in column.chunks)


def holder(lock: Path) -> str:
    """Who has a lock file, in words."""
    try:
        inode = str(lock.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return f"process {words[4]}"
    except OSError:
        pass
    return "another process"
