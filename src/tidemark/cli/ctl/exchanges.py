"""`tidemark ctl exchanges`: where messages are published."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.api import path
from tidemark.cli.ctl.common import Arguments, Exchange, Json, Vhost, facts, group, lister, parsed

exchanges = group("Where messages are published.")

COLUMNS = ("vhost", "name", "type", "durable", "auto_delete", "internal")
exchanges.command("list")(lister("exchanges", COLUMNS, "All exchanges."))


def in_path(name: str) -> str:
    """The default exchange has an empty name, which no path can hold; there it goes by this one."""
    return name or "amq.default"


@exchanges.command("show")
def show_exchange(context: typer.Context, name: Exchange, vhost: Vhost = "/", as_json: Json = False) -> None:
    """Everything about one exchange; '' is the default exchange."""
    facts(context, path("exchanges", vhost, in_path(name)), as_json=as_json)


@exchanges.command("declare")
def declare_exchange(
    context: typer.Context,
    name: Exchange,
    kind: Annotated[str, typer.Option("--type", help="direct, fanout, topic or headers.")] = "direct",
    vhost: Vhost = "/",
    transient: Annotated[bool, typer.Option("--transient", help="It need not survive a restart.")] = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it when its last binding has gone.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Clients may not publish to it, exchanges may.")
    ] = False,
    arguments: Arguments = "{}",
) -> None:
    """Create an exchange, or see that it is there with the same properties."""
    body = {
        "type": kind,
        "durable": not transient,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": parsed(arguments, "--arguments"),
    }
    context.obj.put(path("exchanges", vhost, name), body)


@exchanges.command("delete")
def delete_exchange(
    context: typer.Context,
    name: Exchange,
    vhost: Vhost = "/",
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")] = False,
) -> None:
    """Delete an exchange with its bindings."""
    context.obj.delete(path("exchanges", vhost, name), **{"if-unused": str(if_unused).lower()})


GROUPS = {"exchanges": exchanges}
