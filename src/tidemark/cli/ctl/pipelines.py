"""`tidemark ctl pipelines`: pipelines that report to this broker."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.ctl.common import Json, Rows, group, lister
from tidemark.cli.output import reveal

pipelines = group("Pipelines that report to this broker. To run one, see 'pipeline'.")

COLUMNS = ("name", "host", "state", "sinks", "rows", "rows_per_s", "lag", "at_ms")


def summed(rows: Rows) -> Rows:
    """With the sums over a pipeline's sinks as columns."""
    flat = []
    for row in rows:
        sinks = row.get("sinks") or []
        sums = {
            name: sum(found) if (found := [one[key] for one in sinks if one.get(key) is not None]) else None
            for name, key in (("rows", "rows"), ("rows_per_s", "rows_per_s"), ("lag", "lag_rows"))
        }
        names = [str(one.get("name")) for one in sinks] if sinks and isinstance(sinks[0], dict) else sinks
        flat.append({**sums, **row, "sinks": names})
    return flat


pipelines.command("list")(
    lister(
        "pipelines", COLUMNS, "All pipelines: where they run, how fast, how far behind.",
        order=("name",), change=summed, by_vhost=False,
    )
)  # fmt: skip


@pipelines.command("show")
def show_pipeline(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    as_json: Json = False,
) -> None:
    """Everything that a pipeline reports."""
    rows = [row for row in context.obj.get(path("pipelines")) if row["name"] == name]
    if not rows:
        raise CommandError(f"no pipeline '{name}' reports here")
    for row in rows:
        reveal(row, as_json=as_json)


GROUPS = {"pipelines": pipelines}
