"""Which broker a command talks to, and as whom: the options that `ctl`, `top` and `doctor` share.

A word on the command line wins over the environment (`TIDEMARK_URL`, `TIDEMARK_USER`, `TIDEMARK_PASSWORD`,
`TIDEMARK_PASSWORD_FILE`, `TIDEMARK_CA_FILE`). A password on the command line is seen by everybody who may list processes; a
file, the environment or a prompt is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Api

LOCAL = "http://127.0.0.1:15672"
FIRST_USER = FIRST_PASSWORD = "guest"

Url = Annotated[
    str, typer.Option(envvar="TIDEMARK_URL", help="The broker's admin address: http://… or https://…")
]
User = Annotated[str, typer.Option(envvar="TIDEMARK_USER", help="Who you are.")]
Password = Annotated[
    str | None,
    typer.Option(
        envvar="TIDEMARK_PASSWORD",
        help="Your password. Others on this machine can see it here: rather use one of the next two.",
        show_default="guest",
        show_envvar=True,
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="TIDEMARK_PASSWORD_FILE",
        help="File with your password in its first line; - is standard input.",
    ),
]
AskPassword = Annotated[bool, typer.Option("--ask-password", "-W", help="Ask for your password.")]
CaFile = Annotated[
    Path | None,
    typer.Option(
        envvar="TIDEMARK_CA_FILE",
        help="PEM file with the authorities that sign the broker's certificate, for https.",
        show_default="the system's",
    ),
]


def connect(
    context: typer.Context,
    url: str,
    user: str,
    password: str | None,
    password_file: Path | None,
    ask: bool,
    ca_file: Path | None,
) -> Api:
    """The API of the broker that these options name."""
    return Api(url, user, secret(context, password, password_file, ask), ca_file)


def secret(context: typer.Context, password: str | None, file: Path | None, ask: bool) -> str:
    """The password: asked for, from the command line, from the environment, or the first one that every broker has."""
    if ask:
        return str(typer.prompt("Password", hide_input=True, err=True))
    if file is not None and (password is None or _typed(context, "password_file")):
        return from_file(file)
    return FIRST_PASSWORD if password is None else password


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def from_file(file: Path) -> str:
    """The first line of a file; `-` is standard input.

    Raises:
        CommandError: it cannot be read, or its first line is empty.
    """
    if str(file) == "-":
        text = sys.stdin.readline()
    else:
        try:
            text = file.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "it is not text"
            raise CommandError(f"{file} cannot be read: {why}", 2) from None
    word = text.rstrip("\r\n")
    if not word:
        raise CommandError(f"the first line of {file} is empty, and an empty password opens nothing", 2)
    return word
