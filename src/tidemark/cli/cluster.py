"""`tidemark cluster`: a cluster on this machine, to try it by hand: start it, kill it, freeze it, cut it, watch it.

The processes and their directory are `cli.trial`; here are the words. A cluster for work is `tidemark serve` with
the settings of its section `cluster`, on machines of its own; `cluster status` shows only what was started here.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.output import show

if TYPE_CHECKING:
    from rich.console import Group

    from tidemark.cli.load import Result
    from tidemark.cli.trial import Mode as ModeName
    from tidemark.cli.trial import Seen, Trial

app = typer.Typer(
    help="A cluster on this machine, to try it: start it, kill members, freeze them, cut links, watch.\n\n"
    "Members are named after nodes: n1, n2, … In a cluster of several groups (up --group) every node has a member of each group, "
    "GROUP-NODE, such as fast-n2, and a front, which has the node's name. All commands take names of both.",
    no_args_is_help=True,
)

DIRECTORY = Path("tidemark-cluster")
NODES_MAX = 9
CHAINS_MAX = 9
SLOW_MS_MAX = 60_000
WATCH_S = 0.5
UP_COLUMNS = ("name", "state", "amqp", "admin", "peer", "pid")
GROUP_MODES = ("standby", "chain")

Directory = Annotated[
    Path, typer.Option("--dir", envvar="TIDEMARK_TRIAL_DIR", help="Directory of the cluster.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of a member, such as n1 or fast-n1, or of a front.")
]
End = Annotated[str, typer.Argument(help="Name of a member or front, or etcd.")]


class Mode(StrEnum):
    standby = "standby"
    chain = "chain"


def _load(directory: Path) -> Trial:
    from tidemark.cli.trial import Trial

    return Trial.load(directory)


# The whole ---------------------------------------------------------------------------------------------------------


@app.command()
def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="How many members of each group.  [default: 3]")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="How members follow one another.  [default: standby]")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="NAME=MODE",
            help="A group of its own, with fronts before all; give it several times. main is always there.",
        ),
    ] = None,
    chains: Annotated[
        int,
        typer.Option(
            min=0,
            max=CHAINS_MAX,
            help="So many groups s1, s2, … in the mode chain, for the partitions of streams.",
            show_default=False,
        ),
    ] = 0,
    directory: Directory = DIRECTORY,
    etcd: Annotated[
        str, typer.Option(metavar="HOST:PORT,…", help="An etcd that runs; without it one is started.")
    ] = "",
    proxies: Annotated[
        bool, typer.Option("--proxies", help="Lay a proxy on every link, for 'cut' and 'slow'.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for all members."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay and show the status; stop everything at the end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start an etcd and some brokers, and wait until one leads and the others are ready.

    They run in the background; 'tidemark cluster down' stops them. What they hold stays in the directory: 'up' again
    starts the same cluster. If it fails or is interrupted, what it started is stopped. A directory that holds something
    else is refused.

    With --group main=standby --group fast=chain there are members main-n1, main-n2, … and fast-n1, fast-n2, …, and fronts
    n1, n2, …, which clients connect to. At first the k-th group is led on node k. --chains 3 is --group s1=chain
    --group s2=chain --group s3=chain: every node is head of one chain, middle of another and tail of a third.
    """
    from tidemark.cli.serve import parse_assignments
    from tidemark.cli.trial import Trial, holds_cluster

    groups = _groups([*(group or []), *(f"s{number}=chain" for number in range(1, chains + 1))], mode)
    settings = parse_assignments(assignments or [])
    found = Trial.load(directory, abandoned=True) if holds_cluster(directory) else None
    if found is not None and found.abandoned:
        found.remove()
        found = None
    if found is not None:
        asked = {
            "--nodes": (nodes, found.nodes),
            "--mode": (mode, found.mode),
            "--group": (groups, found.groups),
            "--etcd": (etcd, found.etcd_address),
            "--proxies": (proxies, found.control is not None),
            "--set": (settings, found.settings),
        }
        for word, (wanted, is_now) in asked.items():
            if wanted and wanted != is_now:
                raise CommandError(
                    f"{directory} holds a cluster already, with another {word}; leave that out, choose another --dir, "
                    f"or remove it: {found.call('down --remove')}",
                    2,
                )
    new = found is None
    trial = found or Trial.plan(
        directory,
        nodes=nodes or 3,
        mode=(mode or Mode.standby).value,
        etcd=etcd,
        proxies=proxies,
        settings=settings,
        groups=groups,
    )
    with _ended_by_signals():
        try:
            if new:
                trial.check()
                trial.write()
            with trial.alone():
                trial.up()
                seen = trial.wait_whole()
                if new and groups:
                    trial.spread()
                    seen = trial.wait_whole()
        except BaseException as problem:
            _take_back(trial, problem, new=new)
            raise
        show([_up_row(one) for one in seen], UP_COLUMNS, as_json=as_json)
        if not as_json:
            print(_hints(trial))
        sys.stdout.flush()  # --foreground stays
        if foreground:
            try:
                if sys.stdout.isatty():
                    _watch(trial.directory)
                else:
                    _stay()
            finally:
                if trial.is_here:  # another call may have removed it
                    with trial.alone():
                        trial.down()


def _stay() -> None:
    """Until Ctrl-C: nobody is there who could look."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(WATCH_S)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP are an exception here, as Ctrl-C is: what was started can be stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    mine = [one for one, handler in before.items() if handler is signal.SIG_DFL]
    for one in mine:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in mine:
            signal.signal(one, signal.SIG_DFL)


def _take_back(trial: Trial, problem: BaseException, *, new: bool) -> None:
    """After `up` has failed: nothing that it started goes on, and a new cluster is not there. The logs of one that
    failed by itself are kept, because the error names them."""
    interrupted = not isinstance(problem, Exception)
    if trial.started:
        word = "interrupted" if interrupted else "it failed"
        print(f"tidemark: {word}; stopping what was started: {', '.join(trial.started)}", file=sys.stderr)
        trial.undo()
    if new and interrupted:
        trial.remove()
    elif new:
        trial.abandon()


def _groups(words: list[str], mode: Mode | None) -> dict[str, ModeName]:
    """The groups that are asked for, main first; none if none is.

    Raises:
        CommandError: they cannot be.
    """
    from tidemark.cluster.config import ClusterConfig
    from tidemark.errors import ConfigError

    found: dict[str, Any] = {}
    for word in words:
        name, _, given = word.partition("=")
        if given not in GROUP_MODES or name in found:
            raise CommandError(
                f"--group must be NAME=MODE, each name once, the mode one of {', '.join(GROUP_MODES)}; not {word!r}",
                2,
            )
        found[name] = given
    if not found:
        return {}
    if mode is not None and found.get("main", mode.value) != mode.value:
        raise CommandError(f"--mode {mode.value} and --group main={found['main']} do not agree", 2)
    first = {"main": found.get("main", (mode or Mode.standby).value)}
    found = first | {name: given for name, given in found.items() if name != "main"}
    try:
        ClusterConfig(
            name="trial", groups=tuple(f"{name}={given}" for name, given in found.items() if name != "main")
        )
    except ConfigError as problem:
        raise CommandError(f"--group: {problem.problem}", 2) from None
    return found


def _up_row(seen: Seen) -> dict[str, Any]:
    place = seen.place
    return {
        "name": seen.name,
        "state": seen.state,
        "amqp": place.amqp,
        "admin": place.admin,
        "peer": place.peer or None,
        "pid": seen.pid,
    }


def _hints(trial: Trial) -> str:
    leader = next(iter(trial.members))
    whose = "the fronts' AMQP addresses" if trial.fronts else "the AMQP addresses"
    return (
        f"\nClients may use any of {whose}, user guest, password guest. Logs are in {trial.directory}.\n"
        "Try it, load and status in terminals of their own:\n"
        f"  {trial.call('load')}\n"
        f"  {trial.call('status --watch')}\n"
        f"  {trial.call(f'kill {leader}')}\n"
        f"  {trial.call(f'start {leader}')}"
    )


@app.command()
def down(
    directory: Directory = DIRECTORY,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Remove what they hold, too, and the directory if nothing else is in it."
        ),
    ] = False,
) -> None:
    """Stop all members, then the proxies and etcd. What they hold stays, unless --remove is given."""
    from tidemark.cli.trial import Trial, alone

    trial = Trial.load(directory, abandoned=True)
    with alone(trial.directory):
        trial = Trial.load(directory, abandoned=True)
        running = trial.running
        stubborn = trial.down()
        gone = remove and trial.remove()
    if stubborn:
        raise CommandError(f"{', '.join(stubborn)} did not stop in time and had to be killed")
    stopped = f"stopped: {', '.join(running)}" if running else "nothing ran"
    if gone:
        print(f"{stopped}; {directory} is removed")
    elif remove:
        print(f"{stopped}; what they held is removed. {directory} holds something else and is kept")
    else:
        print(f"{stopped}; what they hold is kept. Start them again: {trial.call('up')}")


@app.command()
def status(
    directory: Directory = DIRECTORY,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """What every member and front is, as it says itself: state, role, epoch, leader, ends of its logs, lag, connections; and
    which links are cut or slow."""
    from tidemark.cli.cluster_status import show as show_status

    if watch and not as_json and sys.stdout.isatty():
        _watch(directory)
        return
    with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
        show_status(_load(directory), as_json=as_json)
        while watch:
            time.sleep(WATCH_S)
            if not as_json:
                print()
            show_status(_load(directory), as_json=as_json)


def _watch(directory: Path) -> None:
    """Show it in a terminal, always at the same place, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from tidemark.cli.cluster_status import drawn, rows

    console = Console(highlight=False)

    def look() -> Group:
        # Members are killed, started and joined by other calls meanwhile.
        trial = _load(directory)
        return drawn(trial, *rows(trial), console.width)

    with contextlib.suppress(KeyboardInterrupt), Live(look(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(look(), refresh=True)


# One member --------------------------------------------------------------------------------------------------------


@app.command()
def kill(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGKILL to a member: nothing is flushed, nothing is said."""
    _load(directory).kill(node)
    print(f"{node} killed")


@app.command()
def freeze(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGSTOP to a member: it stands still and does not know it."""
    fresh = _load(directory).freeze(node)
    print(f"{node} frozen" if fresh else f"{node} is frozen already")


@app.command()
def thaw(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGCONT to a member that was frozen."""
    frozen = _load(directory).thaw(node)
    print(f"{node} thawed" if frozen else f"{node} is not frozen")


@app.command()
def stop(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGTERM to a member, and wait for it to end."""
    if not _load(directory).stop(node):
        raise CommandError(f"{node} did not stop in time and had to be killed")
    print(f"{node} stopped")


@app.command()
def start(node: Node, directory: Directory = DIRECTORY) -> None:
    """Start a member that was killed or stopped, on the same data and ports, and wait until it is ready.

    One that needs more time, because it must catch up or nobody leads, is not waited for; what it is then is said.
    """
    from tidemark.cli.trial import WELL

    trial = _load(directory)
    trial.start(node)
    seen = trial.settled(node)
    if seen.state in WELL:
        print(f"{node} is {seen.state}")
    else:
        why = seen.status.get("why")
        print(f"{node} runs and is {seen.state}{f': {why}' if why else ''}; see {trial.call('status')}")


@app.command()
def join(
    group: Annotated[
        str, typer.Option(help="Of a cluster of several groups: only a member of this one.")
    ] = "",
    directory: Directory = DIRECTORY,
) -> None:
    """Start one more member, with an empty store; of several groups one of each, and a front.

    Fronts that run learn of new members when they are started again.
    """
    for name in _load(directory).join(group):
        print(name)


# Links -------------------------------------------------------------------------------------------------------------


@app.command()
def cut(
    one: End,
    other: End,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from the first to the second.")] = False,
    directory: Directory = DIRECTORY,
) -> None:
    """Let nothing through between two members, a front and a member, or a member and etcd (needs 'up --proxies')."""
    _say_links(_load(directory).cut(one, other, one_way=one_way))


# A number below zero is no option, but a wrong number.
@app.command(context_settings={"ignore_unknown_options": True})
def slow(
    one: End,
    other: End,
    ms: Annotated[
        int, typer.Argument(help=f"How much later everything arrives, 0 to {SLOW_MS_MAX:,}; 0: no more.")
    ],
    directory: Directory = DIRECTORY,
) -> None:
    """Let everything between two arrive later (needs 'up --proxies')."""
    if not 0 <= ms <= SLOW_MS_MAX:
        raise CommandError(f"MS must be 0 to {SLOW_MS_MAX}, not {ms}", 2)
    _say_links(_load(directory).slow(one, other, ms))


@app.command()
def heal(directory: Directory = DIRECTORY) -> None:
    """Let everything through again, everywhere."""
    _say_links(_load(directory).heal())


def _say_links(links: dict[str, Any]) -> None:
    from tidemark.cli.cluster_status import hurt

    print("\n".join(hurt(links)) or "all links are whole")


# Load --------------------------------------------------------------------------------------------------------------


@app.command()
def load(
    seconds: Annotated[float, typer.Option(min=0, help="How long; 0 is until Ctrl-C.")] = 0,
    stream: Annotated[str, typer.Option(help="Stream to write to; it is made if it is not there.")] = "trial",
    directory: Directory = DIRECTORY,
    as_json: Json = False,
) -> int:
    """Write numbers to a stream, each confirmed, over all members' addresses, and read them back at the end.

    Prints a line a second: how many are confirmed, and the longest time in that second between two confirms, or for how long
    the next one has been waited for. In the end every number must be there once and in order; exit 1 if not. Ctrl-C ends it
    and has all read back; given again, or while nothing runs that could answer, it ends without that.

    In a cluster of several groups a durable queue of each group is written to instead, through the fronts, with AMQP. What
    had to be sent again may be there twice.
    """
    from dataclasses import asdict

    trial = _load(directory)
    if not trial.serves:
        raise CommandError(trial.advice())
    try:
        results = (_load_queues if trial.groups else _load_stream)(trial, stream, seconds, quiet=as_json)
    except CommandError as problem:
        raise CommandError(f"{problem}; {_load(directory).advice()}", problem.code) from None
    if as_json:
        told = {name: asdict(result) for name, result in results.items()}
        print(json.dumps(told if trial.groups else told[stream], indent=2))
    else:
        for name, result in results.items():
            print(f"{name}: {result}" if trial.groups else result)
    if any(result.missing is None for result in results.values()):
        raise CommandError(
            f"ended before all was confirmed and read back; {_load(directory).advice()}",
            1 if any(result.confirmed for result in results.values()) else 130,
        )
    return 0 if all(result.good for result in results.values()) else 1


def _load_stream(trial: Trial, stream: str, seconds: float, *, quiet: bool) -> dict[str, Result]:
    from tidemark.cli.stream_load import StreamLoad

    load = StreamLoad(trial.url, stream, quiet=quiet, hopeless=_hopeless(trial))
    before = signal.signal(signal.SIGINT, lambda *_: load.ending.ask())
    try:
        return {stream: load.run(seconds)}
    finally:
        signal.signal(signal.SIGINT, before)


def _load_queues(trial: Trial, _: str, seconds: float, *, quiet: bool) -> dict[str, Result]:
    import asyncio

    from tidemark.cli.queue_load import QueueLoad

    async def run() -> dict[str, Result]:
        load = QueueLoad(trial.addresses, list(trial.groups), quiet=quiet, hopeless=_hopeless(trial))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, load.ending.ask)
        return await load.run(seconds)

    return asyncio.run(run())


def _hopeless(trial: Trial) -> Callable[[], bool]:
    """Members are killed and started by other calls meanwhile."""
    return lambda: not _load(trial.directory).serves
