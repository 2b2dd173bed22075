"""`ports.Disk` over a real directory.

Names are files under the root. The files that were used last stay open. `submit` hands a write to the flusher's thread and
returns; everything else happens here and now. One process at a time may have the directory: it holds a lock
on the file `LOCK`, in which its process id is written for whoever finds it taken.

Invariant: a file that the flusher may still write to is open, under whatever name it has by then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemark.errors import DiskFailed, DiskFull, StoreError, StoreForeign, StoreLocked
from tidemark.runtime.flusher import Flusher
from tidemark.runtime.wholefile import WholeFile

Buffer = bytes | bytearray | memoryview

LOCK = "LOCK"
CHUNK_BYTES = 1 << 20
OPEN_MAX = 256
"""Files that are kept open; a large backlog has more of them than a process may open."""
REST_S_MAX = 0.1


class FileDisk:
    def __init__(
        self, root: Path, flusher: Callable[[int], Flusher] = Flusher, early: WholeFile | None = None
    ) -> None:
        """Take the directory, which is made if it is missing. `early` is a file that will be mapped.

        Raises:
            StoreLocked: another process has it.
            StoreForeign: it cannot be made, read or written.
        """
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(root)
        except OSError as problem:
            raise StoreForeign(path=str(root), problem=_words(problem)) from None
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when `completed` has news."""
        self._flusher = flusher(self.bell)
        self._open: dict[str, int] = {}
        self._names: dict[int, str] = {}
        """What the file was called when it was opened, for errors."""
        self._unnamed: set[str] = set()
        """Files that were made by `write`: their folder is synced with them."""
        self._submitted = 0
        self._retired: list[tuple[int, int]] = []
        """(ticket, file) to close when that ticket is completed."""
        self._maker: FileMaker | None = None
        self._error: DiskFailed | None = None
        self._early = early

    # Looking -----------------------------------------------------------------------------

    def list(self, prefix: str = "") -> list[str]:
        """Names of the files that start with `prefix`, sorted."""
        found = []
        for folder in (self.root, *(p for p in self.root.iterdir() if p.is_dir())):
            for path in folder.iterdir():
                name = path.relative_to(self.root).as_posix()
                if name.startswith(prefix) and name != LOCK and path.is_file():
                    found.append(name)
        return sorted(found)

    def size(self, name: str) -> int:
        with self._doing("stat", name):
            return (self.root / name).stat().st_size

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        with self._doing("read", name):
            fd, parts = self._fd(name), []
            while length > 0:
                part = os.pread(fd, length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, name: str, offset: int, room: memoryview) -> int:
        """`read` into memory of the caller's; returns how many bytes were there."""
        with self._doing("read", name):
            fd, done = self._fd(name), 0
            while done < len(room):
                count = os.preadv(fd, [room[done:]], offset + done)
                if not count:
                    break
                done += count
            return done

    def mapped(self, name: str) -> memoryview:
        """All bytes of the file, in memory that may be written to; the file stays as it is."""
        with self._doing("map", name):
            path, early = self.root / name, self._early
            self._early = None
            if early is not None and early.is_of(path):
                return early.read()
            return WholeFile(path).read()

    def free_bytes(self) -> int:
        """Room left in the file system for us."""
        with self._doing("stat", "."):
            found = os.statvfs(self.root)
            return found.f_bavail * found.f_frsize

    def flushes(self) -> tuple[int, tuple[int, ...], int, tuple[int, ...], int]:
        """What the flusher has done so far; see `Flusher.statistics`."""
        return self._flusher.statistics()

    # Changing ----------------------------------------------------------------------------

    def create(self, name: str, size: int) -> None:
        """A new file of `size` bytes whose blocks are really there: later writes cannot run out of room."""
        with self._doing("create", name):
            (self.root / name).parent.mkdir(exist_ok=True)
            _make(self.root / name, size)

    def allocate(self, name: str, size: int) -> None:
        """`create`, at once: the room is taken, but the first writes into it take longer to sync."""
        with self._doing("create", name):
            path = self.root / name
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o640)
            try:
                os.posix_fallocate(fd, 0, size)
                os.fsync(fd)
                _sync_folder(path.parent)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)

    def prepare(self, name: str, size: int) -> bool:
        """`create`, in the background: ask again until it is True. One file at a time."""
        maker = self._maker
        if maker is None:
            if self.free_bytes() < size:
                raise DiskFull(path=str(self.root))
            self._maker = FileMaker(self.root / name, size)
            return False
        assert maker.path == self.root / name
        if maker.is_alive():
            return False
        self._maker = None
        with self._doing("create", name):
            if maker.problem is not None:
                raise maker.problem
        return True

    def write(self, name: str, offset: int, data: Buffer) -> None:
        """Write now, without a sync. The file grows when it must."""
        with self._doing("write", name):
            if name not in self._open and not self.exists(name):
                self._fd(name, os.O_CREAT)
                self._unnamed.add(name)
            _write_all(self._fd(name), memoryview(data).cast("B"), offset)

    def sync(self, name: str) -> None:
        """Everything written to this file so far is on the disk when this returns."""
        with self._doing("sync", name):
            os.fsync(self._fd(name))
            if name in self._unnamed:
                _sync_folder((self.root / name).parent)
                self._unnamed.discard(name)

    def rename(self, old: str, new: str) -> None:
        """Atomic, replaces `new`; on the disk when this returns (the folder is synced)."""
        with self._doing("rename", old):
            self._forget(new)
            (self.root / new).parent.mkdir(exist_ok=True)
            (self.root / old).rename(self.root / new)
            if old in self._open:
                self._open[new] = self._open.pop(old)
            self._unnamed.discard(old)
            _sync_folder((self.root / new).parent)
            if (self.root / old).parent != (self.root / new).parent:
                _sync_folder((self.root / old).parent)

    def remove(self, name: str) -> None:
        with self._doing("remove", name):
            self._forget(name)
            (self.root / name).unlink()

    def truncate(self, name: str, size: int) -> None:
        with self._doing("truncate", name):
            os.ftruncate(self._fd(name), size)

    # The journal's way -------------------------------------------------------------------

    def submit(self, ticket: int, name: str, offset: int, data: Buffer) -> None:
        """Write `data`, then sync. `data` must stay as it is until the ticket is completed. Tickets rise."""
        if self._error is not None:
            raise self._error
        fd = self._open.pop(name, None)
        if fd is None:
            with self._doing("write", name):
                fd = self._fd(name)
        self._open[name] = fd  # the one that was used last
        self._flusher.submit(ticket, fd, offset, data)
        self._submitted = ticket

    def completed(self) -> int:
        """The highest ticket of which it and all before are synced.

        Raises:
            DiskFailed: a submitted write or sync failed. It is never tried again.
        """
        done = self._flusher.completed()
        if self._error is None and (failed := self._flusher.error()) is not None:
            fd, number, operation = failed
            where = str(self.root / self._names[fd])
            self._error = DiskFailed(path=where, operation=operation, problem=os.strerror(number))
        if self._error is not None:
            raise self._error
        while self._retired and self._retired[0][0] <= done:
            os.close(self._retired.pop(0)[1])
        return done

    def answer_bell(self) -> None:
        """Silence the bell until there is news again."""
        try:  # noqa: SIM105 (the context manager costs more than the call)
            os.eventfd_read(self.bell)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Finish what was submitted, close every file and give the directory back."""
        self._flusher.close()
        if self._maker is not None:
            self._maker.stop()
        for fd in (*self._open.values(), *(fd for _, fd in self._retired), self.bell, self._lock):
            os.close(fd)
        self._open.clear()
        self._retired.clear()

    # Inside ------------------------------------------------------------------------------

    def _fd(self, name: str, flags: int = 0) -> int:
        fd = self._open.pop(name, None)
        if fd is None:
            if flags & os.O_CREAT:
                (self.root / name).parent.mkdir(exist_ok=True)
            fd = os.open(self.root / name, os.O_RDWR | os.O_CLOEXEC | flags, 0o640)
            self._names[fd] = name
            while len(self._open) >= OPEN_MAX:
                self._let_go(self._open.pop(next(iter(self._open))))
        self._open[name] = fd
        return fd

    def _forget(self, name: str) -> None:
        """The name is about to stand for another file, or none."""
        self._unnamed.discard(name)
        fd = self._open.pop(name, None)
        if fd is not None:
            self._let_go(fd)

    def _let_go(self, fd: int) -> None:
        """Close it, when the flusher needs it no more."""
        if self._flusher.completed() >= self._submitted:
            os.close(fd)
        else:
            self._retired.append((self._submitted, fd))

    @contextlib.contextmanager
    def _doing(self, operation: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise self._translated(problem, operation, name) from problem

    def _translated(self, problem: OSError, operation: str, name: str) -> StoreError:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(path=str(self.root))
        return DiskFailed(path=str(self.root / name), operation=operation, problem=_words(problem))


class FileMaker(threading.Thread):
    """Makes one file while the loop goes on."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(name="tidemark file maker", daemon=True)
        self.path = path
        self.problem: OSError | None = None
        self._size = size
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            _make(self.path, self._size, self._rest)
        except OSError as problem:
            self.problem = problem

    def _rest(self, worked_s: float) -> None:
        """Leave three quarters of the disk's time to the journal."""
        if self._stopped.wait(min(3 * worked_s, REST_S_MAX)):
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    def stop(self) -> None:
        """Give up; nothing is left of an unfinished file."""
        self._stopped.set()
        self.join()


def _make(path: Path, size: int, rest: Callable[[float], None] | None = None) -> None:
    """A new file of zeros, on the disk with its name; or an error, and nothing.

    Zeros are written, not only reserved: a write into reserved blocks changes the file's metadata, which
    makes its sync twice as long. With `rest` they are synced piece by piece, with a rest after each: one
    large sync would hold up the journal's.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        zeros = bytes(min(size, CHUNK_BYTES))
        for offset in range(0, size, CHUNK_BYTES):
            began_s = time.monotonic()
            _write_all(fd, zeros[: size - offset], offset)
            if rest is not None:
                os.fdatasync(fd)
                rest(time.monotonic() - began_s)
        os.fsync(fd)
        _sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _locked(root: Path) -> int:
    fd = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).strip()
        os.close(fd)
        raise StoreLocked(path=str(root), pid=int(holder) if holder.isdigit() else None) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _words(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()


def _write_all(fd: int, data: Buffer, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
