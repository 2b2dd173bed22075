"""Names that the shell completes from the running broker.

Invariant: within `PATIENCE_S` there are names, or none; whatever goes wrong, nothing is printed and nothing is asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tidemark.cli.api import Api, path
from tidemark.cli.connection import FIRST_PASSWORD, FIRST_USER, LOCAL, from_file

PATIENCE_S = 0.7
NAMES_MAX = 100

Completer = Callable[[typer.Context, str], list[str]]


def _api(context: typer.Context) -> Api:
    given: dict[str, Any] = {}
    outer: Any = context
    while outer is not None:
        given = {**outer.params, **given}
        outer = outer.parent

    def value(name: str, default: str) -> str:
        return str(given.get(name) or os.environ.get(f"TIDEMARK_{name.upper()}") or default)

    file = value("password_file", "")
    password = from_file(Path(file)) if file and file != "-" else value("password", FIRST_PASSWORD)
    ca_file = value("ca_file", "")
    api = Api(value("url", LOCAL), value("user", FIRST_USER), password, Path(ca_file) if ca_file else None)
    api.timeout_s = PATIENCE_S
    return api


def _vhost(context: typer.Context) -> str:
    return str(context.params.get("vhost") or os.environ.get("TIDEMARK_VHOST") or "/")


def _completer(kind: str, *, by_vhost: bool) -> Completer:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        try:
            place = path(kind, _vhost(context)) if by_vhost else path(kind)
            query = {"name": f"^{re.escape(incomplete)}", "use_regex": "true", "columns": "name"}
            answer = _api(context).get(place, **query, page="1", page_size=str(NAMES_MAX))
            rows = answer["items"] if isinstance(answer, dict) else answer
            names = [str(row["name"]) for row in rows]
        except Exception:  # a shell that waits for words has no place for a complaint
            return []
        return [name for name in names if name.startswith(incomplete)][:NAMES_MAX]

    return complete


queues = _completer("queues", by_vhost=True)
exchanges = _completer("exchanges", by_vhost=True)
streams = _completer("streams", by_vhost=True)
policies = _completer("policies", by_vhost=True)
operator_policies = _completer("operator-policies", by_vhost=True)
vhosts = _completer("vhosts", by_vhost=False)
users = _completer("users", by_vhost=False)
connections = _completer("connections", by_vhost=False)
channels = _completer("channels", by_vhost=False)
