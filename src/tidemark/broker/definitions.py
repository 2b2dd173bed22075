"""Definitions in RabbitMQ's JSON format: everything an operator configured, out and in.

`export` writes what its management plugin writes, so that the same tools and files serve both brokers.
`import_steps` reads such a document in two parts: `_Plan` checks all of it against itself and against
what is here and turns it into specs; only then is anything changed. It can be left after every item and gone on with
later, so that a long one keeps nobody waiting. What exists already is kept as it is, as
RabbitMQ does, but for users and their limits, permissions, parameters and policies, which are replaced. As there,
operator policies and the limits of virtual hosts are parameters, of the components `operator_policy` and
`vhost-limits`. A binding with an end that is
neither here nor in the document is left out and reported: RabbitMQ writes such, of exclusive queues and internal exchanges.

Invariant: an import either makes everything the document asks for or, when it is refused, nothing.
What somebody else made or deleted between two steps is kept or left out, and reported so.
Importing a document twice changes nothing the second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tidemark.broker import limits
from tidemark.broker.access import RABBITMQ_HASHES, check_stored_hash, compile_pattern, verify
from tidemark.broker.arguments import check_queue_arguments, check_replicate, is_stream
from tidemark.broker.exchanges import PREDECLARED, TYPES, check_exchange
from tidemark.broker.policies import PATTERN_BYTES_MAX, check_policy
from tidemark.broker.streams.policy import check_stream_arguments, checked_name
from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.model import values
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

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker

RABBITMQ_VERSION = "3.10.8"
"""Whose format this is; RabbitMQ's tools look for it."""
SCRYPT = "tidemark_scrypt"
"""The name of our own hashes under `hashing_algorithm`."""
NAME_BYTES_MAX = 255
OPERATOR_POLICY = "operator_policy"
"""The component under which RabbitMQ keeps operator policies among the parameters."""
IN_VHOST = ("parameters", "policies", "exchanges", "queues", "bindings")
"""Sections of what belongs to a virtual host, in the order in which they need one another."""

Document = dict[str, Any]
Describe = Callable[[Any], dict[str, Any]]
Section = tuple[list[Any], Describe]
"""Specs, and what writes one of them."""
HEAD = {
    "rabbit_version": RABBITMQ_VERSION,
    "rabbitmq_version": RABBITMQ_VERSION,
    "product_name": "Tidemark",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, in numbers by section."""

    made: dict[str, int]
    kept: dict[str, int]
    left_out: tuple[str, ...]
    """Bindings that lead from or to nothing, and what lost what it needs meanwhile; each with its position and what is
    missing."""
    safe_at: int
    """The sequence of the catalog log that must be durable before this may be reported."""


# Out ------------------------------------------------------------------------------------------


def export(broker: Broker, vhost: str | None = None) -> Document:
    """Everything, or (without users and permissions) what is in one virtual host, for this or any other one.

    Raises:
        NotFound: there is no such virtual host.
    """
    sections = outline(broker, vhost).items()
    return {**HEAD, **{name: [describe(spec) for spec in specs] for name, (specs, describe) in sections}}


def outline(broker: Broker, vhost: str | None = None) -> dict[str, Section]:
    """The sections of an export, their items not written yet: that takes long when there are many.

    Raises:
        NotFound: there is no such virtual host.
    """
    hosts = list(broker.vhosts.values()) if vhost is None else [broker.vhost(vhost)]
    names = {host.name for host in hosts}
    queues = [q.spec for host in hosts for q in host.queues.values() if not q.spec.exclusive]
    shared = {(spec.vhost, spec.name) for spec in queues}
    parameters: list[Any] = [p for p in broker.parameters.values() if p.vhost in names]
    parameters += [p for p in broker.operator_policies.values() if p.vhost in names]
    bindings = [
        b.spec
        for host in hosts
        for b in host.bindings()
        if not b.spec.to_queue or (b.spec.vhost, b.spec.destination) in shared
    ]
    exchanges = [x.spec for host in hosts for x in host.exchanges.values() if x.name not in PREDECLARED]
    inside: dict[str, Section] = {
        "parameters": (parameters, _parameter),
        "policies": ([p for p in broker.policies.values() if p.vhost in names], _policy),
        "queues": (queues, _queue),
        "exchanges": (exchanges, _fields),
        "bindings": (bindings, _binding),
    }
    if vhost is not None:
        return {name: (specs, _without_vhost(describe)) for name, (specs, describe) in inside.items()}
    access, user_limits = broker.access, broker.user_limits
    return {
        "users": (list(access.users.values()), lambda user: _user(user, user_limits.get(user.name, {}))),
        "vhosts": ([host.spec for host in hosts], _vhost),
        "permissions": (list(access.permissions.values()), _fields),
        "topic_permissions": (list(access.topic_permissions.values()), _fields),
        "global_parameters": (list(broker.global_parameters.values()), _fields),
        **inside,
    }


def _without_vhost(describe: Describe) -> Describe:
    return lambda spec: _without(describe(spec), "vhost")


def _parameter(spec: ParameterSpec | OperatorPolicySpec) -> dict[str, Any]:
    return _operator_policy(spec) if isinstance(spec, OperatorPolicySpec) else _fields(spec)


def _fields(spec: Any) -> dict[str, Any]:
    return {one.name: _plain(getattr(spec, one.name)) for one in fields(spec)}


def _without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _queue(spec: QueueSpec) -> dict[str, Any]:
    # Where and how much of it a cluster keeps is decided anew where it is imported: by what is exported with it.
    fields = _without(_fields(spec), "exclusive", "number", "replicate", "group", "incarnation")
    return {**fields, "type": fields["arguments"].get("x-queue-type", "classic")}


def _vhost(spec: VhostSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "limits": [],
        "metadata": {"description": spec.description, "tags": list(spec.tags)},
    }


def _user(spec: UserSpec, own_limits: limits.Limits) -> dict[str, Any]:
    algorithm, _, rest = spec.password_hash.partition("$")
    ours = algorithm not in RABBITMQ_HASHES
    return {
        "name": spec.name,
        "password_hash": spec.password_hash if ours else rest,
        "hashing_algorithm": SCRYPT if ours else algorithm,
        "tags": list(spec.tags),
        "limits": dict(own_limits),
    }


def _policy(spec: PolicySpec) -> dict[str, Any]:
    return {**_without(_fields(spec), "apply_to"), "apply-to": spec.apply_to}


def _operator_policy(spec: OperatorPolicySpec) -> dict[str, Any]:
    value = _without(_policy(spec), "vhost", "name")
    return {"vhost": spec.vhost, "component": OPERATOR_POLICY, "name": spec.name, "value": value}


def _binding(spec: BindingSpec) -> dict[str, Any]:
    return {
        "source": spec.source,
        "vhost": spec.vhost,
        "destination": spec.destination,
        "destination_type": "queue" if spec.to_queue else "exchange",
        "routing_key": spec.key,
        "arguments": _plain(spec.arguments),
    }


def _plain(value: Any) -> Any:
    """As near as JSON comes to it."""
    match value:
        case None | bool():
            return value
        case str():
            try:
                return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            except UnicodeEncodeError:  # half of a surrogate pair, which no text should have
                return value.encode("utf-8", "replace").decode()
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case values.Decimal():
            return value.unscaled / 10**value.scale
        case dict():
            return {_plain(name): _plain(item) for name, item in value.items()}
        case _:
            return [_plain(item) for item in value]


# In -------------------------------------------------------------------------------------------


def import_definitions(broker: Broker, document: Document, vhost: str | None = None) -> Imported:
    """Make what the document asks for. With `vhost`, all that belongs to any virtual host is for that one, and the
    rest is left alone.

    Raises:
        PreconditionFailed: something in it cannot be, named by its section and position. Nothing was changed.
    """
    steps = import_steps(broker, document, vhost)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: Imported = end.value
            return done


def import_steps(
    broker: Broker, document: Document, vhost: str | None = None
) -> Generator[None, None, Imported]:
    """The same, with a stop after each item, where others may have their turn.

    Raises:
        PreconditionFailed: as `import_definitions`, before anything is changed.
    """
    plan = _Plan(broker, vhost)
    yield from plan.read(document)
    for planned in plan.made:
        try:
            if _make(broker, planned.spec):
                plan.count(planned.section, made=True)
            else:
                plan.count(planned.section, made=False)
        except _LeadsNowhere as missing:
            plan.left_out.append(f"{planned.section}[{planned.position}]: {missing}")
        yield
    for limits_of_user in plan.limits:
        if limits_of_user.user in broker.access.users:
            broker.put(limits_of_user)
        yield
    return Imported(
        dict(plan.counts[True]), dict(plan.counts[False]), tuple(plan.left_out), broker.catalog.last_seq
    )


def _make(broker: Broker, spec: Any) -> bool:
    """Make it, unless somebody else did since the document was read: then it is kept, and this is False.

    Raises:
        _LeadsNowhere: what it needs was here then, or was to be made, and is gone.
    """
    if isinstance(spec, VhostSpec):
        if spec.name in broker.vhosts:
            return False
    elif isinstance(spec, UserSpec | GlobalParameterSpec):
        pass
    elif spec.vhost not in broker.vhosts:
        raise _LeadsNowhere(f"no vhost '{spec.vhost}'")
    elif isinstance(spec, PermissionSpec | TopicPermissionSpec) and spec.user not in broker.access.users:
        raise _LeadsNowhere(f"no user '{spec.user}'")
    match spec:
        case QueueSpec():
            if spec.name in broker.vhosts[spec.vhost].queues:
                return False
            broker.create_queue(spec)
        case ExchangeSpec():
            if spec.name in broker.vhosts[spec.vhost].exchanges:
                return False
            broker.put(spec, durable=spec.durable)
        case BindingSpec():
            host = broker.vhosts[spec.vhost]
            if spec.source not in host.exchanges:
                raise _LeadsNowhere(f"no exchange '{spec.source}' in vhost '{spec.vhost}'")
            if spec.destination not in (host.queues if spec.to_queue else host.exchanges):
                kind = "queue" if spec.to_queue else "exchange"
                raise _LeadsNowhere(f"no {kind} '{spec.destination}' in vhost '{spec.vhost}'")
            if host.binding(spec) is not None:
                return False
            broker.bind(spec)
        case _:
            broker.put(spec)
    return True


class _LeadsNowhere(Exception):
    """Something without what it needs, such as a binding without one of its ends; never seen outside."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is to be made, and where the document asks for it."""

    section: str
    position: int
    spec: Spec


class _Plan:
    """Reads a document section by section, in the order in which things need one another."""

    def __init__(self, broker: Broker, vhost: str | None) -> None:
        self.made: list[_Planned] = []
        self.limits: list[UserLimitsSpec] = []
        self.counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        """By section, what was made and what was kept."""
        self.left_out: list[str] = []
        self._broker = broker
        self._vhost = vhost
        self._vhosts = set(broker.vhosts)
        self._users = set(broker.access.users)
        self._exchanges = {
            (v.name, x.name): x.spec for v in broker.vhosts.values() for x in v.exchanges.values()
        }
        self._queues = {(v.name, name) for v in broker.vhosts.values() for name in v.queues}

    def count(self, section: str, *, made: bool) -> None:
        self.counts[made][section] += 1

    def read(self, document: Document) -> Iterator[None]:
        sections: dict[str, Callable[[_Item], Spec | None]] = {
            "vhosts": self._read_vhost,
            "users": self._read_user,
            "permissions": self._read_permission,
            "topic_permissions": self._read_topic_permission,
            "global_parameters": self._read_global_parameter,
            "parameters": self._read_parameter,
            "policies": self._read_policy,
            "exchanges": self._read_exchange,
            "queues": self._read_queue,
            "bindings": self._read_binding,
        }
        if not isinstance(document, dict):
            raise PreconditionFailed(
                reason="definitions must be a JSON object with sections such as 'queues'"
            )
        for section, read in sections.items():
            if self._vhost is not None and section not in IN_VHOST:
                continue
            items = document.get(section) or []
            if not isinstance(items, list):
                raise PreconditionFailed(reason=f"definitions: {section} must be a list")
            for position, given in enumerate(items):
                where = f"definitions: {section}[{position}]"
                if not isinstance(given, dict):
                    raise PreconditionFailed(reason=f"{where} must be an object")
                try:
                    spec = read(_Item(where, given))
                except _LeadsNowhere as missing:
                    self.left_out.append(f"{section}[{position}]: {missing}")
                    continue
                except TidemarkError as problem:
                    text = " ".join(str(problem).split())
                    raise PreconditionFailed(
                        reason=text if text.startswith(where) else f"{where}: {text}"
                    ) from None
                if spec is None or self._is_there(spec):
                    self.count(section, made=False)
                else:
                    self.made.append(_Planned(section, position, spec))
                yield

    def _is_there(self, spec: Spec) -> bool:
        """Whether it is here already, exactly so."""
        broker, access = self._broker, self._broker.access
        match spec:
            case UserSpec():
                return access.users.get(spec.name) == spec
            case PermissionSpec():
                return access.permissions.get((spec.user, spec.vhost)) == spec
            case TopicPermissionSpec():
                return access.topic_permissions.get((spec.user, spec.vhost, spec.exchange)) == spec
            case GlobalParameterSpec():
                return broker.global_parameters.get(spec.name) == spec
            case ParameterSpec():
                return broker.parameters.get((spec.vhost, spec.component, spec.name)) == spec
            case OperatorPolicySpec():
                return broker.operator_policies.get((spec.vhost, spec.name)) == spec
            case PolicySpec():
                return broker.policies.get((spec.vhost, spec.name)) == spec
            case BindingSpec():
                return spec.vhost in broker.vhosts and broker.vhosts[spec.vhost].binding(spec) is not None
            case _:
                return False

    def _read_vhost(self, item: _Item) -> Spec | None:
        name = item.name("name")
        if name in self._vhosts:
            return None
        self._vhosts.add(name)
        self._exchanges |= {
            (name, predeclared): ExchangeSpec(name, predeclared, kind, durable=True)
            for predeclared, kind in PREDECLARED.items()
        }
        metadata = item.table("metadata")
        description = item.text("description", metadata.get("description", ""))
        return VhostSpec(name, description, item.tags(metadata.get("tags", [])))

    def _read_user(self, item: _Item) -> Spec | None:
        name = item.name("name")
        known = self._broker.access.users.get(name)
        self._users.add(name)
        if "password" in item.fields:
            password = item.text("password")
            if known is not None and verify(known.password_hash, password):
                stored = known.password_hash
            else:
                stored = self._broker.password_hash(password)
        else:
            stored = item.text("password_hash", "")
            algorithm = item.text("hashing_algorithm", "rabbit_password_hashing_sha256")
            if stored and algorithm != SCRYPT:
                stored = f"{algorithm}${stored}"
            if known is not None and not stored:
                stored = known.password_hash
            check_stored_hash(stored)
        if "limits" in item.fields:
            # RabbitMQ writes no limits as an empty list, too.
            own = limits.check_limits("user-limits", limits.OF_USER, item.fields["limits"] or {})
            if own != self._broker.user_limits.get(name, {}):
                self.limits.append(UserLimitsSpec(name, own))
        return UserSpec(name, stored, item.tags([]))

    def _read_permission(self, item: _Item) -> Spec | None:
        return PermissionSpec(
            self._user(item),
            self._host(item),
            item.pattern("configure"),
            item.pattern("write"),
            item.pattern("read"),
        )

    def _read_topic_permission(self, item: _Item) -> Spec | None:
        return TopicPermissionSpec(
            self._user(item),
            self._host(item),
            item.text("exchange"),
            item.pattern("write"),
            item.pattern("read"),
        )

    def _read_global_parameter(self, item: _Item) -> Spec | None:
        return GlobalParameterSpec(item.name("name"), item.fields.get("value"))

    def _read_parameter(self, item: _Item) -> Spec | None:
        host, component, name = self._host(item), item.name("component"), item.name("name")
        value = item.fields.get("value")
        if component == OPERATOR_POLICY:
            return self._policy(OperatorPolicySpec, host, name, _Item(item.where, item.table("value")))
        if (component, name) == (limits.COMPONENT, limits.PARAMETER):
            value = limits.check_limits(name, limits.OF_VHOST, value or {})
        return ParameterSpec(host, component, name, value)

    def _read_policy(self, item: _Item) -> Spec | None:
        return self._policy(PolicySpec, self._host(item), item.name("name"), item)

    def _policy(self, kind: type[PolicySpec], vhost: str, name: str, item: _Item) -> PolicySpec:
        spec = kind(
            vhost,
            name,
            item.text("pattern", bytes_max=PATTERN_BYTES_MAX),
            item.text("apply-to", "all"),
            item.number("priority", 0),
            item.table("definition"),
        )
        names = (one for host, one in (*self._exchanges, *self._queues) if host == vhost)
        check_policy(spec, groups=self._broker.groups, names=names)
        return spec

    def _read_exchange(self, item: _Item) -> Spec | None:
        spec = ExchangeSpec(
            self._host(item),
            item.name("name"),
            item.text("type"),
            item.flag("durable"),
            item.flag("auto_delete"),
            item.flag("internal"),
            item.table("arguments"),
        )
        checked_name("an exchange", spec.name)
        check_exchange(spec)
        if (spec.vhost, spec.name) in self._exchanges:
            return None
        self._exchanges[spec.vhost, spec.name] = spec
        return spec

    def _read_queue(self, item: _Item) -> Spec | None:
        spec = QueueSpec(
            self._host(item),
            item.name("name"),
            item.flag("durable"),
            False,
            item.flag("auto_delete"),
            item.table("arguments"),
        )
        checked_name("a queue", spec.name)
        if is_stream(spec.arguments):
            check_stream_arguments(
                spec.name, spec.vhost, spec.arguments, spec.durable, spec.exclusive, spec.auto_delete
            )
        else:
            check_queue_arguments(spec.name, spec.vhost, spec.arguments, spec.durable, spec.exclusive)
        check_replicate(spec.name, spec.vhost, spec.arguments, spec.durable, spec.exclusive)
        self._broker.check_placed(spec)
        if (spec.vhost, spec.name) in self._queues:
            return None
        self._queues.add((spec.vhost, spec.name))
        return spec

    def _read_binding(self, item: _Item) -> Spec | None:
        vhost, source, destination = self._host(item), item.text("source"), item.name("destination")
        kind = item.text("destination_type")
        if kind not in ("queue", "exchange"):
            raise item.wrong("destination_type", "'queue' or 'exchange'")
        spec = BindingSpec(
            vhost, source, destination, kind == "queue", item.text("routing_key"), item.table("arguments")
        )
        if source == "":
            return None  # every queue has this one by itself
        exchange = self._exchanges.get((vhost, source))
        if exchange is None:
            raise _LeadsNowhere(f"no exchange '{source}' in vhost '{vhost}'")
        there = self._queues if spec.to_queue else self._exchanges
        if (vhost, destination) not in there:
            raise _LeadsNowhere(f"no {kind} '{destination}' in vhost '{vhost}'")
        TYPES[exchange.type](exchange).check_binding(spec.arguments)
        return spec

    def _host(self, item: _Item) -> str:
        name = item.text("vhost") if self._vhost is None else self._vhost
        if name not in self._vhosts:
            raise PreconditionFailed(reason=f"no vhost '{name}'")
        return name

    def _user(self, item: _Item) -> str:
        name = item.text("user")
        if name not in self._users:
            raise PreconditionFailed(reason=f"no user '{name}'")
        return name


_REQUIRED: Any = None


@dataclass(frozen=True, slots=True)
class _Item:
    """One object of a section; reads its fields with their types."""

    where: str
    fields: dict[str, Any]

    def wrong(self, name: str, expected: str) -> PreconditionFailed:
        return PreconditionFailed(reason=f"{self.where}: '{name}' must be {expected}")

    def text(self, name: str, default: str | None = _REQUIRED, *, bytes_max: int = NAME_BYTES_MAX) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        if len(value.encode("utf-8", "surrogatepass")) > bytes_max and name != "password_hash":
            raise self.wrong(name, f"at most {bytes_max} bytes long")
        return value

    def name(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise self.wrong(name, "at least one character")
        return value

    def pattern(self, name: str) -> str:
        value = self.text(name)
        compile_pattern(value)
        return value

    def flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def number(self, name: str, default: int) -> int:
        value = self.fields.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, "a whole number")
        return value

    def table(self, name: str) -> dict[str, Any]:
        value = self.fields.get(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def tags(self, default: Any) -> tuple[str, ...]:
        """A list, or (as older versions wrote it) words with commas between them."""
        value = self.fields.get("tags", default)
        if isinstance(value, str):
            value = [word.strip() for word in value.split(",") if word.strip()]
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.wrong("tags", "a list of words")
        return tuple(value)
