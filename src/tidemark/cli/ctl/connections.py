"""`tidemark ctl connections`, `channels` and `consumers`: who is connected, and what for."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Json, Rows, facts, group, lister

connections = group("Who is connected.")
channels = group("Channels of connections.")
consumers = group("Who is being given messages.")

Connection = Annotated[
    str, typer.Argument(help="Its name, as in the list.", autocompletion=complete.connections)
]
Channel = Annotated[str, typer.Argument(help="Its name, as in the list.", autocompletion=complete.channels)]
Reason = Annotated[str, typer.Option(help="What the client is told.")]

connections.command("list")(
    lister(
        "connections",
        ("name", "user", "vhost", "state", "channels", "ssl", "recv_oct", "send_oct"),
        "All connections that you may see.",
        order=("name",),
        by_vhost=False,
    )
)


@connections.command("show")
def show_connection(context: typer.Context, name: Connection, as_json: Json = False) -> None:
    """Everything about one connection."""
    facts(context, path("connections", name), as_json=as_json)


@connections.command("delete", hidden=True)
@connections.command("close")
def close_connection(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="Its name, as in the list.", show_default=False, autocompletion=complete.connections
        ),
    ] = "",
    user: Annotated[
        str, typer.Option("--of", help="All of this user instead.", autocompletion=complete.users)
    ] = "",
    reason: Reason = "closed by an operator",
) -> None:
    """Close a connection, or all of a user; its client is told 320 CONNECTION_FORCED."""
    if bool(name) == bool(user):
        raise CommandError("say which: the name of a connection, or --of USER", 2)
    place = path("connections", name) if name else path("connections", "username", user)
    context.obj.call("DELETE", place, headers={"X-Reason": reason})


channels.command("list")(
    lister(
        "channels",
        (
            "name", "user", "vhost", "state", "confirm", "prefetch_count", "messages_unacknowledged",
            "messages_unconfirmed", "consumer_count",
        ),
        "All channels that you may see.",
        order=("name",),
        by_vhost=False,
    )
)  # fmt: skip


@channels.command("show")
def show_channel(context: typer.Context, name: Channel, as_json: Json = False) -> None:
    """Everything about one channel."""
    facts(context, path("channels", name), as_json=as_json)


@channels.command("delete", hidden=True)
@channels.command("close")
def close_channel(context: typer.Context, name: Channel, reason: Reason = "closed by an operator") -> None:
    """Close the connection of a channel: a client cannot be made to give up one channel alone."""
    found = context.obj.get(path("channels", name))
    place = path("connections", found["connection_details"]["name"])
    context.obj.call("DELETE", place, headers={"X-Reason": reason})


def _flat(rows: Rows) -> Rows:
    """With the queue's name and virtual host as columns."""
    return [
        {
            **row,
            "vhost": row["queue"]["vhost"],
            "queue": row["queue"]["name"],
            "channel": row.get("channel_details", {}).get("name"),
        }
        for row in rows
    ]


consumers.command("list")(
    lister(
        "consumers",
        ("vhost", "queue", "consumer_tag", "ack_required", "prefetch_count", "active", "channel"),
        "All consumers.",
        order=("vhost", "queue", "consumer_tag"),
        change=_flat,
    )
)


@consumers.command("delete", hidden=True)
@consumers.command("close")
def close_consumer(
    context: typer.Context,
    tag: Annotated[str, typer.Argument(help="Its tag, as in the list.")],
    queue: Annotated[str, typer.Option(help="Only of this queue.", autocompletion=complete.queues)] = "",
    reason: Reason = "closed by an operator",
) -> None:
    """Close the connection of a consumer: what it had and did not acknowledge goes back to the queue."""
    rows = [
        row
        for row in context.obj.get(path("consumers"))
        if row["consumer_tag"] == tag and queue in ("", row["queue"]["name"])
    ]
    names = {row["channel_details"]["connection_name"] for row in rows}
    if not names:
        raise CommandError(f"no consumer has the tag '{tag}'")
    if len(names) > 1:
        raise CommandError(f"{len(rows)} consumers have the tag '{tag}'; say which with --queue", 2)
    context.obj.call("DELETE", path("connections", names.pop()), headers={"X-Reason": reason})


GROUPS = {"connections": connections, "channels": channels, "consumers": consumers}
