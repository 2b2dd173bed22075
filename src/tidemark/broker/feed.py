"""What main tells those who have a copy of its wiring: all of it, and then every change in the order in which it is made.

`WiringFeed` stands between the broker and the links of fronts: `listen` gives a front the wiring as it is in this moment,
and from then on it is told every change, durable or not, as the catalog would write it down. Of users it is told what
routing needs, not their passwords. While nobody listens the broker does not even call.

Fronts also move on what lies in stand-ins and outboxes, so they are told, in any group, where something waits: when it begins
to, and again (`remind`) as long as it waits and nobody takes it. So a queue in which nothing waits costs nothing, neither here nor there.

Invariant: what `listen` returned and what was told since, applied in this order to an empty `WiringCopy`, gives the wiring
of the broker, if that is in main.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tidemark.broker import catalog
from tidemark.broker.catalog import PUT
from tidemark.broker.exchanges import PREDECLARED
from tidemark.model.wiring import MAIN, QueueSpec, Spec, UserSpec

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.queue import Queue

KINDS = frozenset(
    {
        "vhost",
        "exchange",
        "queue",
        "binding",
        "user",
        "permission",
        "topic-permission",
        "policy",
        "operator-policy",
    }
)
"""What decides where a message goes, who may send it, and where a queue is made."""


class Listener(Protocol):
    """The link of one front."""

    def changed(self, change: bytes) -> None:
        """A change has just been made. Nothing may be called back from here."""

    def waits(self, vhost: str, queue: str) -> None:
        """Messages wait in this stand-in or outbox."""


class WiringFeed:
    """All fronts that listen to one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listeners: dict[Listener, None] = {}
        self._waiting: dict[Queue, None] = {}
        """In which messages wait, or did a moment ago."""

    @property
    def last_seq(self) -> int:
        """Where the catalog ends: all that was told is safe when it is complete up to there."""
        return self._broker.catalog.last_seq

    def listen(self, listener: Listener) -> list[Spec]:
        """The wiring as it is now, in an order in which each finds what it needs; changes follow. Only main has any."""
        broker = self._broker
        if broker.waits is None:
            broker.waits = self.waits
            queues = broker.queues.values()
            self._waiting = dict.fromkeys(queue for queue in queues if not queue.keeps and _waits(queue))
        self._listeners[listener] = None
        if broker.group != MAIN:
            return []
        broker.feed = self.changed
        return wiring(broker)

    def remind(self, listener: Listener) -> None:
        """Tell it of all queues in which messages wait that nobody takes."""
        for queue in list(self._waiting):
            if not _waits(queue) or self._broker.queues.get(queue.number) is not queue:
                del self._waiting[queue]
            elif not queue.consumers:
                listener.waits(queue.spec.vhost, queue.name)

    def waits(self, queue: Queue) -> None:
        """The broker has looked at this queue, and messages wait in it."""
        if queue not in self._waiting:
            self._waiting[queue] = None
            for listener in list(self._listeners):
                listener.waits(queue.spec.vhost, queue.name)

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        if not self._listeners:
            self._broker.feed = self._broker.waits = None
            self._waiting.clear()

    def changed(self, verb: str, spec: Spec) -> None:
        """The broker makes this change."""
        if catalog.kind_of(spec) not in KINDS:
            return
        change = encoded(spec) if verb == PUT else catalog.encode(catalog.delete(spec))
        for listener in list(self._listeners):
            listener.changed(change)


def _waits(queue: Queue) -> bool:
    return queue.passing and queue.ready > 0


def wiring(broker: Broker) -> list[Spec]:
    """All that a copy needs, what is not durable too. The values do not change, so they may be written at leisure."""
    specs: list[Spec] = [vhost.spec for vhost in broker.vhosts.values()]
    specs += broker.access.users.values()
    specs += broker.access.permissions.values()
    specs += broker.access.topic_permissions.values()
    specs += broker.policies.values()
    specs += broker.operator_policies.values()
    for vhost in broker.vhosts.values():
        specs += (exchange.spec for exchange in vhost.exchanges.values() if exchange.name not in PREDECLARED)
        specs += (queue.spec for queue in vhost.queues.values())
        specs += (binding.spec for binding in vhost.bindings())
    return specs


def encoded(spec: Spec) -> bytes:
    """A put, as it is told."""
    if isinstance(spec, UserSpec):
        spec = UserSpec(spec.name, "", spec.tags)
    elif isinstance(spec, QueueSpec) and spec.group:
        spec = replace(spec, incarnation=spec.life)
    return catalog.encode(catalog.put(spec))
