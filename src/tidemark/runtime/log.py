"""The log: one line an event, on standard error, for people or for machines.

    12:04:31.207 warning TM-1009 publishers blocked  reason="low on disk"

An event is in the past tense; facts follow it as words. There is a line for each change of state and none for
a message. Its id stays the same when its words change, and leads to `docs/log-events.md`.

Invariant: an event is exactly one line, whatever its facts contain.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from typing import TextIO

from tidemark.runtime.events import EVENTS, UNKNOWN

LEVELS = ("debug", "info", "warning", "error")


class Log:
    def __init__(self, level: str = "info", style: str = "text", stream: TextIO | None = None) -> None:
        self._least = LEVELS.index(level)
        self._style = style
        self._stream = stream or sys.stderr

    def debug(self, event: str, **facts: object) -> None:
        self.write("debug", event, **facts)

    def info(self, event: str, **facts: object) -> None:
        self.write("info", event, **facts)

    def warning(self, event: str, **facts: object) -> None:
        self.write("warning", event, **facts)

    def error(self, event: str, **facts: object) -> None:
        self.write("error", event, **facts)

    def write(self, level: str, event: str, **facts: object) -> None:
        if LEVELS.index(level) < self._least:
            return
        now = time.time()
        if self._style == "json":
            plain = {name: _plain(fact) for name, fact in facts.items()}
            head = {"time": round(now, 3), "level": level, "id": EVENTS.get(event, UNKNOWN), "event": event}
            line = json.dumps(head | plain)
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
            words = " ".join(f"{name}={_word(fact)}" for name, fact in facts.items())
            line = f"{clock} {level:<7} {EVENTS.get(event, UNKNOWN)} {event}" + (
                f"  {words}" if words else ""
            )
        # When nobody reads the log any more the broker goes on.
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self._stream, flush=True)


def _plain(fact: object) -> object:
    if isinstance(fact, BaseException):
        return _exception(fact)
    return fact if isinstance(fact, (bool, int, float, str, type(None))) else str(fact)


def _word(fact: object) -> str:
    if isinstance(fact, BaseException):
        fact = _exception(fact)
    text = str(fact)
    if text and all(c.isprintable() and c not in ' "=' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _exception(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-3:]
    steps = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(where))
    return f"{type(error).__name__}: {error}" + (f" at {steps}" if steps else "")
