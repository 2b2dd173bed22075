"""Logs without bytes: records by number, in frames, some of them on the disk. Fits `cluster.replica.LogFacts`."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model.peers import Ends, Log, Takeover

Record = tuple[int, str, int]
"""Sequence, history, value; value 0 opens the history."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Frame:
    first: int
    last: int
    records: tuple[Record, ...]


class ToyLog:
    """Frames, and how many of them are on the disk. `alike` counts the records that were found equal to what is
    complete, so that nothing is compared twice."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.records: list[Record] = []
        self.synced = 0
        self.end = 0
        self.durable = 0
        self.durable_records = 0
        self.start = 0
        self.alike = 0

    def append(self, frame: Frame) -> None:
        if frame.first <= self.end:
            raise Broken(f"frame {frame.first} behind {self.end}")
        self.frames.append(frame)
        self.records.extend(frame.records)
        self.end = frame.last

    def sync(self, frames: int) -> None:
        if frames > self.synced:
            self.durable_records += sum(len(frame.records) for frame in self.frames[self.synced : frames])
            self.synced, self.durable = frames, self.frames[frames - 1].last

    def cut(self, frames: int) -> None:
        """Forget all but so many frames; the rest is on the disk."""
        if frames < len(self.frames):
            del self.frames[frames:]
            self.records = [record for frame in self.frames for record in frame.records]
            self.end = self.frames[-1].last if frames else 0
            self.alike = min(self.alike, len(self.records))
        self.synced, self.durable, self.durable_records = frames, self.end, len(self.records)

    def holds(self, done: list[Record], durable: bool) -> bool:
        """Whether all of this is its beginning."""
        if (self.durable_records if durable else len(self.records)) < len(done):
            return False
        if self.records[self.alike : len(done)] != done[self.alike :]:
            return False
        self.alike = max(self.alike, len(done))
        return True


class ToyStore:
    """What survives a process: two logs, and what the store says of itself. Fits `LogFacts`."""

    def __init__(self) -> None:
        self.cluster = ""
        self.epoch = 0
        self.founding: list[str] = []
        self.logs = {log: ToyLog() for log in Log}
        self._table: tuple[Takeover, ...] | None = ()

    @property
    def ends(self) -> Ends:
        return Ends(self.logs[Log.CATALOG].end, self.logs[Log.JOURNAL].end)

    @property
    def durable(self) -> Ends:
        return Ends(self.logs[Log.CATALOG].durable, self.logs[Log.JOURNAL].durable)

    @property
    def table(self) -> tuple[Takeover, ...]:
        if self._table is None:
            rows: dict[str, dict[Log, int]] = {}
            for name, log in self.logs.items():
                for frame in log.frames:
                    if frame.records[0][2] == 0:
                        rows.setdefault(frame.records[0][1], {})[name] = frame.first
            table = [
                Takeover(h, Ends(row.get(Log.CATALOG, 0), row.get(Log.JOURNAL, 0))) for h, row in rows.items()
            ]
            self._table = tuple(sorted(table, key=lambda row: row.first.journal or 1 << 60, reverse=True))
        return self._table

    def log_start(self, log: Log) -> int:
        return self.logs[log].start

    def append(self, log: Log, frame: Frame) -> None:
        self.logs[log].append(frame)
        if frame.records[0][2] == 0:
            self._table = None

    def forget_unsynced(self) -> None:
        for log in self.logs.values():
            log.cut(log.synced)
        self._table = None

    def cut(self, to: Ends) -> None:
        for name, log in self.logs.items():
            keep = sum(1 for frame in log.frames if frame.last <= to[name])
            if to[name] and (not keep or log.frames[keep - 1].last != to[name]):
                raise Broken(f"{name.name} is cut at {to[name]}, in the middle of a frame")
            log.cut(keep)
        self._table = None

    def wipe(self) -> None:
        """Another disk is in its place."""
        self.__init__()  # type: ignore[misc]

    def reset(self) -> None:
        """It is emptied, and still of its cluster."""
        cluster = self.cluster
        self.wipe()
        self.cluster = cluster
