"""/api/queues: queues and streams, what they hold, and who is at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done, field
from tidemark.admin.resources import consumers, journal
from tidemark.admin.resources.figures import LENGTHS, SPANS, ages, stats
from tidemark.admin.routing import (
    COUNT,
    FLAG,
    OBJECT,
    PAGING,
    TEXT,
    Entry,
    Query,
    Schema,
    a_list,
    an_object,
    maybe,
    one_of,
    paged,
)
from tidemark.admin.visit import Visit
from tidemark.broker.queue import Queue

NAME_BYTES_MAX = 255
ACTIONS = ("sync", "cancel_sync")
"""Of RabbitMQ's mirrored queues. A copy here is never out of step for longer than it is behind."""


@dataclass(frozen=True, slots=True)
class Places:
    """Who has queues: this broker alone, or the members of its cluster."""

    leader: str
    """Where clients of a queue are served."""
    present: list[str]
    known: list[str]


def places(visit: Visit) -> Places:
    here, found = visit.server.config.node.name, visit.server.node.topology()
    known = [one.name for one in found.members] or [here]
    present = [one.name for one in found.members if one.state != "away"] or [here]
    return Places(found.leader or here, present, known)


def describe(visit: Visit, queue: Queue, where: Places, spans: Mapping[str, Any]) -> dict[str, Any]:
    spec, rates = queue.spec, visit.server.rates
    exclusive = queue.consumers[0].tag if queue.consumers and queue.consumers[0].exclusive else None
    facts = {
        "name": spec.name,
        "vhost": spec.vhost,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "exclusive": spec.exclusive,
        "arguments": spec.arguments,
        "replicate": spec.replicate if spec.durable else "none",
        "group": spec.group or visit.broker.group,
        "type": queue.policy.kind,
        "node": where.leader,
        "state": "locked" if queue.locked else "running",
        "policy": queue.applied_policy,
        "operator_policy": queue.applied_operator_policy,
        "effective_policy_definition": queue.effective_policy_definition,
        "consumers": len(queue.consumers),
        "exclusive_consumer_tag": exclusive,
        "single_active_consumer_tag": _single_active(queue),
        "message_bytes": queue.ready_bytes + queue.acquired_bytes,
        "message_bytes_ready": queue.ready_bytes,
        "message_bytes_unacknowledged": queue.acquired_bytes,
        **rates.lengths("queue", queue, **spans),
        "message_stats": stats(visit, "queue", queue, spans),
    }
    if queue.policy.kind != "classic":
        facts |= {"leader": where.leader, "members": where.known, "online": where.present}
    return facts


def _single_active(queue: Queue) -> str | None:
    if not getattr(queue.policy, "single_active_consumer", False):
        return None
    return next((consumer.tag for consumer in queue.consumers if consumer.active), None)


def at_hand(visit: Visit) -> dict[str, paging.Key]:
    """What queues are filtered and sorted by without being described."""
    keys: dict[str, paging.Key] = {
        "name": lambda queue: queue.spec.name,
        "vhost": lambda queue: queue.spec.vhost,
        "type": lambda queue: queue.policy.kind,
        "group": lambda queue: queue.spec.group or visit.broker.group,
        "durable": lambda queue: queue.spec.durable,
        "auto_delete": lambda queue: queue.spec.auto_delete,
        "exclusive": lambda queue: queue.spec.exclusive,
        "policy": lambda queue: queue.applied_policy,
        "state": lambda queue: "locked" if queue.locked else "running",
        "consumers": lambda queue: len(queue.consumers),
        "messages": lambda queue: queue.ready + queue.acquired,
        "messages_ready": lambda queue: queue.ready,
        "messages_unacknowledged": lambda queue: queue.acquired,
        "message_bytes": lambda queue: queue.ready_bytes + queue.acquired_bytes,
        "message_bytes_ready": lambda queue: queue.ready_bytes,
        "message_bytes_unacknowledged": lambda queue: queue.acquired_bytes,
    }
    for name in ("publish", "deliver_get", "ack", "redeliver"):
        keys[f"message_stats.{name}_details.rate"] = _rate_of(visit, name)
    return keys


def _rate_of(visit: Visit, name: str) -> paging.Key:
    return lambda queue: visit.server.rates.rate("queue", queue, name)


async def every(visit: Visit) -> Response:
    found = [queue for host in visit.vhosts() for queue in host.queues.values()]
    where, spans = places(visit), ages(visit)
    return await paging.listed(
        visit,
        found,
        lambda queue: describe(visit, queue, where, spans),
        keys=at_hand(visit),
        order=("vhost", "name"),
    )


async def one(visit: Visit) -> Response:
    queue = visit.vhost().queue(visit.part("queue"))
    facts = describe(visit, queue, places(visit), ages(visit))
    facts["consumer_details"] = await consumers.of_queue(visit, queue)
    if queue.spec.exclusive:
        owner = next((session for session in visit.broker.sessions if queue in session.owned), None)
        facts["owner_pid_details"] = {"name": owner.name} if owner is not None else {}
    return paging.shown(visit, facts)


def new_name(kind: str, name: str) -> str:
    """Raises Refused for one that AMQP cannot say."""
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise Refused(400, "bad_request", f"the name of {kind} has at most {NAME_BYTES_MAX} bytes")
    return name


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), new_name("a queue", visit.part("queue"))
    new = name not in visit.vhost().queues
    with visit.session() as session:
        declared = session.declare_queue(
            name,
            passive=False,
            durable=field(given, "durable", bool, True),
            exclusive=False,
            auto_delete=field(given, "auto_delete", bool, False),
            arguments=arguments(given),
        )
    await visit.safe(declared.safe_at)
    return created(new)


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The field of this name; some clients write an empty list for an empty object."""
    if given.get("arguments") in ([], None):
        return {}
    found: dict[str, Any] = field(given, "arguments", dict)
    return found


async def delete(visit: Visit) -> Response:
    # Unlike AMQP, where deleting what is not there succeeds, a path that names nothing is 404.
    visit.vhost().queue(visit.part("queue"))
    asked = visit.request.query_params
    with visit.session() as session:
        deleted = session.delete_queue(
            visit.part("queue"),
            if_unused=asked.get("if-unused") == "true",
            if_empty=asked.get("if-empty") == "true",
        )
    await visit.safe(deleted.safe_at)
    return done()


async def purge(visit: Visit) -> Response:
    with visit.session() as session:
        session.purge_queue(visit.part("queue"))
    await journal.settled(visit)
    return done()


async def act(visit: Visit) -> Response:
    action = field(await body(visit.request), "action", str)
    visit.vhost().queue(visit.part("queue"))
    if action not in ACTIONS:
        raise Refused(400, "bad_request", f"unknown action '{action}'; there are {', '.join(ACTIONS)}")
    return done()


async def lock(visit: Visit) -> Response:
    """Consumers get nothing more from it; publishes are still accepted. It ends with the process."""
    with visit.session() as session:
        session.queue(visit.part("queue"), "configure").lock()
    return done()


async def unlock(visit: Visit) -> Response:
    with visit.session() as session:
        session.queue(visit.part("queue"), "configure").unlock()
    return done()


QUEUE: Schema = an_object(
    {"message_stats": OBJECT, "leader": TEXT, "members": a_list(TEXT), "online": a_list(TEXT)},
    name=TEXT,
    vhost=TEXT,
    durable=FLAG,
    auto_delete=FLAG,
    exclusive=FLAG,
    arguments=OBJECT,
    replicate=TEXT,
    group=TEXT,
    type=TEXT,
    node=TEXT,
    state=TEXT,
    policy=maybe(TEXT),
    operator_policy=maybe(TEXT),
    effective_policy_definition=OBJECT,
    consumers=COUNT,
    exclusive_consumer_tag=maybe(TEXT),
    single_active_consumer_tag=maybe(TEXT),
    message_bytes=COUNT,
    message_bytes_ready=COUNT,
    message_bytes_unacknowledged=COUNT,
    **LENGTHS,
)
DECLARED: Schema = an_object({"durable": FLAG, "auto_delete": FLAG, "arguments": OBJECT})
CONDITIONS = (
    Query("if-unused", FLAG, "Only when it has no consumers."),
    Query("if-empty", FLAG, "Only when it has no messages."),
)
ONE = "/queues/{vhost}/{queue}"

routes = [
    Entry("GET", "/queues", every, "All queues", "queues", PAGING + SPANS, answer=paged(QUEUE)),
    Entry(
        "GET",
        "/queues/{vhost}",
        every,
        "Queues of a virtual host",
        "queues",
        PAGING + SPANS,
        answer=paged(QUEUE),
    ),
    Entry("GET", ONE, one, "A queue", "queues", SPANS, answer=QUEUE),
    Entry("PUT", ONE, put, "Declare a queue", "queues", body=DECLARED),
    Entry("DELETE", ONE, delete, "Delete a queue", "queues", CONDITIONS),
    Entry("DELETE", ONE + "/contents", purge, "Purge a queue", "queues"),
    Entry(
        "POST",
        ONE + "/actions",
        act,
        "Synchronise a mirrored queue: nothing to do here",
        "queues",
        body=an_object(action=one_of(*ACTIONS)),
        statuses=(204,),
    ),
    Entry("PUT", ONE + "/lock", lock, "Give consumers nothing more", "queues", statuses=(204,)),
    Entry("DELETE", ONE + "/lock", unlock, "Go on", "queues"),
]
