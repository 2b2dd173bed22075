"""`tidemark store`: look at a data directory without a broker. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import details, table
from tidemark.errors import StoreError, StoreForeign, StoreLocked

if TYPE_CHECKING:
    from tidemark.model.peers import View
    from tidemark.runtime.disk import FileDisk
    from tidemark.store.best import StoreFacts

app = typer.Typer(help="Look at a data directory that no broker has open.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Data directory of a broker that is stopped.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@contextmanager
def _opened(directory: Path) -> Iterator[FileDisk]:
    from tidemark.runtime.disk import FileDisk

    if not directory.is_dir():
        raise StoreForeign(path=str(directory), problem="there is no such directory")
    disk = FileDisk(directory)
    try:
        yield disk
    finally:
        disk.close()


@app.command()
def check(directory: Directory, as_json: Json = False) -> int:
    """Verify every record and say what is wrong, with queue, file and offset. Exit 1 if anything is."""
    from tidemark.store.check import CheckSummary, check_store

    summary = CheckSummary()
    with _opened(directory) as disk:
        findings = list(check_store(disk, summary=summary))
    if as_json:
        print(
            json.dumps({"findings": [asdict(one) for one in findings], "checked": asdict(summary)}, indent=2)
        )
    else:
        for finding in findings:
            print(finding)
        torn = f", {summary.torn} torn tail (unconfirmed, will be cut)" if summary.torn else ""
        print(
            f"{len(findings)} problems in {summary.records} records, {summary.frames} frames, "
            f"{summary.segments} segments, {summary.bytes} bytes{torn}"
        )
    return 1 if findings else 0


@app.command()
def status(directory: Directory, as_json: Json = False) -> None:
    """How the last broker left the store: empty, clean or dirty; its identity and generation; its part in a cluster."""
    from tidemark.store.status import read_status

    with _opened(directory) as disk:
        found = read_status(disk)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    details(
        {
            "state": str(found),
            "store": found.store,
            "generation": found.generation,
            "cluster": found.cluster or "none",
            "epoch": found.epoch,
            "role": found.role,
        }
    )


@app.command()
def best(
    directories: Annotated[list[Path], typer.Argument(help="Data directories of the members, all stopped.")],
    missing_ok: Annotated[
        bool,
        typer.Option(
            "--missing-ok", help="Name the best of those that can be read, though another may hold more."
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """After a crash of all members: rank their data directories and say which member to promote. Exit 1 if none.

    None is named while one of them is missing, cannot be read or is in use: it may hold more than all others.
    """
    from tidemark.store.best import rank

    ranking = rank([_facts(directory) for directory in directories], missing_ok=missing_ok)
    views = [view for view in map(_view, directories) if view is not None]
    view = max(views, key=lambda one: one.revision, default=None)
    rows = [
        {
            "directory": one.path,
            "cluster": one.status.cluster if as_json else one.status.cluster[:8],
            "epoch": one.status.epoch,
            "role": one.status.role,
            "journal": one.ends.journal,
            "catalog": one.ends.catalog,
            "state": "unknown" if one.unread else one.status.state,
            "note": one.problem,
        }
        for one in ranking.stores
    ]
    if as_json:
        known = (
            None if view is None else {"epoch": view.epoch, "leader": view.leader, "ready": list(view.ready)}
        )
        chosen = ranking.best.path if ranking.best is not None else None
        print(
            json.dumps({"stores": rows, "best": chosen, "verdict": ranking.verdict, "view": known}, indent=2)
        )
        return 0 if ranking.best is not None else 1
    print(table(rows, list(rows[0])))
    print(f"\n{ranking.verdict}.")
    if view is not None:
        print(
            f"The newest view that they know: epoch {view.epoch}, {view.leader} led, ready {', '.join(view.ready)}."
        )
    if ranking.best is None:
        return 1
    print(
        "Start all members and promote that one: tidemark ctl --url http://ITS-ADMIN-ADDRESS member promote"
    )
    return 0


def _facts(directory: Path) -> StoreFacts:
    """What a directory says about itself; or why it says nothing."""
    from tidemark.store.best import read_store, unread

    try:
        with _opened(directory) as disk:
            return read_store(disk, str(directory))
    except StoreLocked as error:
        return unread(str(directory), f"in use by process {error.pid}" if error.pid else "in use")
    except StoreForeign as error:
        return unread(str(directory), error.problem)
    except StoreError as error:
        return unread(str(directory), str(error))
    except OSError as error:
        return unread(str(directory), (error.strerror or str(error)).lower())


def _view(directory: Path) -> View | None:
    """The newest view that a member without an etcd knew."""
    from tidemark.member.views import read_view

    try:
        with _opened(directory) as disk:
            return read_view(disk)
    except (StoreError, ValueError, OSError):
        return None
