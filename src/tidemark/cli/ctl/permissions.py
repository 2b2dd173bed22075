"""`tidemark ctl permissions` and `topic-permissions`: what users may do."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.api import path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Columns, Json, Reverse, Sort, User, Vhost, chosen, group, words
from tidemark.cli.output import show

permissions = group("What users may do, as three patterns a virtual host.")
topics = group("Which routing keys users may use with a topic exchange.")

Pattern = Annotated[str, typer.Argument(help="Regular expression for names; '' matches none, '.*' all.")]
OnlyUser = Annotated[str, typer.Option(help="Only this user.", autocompletion=complete.users)]


def _list(
    context: typer.Context,
    kind: str,
    columns: tuple[str, ...],
    user: str,
    wanted: str,
    sort: str,
    reverse: bool,
    as_json: bool,
) -> None:
    rows = context.obj.get(path("users", user, kind) if user else path(kind))
    order = words(sort) or ("user", "vhost")
    show(chosen(rows, words(wanted), order, reverse=reverse), words(wanted) or columns, as_json=as_json)


@permissions.command("list")
def list_permissions(
    context: typer.Context,
    user: OnlyUser = "",
    columns: Columns = "",
    sort: Sort = "",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """Who may do what where."""
    usual = ("user", "vhost", "configure", "write", "read")
    _list(context, "permissions", usual, user, columns, sort, reverse, as_json)


@permissions.command("declare", hidden=True)
@permissions.command("set")
def set_permissions(
    context: typer.Context, user: User, configure: Pattern, write: Pattern, read: Pattern, vhost: Vhost = "/"
) -> None:
    """Let a user configure (declare, delete), write (publish) and read (consume) what matches."""
    body = {"configure": configure, "write": write, "read": read}
    context.obj.put(path("permissions", vhost, user), body)


@permissions.command("delete", hidden=True)
@permissions.command("clear")
def clear_permissions(context: typer.Context, user: User, vhost: Vhost = "/") -> None:
    """Take a user's permissions in a virtual host away."""
    context.obj.delete(path("permissions", vhost, user))


@topics.command("list")
def list_topic_permissions(
    context: typer.Context,
    user: OnlyUser = "",
    columns: Columns = "",
    sort: Sort = "",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """All topic permissions."""
    usual = ("user", "vhost", "exchange", "write", "read")
    _list(context, "topic-permissions", usual, user, columns, sort, reverse, as_json)


@topics.command("declare", hidden=True)
@topics.command("set")
def set_topic_permissions(
    context: typer.Context,
    user: User,
    exchange: Annotated[
        str, typer.Argument(help="Name of the topic exchange.", autocompletion=complete.exchanges)
    ],
    write: Pattern,
    read: Pattern,
    vhost: Vhost = "/",
) -> None:
    """Narrow what a user may publish to and bind from a topic exchange."""
    body = {"exchange": exchange, "write": write, "read": read}
    context.obj.put(path("topic-permissions", vhost, user), body)


@topics.command("delete", hidden=True)
@topics.command("clear")
def clear_topic_permissions(
    context: typer.Context,
    user: User,
    exchange: Annotated[
        str, typer.Option(help="Only of this exchange.", autocompletion=complete.exchanges)
    ] = "",
    vhost: Vhost = "/",
) -> None:
    """Take a user's topic permissions away."""
    query = {"exchange": exchange} if exchange else {}
    context.obj.delete(path("topic-permissions", vhost, user), **query)


GROUPS = {"permissions": permissions, "topic-permissions": topics}
