"""One virtual host: its names, its bindings, and where a message goes.

`resolve` walks from an exchange along the bindings to the queues and remembers the answer as a `Route`, which
the publishers of all channels share and keep. A change of the wiring ends (`alive` False) the routes that it
could matter to: those of the exchange it happened at and of all exchanges that lead there, by a binding or as
their alternate. So a publisher never asks whether the wiring changed, only whether its route is alive.

Checks of names, permissions and equality are the session's; nothing here is refused but what does not exist.

Invariant: every binding is known at its source and at its destination, and both exist. Every living route
that was handed out is in the cache, so it can be ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.broker.core import Route
from tidemark.broker.exchanges import (
    PREDECLARED,
    TYPES,
    Binding,
    BindingId,
    Destination,
    Exchange,
    binding_id,
)
from tidemark.broker.groups import OUTBOX
from tidemark.broker.policies import Applied, Rules
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.model.wiring import BindingSpec, ExchangeSpec, VhostSpec

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue

QUEUES_PER_MESSAGE_MAX = 65_535


class ByHeaders(Route):
    """A route that passes a headers exchange: ask `VirtualHost.route_message` for each message."""


class VirtualHost:
    def __init__(self, spec: VhostSpec, routes_max: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.rules = Rules()
        """The policies of this virtual host."""
        self._alternate_of: dict[str, set[str]] = {}
        """By the name of an alternate exchange, those that name it. It need not exist."""
        self._to_queue: dict[str, dict[BindingId, Binding]] = {}
        self._last_ordinal = 0
        self._routes: dict[str, dict[bytes | int, Route]] = {}
        self._routes_count = 0
        self._routes_max = routes_max
        for name, kind in PREDECLARED.items():
            self.add_exchange(ExchangeSpec(spec.name, name, kind, durable=True))

    # Where a message goes ---------------------------------------------------------------

    def resolve(self, exchange: bytes, key: bytes) -> Route:
        """The route of messages to this exchange with this key.

        Raises:
            NotFound: there is no such exchange.
        """
        name = exchange.decode("utf-8", "surrogateescape")
        known = self._routes.get(name)
        if known is not None and (route := known.get(key)) is not None:
            return route
        start = self.exchange(name)
        way = start.way_of(key)
        if way is not key and known is not None and (route := known.get(way)) is not None:
            return route
        queues = self._walk(start, key.decode("utf-8", "surrogateescape"), None)
        if queues is None:
            route = ByHeaders((), False)
        else:
            route = Route(queues, bool(queues) and not any(queue.guarded for queue in queues))
            route.meter = start.meter
        if self._routes_count >= self._routes_max:
            self.forget_routes()
        self._routes.setdefault(name, {})[way] = route
        self._routes_count += 1
        return route

    def route_message(self, exchange: str, key: str, headers: dict[str, Any]) -> tuple[Queue, ...]:
        """The queues of one message, with a look at its headers.

        Raises:
            NotFound: there is no such exchange.
        """
        queues = self._walk(self.exchange(exchange), key, headers)
        assert queues is not None
        return queues

    def _walk(self, start: Exchange, key: str, headers: dict[str, Any] | None) -> tuple[Queue, ...] | None:
        """The queues that are reached from `start`; None when that takes headers and there are none given."""
        queues: dict[Queue, None] = {}
        reached = {start: None}
        waiting = [start]
        for exchange in waiting:
            if exchange.by_headers and headers is None:
                return None
            for destination in self._next(exchange, key, headers or {}):
                if not isinstance(destination, Exchange):
                    queues[destination] = None
                elif destination not in reached:
                    reached[destination] = None
                    waiting.append(destination)
        if len(queues) > QUEUES_PER_MESSAGE_MAX:
            raise PreconditionFailed(
                reason=f"a message to exchange '{start.name}' in vhost '{self.name}' would go to {len(queues)} "
                f"queues; at most {QUEUES_PER_MESSAGE_MAX} are possible"
            )
        return tuple(queues)

    def _next(self, exchange: Exchange, key: str, headers: dict[str, Any]) -> Iterable[Destination]:
        found: Iterable[Destination | None]
        if exchange.name == "":
            # What is in an outbox is routed without asking whether its sender may: dead letters are put there, and no key leads to it.
            found = (self.queues.get(key) if key != OUTBOX else None,)
        else:
            found = tuple(exchange.destinations(key, headers))
            if not found and exchange.alternate is not None:
                found = (self.exchanges.get(exchange.alternate),)
        return [destination for destination in found if destination is not None]

    # Looking up -------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Raises NotFound when there is none of this name."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(reason=f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def queue(self, name: str) -> Queue:
        """Raises NotFound when there is none of this name."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(reason=f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def binding(self, spec: BindingSpec) -> Binding | None:
        source = self.exchanges.get(spec.source)
        return source.bindings.get(binding_id(spec)) if source is not None else None

    def bindings(self) -> Iterator[Binding]:
        """All bindings but those that every queue has to the default exchange."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings.values()

    def bindings_to_queue(self, name: str) -> list[Binding]:
        return list(self._to_queue.get(name, {}).values())

    # Changing ---------------------------------------------------------------------------

    def add_exchange(self, spec: ExchangeSpec) -> None:
        exchange = TYPES[spec.type](spec)
        exchange.applied = self.rules.applied_to_new(exchange.governed_as, spec.name)
        exchange.alternate = exchange.alternate_by(exchange.applied)
        self.exchanges[spec.name] = exchange
        self._note_alternate(exchange)
        self._changed(exchange, None)

    def govern_exchange(self, exchange: Exchange, applied: Applied) -> None:
        """Other policies apply to it than before."""
        exchange.applied = applied
        alternate = exchange.alternate_by(applied)
        if alternate != exchange.alternate:
            self._forget_alternate(exchange)
            exchange.alternate = alternate
            self._note_alternate(exchange)
            self._changed(exchange, None)

    def _note_alternate(self, exchange: Exchange) -> None:
        if exchange.alternate is not None:
            self._alternate_of.setdefault(exchange.alternate, set()).add(exchange.name)

    def _forget_alternate(self, exchange: Exchange) -> None:
        if exchange.alternate is not None:
            naming = self._alternate_of[exchange.alternate]
            naming.discard(exchange.name)
            if not naming:
                del self._alternate_of[exchange.alternate]

    def remove_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Take it out with its bindings. Returns the exchanges that lost a binding to it."""
        self._changed(exchange, None)
        sources = list(dict.fromkeys(self.exchanges[id[0]] for id in exchange.incoming))
        for binding in [*exchange.bindings.values(), *exchange.incoming.values()]:
            if binding.id in self.exchanges[binding.spec.source].bindings:  # a loop to itself is in both
                self._detach(binding)
        del self.exchanges[exchange.name]
        self._forget_alternate(exchange)
        return [source for source in sources if source is not exchange]

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self._changed(self.exchanges[""], queue.name)

    def remove_queue(self, queue: Queue) -> list[Exchange]:
        """Take it out with its bindings. Returns the exchanges that lost one."""
        bindings = self.bindings_to_queue(queue.name)
        for binding in bindings:
            self._detach(binding)
        del self.queues[queue.name]
        self._changed(self.exchanges[""], queue.name)
        return list(dict.fromkeys(self.exchanges[binding.spec.source] for binding in bindings))

    def add_binding(self, spec: BindingSpec) -> None:
        """A new one goes to the end; one that is there stays as it is."""
        source, id = self.exchange(spec.source), binding_id(spec)
        if id in source.bindings:
            return
        destination: Destination
        if spec.to_queue:
            destination = self.queue(spec.destination)
            durable = source.spec.durable and destination.spec.in_catalog
        else:
            destination = self.exchange(spec.destination)
            durable = source.spec.durable and destination.spec.durable
        self._last_ordinal += 1
        binding = Binding(spec, id, destination, self._last_ordinal, durable)
        source.attach(binding)
        if isinstance(destination, Exchange):
            destination.incoming[id] = binding
        else:
            self._to_queue.setdefault(spec.destination, {})[id] = binding
        self._changed(source, spec.key)

    def remove_binding(self, spec: BindingSpec) -> None:
        binding = self.binding(spec)
        if binding is not None:
            self._detach(binding)

    def _detach(self, binding: Binding) -> None:
        source = self.exchanges[binding.spec.source]
        source.detach(binding)
        if isinstance(binding.destination, Exchange):
            del binding.destination.incoming[binding.id]
        else:
            same_queue = self._to_queue[binding.spec.destination]
            del same_queue[binding.id]
            if not same_queue:
                del self._to_queue[binding.spec.destination]
        self._changed(source, binding.spec.key)

    # Routes that are no longer true -----------------------------------------------------

    def forget_routes(self) -> None:
        """End every route: what publishers may do has changed, or there are too many."""
        for name in list(self._routes):
            self._end_routes(name, None)

    def _changed(self, exchange: Exchange, key: str | None) -> None:
        """Something behind `exchange` changed, for messages with this key or (None) for all."""
        self._end_routes(exchange.name, key if exchange.by_equal_key else None)
        reached, waiting = {exchange.name}, [exchange]
        for here in waiting:
            for name in self._leading_to(here):
                if name not in reached and name in self.exchanges:
                    reached.add(name)
                    self._end_routes(name, None)
                    waiting.append(self.exchanges[name])

    def _leading_to(self, exchange: Exchange) -> set[str]:
        """The exchanges from which a message may come here directly."""
        naming = self._alternate_of.get(exchange.name, set())
        return naming | {id[0] for id in exchange.incoming} if exchange.incoming else naming

    def _end_routes(self, exchange: str, key: str | None) -> None:
        known = self._routes.get(exchange)
        if known is None:
            return
        if key is not None:
            route = known.pop(key.encode("utf-8", "surrogateescape"), None)
            ended = [] if route is None else [route]
        else:
            ended = list(self._routes.pop(exchange).values())
        for route in ended:
            route.alive = False
        self._routes_count -= len(ended)
