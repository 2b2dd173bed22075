"""One run of fronts over several groups: as `sim/cluster/run.py`, with fronts that start, fail and heal, too.

Invariant: a run is a function of its seed and plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tidemark.sim.cluster.run import FRONTS, STEPS, Run, Step
from tidemark.sim.cluster.run import run_seed as run_mode
from tidemark.sim.cluster.world import Say
from tidemark.sim.fronts import faults, work
from tidemark.sim.fronts.checkers import FrontsChecker
from tidemark.sim.fronts.world import FrontsWorld


class FrontsRun(Run):
    themes = faults.THEMES
    settle_us = 90_000_000
    """What a front could not move on it tries again after up to a minute."""

    def _assemble(self, mode: str, nodes: int, tell: Say | None, only: Sequence[str]) -> None:  # noqa: ARG002
        self.fronts_world = self.world = FrontsWorld(self.seed, tell)
        self.checker = FrontsChecker(self.fronts_world)
        self.work = work.choose(self.fronts_world, only)

    def _faults(self, about: Sequence[str]) -> Mapping[str, tuple[int, Callable[[Any, Random], None]]]:  # noqa: ARG002
        return faults.FAULTS

    def _start(self) -> None:
        super()._start()
        for front in self.fronts_world.fronts.values():
            faults.start_later(front, front.dice.randrange(20_000))

    def _heal(self) -> None:
        faults.heal(self.fronts_world)

    def run(self) -> None:
        super().run()
        if self.world.dice.random() < 0.5:
            self._lose_all_power()

    def _lose_all_power(self) -> None:
        """What was moved on and what was confirmed is there after that, too."""
        world = self.fronts_world
        world.say("", "the power is gone everywhere, to see what is left")
        for machine in world.machines.values():
            machine.die(power=True)
            machine.start()
        self._settle(self.checker.unready, ", after a start")
        self.checker.look_at_end(self.work)


def run_seed(
    seed: int,
    steps: int = STEPS,
    tell: Say | None = None,
    plan: Sequence[Step] | None = None,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
) -> FrontsRun:
    """One run. Raises BrokenPromise: with the command that replays it."""
    run = run_mode(seed, FRONTS, steps=steps, tell=tell, plan=plan, work=work, about=about)
    assert isinstance(run, FrontsRun)
    return run
