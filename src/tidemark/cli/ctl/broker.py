"""`tidemark ctl overview`, `nodes`, `whoami`, `open`: the broker as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Refusal, path
from tidemark.cli.ctl.common import Json, Vhost, lister
from tidemark.cli.output import reveal


def overview(context: typer.Context, as_json: Json = False) -> None:
    """What the broker holds, how fast it goes, and whether publishers are blocked."""
    found = context.obj.get(path("overview"))
    if as_json:
        reveal(found, as_json=True)
        return
    facts: dict[str, Any] = {
        "name": found["node"],
        "version": found["product_version"] + ("" if found.get("compiled", True) else " (pure Python)"),
    }
    try:
        node = context.obj.get(path("nodes"))[0]
    except Refusal as problem:
        # Who may see only its own virtual hosts is not told about the machine.
        if problem.status not in (401, 403):
            raise
    else:
        alarms = [word for word in ("mem", "disk_free") if node[f"{word}_alarm"]]
        facts |= {
            "up": f"{node['uptime'] / 1000:.0f} s",
            "memory": f"{node['mem_used'] >> 20} of {node['mem_limit'] >> 20} MiB",
            "alarms": ", ".join(alarms) or "none",
        }
    facts |= {**found["object_totals"], **plain(found["queue_totals"])}
    stats = found.get("message_stats") or {}
    for name, value in stats.items():
        if name.endswith("_details") and value.get("rate"):
            facts[f"{name.removesuffix('_details')}/s"] = round(value["rate"], 1)
    reveal(facts, as_json=False)


def plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Without the details of rates."""
    return {name: value for name, value in facts.items() if not isinstance(value, dict)}


def whoami(context: typer.Context, as_json: Json = False) -> None:
    """Who you are to the broker, and your tags."""
    reveal(context.obj.get(path("whoami")), as_json=as_json)


PAGES = (
    "overview", "queues", "exchanges", "connections", "channels", "streams", "cluster", "pipelines", "users", "vhosts",
    "policies", "limits", "definitions",
)  # fmt: skip
IN_VHOST = ("queues", "exchanges", "streams")


def _pages(incomplete: str) -> list[str]:
    return [page for page in PAGES if page.startswith(incomplete)]


def open_page(
    context: typer.Context,
    page: Annotated[
        str, typer.Argument(help=f"What to look at: {', '.join(PAGES)}.", autocompletion=_pages)
    ] = "overview",
    name: Annotated[
        str, typer.Argument(help="Which one, of queues, exchanges, streams, connections, users or vhosts.")
    ] = "",
    vhost: Vhost = "/",
) -> None:
    """Print the address of the broker's web page, for a browser."""
    if page not in PAGES:
        raise CommandError(f"there is no page '{page}'; there are {', '.join(PAGES)}", 2)
    parts = [] if page == "overview" else [page]
    if name:
        parts += [vhost, name] if page in IN_VHOST else [name]
    print(f"{context.obj.url}/#/" + "/".join(quote(part, safe="") for part in parts))


nodes = lister(
    "nodes",
    (
        "name",
        "running",
        "uptime",
        "mem_used",
        "mem_limit",
        "mem_alarm",
        "disk_free",
        "disk_free_alarm",
        "fd_used",
    ),
    "The machine under the broker: memory, disk, files, alarms.",
    order=("name",),
    by_vhost=False,
)

COMMANDS: dict[str, Callable[..., Any]] = {
    "overview": overview,
    "status": overview,
    "nodes": nodes,
    "whoami": whoami,
    "open": open_page,
}
