"""In which group of the cluster a new queue lives.

What it asks for itself decides (`x-group`, else `x-cluster-mode`), else a policy (`group`, else `cluster-mode`), else it lives in main. Where
several groups have the mode that is wanted, a hash of the queue's name chooses: whoever asks gets the same answer.

Only a queue whose messages outlive clients and members has a reason to be elsewhere: one that is durable, was named by
whoever declared it, and goes only when somebody deletes it. The others live in main. A queue that asks for
what it cannot have is refused; a policy is for many queues, so it passes by those that it does not fit.

Invariant: the answer depends on the declaration, the groups and the policy alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.broker.arguments import is_stream, type_name
from tidemark.broker.policies import NOTHING, Applied
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import MAIN, QueueSpec

OUTBOX = "amq.tidemark.outbox"
"""The queue of a virtual host, in a group other than main, for dead letters that find their exchange in main only."""


def place(spec: QueueSpec, groups: Mapping[str, str], applied: Applied = NOTHING) -> str:
    """The group that a new queue lives in. `groups` are all there are, main too, with their modes.

    Raises:
        PreconditionFailed: what it asks for itself cannot be met.
    """
    bound = _bound_to_main(spec)
    wanted, mode = _argument(spec, "x-group"), _argument(spec, "x-cluster-mode")
    if wanted is not None:
        if wanted not in groups:
            raise _refused(spec, "x-group", f"there is no group '{wanted}', only {_listed(groups)}")
        if mode is not None and groups[wanted] != mode:
            raise _refused(
                spec, "x-cluster-mode", f"the mode of group '{wanted}' is '{groups[wanted]}', not '{mode}'"
            )
        if bound and wanted != MAIN:
            raise _refused(spec, "x-group", f"{bound} lives in the group '{MAIN}'")
        return wanted
    if mode is not None:
        fit = _of_mode(groups, mode)
        if not fit:
            there = ", ".join(f"'{group}' ('{has}')" for group, has in groups.items())
            raise _refused(spec, "x-cluster-mode", f"no group has the mode '{mode}'; there is {there}")
        if bound and MAIN not in fit:
            raise _refused(
                spec, "x-cluster-mode", f"{bound} lives in the group '{MAIN}', whose mode is '{groups[MAIN]}'"
            )
        return MAIN if bound else _chosen(spec, fit)
    if bound:
        return MAIN
    if applied.value("group") in groups:
        return str(applied.value("group"))
    return _chosen(spec, _of_mode(groups, applied.value("cluster-mode")) or [MAIN])


def check_same_group(spec: QueueSpec, here: str) -> None:
    """That a queue which is declared in the group `here` does not want to be in another: only main can send it there.

    Raises:
        PreconditionFailed: it does.
    """
    wanted = _argument(spec, "x-group")
    if wanted is not None and wanted != here:
        raise _refused(
            spec, "x-group", f"this is the group '{here}'; declare it in '{MAIN}', or through a front"
        )


def stands_in(queue: Any) -> bool:
    """Whether this queue is the stand-in of a stream that lives in another group."""
    return bool(queue.spec.group) and is_stream(queue.spec.arguments)


def _bound_to_main(spec: QueueSpec) -> str:
    """What about the queue keeps it in main; empty: nothing."""
    for what, unfit in (
        ("a queue that is not durable", not spec.durable),
        ("an exclusive queue", spec.exclusive),
        ("an auto-delete queue", spec.auto_delete),
        ("a queue that expires", "x-expires" in spec.arguments),
        ("a queue that the broker has named", spec.name == "" or spec.name.startswith("amq.")),
    ):
        if unfit:
            return what
    return ""


def _argument(spec: QueueSpec, name: str) -> str | None:
    value = spec.arguments.get(name)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is not None and not isinstance(value, str):
        raise _refused(spec, name, f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _of_mode(groups: Mapping[str, str], mode: object) -> list[str]:
    return [group for group, has in groups.items() if has == mode]


def _chosen(spec: QueueSpec, among: Iterable[str]) -> str:
    """One of these, for ever the same, whichever others come and go."""

    def rank(group: str) -> bytes:
        words = "\0".join((group, spec.vhost, spec.name)).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(words, digest_size=8).digest()

    return max(among, key=rank)


def _listed(groups: Iterable[str]) -> str:
    return ", ".join(f"'{group}'" for group in groups)


def _refused(spec: QueueSpec, argument: str, problem: str) -> PreconditionFailed:
    return PreconditionFailed(
        reason=f"invalid arg '{argument}' for queue '{spec.name}' in vhost '{spec.vhost}': {problem}"
    )
