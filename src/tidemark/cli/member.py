"""`tidemark ctl member`: one member of a cluster, as an operator and a resource manager see it and have it act.

Exit codes are made for scripts: 0 done, or true; 1 refused, or not so, with the reason in one sentence; 2 the call is wrong,
or the log-in; 3 the member cannot be reached, hangs, or what was asked for did not come about in time. A member that hangs is
given up after `--timeout` seconds, so every command is good as a probe.

Invariant: whatever else goes wrong, a member that does not answer is exit code 3; and to a question 1 is only ever "no".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Api, NoAnswer, Refusal, path
from tidemark.cli.output import details

app = typer.Typer(
    help="One member of a cluster: see what it is, promote it, demote it, stop it. Exit code 0 done or true, 1 refused or "
    "not so, 2 wrong call or log-in, 3 no answer or not in time.",
    no_args_is_help=True,
)

STATES = ("alone", "joining", "catch-up", "ready", "recovering", "active", "fenced", "failed")
LEADING = ("recovering", "active")
SHOWN = (
    "name", "state", "why", "mode", "provider", "cluster", "epoch", "accepted", "leader", "ready", "source", "durable",
    "complete", "given_up_messages", "compared", "differing", "score", "unseen", "untold",
)  # fmt: skip
POLL_S = 0.1
AWAY = 3

Timeout = Annotated[float, typer.Option(help="Seconds that one answer is waited for.", min=0.1)]
Wait = Annotated[float, typer.Option(help="Seconds to wait until it is so; 0: do not wait.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Other = Annotated[str, typer.Argument(metavar="MEMBER", help="Name of the other member.")]

Status = dict[str, Any]


@app.command()
def status(
    context: typer.Context,
    expect: Annotated[
        str,
        typer.Option(metavar="STATE", help="Say whether it is in this state, or one of several with commas."),
    ] = "",
    is_leader: Annotated[bool, typer.Option("--is-leader", help="Say whether it leads.")] = False,
    wait: Wait = 0,
    timeout: Timeout = 5,
    as_json: Json = False,
) -> int:
    """What a member is and what it knows of the others."""
    wanted = set(filter(None, expect.split(",")))
    unknown = sorted(wanted - set(STATES))
    if unknown:
        raise CommandError(f"--expect: there is no state '{unknown[0]}'; there are {', '.join(STATES)}", 2)
    if is_leader:
        wanted = wanted & set(LEADING) if wanted else set(LEADING)
    asked = bool(expect) or is_leader
    try:
        found = _until(_api(context, timeout), wait if asked else 0, lambda seen: seen["state"] in wanted)
    except Refusal as problem:
        if not asked:
            raise
        raise CommandError(str(problem), 2) from None  # whoever may not ask has no answer
    if as_json:
        print(json.dumps(found, indent=2))
    elif not asked:
        rare = ("accepted", "given_up_messages", "differing")
        details({name: found[name] for name in SHOWN if name in found and (found[name] or name not in rare)})
    if asked and found["state"] not in wanted:
        words = "it does not lead" if is_leader and not expect else f"that is not {expect}"
        raise CommandError(
            f"{found['name']} is {found['state']}, {words}: {found.get('why', '')}".rstrip(": ")
        )
    return 0


@app.command()
def promote(
    context: typer.Context,
    member: Annotated[
        str, typer.Argument(metavar="MEMBER", help="Its own name: it shall be this one and no other.")
    ] = "",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="All members that are ready are lost for good: go on without what only they had, confirmed or not.",
        ),
    ] = False,
    wait: Wait = 30,
    timeout: Timeout = 5,
    as_json: Json = False,
) -> int:
    """Have it lead. Refused unless it holds everything that was confirmed.

    Without etcd (cluster.provider external) whoever gives this command has made sure that no other member leads that this
    one cannot reach.

    When every member that is ready has lost its store, nobody else may lead. A refusal then says how far each of the others
    is, and which has most. Promote that one with --accept-loss. This is refused while a ready member or its process is there;
    if another member is further or may be, it is refused unless MEMBER names this one. Where etcd has lost its data, the
    member with the most founds the cluster again; one that may not have it must be named, with --accept-loss.
    """
    api = _api(context, timeout)
    epoch = _seen(api).get("epoch", 0)

    def leads(seen: Status) -> bool:
        leader = seen.get("leader")
        if seen.get("epoch", 0) > epoch and leader not in (None, seen["name"]):
            raise CommandError(f"{leader} was faster and leads in epoch {seen['epoch']}")
        return bool(seen["state"] == "active")

    more = {"accept_loss": True} if accept_loss else {}
    return _do(api, "promote", member, wait, leads, "active", as_json=as_json, **more)


@app.command()
def demote(
    context: typer.Context,
    to: Annotated[str, typer.Option(metavar="MEMBER", help="Who is to lead instead; any if not given.")] = "",
    wait: Wait = 30,
    timeout: Timeout = 5,
    as_json: Json = False,
) -> int:
    """Have it lead no more. With etcd another ready member takes over; without, nobody does until one is promoted."""
    follows = ("joining", "catch-up", "ready")
    return _do(
        _api(context, timeout), "demote", to, wait, lambda seen: seen["state"] in follows, "a follower", as_json=as_json
    )  # fmt: skip


@app.command()
def drop(
    context: typer.Context, member: Other, wait: Wait = 10, timeout: Timeout = 5, as_json: Json = False
) -> int:
    """Have a leader go on without another member, until that one connects anew."""
    api = _api(context, timeout)
    return _do(
        api, "drop", member, wait, lambda seen: member not in seen.get("ready", ()), "without it", as_json=as_json
    )  # fmt: skip


@app.command()
def refill(context: typer.Context, wait: Wait = 30, timeout: Timeout = 5, as_json: Json = False) -> int:
    """Have a member that follows empty its store and copy everything from the leader again.

    For one that differs from the leader, or whose log is damaged. It leaves first: its store goes when the others go on
    without it. Until it is ready again they have one copy less; of two members, only the leader has one.
    """
    api = _api(context, timeout)
    return _do(api, "refill", "", wait, lambda seen: seen["state"] == "ready", "ready", as_json=as_json)


@app.command()
def shutdown(context: typer.Context, wait: Wait = 30, timeout: Timeout = 5) -> int:
    """Stop it in good order. A leader takes the whole cluster with it, when all ready members hold the same."""
    api = _api(context, timeout)
    print(_call(api.post, path("tidemark", "cluster", "shutdown"))["text"])
    deadline = time.monotonic() + wait
    while wait:
        try:
            api.get(path("tidemark", "cluster"))
        except NoAnswer:
            return 0
        if time.monotonic() > deadline:
            raise CommandError(f"it has not stopped in {wait:g} s", AWAY)
        time.sleep(POLL_S)
    return 0


def _api(context: typer.Context, timeout_s: float) -> Api:
    api: Api = context.obj
    api.timeout_s = timeout_s
    return api


def _call(call: Callable[[str], Any], where: str) -> Any:
    try:
        return call(where)
    except NoAnswer as problem:
        raise CommandError(str(problem), AWAY) from None


def _seen(api: Api) -> Status:
    found: Status = _call(api.get, path("tidemark", "cluster"))
    return found


def _until(api: Api, wait_s: float, true: Callable[[Status], bool]) -> Status:
    """Ask until it is so or the time is over; what was seen last. Who does not answer is asked again, too."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            found = _seen(api)
        except CommandError as problem:
            if problem.code != AWAY or time.monotonic() > deadline:
                raise
        else:
            if true(found) or time.monotonic() > deadline:
                return found
        time.sleep(POLL_S)


def _do(
    api: Api,
    command: str,
    other: str,
    wait_s: float,
    true: Callable[[Status], bool],
    goal: str,
    *,
    as_json: bool,
    **more: bool,
) -> int:
    """Give a command, and wait until what it is for has come about."""
    words = {"member": other, **more}
    answer = _call(lambda where: api.post(where, words), path("tidemark", "cluster", command))
    if not as_json:
        print(answer["text"])
    found = _until(api, wait_s, true)
    if as_json:
        print(json.dumps({**found, "answer": answer["text"]}, indent=2))
    if wait_s and not true(found):
        why = f"{found['name']} is {found['state']}: {found.get('why', '')}"
        raise CommandError(f"not {goal} in {wait_s:g} s; {why}", AWAY)
    return 0
