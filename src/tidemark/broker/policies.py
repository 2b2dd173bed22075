"""Policies: what is wanted for all queues, streams and exchanges whose names match a pattern.

Of the policies that match an object one applies: that of the highest priority, and of equals the first by name.
The same for operator policies. Where both say something about a limit, the smaller one holds; what comes out is
the *effective definition*. It is joined with what the object itself was declared with: of two limits the smaller
one holds, of everything else the argument does. All of this is RabbitMQ's, and so are the words in which a
definition is refused. A key that cannot be of one kind of queue keeps the whole policy from queues of that kind.

`KEYS` is the one table of what a policy can say. `Rules` are the policies of one virtual host, compiled:
`applied` answers which ones apply to a name. Who holds the answer is `Governed`. Queues are asked nothing while
messages pass: they keep the joined values and are told when these change (`Queue.govern`).

A pattern is a regular expression, searched for in the name; a name on which that takes too long (`patterns`) counts as
not matching.

Invariant: what applies depends on the policies and on the object alone, not on the order in which they came.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tidemark.broker.arguments import REPLICATE, Overflow, QueuePolicy, interval_ms
from tidemark.broker.patterns import BadPattern, Pattern, SearchIn
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import MAIN, Arguments, OperatorPolicySpec, PolicySpec

NUMBER_MAX = 1 << 53
NAME_BYTES_MAX = 255
PATTERN_BYTES_MAX = 1024
PROBED_MAX = 1000
"""How many names a new pattern is tried on before it is taken."""
JOINED_MAX = 4096
"""How many different declarations are remembered with what they come to under one policy."""

ALONE = {MAIN: "alone"}
"""The groups of a broker that stands alone, with their modes."""

CLASSIC, QUORUM, STREAM, EXCHANGE = "classic", "quorum", "stream", "exchange"
QUEUES = frozenset({CLASSIC, QUORUM, STREAM})
APPLY_TO: dict[str, frozenset[str]] = {
    "all": QUEUES | {EXCHANGE},
    "queues": QUEUES,
    "classic_queues": frozenset({CLASSIC}),
    "quorum_queues": frozenset({QUORUM}),
    "streams": frozenset({STREAM}),
    "exchanges": frozenset({EXCHANGE}),
}


# What a policy can say ------------------------------------------------------------------------------------


class _Unfit(Exception):
    """A value that a key cannot have; never seen outside."""


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    check: Callable[[Any], Any]
    """The value as it is used. Raises _Unfit."""
    called: str
    """What RabbitMQ calls the value when it refuses one."""
    fact: str | None = None
    """The field of a `QueuePolicy` or `StreamPolicy` that it sets. None: accepted, without effect there."""
    least: bool = False
    """A limit: of several values the smallest holds."""
    operator: bool = False
    """An operator policy may have it."""
    unfit: frozenset[str] = frozenset()
    """Kinds of queues that a policy with this key does not apply to."""
    endless: bool = False
    """0 is no limit at all: the largest of all values."""

    def size(self, value: Any) -> float:
        """By which of several checked values the smallest is found."""
        return math.inf if self.endless and not value else float(value)


def _whole(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= NUMBER_MAX:
            raise _Unfit
        return int(value)

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise _Unfit
    return value


def _one_of(*choices: Any) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or value not in choices:
            raise _Unfit
        return value

    return check


def _overflow(value: Any) -> Overflow:
    try:
        return Overflow(_text(value))
    except ValueError:
        raise _Unfit from None


def _age(value: Any) -> int:
    age_ms = interval_ms(_text(value))
    if not age_ms:
        raise _Unfit
    return age_ms


def _replicate(value: Any) -> str:
    word = _text(value)
    if word not in REPLICATE:
        raise _Unfit
    return REPLICATE[word]


def _anything(value: Any) -> Any:
    return value


_NOT_CLASSIC = frozenset({CLASSIC})
_QUORUM_ONLY = frozenset({CLASSIC, STREAM})
_STREAM_ONLY = frozenset({CLASSIC, QUORUM})
_NO_STREAM = frozenset({STREAM})
_CLASSIC_ONLY = frozenset({QUORUM, STREAM})
_COUNT, _POSITIVE = _whole(0), _whole(1)

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("message-ttl", _COUNT, "message TTL", "message_ttl_ms", True, True, _NO_STREAM),
        Key("expires", _POSITIVE, "queue expiry", "expires_ms", True, True, _NO_STREAM),
        Key("max-length", _COUNT, "maximum length", "length_max", True, True, _NO_STREAM),
        Key("max-length-bytes", _COUNT, "maximum length in bytes", "length_bytes_max", True, True),
        Key("overflow", _overflow, "overflow value", "overflow", unfit=_NO_STREAM),
        Key(
            "dead-letter-exchange",
            _text,
            "dead letter exchange name",
            "dead_letter_exchange",
            unfit=_NO_STREAM,
        ),
        Key("dead-letter-routing-key", _text, "dead letter routing key", "dead_letter_key", unfit=_NO_STREAM),
        Key("delivery-limit", _COUNT, "delivery limit", "delivery_limit", True, True, _QUORUM_ONLY),
        Key("consumer-timeout", _COUNT, "consumer timeout", "consumer_timeout_ms", True, True, endless=True),
        Key("alternate-exchange", _text, "alternate exchange name"),
        # Of streams
        Key("max-age", _age, "max age", "age_ms_max", True, unfit=_STREAM_ONLY),
        Key(
            "stream-tombstone-lease",
            _COUNT,
            "tombstone lease",
            "tombstone_lease_ms",
            False,
            False,
            _STREAM_ONLY,
        ),
        Key("stream-pin-bytes-max", _COUNT, "limit of pins", "pin_bytes_max", True, True, _STREAM_ONLY),
        # Of a cluster: all are asked when a queue is made; group and mode are checked against what there is
        Key("group", _text, "group"),
        Key("cluster-mode", _text, "cluster mode"),
        Key("replicate", _replicate, "replicate value"),
        # What RabbitMQ knows and what makes no difference here
        Key(
            "dead-letter-strategy",
            _one_of("at-most-once", "at-least-once"),
            "dead letter strategy",
            unfit=_QUORUM_ONLY,
        ),
        Key("max-in-memory-length", _COUNT, "maximum memory in bytes", None, True, True, _NO_STREAM),
        Key("max-in-memory-bytes", _COUNT, "maximum memory in bytes", None, True, True, _NO_STREAM),
        Key("queue-mode", _one_of("default", "lazy"), "queue-mode value", unfit=_CLASSIC_ONLY),
        Key("queue-version", _one_of(1, 2), "queue-version value"),
        Key("queue-master-locator", _text, "queue master locator", unfit=_CLASSIC_ONLY),
        Key(
            "queue-leader-locator",
            _one_of("client-local", "balanced", "random", "least-leaders"),
            "queue leader locator value",
            unfit=_NOT_CLASSIC,
        ),
        Key("initial-cluster-size", _COUNT, "cluster size", unfit=_STREAM_ONLY),
        Key("stream-max-segment-size-bytes", _COUNT, "segment size", unfit=_STREAM_ONLY),
        Key("ha-mode", _one_of("all", "exactly", "nodes"), "ha-mode value", unfit=_CLASSIC_ONLY),
        Key("ha-params", _anything, "ha-params value", unfit=_CLASSIC_ONLY),
        Key("ha-sync-mode", _one_of("manual", "automatic"), "ha-sync-mode value", unfit=_CLASSIC_ONLY),
        Key("ha-sync-batch-size", _COUNT, "ha-sync-batch-size value"),
        Key(
            "ha-promote-on-shutdown",
            _one_of("always", "when-synced"),
            "ha-promote-on-shutdown value",
            unfit=_CLASSIC_ONLY,
        ),
        Key(
            "ha-promote-on-failure",
            _one_of("always", "when-synced"),
            "ha-promote-on-failure value",
            unfit=_CLASSIC_ONLY,
        ),
    )
}


def check_policy(spec: PolicySpec, *, groups: Mapping[str, str] = ALONE, names: Iterable[str] = ()) -> None:
    """Whether this policy can be, in a cluster of these groups (with their modes). Its pattern is tried on some of `names`.

    Raises:
        PreconditionFailed: it cannot, in RabbitMQ's words.
    """
    if not spec.name or len(spec.name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise invalid(f"the name of a policy has 1 to {NAME_BYTES_MAX} bytes")
    if not isinstance(spec.priority, int) or isinstance(spec.priority, bool):
        raise invalid(f"priority should be a number, actually was {shown(spec.priority)}")
    if abs(spec.priority) > NUMBER_MAX:
        raise invalid(f"priority should be at most {NUMBER_MAX}, actually was {spec.priority}")
    if spec.apply_to not in APPLY_TO:
        raise invalid(
            f"apply-to '{spec.apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', "
            "'quorum_queues', 'streams', 'exchanges', or 'all'"
        )
    _check_definition(spec)
    _check_cluster(spec.definition, groups)
    _check_pattern(spec.pattern, names)


def _check_definition(spec: PolicySpec) -> None:
    definition, operator = spec.definition, isinstance(spec, OperatorPolicySpec)
    if not isinstance(definition, dict):
        raise invalid(f"definition must be a dictionary: {shown(definition)}")
    if not definition:
        raise invalid("no policy provided")
    for name, value in definition.items():
        key = KEYS.get(name)
        if key is not None and (key.operator or not operator):
            try:
                key.check(value)
            except _Unfit:
                raise invalid(f"{shown(value)} is not a valid {key.called}") from None
    unknown = {n: v for n, v in definition.items() if n not in KEYS or (operator and not KEYS[n].operator)}
    if unknown:
        listed = ",".join(f"{{{shown(name)},{shown(value)}}}" for name, value in unknown.items())
        raise invalid(f"[{listed}] are not recognised policy settings")


def _check_cluster(definition: Mapping[str, Any], groups: Mapping[str, str]) -> None:
    group, mode = definition.get("group"), definition.get("cluster-mode")
    if group is not None and group not in groups:
        raise invalid(f"group '{group}' cannot be had: there is only {', '.join(map(repr, groups))}")
    if mode is not None and mode not in groups.values():
        modes = ", ".join(f"'{has}'" for has in dict.fromkeys(groups.values()))
        if len(groups) > 1:
            here = f"the modes of this cluster's groups are {modes}"
        else:
            here = "this broker stands alone" if modes == "'alone'" else f"this cluster's mode is {modes}"
        raise invalid(f"mode '{mode}' cannot be had: {here}, and a queue has the mode of its group")


def _check_pattern(pattern: Any, names: Iterable[str]) -> None:
    if not isinstance(pattern, str):
        raise invalid(f"pattern should be a binary but was {shown(pattern)}")
    size = len(pattern.encode("utf-8", "surrogateescape"))
    if size > PATTERN_BYTES_MAX:
        raise invalid(f"pattern should have at most {PATTERN_BYTES_MAX} bytes, this one has {size}")
    try:
        search = Pattern(pattern)
    except BadPattern as problem:
        raise invalid(f"pattern should be regular expression but is invalid: {problem}") from None
    first = next(iter(_LETTERS.findall(pattern)), "a")
    probes = [first * 254 + "!", "a" * 254 + "!", "a." * 127]
    for name, _ in zip(names, range(PROBED_MAX), strict=False):
        probes.append(name)
    for name in probes:
        search.search(name)
        if search.slow:
            raise invalid(
                "pattern takes too long to search for: repeats within repeats, or alternatives within "
                "repeats that begin alike, must be written more simply"
            )


_LETTERS = re.compile(r"[A-Za-z0-9]")


def invalid(problem: str) -> PreconditionFailed:
    """As RabbitMQ refuses a parameter."""
    return PreconditionFailed(reason=f"Validation failed\n\n{problem}\n")


def shown(value: Any) -> str:
    """A JSON value as Erlang writes it."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case str():
            return f'<<"{value}">>'
        case list() | tuple():
            return f"[{','.join(map(shown, value))}]"
        case dict():
            return f"#{{{','.join(f'{shown(name)} => {shown(one)}' for name, one in value.items())}}}"
        case _:
            return str(value)


# Which ones apply -------------------------------------------------------------------------------------------


_Policy = TypeVar("_Policy", bound=QueuePolicy)


@dataclass(eq=False, slots=True)
class Applied:
    """What applies to an object: the names of a policy and an operator policy, and what they say together."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Arguments = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    """Of the definition, what is valid, as it is used."""
    _joined: dict[tuple[int, tuple[str, ...]], tuple[Any, Any]] = field(default_factory=dict)
    """By the identity of what was declared, which is kept so that nothing else gets it, and the keys given there."""

    def value(self, key: str) -> Any:
        """What is wanted for this key; None: nothing."""
        return self._values.get(key)

    def joined(self, declared: _Policy, arguments: Mapping[str, Any]) -> _Policy:
        """What an object that was declared so, with these arguments, goes by."""
        if not self._values:
            return declared
        given = tuple(key for key in self._values if f"x-{key}" in arguments) if arguments else ()
        known: _Policy | None = self._joined.get((id(declared), given), (None, None))[1]
        if known is None:
            facts: dict[str, Any] = {}
            for name, value in self._values.items():
                key = KEYS[name]
                if key.fact is None or not hasattr(declared, key.fact) or (name in given and not key.least):
                    continue
                argument = getattr(declared, key.fact) if name in given else None
                facts[key.fact] = value if argument is None else min(argument, value, key=key.size)
            known = replace(declared, **facts)
            if len(self._joined) >= JOINED_MAX:
                self._joined.clear()
            self._joined[id(declared), given] = declared, known
        return known


NOTHING = Applied()


def _valid(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What can be used of a definition. One that came from an older catalog was not checked."""
    values: dict[str, Any] = {}
    for name, value in definition.items():
        if name in KEYS:
            try:
                values[name] = KEYS[name].check(value)
            except _Unfit:
                continue
    return values


def merged(definition: Arguments, operator: Arguments) -> Arguments:
    """The definitions of a policy and an operator policy as one."""
    both = {**definition, **operator}
    for name in definition.keys() & operator.keys():
        if name in KEYS and KEYS[name].least:
            key = KEYS[name]
            usable = [value for value in (definition[name], operator[name]) if _valid({name: value})]
            both[name] = min(usable, key=lambda value: key.size(key.check(value)), default=operator[name])
    return both


class Rule:
    """One policy, ready to be asked."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        unfit = {kind for name in spec.definition if name in KEYS for kind in KEYS[name].unfit}
        self.kinds = APPLY_TO.get(spec.apply_to, frozenset()) - unfit
        """The kinds of objects that it can apply to."""
        self.order = -spec.priority, spec.name
        try:
            self.pattern: Pattern | None = Pattern(spec.pattern)
        except BadPattern:
            self.pattern = None  # of an older catalog
            self.kinds = frozenset()

    def matches(self, kind: str, name: str) -> bool:
        return kind in self.kinds and self.pattern is not None and bool(self.pattern.search(name))


class _Table:
    """The policies of one virtual host, or its operator policies: which one wins for a name."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self._by_kind: dict[str, list[tuple[SearchIn, Rule]]] = {}

    def put(self, rule: Rule) -> Rule | None:
        """Returns the one whose place it takes."""
        before = self.rules.get(rule.spec.name)
        self.rules[rule.spec.name] = rule
        self._by_kind.clear()
        return before

    def remove(self, name: str) -> None:
        self.rules.pop(name, None)
        self._by_kind.clear()

    def winner(self, kind: str, name: str) -> str | None:
        """The name of the policy that applies."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = [
                (rule.pattern.search, rule)
                for rule in sorted(self.rules.values(), key=lambda rule: rule.order)
                if kind in rule.kinds and rule.pattern is not None
            ]
        for search, rule in found:
            if search(name):
                return rule.spec.name
        return None

    def winner_after(
        self, rule: Rule | None, old: Rule | None, kind: str, name: str, won: str | None
    ) -> str | None:
        """The same, when only `rule` has come, in the place of `old` if that was one (None: it went), and `won` won before.

        Whatever ranks above the one that won does not match; so mostly it is enough to ask the new one.
        """
        if rule is None:
            return self.winner(kind, name) if old is not None and won == old.spec.name else won
        if won == rule.spec.name:
            stays = old is not None and rule.order <= old.order and rule.matches(kind, name)
            return won if stays else self.winner(kind, name)
        ranks = won is None or rule.order < self.rules[won].order
        return rule.spec.name if ranks and rule.matches(kind, name) else won


class Rules:
    """The policies of one virtual host."""

    def __init__(self) -> None:
        self._tables = _Table(), _Table()
        """Of policies, and of operator policies."""
        self._applied: dict[tuple[str | None, str | None], Applied] = {}
        self.slow: dict[str, None] = {}
        """Policies whose patterns were given up on some name. Whoever reports them empties it."""

    def put(self, spec: PolicySpec) -> Amendment:
        """Take it, in place of one of the same name."""
        operator, rule = isinstance(spec, OperatorPolicySpec), Rule(spec)
        old = self._tables[operator].put(rule)
        self._applied.clear()
        return Amendment(self, operator, rule, old)

    def remove(self, name: str, *, operator: bool) -> Amendment:
        old = self._tables[operator].rules.get(name)
        self._tables[operator].remove(name)
        self._applied.clear()
        return Amendment(self, operator, None, old)

    def applied(self, kind: str, name: str) -> Applied:
        """What applies to an object of this kind and name."""
        policies, operators = self._tables
        return self.of(policies.winner(kind, name), operators.winner(kind, name))

    def applied_to_new(self, kind: str, name: str) -> Applied:
        """What applies to an object that has just been made."""
        applied = self.applied(kind, name)
        self.rested()
        return applied

    def of(self, policy: str | None, operator_policy: str | None) -> Applied:
        """What these two say together."""
        names = policy, operator_policy
        known = self._applied.get(names)
        if known is None:
            if policy is None and operator_policy is None:
                return NOTHING
            definitions = (
                {} if name is None else table.rules[name].spec.definition
                for name, table in zip(names, self._tables, strict=True)
            )
            definition = merged(*definitions)
            known = self._applied[names] = Applied(policy, operator_policy, definition, _valid(definition))
        return known

    def winner_after(self, change: Amendment, kind: str, name: str, won: str | None) -> str | None:
        return self._tables[change.operator].winner_after(change.rule, change.old, kind, name, won)

    def rested(self) -> None:
        """A pass over names has ended: patterns that were given up in it get another chance in the next."""
        for table in self._tables:
            for rule in table.rules.values():
                if rule.pattern is not None and rule.pattern.rest():
                    self.slow[rule.spec.name] = None


@dataclass(frozen=True, slots=True)
class Amendment:
    """One policy has come, changed or gone."""

    rules: Rules
    operator: bool
    rule: Rule | None
    old: Rule | None

    def applied(self, one: Governed) -> Applied:
        """What applies to this object from now on; the very same as before when nothing of it has changed."""
        before = one.applied
        won = before.operator_policy if self.operator else before.policy
        wins = self.rules.winner_after(self, one.governed_as, one.name, won)
        if wins == won and (self.rule is None or won != self.rule.spec.name):
            return before
        return (
            self.rules.of(before.policy, wins)
            if self.operator
            else self.rules.of(wins, before.operator_policy)
        )


class Governed:
    """A queue, stream or exchange that policies apply to."""

    name: str
    applied: Applied = NOTHING
    governed_as: str = EXCHANGE
    """What kind of object it is to a policy."""

    @property
    def applied_policy(self) -> str | None:
        return self.applied.policy

    @property
    def applied_operator_policy(self) -> str | None:
        return self.applied.operator_policy

    @property
    def effective_policy_definition(self) -> Arguments:
        return self.applied.definition
