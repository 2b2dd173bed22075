"""All nouns of `tidemark ctl`, and the broker that they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from tidemark.cli import connection, member
from tidemark.cli.ctl import (
    bindings,
    broker,
    connections,
    definitions,
    exchanges,
    health,
    limits,
    members,
    messages,
    parameters,
    permissions,
    pipelines,
    policies,
    queues,
    streams,
    users,
    vhosts,
)
from tidemark.cli.ctl.common import CODES

app = typer.Typer(
    help="Manage a running broker: queues, exchanges, streams, users, policies, connections, definitions, its part in a "
    f"cluster.\n\n{CODES}",
    no_args_is_help=True,
)


@app.callback()
def connect(
    context: typer.Context,
    url: connection.Url = connection.LOCAL,
    user: connection.User = connection.FIRST_USER,
    password: connection.Password = None,
    password_file: connection.PasswordFile = None,
    ask_password: connection.AskPassword = False,
    ca_file: connection.CaFile = None,
) -> None:
    context.obj = connection.connect(context, url, user, password, password_file, ask_password, ca_file)


for module in (
    queues, exchanges, bindings, streams, vhosts, users, permissions, policies, limits, parameters, connections,
    definitions, pipelines,
):  # fmt: skip
    for name, noun in module.GROUPS.items():
        app.add_typer(noun, name=name)
app.add_typer(members.app, name="members")
app.add_typer(member.app, name="member")
commands: dict[str, Callable[..., Any]] = {**broker.COMMANDS, **messages.COMMANDS, **health.COMMANDS}
for name, command in commands.items():
    app.command(name)(command)
