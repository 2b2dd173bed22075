"""What the arguments of a stream mean, decided at its declaration.

`check_stream_arguments` turns the table that a client sent into a `StreamPolicy`, or refuses it: in RabbitMQ's
words where RabbitMQ has the argument too. Arguments that only other kinds of queues have are refused, as there;
those that nobody knows are ignored.

Invariant: a stream that exists has a valid policy. The number of its shards can only grow; its limits change with
the policies that apply to its name (`broker.policies`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.broker.arguments import QueuePolicy, interval_ms, type_name
from tidemark.errors import PreconditionFailed
from tidemark.model import keys, values

SHARDS_MAX = 1024
SLOTS = 65_536
"""Slots that keys are spread over; a shard is a range of them."""
TOMBSTONE_LEASE_MS = 7 * 86_400_000
NAME_BYTES_MAX = 255
"""Longest name of a queue, an exchange, a consumer, a pin or a producer: what protocols have room for."""

_RULES = {
    "none": keys.NO_KEY,
    "log": keys.LOG,
    "routing-key": keys.ROUTING_KEY,
    "message-id": keys.MESSAGE_ID,
}
_HEADER = "header:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy(QueuePolicy):
    """How a stream treats its messages. Fields of other queues stay at what means nothing."""

    kind: str = "stream"
    key_kind: int = keys.NO_KEY
    key_name: bytes = b""
    shards: int = 1
    age_ms_max: int | None = None
    tombstone_lease_ms: int = TOMBSTONE_LEASE_MS
    history_ms: int = 0
    """How long versions that were superseded can still be seen by a snapshot of the past."""
    pin_bytes_max: int | None = None
    """How much snapshots and pins may keep of what was superseded; with a history, each on its own."""

    @property
    def is_log(self) -> bool:
        """Every row stays, whatever its key."""
        return self.key_kind == keys.LOG

    @property
    def key_rule(self) -> str:
        """As x-stream-key says it."""
        if self.key_kind == keys.HEADER:
            return _HEADER + self.key_name.decode("utf-8", "surrogateescape")
        return next(word for word, kind in _RULES.items() if kind == self.key_kind)


class _Unfit(Exception):
    """What a check finds wrong; never seen outside."""


def check_stream_arguments(
    name: str,
    vhost: str,
    arguments: Mapping[str, Any],
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> StreamPolicy:
    """The policy that these arguments ask for.

    Raises:
        PreconditionFailed: a value of the wrong type or out of range, or what a stream cannot be.
    """
    where = f"for queue '{name}' in vhost '{vhost}'"
    for unfit, what in (
        (not durable, "non-durable"),
        (exclusive, "exclusive-owner"),
        (auto_delete, "auto-delete"),
    ):
        if unfit:
            raise PreconditionFailed(reason=f"invalid property '{what}' {where}")
    for argument in _REFUSED:
        if argument in arguments:
            raise PreconditionFailed(
                reason=f"invalid arg '{argument}' {where} of queue type rabbit_stream_queue"
            )
    facts: dict[str, Any] = {}
    for argument, check in _CHECKS.items():
        if argument in arguments:
            try:
                facts |= check(arguments[argument])
            except _Unfit as problem:
                raise PreconditionFailed(reason=f"invalid arg '{argument}' {where}: {problem}") from None
    return StreamPolicy(**facts)


def shard_slots(shard: int, shards: int) -> tuple[int, int]:
    """The slots of one shard of so many, as (first, end)."""
    return shard * SLOTS // shards, (shard + 1) * SLOTS // shards


def checked_name(what: str, name: str) -> bytes:
    """The name of a queue, exchange, consumer, pin or producer as bytes.

    Bytes that are no UTF-8 stand in a name as surrogates. Those that are must be written as characters: a name
    that is written in two ways would be two names here and one on the disk.

    Raises:
        PreconditionFailed: it is empty or too long, or no text.
    """
    try:
        raw = name.encode("utf-8", "surrogateescape")
        is_text = raw.decode("utf-8", "surrogateescape") == name
    except UnicodeEncodeError:
        raw, is_text = b"", False
    if not is_text:
        raise PreconditionFailed(
            reason=f"the name {name!a:.100} of {what} is no text: write its characters themselves, not surrogates"
        )
    if not 0 < len(raw) <= NAME_BYTES_MAX:
        raise PreconditionFailed(
            reason=f"the name of {what} has 1 to {NAME_BYTES_MAX} bytes, this one {len(raw)}"
        )
    return raw


# One check an argument: the facts it stands for, or _Unfit with the word for the problem -----------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool | values.Timestamp):
        raise _Unfit(f'"expected integer, got {type_name(value)}"')
    if value < 0:
        raise _Unfit(f"{{value_negative,{int(value)}}}")
    return int(value)


def _key(value: Any) -> dict[str, Any]:
    rule = _text(value)
    if rule in _RULES:
        return {"key_kind": _RULES[rule]}
    name = rule.removeprefix(_HEADER).encode("utf-8", "surrogateescape")
    if not rule.startswith(_HEADER) or not 0 < len(name) <= 255:
        raise _Unfit("\"expected 'none', 'log', 'routing-key', 'message-id' or 'header:<name>'\"")
    return {"key_kind": keys.HEADER, "key_name": name}


def _shards(value: Any) -> dict[str, Any]:
    count = _count(value)
    if not 1 <= count <= SHARDS_MAX:
        raise _Unfit(f'"expected 1 to {SHARDS_MAX}, got {count}"')
    return {"shards": count}


def _age(value: Any) -> dict[str, Any]:
    age_ms = interval_ms(_text(value))
    if not age_ms:
        raise _Unfit("invalid_max_age; write a number and Y, M, D, h, m or s: '7D', '12h'")
    return {"age_ms_max": age_ms}


def _number(fact: str) -> Callable[[Any], dict[str, Any]]:
    def check(value: Any) -> dict[str, Any]:
        return {fact: _count(value)}

    return check


def _ignored_positive(value: Any) -> dict[str, Any]:
    if not _count(value):
        raise _Unfit("{value_zero,0}")
    return {}


def _ignored_count(value: Any) -> dict[str, Any]:
    _count(value)
    return {}


def _ignored_locator(value: Any) -> dict[str, Any]:
    if _text(value) not in ("client-local", "balanced", "random", "least-leaders"):
        raise _Unfit("invalid_queue_locator_arg")
    return {}


_CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "x-stream-key": _key,
    "x-stream-shards": _shards,
    "x-max-age": _age,
    "x-max-length-bytes": _number("length_bytes_max"),
    "x-stream-tombstone-lease": _number("tombstone_lease_ms"),
    "x-stream-history": _number("history_ms"),
    "x-stream-pin-bytes-max": _number("pin_bytes_max"),
    "x-consumer-timeout": _number("consumer_timeout_ms"),
    "x-stream-max-segment-size-bytes": _ignored_count,
    "x-initial-cluster-size": _ignored_positive,
    "x-queue-leader-locator": _ignored_locator,
}

_REFUSED = (
    "x-message-ttl",
    "x-expires",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-priority",
    "x-max-length",
    "x-single-active-consumer",
    "x-overflow",
    "x-queue-mode",
    "x-delivery-limit",
)
