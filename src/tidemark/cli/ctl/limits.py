"""`tidemark ctl limits`: how much a virtual host or a user may use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Api, path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Json, group
from tidemark.cli.output import show

limits = group("How much a virtual host or a user may use.")

OF_VHOST = ("max-connections", "max-queues")
OF_USER = ("max-connections", "max-channels")

ForVhost = Annotated[
    str, typer.Option("--vhost", help="Of this virtual host.", autocompletion=complete.vhosts)
]
ForUser = Annotated[str, typer.Option("--user", help="Of this user.", autocompletion=complete.users)]


def _names(context: typer.Context, incomplete: str) -> list[str]:
    known = OF_USER if context.params.get("user") else OF_VHOST
    return [name for name in known if name.startswith(incomplete)]


Limit = Annotated[
    str,
    typer.Argument(
        help=f"Of a virtual host {' or '.join(OF_VHOST)}, of a user {' or '.join(OF_USER)}.",
        autocompletion=_names,
    ),
]


@limits.command("list")
def list_limits(
    context: typer.Context, vhost: ForVhost = "", user: ForUser = "", as_json: Json = False
) -> None:
    """All limits of virtual hosts and users, or of one."""
    rows: list[dict[str, Any]] = []
    if not user:
        rows += _rows(context.obj, "vhost", vhost)
    if not vhost:
        rows += _rows(context.obj, "user", user)
    show(rows, ("of", "name", "limit", "value"), as_json=as_json)


def _rows(api: Api, of: str, name: str) -> list[dict[str, Any]]:
    place = path(f"{of}-limits", name) if name else path(f"{of}-limits")
    return [
        {"of": of, "name": one[of], "limit": limit, "value": value}
        for one in sorted(api.get(place), key=lambda one: str(one[of]))
        for limit, value in sorted(one["value"].items())
    ]


@limits.command("declare", hidden=True)
@limits.command("set")
def set_limit(
    context: typer.Context,
    limit: Limit,
    value: Annotated[int, typer.Argument(help="The most; negative is no limit, 0 is none at all.")],
    vhost: ForVhost = "",
    user: ForUser = "",
) -> None:
    """Set a limit of a virtual host or a user. What is over it already stays."""
    context.obj.put(_place(limit, vhost, user), {"value": value})


@limits.command("delete", hidden=True)
@limits.command("clear")
def clear_limit(context: typer.Context, limit: Limit, vhost: ForVhost = "", user: ForUser = "") -> None:
    """Remove a limit."""
    context.obj.delete(_place(limit, vhost, user))


def _place(limit: str, vhost: str, user: str) -> str:
    if bool(vhost) == bool(user):
        raise CommandError("say whose limit: either --vhost or --user", 2)
    known = OF_VHOST if vhost else OF_USER
    if limit not in known:
        owner = "virtual host" if vhost else "user"
        raise CommandError(f"a {owner} has no limit '{limit}'; it has {' and '.join(known)}", 2)
    return path("vhost-limits", vhost, limit) if vhost else path("user-limits", user, limit)


GROUPS = {"limits": limits}
