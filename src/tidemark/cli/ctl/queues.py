"""`tidemark ctl queues`: queues and their messages."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.api import path
from tidemark.cli.ctl.common import Arguments, Json, Queue, Vhost, facts, group, lister, parsed

queues = group("Queues and their messages.")

COLUMNS = (
    "vhost",
    "name",
    "type",
    "group",
    "durable",
    "messages_ready",
    "messages_unacknowledged",
    "consumers",
)
queues.command("list")(lister("queues", COLUMNS, "All queues with their counts."))


@queues.command("show")
def show_queue(context: typer.Context, name: Queue, vhost: Vhost = "/", as_json: Json = False) -> None:
    """Everything about one queue."""
    facts(context, path("queues", vhost, name), as_json=as_json)


@queues.command("declare")
def declare_queue(
    context: typer.Context,
    name: Queue,
    vhost: Vhost = "/",
    kind: Annotated[
        str, typer.Option("--type", help="classic, quorum or stream.", show_default="the virtual host's")
    ] = "",
    transient: Annotated[bool, typer.Option("--transient", help="It need not survive a restart.")] = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it when its last consumer has gone.")
    ] = False,
    arguments: Arguments = "{}",
) -> None:
    """Create a queue, or see that it is there with the same properties."""
    given = parsed(arguments, "--arguments")
    if kind:
        given["x-queue-type"] = kind
    body = {"durable": not transient, "auto_delete": auto_delete, "arguments": given}
    context.obj.put(path("queues", vhost, name), body)


@queues.command("purge")
def purge_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Delete all messages that are ready in a queue."""
    context.obj.delete(path("queues", vhost, name, "contents"))


@queues.command("lock")
def lock_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Give consumers nothing more from a queue; publishes are still accepted."""
    context.obj.put(path("queues", vhost, name, "lock"), {})


@queues.command("unlock")
def unlock_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Let the consumers of a locked queue go on."""
    context.obj.delete(path("queues", vhost, name, "lock"))


@queues.command("delete")
def delete_queue(
    context: typer.Context,
    name: Queue,
    vhost: Vhost = "/",
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no messages.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if it has no consumers.")] = False,
) -> None:
    """Delete a queue with its messages."""
    query = {"if-empty": str(if_empty).lower(), "if-unused": str(if_unused).lower()}
    context.obj.delete(path("queues", vhost, name), **query)


GROUPS = {"queues": queues}
