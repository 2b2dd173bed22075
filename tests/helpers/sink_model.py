"""What a sink must hold: a history of batches made from one seed, and the state after each of them.

Batch n holds sequences n * SIZE + 1 to (n + 1) * SIZE of a stream, each a put or a delete of another key, so any number
of consecutive batches can be asked for as one. Values tell what they belong to: `name` is key@sequence.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache
from typing import Any

import pyarrow as pa

from tidemark_spark.pipeline.values import Change, Digest, Mark, Mode

PIPELINE, SINK, QUERY, STREAM = "shop", "target", "6a1f", "orders"
SIZE = 100
KEYS = [f"order-{n:04}" for n in range(400)]
SCHEMA = pa.schema(
    [("_key", pa.string()), ("_sequence", pa.int64()), ("name", pa.string()), ("amount", pa.float64())]
)
DELETES = pa.schema([("_key", pa.string()), ("_sequence", pa.int64())])


@cache
def events(batch: int) -> tuple[tuple[str, int, bool], ...]:
    """(key, sequence, is a delete) of one batch."""
    dice = random.Random(f"batch {batch}")
    first = batch * SIZE + 1
    return tuple((key, first + at, dice.random() < 0.2) for at, key in enumerate(dice.sample(KEYS, SIZE)))


@cache
def state(batch: int) -> dict[str, int]:
    """Key → sequence of what is there after this batch; -1 is before the first."""
    if batch < 0:
        return {}
    held = dict(state(batch - 1))
    for key, sequence, is_delete in events(batch):
        if is_delete:
            held.pop(key, None)
        else:
            held[key] = sequence
    return held


def change(first: int, last: int | None = None, *, query: str = QUERY, number: int | None = None) -> Change:
    """The batches `first` to `last` as one."""
    last = first if last is None else last
    newest: dict[str, tuple[int, bool]] = {}
    for batch in range(first, last + 1):
        newest.update({key: (sequence, is_delete) for key, sequence, is_delete in events(batch)})
    puts = [(key, sequence) for key, (sequence, is_delete) in newest.items() if not is_delete]
    gone = [(key, sequence) for key, (sequence, is_delete) in newest.items() if is_delete]
    start = {STREAM: {"0": ("aa", first * SIZE)}} if first else {}
    return Change(
        mark(last if number is None else number, last, len(newest), query), start, rows(puts), keys(gone)
    )


def empty_change(batch: int) -> Change:
    """A batch in which nothing was left to do, at the place of batch `batch`."""
    start = {STREAM: {"0": ("aa", batch * SIZE)}} if batch else {}
    return Change(mark(batch, batch, 0), start, rows([]), keys([]))


def mark(number: int, last: int, count: int, query: str = QUERY) -> Mark:
    position = {STREAM: {"0": ("aa", (last + 1) * SIZE)}}
    return Mark(PIPELINE, SINK, "mirror", query, number, position, True, count, 1_800_000_000_000 + last)


def held_batch(stored: Mark | None) -> int:
    """The batch that a mark says was the last."""
    return -1 if stored is None else stored.position[STREAM]["0"][1] // SIZE - 1


def rows(pairs: list[tuple[str, int]]) -> pa.Table:
    facts = [(key, sequence, f"{key}@{sequence}", sequence * 1.5) for key, sequence in pairs]
    columns: list[Any] = [list(column) for column in zip(*facts, strict=True)] or [[], [], [], []]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def keys(pairs: list[tuple[str, int]]) -> pa.Table:
    columns: list[Any] = [list(column) for column in zip(*pairs, strict=True)] or [[], []]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, DELETES, strict=True)], schema=DELETES)


def digest(held: dict[str, int]) -> Digest:
    """As `Digest` says it, in the plainest words."""
    total = 0
    for key, sequence in held.items():
        total += int.from_bytes(
            hashlib.sha256(sequence.to_bytes(8, "little") + key.encode()).digest()[:16], "little"
        )
    return Digest(rows=len(held), hash=format(total % 2**128, "032x"))


def result(table: pa.Table, mode: Mode, batch: int, *, query: str = QUERY) -> Change:
    """A batch of results: mode append or update."""
    stored = Mark(PIPELINE, SINK, mode, query, batch, {}, False, table.num_rows, 1_800_000_000_000 + batch)
    return Change(stored, {}, table, keys([]))
