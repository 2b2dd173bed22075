"""`tidemark cluster`: a cluster on this machine, to try it by hand: start it, kill it, freeze it, cut it, watch it.

The processes and their directory are `cli.trial`; here are the words. A cluster for work is `tidemark serve` with
the settings of its section `cluster`, on machines of its own; `cluster status` shows only what was started here.
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.output import show

if TYPE_CHECKING:
    from rich.table import Table

    from tidemark.cli.trial import Seen, Trial

app = typer.Typer(
    help="A cluster on this machine, to try it: start it, kill members, freeze them, cut links, watch.",
    no_args_is_help=True,
)

DIRECTORY = Path("tidemark-cluster")
NODES_MAX = 9
WATCH_S = 0.5
UP_COLUMNS = ("name", "state", "amqp", "admin", "peer", "pid")
STATUS_COLUMNS = (
    "name", "state", "epoch", "leader", "ready", "catalog", "journal", "lag", "connections", "pid", "why",
)  # fmt: skip

Directory = Annotated[
    Path, typer.Option("--dir", envvar="TIDEMARK_TRIAL_DIR", help="Directory of the cluster.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of a member, such as n1.")]
End = Annotated[str, typer.Argument(help="Name of a member, or etcd.")]


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
        int | None, typer.Option(min=1, max=NODES_MAX, help="How many members.  [default: 3]")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="How members follow one another.  [default: standby]")
    ] = None,
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
    starts the same cluster.
    """
    from tidemark.cli.serve import parse_assignments
    from tidemark.cli.trial import STATE_FILE, Trial

    if (directory / STATE_FILE).exists():
        trial = Trial.load(directory)
        asked = {"--nodes": nodes, "--mode": mode, "--etcd": etcd, "--proxies": proxies, "--set": assignments}
        is_now: dict[str, Any] = {"--nodes": len(trial.members), "--mode": trial.mode}
        is_now |= {"--etcd": trial.etcd_address, "--proxies": trial.control is not None}
        for word, value in asked.items():
            if value and is_now.get(word) != value:
                raise CommandError(
                    f"{directory} holds a cluster already, with another {word}; leave that out, choose another --dir, "
                    f"or remove it: tidemark cluster down --remove --dir {directory}",
                    2,
                )
    else:
        trial = Trial.create(
            directory,
            nodes=nodes or 3,
            mode=(mode or Mode.standby).value,
            etcd=etcd,
            proxies=proxies,
            settings=parse_assignments(assignments or []),
        )
    try:
        trial.up()
        seen = trial.wait_whole()
    except BaseException:
        trial.down()
        raise
    show([_up_row(one) for one in seen], UP_COLUMNS, as_json=as_json)
    if not as_json:
        print(_hints(trial, directory))
    if foreground:
        try:
            _watch(trial)
        finally:
            trial.down()


def _up_row(seen: Seen) -> dict[str, Any]:
    place = seen.place
    return {
        "name": seen.name,
        "state": seen.state,
        "amqp": place.amqp,
        "admin": place.admin,
        "peer": place.peer,
        "pid": seen.pid,
    }


def _hints(trial: Trial, directory: Path) -> str:
    where = "" if directory == DIRECTORY else f" --dir {directory}"
    leader = next(iter(trial.members))
    return (
        f"\nClients may use any of the AMQP addresses, user guest, password guest. Logs are in {trial.directory}.\n"
        f"Try it: 'tidemark cluster load{where}' in one terminal, 'tidemark cluster status --watch{where}' in another,\n"
        f"        then 'tidemark cluster kill {leader}{where}' and 'tidemark cluster start {leader}{where}'."
    )


@app.command()
def down(
    directory: Directory = DIRECTORY,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the directory and all it holds.")] = False,
) -> None:
    """Stop all members, then the proxies and etcd. What they hold stays, unless --remove is given."""
    import shutil

    trial = _load(directory)
    stubborn = trial.down()
    if remove:
        shutil.rmtree(trial.directory)
    if stubborn:
        raise CommandError(f"{', '.join(stubborn)} did not stop in time and had to be killed")


@app.command()
def status(
    directory: Directory = DIRECTORY,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """What every member is, as it says itself: state, epoch, leader, ends of its logs, lag, connections."""
    trial = _load(directory)
    if watch and not as_json:
        _watch(trial)
        return
    while True:
        show(_rows(trial.look()), STATUS_COLUMNS, as_json=as_json)
        if not watch:
            return
        time.sleep(WATCH_S)


def _rows(seen: list[Seen]) -> list[dict[str, Any]]:
    """One row a member. Its lag is what the leader has in its journal and it has not on its disk, in records."""
    furthest = max((end for one in seen if (end := one.end("ends")) is not None), default=None)
    for one in seen:
        if one.state in ("active", "recovering"):
            furthest = one.end("ends")
    rows = []
    for one in seen:
        status, mine = one.status, one.end()
        ready = status.get("ready")
        durable = status.get("durable") or {}
        rows.append(
            {
                "name": one.name,
                "state": one.state,
                "epoch": status.get("epoch"),
                "leader": status.get("leader"),
                "ready": one.name in ready if isinstance(ready, list) else None,
                "catalog": durable.get("catalog"),
                "journal": mine,
                "lag": max(0, furthest - mine) if furthest is not None and mine is not None else None,
                "connections": status.get("connections"),
                "pid": one.pid,
                "why": status.get("why") or None,
                **({"status": status} if status else {}),
            }
        )
    return rows


def _watch(trial: Trial) -> None:
    from rich.live import Live

    try:
        with Live(_drawn(_rows(trial.look())), auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_S)
                # Members are killed and started by other calls meanwhile.
                trial.processes = _load(trial.directory).processes
                live.update(_drawn(_rows(trial.look())), refresh=True)
    except KeyboardInterrupt:
        return


COLOURS = {"active": "bold green", "ready": "green", "catch-up": "yellow", "recovering": "yellow"}


def _drawn(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from tidemark.cli.output import cell

    drawn = Table(*STATUS_COLUMNS, box=None, pad_edge=False)
    for row in rows:
        texts = [Text(cell(row[column])) for column in STATUS_COLUMNS]
        texts[1].stylize(COLOURS.get(row["state"], "red"))
        drawn.add_row(*texts)
    return drawn


# One member --------------------------------------------------------------------------------------------------------


@app.command()
def kill(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGKILL to a member: nothing is flushed, nothing is said."""
    _load(directory).kill(node)


@app.command()
def freeze(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGSTOP to a member: it stands still and does not know it."""
    _load(directory).freeze(node)


@app.command()
def thaw(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGCONT to a member that was frozen."""
    _load(directory).thaw(node)


@app.command()
def stop(node: Node, directory: Directory = DIRECTORY) -> None:
    """SIGTERM to a member, and wait for it to end."""
    if not _load(directory).stop(node):
        raise CommandError(f"{node} did not stop in time and had to be killed")


@app.command()
def start(node: Node, directory: Directory = DIRECTORY) -> None:
    """Start a member that was killed or stopped, on the same data and ports."""
    _load(directory).start(node)


@app.command()
def join(directory: Directory = DIRECTORY) -> None:
    """Start one more member, with an empty store."""
    print(_load(directory).join())


# Links -------------------------------------------------------------------------------------------------------------


@app.command()
def cut(
    one: End,
    other: End,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from the first to the second.")] = False,
    directory: Directory = DIRECTORY,
) -> None:
    """Let nothing through between two members, or a member and etcd (needs 'up --proxies')."""
    _say_links(_load(directory).cut(one, other, one_way=one_way))


@app.command()
def slow(
    one: End,
    other: End,
    ms: Annotated[int, typer.Argument(min=0, max=60_000, help="How much later everything arrives.")],
    directory: Directory = DIRECTORY,
) -> None:
    """Let everything between two arrive later (needs 'up --proxies')."""
    _say_links(_load(directory).slow(one, other, ms))


@app.command()
def heal(directory: Directory = DIRECTORY) -> None:
    """Let everything through again, everywhere."""
    _say_links(_load(directory).heal())


def _say_links(links: dict[str, Any]) -> None:
    for sender, receiver in links["cut"]:
        print(f"{sender} → {receiver}  cut")
    for sender, receiver, ms in links["slow"]:
        print(f"{sender} → {receiver}  {ms} ms later")
    if not links["cut"] and not links["slow"]:
        print("all links are whole")


# Load --------------------------------------------------------------------------------------------------------------


@app.command()
def load(
    seconds: Annotated[float, typer.Option(min=0, help="How long; 0 is until Ctrl-C.")] = 0,
    stream: Annotated[str, typer.Option(help="Stream to write to; it is made if it is not there.")] = "trial",
    directory: Directory = DIRECTORY,
    as_json: Json = False,
) -> int:
    """Write numbers to a stream, each confirmed, over all members' addresses, and read them back at the end.

    Prints a line a second: how many are confirmed, and the longest time in that second between two confirms. In the
    end every number must be there once and in order; exit 1 if not.
    """
    trial = _load(directory)
    result = _write(trial.url, stream, seconds, quiet=as_json)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"confirmed {result['confirmed']:,}, missing {result['missing']:,}, twice or out of order "
            f"{result['wrong']:,}; longest time without a confirm {result['longest_gap_ms']:,} ms"
        )
    return 1 if result["missing"] or result["wrong"] else 0


def _write(url: str, name: str, seconds: float, *, quiet: bool) -> dict[str, int]:
    import secrets
    import signal
    import threading

    import tidemark.client as client

    run = secrets.token_hex(4).encode()
    number, longest, longest_now = 0, 0.0, 0.0
    # Not an exception in the middle of a write: that one shall be answered, too.
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        with client.connect(url, timeout=60) as db:
            stream = db.stream(name, create=True, key="none")
            producer = db.producer(f"load {run.decode()}")
            began = last = said = time.monotonic()
            while not asked.is_set() and (not seconds or last - began < seconds):
                try:
                    producer.put(name, None, b"%s %d" % (run, number + 1))
                except client.Unconfirmed:
                    producer.settle()
                number += 1
                now = time.monotonic()
                longest_now, last = max(longest_now, now - last), now
                if now - said >= 1:
                    longest = max(longest, longest_now)
                    if not quiet:
                        words = f"confirmed {number:>10,}  longest wait {longest_now * 1000:>6,.0f} ms"
                        print(f"{now - began:6.0f} s  {words}", flush=True)
                    said, longest_now = now, 0.0
            longest = max(longest, longest_now)
            found = [int(row.value[len(run) :]) for row in stream.snapshot() if row.value.startswith(run)]
    finally:
        signal.signal(signal.SIGINT, before)
    due = range(1, number + 1)
    return {
        "confirmed": number,
        "missing": len(set(due) - set(found)),
        "wrong": sum(one >= other for one, other in pairwise(found)),
        "longest_gap_ms": round(longest * 1000),
    }
