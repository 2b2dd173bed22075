"""…/get and …/publish: single messages over HTTP, for looking and trying out.

Both are done by a session of the visitor, so what a user may not do over AMQP is refused here too. A message that was
published is answered for when it is safe, as with a confirm. A message that was fetched is held until the answer is
made: should that fail, or the visitor leave, it is back in its queue. What is acknowledged is gone when the answer is sent; when
it is not known whether that was stored, the answer is sent nevertheless, for a message may come twice but not be lost.

Invariant: when a request ends, however it ends, it holds no message.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from dataclasses import fields
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tidemark.admin.answers import Refused, body, field, shown
from tidemark.admin.pace import Pace
from tidemark.admin.paging import Pieces, encoded, with_commas
from tidemark.admin.resources import journal
from tidemark.admin.routing import COUNT, FLAG, OBJECT, TEXT, Entry, Schema, a_list, an_object, one_of
from tidemark.admin.visit import Visit
from tidemark.broker import settlement
from tidemark.broker.core import Holder, Unacked
from tidemark.broker.queue import Queue
from tidemark.broker.session import Session
from tidemark.errors import SyntaxFault, TidemarkError
from tidemark.model.runs import REDELIVERED, Taken
from tidemark.node import Node
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties

ACKMODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
COUNT_MAX = 10_000
ANSWER_BYTES_MAX = 16 << 20
"""When so much is in an answer, no more messages are taken for it; and a message of more than that is in none, unless it
may be cut."""
REJECTED_TOGETHER = 32
"""Dead letters take long."""
PUBLISH_BYTES_MAX = 16 << 20
NUMBERS = ("delivery_mode", "priority", "timestamp")
PROPERTIES = tuple(one.name for one in fields(Properties))


# Getting --------------------------------------------------------------------------------------------


async def get(visit: Visit) -> Response:
    given = await body(visit.request)
    count = _count(given, "count", COUNT_MAX, more="; ask several times for more, or consume them")
    ackmode = field(given, "ackmode", str)
    encoding = field(given, "encoding", str, "auto")
    truncate = _count(given, "truncate", 1 << 40, default=1 << 40)
    if ackmode not in ACKMODES:
        raise Refused(400, "bad_request", f"the field 'ackmode' must be one of {', '.join(ACKMODES)}")
    if encoding not in ("auto", "base64"):
        raise Refused(400, "bad_request", "the field 'encoding' must be auto or base64")
    held = Unacked()
    with visit.session() as session:
        try:
            found = await _taken(visit, session, held, count, encoding, truncate)
            answer = Pieces([b"[", *with_commas(found), b"]"])
            if await visit.request.is_disconnected():
                raise ClientDisconnect
            if ackmode == "ack_requeue_false":
                visit.server.node.at(visit.server.clock.now_ms())
                held.accept(0, 0)
            elif ackmode == "reject_requeue_false":
                await _reject(visit, held)
        finally:
            if held.count:
                settlement.requeue(held.pop(0, 0))
    if ackmode.endswith("false"):
        with contextlib.suppress(Refused, TidemarkError):
            await journal.settled(visit)
    return answer


async def _taken(
    visit: Visit, session: Session, held: Unacked, count: int, encoding: str, truncate: int
) -> list[bytes]:
    """Messages as the answer has them; `held` has them, too."""
    name, holder, node, pace = visit.part("queue"), None, visit.server.node, Pace()
    found: list[bytes] = []
    size = 0
    while len(found) < count and size < ANSWER_BYTES_MAX:
        _must_be_led_by(visit, node)
        queue, taken, remaining = session.get(name)
        if taken is None:
            if queue.overdue and not queue.locked:
                # It is behind many that are too old: they end in the next turns.
                visit.server.due()
                await asyncio.sleep(0)
                continue
            if not queue.waits_for or queue.locked:
                break
            # The next message is on its way to the disk.
            await journal.stored(visit, queue.waits_for, "the next message is here")
            continue
        index, _, _, whole_bytes, *_ = taken.entry(0)
        if size + min(truncate, whole_bytes) > ANSWER_BYTES_MAX:
            queue.requeue(taken.lane, index, False)
            if found:
                break
            words = f"the next message has {whole_bytes} bytes, more than the {ANSWER_BYTES_MAX} of an answer"
            raise Refused(400, "bad_request", f"{words}; set 'truncate' to less, or consume it")
        if holder is None or holder.queue is not queue:
            holder = Holder(queue)
        held.add(holder, taken)
        found.append(encoded(_message(visit, queue, taken, remaining, encoding, truncate)))
        size += len(found[-1])
        if pace.is_over():
            await pace.rest()
    return found


async def _reject(visit: Visit, held: Unacked) -> None:
    """Give up all that is held, in slices: each message may become a dead letter."""
    node, pace, last_tag = visit.server.node, Pace(), held.last_tag
    for first in range(1, last_tag + 1, REJECTED_TOGETHER):
        _must_be_led_by(visit, node)
        popped = held.pop(first, min(first + REJECTED_TOGETHER - 1, last_tag))
        settlement.reject(popped, visit.broker.now_ms)
        if pace.is_over():
            await pace.rest()


def _must_be_led_by(visit: Visit, node: Node) -> None:
    """To be asked before each step, for the loop may have had a turn.

    Raises:
        Refused: another node leads by now, or nobody does.
    """
    visit.must_lead()
    if visit.server.node is not node:
        raise Refused(503, "not_leading", "another member led meanwhile; ask again")
    node.at(visit.server.clock.now_ms())


def _message(
    visit: Visit, queue: Queue, taken: Taken, remaining: int, encoding: str, truncate: int
) -> dict[str, Any]:
    _, _, loc, _, flags, deliveries = taken.entry(0)
    message = visit.server.node.arena.message(loc)
    text, how = _payload(message.body, encoding, truncate)
    return {
        "payload_bytes": len(message.body),
        "redelivered": bool(flags & REDELIVERED),
        "exchange": message.exchange,
        "routing_key": message.key,
        "message_count": remaining,
        "properties": properties_of(message.properties, deliveries if queue.count_header else 0),
        "payload": text,
        "payload_encoding": how,
    }


def properties_of(raw: bytes, deliveries: int = 0) -> dict[str, Any]:
    """The properties that a message has, by name."""
    decoded = decode_properties(raw)
    found = {name: getattr(decoded, name) for name in PROPERTIES if getattr(decoded, name) is not None}
    if deliveries:
        found["headers"] = {**found.get("headers", {}), "x-delivery-count": deliveries}
    return found


def _payload(whole: bytes, encoding: str, truncate: int) -> tuple[str, str]:
    cut = bytes(whole[:truncate])
    if encoding == "auto":
        try:
            return cut.decode(), "string"
        except UnicodeDecodeError as problem:
            # Cut in the middle of a character: it is text nevertheless.
            if (
                len(cut) < len(whole)
                and problem.start >= len(cut) - 3
                and problem.reason == "unexpected end of data"
            ):
                return cut[: problem.start].decode(), "string"
    return base64.b64encode(cut).decode("ascii"), "base64"


def _count(given: dict[str, Any], name: str, most: int, default: int | None = None, more: str = "") -> int:
    value = given.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Refused(400, "bad_request", f"the field '{name}' must be a number of 0 to {most}{more}")
    return value


# Publishing -------------------------------------------------------------------------------------------


class Nowhere:
    """The channel of a publish over HTTP: nothing is ever delivered there."""

    def room(self) -> int:
        return 0

    def deliver(self, _consumer: Any, _taken: Taken) -> bool:
        return False

    def cancelled(self, _consumer: Any) -> None:
        pass


async def publish(visit: Visit) -> Response:
    given = await body(visit.request)
    key = field(given, "routing_key", str)
    content = _content(field(given, "payload", str), field(given, "payload_encoding", str, "string"))
    properties = _properties(given.get("properties", {}))
    if len(key.encode()) > 255:
        raise Refused(400, "bad_request", "the field 'routing_key' has at most 255 bytes")
    limit = visit.server.config.amqp091.message_bytes_max
    if len(content) > limit:
        raise Refused(400, "bad_request", f"the message has {len(content)} bytes, at most {limit} are taken")
    if visit.broker.blocked:
        raise Refused(503, "blocked", f"publishers are blocked: {visit.broker.blocked}")
    exchange = exchange_name(visit.part("exchange"))
    visit.vhost().exchange(exchange)
    with visit.session() as session:
        visit.server.node.at(visit.server.clock.now_ms())
        published = session.publishing(Nowhere()).publish_one(
            exchange, key, properties, content, mandatory=True
        )
    if published.error is not None:
        raise published.error
    await journal.stored(visit, published.last_seq)
    return shown({"routed": not published.returned and not published.refused})


def exchange_name(name: str) -> str:
    """In a path the default exchange goes by a name of its own."""
    return "" if name == "amq.default" else name


def _content(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(payload, validate=True)
        except ValueError:
            raise Refused(400, "bad_request", "the field 'payload' is not base64") from None
    raise Refused(400, "bad_request", "the field 'payload_encoding' must be string or base64")


def _properties(given: Any) -> bytes:
    """Properties as they are on the wire. Raises Refused for what they cannot hold."""
    if given == []:  # what some clients make of an empty object
        given = {}
    if not isinstance(given, dict):
        raise Refused(400, "bad_request", "the field 'properties' must be an object")
    made = Properties()
    for name, value in given.items():
        if name not in PROPERTIES:
            words = f"there is no property '{name}'; there are {', '.join(PROPERTIES)}"
            raise Refused(400, "bad_request", words)
        if (
            name in NUMBERS
            and isinstance(value, str)
            and value.isascii()
            and value.isdecimal()
            and len(value) < 20
        ):
            value = int(value)
        wanted = int if name in NUMBERS else dict if name == "headers" else str
        if name == "headers" and value == []:
            value = {}
        if not isinstance(value, wanted) or isinstance(value, bool):
            words = {int: "a number", dict: "an object", str: "text"}[wanted]
            raise Refused(400, "bad_request", f"the property '{name}' must be {words}")
        setattr(made, name, value)
    try:
        raw = encode_properties(made)
        decode_properties(raw)
    except (ValueError, OverflowError, TypeError, SyntaxFault) as problem:
        raise Refused(400, "bad_request", f"the properties cannot be sent: {problem}") from None
    return raw


MESSAGE: Schema = an_object(
    payload_bytes=COUNT,
    redelivered=FLAG,
    exchange=TEXT,
    routing_key=TEXT,
    message_count=COUNT,
    properties=OBJECT,
    payload=TEXT,
    payload_encoding=one_of("string", "base64"),
)

routes = [
    Entry(
        "POST",
        "/queues/{vhost}/{queue}/get",
        get,
        "Fetch messages of a queue",
        "messages",
        body=an_object(
            {"encoding": one_of("auto", "base64"), "truncate": COUNT},
            count={"type": "integer", "minimum": 0, "maximum": COUNT_MAX},
            ackmode=one_of(*ACKMODES),
        ),
        answer=a_list(MESSAGE),
    ),
    Entry(
        "POST",
        "/exchanges/{vhost}/{exchange}/publish",
        publish,
        "Publish a message",
        "messages",
        body=an_object(
            {"properties": OBJECT, "payload_encoding": one_of("string", "base64")},
            routing_key=TEXT,
            payload=TEXT,
        ),
        answer=an_object(routed=FLAG),
        body_bytes_max=PUBLISH_BYTES_MAX,
    ),
]
