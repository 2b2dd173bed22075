"""What must be true of a stream and its sinks, in plain Python: the model, and the checks against it.

`Model` is every version that a producer got a receipt for, in the order of their sequences, so it can say what a sink
holds at any mark, also while keys go on changing. `Audit` is what the sinks' own lines say. Neither knows of a process or
a socket, so their own tests plant every fault in a few lines.

Invariant: no check fails for anything that a correct pipeline can cause.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

CANCELLED = "cancelled"
"""Orders with this status are not delivered."""


class Held(NamedTuple):
    """A row of a sink: the version that it was made from, and what it says."""

    sequence: int
    customer: str
    number: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sink showed at one moment."""

    sink: str
    sequence: int
    boundary: bool
    rows: Mapping[str, Held]


class Version(NamedTuple):
    key: str
    value: bytes | None

    def delivered(self, sequence: int) -> Held | None:
        """The row that it makes in a sink; None when it makes none."""
        if self.value is None:
            return None
        try:
            facts = json.loads(self.value)
        except ValueError:
            return None  # a dead letter
        return None if facts["status"] == CANCELLED else Held(sequence, facts["customer"], facts["number"])


class Model:
    """Every version of every key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sequences: list[int] = []
        self._versions: list[Version] = []

    def add(self, first: int, versions: Sequence[Version]) -> None:
        with self._lock:
            assert not self._sequences or first > self._sequences[-1], "sequences went back"
            self._sequences += range(first, first + len(versions))
            self._versions += versions

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def head(self) -> int:
        """The last sequence that was confirmed."""
        with self._lock:
            return self._sequences[-1] if self._sequences else 0

    def newest(self, at: int | None = None) -> dict[str, tuple[int, Version]]:
        """The newest version of each key, of all or at a sequence."""
        with self._lock:
            count = len(self._sequences) if at is None else bisect_right(self._sequences, at)
            return {
                version.key: (sequence, version)
                for sequence, version in zip(self._sequences[:count], self._versions[:count], strict=True)
            }

    def state(self, at: int) -> dict[str, Held]:
        """What a sink holds whose mark is a boundary at this sequence."""
        found = ((key, version.delivered(sequence)) for key, (sequence, version) in self.newest(at).items())
        return {key: held for key, held in found if held is not None}

    def check(self, seen: Seen) -> None:
        """M14: the sink equals the stream at its mark.

        Inside a snapshot there is no such state, but each row is a version of its key that is not ahead of the mark,
        and keys that did not change since are as they are.
        """
        if seen.boundary:
            differ(f"sink {seen.sink} at {seen.sequence}", seen.rows, self.state(seen.sequence))
            return
        for key, (sequence, version) in self.newest().items():
            if sequence <= seen.sequence:
                expected, held = version.delivered(sequence), seen.rows.get(key)
                assert held == expected, f"sink {seen.sink}, part: {key} is {held}, not {expected}"
        ahead = [key for key, held in seen.rows.items() if held.sequence > seen.sequence]
        assert not ahead, f"sink {seen.sink} is ahead of its mark {seen.sequence} with {ahead[:5]}"


def differ(who: str, found: Mapping[str, Held], expected: Mapping[str, Held]) -> None:
    """Fails with the first keys that differ."""
    if found == expected:
        return
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    other = sorted(key for key in found.keys() & expected.keys() if found[key] != expected[key])
    words = [f"{who}: {len(found)} rows, not {len(expected)}"]
    words += [f"missing {len(missing)}, such as {[expected[key] for key in missing[:3]]}"] if missing else []
    words += [f"{len(extra)} too many, such as {[found[key] for key in extra[:3]]}"] if extra else []
    words += [f"{len(other)} differ, such as {[(found[k], expected[k]) for k in other[:3]]}"] if other else []
    raise AssertionError("; ".join(words))


def check_once(who: str, rows: Iterable[tuple[str, int]]) -> int:
    """M2: each version of a key was put once. `rows` are all that were ever put."""
    counts = Counter(rows)
    twice = [(row, count) for row, count in counts.items() if count > 1]
    assert not twice, f"{who}: {len(twice)} of {len(counts)} versions were put again, such as {twice[:5]}"
    return len(counts)


class Audit:
    """The lines of the sinks, read as they grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lines: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        """The lines that are new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        fresh = [json.loads(line) for line in whole.splitlines()]
        self.lines += fresh
        return fresh

    def boundaries(self, pids: Iterable[int] | None = None) -> dict[str, int]:
        """Sink → the last boundary that it said it holds (told by these processes)."""
        self.look()
        found: dict[str, int] = {}
        for line in self.lines:
            if "applied" in line and line["boundary"] and (pids is None or line["pid"] in pids):
                found[line["sink"]] = max(found.get(line["sink"], 0), line["end"])
        return found

    def check(self) -> None:
        self.look()
        self._check_contents()
        self._check_order()
        self._check_overlaps()

    def _check_contents(self) -> None:
        """M1: every batch id has one content, however often and by whom it is read."""
        contents: dict[tuple[str, str, int], set[tuple[Any, ...]]] = defaultdict(set)
        for line in self.lines:
            identity = line["sink"], line["query"], line["batch"]
            contents[identity].add((line["start"], line["end"], line["boundary"], line["content"]))
        torn = {identity: found for identity, found in contents.items() if len(found) > 1}
        assert not torn, (
            f"{len(torn)} of {len(contents)} batches had several contents: {list(torn.items())[:2]}"
        )

    def _check_order(self) -> None:
        """M6: the ends of a query's batches only rise, through any crash."""
        ends: dict[str, dict[int, int]] = defaultdict(dict)
        for line in self.lines:
            ends[line["query"]][line["batch"]] = line["end"]
        for query, found in ends.items():
            rising = [found[batch] for batch in sorted(found)]
            assert rising == sorted(set(rising)), f"query {query}: its batches end at {rising}"

    def _check_overlaps(self) -> None:
        """M2: no part of the stream was applied twice to a sink, by whomever."""
        applied: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in self.lines:
            if line.get("applied"):
                applied[line["sink"]].append((line["start"], line["end"]))
        for sink, ranges in applied.items():
            ranges.sort()
            for before, after in pairwise(ranges):
                assert before[1] <= after[0], f"sink {sink}: {after} was applied though {before} was"

    def replays(self) -> int:
        """Batches that were done more than once."""
        begun = Counter(
            (line["sink"], line["query"], line["batch"]) for line in self.lines if "applied" not in line
        )
        return sum(count > 1 for count in begun.values())
