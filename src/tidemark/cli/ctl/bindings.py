"""`tidemark ctl bindings`: which exchange leads where."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Arguments, Vhost, group, lister, parsed

bindings = group("Which exchange leads where.")

COLUMNS = ("vhost", "source", "destination_type", "destination", "routing_key", "arguments")
ORDER = ("vhost", "source", "destination_type", "destination", "routing_key")
bindings.command("list")(lister("bindings", COLUMNS, "All bindings.", order=ORDER))


class To(StrEnum):
    queue = "queue"
    exchange = "exchange"


Source = Annotated[str, typer.Argument(help="Exchange that leads there.", autocompletion=complete.exchanges)]
Destination = Annotated[
    str, typer.Argument(help="Queue or exchange it leads to.", autocompletion=complete.queues)
]
Kind = Annotated[To, typer.Option("--to", help="What the destination is.")]
Key = Annotated[str, typer.Option("--key", help="Routing key, or pattern of a topic exchange.")]


def _place(vhost: str, source: str, kind: To, destination: str, *rest: str) -> str:
    return path("bindings", vhost, "e", source, kind.value[0], destination, *rest)


@bindings.command("declare")
def declare_binding(
    context: typer.Context,
    source: Source,
    destination: Destination,
    key: Key = "",
    to: Kind = To.queue,
    vhost: Vhost = "/",
    arguments: Arguments = "{}",
) -> None:
    """Bind a queue or an exchange to an exchange."""
    body = {"routing_key": key, "arguments": parsed(arguments, "--arguments")}
    context.obj.post(_place(vhost, source, to, destination), body)


@bindings.command("delete")
def delete_binding(
    context: typer.Context,
    source: Source,
    destination: Destination,
    key: Key = "",
    to: Kind = To.queue,
    vhost: Vhost = "/",
    arguments: Annotated[
        str | None,
        typer.Option(help="Which of those with this key, as a JSON object.", show_default="the only one"),
    ] = None,
) -> None:
    """Remove a binding."""
    wanted: Any = None if arguments is None else parsed(arguments, "--arguments")
    rows = context.obj.get(_place(vhost, source, to, destination))
    match = [
        row for row in rows if row["routing_key"] == key and (wanted is None or row["arguments"] == wanted)
    ]
    if not match:
        raise CommandError(f"no binding of '{destination}' to '{source}' has the key '{key}'")
    if len(match) > 1:
        raise CommandError(
            f"{len(match)} bindings of '{destination}' to '{source}' have the key '{key}'; say which with --arguments",
            2,
        )
    context.obj.delete(_place(vhost, source, to, destination, match[0]["properties_key"]))


GROUPS = {"bindings": bindings}
