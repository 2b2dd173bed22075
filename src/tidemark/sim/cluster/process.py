"""A process on a machine: it lives, may stand still for a while, dies, and lives again.

Whatever happens to it while it stands still waits, and happens at once when it runs on.

Invariant: nothing that was planned in one life of the process happens in another.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.sim.cluster.clock import Timeline


class Process:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.life = 0
        self.frozen = False
        self._held: list[Callable[[], None]] = []

    @property
    def running(self) -> bool:
        raise NotImplementedError

    def end_life(self) -> None:
        """It has died: nothing that was planned happens."""
        self.life += 1
        self.frozen = False
        self._held.clear()

    def freeze(self) -> None:
        if self.running and not self.frozen:
            self.frozen = True

    def thaw(self) -> None:
        """The process runs on: what came meanwhile is there at once, and its timers are all overdue."""
        if not self.frozen:
            return
        self.frozen = False
        held, self._held = self._held, []
        life = self.life
        for action in held:
            if self.life == life:
                self._run(action)

    def post(self, action: Callable[[], None]) -> None:
        """Something happens to the process: now, or when it runs again."""
        if self.frozen:
            self._held.append(action)
        elif self.running:
            self._run(action)

    def _run(self, action: Callable[[], None]) -> None:
        action()

    def in_this_life(self, action: Callable[[], None]) -> Callable[[], None]:
        life = self.life

        def act() -> None:
            if self.life == life:
                self.post(action)

        return act

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        self.timeline.after(delay_us, self.in_this_life(action))
