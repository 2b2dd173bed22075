"""What main tells those who have a copy of its wiring: all of it, and then every change in the order in which it is made.

`WiringFeed` stands between the broker and the links of fronts: `listen` gives a front the wiring as it is in this moment,
and from then on it is told every change, durable or not, as the catalog would write it down. Of users it is told what
routing needs, not their passwords. While nobody listens the broker does not even call.

Invariant: what `listen` returned and what was told since, applied in this order to an empty `WiringCopy`, gives the wiring
of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidemark.broker import catalog
from tidemark.broker.catalog import PUT
from tidemark.broker.exchanges import PREDECLARED
from tidemark.model.wiring import Spec, UserSpec

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker

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


class WiringFeed:
    """All fronts that listen to one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listeners: dict[Listener, None] = {}

    def listen(self, listener: Listener) -> list[Spec]:
        """The wiring as it is now, in an order in which each finds what it needs; changes follow."""
        self._listeners[listener] = None
        self._broker.feed = self.changed
        return wiring(self._broker)

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        if not self._listeners:
            self._broker.feed = None

    def changed(self, verb: str, spec: Spec) -> None:
        """The broker makes this change."""
        if catalog.kind_of(spec) not in KINDS:
            return
        change = encoded(spec) if verb == PUT else catalog.encode(catalog.delete(spec))
        for listener in list(self._listeners):
            listener.changed(change)


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
    return catalog.encode(catalog.put(spec))
