"""The environment is shared: what a command reads from it must not stop a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tidemark.cli.app import app
from tidemark.config import COMMAND_VARIABLES, every_setting, load


def variables_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        found = parameter.envvar or ()
        yield from (found,) if isinstance(found, str) else found
    for inner in (getattr(command, "commands", None) or {}).values():
        yield from variables_of(inner)


def test_the_variables_of_all_options_are_known() -> None:
    assert set(variables_of(get_command(app))) == COMMAND_VARIABLES


def test_a_broker_starts_with_the_variables_of_all_commands_set() -> None:
    loaded = load(environment=dict.fromkeys(variables_of(get_command(app)), "x"))

    assert set(loaded.origins.values()) == {"default"}


def test_no_setting_has_the_variable_of_a_command() -> None:
    assert COMMAND_VARIABLES.isdisjoint(one.variable for one in every_setting())
