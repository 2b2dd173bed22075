"""A file that is read whole into memory of our own, by several threads: most of the time goes into copying.

Reading may begin long before somebody asks for the bytes: at a start the newest checkpoint is read while the
broker's code is still being imported. The bytes go into huge pages, as far as the system has them, because they will
be touched here and there. A virtual machine whose host takes free memory back is an exception: there the host must
find each huge page anew, which takes longer than all they save, while small pages mostly come from what was in use a
moment ago. So the first pieces are small, and what they cost decides.

Invariant: `read` gives the bytes of the file that was opened, all of them, or raises.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from pathlib import Path

HUGE_BYTES = 2 << 20
PIECE_BYTES = 16 << 20
PROBES = 4
"""So many of the first pieces are one huge page each."""
S_PER_HUGE_MAX = 0.002
"""Processor time to read as much as a huge page holds, when pages are to be had at the usual price, with much to spare."""
THREADS_MAX = 4


class WholeFile:
    """Not to be shared by threads, but for those that it has itself."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be opened."""
        self._file = path.open("rb")
        facts = os.fstat(self._file.fileno())
        self._size = size = facts.st_size
        self._identity = (facts.st_dev, facts.st_ino)
        self._pieces = iter(_pieces(size))
        self._helpers: list[threading.Thread] = []
        self._problem: OSError | None = None
        self._room: mmap.mmap | bytearray
        if size < HUGE_BYTES:
            self._room = bytearray(size)
        else:
            # Private: a child that is forked later keeps the picture of it that it had then.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._room = mmap.mmap(-1, size + -size % HUGE_BYTES, flags=flags)
            self._advise(mmap.MADV_HUGEPAGE)

    def is_of(self, path: Path) -> bool:
        """Whether this is the file that has that name now."""
        facts = path.stat()
        return (facts.st_dev, facts.st_ino) == self._identity and facts.st_size == self._size

    def begin(self) -> None:
        """Have it read meanwhile."""
        count = min(THREADS_MAX, os.cpu_count() or 1, self._size // HUGE_BYTES) - 1
        for _ in range(count):
            helper = threading.Thread(target=self._fill, name="tidemark read", daemon=True)
            self._helpers.append(helper)
            helper.start()

    def read(self) -> memoryview:
        """All of its bytes, to be written to as one likes. Once."""
        if not self._helpers:
            self.begin()
        self._fill()
        for helper in self._helpers:
            helper.join()
        self._file.close()
        if self._problem is not None:
            raise self._problem
        return memoryview(self._room)[: self._size]

    def _fill(self) -> None:
        try:
            for start, end in self._pieces:
                began_s = time.thread_time()
                self._piece(start, end)
                if (time.thread_time() - began_s) * HUGE_BYTES > S_PER_HUGE_MAX * (end - start):
                    self._advise(mmap.MADV_NOHUGEPAGE)
        except OSError as problem:
            self._problem = problem

    def _piece(self, at: int, end: int) -> None:
        with memoryview(self._room) as whole:
            while at < end:
                with whole[at:end] as piece:
                    count = os.preadv(self._file.fileno(), [piece], at)
                if not count:
                    raise OSError(errno.EIO, "the file has become shorter")
                at += count

    def _advise(self, advice: int) -> None:
        if isinstance(self._room, mmap.mmap):
            with contextlib.suppress(OSError):  # a system without huge pages
                self._room.madvise(advice)


def newest(folder: Path, prefix: str) -> WholeFile | None:
    """The last file there by name that begins so, and reading it has begun; None if there is none to be read."""
    with contextlib.suppress(OSError):
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
        if paths:
            found = WholeFile(paths[-1])
            found.begin()
            return found
    return None


def _pieces(size: int) -> list[tuple[int, int]]:
    """From where to where each is read."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        end = min(size, at + (HUGE_BYTES if len(found) < PROBES else PIECE_BYTES))
        found.append((at, end))
        at = end
    return found
