"""`tidemark ctl policies` and `operator-policies`: settings of queues, exchanges and streams by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tidemark.cli.api import path
from tidemark.cli.ctl import complete
from tidemark.cli.ctl.common import Json, Vhost, facts, group, lister, parsed

COLUMNS = ("vhost", "name", "pattern", "apply-to", "priority", "definition")


class Target(StrEnum):
    all = "all"
    queues = "queues"
    classic_queues = "classic_queues"
    quorum_queues = "quorum_queues"
    streams = "streams"
    exchanges = "exchanges"


Pattern = Annotated[str, typer.Argument(help="Regular expression for names.")]
Definition = Annotated[
    str, typer.Argument(help='What it sets, as a JSON object, e.g. {"max-length": 1000}; @FILE reads a file.')
]
Priority = Annotated[int, typer.Option(help="Of all that match, the highest applies.")]
ApplyTo = Annotated[Target, typer.Option(help="What it is for.")]


def _noun(kind: str, words: str, complete_names: complete.Completer) -> typer.Typer:
    noun = group(words)
    noun.command("list")(lister(kind, COLUMNS, "All of them, with their patterns and what they set."))
    name = Annotated[str, typer.Argument(help="Name of the policy.", autocompletion=complete_names)]

    def show(context: typer.Context, name: name, vhost: Vhost = "/", as_json: Json = False) -> None:
        """Everything about one policy."""
        facts(context, path(kind, vhost, name), as_json=as_json)

    def declare(
        context: typer.Context,
        name: name,
        pattern: Pattern,
        definition: Definition,
        priority: Priority = 0,
        apply_to: ApplyTo = Target.all if kind == "policies" else Target.queues,
        vhost: Vhost = "/",
    ) -> None:
        """Create a policy, or replace it. It applies at once, to what is there and to what will be."""
        body = {
            "pattern": pattern,
            "definition": parsed(definition, "DEFINITION"),
            "priority": priority,
            "apply-to": apply_to.value,
        }
        context.obj.put(path(kind, vhost, name), body)

    def delete(context: typer.Context, name: name, vhost: Vhost = "/") -> None:
        """Delete a policy; what it set is as it was."""
        context.obj.delete(path(kind, vhost, name))

    # The options' types were made here, so they cannot be looked up by name.
    for command in (show, declare, delete):
        command.__annotations__["name"] = name
    noun.command("show")(show)
    noun.command("set")(declare)
    noun.command("declare", hidden=True)(declare)
    noun.command("delete", hidden=True)(delete)
    noun.command("clear")(delete)
    return noun


policies = _noun(
    "policies",
    "Settings by name: time to live, length, dead lettering, retention … for all queues, exchanges or streams whose name "
    "matches a pattern.",
    complete.policies,
)
operator_policies = _noun(
    "operator-policies",
    "Limits by name, set by the operator: for each setting the stricter one of policy and operator policy holds.",
    complete.operator_policies,
)

GROUPS = {"policies": policies, "operator-policies": operator_policies}
