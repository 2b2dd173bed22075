"""The flusher: writes what the journals submit and syncs it, in order, away from the event loop.

Jobs lie in one queue. The thread takes all that are there, cuts them into *groups* of neighbours for the same
file, writes a group (touching buffers with one call), syncs its file, says how far it is and rings the
eventfd; then comes the next group. So syncs are shared by everything that was submitted meanwhile, and what
was submitted later is never on the disk before what was submitted earlier to another file.

The compiled twin does the same in a thread that never needs the interpreter.

Invariant: `completed()` is the highest ticket of which it and all before are synced. After an error nothing
is written any more and it stays where it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from tidemark.runtime.histogram import Histogram

VECTOR_MAX = 512
"""The most buffers that go into one write."""

Buffer = bytes | bytearray | memoryview


class Flusher:
    def __init__(self, bell: int) -> None:
        """`bell` is an eventfd, rung after every group and after an error."""
        self._bell = bell
        self._jobs: deque[tuple[int, int, int, memoryview]] = deque()
        self._lock = threading.Condition()
        self._submitted = 0
        self._completed = 0
        self._written = 0
        self._syncs = Histogram()
        self._groups = Histogram()
        self._error: tuple[int, int, str] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tidemark-disk", daemon=True)
        self._thread.start()

    def submit(self, ticket: int, fd: int, offset: int, data: Buffer) -> None:
        """Write `data` at `offset` of the open file, then sync. Tickets rise."""
        view = memoryview(data).cast("B")
        with self._lock:
            if ticket <= self._submitted:
                raise ValueError(f"ticket {ticket} does not follow {self._submitted}")
            if self._stopping:
                raise ValueError("the flusher is closed")
            self._submitted = ticket
            self._jobs.append((ticket, fd, offset, view))
            self._lock.notify()

    def completed(self) -> int:
        """How far it is."""
        return self._completed

    def error(self) -> tuple[int, int, str] | None:
        """(file, errno, "write" or "sync") of what failed; None while all is well."""
        return self._error

    def statistics(self) -> tuple[int, tuple[int, ...], int, tuple[int, ...], int]:
        """Bytes written; how long syncs took (counts by class of microseconds, their sum); how many writes shared a
        sync (the same). See `histogram`."""
        syncs, groups = self._syncs, self._groups
        return self._written, tuple(syncs.counts), syncs.total, tuple(groups.counts), groups.total

    def close(self) -> None:
        """Finish everything that was submitted and end the thread."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._jobs and not self._stopping:
                    self._lock.wait()
                jobs = list(self._jobs)
                self._jobs.clear()
            if not jobs:
                return
            start = 0
            while start < len(jobs) and self._error is None:
                end = start + 1
                while end < len(jobs) and jobs[end][1] == jobs[start][1]:
                    end += 1
                self._group(jobs[start:end])
                start = end
                os.eventfd_write(self._bell, 1)

    def _group(self, jobs: list[tuple[int, int, int, memoryview]]) -> None:
        fd = jobs[0][1]
        operation = "write"
        try:
            at = 0
            while at < len(jobs):
                first = jobs[at][2]
                views, end = [jobs[at][3]], first + len(jobs[at][3])
                at += 1
                while at < len(jobs) and jobs[at][2] == end and len(views) < VECTOR_MAX:
                    views.append(jobs[at][3])
                    end += len(jobs[at][3])
                    at += 1
                self._write(fd, views, first)
            operation = "sync"
            began = time.perf_counter_ns()
            os.fdatasync(fd)
            self._syncs.add((time.perf_counter_ns() - began) // 1000)
            self._groups.add(len(jobs))
            self._written += sum(len(job[3]) for job in jobs)
        except OSError as problem:
            self._error = (fd, problem.errno or 0, operation)
        else:
            self._completed = jobs[-1][0]

    @staticmethod
    def _write(fd: int, views: list[memoryview], offset: int) -> None:
        while views:
            written = os.pwritev(fd, views, offset)
            offset += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views and written:
                views[0] = views[0][written:]
