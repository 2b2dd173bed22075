"""One run: a plan of work and faults made from the seed, carried out, healed, and checked.

    start the members ─► steps: work and faults ─► heal ─► until all is quiet ─► look at everything

The plan is a list of steps, each with its own dice; `shrink.py` takes steps out of it. After the faults are over
every member must be ready and have the same logs within bounded time, and whatever clients wait for must come.

Invariant: a run is a function of its seed, mode, size and plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tidemark.errors import TidemarkError
from tidemark.sim.cluster import faults, workloads
from tidemark.sim.cluster.checkers import Checker
from tidemark.sim.cluster.world import ALONE, ETCD, EXTERNAL, STANDBY, Say, World
from tidemark.sim.store import BrokenPromise

STEPS = 150
SETTLE_US = 60_000_000
"""So long after the end of all faults everything must be well."""
FAULT = "fault"
ANY: Final = "any"
"""Of work and faults: whatever there is."""
FRONTS: Final = "fronts"
"""The mode that `sim/fronts` runs: fronts over several groups, each of which is a node alone."""


@dataclass(frozen=True, slots=True)
class Step:
    at_us: int
    kind: str
    """A workload, or "fault"."""
    what: str
    number: int
    """The seed of its own dice."""

    def __str__(self) -> str:
        return f"{self.at_us / 1e6:9.4f} {self.kind}: {self.what} ({self.number})"


@dataclass(frozen=True, slots=True)
class Shape:
    """What all runs of a call have in common."""

    mode: str = STANDBY
    nodes: int = 3
    steps: int = STEPS
    work: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    provider: str = ETCD
    plant: str = ""
    usual: Shape | None = None
    """What runs with this plant have in common if nothing else is said."""

    @property
    def kind(self) -> dict[str, Any]:
        """What `run_seed` takes of it."""
        return {name: getattr(self, name) for name in ("mode", "nodes", "steps", "work", "about", "provider")}

    def replay(self, seed: int) -> str:
        """The command that makes one of these runs again."""
        plant = f"--plant {self.plant} " if self.plant else ""
        options = " ".join(["", *self.options(self.usual or Shape(self.mode))])
        return f"tidemark sim {plant}--mode {self.mode} --seed {seed}{options}"

    def options(self, usual: Shape) -> list[str]:
        """What makes this of the usual one in the same mode."""
        words = [f"--provider {self.provider}"] if self.provider != usual.provider else []
        words += [f"--steps {self.steps}"] if self.steps != usual.steps else []
        if self.mode not in (ALONE, FRONTS) and self.nodes != usual.nodes:
            words.append(f"--nodes {self.nodes}")
        words += [f"--work {','.join(self.work) or ANY}"] if self.work != usual.work else []
        words += [f"--about {','.join(self.about) or ANY}"] if self.about != usual.about else []
        return words


class Run:
    themes = faults.THEMES
    settle_us = SETTLE_US

    def __init__(
        self,
        seed: int,
        mode: str = STANDBY,
        nodes: int = 3,
        steps: int = STEPS,
        tell: Say | None = None,
        plan: Sequence[Step] | None = None,
        work: Sequence[str] = (),
        about: Sequence[str] = (),
        provider: str = ETCD,
    ) -> None:
        """`work`: only these kinds of work; `about`: only these faults, and many of them."""
        self.seed = seed
        self.provider = provider
        self.world: World
        self.checker: Any
        self.work: dict[str, Any]
        self._assemble(mode, nodes, tell, work)
        self._about = about
        self.plan = list(plan) if plan is not None else self._plan(steps)

    def _assemble(self, mode: str, nodes: int, tell: Say | None, work: Sequence[str]) -> None:
        self.world = World(self.seed, mode, nodes, tell, self.provider)
        self.checker = Checker(self.world)
        self.work = workloads.choose(self.world, work)

    def _faults(self, about: Sequence[str]) -> Mapping[str, tuple[int, Callable[[Any, Random], None]]]:
        """What can go wrong in a run that is about these."""
        return faults.faults(self.world.mode, about, self.provider)

    def _plan(self, steps: int) -> list[Step]:
        dice = Random(f"{self.seed} plan")
        rate = dice.choice((0.0, 0.03, 0.07, 0.07, 0.15))
        known = self._faults(self._about)
        themes = faults.EXTERNAL_THEMES if self.provider == EXTERNAL else self.themes
        theme, gap_us = dice.choice(themes)
        if self._about:
            rate, theme, gap_us = 0.07, tuple(self._about), 60_000
        some = sorted(known.keys() & set(theme)) or dice.sample(
            sorted(known), dice.choice((3, 6, len(known)))
        )
        weights = [known[name][0] for name in some]
        actions = [
            (kind, what, weight)
            for kind, workload in self.work.items()
            for what, (weight, _) in workload.actions.items()
        ]
        plan: list[Step] = []
        at_us = 0
        for _ in range(steps):
            if dice.random() < rate:
                # Half of the faults come right behind some work, when much is on its way.
                at_us += dice.randrange(1500) if dice.random() < 0.5 else int(dice.expovariate(1 / gap_us))
                what = dice.choices(some, weights)[0]
                plan.append(Step(at_us, FAULT, what, dice.randrange(1 << 30)))
            else:
                at_us += int(dice.expovariate(1 / gap_us))
                kind, what, _ = dice.choices(actions, [weight for *_, weight in actions])[0]
                plan.append(Step(at_us, kind, what, dice.randrange(1 << 30)))
        return plan

    def run(self) -> None:
        """Raises BrokenPromise, or whatever broke."""
        world = self.world
        self._start()
        for step in self.plan:
            world.timeline.after(step.at_us, self._step(step))
        world.timeline.run_until(self.plan[-1].at_us + 1 if self.plan else 0)
        world.say("", "the faults are over")
        self._heal()
        self._settle(self._quiet, "")
        for workload in self.work.values():
            workload.leave()
        self._settle(self.checker.unready, ", with the clients gone")
        self.checker.look_at_end(self.work)
        for _ in range(0 if world.mode == ALONE else world.dice.choice((0, 0, 1, 2))):
            self._change_leader()

    def _start(self) -> None:
        for machine in self.world.machines.values():
            faults.start_later(machine, machine.dice.randrange(20_000))

    def _heal(self) -> None:
        faults.heal(self.world)

    def _change_leader(self) -> None:
        """Whoever leads next has all of it, too."""
        leader = self.world.serving
        assert leader is not None
        self.world.say(leader.name, "is killed, to see what the next leader has")
        leader.die(power=self.world.dice.random() < 0.5)
        faults.start_later(leader, 3_000_000)
        self._settle(self.checker.unready, ", with another leader")
        self.checker.look_at_end(self.work)

    def _step(self, step: Step) -> Callable[[], None]:
        def do() -> None:
            dice = Random(step.number)
            if step.kind == FAULT:
                self.world.count(step.what)
                fault = self._faults((step.what,))[step.what][1]
                self.world.when_it_may(lambda: self._go_wrong(fault, dice))
            else:
                self.work[step.kind].actions[step.what][1](dice)

        return do

    def _go_wrong(self, fault: Callable[[Any, Random], None], dice: Random) -> None:
        caretaker = self.world.caretaker
        if caretaker is None or not caretaker.over:  # else it was put off until all faults were over
            fault(self.world, dice)

    def _settle(self, quiet: Callable[[], str | None], when: str) -> None:
        timeline = self.world.timeline
        end_us = timeline.now_us + self.settle_us
        calm = 0
        problem = quiet()
        while timeline.now_us < end_us:
            timeline.run_until(timeline.now_us + 30_000)
            problem = quiet()
            calm = 0 if problem else calm + 1
            if calm == 3:
                states = ", ".join(f"{name} is {state}" for name, state in sorted(self.world.states.items()))
                self.world.say("", "all is well%s%s", when, states and f": {states}")
                return
        raise BrokenPromise(f"{self.settle_us // 1_000_000} s after the last fault{when}: {problem}")

    def _quiet(self) -> str | None:
        """What is not yet as it must be; None: all is well."""
        problem: str | None = self.checker.unready()
        if problem is not None:
            return problem
        for workload in self.work.values():
            problem = workload.waiting()
            if problem is not None:
                return str(problem)
        return None


def new_run(
    seed: int,
    mode: str,
    nodes: int,
    steps: int = STEPS,
    tell: Say | None = None,
    plan: Sequence[Step] | None = None,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
    provider: str = ETCD,
) -> Run:
    """A run that has not begun."""
    if mode != FRONTS:
        return Run(seed, mode, 1 if mode == ALONE else nodes, steps, tell, plan, work, about, provider)
    from tidemark.sim.fronts.run import FrontsRun

    return FrontsRun(seed, mode, nodes, steps, tell, plan, work, about)


def run_seed(
    seed: int,
    mode: str = STANDBY,
    nodes: int = 3,
    steps: int = STEPS,
    tell: Say | None = None,
    plan: Sequence[Step] | None = None,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
    provider: str = ETCD,
    replay: str = "",
) -> Run:
    """One run.

    Raises:
        BrokenPromise: with the command that replays it, which is `replay` if more than this belongs to it.
    """
    run = None
    try:
        run = new_run(seed, mode, nodes, steps, tell, plan, work, about, provider)
        run.run()
    except (AssertionError, TidemarkError, ValueError, LookupError, TypeError, AttributeError) as problem:
        at = f" at {run.world.timeline.now_us / 1e6:.4f} s" if run is not None else ""
        text = str(problem) if isinstance(problem, BrokenPromise) else f"{type(problem).__name__}: {problem}"
        replay = replay or Shape(mode, nodes, steps, tuple(work), tuple(about), provider).replay(seed)
        raise BrokenPromise(f"{text}{at}\nreplay: {replay}") from problem
    return run
