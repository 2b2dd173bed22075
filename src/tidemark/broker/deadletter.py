"""Dead letters: a message that a queue gives up on goes to the queue's dead-letter exchange.

It carries its history in the header x-death, one entry a (queue, reason), the newest first, with how often
that happened. Its expiration is taken off, else it would die again at once. A message that would come back
to a queue it has died in, without a client ever having rejected it on the way, is dropped there: nothing
would stop it.

In a group other than main there are no exchanges: only a letter to the default one with queues of this group finds its way
here. Every other is put into the outbox of its virtual host, a durable queue that is made when it is needed, with headers that
say where it wants to go (x-tidemark-exchange, x-tidemark-key); a front moves it on (`router/mover.py`). No policy
applies to an outbox, so nothing in it expires or is too much.

The record of the dead letter is written before the record that ends the original, and if it can be in the
same frame: after a crash the message is in one of the two queues, never in none.

Invariant: `post` ends, because every automatic cycle is cut after one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.broker.arguments import Overflow
from tidemark.broker.core import Publisher, Route
from tidemark.broker.groups import OUTBOX
from tidemark.broker.placing import copy_keys, queues_of, raw, run_of_one
from tidemark.errors import CorruptRecord, PreconditionFailed, StoreError
from tidemark.model.records import HEAD_BYTES, Reason, padded
from tidemark.model.values import Int64, Timestamp
from tidemark.model.wiring import EXCHANGE_HEADER, KEY_HEADER, MAIN, QueueSpec

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.queue import Queue
    from tidemark.broker.vhost import VirtualHost

CAUSES = {
    Reason.REJECTED: "rejected",
    Reason.EXPIRED: "expired",
    Reason.EVICTED: "maxlen",
    Reason.DELIVERY_LIMIT: "delivery_limit",
}

TOGETHER_MAX = 64
TOGETHER_BYTES_MAX = 1 << 20
HISTORY_BYTES = 4096
"""More than one more entry of the history, other names and the ids of many queues add to a record."""


@dataclass(slots=True)
class Letter:
    """A message on its way out of a queue."""

    exchange: str
    key: str
    properties: bytes
    body: bytes


def bury(queue: Queue, places: list[tuple[int, int]], reason: Reason) -> None:
    """Send acquired messages, as (lane, index), to the dead-letter exchange and end them here.

    One whose bytes are damaged on the disk can be sent nowhere: it ends, and is counted.

    Raises:
        StoreError: the journal takes nothing now. Those that are left are ready again.
    """
    journal = queue.broker.journal
    done = 0
    try:
        prepare(queue)
        while done < len(places):
            together, need = _together(queue, places[done : done + TOGETHER_MAX])
            if queue.durable:
                journal.ensure(need + settled_bytes(len(together)))
            for lane, index, letter in together:
                if letter is not None:
                    post(queue, letter, CAUSES[reason])
                else:
                    queue.damaged += 1
                queue.settle(lane, index)
                done += 1
            queue.flush(reason)
    except StoreError:
        queue.flush(reason)
        for lane, index in places[done:]:
            queue.requeue(lane, index, False)
        raise


def prepare(queue: Queue) -> None:
    """Make the outbox if letters of this queue may need it: a step that waits for nothing must not fail in the middle.

    Raises:
        StoreError: the catalog takes nothing now.
    """
    broker, exchange = queue.broker, queue.policy.dead_letter_exchange
    vhost = broker.vhosts.get(queue.spec.vhost)
    if broker.group == MAIN or exchange is None or vhost is None:
        return
    if exchange != "" or queue.policy.dead_letter_key not in vhost.queues:
        _outbox(broker, vhost)


def _outbox(broker: Broker, vhost: VirtualHost) -> Queue:
    found = vhost.queues.get(OUTBOX)
    if found is None:
        # Whatever the members keep of queues that do not say: what is in here has nowhere else to be.
        spec = QueueSpec(vhost.name, OUTBOX, durable=True, arguments={"x-replicate": "messages"})
        found, _ = broker.create_queue(spec)
    return found


def _together(
    queue: Queue, places: list[tuple[int, int]]
) -> tuple[list[tuple[int, int, Letter | None]], int]:
    """The first of these, as many as are sent in one step, and how many bytes their records take at most."""
    arena = queue.broker.arena
    together: list[tuple[int, int, Letter | None]] = []
    need = 0
    for lane, index in places:
        entry = queue.entry(lane, index)
        try:
            need += letter_bytes_max(queue, len(arena.record(entry.loc)), entry.size)
            message = arena.message(entry.loc)
        except CorruptRecord:
            together.append((lane, index, None))
            continue
        letter = Letter(message.exchange, message.key, message.properties, message.body)
        together.append((lane, index, letter))
        if need > TOGETHER_BYTES_MAX:
            break
    return together, need


def letter_bytes_max(queue: Queue, record_bytes: int, body_bytes: int, letters: int = 1) -> int:
    """The most that the records of a dead letter can take, when it is passed on until there are `letters`."""
    vhost = queue.broker.vhosts.get(queue.spec.vhost)
    ids = 0 if vhost is None else 4 * len(vhost.queues)
    return letters * (record_bytes + (record_bytes - body_bytes) + letters * HISTORY_BYTES + ids)


def letters_max(queue: Queue) -> int:
    """How many letters one message can become: each full queue that dead-letters what it refuses adds one."""
    vhost = queue.broker.vhosts.get(queue.spec.vhost)
    queues = () if vhost is None else vhost.queues.values()
    return 1 + sum(each.guarded and each.policy.overflow is Overflow.REJECT_PUBLISH_DLX for each in queues)


def settled_bytes(count: int) -> int:
    """The most that the record of so many settled messages takes."""
    return padded(HEAD_BYTES + 8 + 8 * count)


def post(source: Queue, letter: Letter, cause: str) -> None:
    """Publish one dead letter. Without an exchange of that name, or a queue behind it, it is gone, but for the outbox."""
    broker = source.broker
    publisher = Publisher(broker.arena, broker.memory, broker.journal, _nowhere)
    waiting = [(source, letter, cause)]
    while waiting:
        source, letter, cause = waiting.pop()
        policy = source.policy
        vhost = broker.vhosts.get(source.spec.vhost)
        exchange = policy.dead_letter_exchange
        if exchange is None or vhost is None:
            continue
        if broker.group == MAIN and exchange not in vhost.exchanges:
            continue
        headers = broker.content.headers(letter.properties)
        keys = [letter.key, *copies_of(headers)]
        record_death(
            headers,
            source.name,
            cause,
            letter,
            keys,
            broker.content.expiration(letter.properties),
            broker.now_ms,
        )
        if policy.dead_letter_key is not None:
            headers.pop("CC", None)
            keys = [policy.dead_letter_key]
        leaves = broker.group != MAIN and (exchange != "" or any(key not in vhost.queues for key in keys))
        if leaves:
            headers |= {EXCHANGE_HEADER: exchange, KEY_HEADER: keys[0]}
        properties = broker.content.with_headers(letter.properties, headers, keep_expiration=False)
        source.dead_lettered += 1
        accepting: list[Queue] = [_outbox(broker, vhost)] if leaves else []
        for queue in () if leaves else queues_of(vhost, exchange, keys, headers):
            if cause != "rejected" and is_cycle(queue.name, headers["x-death"]):
                continue
            if not (queue.guarded and queue.overflows(len(letter.body))):
                accepting.append(queue)
            elif queue.policy.overflow is Overflow.REJECT_PUBLISH_DLX:
                again = Letter(exchange, keys[0], properties, letter.body)
                waiting.append((queue, again, CAUSES[Reason.EVICTED]))
        if accepting:
            flags, priority, ttl_ms = broker.content.describe(properties)
            run = run_of_one(
                raw(exchange),
                raw(keys[0]),
                properties,
                letter.body,
                flags=flags,
                priority=priority,
                ttl_ms=ttl_ms,
            )
            publisher.put(run, 0, Route(tuple(accepting), True), broker.now_ms)


def _nowhere(_exchange: bytes, _key: bytes) -> Route:
    return Route((), False)


def copies_of(headers: dict[str, Any]) -> list[str]:
    """The further routing keys of a message that was published long ago."""
    try:
        return copy_keys(headers, "CC")
    except PreconditionFailed:
        return []  # it was not there when the message was published, or it would have been refused


def record_death(
    headers: dict[str, Any],
    queue: str,
    cause: str,
    letter: Letter,
    keys: list[str],
    expiration: str | None,
    now_ms: int,
) -> None:
    """Write this death into the history."""
    death: dict[str, Any] = {
        "count": Int64(1),
        "reason": cause,
        "queue": queue,
        "time": Timestamp(now_ms // 1000),
        "exchange": letter.exchange,
        "routing-keys": list(keys),
    }
    if expiration is not None:
        death["original-expiration"] = expiration
    history = headers.get("x-death")
    if history is None:
        headers["x-first-death-reason"] = cause
        headers["x-first-death-queue"] = queue
        headers["x-first-death-exchange"] = letter.exchange
    others: list[dict[str, Any]] = []
    same: list[dict[str, Any]] = []
    # A client may have sent anything under this name: what is no table is no history.
    for entry in history if isinstance(history, list) else []:
        if isinstance(entry, dict):
            alike = entry.get("queue") == queue and entry.get("reason") == cause
            (same if alike else others).append(entry)
    if same:
        count = same[0].get("count")
        if not isinstance(count, int) or not 0 < count < 1 << 62:
            count = len(same)
        death = same[0] | {"count": Int64(count + 1)}
    headers["x-death"] = [death, *others]


def is_cycle(queue: str, history: list[dict[str, Any]]) -> bool:
    """Whether a message with this history has died in `queue` and was not rejected by a client since."""
    for death in history:
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False
