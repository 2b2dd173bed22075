"""A node that stands alone, in the place of a member: the same calls, and nobody to agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.cluster.mode import State
from tidemark.config import Config
from tidemark.node import Node, Outside
from tidemark.ports import Apart, Disk
from tidemark.store.journal import RecoveryReport


class Alone:
    """Fits what `Machine` asks of a `Member`."""

    def __init__(
        self,
        config: Config,
        disk: Disk,
        outside: Outside,
        entropy: Callable[[int], bytes],
        apart: Apart | None = None,
    ) -> None:
        self.name = config.node.name
        self.node = Node(config, disk, outside, entropy, apart)
        self.serving = False
        self.view = None

    def start(self, now_ms: int, ticks_ms: int) -> RecoveryReport:  # noqa: ARG002
        report = self.node.start(now_ms)
        self.serving = True
        return report

    def turn(self, now_ms: int) -> None:
        self.node.turn(now_ms)

    def completed(self, now_ms: int) -> None:
        self.node.completed(now_ms)

    def maintain(self, now_ms: int, budget_bytes: int) -> bool:
        return self.node.maintain(now_ms, budget_bytes)

    def tick(self, now_ms: int, ticks_ms: int) -> None: ...

    def close(self, now_ms: int) -> None:
        self.node.close(now_ms)

    def closed(self) -> bool:
        return self.node.closed()

    def status(self) -> dict[str, Any]:
        return {"name": self.name, "state": str(State.ACTIVE), "epoch": 0, "leader": self.name, "why": ""}
