"""`tidemark ctl users`: who may log in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.connection import from_file
from tidemark.cli.ctl.common import Json, User, facts, group, lister, words

users = group("Who may log in.")

Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        help="The password; - reads it from standard input. Others can see it here: rather be asked, or use a file.",
        show_default="asked",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="File with the password in its first line.")
]
TAGS = "Words with commas: administrator, monitoring, policymaker, management."

users.command("list")(lister("users", ("name", "tags"), "All users and their tags.", by_vhost=False))


def secret(given: str | None, file: Path | None) -> str:
    """The password that was given, from standard input for `-`, from a file, or asked for."""
    if file is not None:
        return from_file(file)
    if given == "-":
        return sys.stdin.readline().rstrip("\n")
    if given is not None:
        return given
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


@users.command("show")
def show_user(context: typer.Context, name: User, as_json: Json = False) -> None:
    """Everything about one user; of the password, how it is hashed."""
    facts(context, path("users", name), as_json=as_json)


@users.command("declare", hidden=True)
@users.command("add")
def add_user(
    context: typer.Context,
    name: User,
    password: Password = None,
    password_file: PasswordFile = None,
    tags: Annotated[str, typer.Option(help=TAGS)] = "",
) -> None:
    """Create a user. It may do nothing until it has permissions."""
    if any(user["name"] == name for user in context.obj.get(path("users"))):
        raise CommandError(f"user '{name}' exists; see 'ctl users password' and 'ctl users tags'", 2)
    body = {"password": secret(password, password_file), "tags": words(tags)}
    context.obj.put(path("users", name), body)


@users.command("delete")
def delete_user(context: typer.Context, name: User) -> None:
    """Delete a user, its permissions and its connections."""
    context.obj.delete(path("users", name))


@users.command("password")
def change_password(
    context: typer.Context, name: User, password: Password = None, password_file: PasswordFile = None
) -> None:
    """Give a user another password."""
    user = context.obj.get(path("users", name))
    body = {"password": secret(password, password_file), "tags": user["tags"]}
    context.obj.put(path("users", name), body)


@users.command("tags")
def change_tags(
    context: typer.Context, name: User, tags: Annotated[str, typer.Argument(help=TAGS)] = ""
) -> None:
    """Replace a user's tags."""
    context.obj.get(path("users", name))
    context.obj.put(path("users", name), {"tags": words(tags)})


GROUPS = {"users": users}
