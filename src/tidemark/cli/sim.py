"""`tidemark sim`: a whole cluster, or fronts over several groups, on virtual time, with everything going wrong that can. Nothing is
written.

With --seed one run is told and, if it breaks a promise, made shorter and told again. With --seeds many runs are made
and only those that break a promise are named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli import CommandError

if TYPE_CHECKING:
    from tidemark.sim.cluster.run import Shape


MODES = ("alone", "standby", "chain", "fronts")
PROVIDERS = ("etcd", "external")
BATCH = 10
"""Runs that a process is given at a time."""


def sim(
    seed: Annotated[int | None, typer.Option(help="Replay this run and tell what happens.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Make these runs; name those that break a promise.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="alone, standby, chain, or fronts over several groups.")
    ] = "standby",
    provider: Annotated[
        str,
        typer.Option(help="Who keeps the view of a cluster: etcd, or external (an operator says who leads)."),
    ] = "etcd",
    nodes: Annotated[int, typer.Option(help="Members of the cluster.")] = 3,
    steps: Annotated[int, typer.Option(help="Pieces of work and faults in a run.")] = 150,
    work: Annotated[
        str,
        typer.Option(
            help="Only this work: queues,transactions,wiring,keyed,bank,far,loose; of fronts: "
            "spread,moved,tight,letters,keyed,churn,fresh."
        ),
    ] = "",
    about: Annotated[str, typer.Option(help="Only these faults, e.g. kill,freeze,isolate.")] = "",
    plant: Annotated[str | None, typer.Option(help="Break the code on purpose: a name, or 'list'.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.  [default: one a core]")] = 0,
    shrink: Annotated[bool, typer.Option(help="Make a run that fails shorter.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Of one run, tell only how it ends.")] = False,
) -> int:
    """Run a simulated cluster with faults, and check that every promise is kept."""
    if mode not in MODES:
        raise CommandError(f"--mode {mode!r} is none of {', '.join(MODES)}", 2)
    if provider not in PROVIDERS:
        raise CommandError(f"--provider {provider!r} is none of {', '.join(PROVIDERS)}", 2)
    if provider != "etcd" and mode not in ("standby", "chain"):
        raise CommandError(f"--provider is for clusters: there is none in mode {mode}", 2)
    if not 1 <= nodes <= 7:
        raise CommandError("--nodes must be 1 to 7", 2)
    if plant == "list":
        return _list_plants()
    from tidemark.sim.cluster.run import Shape
    from tidemark.sim.planted import PLANTED, planted

    if plant is not None and plant not in PLANTED:
        raise CommandError(f"--plant {plant!r} is not known; 'list' shows what is", 2)
    words = _words(work, "work", mode), _words(about, "about", mode)
    shape = Shape(mode, nodes, steps, *words, provider, plant or "")
    if seed is not None:
        with planted(shape.plant):
            return _one(seed, shape, shrink, quiet)
    first, last = _range(seeds or "0:100")
    return _many(first, last, shape, jobs or os.cpu_count() or 1)


def _words(text: str, option: str, mode: str) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word)
    known = sorted(_known(mode)[option])
    for word in words:
        if word not in known:
            raise CommandError(f"--{option}: {word!r} is none of {', '.join(known)}", 2)
    return words


def _known(mode: str) -> dict[str, Collection[str]]:
    """The kinds of work and the faults of a mode."""
    if mode == "fronts":
        from tidemark.sim.fronts.faults import FAULTS
        from tidemark.sim.fronts.work import WORK

        return {"work": WORK, "about": FAULTS}
    from tidemark.sim.cluster import faults, workloads

    return {
        "work": workloads.WORKLOADS | workloads.ASKED_FOR,
        "about": faults.CLUSTER_FAULTS | faults.OPERATOR_STEPS | faults.ASKED_FOR,
    }


def _range(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise CommandError(f"--seeds {text!r} is not FROM:TO, such as 0:1000", 2)
    return int(first), int(last)


def _list_plants() -> int:
    from tidemark.sim.planted import PLANTED

    for name, plant in PLANTED.items():
        print(f"{name:<28} {plant.mode:<8} within {plant.seeds:>4} runs  {plant.about}")
    return 0


def _one(seed: int, shape: Shape, shrinks: bool, quiet: bool) -> int:
    from tidemark.sim.cluster.shrink import shrink
    from tidemark.sim.cluster.story import told

    mode, nodes, steps, work, about, provider, plant = astuple(shape)
    out = (lambda _: None) if quiet else print
    run, problem = told(seed, mode, nodes, steps, out, None, work, about, provider, plant)
    if run is not None:
        print(
            f"every promise was kept; {run.world.timeline.events} events, {run.world.timeline.now_us / 1e6:.1f} s"
        )
        return 0
    assert problem is not None
    print(f"\nBROKEN: {problem}")
    if not shrinks:
        return 1
    print("\nmaking it shorter ...", file=sys.stderr)
    plan, problem = shrink(seed, mode, nodes, steps, work=work, about=about, provider=provider, plant=plant)
    print(f"\nThe same in {len(plan)} steps:")
    for step in plan:
        print(f"  {step}")
    if not quiet:
        print()
        told(seed, mode, nodes, steps, print, plan, work, about, provider, plant)
    print(f"\nBROKEN: {problem}")
    return 1


def _many(first: int, last: int, shape: Shape, jobs: int) -> int:
    batches = [(range(at, min(last, at + BATCH)), shape) for at in range(first, last, BATCH)]
    broken = 0
    if jobs == 1:
        found: Iterator[list[tuple[int, str]]] = map(_some, batches)
        broken = _report(found)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            broken = _report(pool.map(_some, batches))
    print(
        f"{last - first} runs in mode {shape.mode}{', external' if shape.provider == 'external' else ''}: "
        + (f"{broken} broke a promise" if broken else "every promise was kept")
    )
    return 1 if broken else 0


def _report(found: Iterator[list[tuple[int, str]]]) -> int:
    broken = 0
    while batch := list(islice(found, 1)):
        for seed, problem in batch[0]:
            broken += 1
            print(f"seed {seed}: {problem}", flush=True)
    return broken


def _some(batch: tuple[range, Shape]) -> list[tuple[int, str]]:
    """The runs of this batch that broke a promise."""
    from tidemark.sim.cluster.run import run_seed
    from tidemark.sim.planted import planted
    from tidemark.sim.store import BrokenPromise

    seeds, shape = batch
    mode, nodes, steps, work, about, provider, plant = astuple(shape)
    found: list[tuple[int, str]] = []
    with planted(plant):
        for seed in seeds:
            try:
                run_seed(seed, mode, nodes, steps, None, None, work, about, provider, plant)
            except BrokenPromise as problem:
                found.append((seed, str(problem)))
    return found
