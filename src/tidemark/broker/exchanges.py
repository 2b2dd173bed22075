"""Exchanges: what each type makes of a routing key and headers.

An exchange knows the bindings that begin at it, in the order they were made, and answers one question: which
destinations (queues or further exchanges) does this message go to from here? Each type keeps the index that
answers it fastest; walking from exchange to exchange is the virtual host's work.

Invariant: `bindings` and the index hold the same bindings; a destination is named once in an answer, at the
place of its oldest matching binding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Union

from tidemark.broker.arguments import type_name
from tidemark.broker.core import Meter
from tidemark.broker.headers import HeadersPattern, headers_pattern
from tidemark.broker.policies import NOTHING, Applied, Governed
from tidemark.broker.topics import TopicTree
from tidemark.errors import CommandInvalid, PreconditionFailed
from tidemark.model.partitions import partition_of
from tidemark.model.values import to_json
from tidemark.model.wiring import Arguments, BindingSpec, ExchangeSpec

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue

Destination = Union["Queue", "Exchange"]
PARTITIONS, PARTITION_KEY = "x-partitions", "x-partition-key"
BY_ROUTING_KEY, BY_HEADER = "routing-key", "header:"
PARTITIONS_MAX = 1024
BindingId = tuple[str, bool, str, str, str]
"""Source, whether it leads to a queue, destination, key, arguments: what makes a binding the same one."""


def binding_id(spec: BindingSpec) -> BindingId:
    arguments = json.dumps(to_json(spec.arguments), sort_keys=True) if spec.arguments else ""
    return spec.source, spec.to_queue, spec.destination, spec.key, arguments


@dataclass(eq=False, slots=True)
class Binding:
    """A living binding; `ordinal` rises from one to the next."""

    spec: BindingSpec
    id: BindingId
    destination: Destination
    ordinal: int
    durable: bool


_ordinal = attrgetter("ordinal")


class Exchange(Governed):
    """Base of the types below."""

    type: ClassVar[str]
    by_headers: bool = False
    """The answer depends on the headers, so it cannot be remembered for a key."""
    by_equal_key: ClassVar[bool] = False
    """A binding matters to messages with the very same key only."""

    def __init__(self, spec: ExchangeSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.alternate = self.alternate_by(NOTHING)
        """Where messages go that nobody here wants. It need not exist."""
        self.bindings: dict[BindingId, Binding] = {}
        self.incoming: dict[BindingId, Binding] = {}
        """Bindings that lead here from other exchanges."""
        self.meter = Meter()
        """What clients published here. What came through other exchanges is counted there."""
        self.unroutable = 0
        """Of what was published here, messages that no queue wanted."""

    def alternate_by(self, applied: Applied) -> str | None:
        """Its alternate exchange under these policies; its own argument is stronger."""
        for alternate in (self.spec.arguments.get("alternate-exchange"), applied.value("alternate-exchange")):
            if isinstance(alternate, str):
                return alternate
        return None

    def way_of(self, key: bytes) -> bytes | int:
        """What decides where a message with this key goes, if not all of the key: those that have it in common go the same way."""
        return key

    def attach(self, binding: Binding) -> None:
        self.bindings[binding.id] = binding
        self._index(binding)

    def detach(self, binding: Binding) -> None:
        del self.bindings[binding.id]
        self._unindex(binding)

    def check_binding(self, arguments: Arguments) -> None:
        """Raises PreconditionFailed for binding arguments that mean nothing to this type."""

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:
        """Where a message goes from here, in the order of the bindings, each once."""
        raise NotImplementedError

    def _index(self, binding: Binding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: Binding) -> None:
        raise NotImplementedError


class DirectExchange(Exchange):
    type = "direct"
    by_equal_key = True

    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._by_key: dict[str, dict[BindingId, Binding]] = {}

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:  # noqa: ARG002
        return _once(self._by_key.get(key, {}).values())

    def _index(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.spec.key, {})[binding.id] = binding

    def _unindex(self, binding: Binding) -> None:
        same_key = self._by_key[binding.spec.key]
        del same_key[binding.id]
        if not same_key:
            del self._by_key[binding.spec.key]


class FanoutExchange(Exchange):
    type = "fanout"

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:  # noqa: ARG002
        return _once(self.bindings.values())

    def _index(self, binding: Binding) -> None:
        pass

    def _unindex(self, binding: Binding) -> None:
        pass


class TopicExchange(Exchange):
    type = "topic"

    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._tree: TopicTree[Binding] = TopicTree()

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:  # noqa: ARG002
        return _once(sorted(self._tree.match(key), key=_ordinal))

    def _index(self, binding: Binding) -> None:
        self._tree.add(binding.spec.key, binding)

    def _unindex(self, binding: Binding) -> None:
        self._tree.remove(binding.spec.key, binding)


class HeadersExchange(Exchange):
    type = "headers"
    by_headers = True

    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._patterns: dict[BindingId, HeadersPattern] = {}

    def check_binding(self, arguments: Arguments) -> None:
        headers_pattern(arguments)

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:  # noqa: ARG002
        return _once(self.bindings[id] for id, pattern in self._patterns.items() if pattern.matches(headers))

    def _index(self, binding: Binding) -> None:
        self._patterns[binding.id] = headers_pattern(binding.spec.arguments)

    def _unindex(self, binding: Binding) -> None:
        del self._patterns[binding.id]


class PartitionExchange(Exchange):
    """One of a fixed number of partitions gets the message: a hash of its key says which. Bindings name the partition by its number."""

    type = "x-partition"

    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self.partitions, self.key = _partitioning(spec)
        self._header = self.key.removeprefix(BY_HEADER) if self.key.startswith(BY_HEADER) else None
        self.by_headers = self._header is not None
        self._by_number: dict[str, dict[BindingId, Binding]] = {}
        self._onward = 0
        """How many bindings lead to other exchanges, which look at the key once more."""

    def destinations(self, key: str, headers: dict[str, Any]) -> Iterable[Destination]:
        """A message without the header that decides goes by its routing key."""
        raw = key_text(headers.get(self._header)) if self._header is not None else None
        if raw is None:
            raw = key.encode("utf-8", "surrogateescape")
        return _once(self._by_number.get(str(partition_of(raw, self.partitions)), {}).values())

    def way_of(self, key: bytes) -> bytes | int:
        if self._onward or self.alternate is not None:
            return key
        return -1 if self.by_headers else partition_of(key, self.partitions)

    def bound_to(self, number: int) -> Queue | None:
        """The queue of this partition; the first that was bound, if there are several."""
        found = (binding.destination for binding in self._by_number.get(str(number), {}).values())
        return next((one for one in found if not isinstance(one, Exchange)), None)

    def _index(self, binding: Binding) -> None:
        self._by_number.setdefault(binding.spec.key, {})[binding.id] = binding
        self._onward += not binding.spec.to_queue

    def _unindex(self, binding: Binding) -> None:
        same = self._by_number[binding.spec.key]
        del same[binding.id]
        self._onward -= not binding.spec.to_queue
        if not same:
            del self._by_number[binding.spec.key]


def key_text(value: Any) -> bytes | None:
    """The value of a header as a stream makes a key of it (`model.keys.key_of`); None: it makes none."""
    match value:
        case bool():
            return b"true" if value else b"false"
        case str():
            return value.encode("utf-8", "surrogateescape")
        case bytes():
            return value
        case int():
            return b"%d" % value
    return None


def _partitioning(spec: ExchangeSpec) -> tuple[int, str]:
    """How many partitions, and what decides.

    Raises:
        PreconditionFailed: that is missing, or cannot be.
    """
    where = f"in exchange '{spec.name}' in vhost '{spec.vhost}'"
    count, key = spec.arguments.get(PARTITIONS), spec.arguments.get(PARTITION_KEY, BY_ROUTING_KEY)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= PARTITIONS_MAX:
        raise PreconditionFailed(
            reason=f"invalid arg '{PARTITIONS}' {where}: it must be a number from 1 to {PARTITIONS_MAX}"
        )
    named = isinstance(key, str) and key.startswith(BY_HEADER) and len(key) > len(BY_HEADER)
    if not named and key != BY_ROUTING_KEY:
        raise PreconditionFailed(
            reason=f"invalid arg '{PARTITION_KEY}' {where}: it must be '{BY_ROUTING_KEY}' or '{BY_HEADER}<name>'"
        )
    return count, str(key)


def _once(bindings: Iterable[Binding]) -> Iterable[Destination]:
    return dict.fromkeys(binding.destination for binding in bindings)


TYPES: dict[str, type[Exchange]] = {
    kind.type: kind
    for kind in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange, PartitionExchange)
}

PREDECLARED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


def check_exchange(spec: ExchangeSpec) -> None:
    """Whether such an exchange can be.

    Raises:
        CommandInvalid: its type is unknown.
        PreconditionFailed: an argument that we read is of the wrong type. Others are ignored.
    """
    if spec.type not in TYPES:
        raise CommandInvalid(reason=f"unknown exchange type '{spec.type}'")
    alternate = spec.arguments.get("alternate-exchange", "")
    if not isinstance(alternate, str):
        raise PreconditionFailed(
            reason=f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' "
            f"in exchange '{spec.name}' in vhost '{spec.vhost}'"
        )
    if spec.type == PartitionExchange.type:
        _partitioning(spec)


def check_same_exchange(current: ExchangeSpec, wanted: ExchangeSpec) -> None:
    """Raises PreconditionFailed when `wanted` is declared otherwise than the exchange that is there."""
    for name in ("type", "durable", "auto_delete", "internal"):
        is_now, received = getattr(current, name), getattr(wanted, name)
        if is_now != received:
            raise inequivalent(name, "exchange", wanted, _quoted(received), _quoted(is_now))
    is_now, received = (spec.arguments.get("alternate-exchange") for spec in (current, wanted))
    if is_now != received:
        raise inequivalent("alternate-exchange", "exchange", wanted, _argument(received), _argument(is_now))
    if current.type == PartitionExchange.type:
        for name, now, asked in zip(
            (PARTITIONS, PARTITION_KEY), _partitioning(current), _partitioning(wanted), strict=True
        ):
            if now != asked:
                raise inequivalent(name, "exchange", wanted, _argument(asked), _argument(now))


def inequivalent(argument: str, kind: str, spec: Any, received: str, is_now: str) -> PreconditionFailed:
    return PreconditionFailed(
        reason=f"inequivalent arg '{argument}' for {kind} '{spec.name}' in vhost '{spec.vhost}': "
        f"received {received} but current is {is_now}"
    )


def _quoted(value: str | bool) -> str:
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"'{value}'"


def _argument(value: Any) -> str:
    return "none" if value is None else f"the value '{value}' of type '{type_name(value)}'"
