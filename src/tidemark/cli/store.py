"""`tidemark store`: look at a data directory without a broker. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.errors import StoreForeign

if TYPE_CHECKING:
    from tidemark.runtime.disk import FileDisk

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
    """How the last broker left the store: empty, clean or dirty; its identity and generation."""
    from tidemark.store.status import read_status

    with _opened(directory) as disk:
        found = read_status(disk)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    for name, value in {"state": str(found), "store": found.store, "generation": found.generation}.items():
        print(f"{name:<11} {value}")
