"""`tidemark ctl vhosts`: virtual hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemark.cli.api import path
from tidemark.cli.ctl.common import Json, VhostName, facts, group, lister

vhosts = group("Virtual hosts: each has its own exchanges, queues and permissions.")

COLUMNS = ("name", "messages", "messages_ready", "messages_unacknowledged", "description")
vhosts.command("list")(lister("vhosts", COLUMNS, "All virtual hosts that you may see.", by_vhost=False))


@vhosts.command("show")
def show_vhost(context: typer.Context, name: VhostName, as_json: Json = False) -> None:
    """Everything about one virtual host."""
    facts(context, path("vhosts", name), as_json=as_json)


@vhosts.command("declare", hidden=True)
@vhosts.command("add")
def add_vhost(
    context: typer.Context,
    name: VhostName,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    tags: Annotated[str, typer.Option(help="Words with commas.")] = "",
    default_queue_type: Annotated[
        str, typer.Option(help="Type of queues that are declared without one.", show_default="classic")
    ] = "",
) -> None:
    """Create a virtual host; you get all permissions in it."""
    body: dict[str, Any] = {"description": description}
    if tags:
        body["tags"] = tags
    if default_queue_type:
        body["default_queue_type"] = default_queue_type
    context.obj.put(path("vhosts", name), body)


@vhosts.command("delete")
def delete_vhost(context: typer.Context, name: VhostName) -> None:
    """Delete a virtual host with all queues and messages in it."""
    context.obj.delete(path("vhosts", name))


GROUPS = {"vhosts": vhosts}
