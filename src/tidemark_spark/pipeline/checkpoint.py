"""What Spark's checkpoint of a query says: which query it is, and where each batch begins and ends.

A checkpoint is a folder; on a cluster it may lie in any file system that Spark knows, so files are read through
`Files`, from the disk or through Hadoop. The batch `n` is planned when `offsets/n` is there and finished when
`commits/n` is. Each line of an offsets file behind the second is the offset of one source.

`settle` compares a checkpoint with the mark of a mirror's sink. The sink is the truth: where the two do not meet, the
checkpoint is thrown away and the query begins at the mark.

Invariant: after `settle` said CONTINUE, the next batch of the query begins at the mark, or is the one that ends there.
"""

from __future__ import annotations

import contextlib
import enum
import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from tidemark_spark.errors import CheckpointDamaged, OffsetForeign
from tidemark_spark.offsets import Offset, begin_of, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark_spark.pipeline.values import Mark, Position


GONE = ".gone-"
"""In the name of a checkpoint that is being deleted."""


class Files(Protocol):
    """The few things that are done with a checkpoint's folder."""

    def read(self, name: str) -> str | None:
        """The text of a file; None when there is none."""
        ...

    def names(self, folder: str) -> list[str]: ...

    def remove(self) -> None:
        """Delete everything; whoever is killed meanwhile leaves all of it or nothing under its name."""
        ...


class LocalFiles:
    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(urlsplit(str(folder)).path if str(folder).startswith("file:") else folder)

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return [one.name for one in (self._folder / folder).iterdir()]
        except FileNotFoundError:
            return []

    def remove(self) -> None:
        beside = self._folder.parent
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(beside / f"{self._folder.name}{GONE}{uuid.uuid4().hex}")
        for one in beside.glob(f"{self._folder.name}{GONE}*"):  # also what was left behind earlier
            shutil.rmtree(one, ignore_errors=True)


class HadoopFiles:
    """The same in a file system of Spark's: hdfs://, s3a://, …"""

    def __init__(self, folder: str, session: SparkSession) -> None:
        context: Any = session.sparkContext
        self._jvm: Any = context._jvm
        self._folder = folder.rstrip("/")
        root: Any = self._jvm.org.apache.hadoop.fs.Path(self._folder)
        self._system = root.getFileSystem(context._jsc.hadoopConfiguration())

    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        return [str(one.getPath().getName()) for one in self._system.listStatus(path)]

    def remove(self) -> None:
        path = self._jvm.org.apache.hadoop.fs.Path
        if not self._system.exists(path(self._folder)):
            return
        gone = path(f"{self._folder}{GONE}{uuid.uuid4().hex}")
        if not self._system.rename(path(self._folder), gone):
            raise OSError(f"{self._folder} cannot be renamed")
        self._system.delete(gone, True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where a batch begins and ends."""

    start: Position
    end: Position
    boundary: bool
    numbers: dict[str, int]
    """Stream → its number, which another one of the same name does not have."""


class Checkpoint:
    """The checkpoint of one sink's query."""

    def __init__(self, sink: str, files: Files) -> None:
        self._sink = sink
        self._files = files

    def owner(self) -> str:
        """Spark's id of the query that runs.

        Raises:
            CheckpointDamaged: there is none.
        """
        if (found := self.query()) is None:
            raise self._damaged(
                "metadata", "there is no such file; was the folder deleted while the pipeline ran?"
            )
        return found

    def query(self) -> str | None:
        """Spark's id of the query; None when there is no checkpoint yet."""
        text = self._files.read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            raise self._damaged("metadata", "it is not what Spark writes there") from None

    def batch(self, number: int) -> BatchOffsets:
        """Where a planned batch begins and ends.

        Raises:
            CheckpointDamaged: it is not planned here.
        """
        ends = self._offsets(number)
        if ends is None:
            raise self._damaged(f"offsets/{number}", "there is no such file")
        earlier = self._offsets(number - 1)
        if earlier is None and number > 0 and any(one.origin is None for one in ends):
            raise self._damaged(f"offsets/{number - 1}", "there is no such file")
        before = {one.stream: one for one in (earlier or ())}
        start: Position = {}
        end: Position = {}
        for one in ends:
            try:
                begin = begin_of(before.get(one.stream, one), one)
            except OffsetForeign as error:
                raise self._damaged(f"offsets/{number}", error.problem) from None
            if one.stream not in before and one.origin is None:
                begin = {}
            start[one.stream] = {str(shard): place for shard, place in sorted(begin.items())}
            end[one.stream] = {str(shard): place for shard, place in sorted(one.shards.items())}
        numbers = {one.stream: one.id for one in ends}
        return BatchOffsets(start, end, all(one.is_boundary for one in ends), numbers)

    def planned(self) -> int | None:
        """The last batch that is planned."""
        return max(self._numbers("offsets"), default=None)

    def finished(self) -> int | None:
        """The last batch that is finished."""
        return max(self._numbers("commits"), default=None)

    def is_finished(self, batch: int) -> bool:
        return batch in self._numbers("commits")

    def remove(self) -> None:
        self._files.remove()

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self._files.names(folder) if name.isdecimal()]

    def _offsets(self, number: int) -> list[Offset] | None:
        text = self._files.read(f"offsets/{number}") if number >= 0 else None
        if text is None:
            return None
        lines = text.strip().splitlines()
        if len(lines) < 3 or lines[0] != "v1":
            raise self._damaged(
                f"offsets/{number}", f"its format {lines[0] if lines else ''!r} is not known here"
            )
        try:
            return [Offset.from_json(line) for line in lines[2:] if line != "-"]
        except OffsetForeign as error:
            raise self._damaged(f"offsets/{number}", error.problem) from None

    def _damaged(self, name: str, problem: str) -> CheckpointDamaged:
        return CheckpointDamaged(sink=self._sink, file=name, problem=problem)


def open_checkpoint(sink: str, folder: str, session: SparkSession | None) -> Checkpoint:
    if urlsplit(folder).scheme in ("", "file") or session is None:
        return Checkpoint(sink, LocalFiles(folder))
    return Checkpoint(sink, HadoopFiles(folder, session))


# Where a query begins -------------------------------------------------------------------------------


class Settlement(enum.Enum):
    CONTINUE = "continue"
    """The checkpoint goes on; or there is neither a checkpoint nor a mark."""
    AT_MARK = "at mark"
    """There is no checkpoint, or it does not meet the mark: begin a new one at the mark."""
    ANEW = "anew"
    """The sink holds nothing, whatever the checkpoint says: begin at the beginning."""


def settle(mark: Mark | None, checkpoint: Checkpoint) -> Settlement:
    """How the query of a mirror begins."""
    try:
        planned, finished = checkpoint.planned(), checkpoint.finished()
        if planned is None:
            return Settlement.CONTINUE if mark is None else Settlement.AT_MARK
        last = checkpoint.batch(planned)
    except CheckpointDamaged:
        return Settlement.ANEW if mark is None else Settlement.AT_MARK
    # A batch that is not finished is done again from its start; else the next one begins at its end.
    begins = last.end if finished is not None and finished >= planned else last.start
    if mark is None:
        fresh = all(at == 0 for shards in begins.values() for _, at in shards.values())
        return Settlement.CONTINUE if fresh else Settlement.ANEW
    held = {
        stream: {shard: _held(mark, stream, shards, shard) for shard in shards}
        for stream, shards in begins.items()
    }
    # All of the batch is in the sink, or nothing; anything else was done by somebody else.
    meets = held in (_places(begins), _places(last.end))
    return Settlement.CONTINUE if meets else Settlement.AT_MARK


def _places(position: Position) -> dict[str, dict[str, int]]:
    return {stream: {shard: at for shard, (_, at) in shards.items()} for stream, shards in position.items()}


def _held(mark: Mark, stream: str, shards: dict[str, tuple[str, int]], shard: str) -> int:
    stored = {int(one): place for one, place in mark.position.get(stream, {}).items()}
    return spread(stored, len(shards))[int(shard)][1]


def starting_offsets(mark: Mark, stream: str) -> str:
    """The connector's option that begins at a mark."""
    places = {shard: list(place) for shard, place in mark.position.get(stream, {}).items()}
    return json.dumps(places) if places else "earliest"
