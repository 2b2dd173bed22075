"""Which member led when, as this one saw it.

The takeover table of the store says at which sequence each history began. When that was, who led, why and how long clients waited
is nowhere in it; so it is watched here, and kept in a small file of the data directory beside the journal. Losing it
loses nothing but the picture of the past.

Invariant: what is in memory is the end of what is in the file, the newest last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

from tidemark.runtime.server import Server

NAME = "takeovers.jsonl"
KEPT_MAX = 200
LOOK_S = 0.05


class Takeovers:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._path = server.config.node.data / NAME
        self.rows: deque[dict[str, Any]] = deque(maxlen=KEPT_MAX)
        self._epoch = 0
        self._leader: str | None = None
        self._lost_ms: int | None = None
        """Since when nobody leads, as far as we know."""
        if server.member is not None:
            self._read()
            self._look()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            lines = self._path.read_text("utf-8").splitlines()
            self.rows.extend(json.loads(line) for line in lines[-KEPT_MAX:])
            if len(lines) > 4 * KEPT_MAX:
                part = self._path.with_suffix(".part")
                part.write_text("".join(json.dumps(row) + "\n" for row in self.rows), "utf-8")
                part.replace(self._path)
        if self.rows:
            self._epoch, self._leader = self.rows[-1]["epoch"], self.rows[-1]["to"]

    def _look(self) -> None:
        if self._server.stopping.is_set():
            return
        asyncio.get_running_loop().call_later(LOOK_S, self._look)
        member = self._server.member
        assert member is not None
        now_ms, view = self._server.clock.now_ms(), member.view
        led = any(one.name == self._leader and one.state == "active" for one in self._members())
        if led:
            self._lost_ms = None
        elif self._lost_ms is None:
            self._lost_ms = now_ms
        if view is None or view.epoch <= self._epoch:
            return
        if view.leader != self._leader or not self.rows:
            self._add(
                {
                    "at_ms": now_ms,
                    "epoch": view.epoch,
                    "from": self._leader,
                    "to": view.leader,
                    "why": member.why,
                    "took_ms": self._took_ms(now_ms),
                    "history": view.history,
                }
            )
        self._epoch, self._leader, self._lost_ms = view.epoch, view.leader, None

    def _took_ms(self, now_ms: int) -> int | None:
        """How long nobody led, from when the link to the old leader was lost, or it was called away. None: it handed over."""
        parted: dict[str, int] = getattr(self._server, "parted_ms", {})
        since = [
            at for at in (self._lost_ms, parted.get(self._leader or "")) if at is not None and at < now_ms
        ]
        return now_ms - min(since) if since and self.rows else None

    def _members(self) -> Any:
        return self._server.node.topology().members

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
