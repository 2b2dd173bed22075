"""The audit log: who changed what through the management API, from where, and with what answer.

A line of JSON for each changing request that somebody was named in, right or wrong, in `audit.jsonl` of the data directory; the same is a
line of the broker's log. It is written before the answer is sent. What was asked for is in it, without passwords,
hashes, tokens and the contents of messages. The file is only ever appended to; when it is large it is put aside as `audit.jsonl.1`,
that one as `.2`, and so on.

Invariant: no secret that was sent is ever in the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tidemark.config import AdminConfig
from tidemark.runtime.log import Log

NAME = "audit.jsonl"
SECRETS = ("password", "secret", "token", "hash", "payload", "credential", "uri", "private")
"""Fields whose names contain one of these words are not written."""
HIDDEN = "(not shown)"
ASKED_BYTES_MAX = 4096
DEPTH_MAX = 6
ITEMS_MAX = 50
TEXT_MAX = 500
PATH_MAX = 2000
"""Longer than what names that there can be need; a request line may be much longer."""


class Audit:
    def __init__(self, folder: Path, config: AdminConfig, log: Log) -> None:
        self._path = folder / NAME
        self._config = config
        self._log = log
        self._file: int | None = None
        self._size = 0
        self._failing = False

    def note(
        self, *, now_ms: int, user: str, peer: str, method: str, path: str, status: int, asked: Any, by: str
    ) -> None:
        """Somebody asked for a change and was given this answer. `by` is how they logged in."""
        shown = without_secrets(asked)
        if len(json.dumps(shown)) > ASKED_BYTES_MAX:
            shown = sorted(shown) if isinstance(shown, dict) else "(too long)"
        facts = {
            "user": user[:TEXT_MAX],
            "peer": peer,
            "method": method,
            "path": path[:PATH_MAX],
            "status": status,
            "login": by,
        }
        self._log.info("administrative action", **facts)
        if self._config.audit:
            line = json.dumps({"at_ms": now_ms, **facts, "asked": shown}, ensure_ascii=True) + "\n"
            self._append(line.encode())

    def _append(self, line: bytes) -> None:
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
                self._size = os.fstat(self._file).st_size
            os.write(self._file, line)
            self._size += len(line)
            self._failing = False
            if self._size >= self._config.audit_bytes_max:
                self._put_aside()
        except OSError as problem:
            if not self._failing:
                self._log.error("audit log not written", path=str(self._path), error=str(problem))
            self._failing = True

    def _put_aside(self) -> None:
        self.close()
        for number in range(self._config.audit_files_max, 0, -1):
            older = self._numbered(number)
            newer = self._path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{NAME}.{number}")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def without_secrets(value: Any, depth: int = DEPTH_MAX) -> Any:
    """What was asked for, cut to what may be read by others."""
    match value:
        case dict() | list() if not depth:
            return "..."
        case dict():
            return {
                str(name)[:TEXT_MAX]: HIDDEN if is_secret(str(name)) else without_secrets(item, depth - 1)
                for name, item in list(value.items())[:ITEMS_MAX]
            }
        case list():
            return [without_secrets(item, depth - 1) for item in value[:ITEMS_MAX]]
        case str():
            return value[:TEXT_MAX]
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)[:TEXT_MAX]


def is_secret(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in SECRETS)
