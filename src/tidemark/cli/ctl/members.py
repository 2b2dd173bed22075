"""`tidemark ctl members`: the members of a cluster, as the one that is asked knows them."""

from __future__ import annotations

from typing import Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Api, path
from tidemark.cli.ctl.common import Columns, Json, Reverse, Sort, chosen, group, words
from tidemark.cli.output import reveal, show

app = group(
    "Members of a cluster, as the member that is asked knows them. To have one act, see 'ctl member'."
)

COLUMNS = ("name", "state", "role", "leader", "position", "lag", "lag_bytes", "seen_ms", "admin", "why")


@app.command("list")
def list_members(
    context: typer.Context,
    columns: Columns = "",
    sort: Sort = "name",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """Who is there, who leads, who has everything, and how far the others are behind."""
    rows = known(context.obj)
    picked = words(columns)
    rows = chosen(rows, picked, words(sort), reverse=reverse)
    usual = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    show(rows, picked or usual, as_json=as_json)


def known(api: Api) -> list[dict[str, Any]]:
    """One row a member."""
    rows: list[dict[str, Any]] = api.get(path("members"))
    return rows


def rows_of(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a member, from what a member says about itself and its peers."""
    ready, peers = seen.get("ready") or [], {peer["name"]: peer for peer in seen.get("peers") or []}
    names = dict.fromkeys([seen["name"], *filter(None, [seen.get("leader")]), *ready, *peers])
    rows = []
    for name in names:
        peer, me = peers.get(name, {}), name == seen["name"]
        rows.append(
            {
                "name": name,
                "state": seen["state"] if me else None,
                "leader": name == seen.get("leader"),
                "ready": name in ready if ready else None,
                "epoch": seen.get("epoch") if me else None,
                "durable": (seen.get("durable") or {}).get("journal")
                if me
                else (peer.get("acked") or {}).get("journal"),
                "lag": 0 if me and name == seen.get("leader") else peer.get("lag"),
                "unacked_bytes": peer.get("unacked_bytes"),
            }
        )
    return rows


@app.command("show")
def show_member(context: typer.Context, name: str, as_json: Json = False) -> None:
    """What is known of one member."""
    rows = [row for row in known(context.obj) if row["name"] == name]
    if not rows:
        raise CommandError(f"no member '{name}' is known here")
    reveal(rows[0], as_json=as_json)


@app.command("takeovers")
def takeovers(context: typer.Context, as_json: Json = False) -> None:
    """Who led when, as far as this member has seen it: from whom, to whom, why, and how long nobody did."""
    rows = context.obj.get(path("takeovers"))
    show(rows, ("at_ms", "epoch", "from", "to", "took_ms", "why"), as_json=as_json)


@app.command("histories")
def histories(context: typer.Context, as_json: Json = False) -> None:
    """The takeover table: with which sequence each history begins."""
    show(context.obj.get(path("histories")), ("history", "first"), as_json=as_json)
