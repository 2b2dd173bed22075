"""`tidemark ctl streams`, `marks` and `pins`: what streams hold, how far consumers are, what is kept for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemark.cli.api import Api, path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import (
    AnyVhost,
    Arguments,
    Columns,
    Json,
    Reverse,
    Sort,
    Stream,
    Vhost,
    chosen,
    facts,
    group,
    lister,
    parsed,
    where,
    words,
)
from tidemark.cli.output import show

streams = group("Streams: what they hold, how far consumers are, what is pinned. See also 'stream'.")
marks = group("How far the consumers of streams have come.")
pins = group("Snapshots of streams that are kept under a name.")
lists = group("The same lists by another name: list streams, list marks, list pins.")

COUNTS = ("live", "live_bytes", "tombstones", "held", "held_bytes", "memory_bytes")
COLUMNS = ("vhost", "name", "key", "shards", *COUNTS, "boundary", "pins", "marks", "consumers")
MARKS = ("vhost", "stream", "consumer", "sequence", "behind", "registered", "expired")
LAG = (
    "vhost",
    "stream",
    "consumer",
    "sequence",
    "behind",
    "keys_behind",
    "rate",
    "eta_s",
    "registered",
    "expired",
)
PINS = ("vhost", "stream", "name", "sequence", "lease_until_ms", "messages_kept", "bytes_kept")

OnlyStream = Annotated[str, typer.Option(help="Only of this stream.", autocompletion=complete.streams)]
Consumer = Annotated[str, typer.Argument(help="Name of the consumer.")]

_list_streams = lister("streams", COLUMNS, "All streams with their counts.")
streams.command("list")(_list_streams)
lists.command("streams")(_list_streams)


@streams.command("show")
def show_stream(context: typer.Context, name: Stream, vhost: Vhost = "/", as_json: Json = False) -> None:
    """Everything about one stream."""
    facts(context, path("streams", vhost, name), as_json=as_json)


@streams.command("declare")
def declare_stream(
    context: typer.Context,
    name: Stream,
    key: Annotated[
        str, typer.Option(help="none, routing-key, message-id, header:<name>, explicit or log.")
    ] = "none",
    shards: Annotated[int, typer.Option(min=1, help="Parts into which keys are spread; may grow.")] = 1,
    arguments: Arguments = "{}",
    vhost: Vhost = "/",
) -> None:
    """Create a stream, or see that it is there with the same properties; more shards make it grow."""
    # A client that puts brings its keys; for publishers that is a stream without.
    source = "none" if key == "explicit" else key
    given = {"x-stream-key": source, "x-stream-shards": shards, **parsed(arguments, "--arguments")}
    context.obj.put(path("streams", vhost, name), {"arguments": given})


@streams.command("delete")
def delete_stream(context: typer.Context, name: Stream, vhost: Vhost = "/") -> None:
    """Delete a stream with everything in it, its marks and its pins."""
    context.obj.delete(path("streams", vhost, name))


@streams.command("purge")
def purge_stream(context: typer.Context, name: Stream, vhost: Vhost = "/") -> None:
    """End all that is in a stream; consumers that come back are told to start over."""
    context.obj.delete(path("queues", vhost, name, "contents"))


def _of_streams(api: Api, kind: str, vhost: str, stream: str) -> Any:
    return api.get(path("streams", vhost or "/", stream, kind) if stream else where(kind, vhost))


@streams.command("lag")
def lag(
    context: typer.Context,
    stream: Annotated[
        str, typer.Argument(help="Only of this stream.", show_default=False, autocompletion=complete.streams)
    ] = "",
    vhost: AnyVhost = "",
    columns: Columns = "",
    sort: Sort = "keys_behind",
    reverse: Reverse = True,
    as_json: Json = False,
) -> None:
    """How far consumers are behind: in sequences, in keys that they have to read, and when they will be there."""
    rows = _of_streams(context.obj, "marks", vhost, stream)
    order = [name for name in words(sort) if name != "keys_behind" or any(name in row for row in rows)]
    rows = chosen(rows, words(columns), order or ["behind"] if rows else [], reverse=reverse)
    show(rows, words(columns) or LAG, as_json=as_json)


@lists.command("marks")
@streams.command("marks")
@marks.command("list")
def list_marks(
    context: typer.Context,
    stream: OnlyStream = "",
    vhost: AnyVhost = "",
    columns: Columns = "",
    sort: Sort = "",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """How far the consumers of streams are, and how far behind."""
    rows = _of_streams(context.obj, "marks", vhost, stream)
    rows = chosen(rows, words(columns), words(sort) or ("vhost", "stream", "consumer"), reverse=reverse)
    show(rows, words(columns) or MARKS, as_json=as_json)


@marks.command("reset")
def reset_mark(
    context: typer.Context,
    stream: Stream,
    consumer: Consumer,
    to: Annotated[int, typer.Option(help="Sequence behind which it goes on; 0 is the beginning.")] = 0,
    vhost: Vhost = "/",
) -> None:
    """Send a consumer back, or ahead."""
    context.obj.put(path("streams", vhost, stream, "marks", consumer), {"sequence": to})


@marks.command("delete")
def delete_mark(context: typer.Context, stream: Stream, consumer: Consumer, vhost: Vhost = "/") -> None:
    """Forget a consumer: deletes no longer wait for it."""
    context.obj.delete(path("streams", vhost, stream, "marks", consumer))


@lists.command("pins")
@streams.command("pins")
@pins.command("list")
def list_pins(
    context: typer.Context,
    stream: OnlyStream = "",
    vhost: AnyVhost = "",
    columns: Columns = "",
    sort: Sort = "",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """Pinned snapshots, until when, and what they keep from being freed."""
    rows = _of_streams(context.obj, "pins", vhost, stream)
    rows = chosen(rows, words(columns), words(sort) or ("vhost", "stream", "name"), reverse=reverse)
    show(rows, words(columns) or PINS, as_json=as_json)


@pins.command("declare", hidden=True)
@pins.command("create")
def create_pin(
    context: typer.Context,
    stream: Stream,
    pin: Annotated[str, typer.Argument(help="Name of the pin.")],
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds that it is kept without being renewed.")
    ] = 3600,
    at: Annotated[
        int | None, typer.Option(min=0, help="Sequence at which to look.", show_default="now")
    ] = None,
    vhost: Vhost = "/",
) -> None:
    """Keep a snapshot of a stream under a name, so that it can be read as it is now."""
    body: dict[str, Any] = {"name": pin, "lease_ms": round(lease * 1000)}
    if at is not None:
        body["at"] = at
    context.obj.post(path("streams", vhost, stream, "pins"), body)


@pins.command("delete", hidden=True)
@pins.command("release")
def release_pin(
    context: typer.Context,
    stream: Stream,
    pin: Annotated[str, typer.Argument(help="Name of the pin.")],
    vhost: Vhost = "/",
) -> None:
    """Let go of a pin; what only it kept is freed."""
    context.obj.delete(path("streams", vhost, stream, "pins", pin))


GROUPS = {"streams": streams, "marks": marks, "pins": pins, "list": lists}
