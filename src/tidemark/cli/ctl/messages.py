"""`tidemark ctl publish` and `get`: one message in, a few out, by hand."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Json, Queue, Vhost, parsed
from tidemark.cli.ctl.exchanges import in_path
from tidemark.cli.output import cell


def publish(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            help="Routing key; with the default exchange the name of a queue.", autocompletion=complete.queues
        ),
    ],
    payload: Annotated[str, typer.Argument(help="The message; - reads standard input.")] = "-",
    exchange: Annotated[
        str,
        typer.Option(
            help="Where to.", show_default="the default exchange", autocompletion=complete.exchanges
        ),
    ] = "",
    file: Annotated[Path | None, typer.Option(help="File with the message instead.")] = None,
    properties: Annotated[
        str,
        typer.Option(help='JSON object, e.g. {"delivery_mode": 2, "headers": {"a": 1}}; @FILE reads a file.'),
    ] = "{}",
    persistent: Annotated[bool, typer.Option("--persistent", help="It shall survive a restart.")] = False,
    vhost: Vhost = "/",
    as_json: Json = False,
) -> int:
    """Publish one message. Exit code 1 when no queue took it."""
    given = parsed(properties, "--properties")
    if persistent:
        given["delivery_mode"] = 2
    raw = _content(payload, file)
    body = {
        "routing_key": key,
        "payload": base64.b64encode(raw).decode(),
        "payload_encoding": "base64",
        "properties": given,
    }
    answer = context.obj.post(path("exchanges", vhost, in_path(exchange), "publish"), body)
    if as_json:
        print(json.dumps(answer))
    if not answer["routed"]:
        raise CommandError(
            f"no queue took it: nothing is bound to '{in_path(exchange)}' with the key '{key}'"
        )
    return 0


def _content(payload: str, file: Path | None) -> bytes:
    try:
        if file is not None:
            return file.read_bytes()
        return sys.stdin.buffer.read() if payload == "-" else payload.encode("utf-8", "surrogateescape")
    except OSError as problem:
        raise CommandError(f"{file} cannot be read: {problem.strerror}", 2) from None


class Then(StrEnum):
    requeue = "requeue"
    ack = "ack"
    reject = "reject"


MODES = {
    Then.requeue: "ack_requeue_true",
    Then.ack: "ack_requeue_false",
    Then.reject: "reject_requeue_false",
}


def get(
    context: typer.Context,
    queue: Queue,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 1,
    then: Annotated[
        Then, typer.Option(help="What becomes of them: back into the queue, gone, or dead-lettered.")
    ] = Then.requeue,
    truncate: Annotated[
        int, typer.Option(min=0, help="Only so many bytes of each.", show_default="all of it")
    ] = 0,
    vhost: Vhost = "/",
    as_json: Json = False,
) -> int:
    """Look at the next messages of a queue, or take them. Exit code 1 when there is none."""
    body: dict[str, Any] = {"count": count, "ackmode": MODES[then], "encoding": "auto"}
    if truncate:
        body["truncate"] = truncate
    rows = context.obj.post(path("queues", vhost, queue, "get"), body)
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif rows:
        for row in rows:
            _print(row)
    if not rows:
        raise CommandError(f"queue '{queue}' has no message that is ready")
    return 0


def _print(row: dict[str, Any]) -> None:
    """A line of facts, and the message as it is."""
    facts = {
        "exchange": row["exchange"] or "(default)",
        "key": row["routing_key"],
        "redelivered": row["redelivered"],
        "bytes": row["payload_bytes"],
        **(row.get("properties") or {}),
    }
    print("  ".join(f"{name}={cell(value)}" for name, value in facts.items()))
    text = row["payload"]
    if row["payload_encoding"] == "base64":
        print(f"base64 {text}")
    else:
        print(text if text.isprintable() else cell(text) if "\x1b" in text else text)


COMMANDS: dict[str, Callable[..., Any]] = {"publish": publish, "get": get}
