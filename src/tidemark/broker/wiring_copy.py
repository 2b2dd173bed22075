"""A copy of main's wiring, in a front: where a message goes, and whether its sender may send it there.

It is made of the same virtual hosts, exchanges, bindings, permissions and policies as the broker's and changed by the same
functions (`changes.py`), so it routes as the broker does. Its queues are names with a group: they hold nothing. It is fed
by `feed.py`, change by change.

`FreshCopy` adds what makes the answers true: before a front routes what it has read it asks for an echo on the link that
changes come by. When that is back, every change is in the copy that was confirmed to anybody before the bytes were read. At
most one echo is on its way; all who ask meanwhile share the next. When the link is lost they wait for the whole wiring from
whoever leads then, which is newer than their question.

Invariant: what was true of the broker's wiring when it made a change is true of the copy after it took that change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from tidemark.broker import catalog, changes
from tidemark.broker.access import Access, Permission
from tidemark.broker.catalog import DELETE, PUT
from tidemark.broker.core import Route, Target
from tidemark.broker.deadletter import copies_of, is_cycle
from tidemark.broker.groups import place
from tidemark.broker.placing import bad_expiration, check_user_id, queues_closely, queues_of, route_for
from tidemark.broker.policies import CLASSIC, Applied, Governed
from tidemark.broker.replyto import RAW_PREFIX
from tidemark.broker.vhost import VirtualHost
from tidemark.errors import ConnectionForced, NotFound, PeerFault
from tidemark.model.arena import Arena
from tidemark.model.runs import HAS_COPIES, HAS_USER_ID
from tidemark.model.wiring import (
    MAIN,
    Arguments,
    OperatorPolicySpec,
    PermissionSpec,
    PolicySpec,
    QueueSpec,
    UserSpec,
    VhostSpec,
)
from tidemark.ports import Content

ROUTES_MAX: Final = 100_000
"""How many routes a virtual host remembers."""
KNOWN_MAX: Final = 16_384
"""How many answers are remembered as they were given."""

Groups = dict[str, list[str]]
"""The queues that a message goes to, by the group that they live in."""


class Admission(NamedTuple):
    """What main lets a user do in a virtual host. Another one when either was deleted and made again, and that was heard."""

    patterns: PermissionSpec
    made_again: int


class NamedQueue(Target, Governed):
    """A queue without messages: a name that bindings lead to."""

    def __init__(self, spec: QueueSpec, arena: Arena, dirty: list[Any]) -> None:
        super().__init__(arena, spec.number, False, dirty)
        self.spec = spec
        self.name = spec.name
        self.governed_as = str(spec.arguments.get("x-queue-type", CLASSIC))

    @property
    def group(self) -> str:
        return self.spec.group or MAIN

    def govern(self, applied: Applied) -> None:
        self.applied = applied


class WiringCopy:
    """Fits `changes.Wired`."""

    def __init__(
        self, content: Content, groups: Mapping[str, str] | None = None, before: WiringCopy | None = None
    ) -> None:
        """`groups` are all groups of the cluster with their modes; `before` is the copy that this one comes after."""
        self.groups = dict(groups or {MAIN: "alone"})
        self.vhosts: dict[str, VirtualHost] = {}
        self.access = Access(())
        self.policies: dict[tuple[str, str], PolicySpec] = {}
        self.operator_policies: dict[tuple[str, str], OperatorPolicySpec] = {}
        self.taken = 0
        """How many changes it is made of."""
        self._deleted: Counter[tuple[str, str]] = Counter() if before is None else before._deleted.copy()
        """How often users, and virtual hosts, were deleted, as far as was heard."""
        self._content = content
        self._arena = Arena()
        self._dirty: list[Any] = []
        self._known: dict[tuple[str, str, bytes, bytes], tuple[Route, Groups | None]] = {}
        """By virtual host, user, exchange and key; good while the route is alive. None: it depends on headers."""
        self._groups: dict[int, tuple[Route, Groups]] = {}
        """By the identity of a route in `_known`; it is kept here, so that no other gets it."""

    # Changes ----------------------------------------------------------------------------

    def take(self, raw: bytes) -> None:
        """Make the next change.

        Raises:
            StoreForeign: a change that this version does not know.
        """
        change = catalog.decode(raw)
        made = _APPLY.get(catalog.kind_and_verb(change))
        if made is not None:  # else it has nothing to do with routing
            made(self, catalog.read(change))
        self.taken += 1

    # Answers ----------------------------------------------------------------------------

    def group_of(self, vhost: str, queue: str) -> str | None:
        """The group that the queue lives in; None: there is no such queue."""
        spec = self.spec_of(vhost, queue)
        return None if spec is None else spec.group or MAIN

    def spec_of(self, vhost: str, queue: str) -> QueueSpec | None:
        """What the queue was declared as; None: there is no such queue."""
        host = self.vhosts.get(vhost)
        found = None if host is None else host.queues.get(queue)
        return None if found is None else cast(NamedQueue, found).spec

    def check(self, vhost: str, user: str, permission: Permission, queue: str) -> None:
        """Raises AccessRefused unless the user has this permission for the queue."""
        self.access.check(user, vhost, permission, "queue", queue)

    def admission(self, vhost: str, user: str) -> Admission | None:
        """What the user may do in the virtual host; None: not even enter."""
        spec = self.access.permissions.get((user, vhost))
        return None if spec is None else Admission(spec, self._deleted[user, ""] + self._deleted["", vhost])

    def place(
        self,
        vhost: str,
        queue: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
    ) -> str:
        """The group that main will choose for a queue that is declared so; the one that it lives in if it is there.

        Raises:
            NotFound: there is no such virtual host.
            PreconditionFailed: what it asks for cannot be met.
        """
        known = self.group_of(vhost, queue)
        if known is not None:
            return known
        spec = QueueSpec(vhost, queue, durable, exclusive, auto_delete, arguments)
        kind = str(arguments.get("x-queue-type", CLASSIC))
        return place(spec, self.groups, self._vhost(vhost).rules.applied_to_new(kind, queue))

    def routes(
        self,
        vhost: str,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        *,
        user: str,
        seen: tuple[int, int] | None = None,
    ) -> Groups:
        """Where this user's message goes, each queue once, in the order that the broker would find them.

        Exchange and key are as they came over the wire; `seen` are the flags and the time to live of its row, if the
        scanner has looked. The answer must not be changed.

        Raises:
            AccessRefused, NotFound, PreconditionFailed: what the broker would say to this publish.
        """
        content = self._content
        if seen is None:
            flags, _, ttl_ms = content.describe(properties)
        else:
            flags, ttl_ms = seen
        which = vhost, user, exchange, key
        known = self._known.get(which)
        if known is None or not known[0].alive:
            known = self._resolved(*which)
        route, groups = known
        if flags & HAS_USER_ID:
            check_user_id(self.access, user, content.user_id(properties))
        if ttl_ms == -2:
            raise bad_expiration(content.expiration(properties) or "")
        has_copies = bool(flags & HAS_COPIES)
        if groups is not None and not has_copies:
            return groups
        headers = content.headers(properties)
        found = queues_closely(self._vhost(vhost), exchange, key, route, headers, has_copies)
        if groups is not None and not exchange and key.startswith(RAW_PREFIX):
            return _joined(groups, _grouped(found))
        return _grouped(found)

    def letter_routes(self, vhost: str, exchange: str, key: str, properties: bytes) -> Groups:
        """Where a dead letter goes, as main would send it: nobody is asked for permission, and what finds no exchange or no
        queue, or would only go round, is gone."""
        host = self.vhosts.get(vhost)
        if host is None or exchange not in host.exchanges:
            return {}
        headers = self._content.headers(properties)
        history = headers.get("x-death")
        deaths = [death for death in history if isinstance(death, dict)] if isinstance(history, list) else []
        found = queues_of(host, exchange, [key, *copies_of(headers)], headers)
        return _grouped(queue for queue in found if not is_cycle(queue.name, deaths))

    def _resolved(self, vhost: str, user: str, exchange: bytes, key: bytes) -> tuple[Route, Groups | None]:
        route = route_for(self.access, user, self._vhost(vhost), exchange, key)
        groups = self._groups_of(route) if type(route) is Route else None
        if not exchange and key.startswith(RAW_PREFIX):
            # A private queue of main for replies, which is in no list: main knows whether it is there.
            groups = {MAIN: [key.decode("utf-8", "surrogateescape")]}
        which = vhost, user, exchange, key
        if which in self._known:
            self._groups.pop(id(self._known[which][0]), None)
        elif len(self._known) >= KNOWN_MAX:
            self._known.clear()
            self._groups.clear()
        self._known[which] = route, groups
        return route, groups

    def _groups_of(self, route: Route) -> Groups:
        """The same object for the same route."""
        known = self._groups.get(id(route))
        if known is None or known[0] is not route:
            known = self._groups[id(route)] = route, _grouped(route.queues)
        return known[1]

    def _vhost(self, name: str) -> VirtualHost:
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(reason=f"no vhost '{name}'")
        return vhost

    # How changes are made ---------------------------------------------------------------

    def put_vhost(self, spec: VhostSpec) -> None:
        if spec.name not in self.vhosts:
            self.vhosts[spec.name] = VirtualHost(spec, ROUTES_MAX)

    def delete_vhost(self, spec: VhostSpec) -> None:
        vhost = self.vhosts.pop(spec.name, None)
        self._deleted["", spec.name] += 1
        if vhost is not None:
            vhost.forget_routes()
            changes.delete_rules(self, spec.name)

    def put_queue(self, spec: QueueSpec) -> None:
        vhost = self.vhosts[spec.vhost]
        known: Any = vhost.queues.get(spec.name)
        if known is None:
            queue: Any = NamedQueue(spec, self._arena, self._dirty)
            vhost.add_queue(queue)
        elif known.number == spec.number:
            known.spec = spec

    def delete_queue(self, spec: QueueSpec) -> None:
        vhost = self.vhosts.get(spec.vhost)
        queue = None if vhost is None else vhost.queues.get(spec.name)
        if vhost is not None and queue is not None and queue.number == spec.number:
            vhost.remove_queue(queue)

    def put_user(self, spec: UserSpec) -> None:
        self.access.users[spec.name] = spec

    def delete_user(self, spec: UserSpec) -> None:
        self._deleted[spec.name, ""] += 1
        changes.delete_user(self, spec.name)


_APPLY: dict[tuple[str, str], Callable[[WiringCopy, Any], None]] = {
    ("vhost", PUT): WiringCopy.put_vhost,
    ("vhost", DELETE): WiringCopy.delete_vhost,
    ("exchange", PUT): changes.put_exchange,
    ("exchange", DELETE): changes.delete_exchange,
    ("queue", PUT): WiringCopy.put_queue,
    ("queue", DELETE): WiringCopy.delete_queue,
    ("binding", PUT): changes.put_binding,
    ("binding", DELETE): changes.delete_binding,
    ("user", PUT): WiringCopy.put_user,
    ("user", DELETE): WiringCopy.delete_user,
    ("permission", PUT): changes.put_permission,
    ("permission", DELETE): changes.delete_permission,
    ("topic-permission", PUT): changes.put_topic_permission,
    ("topic-permission", DELETE): changes.delete_topic_permission,
    ("policy", PUT): changes.put_policy,
    ("policy", DELETE): changes.delete_policy,
    ("operator-policy", PUT): changes.put_operator_policy,
    ("operator-policy", DELETE): changes.delete_operator_policy,
}


def _grouped(queues: Iterable[Any]) -> Groups:
    found: Groups = {}
    for queue in queues:
        found.setdefault(queue.group, []).append(queue.name)
    return found


def _joined(first: Groups, then: Groups) -> Groups:
    return {group: first.get(group, []) + then.get(group, []) for group in {**first, **then}}


class FreshCopy:
    """A `WiringCopy` that is filled by one link after the other and knows when it is new enough.

    The link calls `greeted`, `changed`, `whole`, `echoed` and `lost`, and sends what `ask` is called with.
    """

    def __init__(
        self, content: Content, ask: Callable[[int], None], failed: Callable[[Exception], None]
    ) -> None:
        """`failed` is told what went wrong in somebody who waited for an echo."""
        self.copy: WiringCopy | None = None
        """The newest that is whole; None: there was none yet."""
        self.up = False
        """The link is open and the copy whole."""
        self._content = content
        self._ask = ask
        self._failed = failed
        self.coming: WiringCopy | None = None
        """The one that is being filled."""
        self._number = 0
        self._flying: list[Callable[[], None]] = []
        """Who waits for the echo that is on its way."""
        self._waiting: list[Callable[[], None]] = []
        """Who waits for the one behind it."""

    def fresh(self, then: Callable[[], None]) -> None:
        """Call `then`, later, when the copy is at least as new as what main had confirmed when this was called."""
        self._waiting.append(then)
        self._ask_if_due()

    @property
    def groups(self) -> dict[str, str]:
        """All groups of the cluster with their modes."""
        return self._whole().groups

    def group_of(self, vhost: str, queue: str) -> str | None:
        """See `WiringCopy`; so for those below. All raise ConnectionForced before the first wiring is whole."""
        return self._whole().group_of(vhost, queue)

    def spec_of(self, vhost: str, queue: str) -> QueueSpec | None:
        return self._whole().spec_of(vhost, queue)

    def check(self, vhost: str, user: str, permission: Permission, queue: str) -> None:
        self._whole().check(vhost, user, permission, queue)

    def admission(self, vhost: str, user: str) -> Admission | None:
        return self._whole().admission(vhost, user)

    def place(
        self,
        vhost: str,
        queue: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
    ) -> str:
        return self._whole().place(vhost, queue, durable, exclusive, auto_delete, arguments)

    def routes(
        self,
        vhost: str,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        *,
        user: str,
        seen: tuple[int, int] | None = None,
    ) -> Groups:
        return self._whole().routes(vhost, exchange, key, properties, user=user, seen=seen)

    def letter_routes(self, vhost: str, exchange: str, key: str, properties: bytes) -> Groups:
        return self._whole().letter_routes(vhost, exchange, key, properties)

    def _whole(self) -> WiringCopy:
        if self.copy is None:
            raise ConnectionForced(reason="this front has not been told the wiring yet; try again")
        return self.copy

    def greeted(self, groups: Mapping[str, str]) -> None:
        """A link to main's leader is open: all its wiring follows."""
        self.coming = WiringCopy(self._content, groups, self.copy)

    def changed(self, raw: bytes) -> None:
        """Raises StoreForeign: main is of a newer version than this."""
        copy = self.coming or self.copy
        assert copy is not None
        copy.take(raw)

    def whole(self) -> None:
        """That was all of it; changes follow."""
        assert self.coming is not None
        self.copy, self.coming = self.coming, None
        self.up = True
        self._ask_if_due()

    def echoed(self, number: int) -> None:
        """Raises PeerFault: nobody asked for that."""
        if number != self._number or not self._flying:
            raise PeerFault(reason=f"echo {number} was not asked for")
        answered, self._flying = self._flying, []
        self._ask_if_due()
        for then in answered:
            try:
                then()
            except Exception as error:
                # It must not keep the others from their answer: nobody asks again for them.
                self._failed(error)

    def lost(self) -> None:
        """The link is gone. Who waits goes on waiting, for the next."""
        self.up = False
        self.coming = None
        self._waiting, self._flying = self._flying + self._waiting, []

    def _ask_if_due(self) -> None:
        if self.up and self._waiting and not self._flying:
            self._flying, self._waiting = self._waiting, []
            self._number += 1
            self._ask(self._number)
