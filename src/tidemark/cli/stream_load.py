"""Numbers for one stream: what `tidemark cluster load` does in a cluster of one group.

One thread writes and reads back; who called tells what it does, a line a second, also while nobody answers.

Invariant: a number is counted as confirmed only if it was.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise

from tidemark import client
from tidemark.cli import CommandError
from tidemark.cli.load import LOOK_S, STILL_S, Ending, Result, progress

PATIENCE_S = 60.0
"""How long one call is tried, over all addresses, before the load is given up."""


class StreamLoad:
    def __init__(
        self,
        url: str,
        stream: str,
        *,
        quiet: bool = True,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ending = Ending(hopeless)
        self.confirmed = 0
        self._url = url
        self._stream = stream
        self._quiet = quiet
        self._doing = "connecting"
        self._over = threading.Event()
        self._done = threading.Event()
        self._problem: BaseException | None = None
        self._began_s = self._first_s = self._last_s = 0.0
        self._longest_s = 0.0
        self._longest_now_s = 0.0
        """Since the last line that was told."""
        self._heard_s = 0.0
        """When the last row was read back, or the first was asked for."""
        self._found: list[int] | None = None

    def run(self, seconds: float) -> Result:
        """Write for so long, 0 is until the `ending` is asked for; then read everything back.

        Raises:
            CommandError: nobody answered for so long that it was given up.
        """
        self._began_s = self._last_s = told_s = time.monotonic()
        threading.Thread(target=self._work, daemon=True, name="load").start()
        asked = False
        while not self._done.wait(LOOK_S):
            now_s = time.monotonic()
            writing = self._doing == "writing"
            if writing and seconds and now_s - self._first_s >= seconds:
                self._over.set()
            if self.ending.count:
                self._over.set()
                if self._doing == "connecting" or self.ending.gives_up(writing=True, heard_s=self._heard_s):
                    break
                if not asked and now_s - self._last_s >= STILL_S:
                    self._note("the last number is waited for; Ctrl-C again ends at once")
                asked = True
            if now_s - told_s >= 1:
                self._tell(now_s)
                told_s = now_s
        if self._problem is not None:
            if not isinstance(self._problem, client.ClientError):
                raise self._problem
            raise CommandError(f"{self._problem}; {self.confirmed:,} numbers are confirmed and not read back")
        return self._result()

    # The thread that writes ------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with client.connect(self._url, timeout=PATIENCE_S) as db:
                run = secrets.token_hex(4).encode()
                stream = db.stream(self._stream, create=True, key="none")
                producer = db.producer(f"load {run.decode()}")
                self._first_s = self._last_s = time.monotonic()
                self._doing = "writing"
                while not self._over.is_set():
                    try:
                        producer.put(self._stream, None, b"%s %d" % (run, self.confirmed + 1))
                    except client.Unconfirmed:
                        producer.settle()
                    self._count()
                self._heard_s = time.monotonic()
                self._doing, found = "reading", []
                for row in stream.snapshot():
                    self._heard_s = time.monotonic()
                    if row.value.startswith(run):
                        found.append(int(row.value[len(run) :]))
                self._found = found
        except BaseException as problem:
            self._problem = problem
        finally:
            self._done.set()

    def _count(self) -> None:
        now_s = time.monotonic()
        self.confirmed += 1
        self._longest_now_s = max(self._longest_now_s, now_s - self._last_s)
        self._longest_s = max(self._longest_s, self._longest_now_s)
        self._last_s = now_s

    # The one that tells ----------------------------------------------------------------------

    def _tell(self, now_s: float) -> None:
        still_s = now_s - self._last_s
        match self._doing:
            case "connecting":
                self._note(f"waiting {still_s:.1f} s for a member that takes a connection")
            case "writing":
                self._note(progress(self.confirmed, self._longest_now_s, still_s))
            case _:
                self._note(f"reading back {self.confirmed:,} numbers")
        self._longest_now_s = 0.0

    def _note(self, words: str) -> None:
        # What a program reads has no lines of ours between.
        if not self._quiet or self._doing == "connecting":
            where = sys.stderr if self._quiet else sys.stdout
            print(f"{time.monotonic() - self._began_s:6.0f} s  {words}", file=where, flush=True)

    def _result(self) -> Result:
        still_s = time.monotonic() - self._last_s if self._doing == "writing" else 0.0
        longest_ms = round(max(self._longest_s, still_s) * 1000)
        if self._found is None:
            return Result(self.confirmed, None, None, longest_ms)
        missing = len(set(range(1, self.confirmed + 1)) - set(self._found))
        wrong = sum(one >= other for one, other in pairwise(self._found))
        return Result(self.confirmed, missing, wrong, longest_ms)
