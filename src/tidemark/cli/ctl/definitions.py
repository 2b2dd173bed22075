"""`tidemark ctl definitions`: everything that was declared, in and out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.ctl.common import group, read_text, where
from tidemark.cli.output import reveal

definitions = group("Everything that was declared, in RabbitMQ's JSON format.")

OnlyVhost = Annotated[str, typer.Option("--vhost", help="Only what is in this virtual host.")]


@definitions.command("export")
def export_definitions(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-",
    vhost: OnlyVhost = "",
) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges and bindings. Messages are not in it."""
    found = context.obj.get(where("definitions", vhost))
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text)
    except OSError as problem:
        raise CommandError(f"{file} cannot be written: {problem.strerror}") from None


@definitions.command("import")
def import_definitions(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="JSON file; - is standard input.")],
    vhost: OnlyVhost = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Make everything that a file describes; what is there already stays."""
    try:
        document = json.loads(read_text(file))
    except ValueError:
        raise CommandError(f"{file} is not JSON", 2) from None
    if not isinstance(document, dict):
        raise CommandError(f"{file} does not hold definitions: they are a JSON object", 2)
    result = context.obj.post(where("definitions", vhost), document) or {}
    if as_json:
        reveal(result, as_json=True)
        return
    for what, count in result.get("made", {}).items():
        print(f"{what}: {count} made, {result['kept'].get(what, 0)} kept")


GROUPS = {"definitions": definitions}
