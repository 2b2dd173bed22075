"""What a client knows of its brokers: who is there and what each is for, and what it has seen of them.

Both clients share these machines; they differ only in how they wait.

`Cluster` is the newest list of members that a broker told. `Dialling` is the search for one connection: it names whom to
try next and judges who answers. Writes go to the member that leads: whoever else takes the client in passes it on, so
such a connection is good, and the direct one is better. Reads go where the client wants them, or to tails if the
cluster lets nobody else show rows. `Inquiry` asks others about a member that says nothing: it may be slow, or another one
may be in its place.

`Seen` remembers how far the client has seen what the brokers hold. A member that is asked to read is told, and never
shows less: so what a client reads does not go back, whichever members it reads from.

Invariant: what is known of the cluster never goes back to an older epoch, and `Seen` never goes back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from tidemark.client.address import Address, Endpoints, parse_address
from tidemark.client.errors import NotConnected
from tidemark.client.values import MemberInfo
from tidemark.client.waiting import ASK_AGAIN_S, CONNECT_S_MAX, FINAL, Lost, NoAnswerYet, sentence_of
from tidemark.errors import NotATail, NotHere

ReadFrom: TypeAlias = Literal["leader", "tail", "any"]
READ_FROM: tuple[ReadFrom, ...] = ("leader", "tail", "any")
TAILS = frozenset({"tail", "backup"})
HEADS = frozenset({"leader", "head"})
HISTORIES_MAX = 4
"""How many histories are remembered; each takeover begins one."""
NEXT_S_MAX = 1.5
"""How long an address is tried while there are others that were not: a process that stands still takes connections, and says nothing."""
DIRECT_S_MAX = 1.0
"""How long a better place is tried while there is one already."""
NOT_LET_IN = (OSError, Lost, NoAnswerYet, NotHere, *FINAL)
"""How an attempt to connect ends without a connection."""


def read_from_of(text: str) -> ReadFrom:
    """Raises ValueError: there is no such place."""
    for known in READ_FROM:
        if text == known:
            return known
    raise ValueError(f"read_from is {', '.join(map(repr, READ_FROM))}, not {text!r}")


def members_of(told: Mapping[str, Any]) -> tuple[MemberInfo, ...]:
    """The members as a hello or `members` names them; none of a broker that stands alone: it sees its own address,
    which may be another one than the one that leads there."""
    if not told.get("epoch"):
        return ()
    return tuple(
        MemberInfo(
            one["name"],
            one["state"],
            one["role"],
            one.get("address") or "",
            one["name"] == told.get("leader"),
        )
        for one in told.get("members") or ()
    )


class Cluster:
    """The members of the newest epoch that was heard of. Empty for a broker that stands alone."""

    def __init__(self, read_from: ReadFrom = "leader", dice: random.Random | None = None) -> None:
        self.read_from = read_from
        self.epoch = 0
        self.members: tuple[MemberInfo, ...] = ()
        self._dice = dice or random.Random()

    def learn(self, told: Mapping[str, Any]) -> None:
        """What a broker said of the cluster, in its hello or later."""
        epoch, members = int(told.get("epoch") or 0), members_of(told)
        if members and epoch >= self.epoch:
            self.epoch, self.members = epoch, members

    @property
    def addresses(self) -> list[Address]:
        """Where members are; the leader first."""
        return [parse_address(one.address) for one in self.members if one.address]

    def leader(self) -> list[Address]:
        """Where the leader is, if that is known."""
        return [parse_address(one.address) for one in self.members if one.leads and one.address]

    def readers(self) -> list[Address]:
        """Where reads may go, in an order that differs from client to client."""
        found = [parse_address(one.address) for one in self.members if one.address and self._reads(one)]
        self._dice.shuffle(found)
        return found

    def others(self, node: str) -> list[Address]:
        """Where all but this one are, ready ones first, in an order that differs from client to client."""
        found = [one for one in self.members if one.address and one.name != node]
        self._dice.shuffle(found)
        found.sort(key=lambda one: one.state != "ready")
        return [parse_address(one.address) for one in found]

    def turn_to_tails(self, refusal: NotATail) -> bool:
        """Only tails show rows here: reads go there from now on. Whether they did before.

        Raises:
            NotATail: nobody says where members are, as behind a front.
        """
        if not self.addresses:
            raise refusal
        before, self.read_from = self.read_from, "tail"
        return before == "tail"

    def _reads(self, member: MemberInfo) -> bool:
        if self.read_from == "tail":
            return member.role in TAILS and member.state == "ready"
        return member.state in ("ready", "active")

    def suits(self, welcome: Mapping[str, Any]) -> bool:
        """Whether a member that took us in is one that reads may go to."""
        node = welcome.get("node")
        return any(one.name == node and self._reads(one) for one in members_of(welcome))


class Dialling:
    """The search for one connection. `next` until `greeted` says True, or a deadline passes."""

    def __init__(
        self,
        cluster: Cluster,
        endpoints: Endpoints,
        *,
        reads: bool,
        avoid: Address | None = None,
    ) -> None:
        """`avoid` has just fallen silent: the others come first."""
        self._cluster = cluster
        self._endpoints = endpoints
        self._reads = reads
        self._tried: set[Address] = set()
        self._skip = {avoid} if avoid is not None else set()
        self._problems: dict[Address, str] = {}
        endpoints.learn(cluster.addresses)
        wanted = cluster.readers() if reads else cluster.leader()
        self._better = [address for address in wanted if address not in self._skip]

    @property
    def has_better(self) -> bool:
        """There are places to try that are known to be the right ones."""
        return bool(self._better)

    def next(self) -> tuple[Address, float]:
        """Whom to try now, and how many seconds to wait first."""
        if self._better:
            address, wait = self._better.pop(0), 0.0
            self._skip.add(address)
        else:
            address, wait = self._endpoints.next()
            while address in self._skip:
                # It was tried a moment ago, or it is the one that does not answer.
                self._skip.discard(address)
                address, more = self._endpoints.next()
                wait += more
        self._tried.add(address)
        return address, wait

    def patience(self, *, spare: bool) -> float:
        """How many seconds the one that was named last may take; `spare`: somebody else has let us in."""
        if spare:
            return DIRECT_S_MAX
        return CONNECT_S_MAX if self._tried >= {*self._endpoints.addresses, *self._better} else NEXT_S_MAX

    def not_let_in(self, address: Address, error: BaseException, *, spare: bool) -> bool:
        """One of `NOT_LET_IN`. False: nor would anybody else let us in; `spare`: somebody has."""
        if isinstance(error, NotHere):
            self.redirected(address, error)
        elif isinstance(error, FINAL):
            if not self._reads and not spare:
                return False
            # A member that only reads may not know the user yet, who was let in elsewhere.
            self.failed(address, str(error))
        else:
            words = sentence_of(error) if isinstance(error, OSError) else str(error)
            self.failed(address, words or "it does not answer")
        return True

    def failed(self, address: Address, problem: str) -> None:
        self._problems[address] = problem

    def redirected(self, address: Address, told: NotHere) -> None:
        """It does not take us, and says who does."""
        self.failed(address, str(told))
        leader = parse_address(told.address) if told.address else None
        if leader is not None and leader not in self._tried:
            self._better.append(leader)

    def greeted(self, address: Address, welcome: Mapping[str, Any]) -> bool:
        """It let us in. False: there is a better place, which is to be tried before this one is used."""
        cluster = self._cluster
        cluster.learn(welcome)
        self._endpoints.connected(cluster.addresses, at=address)
        if not welcome.get("epoch"):
            return True
        good = cluster.suits(welcome) if self._reads else address in cluster.leader()
        wanted = cluster.readers() if self._reads else cluster.leader()
        self._better = [] if good else [one for one in wanted if one not in self._tried]
        return not self._better

    def not_connected(self, seconds: float) -> NotConnected:
        """Nobody let us in: what was tried."""
        names = self._endpoints.names
        problems = [self._problems.get(parse_address(name), "not tried") for name in names]
        if len(set(problems)) == 1:
            problem = problems[0] if self._problems else "no time to try"
        else:
            problem = "; ".join(f"{name}: {what}" for name, what in zip(names, problems, strict=True))
        return NotConnected(addresses=names, problem=problem, seconds=seconds)


class Inquiry:
    """Others are asked about a member that says nothing, one after the other, until one of them knows better.

    One is asked as a reader, so it answers itself and does not pass us on to the member that we ask about. It is asked again
    and again over the same connection.
    """

    def __init__(
        self, cluster: Cluster, endpoints: Endpoints, at: Address, welcome: Mapping[str, Any], *, reads: bool
    ) -> None:
        """About the member that has welcomed us `at` this address."""
        cluster.learn(welcome)
        self._cluster = cluster
        self._reads = reads
        self._node = str(welcome.get("node", ""))
        self._epoch = int(welcome.get("epoch") or 0)
        here = {parse_address(one.address) for one in cluster.members if one.name == self._node}
        known = dict.fromkeys([*cluster.others(self._node), *endpoints.addresses])
        self._others = [one for one in known if one != at and one not in here]
        self._next = 0

    def next(self) -> tuple[Address, float] | None:
        """Whom to ask, and how many seconds to wait first. None: there is nobody."""
        if not self._others:
            return None
        address = self._others[self._next % len(self._others)]
        wait = ASK_AGAIN_S if self._next else 0.0
        self._next += 1
        return address, wait

    def told(self, answer: Mapping[str, Any]) -> str | None:
        """What one of them says. Why the silent member is to be left, if it is."""
        self._cluster.learn(answer)
        epoch, leader = int(answer.get("epoch") or 0), answer.get("leader")
        if self._reads:
            members = members_of(answer)
            if members and epoch >= self._epoch and not any(map(self._serves, members)):
                return f"the broker says nothing, and {self._node} is not ready any more"
        elif leader and leader != self._node and epoch > self._epoch:
            return f"the broker says nothing, and {leader} leads now"
        return None

    def _serves(self, member: MemberInfo) -> bool:
        return member.name == self._node and member.state in ("ready", "active")


# What was seen -------------------------------------------------------------------------------------


class Seen:
    """How far this client has seen what the brokers hold. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._journal: dict[str, int] = {}
        self._catalog = 0

    def note(self, header: Mapping[str, Any], history: str) -> None:
        """What a broker answered; `history` is the one in which it writes."""
        catalog = header.get("catalog")
        with self._lock:
            if isinstance(catalog, int):
                self._catalog = max(self._catalog, catalog)
            for where, sequence in _places(header, history):
                known = self._journal.pop(where, 0)
                self._journal[where] = max(known, sequence)
                if len(self._journal) > HISTORIES_MAX:
                    del self._journal[next(iter(self._journal))]

    def header(self) -> dict[str, Any] | None:
        """As a request says it; None: nothing was seen yet."""
        with self._lock:
            if not self._journal and not self._catalog:
                return None
            return {"journal": dict(self._journal), "catalog": self._catalog}


def _places(header: Mapping[str, Any], history: str) -> Iterator[tuple[str, int]]:
    stored = header.get("journal")
    if isinstance(stored, int) and history:
        yield history, stored
    for facts in _told(header):
        where = facts.get("history")
        if isinstance(where, str) and where:
            found = [
                facts[name]
                for name in ("last", "to", "sequence", "position")
                if isinstance(facts.get(name), int)
            ]
            if found and max(found) > 0:
                yield where, max(found)


def _told(header: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield header
    marker, heads = header.get("marker"), header.get("streams")
    if isinstance(marker, dict):
        yield marker
    if isinstance(heads, dict):
        yield from (one for one in heads.values() if isinstance(one, dict))
