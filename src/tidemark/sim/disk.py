"""A disk that lies as real ones do, for the simulator.

It fits `ports.Disk`. Every file has two faces: what a reader sees now, and what is on the platter. A sync
makes them one. When the power goes (`crash`), each write that was not synced is kept, lost or torn, sector
by sector or page by page, each for itself; where no synced byte shares its sector it may even be garbage. Names behave as the
port promises: a rename is durable when it returns, a file made by `create` too; one made by `write` has its
name with its first sync, and a remove may come undone.

On demand it fills up (`capacity`), fails (`fail_next`), rots (`flip`) and takes its time (`lag`).
All its decisions come from one dice, so a seed replays.

Invariant: what was synced is never touched by a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tidemark.errors import DiskFailed, DiskFull

Buffer = bytes | bytearray | memoryview

SECTOR = 512
PAGE = 4096


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    """What a reader sees."""
    platter: bytearray = field(default_factory=bytearray)
    """What a crash cannot take."""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    """What was written since the last sync, oldest first."""
    named: bool = False
    """The name is durable."""


class SimDisk:
    def __init__(
        self, dice: Random | None = None, *, capacity: int = 1 << 40, lag: int = 0, honest: bool = True
    ) -> None:
        """`lag`: how many times `completed` is asked before a submitted write is done, at most.

        A disk that is not `honest` says that it synced and did not: tests use it to show that the
        simulator notices.
        """
        self.dice = dice or Random(0)
        self.capacity = capacity
        self.lag = lag
        self.honest = honest
        self.syncs = 0
        self.written = 0
        self._files: dict[str, _File] = {}
        self._preparing: set[str] = set()
        self._undead: dict[str, _File] = {}
        """Removed files that a crash may bring back."""
        self._queue: list[tuple[int, _File, str, int, Buffer]] = []
        self._done = 0
        self._error: DiskFailed | None = None
        self._fail_in: int | None = None
        self._dies_in: int | None = None
        self._dies_of: type[Exception] = Exception

    # Looking -----------------------------------------------------------------------------

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._files if name.startswith(prefix))

    def size(self, name: str) -> int:
        return len(self._file(name, "stat").data)

    def exists(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._file(name, "read").data[offset : offset + length])

    def read_into(self, name: str, offset: int, room: memoryview) -> int:
        data = self.read(name, offset, len(room))
        room[: len(data)] = data
        return len(data)

    def mapped(self, name: str) -> memoryview:
        return memoryview(bytearray(self._file(name, "map").data))

    def free_bytes(self) -> int:
        return max(0, self.capacity - sum(len(file.data) for file in self._files.values()))

    # Changing ----------------------------------------------------------------------------

    def create(self, name: str, size: int) -> None:
        if name in self._files:
            raise DiskFailed(path=name, operation="create", problem="file exists")
        if size > self.free_bytes():
            raise DiskFull(path=name)
        self._may_fail(name, "create")
        self._files[name] = _File(bytearray(size), bytearray(size), named=True)

    def allocate(self, name: str, size: int) -> None:
        self.create(name, size)

    def prepare(self, name: str, size: int) -> bool:
        if size > self.free_bytes():
            self._preparing.discard(name)
            raise DiskFull(path=name)
        if name not in self._preparing:
            self._preparing.add(name)
            return False
        self._preparing.discard(name)
        self.create(name, size)
        return True

    def write(self, name: str, offset: int, data: Buffer) -> None:
        file = self._files.get(name)
        grows = offset + len(data) - (len(file.data) if file else 0)
        if grows > self.free_bytes():
            raise DiskFull(path=name)
        self._may_fail(name, "write")
        if file is None:
            file = self._files[name] = _File()
        self._put(file, offset, bytes(data))

    def sync(self, name: str) -> None:
        self._may_fail(name, "sync")
        self._sync(self._file(name, "sync"))

    def rename(self, old: str, new: str) -> None:
        self._may_fail(old, "rename")
        file = self._file(old, "rename")
        del self._files[old]
        self._files[new] = file
        file.named = True
        self._undead.pop(old, None)
        self._undead.pop(new, None)

    def remove(self, name: str) -> None:
        self._may_fail(name, "remove")
        file = self._file(name, "remove")
        del self._files[name]
        if file.named:
            self._undead[name] = file

    def truncate(self, name: str, size: int) -> None:
        self._may_fail(name, "truncate")
        file = self._file(name, "truncate")
        if size > len(file.data):
            file.data.extend(bytes(size - len(file.data)))
        del file.data[size:]
        file.writes = [(at, data[: max(0, size - at)]) for at, data in file.writes if at < size]
        del file.platter[size:]

    def _file(self, name: str, operation: str) -> _File:
        file = self._files.get(name)
        if file is None:
            raise DiskFailed(path=name, operation=operation, problem="no such file")
        return file

    def _put(self, file: _File, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(file.data):
            file.data.extend(bytes(end - len(file.data)))
        file.data[offset:end] = data
        file.writes.append((offset, data))
        self.written += len(data)

    def _sync(self, file: _File) -> None:
        self.syncs += 1
        if not self.honest:
            return
        file.platter = bytearray(file.data)
        file.writes.clear()
        file.named = True

    # The journal's way -------------------------------------------------------------------

    def submit(self, ticket: int, name: str, offset: int, data: Buffer) -> None:
        if self._error is not None:
            raise self._error
        last = self._queue[-1][0] if self._queue else self._done
        if ticket <= last:
            raise ValueError(f"ticket {ticket} does not follow {last}")
        self._queue.append((ticket, self._file(name, "write"), name, offset, data))

    def completed(self) -> int:
        """Do some of what was submitted; with a lag, not always all of it."""
        if self._error is None:
            count = len(self._queue)
            if self.lag and count:
                count = self.dice.randint(0, count) if self.dice.randrange(self.lag + 1) else count
            self.work(count)
        if self._error is not None:
            raise self._error
        return self._done

    def work(self, count: int) -> None:
        """Write and sync the next `count` of what was submitted, as the disk's thread does."""
        jobs = self._queue[:count]
        del self._queue[:count]
        try:
            for ticket, file, name, offset, data in jobs:
                self._may_fail(name, "write")
                self._put(file, offset, bytes(data))
                self._may_fail(name, "sync")
                self._sync(file)
                self._done = ticket
        except DiskFailed as problem:
            self._error = problem

    def write_some(self) -> None:
        """Write, without a sync, some of what was submitted: how a crash finds the disk's thread."""
        for _, file, _, offset, data in self._queue[: self.dice.randint(0, len(self._queue))]:
            self._put(file, offset, bytes(data))

    # Faults ------------------------------------------------------------------------------

    def crash(self, power: bool = True) -> SimDisk:
        """The disk as the next process finds it. With `power` the power is cut, else only the process dies.

        What the process had handed over but the thread had not written is gone either way.
        """
        self.write_some()
        after = SimDisk(self.dice, capacity=self.capacity, lag=self.lag, honest=self.honest)
        for name, file in self._files.items():
            if not power:
                after._files[name] = _File(file.data, file.platter, list(file.writes), file.named)
            elif file.named or self.dice.random() < 0.5:
                data = self._surviving(file)
                after._files[name] = _File(data, bytearray(data), named=True)
        if power:
            for name, file in self._undead.items():
                if name not in after._files and self.dice.random() < 0.5:
                    data = self._surviving(file)
                    after._files[name] = _File(data, bytearray(data), named=True)
        else:
            after._undead = dict(self._undead)
        return after

    def _surviving(self, file: _File) -> bytearray:
        """What is on the platter, and of each write after the last sync whatever the dice says."""
        data = bytearray(file.platter)
        for offset, written in file.writes:
            fate = self.dice.random()
            if fate < 0.3:
                continue
            unit = SECTOR if fate < 0.7 else PAGE
            whole = fate > 0.9
            end = offset + len(written)
            if end > len(data):
                data.extend(bytes(end - len(data)))
            first = offset - offset % unit
            for start in range(first, end, unit):
                low, high = max(start, offset), min(start + unit, end)
                luck = 0.0 if whole else self.dice.random()
                if luck < 0.6:
                    data[low:high] = written[low - offset : high - offset]
                elif luck > 0.95 and low == start and high == start + unit:
                    data[low:high] = self.dice.randbytes(high - low)
        return data

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """One bit on the platter rots."""
        file = self._file(name, "flip")
        file.data[offset] ^= 1 << bit
        if offset < len(file.platter):
            file.platter[offset] ^= 1 << bit

    def wipe(self) -> None:
        """Everything is removed, for good."""
        self._files.clear()
        self._undead.clear()

    @contextmanager
    def dying(self, left: int | None, error: type[Exception]) -> Iterator[None]:
        """Whoever uses the disk in here is killed by `error` when it has changed it so many times; None: it is not.

        An operation that was to fail does not fail here.
        """
        waiting, self._fail_in = self._fail_in, None
        self._dies_in, self._dies_of = left, error
        try:
            yield
        finally:
            self._fail_in, self._dies_in = waiting, None

    def fail_next(self, after: int = 0) -> None:
        """An operation fails: the next one, or the one `after` that many."""
        self._fail_in = after

    def _may_fail(self, name: str, operation: str) -> None:
        if self._dies_in is not None:
            if self._dies_in == 0:
                raise self._dies_of
            self._dies_in -= 1
        if self._fail_in is not None:
            if self._fail_in == 0:
                self._fail_in = None
                raise DiskFailed(path=name, operation=operation, problem="input/output error")
            self._fail_in -= 1
