"""What the arguments of a queue mean, decided once at its declaration.

`check_queue_arguments` turns the table a client sent into a `QueuePolicy`, or refuses it in RabbitMQ's
words. `check_equivalent` is RabbitMQ's rule for declaring again: the arguments that matter must have equal
values, numbers of any width being equal when their values are. Arguments that nobody knows are ignored.

`check_stream_reading` does the same for who consumes from a stream. What a stream itself is declared with is
decided in `streams.policy`.

Invariant: a queue that exists has a valid policy; nothing looks at its arguments again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from tidemark.errors import PreconditionFailed
from tidemark.model import values
from tidemark.model.wiring import Replicate

EXPIRY_MS_MAX = 0xFFFFFFFF
PRIORITY_MAX = 255
KEY_BYTES_MAX = 255
CONSUMER_NAME_BYTES_MAX = 255
STREAM = "stream"
"""The queue type of a stream."""


class Overflow(StrEnum):
    """What a queue does with a message that it has no room for."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How a queue treats its messages. None is no limit."""

    kind: str = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """How long the queue may be unused before it is deleted."""
    length_max: int | None = None
    length_bytes_max: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    priorities: int = 0
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    """How long a consumer may hold a message; 0: for ever, None: as long as the broker's own setting says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReading:
    """Where a consumer of a stream begins, and what it wants to be told and remembered."""

    offset: Literal["first", "last", "next", "mark"] | None = "next"
    """None: `from_seq` or `from_ms` says where."""
    from_seq: int | None = None
    """The first sequence that it wants."""
    from_ms: int | None = None
    """It wants what was accepted at this moment or later."""
    consumer: str | None = None
    """The name that its mark is kept under; None: no mark is kept."""
    each: bool = False
    """The mark follows every acknowledgement; else it goes from boundary to boundary."""
    markers: bool = False
    shards: tuple[int, ...] | None = None
    """Only these; None: all."""
    restart: bool = False
    """A mark that cannot be gone on from means to begin again at the first, not to be refused."""


REPLICATE: dict[str, Replicate] = {
    "none": "none",
    "configuration": "configuration",
    "messages": "messages",
    "all": "messages",
    "no": "none",
    "wiring": "configuration",
    "yes": "messages",
}
"""The words for how much of a queue a cluster keeps, and what each stands for."""


class _Unfit(Exception):
    """What a check finds wrong; never seen outside."""


def check_queue_arguments(
    name: str,
    vhost: str,
    arguments: Mapping[str, Any],
    durable: bool,
    exclusive: bool,
) -> QueuePolicy:
    """The policy that these arguments ask for.

    Raises:
        PreconditionFailed: a value of the wrong type or out of range, or arguments that exclude one another.
    """
    facts: dict[str, Any] = {}
    for argument, (fact, check) in _CHECKS.items():
        if argument not in arguments:
            continue
        try:
            facts[fact] = check(arguments[argument], arguments)
        except _Unfit as problem:
            raise PreconditionFailed(
                reason=f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {problem}"
            ) from None
    for fact in _ACCEPTED_ONLY:
        facts.pop(fact, None)
    if facts.get("kind") == "quorum":
        for unfit, what in ((not durable, "non-durable"), (exclusive, "exclusive-owner")):
            if unfit:
                raise PreconditionFailed(
                    reason=f"invalid property '{what}' for queue '{name}' in vhost '{vhost}'"
                )
    return _shared(QueuePolicy(**facts))


@lru_cache(maxsize=4096)
def _shared(policy: QueuePolicy) -> QueuePolicy:
    """Queues that are declared alike have one and the same policy: what is worked out for one serves all."""
    return policy


def is_stream(arguments: Mapping[str, Any]) -> bool:
    """Whether what is declared with these arguments is a stream."""
    return bool(arguments.get("x-queue-type") == STREAM)


def check_replicate(
    name: str, vhost: str, arguments: Mapping[str, Any], durable: bool, exclusive: bool
) -> Replicate | None:
    """How much of the queue a cluster shall keep (x-replicate); None: the queue does not say.

    Asked only when a queue is made: one that was declared before this argument meant anything stays as it is.

    Raises:
        PreconditionFailed: it is no word for that, or none that fits the rest of the declaration.
    """
    if "x-replicate" not in arguments:
        return None
    where = f"invalid arg 'x-replicate' for queue '{name}' in vhost '{vhost}'"
    try:
        word = _word(arguments["x-replicate"])
    except _Unfit as problem:
        raise PreconditionFailed(reason=f"{where}: {problem}") from None
    if word not in REPLICATE:
        raise PreconditionFailed(reason=f"{where}: '{word}' is none of {', '.join(map(repr, REPLICATE))}")
    kind = arguments.get("x-queue-type", "classic")
    if kind != "classic" and REPLICATE[word] != "messages":
        raise PreconditionFailed(
            reason=f"{where}: a queue of type '{kind}' is on all members with its messages; only a classic "
            f"one can be '{word}'"
        )
    if (not durable or exclusive) and REPLICATE[word] != "none":
        raise PreconditionFailed(
            reason=f"{where}: a queue that is not durable, or exclusive, is on one member only; only a durable "
            f"one can be '{word}'"
        )
    return REPLICATE[word]


def check_equivalent(name: str, vhost: str, current: Mapping[str, Any], received: Mapping[str, Any]) -> None:
    """That declaring again with `received` asks for the queue that is there.

    Raises:
        PreconditionFailed: an argument that matters has another value, or is there only once.
    """
    compared = _COMPARED_OF_STREAMS if is_stream(current) else _COMPARED
    for argument in compared:
        before, after = current.get(argument, _ABSENT), received.get(argument, _ABSENT)
        if argument == "x-queue-type":
            before = "classic" if before is _ABSENT else before
            after = "classic" if after is _ABSENT else after
        elif argument == "x-replicate":
            before, after = _meant(before), _meant(after)
        if not _equal(before, after):
            raise PreconditionFailed(
                reason=f"inequivalent arg '{argument}' for queue '{name}' in vhost '{vhost}': "
                f"received {_described(after)} but current is {_described(before)}"
            )


def check_consumer_arguments(name: str, vhost: str, arguments: Mapping[str, Any]) -> int:
    """The priority (x-priority) that a consumer asks for.

    Raises:
        PreconditionFailed: it is no number.
    """
    priority = 0
    argument = "x-priority"
    try:
        if argument in arguments:
            priority = _integer(arguments[argument])
        argument = "x-cancel-on-ha-failover"
        if argument in arguments:
            _boolean(arguments[argument], arguments)
    except _Unfit as problem:
        raise PreconditionFailed(
            reason=f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {problem}"
        ) from None
    return priority


def check_stream_reading(
    name: str, vhost: str, tag: str, arguments: Mapping[str, Any], now_ms: int
) -> StreamReading:
    """How this consumer wants to read a stream.

    Raises:
        PreconditionFailed: a value of the wrong type or out of range.
    """
    where = f"for queue '{name}' in vhost '{vhost}'"
    if "x-priority" in arguments:
        raise PreconditionFailed(reason=f"invalid arg 'x-priority' {where} of queue type rabbit_stream_queue")
    facts: dict[str, Any] = {}
    for argument, check in _READING_CHECKS.items():
        if argument not in arguments:
            continue
        try:
            facts |= check(arguments[argument], now_ms)
        except _Unfit as problem:
            raise PreconditionFailed(reason=f"invalid arg '{argument}' {where}: {problem}") from None
    if facts.get("offset") == "mark":
        facts.setdefault("consumer", tag)
    return StreamReading(**facts)


# One check an argument: the value it stands for, or _Unfit with RabbitMQ's word for the problem ----


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool | values.Timestamp):
        raise _Unfit(f'"expected integer, got {type_name(value)}"')
    return int(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _boolean(value: Any, _: Mapping[str, Any]) -> bool:
    if not isinstance(value, bool):
        raise _Unfit(f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _count(value: Any, _: Mapping[str, Any]) -> int:
    number = _integer(value)
    if number < 0:
        raise _Unfit(f"{{value_negative,{number}}}")
    return number


def _period(value: Any, arguments: Mapping[str, Any]) -> int:
    number = _count(value, arguments)
    if number > EXPIRY_MS_MAX:
        raise _Unfit(f"{{value_too_large,{number}}}")
    return number


def _positive_period(value: Any, arguments: Mapping[str, Any]) -> int:
    number = _period(value, arguments)
    if number == 0:
        raise _Unfit("{value_zero,0}")
    return number


def _priorities(value: Any, arguments: Mapping[str, Any]) -> int:
    number = _count(value, arguments)
    if number > PRIORITY_MAX:
        raise _Unfit(f"{{max_value_exceeded,{number}}}")
    return number


def _name(value: Any, _: Mapping[str, Any]) -> str:
    return _string(value)


def _dead_letter_key(value: Any, arguments: Mapping[str, Any]) -> str:
    key = _string(value)
    if "x-dead-letter-exchange" not in arguments:
        raise _Unfit("routing_key_but_no_dlx_defined")
    if len(key.encode("utf-8", "surrogateescape")) > KEY_BYTES_MAX:
        raise _Unfit(f"{{max_bytes_exceeded,{KEY_BYTES_MAX}}}")
    return key


def _one_of(problem: str, *choices: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def check(value: Any, _: Mapping[str, Any]) -> str:
        if _string(value) not in choices:
            raise _Unfit(problem)
        return str(value)

    return check


def _overflow(value: Any, _: Mapping[str, Any]) -> Overflow:
    try:
        return Overflow(_string(value))
    except ValueError:
        raise _Unfit("invalid_overflow") from None


def _kind(value: Any, _: Mapping[str, Any]) -> str:
    kind = _string(value)
    if kind not in ("classic", "quorum"):
        raise _Unfit(f"\"unsupported queue type '{kind}'\"")
    return kind


# The same for consumers of a stream: the fields of a `StreamReading` that an argument stands for ----

_INTERVAL_MS = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}


def interval_ms(value: str) -> int | None:
    """The length of an interval like "7D" or "90s" in RabbitMQ's way to write it; None when it is none."""
    digits, unit = value[:-1], value[-1:]
    if unit not in _INTERVAL_MS or not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        return None
    return int(digits) * _INTERVAL_MS[unit]


def _offset(value: Any, now_ms: int) -> dict[str, Any]:
    if isinstance(value, values.Timestamp):
        return {"offset": None, "from_ms": int(value) * 1000}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"offset": None, "from_seq": max(0, int(value))}
    word = _word(value)
    if word in ("first", "last", "next", "mark"):
        return {"offset": word}
    ago_ms = interval_ms(word)
    if ago_ms is None:
        raise _Unfit(f'{{invalid_stream_offset_arg,{{longstr,<<"{word}">>}}}}')
    return {"offset": None, "from_ms": max(0, now_ms - ago_ms)}


def _word(value: Any) -> str:
    """A string; some clients write theirs as bytes."""
    if isinstance(value, bytes) and not isinstance(value, values.RawString):
        value = value.decode("utf-8", "replace")
    return _string(value)


def _consumer_name(value: Any, _: int) -> dict[str, Any]:
    name = _word(value)
    size = len(name.encode("utf-8", "surrogateescape"))
    if not 0 < size <= CONSUMER_NAME_BYTES_MAX:
        raise _Unfit(f'"a name of 1 to {CONSUMER_NAME_BYTES_MAX} bytes is expected, got {size}"')
    return {"consumer": name}


def _commit(value: Any, _: int) -> dict[str, Any]:
    word = _word(value)
    if word not in ("boundary", "each"):
        raise _Unfit(f"\"expected 'boundary' or 'each', got '{word}'\"")
    return {"each": word == "each"}


def _markers(value: Any, _: int) -> dict[str, Any]:
    return {"markers": _boolean(value, {})}


def _shards(value: Any, _: int) -> dict[str, Any]:
    if not isinstance(value, list):
        raise _Unfit(f"{{unacceptable_type,{type_name(value)}}}")
    shards = tuple(sorted({_integer(shard) for shard in value}))
    if not shards or shards[0] < 0:
        raise _Unfit('"a list of shard numbers from 0 on is expected"')
    return {"shards": shards}


def _on_reset(value: Any, _: int) -> dict[str, Any]:
    word = _word(value)
    if word not in ("fail", "restart"):
        raise _Unfit(f"\"expected 'fail' or 'restart', got '{word}'\"")
    return {"restart": word == "restart"}


_READING_CHECKS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "x-stream-offset": _offset,
    "x-stream-consumer": _consumer_name,
    "x-stream-commit": _commit,
    "x-stream-markers": _markers,
    "x-stream-shards": _shards,
    "x-stream-on-reset": _on_reset,
}

_CHECKS: dict[str, tuple[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "x-queue-type": ("kind", _kind),
    "x-expires": ("expires_ms", _positive_period),
    "x-message-ttl": ("message_ttl_ms", _period),
    "x-dead-letter-exchange": ("dead_letter_exchange", _name),
    "x-dead-letter-routing-key": ("dead_letter_key", _dead_letter_key),
    "x-dead-letter-strategy": (
        "strategy",
        _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    ),
    "x-max-length": ("length_max", _count),
    "x-max-length-bytes": ("length_bytes_max", _count),
    "x-max-priority": ("priorities", _priorities),
    "x-overflow": ("overflow", _overflow),
    "x-queue-mode": ("mode", _one_of("invalid_queue_mode", "default", "lazy")),
    "x-single-active-consumer": ("single_active_consumer", _boolean),
    "x-delivery-limit": ("delivery_limit", _count),
    "x-consumer-timeout": ("consumer_timeout_ms", _count),
}
_ACCEPTED_ONLY = ("strategy", "mode")
"""Checked as RabbitMQ does, and without effect here."""

_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-replicate",
    "x-group",
    "x-cluster-mode",
)

_COMPARED_OF_STREAMS = (
    "x-queue-type",
    "x-max-length-bytes",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-key",
    "x-stream-tombstone-lease",
    "x-stream-history",
    "x-stream-pin-bytes-max",
    "x-group",
    "x-cluster-mode",
)
"""Of a stream the number of shards is not compared: declaring again with more of them makes it grow."""

_ABSENT = object()


def _meant(replicate: Any) -> Any:
    """Two words may ask for the same."""
    return REPLICATE.get(replicate, replicate) if isinstance(replicate, str) else replicate


def _equal(before: Any, after: Any) -> bool:
    # True == 1 in Python, never in a field table.
    return isinstance(before, bool) == isinstance(after, bool) and bool(before == after)


def _described(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"the value '{shown}' of type '{type_name(value)}'"


_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    float: "double",
    str: "longstr",
    bytes: "binary",
    list: "array",
    tuple: "array",
    dict: "table",
    type(None): "void",
    values.Int8: "byte",
    values.UInt8: "unsignedbyte",
    values.Int16: "short",
    values.UInt16: "unsignedshort",
    values.UInt32: "unsignedint",
    values.Int64: "long",
    values.Timestamp: "timestamp",
    values.Float32: "float",
    values.RawString: "longstr",
    values.Decimal: "decimal",
}


def type_name(value: Any) -> str:
    """RabbitMQ's name for the type of a table's value."""
    if type(value) is int:
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    return _TYPE_NAMES.get(type(value), type(value).__name__)
