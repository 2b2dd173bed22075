"""The broker of one node: all virtual hosts, users and queues, and the catalog that remembers them.

Everything that is declared becomes a change (`catalog.py`) and is made by `apply`, the same function that
recovery feeds with the changes of the catalog log. What is durable is appended to that log first (`log`);
what is not is only applied. Consequences of a change that depend on what is not durable (an auto-delete
exchange that lost its last binding, say) are changes of their own, so replaying the log needs to decide nothing.

Messages are not seen here: they go from `Publishing` through `VirtualHost.resolve` into queues, and out in `turn`.

Invariant: replaying `image()` into an empty broker gives one with the same image, and a queue number below
`next_number` is never given to another queue.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tidemark.broker import catalog, changes, dispatch, limits
from tidemark.broker.access import Access, hash_password, is_outdated
from tidemark.broker.allowance import Allowance
from tidemark.broker.arguments import check_replicate, is_stream
from tidemark.broker.catalog import DELETE, PUT, Change
from tidemark.broker.config import BrokerConfig
from tidemark.broker.core import NEVER, Meter
from tidemark.broker.counts import Counts
from tidemark.broker.exchanges import PREDECLARED, Exchange
from tidemark.broker.groups import check_same_group, place
from tidemark.broker.incarnations import Gone
from tidemark.broker.policies import CLASSIC, check_policy
from tidemark.broker.queue import Queue
from tidemark.broker.replyto import Replies
from tidemark.broker.session import ConnectionSink, Session
from tidemark.broker.streams.stream import Stream
from tidemark.broker.streams.streams import Streams
from tidemark.broker.tracing import Traces
from tidemark.broker.vhost import VirtualHost
from tidemark.errors import NotAllowed, NotFound, PreconditionFailed, StoreError
from tidemark.model.arena import Arena, Writer
from tidemark.model.turns import Turns
from tidemark.model.wiring import (
    FIRST_TRANSIENT_NUMBER,
    MAIN,
    STATE_NUMBER,
    BindingSpec,
    ExchangeSpec,
    GlobalParameterSpec,
    OperatorPolicySpec,
    ParameterSpec,
    PermissionSpec,
    PolicySpec,
    QueueSpec,
    Replicate,
    Spec,
    UserLimitsSpec,
    UserSpec,
    VhostSpec,
)
from tidemark.ports import CatalogLog, Content


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    vhosts: int
    sessions: int
    exchanges: int
    queues: int
    bindings: int
    consumers: int
    ready: int
    acquired: int
    ready_bytes: int
    acquired_bytes: int
    published: int
    delivered: int
    redelivered: int
    settled: int
    blocked: str | None


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    spec: ExchangeSpec
    bindings_out: int
    bindings_in: int


class Broker:
    def __init__(
        self,
        *,
        arena: Arena,
        memory: Writer,
        journal: Any,
        catalog: CatalogLog,
        content: Content,
        config: BrokerConfig,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.arena = arena
        self.memory = memory
        self.journal = journal
        self.catalog = catalog
        self.content = content
        self.config = config
        self.entropy = entropy
        self.vhosts: dict[str, VirtualHost] = {}
        self.access = Access(config.loopback_users)
        self.policies: dict[tuple[str, str], PolicySpec] = {}
        """By virtual host and name; so are those of operators."""
        self.operator_policies: dict[tuple[str, str], OperatorPolicySpec] = {}
        self.mode = "alone"
        """That of the group that this broker is a member of."""
        self.group = MAIN
        """The group of the cluster that it is in."""
        self.other_groups: dict[str, str] = {}
        """In main: the other groups of the cluster, with their modes."""
        self.replicate: Replicate = "messages"
        """How much of a queue the members of the cluster keep when neither it nor a policy says so."""
        self.feed: Callable[[str, Spec], None] | None = None
        """Told of every change (`PUT` or `DELETE`), in order, right before it is made, while somebody listens."""
        self.waits: Callable[[Queue], None] | None = None
        """Told of stand-ins and outboxes in which messages wait, whenever something happens to them."""
        self.usage = limits.Usage()
        self.timeout_ms_min = config.consumer_timeout_ms or NEVER
        """No consumer may hold a message for a shorter time than this without being asked."""
        self.parameters: dict[tuple[str, str, str], ParameterSpec] = {}
        """By virtual host, component and name."""
        self.global_parameters: dict[str, GlobalParameterSpec] = {}
        self.gone = Gone()
        """In another group than main: which queues were deleted."""
        self.queues: dict[int, Queue] = {}
        """By number. Streams too: they offer what queues do, and `keeps` tells them apart."""
        self.journaled: dict[int, Any] = {}
        """Of these, and the state of streams, the messages are in the journal. By number."""
        self.sessions: dict[Session, None] = {}
        self.dirty: list[Any] = []
        """Queues and streams that something happened to in this turn."""
        self.changed: set[Any] = set()
        """Queues and streams whose counts may have changed since somebody emptied this (`runtime.rates`)."""
        self.counts = Counts()
        self.published = Meter()
        """All that clients published."""
        self.traces: Traces | None = None
        """Set when somebody asked for traces of messages."""
        self.now_ms = 0
        self.allowance = Allowance()
        """How much may still be done in this turn."""
        self.blocked: str | None = None
        self.deletions = 0
        """How many queues have been deleted so far."""
        self.next_number = 1
        self.turns = Turns()
        """Of fronts that take what waits in stand-ins and outboxes."""
        self.wakes = dispatch.Wakes()
        self.replies = Replies(self)
        self.streams = Streams(self)
        self.journaled[STATE_NUMBER] = self.streams.state
        self._next_transient = FIRST_TRANSIENT_NUMBER

    # The catalog ------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Make one change. Putting what is there and deleting what is not are no errors.

        Raises:
            StoreForeign: a change that this version does not know.
        """
        kind, verb = catalog.kind_and_verb(change)
        if kind == catalog.NUMBERS:
            self.next_number = max(self.next_number, change["next"])
            return
        spec = catalog.read(change)
        if self.feed is not None:
            self.feed(verb, spec)
        _APPLY[kind, verb](self, spec)

    def log(self, change: Change) -> int:
        """Append the change to the catalog log and apply it. Returns the sequence to wait for."""
        seq = self.catalog.append(catalog.encode(change), self.now_ms)
        self.apply(change)
        return seq

    def put(self, spec: Spec, *, durable: bool = True) -> int:
        """Make it (or replace it), in the catalog log if it is durable. Returns the sequence to wait for, or 0."""
        seq = self.catalog.append(catalog.encode(catalog.put(spec)), self.now_ms) if durable else 0
        if self.feed is not None:
            self.feed(PUT, spec)
        _APPLY[catalog.kind_of(spec), PUT](self, spec)
        return seq

    def delete(self, spec: Spec, *, durable: bool = True) -> int:
        """End it, in the catalog log if it is durable. Returns the sequence to wait for, or 0."""
        seq = self.catalog.append(catalog.encode(catalog.delete(spec)), self.now_ms) if durable else 0
        if self.feed is not None:
            self.feed(DELETE, spec)
        _APPLY[catalog.kind_of(spec), DELETE](self, spec)
        return seq

    def image(self) -> list[bytes]:
        """The whole catalog as changes, in an order in which each finds what it needs."""
        changes = [catalog.numbers(self.next_number), *map(catalog.put, self._wiring())]
        changes += map(catalog.delete, self.gone.specs())
        return [catalog.encode(change) for change in changes]

    def image_length(self) -> int:
        """How many changes `image` would have: a small part of the work."""
        return 1 + len(self._wiring()) + len(self.gone)

    def _wiring(self) -> list[Spec]:
        specs: list[Spec] = [vhost.spec for vhost in self.vhosts.values()]
        specs += self.access.users.values()
        specs += (UserLimitsSpec(user, dict(limits)) for user, limits in self.usage.of_user.items())
        specs += self.access.permissions.values()
        specs += self.access.topic_permissions.values()
        specs += self.global_parameters.values()
        specs += self.parameters.values()
        specs += self.policies.values()
        specs += self.operator_policies.values()
        for vhost in self.vhosts.values():
            specs += (
                x.spec for x in vhost.exchanges.values() if x.spec.durable and x.name not in PREDECLARED
            )
            specs += (queue.spec for queue in vhost.queues.values() if queue.spec.in_catalog)
            specs += (binding.spec for binding in vhost.bindings() if binding.durable)
        return specs

    def create_defaults(self) -> None:
        """On an empty catalog: the default virtual host, and its user with all rights."""
        if self.vhosts or self.access.users:
            return
        name, vhost = self.config.default_user, self.config.default_vhost
        self.put(VhostSpec(vhost, "Default virtual host"))
        self.put(UserSpec(name, self.password_hash(self.config.default_password), ("administrator",)))
        self.put(PermissionSpec(name, vhost, ".*", ".*", ".*"))

    # Users ------------------------------------------------------------------------------

    def password_hash(self, password: str) -> str:
        """A new hash for the password. Slow on purpose (see `access`)."""
        return hash_password(password, self.entropy(16), self.config.scrypt_log2_n)

    def passed(self, user: str, new_hash: str) -> None:
        """The user has proved who it is by an outdated hash: keep the new one, made from the same password."""
        spec = self.access.users.get(user)
        if spec is not None and is_outdated(spec.password_hash):
            self.put(UserSpec(spec.name, new_hash, spec.tags))

    def delete_user(self, name: str) -> int:
        """The user goes, with its permissions and connections.

        Raises:
            NotFound: there is no such user.
        """
        spec = self.access.users.get(name)
        if spec is None:
            raise NotFound(reason=f"no user '{name}'")
        seq = self.delete(spec)
        self._end_sessions(f"user '{name}' is deleted", user=name)
        return seq

    # Virtual hosts ----------------------------------------------------------------------

    def vhost(self, name: str) -> VirtualHost:
        """Raises NotFound when there is none of this name."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(reason=f"no vhost '{name}'")
        return vhost

    def delete_vhost(self, name: str) -> int:
        """The virtual host goes, with all that is in it and its connections.

        Raises:
            NotFound: there is no such virtual host.
            PreconditionFailed: queues of it live in other groups, which would not hear of it.
        """
        vhost = self.vhost(name)
        elsewhere = [queue for queue in vhost.queues.values() if self.lives_elsewhere(queue)]
        if elsewhere:
            first = elsewhere[0].spec
            raise PreconditionFailed(
                reason=f"vhost '{name}' has {len(elsewhere)} queues in other groups, such as '{first.name}' in '{first.group}': "
                "delete these first, through a front"
            )
        self._end_sessions(f"vhost '{name}' is deleted", vhost=name)
        self.counts.queues_deleted += len(vhost.queues)
        return self.delete(vhost.spec)

    def _end_sessions(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        for session in list(self.sessions):
            if (user is None or session.user == user) and (vhost is None or session.vhost.name == vhost):
                session.end(reason)

    # Policies ---------------------------------------------------------------------------

    def put_policy(self, spec: PolicySpec) -> int:
        """Make the policy, or the operator policy, or replace it; it is in force when this returns.

        Raises:
            NotFound: there is no such virtual host.
            PreconditionFailed: the policy cannot be, in RabbitMQ's words.
        """
        self.check_policy(spec)
        return self.put(spec)

    def check_policy(self, spec: PolicySpec) -> None:
        """Raises as `put_policy` does. Nothing is changed."""
        vhost = self.vhost(spec.vhost)
        check_policy(spec, groups=self.groups, names=(*vhost.exchanges, *vhost.queues))

    def delete_policy(self, vhost: str, name: str, *, operator: bool = False) -> int:
        """End the policy, or the operator policy; what applies without it is in force when this returns.

        Raises:
            NotFound: there is none of this name.
        """
        known: Any = self.operator_policies if operator else self.policies
        spec = known.get((vhost, name))
        if spec is None:
            what = "operator policy" if operator else "policy"
            raise NotFound(reason=f"no {what} '{name}' in vhost '{vhost}'")
        return self.delete(spec)

    def slow_patterns(self) -> list[tuple[str, str]]:
        """(virtual host, policy) of those whose patterns took too long on some name since the last call."""
        found = [(vhost.name, policy) for vhost in self.vhosts.values() for policy in vhost.rules.slow]
        for vhost, _ in found:
            self.vhosts[vhost].rules.slow.clear()
        return found

    def note_timeout(self, timeout_ms: int) -> None:
        """A queue wants its consumers to be asked after so long."""
        self.timeout_ms_min = min(self.timeout_ms_min, timeout_ms)

    def timeout_ms(self, queue: Queue | Stream) -> int:
        """How long a consumer may hold a message of this queue; 0 is for ever.

        A stream loses nothing by a slow reader, so there it is only asked for by the stream or a policy.
        """
        own = queue.policy.consumer_timeout_ms
        if own is not None:
            return own
        return 0 if queue.keeps else self.config.consumer_timeout_ms

    # Limits -----------------------------------------------------------------------------

    @property
    def vhost_limits(self) -> dict[str, limits.Limits]:
        """By virtual host: "max-connections", "max-queues"."""
        return self.usage.of_vhost

    @property
    def user_limits(self) -> dict[str, limits.Limits]:
        """By user: "max-connections", "max-channels"."""
        return self.usage.of_user

    def put_vhost_limits(self, vhost: str, given: dict[str, Any]) -> int:
        """These are the limits of the virtual host, all of them; an empty table is none.

        Raises:
            NotFound: there is no such virtual host.
            PreconditionFailed: a limit that is unknown or no number.
        """
        self.vhost(vhost)
        checked = limits.check_limits(limits.PARAMETER, limits.OF_VHOST, given)
        spec = ParameterSpec(vhost, limits.COMPONENT, limits.PARAMETER, checked)
        return self.put(spec) if checked else self.delete(spec)

    def set_vhost_limit(self, vhost: str, name: str, value: int | None) -> int:
        """Set one limit, or (None) take it away. Raises as `put_vhost_limits`."""
        return self.put_vhost_limits(vhost, _changed(self.vhost_limits.get(vhost, {}), name, value))

    def put_user_limits(self, user: str, given: dict[str, Any]) -> int:
        """These are the limits of the user, all of them; an empty table is none.

        Raises:
            NotFound: there is no such user.
            PreconditionFailed: a limit that is unknown or no number.
        """
        if user not in self.access.users:
            raise NotFound(reason=f"no user '{user}'")
        spec = UserLimitsSpec(user, limits.check_limits("user-limits", limits.OF_USER, given))
        return self.put(spec) if spec.limits else self.delete(spec)

    def set_user_limit(self, user: str, name: str, value: int | None) -> int:
        """Set one limit, or (None) take it away. Raises as `put_user_limits`."""
        return self.put_user_limits(user, _changed(self.user_limits.get(user, {}), name, value))

    # Sessions ---------------------------------------------------------------------------

    def open_session(
        self,
        vhost: str,
        user: str,
        sink: ConnectionSink | None,
        name: str,
        protocol: str = "amqp091",
        *,
        by_front: bool = False,
        own: bool = False,
        patterns: PermissionSpec | None = None,
        turns: bool = False,
    ) -> Session:
        """What a connection of this user does in this virtual host. Without a `sink` it counts as none.

        `by_front`: it came over a proven link, and a front speaks for the user; `own`: it speaks for nobody, may do
        everything and is not counted; with `turns` it says, and is told, in which turn it takes what it moves on. Users and
        virtual hosts are main's: a broker of another group takes a front's word for what the user may do, and makes a
        virtual host that it does not have. `patterns`: what follows are the client's own words, and the front has only said
        what main lets the user do.

        Raises:
            NotAllowed: there is no such virtual host, the user has no permission in it, or one of the two has as
                many connections as it may.
        """
        vouched = (by_front or patterns is not None) and self.group != MAIN
        if vouched and vhost not in self.vhosts:
            self.put(VhostSpec(vhost))
        host = self.vhosts.get(vhost)
        if host is None:
            raise NotAllowed(reason=f"vhost {vhost} not found; make it with: tidemark ctl vhosts add {vhost}")
        if not (own or vouched) and not self.access.may_enter(user, vhost):
            raise NotAllowed(reason=f"access to vhost '{vhost}' refused for user '{user}'")
        if sink is not None and not own:
            self.usage.check_connection(vhost, user)
        session = Session(
            self, host, user, sink, name, self.counts.of(protocol), by_front, own, patterns, turns
        )
        self.sessions[session] = None
        if sink is not None:
            self.counts.connections_opened += 1
            if not own:
                self.usage.connected(vhost, user)
        return session

    # Exchanges, queues, bindings: no permissions are asked here -------------------------------

    def create_queue(self, spec: QueueSpec) -> tuple[Queue, int]:
        """A new queue under the next number. The second of the answer is the sequence to wait for.

        Raises:
            PreconditionFailed: the cluster cannot keep as much of it as it asks for, or not where it asks for.
        """
        group, replicate = self.placed(spec), self.replicated(spec)
        # A stand-in is part of the wiring of all groups: it is on every member, whatever its queue keeps elsewhere.
        spec = replace(spec, group=group, replicate="messages" if group else replicate)
        if spec.in_catalog:
            number = self.next_number
        else:
            number, self._next_transient = self._next_transient, self._next_transient + 1
        spec = replace(spec, number=number, incarnation=number if group else spec.incarnation)
        seq = self.put(spec, durable=spec.in_catalog)
        self.counts.queues_created += 1
        return self.queues[number], seq

    @property
    def groups(self) -> dict[str, str]:
        """The groups that are known here, this one too, with their modes."""
        return {self.group: self.mode, **self.other_groups}

    def placed(self, spec: QueueSpec) -> str:
        """The group that a new queue lives in; empty: this one. See `groups.place`.

        Raises:
            PreconditionFailed: what it asks for cannot be met.
        """
        self.check_placed(spec)
        if not self.other_groups:
            return ""
        kind = spec.arguments.get("x-queue-type", CLASSIC)
        found = place(spec, self.groups, self.vhosts[spec.vhost].rules.applied_to_new(kind, spec.name))
        return "" if found == MAIN else found

    def check_placed(self, spec: QueueSpec) -> None:
        """Raises PreconditionFailed when the queue itself asks to be where it cannot be. No policy is asked."""
        if self.group == MAIN:
            place(spec, self.groups)
        else:
            check_same_group(spec, self.group)

    def lives_elsewhere(self, queue: Any) -> str:
        """The group that the queue lives in, if that is another one of this cluster; of a group that is gone nothing is left."""
        group: str = queue.spec.group
        return group if group in self.other_groups else ""

    def replicated(self, spec: QueueSpec) -> Replicate:
        """How much of a new queue the members of the cluster keep: what it asks for, else a policy, else the setting.

        Where its messages are cannot change while there are some, so this is asked once in its life. On a broker
        that stands alone there is nobody to keep less: every durable queue is as durable as ever.

        Raises:
            PreconditionFailed: what it asks for is unknown, or does not fit the rest of its declaration.
        """
        wanted = check_replicate(spec.name, spec.vhost, spec.arguments, spec.durable, spec.exclusive)
        kind = spec.arguments.get("x-queue-type", CLASSIC)
        if self.mode == "alone" or not spec.durable or spec.exclusive or kind != CLASSIC:
            return "messages"
        if wanted is None:
            applied = self.vhosts[spec.vhost].rules.applied_to_new(CLASSIC, spec.name)
            wanted = applied.value("replicate")
        return wanted or self.replicate

    def generated_name(self, prefix: str) -> str:
        """`prefix` and 22 characters that nobody can guess."""
        return prefix + base64.urlsafe_b64encode(self.entropy(16)).decode("ascii").rstrip("=")

    def delete_queue(self, queue: Queue) -> int:
        """The queue goes, with its bindings; auto-delete exchanges that it leaves without any go too."""
        vhost = self.vhosts[queue.spec.vhost]
        sources = [vhost.exchanges[b.spec.source] for b in vhost.bindings_to_queue(queue.name)]
        spec = queue.spec
        if spec.group:
            spec = replace(spec, incarnation=0)  # it is remembered where it lived
        seq = self.delete(spec, durable=spec.in_catalog)
        if spec.incarnation and not spec.in_catalog:
            seq = self.remember_gone(spec)
        self.counts.queues_deleted += 1
        return max(seq, self._drop_unbound(vhost, sources))

    def remember_gone(self, spec: QueueSpec) -> int:
        """This incarnation of a queue that is not here is gone. Returns the sequence to wait for."""
        return self.delete(replace(spec, number=0))

    def renew(self, queue: Queue, above: int = 0) -> int:
        """A stand-in: its queue begins another life in its group. Returns the sequence to wait for."""
        life = max(self.next_number, above + 1)
        return self.put(replace(queue.spec, incarnation=life), durable=queue.spec.in_catalog)

    def incarnate(self, queue: Any, incarnation: int) -> int:
        """Main calls the queue so from now on. Returns the sequence to wait for."""
        return self.put(replace(queue.spec, incarnation=incarnation), durable=queue.spec.in_catalog)

    def delete_exchange(self, exchange: Exchange) -> int:
        """The exchange goes, with its bindings; auto-delete exchanges that it leaves without any go too."""
        vhost = self.vhosts[exchange.spec.vhost]
        sources = [vhost.exchanges[b.spec.source] for b in exchange.incoming.values()]
        seq = self.delete(exchange.spec, durable=exchange.spec.durable)
        return max(seq, self._drop_unbound(vhost, sources))

    def bind(self, spec: BindingSpec) -> int:
        """Make the binding if it is not there. Its ends exist."""
        vhost = self.vhosts[spec.vhost]
        if vhost.binding(spec) is not None:
            return self.catalog.last_seq
        source = vhost.exchanges[spec.source].spec
        if spec.to_queue:
            durable = source.durable and vhost.queues[spec.destination].spec.in_catalog
        else:
            durable = source.durable and vhost.exchanges[spec.destination].spec.durable
        return self.put(spec, durable=durable)

    def unbind(self, spec: BindingSpec) -> int:
        """End the binding if it is there; its source goes with its last one if it is auto-delete."""
        vhost = self.vhosts[spec.vhost]
        binding = vhost.binding(spec)
        if binding is None:
            return self.catalog.last_seq
        seq = self.delete(binding.spec, durable=binding.durable)
        return max(seq, self._drop_unbound(vhost, [vhost.exchanges[spec.source]]))

    def _drop_unbound(self, vhost: VirtualHost, exchanges: Iterable[Exchange]) -> int:
        seq = 0
        for exchange in dict.fromkeys(exchanges):
            here = vhost.exchanges.get(exchange.name) is exchange
            if here and exchange.spec.auto_delete and not exchange.bindings:
                seq = max(seq, self.delete_exchange(exchange))
        return seq

    # The turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Look at every queue that something happened to; see `dispatch`."""
        self.allowance.renew()
        self.look(now_ms)

    def look(self, now_ms: int) -> None:
        """Do so within a turn, too, for one who cannot wait for its end: with what is left of its allowance."""
        dispatch.turn(self, now_ms)
        self.streams.turn(now_ms)

    def next_wake_ms(self) -> int:
        """When `turn` must be called again though nothing happens; NEVER if it need not."""
        return min(dispatch.next_wake_ms(self), self.streams.next_wake_ms())

    # What the store asks (ports.Residents) -----------------------------------------------------

    def targets(self) -> Iterable[tuple[int, Any]]:
        """All whose messages are in the journal, by number."""
        return self.journaled.items()

    def _target(self, number: int) -> Any:
        if number == STATE_NUMBER:
            return self.streams.state
        # A copy (CC) of a persistent message may be in a private reply queue, too.
        return self.queues.get(number) or self.replies.by_number.get(number)

    def holds(self, queue: int, seq: int) -> bool:
        found = self._target(queue)
        return found is not None and bool(found.holds(seq))

    def relocate(self, queue: int, seq: int, loc: int) -> bool:
        found = self._target(queue)
        return found is not None and bool(found.relocate(seq, loc))

    def buries(self, number: int) -> bool:
        """Whether this is a stream: a newer message with the same key supersedes an older one."""
        found = self._target(number)
        return found is not None and bool(found.keeps)

    def buried_seq(self) -> int:
        """Everything that was superseded at or before this sequence, in whatever stream, has left its index."""
        return min(int(found.buried_seq) for _, found in self.targets() if found.keeps)

    def queue_name(self, queue: int) -> str | None:
        if queue == STATE_NUMBER:
            return "the state of streams"
        found = self.queues.get(queue)
        return None if found is None else f"'{found.spec.name}' in vhost '{found.spec.vhost}'"

    # Statistics -------------------------------------------------------------------------

    def statistics(self) -> BrokerStatistics:
        queues, vhosts = self.queues.values(), self.vhosts.values()
        return BrokerStatistics(
            vhosts=len(vhosts),
            sessions=len(self.sessions),
            exchanges=sum(len(vhost.exchanges) for vhost in vhosts),
            queues=len(queues),
            bindings=sum(len(x.bindings) for vhost in vhosts for x in vhost.exchanges.values()),
            consumers=sum(len(queue.consumers) for queue in queues),
            ready=sum(queue.ready for queue in queues),
            acquired=sum(queue.acquired for queue in queues),
            ready_bytes=sum(queue.ready_bytes for queue in queues),
            acquired_bytes=sum(queue.acquired_bytes for queue in queues),
            published=sum(queue.published for queue in queues),
            delivered=sum(queue.delivered for queue in queues),
            redelivered=sum(queue.redelivered for queue in queues),
            settled=sum(queue.settled for queue in queues),
            blocked=self.blocked,
        )

    def exchanges_of(self, vhost: str) -> list[ExchangeStatistics]:
        """Raises NotFound when there is no such virtual host."""
        return [
            ExchangeStatistics(exchange.spec, len(exchange.bindings), len(exchange.incoming))
            for exchange in self.vhost(vhost).exchanges.values()
        ]

    def bindings_of(self, vhost: str) -> list[BindingSpec]:
        """All bindings, with those that every queue has to the default exchange.

        Raises:
            NotFound: there is no such virtual host.
        """
        host = self.vhost(vhost)
        default = [BindingSpec(vhost, "", name, True, name) for name in host.queues]
        return default + [binding.spec for binding in host.bindings()]


# How each change is made ------------------------------------------------------------------------


def _put_vhost(broker: Broker, spec: VhostSpec) -> None:
    vhost = broker.vhosts.get(spec.name)
    if vhost is None:
        broker.vhosts[spec.name] = VirtualHost(spec, broker.config.routes_max)
    else:
        vhost.spec = spec


def _delete_vhost(broker: Broker, spec: VhostSpec) -> None:
    vhost = broker.vhosts.pop(spec.name, None)
    if vhost is None:
        return
    vhost.forget_routes()
    for queue in list(vhost.queues.values()):
        _close_queue(broker, queue)
    with suppress(StoreError):  # what is left is deleted at the next start
        broker.streams.forget_vhost(spec.name)
    changes.delete_rules(broker, spec.name)
    broker.usage.of_vhost.pop(spec.name, None)
    broker.parameters = {key: value for key, value in broker.parameters.items() if key[0] != spec.name}


def _put_queue(broker: Broker, spec: QueueSpec) -> None:
    if spec.in_catalog:
        broker.next_number = max(
            broker.next_number, spec.number + 1, spec.incarnation + 1 if spec.group else 0
        )
    broker.gone.made(spec)
    vhost = broker.vhosts[spec.vhost]
    current: Any = vhost.queues.get(spec.name)
    if current is None:
        lives_here = not spec.group
        queue: Any = Stream(spec, broker) if lives_here and is_stream(spec.arguments) else Queue(spec, broker)
        broker.queues[spec.number] = queue
        if queue.durable:
            broker.journaled[spec.number] = queue
        vhost.add_queue(queue)
        broker.changed.add(queue)
    elif current.number == spec.number:
        if current.keeps:
            current.respecified(spec)
        else:
            current.spec = replace(current.spec, incarnation=spec.incarnation)


def _delete_queue(broker: Broker, spec: QueueSpec) -> None:
    broker.gone.ended(spec)
    queue = broker.queues.get(spec.number)
    if queue is not None:
        broker.vhosts[spec.vhost].remove_queue(queue)
        _close_queue(broker, queue)


def _close_queue(broker: Broker, queue: Queue) -> None:
    # It leaves the tables first: telling its consumers may lead back here.
    del broker.queues[queue.number]
    broker.journaled.pop(queue.number, None)
    broker.deletions += 1
    broker.changed.add(queue)
    with suppress(StoreError):  # what is left is deleted at the next start
        broker.streams.forget_fences(queue.number)
    queue.delete()


def _put_user(broker: Broker, spec: UserSpec) -> None:
    broker.access.users[spec.name] = spec


def _delete_user(broker: Broker, spec: UserSpec) -> None:
    changes.delete_user(broker, spec.name)
    broker.usage.of_user.pop(spec.name, None)


def _put_user_limits(broker: Broker, spec: UserLimitsSpec) -> None:
    if spec.limits:
        broker.usage.of_user[spec.user] = spec.limits
    else:
        broker.usage.of_user.pop(spec.user, None)


def _delete_user_limits(broker: Broker, spec: UserLimitsSpec) -> None:
    broker.usage.of_user.pop(spec.user, None)


def _changed(current: limits.Limits, name: str, value: int | None) -> dict[str, Any]:
    others = {known: limit for known, limit in current.items() if known != name}
    return others if value is None else {**others, name: value}


def _put_parameter(broker: Broker, spec: ParameterSpec) -> None:
    broker.parameters[spec.vhost, spec.component, spec.name] = spec
    if (spec.component, spec.name) == (limits.COMPONENT, limits.PARAMETER):
        with suppress(PreconditionFailed):  # of an older catalog, where it meant nothing
            broker.usage.of_vhost[spec.vhost] = limits.check_limits(spec.name, limits.OF_VHOST, spec.value)


def _delete_parameter(broker: Broker, spec: ParameterSpec) -> None:
    broker.parameters.pop((spec.vhost, spec.component, spec.name), None)
    if (spec.component, spec.name) == (limits.COMPONENT, limits.PARAMETER):
        broker.usage.of_vhost.pop(spec.vhost, None)


def _put_global_parameter(broker: Broker, spec: GlobalParameterSpec) -> None:
    broker.global_parameters[spec.name] = spec


def _delete_global_parameter(broker: Broker, spec: GlobalParameterSpec) -> None:
    broker.global_parameters.pop(spec.name, None)


_APPLY: dict[tuple[str, str], Callable[[Broker, Any], None]] = {
    ("vhost", PUT): _put_vhost,
    ("vhost", DELETE): _delete_vhost,
    ("exchange", PUT): changes.put_exchange,
    ("exchange", DELETE): changes.delete_exchange,
    ("queue", PUT): _put_queue,
    ("queue", DELETE): _delete_queue,
    ("binding", PUT): changes.put_binding,
    ("binding", DELETE): changes.delete_binding,
    ("user", PUT): _put_user,
    ("user", DELETE): _delete_user,
    ("permission", PUT): changes.put_permission,
    ("permission", DELETE): changes.delete_permission,
    ("topic-permission", PUT): changes.put_topic_permission,
    ("topic-permission", DELETE): changes.delete_topic_permission,
    ("policy", PUT): changes.put_policy,
    ("policy", DELETE): changes.delete_policy,
    ("operator-policy", PUT): changes.put_operator_policy,
    ("operator-policy", DELETE): changes.delete_operator_policy,
    ("user-limits", PUT): _put_user_limits,
    ("user-limits", DELETE): _delete_user_limits,
    ("parameter", PUT): _put_parameter,
    ("parameter", DELETE): _delete_parameter,
    ("global-parameter", PUT): _put_global_parameter,
    ("global-parameter", DELETE): _delete_global_parameter,
}
