"""`ports.Apart` by a forked child: it has the memory as it was at the fork, and nothing else of the process.

The child closes every file and socket that it inherited but the standard ones, so that neither the lock of the data directory nor a
listening socket outlives the broker in it, and the system ends it when its parent ends. It never returns into the
loop. It must not use what another thread might have held at the moment of the fork; writing bytes to a file of its
own is safe.

Invariant: a child leaves nothing but its file and its exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tidemark.ports.apart import Scratch

Buffer = bytes | bytearray | memoryview

PR_SET_PDEATHSIG = 1
NICE = 5
FILES_MAX = 1 << 20

_LIBC = ctypes.CDLL(None, use_errno=True)


class Forked:
    def __init__(self, root: Path) -> None:
        self._root = root

    def run(self, job: Callable[[Scratch], None]) -> Child:
        """Begin `job` in a child. One that cannot be made is one that did not go well."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as problem:
            if problem.errno not in (errno.EAGAIN, errno.ENOMEM):
                raise
            return Child(0)
        if pid:
            return Child(pid)
        code = 1
        try:
            gc.disable()
            _leave(parent)
            job(ChildFiles(self._root))
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


class Child:
    """Fits `ports.Running`."""

    def __init__(self, pid: int) -> None:
        """`pid` 0: there is none."""
        self._pid = pid
        self._went_well: bool | None = None if pid else False

    def poll(self) -> bool | None:
        if self._went_well is None:
            self._wait(os.WNOHANG)
        return self._went_well

    def stop(self) -> None:
        if self._went_well is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._wait(0)

    def _wait(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            self._went_well = False
            return
        if pid:
            self._went_well = status == 0


class ChildFiles:
    """Fits `ports.Scratch`, with files of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def write(self, name: str, offset: int, data: Buffer) -> None:
        fd = self._fd(name)
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written

    def sync(self, name: str) -> None:
        os.fdatasync(self._fd(name))

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            fd = self._open[name] = os.open(self._root / name, flags, 0o640)
        return fd


def _leave(parent: int) -> None:
    """Keep nothing of the parent's, and end with it."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, FILES_MAX)
    os.nice(NICE)
