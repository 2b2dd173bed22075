"""A change log of Parquet files in a local folder, one folder a batch.

A batch is written under a temporary name that readers pass over: its rows, then `_batch.json` with the mark and the
columns so far. All of it is synced, and then the folder gets its name, `batch=000012`: one rename, which shows rows and
mark together or not at all. The number is the sink's own, one more than the last; of two writers that want the same
number the file system lets one have it, and the other one reads the mark again and decides again. Rows of mode mirror
have `_deleted`; the state of the stream is the newest row of each key, without those that are deleted.

Invariant: a folder called `batch=…` is whole, and the newest one holds the mark.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark_spark.errors import SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tidemark_spark.pipeline.values import Change, Digest, Mode

DELETED = "_deleted"
FACTS = "_batch.json"
PART = "part.parquet"
TEMPORARY = "_tmp-"
COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")
ATTEMPTS = 20
"""How often a batch is tried again after another writer took its number."""
ABANDONED_S = 3600
"""Age at which a draft is nobody's any more."""


class ParquetSink:
    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.pipeline = pipeline
        given = SinkOptions(name, options)
        path = given.text("path")
        if "://" in path and not path.startswith("file://"):
            raise given.wrong(
                "path", "must be a local folder (an object store cannot rename); kind delta has those"
            )
        self._folder = Path(path.removeprefix("file://"))
        self._compression = given.text("compression", "snappy")
        if self._compression not in COMPRESSIONS:
            raise given.wrong("compression", f"must be one of {', '.join(COMPRESSIONS)}")
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        given.done()
        self._shape: TableShape | None = None

    # What a sink can do ----------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        with self._errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            return self._read(self._newest()).mark

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape = TableShape(self.name, mode, self._key_column, self._key)
        with self._errors():
            self._fit(schema, self._read(self._newest()))

    def apply(self, change: Change) -> Applied:
        shape = self._shape
        assert shape is not None, "prepare comes first"
        rows = shape.arrange(change.upserts)
        if shape.mode == "mirror":
            rows = self._with_deletes(rows, change.deletes)
        with self._errors():
            for _ in range(ATTEMPTS):
                self._must_exist()
                number = self._newest()
                held = self._read(number)
                if decide(held.mark, change) is Decision.SKIP:
                    return Applied(skipped=True)
                columns = self._fit(change.upserts.schema, held)
                if self._publish(number + 1, rows, BatchFacts(change.mark, columns)):
                    return Applied(
                        skipped=False, upserted=change.upserts.num_rows, deleted=change.deletes.num_rows
                    )
        raise SinkUnavailable(
            sink=self.name, problem=f"other writers of {self._folder} were first, {ATTEMPTS} times in a row"
        )

    def digest(self) -> Digest:
        newest: dict[Any, tuple[int, bool]] = {}
        with self._errors():
            # A folder is one batch, in which a key is once; later folders are newer.
            for number in self._numbers():
                part = self._path(number) / PART
                if not part.exists():
                    continue
                for batch in pq.ParquetFile(part).iter_batches(columns=[self._key_column, SEQUENCE, DELETED]):
                    keys, sequences, deleted = (column.to_pylist() for column in batch.columns)
                    newest.update(zip(keys, zip(sequences, deleted, strict=True), strict=True))
        live = [(key, sequence) for key, (sequence, deleted) in newest.items() if not deleted]
        return digest_of([([key for key, _ in live], [sequence for _, sequence in live])])

    def reset(self, drop: bool) -> None:
        with self._errors():
            numbers = self._numbers()
            if not numbers:
                return
            # The newest one says how far we got: first it forgets that, so that there is no mark if the rest fails.
            newest = self._path(numbers[-1])
            draft = newest / f"{TEMPORARY}{FACTS}"
            draft.write_text(BatchFacts(None, self._read(numbers[-1]).columns).to_json())
            sync_path(draft)
            draft.replace(newest / FACTS)
            sync_path(newest)
            if drop:
                for number in numbers:
                    shutil.rmtree(self._path(number))
                sync_path(self._folder)

    def close(self) -> None:
        pass

    # One batch -------------------------------------------------------------------------------------------------

    def _with_deletes(self, rows: pa.Table, deletes: pa.Table) -> pa.Table:
        rows = rows.append_column(DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
        if not deletes.num_rows:
            return rows
        gone = deletes.select([KEY, SEQUENCE]).rename_columns([self._key_column, SEQUENCE])
        gone = gone.append_column(DELETED, pa.array([True] * gone.num_rows, pa.bool_()))
        return pa.concat_tables([rows, gone], promote_options="default")

    def _publish(self, number: int, rows: pa.Table, facts: BatchFacts) -> bool:
        """Write a batch and give it its number; False if another writer has that number already."""
        draft = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            draft.mkdir()
            if rows.num_rows:
                pq.write_table(rows, draft / PART, compression=self._compression)
                sync_path(draft / PART)
            (draft / FACTS).write_text(facts.to_json())
            sync_path(draft / FACTS)
            sync_path(draft)
            try:
                draft.rename(self._path(number))
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        sync_path(self._folder)
        return True

    # The folder ------------------------------------------------------------------------------------------------

    def _fit(self, schema: pa.Schema, held: BatchFacts) -> dict[str, str]:
        """All columns so far and those of this schema; a column keeps its type for ever."""
        shape = self._shape
        assert shape is not None
        wanted = {field.name: str(field.type) for field in shape.schema(schema)}
        if shape.mode == "mirror":
            if DELETED in wanted:
                raise SinkRefused(
                    sink=self.name,
                    problem=f"column '{DELETED}' is this sink's own; rename it in the transformation",
                )
            wanted[DELETED] = "bool"
        for name, kind in wanted.items():
            has = held.columns.get(name, kind)
            if has != kind:
                raise SchemaDrift(sink=self.name, column=name, has=has, gets=kind)
        return held.columns | wanted

    def _numbers(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"batch=(\d+)", name)))

    def _newest(self) -> int:
        """The number of the newest batch; -1 if there is none."""
        return max(self._numbers(), default=-1)

    def _path(self, number: int) -> Path:
        return self._folder / f"batch={number:06}"

    def _read(self, number: int) -> BatchFacts:
        if number < 0:
            return BatchFacts(None, {})
        try:
            facts = BatchFacts.from_json((self._path(number) / FACTS).read_text())
        except FileNotFoundError:
            return BatchFacts(None, {})
        except ValueError as error:
            raise SinkRefused(
                sink=self.name, problem=f"{self._path(number) / FACTS} is not what was written there: {error}"
            ) from error
        if facts.mark is not None and (facts.mark.pipeline, facts.mark.sink) != (self.pipeline, self.name):
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"{self._folder} belongs to sink '{facts.mark.sink}' of pipeline '{facts.mark.pipeline}'; "
                    f"give this one a folder of its own"
                ),
            )
        return facts

    def _must_exist(self) -> None:
        if not self._folder.is_dir():
            raise SinkRefused(
                sink=self.name,
                problem=(
                    f"the folder {self._folder} is gone; bring it back, or run `tidemark pipeline reset FILE "
                    f"--sink {self.name} --drop` to fill it anew"
                ),
            )

    def _sweep(self) -> None:
        """Remove what writers that no longer run have left behind."""
        for draft in self._folder.glob(f"{TEMPORARY}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(draft, ignore_errors=True)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                problem = f"the disk under {self._folder} is full; nothing of this batch was applied"
                raise SinkUnavailable(sink=self.name, problem=problem) from error
            if error.errno in (errno.EIO, errno.ESTALE, errno.ENOTCONN):
                raise SinkUnavailable(sink=self.name, problem=f"{self._folder}: {error}") from error
            raise SinkRefused(sink=self.name, problem=f"{self._folder}: {error}") from error
        except pa.ArrowInvalid as error:
            raise SinkRefused(sink=self.name, problem=f"{self._folder}: {error}") from error


class BatchFacts:
    """What a batch says about itself: its mark, and the columns of all batches so far with their types."""

    def __init__(self, mark: Mark | None, columns: dict[str, str]) -> None:
        self.mark = mark
        self.columns = columns

    def to_json(self) -> str:
        mark = None if self.mark is None else json.loads(self.mark.to_json())
        return json.dumps({"mark": mark, "columns": self.columns}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BatchFacts:
        facts = json.loads(text)
        mark = None if facts["mark"] is None else Mark.from_json(json.dumps(facts["mark"]))
        return cls(mark, dict(facts["columns"]))


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
