"""What both clients need for partitioned streams: whose rows are whose, what came of the parts, when all of them are quiet, which
of them were not seen yet.

Which partition a key belongs to says `model.partitions.partition_of`, here as in the broker. A row without a key belongs to
none: such rows go round.

Invariant: rows of one key stay in one partition, in the order in which they came.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidemark.client import operations as ops
from tidemark.client.reading import Progress, Start
from tidemark.client.rows import Writes, is_arrow
from tidemark.client.values import Bytes, Receipt, octets
from tidemark.model.partitions import partition_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Keys:
    """The partition of a key; of a row without one, the next in turn. Any thread may ask."""

    def __init__(self, count: int, dice: random.Random | None = None) -> None:
        self.count = count
        # Writers that come for one row each must not all begin with the same partition.
        self._turns = itertools.count((dice or random.Random()).randrange(count))

    def number(self, key: Bytes | None) -> int:
        return next(self._turns) % self.count if key is None else partition_of(octets(key), self.count)

    def split(self, rows: Any, first: int | None = None) -> dict[int, Writes | Any]:
        """What each partition is to be given, of those that get something: see `split`."""
        return split(rows, self.count, next(self._turns) if first is None else first)


def split(rows: Any, count: int, first: int = 0) -> dict[int, Writes | Any]:
    """Rows as `put_many` takes them, by partition; the order within each is theirs. Nothing is sent before all are seen to be good.

    Args:
        first: the partition of the first row without a key; the others follow in turn.
    """
    if is_arrow(rows):
        return _split_table(rows, count, first)
    found: dict[int, list[Sequence[Any]]] = {}
    turns = itertools.count(first)
    for row in rows:
        key, *_ = row
        number = next(turns) % count if key is None else partition_of(octets(key), count)
        found.setdefault(number, []).append(row)
    return {number: ops.writes(found[number]) for number in sorted(found)}


def _split_table(rows: pa.Table | pa.RecordBatch, count: int, first: int) -> dict[int, pa.Table]:
    """Raises TypeError: the keys cannot be bytes."""
    import pyarrow as pa

    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    keys: Iterable[bytes | None] = itertools.repeat(None, table.num_rows)
    if "key" in table.column_names:
        try:
            keys = table.column("key").cast(pa.binary()).to_pylist()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
            raise TypeError(f"column 'key' cannot be bytes: {problem}") from None
    turns = itertools.count(first)
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        number = next(turns) % count if key is None else partition_of(key, count)
        places.setdefault(number, []).append(place)
    return {number: table.take(pa.array(places[number], pa.int64())) for number in sorted(places)}


def receipts(stream: str, count: int, found: Mapping[int, Receipt | BaseException]) -> list[Receipt | None]:
    """What came of a write of several partitions, by their numbers; None where there was nothing to write.

    Raises:
        TidemarkError: the first partition that did not store its part; a note says which did.
    """
    failed = {number: one for number, one in found.items() if isinstance(one, BaseException)}
    if failed:
        error = failed[min(failed)]
        stored = ", ".join(str(one) for one in sorted(found) if one not in failed) or "none"
        others = ", ".join(map(str, sorted(failed)))
        error.add_note(f"partitions of {stream!r} that stored their part: {stored}; that did not: {others}")
        raise error
    return [cast("Receipt | None", found.get(number)) for number in range(count)]


def starts(start: Start | Sequence[Start | None] | None, count: int) -> list[Start | None]:
    """Where to begin in each partition.

    Raises:
        TypeError: a place of one stream was given for all, where it means nothing.
        ValueError: there are more or fewer places than partitions.
    """
    if isinstance(start, list):  # a receipt and a mark are sequences, too
        if len(start) != count:
            raise ValueError(f"there are {count} partitions, and {len(start)} places to start from")
        return list(start)
    if isinstance(start, (int, tuple)) or (start is not None and hasattr(start, "history")):
        raise TypeError(
            f"{start!r} is a place in one stream; give a list of places, one for each of the {count} partitions"
        )
    return [cast("Start | None", start)] * count


class Unseen:
    """Partitions that main says live in a client's group, until they are seen there.

    Whoever made them may have died between main and the group; then the first who uses them makes them. One that was seen and
    is gone was deleted: it stays away.
    """

    def __init__(self) -> None:
        self._part_of: dict[str, str] = {}

    def expect(self, partition: str, whole: str) -> None:
        self._part_of[partition] = whole

    def __contains__(self, stream: str) -> bool:
        return stream in self._part_of

    def named_by(self, call: ops.Call[Any]) -> dict[str, str]:
        """Those that a call is about, each with the name that it is a part of."""
        if not self._part_of or call.takes_away:
            return {}
        return {name: whole for name, whole in self._part_of.copy().items() if name in call.streams}

    def saw(self, partitions: Iterable[str]) -> None:
        for one in partitions:
            self._part_of.pop(one, None)


class Quiet:
    """Since when each partition has waited for something to come. A subscription of all ends when nothing came in any of them."""

    def __init__(self, count: int, idle: float | None) -> None:
        self._since: list[float | None] = [None] * count
        """None: it is busy, or not yet connected."""
        self._idle = idle

    def waits(self, number: int, now: float) -> None:
        self._since[number] = now

    def busy(self, number: int) -> None:
        self._since[number] = None

    def left(self, now: float) -> float | None:
        """How many seconds it may go on like this; None: for ever, or until somebody waits."""
        if self._idle is None:
            return None
        latest = 0.0
        for since in self._since:
            if since is None:
                return None
            latest = max(latest, since)
        return latest + self._idle - now


class Together:
    """Progress of reading several partitions, told as that of one."""

    def __init__(self, progress: Progress, count: int) -> None:
        self.totals = [0] * count
        """Rows that are expected in each."""
        self._done = [0] * count
        self._progress = progress

    def of(self, number: int) -> Progress:
        """What the reading of this partition is to call."""

        def told(done: int, total: int) -> None:
            self._done[number], self.totals[number] = done, total
            self._progress(sum(self._done), sum(self.totals))

        return told
