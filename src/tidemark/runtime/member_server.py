"""The broker as a process, as one member of a cluster: `Server` around a `Member` instead of a bare `Node`.

What a server does stays as it is: sockets of clients, turns, the disk's bell. Beside it there are links to the other members
(`peers.py`), the membership (`membership/`) and clients that belong to the leader (`relay.py`, `door.py`). Whatever
comes in from any of them is preceded by a tick, if the last one was more than a moment ago: a process that was frozen
must know how late it is before it believes anything.

Invariant: `node` is the member's node, always; clients are connected to it only while it serves, but for those that
only read: they stay for as long as the node does, whoever leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidemark.cluster.chain.mode import tails_from
from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import Answer, State, Survey
from tidemark.cluster.succession import outnumbered
from tidemark.config import Address, Config, parse_address
from tidemark.errors import ConfigError, ConnectionForced, NotHere, NotLeading, TidemarkError
from tidemark.frontend.services import FrontEnd, MemberInfo, PeerInfo, Topology
from tidemark.member.facts import MemberFacts, MembershipEvents
from tidemark.member.member import Member
from tidemark.member.survey import survey
from tidemark.member.telling import NotAnswered, Told
from tidemark.member.views import Views
from tidemark.model.peers import Message, Name, Unit, View
from tidemark.node import Node
from tidemark.runtime.apart import Forked
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.clock import ticks_ms
from tidemark.runtime.connection import ConnectionShell
from tidemark.runtime.door import Door
from tidemark.runtime.log import Log
from tidemark.runtime.membership import Membership
from tidemark.runtime.membership.external import ExternalMembership
from tidemark.runtime.membership.telling import Listening, exchange
from tidemark.runtime.peer_tls import PeerTls, peer_tls_of
from tidemark.runtime.peers import Peers, read_secret
from tidemark.runtime.relay import Near
from tidemark.runtime.server import Server
from tidemark.runtime.wholefile import WholeFile
from tidemark.runtime.wiring_feed import Feeds, TurnedAway
from tidemark.store.journal import RecoveryReport
from tidemark.wire.peer.handshake import Client, LinkKind
from tidemark.wire.peer.wiring import Elsewhere, Greeting

if TYPE_CHECKING:
    from tidemark.runtime.membership.etcd import EtcdMembership

BEAT_S = 0.05
PATIENCE_S = 3.0
"""How long a command waits for a member that reads its store again."""
FRESH_MS = 10
"""A tick that is older is followed by another before anything else happens."""


class ReaderShell(ConnectionShell):
    """The connection of a client that only reads: it is served here, whoever leads."""


class MemberServer(Server):
    """Fits `member.MemberOutside`, `runtime.peers.PeerEvents` and `runtime.membership.MembershipEvents`."""

    member: Member

    def __init__(self, config: Config, log: Log, early: WholeFile | None = None) -> None:
        super().__init__(config, log, early)
        self.peers: Peers
        self.relays: set[Near] = set()
        self.role_changed = asyncio.Event()
        """Set for a moment whenever it does."""
        self._membership: Membership
        self._etcd: EtcdMembership | None = None
        self._external: ExternalMembership | None = None
        """The same, if an operator or a resource manager decides who leads."""
        self._routes = dict(_route(entry) for entry in config.cluster.peers)
        self._facts: dict[Name, MemberFacts] = {}
        self._away: set[Name] = set()
        self.parted_ms: dict[Name, int] = {}
        """When the link to a member was lost, while it is."""
        self._leased_until_ms: int | None = None
        self._readable_ms = ticks_ms()
        """When readers were last known to be served well."""
        self._stale_ms = config.cluster.lease_s * 1000 + config.cluster.backup_timeout_ms
        self._leader: Name | None = None
        self._frozen = False
        """Clients that are connected hear nothing: see `role`."""
        self.feeds = Feeds(log, self._leads, lambda: self.node.catalog_durable())
        self._ticked_ms = 0
        self._wake_ticks_ms = 0
        self._wake_timer: asyncio.TimerHandle | None = None
        self._door = Door(
            config.node.name,
            config.amqp091,
            config.stream,
            self.replaced,
            self.due,
            self.note,
            self._refusal,
        )

    # Start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        cluster, me = self.config.cluster, self.config.node.name
        secret = read_secret(cluster.secret_file, self.log)
        tls = peer_tls_of(cluster)
        listener = self.listener("peer", self.config.listen.peer)
        try:
            self._check_address(secret, tls)
            self.peers = Peers(me, cluster.identity, secret, self, self._relayed, self.log, tls)
            self.peers.fronted, self.peers.owned, self.peers.fed = self._fronted, self._owned, self._fed
            self.peers.watched = partial(self._fed, wiring=False)
            for name, address in self._routes.items():
                self.peers.known(name, address)
            await super().start()
        except BaseException:
            listener.close()
            raise
        await self.peers.listen(listener)
        self.log.info("listening", on="peer", address=self.addresses["peer"])
        self._beat()
        if cluster.provider == "external":
            self._membership = self._external = ExternalMembership(
                self.peers, self._routes, self._own_facts, self, self.log, self._disk, cluster.lease_s
            )
        else:
            self.peers.surveyed = self._surveyed
            self._membership = self._etcd = _etcd(cluster, self._own_facts, self, self.log)
        self._membership.start()

    def _assemble(self, apart: Forked, now_ms: int) -> RecoveryReport:
        self.core = self.member = Member(self.config, self._disk, self, os.urandom, apart)
        self.node = self.member.node
        self.node.topology = self._topology
        self.authenticator = self.authenticator_of(self.node)
        return self.member.start(now_ms, ticks_ms())

    def _check_address(self, secret: bytes, tls: PeerTls | None) -> None:
        """Others must be able to reach it, and nobody else to come in."""
        address = self.addresses["peer"]
        if ipaddress.ip_address(address.host.partition("%")[0]).is_unspecified:
            words = f"must be the address by which other members reach this one, not {address}"
            raise ConfigError(key="listen.peer", problem=words)
        if not secret and tls is None and not is_loopback(address.host):
            words = f"is needed, or cluster.peer_certificate, because {address} can be reached from other machines"
            raise ConfigError(key="cluster.secret_file", problem=words)

    async def _leave(self) -> None:
        """Close the links first: then whoever follows us knows at once that we are gone."""
        for near in list(self.relays):
            near.cut()
        self.feeds.cut("this member stops")
        await self.peers.close()
        await self._membership.close()

    # Time ------------------------------------------------------------------------------------------------------------

    def fresh(self) -> None:
        """Let the member know what time it is, unless it has just heard."""
        ticks = ticks_ms()
        if ticks - self._ticked_ms >= FRESH_MS:
            self._ticked_ms = ticks
            self.member.tick(self.clock.now_ms(), ticks)

    def _beat(self) -> None:
        self._timers["beat"] = self._loop.call_later(BEAT_S, self._beat)
        self.fresh()
        self._check_readers()

    def _tick(self) -> None:
        super()._tick()
        now_ms = self.clock.now_ms()
        self._door.tick(now_ms)
        if not self.node.serving:
            self.node.broker.streams.tick(now_ms)  # of readers: nothing is written

    def _turn(self) -> None:
        self.fresh()
        super()._turn()
        for front_end in self._door.turn(self.clock.now_ms()):
            shell = self._shells.get(front_end)
            if shell is not None:
                shell.flush()
        if self._durable_waits:
            self._end_waits()
        self.feeds.completed()

    def _store_failed(self) -> None:
        """The member has heard of it, and has said whether the process ends (`quit`)."""

    def _disk_news(self) -> None:
        self.fresh()
        super()._disk_news()

    def wake(self, at_ticks_ms: int) -> None:
        if self._wake_timer is not None:
            if self._wake_ticks_ms <= at_ticks_ms:
                return
            self._wake_timer.cancel()
        self._wake_ticks_ms = at_ticks_ms
        delay_s = max(0, at_ticks_ms - ticks_ms()) / 1000
        self._timers["wake"] = self._wake_timer = self._loop.call_later(delay_s, self._woken_up)

    def _woken_up(self) -> None:
        self._wake_timer = None
        self._ticked_ms = ticks_ms()
        self.member.tick(self.clock.now_ms(), self._ticked_ms)

    # Clients -----------------------------------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """Whether clients are taken here; not while this member cannot prove that it still leads."""
        return self.member.serving and not self.node.paused

    def elsewhere(self) -> Name | None:
        """The member that leads, if it is another one."""
        return self._leader if self._leader != self.config.node.name else None

    def _shell(self) -> asyncio.BaseProtocol:
        full = len(self.relays) + len(self._shells) >= self.connections_max
        return ConnectionShell(self) if self.serving or full else Near(self)

    @property
    def readable(self) -> bool:
        """Whether clients that only read are taken here: what they are shown is what others have called complete of late."""
        leased = self._leased_until_ms is None or ticks_ms() < self._leased_until_ms
        return self.member.readable and not self.node.paused and leased

    def _check_readers(self) -> None:
        """Readers of a member that has been out of touch for too long must look for another: they may be shown the past."""
        ticks = ticks_ms()
        if self.readable or not self.node.front_ends:
            self._readable_ms = ticks
        elif not self.node.serving and ticks - self._readable_ms > self._stale_ms:
            for front_end in list(self.node.front_ends):
                front_end.shutdown(320, "this member is out of touch with the others; connect to another")
            self.due()

    def take(
        self, transport: asyncio.Transport, client: PeerInfo, held: bytes, *, reads: bool = False
    ) -> None:
        """A client that waited for a leader and has said so much: it is ours, or shown the door."""
        shell = ReaderShell(self, client) if reads else ConnectionShell(self, client)
        transport.set_protocol(shell)
        shell.connection_made(transport)
        if held:
            shell.get_buffer(len(held))[: len(held)] = held
            shell.buffer_updated(len(held))
        transport.resume_reading()

    def _relayed(self, peer: Name, client: Client) -> asyncio.BaseProtocol | str:
        """A member passes one of its clients on to us."""
        return self._connection_of(client, peer)

    def _fronted(self, peer: Name, client: Client) -> asyncio.BaseProtocol | str:
        """A front speaks for one of its clients."""
        return self._connection_of(client, peer, front=peer)

    def _owned(self, peer: Name, client: Client) -> asyncio.BaseProtocol | str:
        """A front comes for itself."""
        return self._connection_of(client, peer, front=peer, own=True)

    def _connection_of(
        self, client: Client, by: Name, front: Name = "", *, own: bool = False
    ) -> asyncio.BaseProtocol | str:
        if not self.serving:
            return f"{self.config.node.name} does not serve clients: it is {self.member.mode.state}"
        self.log.debug("client passed on", by=by, client=f"{client.host}:{client.port}")
        who = PeerInfo(
            client.host,
            client.port,
            client.local_host,
            client.local_port,
            client.tls,
            client.certificate_name,
            front,
            own,
        )
        return ConnectionShell(self, who)

    def _fed(self, front: Name, *, wiring: bool = True) -> asyncio.BaseProtocol | str:
        """A front wants to have a copy of the wiring, or to know where messages wait for it, or only who leads."""
        if not self._leads():
            leader = self.elsewhere() or ""
            address = self.peers.addresses.get(leader)
            return TurnedAway(Elsewhere(leader, "" if address is None else str(address)))
        broker = self.node.broker
        epoch = self.member.view.epoch if self.member.view is not None else 0
        return self.feeds.link(
            front, Greeting(self.config.node.name, epoch, broker.groups), broker, wiring=wiring
        )

    def _leads(self) -> bool:
        """Whether this member leads and can prove it, at this very moment."""
        self.fresh()
        return self.serving

    def connected(self, shell: ConnectionShell, peer: PeerInfo) -> FrontEnd:
        if self.serving or isinstance(shell, ReaderShell):
            return super().connected(shell, peer)
        self._door.now_ms = self.clock.now_ms()
        front_end = self._door.connect(peer)
        self._shells[front_end] = shell
        return front_end

    def received(self, shell: ConnectionShell, data: memoryview) -> int:
        if shell.front_end in self._door.front_ends:
            self._door.now_ms = self.clock.now_ms()
        return super().received(shell, data)

    def disconnected(self, shell: ConnectionShell) -> None:
        self._door.disconnect(shell.front_end)
        super().disconnected(shell)

    def _refusal(self) -> TidemarkError:
        """What a client is told that is neither served nor passed on."""
        leader, reason = self.elsewhere(), self._where_to_go()
        if leader is None or self.serving or self.config.cluster.client_access != "redirect":
            return ConnectionForced(reason=reason)
        facts = self._facts.get(leader)
        epoch = self.member.view.epoch if self.member.view is not None else 0
        address = "" if facts is None else facts.amqp
        return NotHere(operation="this connection", leader=leader, address=address, epoch=epoch)

    def _where_to_go(self) -> str:
        leader = self.elsewhere()
        if self.serving:
            return "this member leads now; connect again"
        if leader is None:
            return "no member of the cluster leads now; try again"
        facts = self._facts.get(leader)
        where = facts.amqp if facts is not None and facts.amqp else "an address that is not known here"
        return f"this member does not lead; connect to {leader} at {where}"

    async def _renew_hash(self, user: str, password: str) -> None:
        if self.serving:  # else nothing can be written, and the leader does it when the user comes there
            await super()._renew_hash(user, password)

    def _topology(self) -> Topology:
        """Who is in the cluster and what each is for, as clients are told."""
        view, me = self.member.view, self.config.node.name
        ready = view.ready if view is not None else ()
        names = [*ready, *sorted(name for name in {*self._facts, me} if name not in ready)]
        cluster = self.config.cluster
        found = []
        for name in names:
            facts = self._facts.get(name)
            if name == me:
                state = str(self.member.mode.state)
            elif name in self._away:
                state = "away"
            elif name in ready:
                state = "active" if view is not None and name == view.leader else "ready"
            else:
                state = "joining"
            amqp, amqps = (facts.amqp, facts.amqps) if facts is not None else ("", "")
            found.append(MemberInfo(name, state, role_of(name, ready, cluster), amqp, amqps))
        leader, epoch = (view.leader, view.epoch) if view is not None else ("", 0)
        return Topology(cluster.mode, epoch, leader, tuple(found))

    def facts_of(self, name: Name) -> MemberFacts | None:
        """What a member last said about itself; None: it has said nothing yet."""
        return self._own_facts() if name == self.config.node.name else self._facts.get(name)

    # What the member asks ------------------------------------------------------------------------------------------------

    def tell(self, peer: Name, message: Message) -> None:
        self.peers.tell(peer, message)

    def ship(self, peer: Name, epoch: int, unit: Unit) -> None:
        self.peers.ship(peer, epoch, unit)

    def shipped(self) -> None:
        self.peers.shipped()

    def backlog(self, peer: Name) -> int:
        return self.peers.backlog(peer)

    def dial(self, peer: Name | None) -> None:
        self.peers.dial(peer)

    def drop(self, peer: Name) -> None:
        self.peers.drop(peer)

    def propose(self, view: View) -> None:
        self._membership.propose(view)

    def role(self, state: State, leader: Name | None) -> None:
        self._leader = leader
        for near in list(self.relays):
            near.turn_to(leader)
        if self._frozen != self.node.paused:
            self._frozen = self.node.paused
            for front_end, shell in list(self._shells.items()):
                if front_end in self.node.front_ends:
                    shell.freeze(self._frozen)
        if not self.member.serving:
            self.feeds.cut("this member does not lead any more")
        elif not self.node.paused:
            self.feeds.proven()
        self.role_changed.set()
        self.role_changed.clear()
        if state is State.FENCED and self._external is not None:
            self._external.hurry()  # somebody speaks of a newer view: ask for it

    def retired(self, node: Node) -> None:
        why = "does not lead any more" if node.serving else "reads its store again"
        self.feeds.cut(f"this member {why}")
        for front_end in list(node.front_ends):
            front_end.shutdown(320, f"this member {why}; connect to another")
            shell = self._shells.get(front_end)
            if shell is not None:
                if self._frozen:
                    # What it was about to be told may not be true any more.
                    shell.abort()
                else:
                    shell.flush()
                    shell.close()
        for _, over in self._durable_waits:
            if not over.done():
                over.set_exception(NotLeading(member=self.config.node.name))

    def renewed(self, node: Node) -> None:
        self.node = node
        node.topology = self._topology
        self._frozen = node.paused
        self.authenticator.close()
        self.authenticator = self.authenticator_of(node)
        self._observe(node)

    def drain(self) -> None:
        for server in self._servers:
            server.close()
        for near in list(self.relays):
            near.cut()
        self.feeds.cut("the cluster is shutting down")
        for front_end in list(self._shells):
            front_end.shutdown(320, "the cluster is shutting down")
        self.due()

    def quit(self, reason: str, clean: bool = False) -> None:
        self.log.write("info" if clean else "error", "member stops", reason=reason)
        self.stop(0 if clean else 1)

    # What an operator asks ------------------------------------------------------------------------------------------

    async def ask(self, command: str, member: Name = "", *, accept_loss: bool = False) -> Answer:
        """An operator or a resource manager wants something."""
        led = self.member.leader == self.config.node.name
        said = await self._survey() if command == "promote" and self._others_matter() else None
        deadline_s = self._loop.time() + PATIENCE_S
        while self.member.rebuilding and self._loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        self.fresh()
        answer = self.member.ask(command, member, accept_loss=accept_loss, survey=said)
        if self._external is None or said is None or not (answer.done and said.unasked) or led:
            return answer
        others = ", ".join(f"{one.member} ({one.why})" for one in said.unasked)
        return Answer(
            True,
            f"{answer.text}; not reached: {others}: none of them may still run as a leader, and what one of them confirmed "
            f"after it went on without {self.config.node.name} is lost",
        )

    def _others_matter(self) -> bool:
        """Whether it must be known what the others hold before this member is promoted: not if it is ready in a view that is
        kept where writes are compared."""
        waits = self.member.mode.state in (State.JOINING, State.CATCHUP)
        return self._external is not None or waits or not self.member.mode.view_holds

    async def _survey(self) -> Survey:
        """What the other members say of their stores at this moment."""
        asking = survey(self._view_revision, self._others)
        names = next(asking)
        while True:
            found = await self._ask_all(names)
            try:
                names = asking.send(found)
            except StopIteration as over:
                result: Survey = over.value
                return result

    def _view_revision(self) -> int:
        return self.member.view.revision if self.member.view is not None else 0

    def _others(self) -> set[Name]:
        """Every other member that is known of."""
        if self._external is not None:
            return self._external.views.others()
        ready = self.member.view.ready if self.member.view is not None else ()
        return {*self._facts, *self._routes, *ready} - {self.config.node.name}

    async def _ask_all(self, names: set[Name]) -> dict[Name, MemberFacts | NotAnswered]:
        if self._external is not None:
            return await self._external.compare()
        self._find(names)
        own = Told(self._own_facts(), None)

        async def ask(name: Name) -> MemberFacts | NotAnswered:
            try:
                return (await exchange(self.peers, name, LinkKind.SURVEY, own)).member
            except NotAnswered as problem:
                self.log.warning("member not reached", member=name, problem=str(problem))
                return problem

        ordered = sorted(names)
        found = await asyncio.gather(*(ask(name) for name in ordered))
        return dict(zip(ordered, found, strict=True))

    def _find(self, names: set[Name]) -> None:
        """Learn where those listened that went before this process began: they may stand still, and be there."""
        for name in names - self.peers.addresses.keys():
            if self._etcd is not None and (known := self._etcd.addresses.get(name)):
                with contextlib.suppress(ConfigError):
                    self.peers.known(name, parse_address("peer", known))

    def _surveyed(self, peer: Name) -> asyncio.BaseProtocol:
        """A member wants to know how far our store goes."""
        return Listening(peer, lambda _, __: Told(self._own_facts(), None), self.log)

    @property
    def why(self) -> str:
        """Why this member is what it is, and what is wrong with the link by which it could become more."""
        return "; ".join(filter(None, (self.member.why, self.peers.trouble)))

    def standing(self) -> dict[str, object]:
        """What a resource manager wants to know of this member, beside what the member says itself."""
        if self._external is None:
            return {"provider": self.config.cluster.provider}
        views = self._external.views
        return {
            "provider": "external",
            "score": self._score(views),
            "unseen": views.unseen,
            "untold": views.untold,
        }

    def _score(self, views: Views) -> int:
        """How good a leader this member would be, as a resource manager counts; 0: it must not be promoted unless an
        operator says so."""
        member, me = self.member, self.config.node.name
        view, state = views.view, member.mode.state
        if state in (State.ACTIVE, State.RECOVERING):
            return 100
        if state is State.READY:
            return 80 if self.peers.reading else 50
        if state is not State.JOINING or views.unseen:
            # It lacks something; or somebody who is away may know that it does.
            return 0
        others = (one.here() for one in views.members.values())
        if outnumbered(self._own_facts().here(), others, view.cluster if view is not None else ""):
            return 0
        status = member.node.store.files.status
        if view is not None:
            return 20 if me in view.ready and status.epoch and status.epoch >= view.settled else 0
        stores = {**views.members, me: self._own_facts()}
        if any(one.cluster for one in stores.values()) or len(stores) < self.config.cluster.size:
            return 0
        best = max(
            sorted(stores), key=lambda name: (stores[name].durable.journal, stores[name].durable.catalog)
        )
        return 10 if best == me else 0

    # What peers say --------------------------------------------------------------------------------------------------------

    def peer_up(self, peer: Name, dialled: bool) -> None:
        self.fresh()
        self.parted_ms.pop(peer, None)
        self.member.peer_up(peer, dialled)

    def peer_down(self, peer: Name, dialled: bool, gone: bool = False) -> None:
        self.fresh()
        self.parted_ms.setdefault(peer, self.clock.now_ms())
        self.member.peer_down(peer, dialled, gone)

    def peer_said(self, peer: Name, message: Message) -> None:
        self.fresh()
        self.member.peer_said(peer, message)

    def given(self, peer: Name, epoch: int, unit: Unit) -> None:
        self.fresh()
        self.member.given(peer, epoch, unit)

    # What the membership says ----------------------------------------------------------------------------------------------

    def view_changed(self, view: View | None) -> None:
        self.fresh()
        self.member.view_changed(view)

    def proposal_failed(self, view: View) -> None:
        self.fresh()
        self.member.proposal_failed(view)

    def member_here(self, facts: MemberFacts) -> None:
        self.fresh()
        self._facts[facts.name] = facts
        self._away.discard(facts.name)
        if facts.name not in self._routes and facts.name != self.config.node.name:
            try:
                self.peers.known(facts.name, parse_address("peer", facts.peer))
            except ConfigError as problem:
                self.log.error("member not understood", member=facts.name, problem=str(problem))
        self.member.member_here(facts.here())

    def member_gone(self, name: Name) -> None:
        self.fresh()
        self._away.add(name)
        self.member.member_gone(name)

    def lease(self, until_ticks_ms: int) -> None:
        self._leased_until_ms = until_ticks_ms
        self.fresh()
        self.member.lease(until_ticks_ms)

    def _own_facts(self) -> MemberFacts:
        store = self.member.node.store
        status = store.files.status
        host = self.addresses["peer"].host
        return MemberFacts(
            self.config.node.name,
            str(self.addresses["peer"]),
            _reachable(self.addresses.get("amqp") or self.addresses.get("amqps"), host),
            _reachable(self.addresses.get("admin"), host),
            status.cluster,
            store.durable_ends,
            status.epoch,
            _reachable(self.addresses.get("amqps"), host),
            store.table,
            failed=self.member.mode.state is State.FAILED,
        )


def role_of(name: Name, ready: tuple[Name, ...], cluster: ClusterConfig) -> str:
    """What a member is for, when these are ready, the leader first."""
    chained = cluster.mode == "chain"
    if name not in ready:
        return "joining"
    if name == ready[0]:
        return "head" if chained else "leader"
    if not chained:
        return "backup"
    return "tail" if ready.index(name) >= tails_from(len(ready), cluster.chain_tails) else "middle"


def _etcd(
    cluster: ClusterConfig, facts: Callable[[], MemberFacts], events: MembershipEvents, log: Log
) -> EtcdMembership:
    # What it needs to talk to an etcd takes a while to import, and not everybody has one.
    from tidemark.runtime.membership.etcd import EtcdMembership

    return EtcdMembership(
        cluster.identity, cluster.etcd, facts, events, log, cluster.lease_s, cluster.lease_margin
    )


def _route(entry: str) -> tuple[Name, Address]:
    """NAME=HOST:PORT"""
    name, _, address = entry.partition("=")
    return name, parse_address("cluster.peers", address)


def _reachable(address: Address | None, host: str) -> str:
    """What to tell others: of an address that means all of this machine's, the one that peers use."""
    if address is None:
        return ""
    try:
        everywhere = ipaddress.ip_address(address.host.partition("%")[0]).is_unspecified
    except ValueError:
        everywhere = False
    return str(Address(host, address.port) if everywhere else address)
