"""Looking into a stream: pages of its messages at any moment that is still kept, backwards too, by key, and two moments compared.

All of it reads a snapshot in small steps, with turns of the loop between them, and stops after a while with what it has: the
answer says where to go on. Between two pages of the same moment the snapshot stays open for a minute, so that whoever
turns pages sees one state; there is a bound to how many are open.

Invariant: rows are gathered in the step that found them, while the snapshot holds them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from tidemark.admin.answers import plain
from tidemark.admin.reading import read_json
from tidemark.broker.streams.core import (
    FLAGS,
    KEY,
    PROPERTIES,
    SEQUENCE,
    TIMESTAMP,
    VALUE,
    gather,
    select_keys,
)
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.errors import SyntaxFault
from tidemark.model.rows import Row
from tidemark.model.runs import Taken
from tidemark.wire.amqp091.properties import NO_PROPERTIES, Properties, decode_properties

COLUMNS = KEY | VALUE | PROPERTIES | SEQUENCE | TIMESTAMP | FLAGS
PAGE_ROWS = 64
"""How many rows are gathered in one step."""
PAGE_BYTES = 1 << 20
SIFT_ROWS = 1024
"""How many rows are looked at in one step when only some are wanted."""
COUNT_ROWS = 8192
BYTES_MANY = 1 << 62
BROWSE_S = 2.0
PART_ROWS = 8
FOUND_BYTES_MAX = 32 << 20
"""When so much was found, a page ends."""
OPEN_MAX = 64
OPEN_S = 60.0
REVISIONS_MAX = 200

PROPERTIES_SHOWN = tuple(field.name for field in fields(Properties) if field.name != "headers")

As = Literal["auto", "json", "base64"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys from `first`, before `end`, byte by byte."""

    first: bytes
    end: bytes | None

    @classmethod
    def exactly(cls, key: bytes) -> Keys:
        return cls(key, key + b"\0")

    @classmethod
    def beginning(cls, prefix: bytes) -> Keys:
        whole = prefix.rstrip(b"\xff")
        return cls(prefix, whole[:-1] + bytes((whole[-1] + 1,)) if whole else None)


@dataclass(frozen=True, slots=True)
class Form:
    """How values are shown."""

    bytes_max: int
    as_: As = "auto"


# Snapshots that stay for a while ----------------------------------------------------------------------------


class Views:
    """Snapshots of pages that somebody may turn."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[int, int], tuple[float, Snapshot]] = OrderedDict()
        """By stream and sequence; the longest unread first."""
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, stream: Stream, seq: int) -> None:
        """Let this moment be there for the next page, too."""
        name = (stream.number, seq)
        _, snapshot = self._open.pop(name, (0.0, None))
        if snapshot is None or snapshot.closed or snapshot.stream is not stream:
            snapshot = Snapshot(stream, seq)
        self._open[name] = time.monotonic() + OPEN_S, snapshot
        while len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1][1].close()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(OPEN_S / 4, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for name, (until, snapshot) in list(self._open.items()):
            if until < now or snapshot.closed or snapshot.stream.deleted:
                del self._open[name]
                if not snapshot.stream.deleted:
                    snapshot.close()
        self._timer = asyncio.get_running_loop().call_later(OPEN_S / 4, self._look) if self._open else None


# Walking ----------------------------------------------------------------------------------------------------


async def forwards(
    snapshot: Snapshot, after: int, limit: int, keys: Keys | None
) -> tuple[list[Row], int | None]:
    """Up to `limit` rows behind `after`, and where to go on; None: there is nothing more."""
    stream, until = snapshot.stream, time.monotonic() + BROWSE_S
    found: list[Row] = []
    size = 0
    while len(found) < limit:
        count = SIFT_ROWS if keys else min(limit - len(found), PAGE_ROWS)
        taken = snapshot.take(count, BYTES_MANY if keys else PAGE_BYTES, after=after)
        if taken is None:
            return found, None
        after = snapshot.position
        if keys is not None:
            taken = select_keys(stream, taken, keys.first, keys.end)
            if len(taken) > limit - len(found):
                taken = _part(taken, 0, limit - len(found))
                after = taken.entry(len(taken) - 1)[1]
        for at in range(0, len(taken), PART_ROWS):
            part = _part(taken, at, min(at + PART_ROWS, len(taken)))
            size += _gathered(stream, part, found)
            if size > FOUND_BYTES_MAX:
                return found, found[-1].seq
        if time.monotonic() > until:
            return found, after
        await asyncio.sleep(0)
    more = snapshot.take(1, 1, after=after) is not None
    return found, after if more else None


async def backwards(
    snapshot: Snapshot, before: int, limit: int, keys: Keys | None
) -> tuple[list[Row], int | None]:
    """The last `limit` rows before `before`, in their order, and the `before` of the page in front of them; None: there is none."""
    stream, end = snapshot.stream, min(before - 1, snapshot.seq)
    floor, until = max(0, stream.first_seq - 1), time.monotonic() + BROWSE_S
    width = 4 * limit
    while True:
        start = max(floor, end - width)
        last: deque[tuple[int, int, int, int, int, int]] = deque(maxlen=limit + 1)
        position = start
        while position < end:
            taken = snapshot.take(SIFT_ROWS if keys else COUNT_ROWS, BYTES_MANY, after=position, until=end)
            if taken is None:
                break
            position = snapshot.position
            if keys is not None:
                taken = select_keys(stream, taken, keys.first, keys.end)
            last.extend(taken.entry(at) for at in range(max(0, len(taken) - limit - 1), len(taken)))
            await asyncio.sleep(0)
        if len(last) > limit or start == floor or time.monotonic() > until:
            break
        width *= 4
    more = len(last) > limit or start > floor
    rows = list(last)[-limit:]
    found: list[Row] = []
    size = 0
    while rows and size <= FOUND_BYTES_MAX:
        # What was found in an earlier step has been held by the snapshot since.
        part: list[Row] = []
        size += _gathered(stream, _taken(rows[-PART_ROWS:]), part)
        found[:0] = part
        del rows[-PART_ROWS:]
        await asyncio.sleep(0)
    more = more or bool(rows)
    if not more:
        return found, None
    return found, found[0].seq if found else start + 1


async def newest_ms(snapshot: Snapshot) -> int | None:
    """When the newest message that it sees was accepted."""
    rows, _ = await backwards(snapshot, snapshot.seq + 1, 1, None)
    return rows[0].ms if rows else None


def one(stream: Stream, key: bytes, seq: int) -> Row | None:
    """What a snapshot at `seq` sees under a key, a tombstone too."""
    found = stream.find(key, seq)
    if found is None:
        return None
    at, loc, tombstone = found
    taken = Taken(0)
    taken.add(0, at, loc, 0, 4 if tombstone else 0, 0)
    return next(iter(gather(stream, taken, COLUMNS)))


def revisions(stream: Stream, key: bytes, limit: int = REVISIONS_MAX) -> Iterator[tuple[Row, int | None]]:
    """The versions of a key that are still held, the newest first, each with what superseded it as far as that is known."""
    pinned, opened = stream.pins.by_name.values(), stream.every_snapshot()
    views = sorted({pin.seq for pin in pinned} | {one.seq for one in opened}, reverse=True)
    at, newer = stream.caught_up(), None
    for _ in range(limit):
        row = one(stream, key, at)
        while row is None:
            # Between here and the next view that is held nobody keeps anything of it.
            at = next((seq for seq in views if seq < at), -1)
            if at < 0:
                return
            row, newer = one(stream, key, at), None
        yield row, newer
        at = newer = row.seq
        at -= 1


def _gathered(stream: Stream, taken: Taken, found: list[Row]) -> int:
    """Put these rows behind those that were found; returns how large their values are."""
    rows = list(gather(stream, taken, COLUMNS))
    found += rows
    return sum(len(row.value) for row in rows)


def _taken(rows: list[tuple[int, int, int, int, int, int]]) -> Taken:
    made = Taken(0)
    for row in rows:
        made.add(*row)
    return made


def _part(taken: Taken, first: int, end: int) -> Taken:
    return _taken([taken.entry(at) for at in range(first, end)])


# Showing ----------------------------------------------------------------------------------------------------


def item(row: Row, form: Form) -> dict[str, Any]:
    """One message as JSON has it."""
    key, key_encoding = _text(row.key) if row.key is not None else (None, "string")
    encoding, value, cut = shown_value(row.value, form)
    properties, headers = _properties(row.properties)
    return {
        "sequence": row.seq,
        "timestamp": row.ms,
        "key": key,
        "key_encoding": key_encoding,
        "tombstone": row.tombstone,
        "bytes": len(row.value),
        "encoding": encoding,
        "value": value,
        "cut": cut,
        "properties": properties,
        "headers": headers,
    }


def shown_value(value: bytes, form: Form) -> tuple[str, Any, bool]:
    """How it is encoded, the value, and whether it was cut."""
    cut = len(value) > form.bytes_max
    part = value[: form.bytes_max]
    if form.as_ == "json" and not cut:
        try:
            return "json", read_json(part), False
        except (ValueError, RecursionError):
            pass
    if form.as_ != "base64":
        # A character that was cut in two is left out.
        for back in range(4 if cut else 1):
            try:
                return "string", part[: len(part) - back].decode(), cut
            except UnicodeDecodeError:
                continue
    return "base64", base64.b64encode(part).decode(), cut


def _text(raw: bytes) -> tuple[str, str]:
    try:
        return raw.decode(), "string"
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode(), "base64"


def _properties(raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    if raw in (b"", NO_PROPERTIES):
        return {}, {}
    try:
        found = decode_properties(raw)
    except SyntaxFault:
        return {}, {}
    values = {name: value for name in PROPERTIES_SHOWN if (value := getattr(found, name)) is not None}
    known: dict[str, Any] = plain(values) if values else {}
    shown: dict[str, Any] = plain(found.headers) if found.headers else {}
    return known, shown
