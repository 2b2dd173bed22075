"""Partitioned streams: one name for several streams, each of which lives in a group of its own.

    exchange "orders" (x-partition, 3)  ──"0"──► stream "orders-0" in group s1
                                        ──"1"──► stream "orders-1" in group s2
                                        ──"2"──► stream "orders-2" in group s3

The exchange is the declaration: it says how many partitions there are and what decides (`exchanges.PartitionExchange`), and its
bindings name the streams. So AMQP publishers reach the right partition by publishing to it, whoever routes, and clients that
put rows ask for the list and choose by the same hash (`model.partitions.partition_of`). Every partition is a stream like any
other, with a history, sequences, pins and marks of its own; there is no order between partitions.

The number of partitions is for ever: another number would send keys elsewhere, and their older versions would stay behind.

Invariant: partition `i` of `name` is the stream that its exchange has bound with the key `i`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.broker.exchanges import (
    BY_HEADER,
    BY_ROUTING_KEY,
    PARTITION_KEY,
    PARTITIONS,
    PartitionExchange,
)
from tidemark.broker.streams.policy import NAME_BYTES_MAX, check_stream_arguments, checked_name
from tidemark.errors import NotFound, NotImplementedHere, PreconditionFailed
from tidemark.model.wiring import MAIN

if TYPE_CHECKING:
    from tidemark.broker.session import Session
    from tidemark.broker.streams.session import StreamSession

BY_MESSAGE_ID = "message-id"


@dataclass(frozen=True, slots=True)
class Partition:
    stream: str
    group: str
    arguments: Mapping[str, Any]
    """What it was declared with: whoever finds it missing in its group declares it so."""
    number: int
    """By which main tells it from a later stream of that name."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    name: str
    key: str
    """What decides of a message that is published: `routing-key`, or `header:<name>`."""
    partitions: tuple[Partition, ...]


def find(streams: StreamSession, name: str, *, partial: bool = False) -> Partitioned:
    """The partitions of a stream, in their order; `partial`: those that are there, for one who wants to delete them.

    Raises:
        AccessRefused: the user may neither read nor write there.
        NotFound: there is no such partitioned stream, or one of its streams is missing.
    """
    session = _session_of_main(streams)
    if not session.may_read(name):
        session.check_write(name)
    exchange = session.vhost.exchanges.get(name)
    if not isinstance(exchange, PartitionExchange):
        raise NotFound(
            reason=f"no partitioned stream '{name}' in vhost '{session.vhost.name}'; declare it first (tidemark stream "
            "create --partitions, or in the client: partitioned(..., create=N))"
        )
    found = []
    for number in range(exchange.partitions):
        bound = exchange.bound_to(number)
        if bound is None and partial:
            continue
        if bound is None:
            raise NotFound(
                reason=f"partition {number} of stream '{name}' in vhost '{session.vhost.name}' has no stream; declare "
                "the partitioned stream again"
            )
        group = bound.spec.group or session.broker.group
        found.append(Partition(bound.name, group, bound.spec.arguments, bound.spec.life))
    return Partitioned(name, exchange.key, tuple(found))


def declare(
    streams: StreamSession,
    name: str,
    count: int,
    groups: Sequence[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> int:
    """Make what is missing of the partitioned stream: its exchange, a stream for each partition, the bindings.

    Partitions go round the `groups`, without any round all groups but main (if there are others): what each group's leader has to
    do is the same. Streams in other groups are only named here; whoever uses them declares them there.
    Doing so again changes nothing and finishes what a crash has cut short.

    Raises:
        AccessRefused, PreconditionFailed: something of it cannot be, or is there and is something else.
    """
    session, broker = _session_of_main(streams), streams.broker
    arguments = dict(arguments or {})
    key = str(arguments.get("x-stream-key", BY_ROUTING_KEY))
    if key == BY_MESSAGE_ID:
        raise PreconditionFailed(
            reason=f"stream '{name}' cannot be partitioned by message-id; use routing-key, or header:<name>"
        )
    if "x-group" in arguments:
        raise PreconditionFailed(
            reason=f"the groups of the partitions of stream '{name}' are given as 'groups'"
        )
    if name in session.vhost.queues:
        raise PreconditionFailed(
            reason=f"'{name}' in vhost '{session.vhost.name}' is a queue or stream; name the partitioned stream otherwise"
        )
    there = list(groups or [group for group in broker.groups if group != MAIN] or [broker.group])
    unknown = [group for group in there if group not in broker.groups]
    if unknown:
        known = ", ".join(f"'{group}'" for group in broker.groups)
        raise PreconditionFailed(reason=f"there is no group '{unknown[0]}' for stream '{name}', only {known}")
    check_stream_arguments(name, session.vhost.name, arguments, True, False, False)
    exchange = {PARTITIONS: count, PARTITION_KEY: key if key.startswith(BY_HEADER) else BY_ROUTING_KEY}
    session.check_exchange(name, PartitionExchange.type, exchange)
    longest = len(checked_name("a stream", name)) + len(f"-{count - 1}")
    if longest > NAME_BYTES_MAX:
        raise PreconditionFailed(
            reason=f"the name of partition {count - 1} would have {longest} bytes, at most {NAME_BYTES_MAX} are possible; give "
            f"the partitioned stream a name that is shorter by {longest - NAME_BYTES_MAX}"
        )
    wanted: dict[str, dict[str, Any]] = {}
    for number in range(count):
        stream, group = f"{name}-{number}", there[number % len(there)]
        current = session.vhost.queues.get(stream)
        if current is not None and not groups:
            group = current.spec.group or broker.group  # without a wish it stays where it is
        alone = len(broker.groups) == 1 and not groups
        wanted[stream] = arguments if alone else {**arguments, "x-group": group}
        streams.check_declare(stream, wanted[stream])
        session.check_binding(stream, name)
    session.check_room_for(name, sum(stream not in session.vhost.queues for stream in wanted))
    # The name comes last: who finds it finds all of it, unless a crash has cut it short.
    for stream in wanted:
        streams.declare(stream, wanted[stream])
    session.declare_exchange(name, PartitionExchange.type, durable=True, arguments=exchange)
    for number, stream in enumerate(wanted):
        session.bind_queue(stream, name, str(number))
    return broker.catalog.last_seq


def delete(streams: StreamSession, name: str) -> int:
    """Forget the name. Its streams are deleted one by one, before that. Raises AccessRefused, NotFound."""
    session = _session_of_main(streams)
    session.check_configure(name)
    if not isinstance(session.vhost.exchanges.get(name), PartitionExchange):
        raise NotFound(reason=f"no partitioned stream '{name}' in vhost '{session.vhost.name}'")
    return session.delete_exchange(name)


def _session_of_main(streams: StreamSession) -> Session:
    """Raises NotImplementedHere: this is another group, where there are no exchanges."""
    if streams.session.patterns is not None:
        raise NotImplementedHere(
            reason=f"partitioned streams are declared in the group '{MAIN}'; ask on a connection to that group"
        )
    return streams.session
