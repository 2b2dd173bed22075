"""`tidemark sim`: a whole cluster, or fronts over several groups, on virtual time, with everything going wrong that can. Nothing is
written.

With --seed one run is told and, if it breaks a promise, made shorter and told again. With --seeds many runs are made
and only those that break a promise are named. With --plant the code is broken on purpose, and the runs are those in which
that must be found, unless other options say otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli import CommandError

if TYPE_CHECKING:
    from tidemark.sim.cluster.planted import Hunt
    from tidemark.sim.cluster.run import Shape

MODES = ("alone", "standby", "chain", "fronts")
PROVIDERS = ("etcd", "external")
SEEDS = range(100)
BATCH = 10
"""Runs that a process is given at a time."""


def sim(
    seed: Annotated[int | None, typer.Option(help="Replay this run and tell what happens.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO",
            help="Make these runs; name those that break a promise.  [default: 0:100, or all in which a plant must be found]",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="alone, standby, chain, or fronts over several groups.  [default: standby]"),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Who keeps the view of a cluster: etcd, or external (an operator says who leads).  [default: etcd]"
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Members of the cluster.  [default: 3]")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Pieces of work and faults in a run.  [default: 150]")
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(
            help="Only this work: queues,transactions,wiring,keyed,bank,far,loose; of fronts: "
            "spread,moved,piled,tight,letters,keyed,churn,rivals,fresh.  [default: any]"
        ),
    ] = None,
    about: Annotated[
        str | None, typer.Option(help="Only these faults, e.g. kill,freeze,isolate.  [default: any]")
    ] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            help="Break the code on purpose: a name, or 'list'. It brings its own mode, provider, work and faults; "
            "other options take their place."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.  [default: one a core]")] = 0,
    first: Annotated[
        bool, typer.Option("--first", help="Of many runs, stop at the first that breaks a promise.")
    ] = False,
    shrink: Annotated[bool, typer.Option(help="Make a run that fails shorter.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Of one run, tell only how it ends.")] = False,
) -> int:
    """Run a simulated cluster with faults, and check that every promise is kept."""
    if mode not in (None, *MODES):
        raise CommandError(f"--mode {mode!r} is none of {', '.join(MODES)}", 2)
    if provider not in (None, *PROVIDERS):
        raise CommandError(f"--provider {provider!r} is none of {', '.join(PROVIDERS)}", 2)
    if seed is not None and seeds is not None:
        raise CommandError("--seed tells one run and --seeds makes many: give one of them", 2)
    if plant == "list":
        return _list_plants()
    from tidemark.sim.cluster.run import Shape
    from tidemark.sim.planted import planted

    hunt = _hunt(plant, mode, provider) if plant is not None else None
    usual = Shape(mode or "standby") if hunt is None else replace(hunt.shape, plant=plant or "")
    shape = _changed(usual, provider, nodes, steps, work, about)
    if seed is not None:
        with planted(shape.plant):
            return _one(seed, shape, shrink, quiet)
    known = range(hunt.seeds) if hunt is not None else SEEDS
    return _many(_range(seeds) if seeds is not None else known, shape, jobs or os.cpu_count() or 1, first)


def _hunt(plant: str, mode: str | None, provider: str | None) -> Hunt:
    """Where a bug is looked for in this mode, with this provider."""
    from tidemark.sim.planted import PLANTED

    if plant not in PLANTED:
        raise CommandError(f"--plant {plant!r} is not known; 'list' shows what is", 2)
    hunt = PLANTED[plant].hunt(mode, provider)
    if hunt is None:
        there = " or ".join(
            f"--mode {one.shape.mode} --provider {one.shape.provider}" for one in PLANTED[plant].hunts
        )
        raise CommandError(f"--plant {plant} is looked for with {there}", 2)
    return hunt


def _changed(
    usual: Shape,
    provider: str | None,
    nodes: int | None,
    steps: int | None,
    work: str | None,
    about: str | None,
) -> Shape:
    """The usual runs, but with what was said to be different."""
    provider = provider or usual.provider
    if provider != "etcd" and usual.mode not in ("standby", "chain"):
        raise CommandError(f"--provider is for clusters: there is none in mode {usual.mode}", 2)
    if nodes is not None and not 1 <= nodes <= 7:
        raise CommandError("--nodes must be 1 to 7", 2)
    if usual.plant and nodes is not None and nodes < usual.nodes:
        raise CommandError(f"--plant {usual.plant} is looked for in a cluster of at least {usual.nodes}", 2)
    known = _known(usual.mode, provider)
    return replace(
        usual,
        provider=provider,
        nodes=usual.nodes if nodes is None else nodes,
        steps=usual.steps if steps is None else steps,
        work=usual.work if work is None else _words(work, "work", known),
        about=usual.about if about is None else _words(about, "about", known),
        usual=usual,
    )


def _words(text: str, option: str, known: dict[str, Collection[str]]) -> tuple[str, ...]:
    if text == "any":
        return ()
    words = tuple(word for word in text.split(",") if word)
    for word in words:
        if word not in known[option]:
            raise CommandError(f"--{option}: {word!r} is none of any, {', '.join(sorted(known[option]))}", 2)
    return words


def _known(mode: str, provider: str) -> dict[str, Collection[str]]:
    """The kinds of work and the faults of a mode."""
    if mode == "fronts":
        from tidemark.sim.fronts.faults import FAULTS
        from tidemark.sim.fronts.work import WORK

        return {"work": WORK, "about": FAULTS}
    from tidemark.sim.cluster import faults, workloads

    return {
        "work": workloads.WORKLOADS | workloads.ASKED_FOR,
        "about": faults.faults(mode, tuple(faults.ASKED_FOR), provider),
    }


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise CommandError(f"--seeds {text!r} is not FROM:TO, such as 0:1000", 2)
    return range(int(first), int(last))


def _list_plants() -> int:
    from tidemark.sim.cluster.run import Shape
    from tidemark.sim.planted import PLANTED

    for name, plant in PLANTED.items():
        print(f"{name:<22} {plant.about}")
        for hunt in plant.hunts:
            words = " ".join([f"--mode {hunt.shape.mode}", *hunt.shape.options(Shape(hunt.shape.mode))])
            print(f"{'':<22}   within {hunt.seeds} runs: {words}")
    return 0


def _one(seed: int, shape: Shape, shrinks: bool, quiet: bool) -> int:
    from tidemark.sim.cluster.shrink import shrink
    from tidemark.sim.cluster.story import told

    replay = shape.replay(seed)
    run, problem = told(seed, (lambda _: None) if quiet else print, replay=replay, **shape.kind)
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
    plan, problem = shrink(seed, replay=replay, **shape.kind)
    print(f"\nThe same in {len(plan)} steps:")
    for step in plan:
        print(f"  {step}")
    if not quiet:
        print()
        told(seed, print, plan, replay=replay, **shape.kind)
    print(f"\nBROKEN: {problem}")
    return 1


def _many(seeds: range, shape: Shape, jobs: int, first: bool) -> int:
    batches = [(seeds[at : at + BATCH], shape, first) for at in range(0, len(seeds), BATCH)]
    if jobs == 1:
        broken = _report(map(_some, batches), first)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            broken = _report(pool.map(_some, batches), first)
            pool.shutdown(cancel_futures=True)
    if broken and first:
        return 1
    print(
        f"{len(seeds)} runs in mode {shape.mode}{', external' if shape.provider == 'external' else ''}: "
        + (f"{broken} broke a promise" if broken else "every promise was kept")
    )
    return 1 if broken else 0


def _report(found: Iterable[list[tuple[int, str]]], first: bool) -> int:
    broken = 0
    for batch in found:
        for seed, problem in batch:
            broken += 1
            print(f"seed {seed}: {problem}", flush=True)
        if broken and first:
            break
    return broken


def _some(batch: tuple[range, Shape, bool]) -> list[tuple[int, str]]:
    """The runs of this batch that broke a promise, or the first of them."""
    from tidemark.sim.cluster.run import run_seed
    from tidemark.sim.planted import planted
    from tidemark.sim.store import BrokenPromise

    seeds, shape, first = batch
    found: list[tuple[int, str]] = []
    with planted(shape.plant):
        for seed in seeds:
            try:
                run_seed(seed, replay=shape.replay(seed), **shape.kind)
            except BrokenPromise as problem:
                found.append((seed, str(problem)))
                if first:
                    break
    return found
