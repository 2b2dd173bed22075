"""`tidemark ctl health`: whether the broker is well, as its own checks say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Refusal, path
from tidemark.cli.ctl.common import Json
from tidemark.cli.output import show

CHECKS = (
    "node-is-running",
    "alarms",
    "virtual-hosts",
    "ready-to-serve-clients",
    "certificate-expiration/1/weeks",
)
"""What is asked when nothing is named; a check that this broker does not have is left out."""


def health(
    context: typer.Context,
    check: Annotated[
        list[str] | None,
        typer.Argument(help="Names of checks, as alarms, port-listener/5672, protocol-listener/amqp."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Whether the broker is well. Exit code 0 if all checks are ok, 1 if one fails, 2 if you may not ask, 3 if it does not answer."""
    rows = []
    for name in check or CHECKS:
        try:
            answer = context.obj.get(path("health", "checks", *name.split("/"))) or {}
            rows.append({"check": name, "status": answer.get("status", "ok"), "reason": answer.get("reason")})
        except Refusal as problem:
            if problem.status == 404:
                if check:
                    raise CommandError(f"there is no check '{name}'", 2) from None
                continue
            if problem.status in (401, 403, 429):
                raise CommandError(str(problem), 2) from None  # nothing was checked, so nothing has failed
            document = problem.document if isinstance(problem.document, dict) else {}
            rows.append({"check": name, "status": "failed", "reason": document.get("reason") or str(problem)})
    show(rows, ("check", "status", "reason"), as_json=as_json)
    return 0 if all(row["status"] == "ok" for row in rows) else 1


COMMANDS: dict[str, Callable[..., Any]] = {"health": health}
