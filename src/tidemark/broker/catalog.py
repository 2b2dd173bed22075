"""The changes that the catalog log is made of.

A change is a small dict of JSON values: `{"op": "queue.put", …the fields of a QueueSpec…}`. There are twelve kinds
of things (`KINDS`), each of which can be put (made, or replaced if it is there) and deleted (by what
identifies it), and one change that keeps the count of queue numbers. That is the whole language. A delete of a queue
without a number deletes nothing, and says that an incarnation is gone (`incarnations.py`).

Invariant: `read(decode(encode(put(spec))))` equals `spec`, for every spec.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from tidemark.errors import StoreForeign
from tidemark.model.values import from_json, to_json
from tidemark.model.wiring import (
    BindingSpec,
    ExchangeSpec,
    GlobalParameterSpec,
    OperatorPolicySpec,
    ParameterSpec,
    PermissionSpec,
    PolicySpec,
    QueueSpec,
    Spec,
    TopicPermissionSpec,
    UserLimitsSpec,
    UserSpec,
    VhostSpec,
)

Change = dict[str, Any]

PUT = "put"
DELETE = "delete"
NUMBERS = "numbers"
"""The change that says which number the next durable queue gets."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    spec: type[Any]
    identity: tuple[str, ...]
    """The fields by which a delete finds it."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("vhost", VhostSpec, ("name",)),
        Kind("exchange", ExchangeSpec, ("vhost", "name")),
        Kind("queue", QueueSpec, ("vhost", "name", "number", "incarnation")),
        Kind("binding", BindingSpec, ("vhost", "source", "destination", "to_queue", "key", "arguments")),
        Kind("user", UserSpec, ("name",)),
        Kind("permission", PermissionSpec, ("user", "vhost")),
        Kind("topic-permission", TopicPermissionSpec, ("user", "vhost", "exchange")),
        Kind("policy", PolicySpec, ("vhost", "name")),
        Kind("operator-policy", OperatorPolicySpec, ("vhost", "name")),
        Kind("user-limits", UserLimitsSpec, ("user",)),
        Kind("parameter", ParameterSpec, ("vhost", "component", "name")),
        Kind("global-parameter", GlobalParameterSpec, ("name",)),
    )
}
_BY_SPEC = {kind.spec: kind for kind in KINDS.values()}
_FIELDS = {kind.spec: tuple(one.name for one in fields(kind.spec)) for kind in KINDS.values()}


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def kind_of(spec: Spec) -> str:
    return _BY_SPEC[type(spec)].name


def put(spec: Spec) -> Change:
    kind = _BY_SPEC[type(spec)]
    values = {name: to_json(getattr(spec, name)) for name in _FIELDS[kind.spec]}
    return {"op": f"{kind.name}.{PUT}", **values}


def delete(spec: Spec) -> Change:
    kind = _BY_SPEC[type(spec)]
    return {"op": f"{kind.name}.{DELETE}", **{name: to_json(getattr(spec, name)) for name in kind.identity}}


def numbers(next_number: int) -> Change:
    return {"op": f"{NUMBERS}.{PUT}", "next": next_number}


def kind_and_verb(change: Change) -> tuple[str, str]:
    """Which kind of thing the change is about, and `PUT` or `DELETE`.

    Raises:
        StoreForeign: neither is known here.
    """
    name, _, verb = str(change.get("op")).rpartition(".")
    if verb not in (PUT, DELETE) or (name not in KINDS and (name, verb) != (NUMBERS, PUT)):
        raise StoreForeign(
            path="catalog",
            problem=f"the change {change.get('op')!r} is unknown to this version; start a newer one on it",
        )
    return name, verb


def read(change: Change) -> Any:
    """The spec of a put. Of a delete, only the identity is filled in."""
    kind = KINDS[kind_and_verb(change)[0]]
    values = {name: from_json(change[name]) for name in _FIELDS[kind.spec] if name in change}
    if isinstance(values.get("tags"), list):
        values["tags"] = tuple(values["tags"])
    if kind.spec is PermissionSpec or kind.spec is TopicPermissionSpec:
        values = {"configure": "", "write": "", "read": "", **values}
        if kind.spec is TopicPermissionSpec:
            del values["configure"]
    elif kind.spec is ExchangeSpec:
        values.setdefault("type", "")
    elif issubclass(kind.spec, PolicySpec):
        values = {"pattern": "", "apply_to": "all", "priority": 0, "definition": {}, **values}
    elif kind.spec is ParameterSpec or kind.spec is GlobalParameterSpec:
        values.setdefault("value", None)
    return kind.spec(**values)


def encode(change: Change) -> bytes:
    return _ENCODER.encode(change).encode("ascii")


def decode(raw: bytes) -> Change:
    """Raises StoreForeign when it is no change."""
    try:
        change = json.loads(raw)
    except ValueError:
        change = None
    if not isinstance(change, dict):
        raise StoreForeign(path="catalog", problem=f"{raw[:80]!r} is not a change of the catalog")
    return change
