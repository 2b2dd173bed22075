"""`tidemark ctl parameters` and `global-parameters`: values that the broker keeps by name, as RabbitMQ does."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import path
from tidemark.cli.ctl.common import Json, Vhost, facts, group, lister

parameters = group("Values by component and name, in a virtual host.")
globals_ = group("Values by name, of the whole broker.")

Component = Annotated[str, typer.Argument(help="What the value is for.")]
Name = Annotated[str, typer.Argument(help="Name of the value.")]
Value = Annotated[str, typer.Argument(help="The value, as JSON.")]

parameters.command("list")(
    lister(
        "parameters", ("vhost", "component", "name", "value"), "All parameters.",
        order=("vhost", "component", "name"), by_vhost=False,
    )
)  # fmt: skip
globals_.command("list")(
    lister("global-parameters", ("name", "value"), "All global parameters.", by_vhost=False)
)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"VALUE must be JSON; a word is written '\"{text}\"'", 2) from None


@parameters.command("show")
def show_parameter(
    context: typer.Context, component: Component, name: Name, vhost: Vhost = "/", as_json: Json = False
) -> None:
    """One parameter."""
    facts(context, path("parameters", component, vhost, name), as_json=as_json)


@parameters.command("declare", hidden=True)
@parameters.command("set")
def set_parameter(
    context: typer.Context, component: Component, name: Name, value: Value, vhost: Vhost = "/"
) -> None:
    """Set a parameter."""
    body = {"component": component, "vhost": vhost, "name": name, "value": _json(value)}
    context.obj.put(path("parameters", component, vhost, name), body)


@parameters.command("delete", hidden=True)
@parameters.command("clear")
def clear_parameter(context: typer.Context, component: Component, name: Name, vhost: Vhost = "/") -> None:
    """Remove a parameter."""
    context.obj.delete(path("parameters", component, vhost, name))


@globals_.command("show")
def show_global(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """One global parameter."""
    facts(context, path("global-parameters", name), as_json=as_json)


@globals_.command("declare", hidden=True)
@globals_.command("set")
def set_global(context: typer.Context, name: Name, value: Value) -> None:
    """Set a global parameter."""
    context.obj.put(path("global-parameters", name), {"name": name, "value": _json(value)})


@globals_.command("delete", hidden=True)
@globals_.command("clear")
def clear_global(context: typer.Context, name: Name) -> None:
    """Remove a global parameter."""
    context.obj.delete(path("global-parameters", name))


GROUPS = {"parameters": parameters, "global-parameters": globals_}
