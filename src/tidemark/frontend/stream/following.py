"""What a member that does not lead does for readers: which requests it takes, and when it may answer them.

It shows what is complete, which may be less than the client has seen elsewhere. So a request says what its client has
seen: in `seen`, and in the positions that it names. Until all of that is shown here the request waits, and is
refused when that takes longer than `stream.behind_s_max`. Where the journal is written nothing waits: there is no
newer state than that.

Invariant: no answer shows less than what the request says was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tidemark.broker.streams.positions import last_of
from tidemark.broker.streams.streams import Streams
from tidemark.errors import ContentTooLarge, MemberBehind, NotHere, SyntaxFault
from tidemark.frontend.services import Services, Topology
from tidemark.frontend.stream.fields import Fields
from tidemark.frontend.stream.polls import Poll
from tidemark.frontend.stream.work import Link

READS = frozenset(
    {
        "info", "list", "partitions", "get", "snapshot", "read", "close", "cut", "lag", "diff", "follow", "pins", "safe", "heads",
        "members",
    }
)  # fmt: skip
"""Operations that change nothing and need nothing that only the leader knows."""
AT_ONCE = frozenset({"close", "members"})
"""Those that show nothing of a stream."""
PLACES = ("after", "at", "a", "b", "from")
"""Fields that name a position, as a sequence or with its history."""
HISTORIES_MAX = 16
KEPT_BYTES_MAX = 1 << 20
"""The largest payload of a request that may wait: a key."""


class Seen(NamedTuple):
    """What must be shown here before a request is answered."""

    journal: tuple[tuple[bytes | None, int], ...]
    """(history, sequence); None: whatever history that sequence belongs to."""
    catalog: int = 0


def check_reads(op: str, fields: Fields, topology: Topology, tls: bool) -> None:
    """Raises NotHere: only the leader can do that."""
    marked = op == "follow" and isinstance(fields.raw("from"), dict) and "mark" in fields.inner("from")
    if op not in READS or (op == "snapshot" and "pin" in fields) or marked:
        raise not_here(op, topology, tls)


def not_here(operation: str, topology: Topology, tls: bool) -> NotHere:
    leader = next((one for one in topology.members if one.name == topology.leader), None)
    address = "" if leader is None else leader.amqps if tls else leader.amqp
    return NotHere(operation=operation, leader=topology.leader, address=address, epoch=topology.epoch)


def seen_by(op: str, fields: Fields) -> Seen:
    """What the request says its client has seen.

    Raises:
        SyntaxFault
    """
    if op in AT_ONCE:
        return Seen(())
    found: list[tuple[bytes | None, int]] = []
    seen, catalog = fields.inner("seen", None), 0
    if seen is not None:
        catalog = seen.number("catalog", 0)
        places = seen.table("journal")
        if len(places) > HISTORIES_MAX:
            raise SyntaxFault(
                reason=f"'seen' names more than {HISTORIES_MAX} histories; the newest are enough"
            )
        for history, sequence in places.items():
            place = Fields({"history": history, "sequence": sequence}, "seen.journal")
            found.append((place.history(), place.number("sequence")))
    found += _named(op, fields)
    return Seen(tuple(found), catalog)


def _named(op: str, fields: Fields) -> Iterator[tuple[bytes | None, int]]:
    if op == "safe":
        yield fields.history(), fields.number("sequence")
        return
    if op == "heads":
        return  # these wait for news anyway, as long as their client wants
    for name in PLACES:
        value = fields.raw(name)
        if isinstance(value, dict) and "sequence" in value:
            place = fields.inner(name)
            yield place.history() if "history" in place else None, place.number("sequence")
        elif type(value) is int and value > 0:
            yield None, value


def missing(streams: Streams, services: Services, seen: Seen) -> int | None:
    """A sequence that is not shown here yet; None when all is."""
    if streams.leads:
        return None
    shown = streams.shown_seq()
    for history, sequence in seen.journal:
        if history is None:
            if sequence > shown:
                return sequence
            continue
        known = streams.histories
        last = last_of(known, shown, history)
        # Of an older history that ended below this nothing more will come: whoever asks is told that it was cut off.
        if last is None or (sequence > last and history == known[0][0]):
            return sequence
    return seen.catalog if seen.catalog > services.catalog_durable() else None


class Until(Poll):
    """A request that waits until what its client has seen is shown here. Then it is performed."""

    def __init__(
        self,
        link: Link,
        request: int,
        streams: Streams,
        seen: Seen,
        payload: memoryview,
        go: Callable[[memoryview], None],
    ) -> None:
        super().__init__(link, request, link.config.behind_s_max * 1000)
        if len(payload) > KEPT_BYTES_MAX:
            raise ContentTooLarge(reason=f"a request that reads brings at most {KEPT_BYTES_MAX} bytes")
        self._streams = streams
        self._seen = seen
        self._payload = bytes(payload)
        self._go = go
        streams.awaiting[self] = None

    def durable(self) -> None:
        self.link.wake(self)

    def _look(self, over: bool) -> None:
        services = self.link.services
        wanted = missing(self._streams, services, self._seen)
        if wanted is None:
            self.close()
            self._go(memoryview(self._payload))
        elif over:
            raise MemberBehind(member=services.name, sequence=wanted, shown=self._streams.shown_seq())

    def close(self) -> None:
        self._streams.awaiting.pop(self, None)


def told(topology: Topology, services: Services, tls: bool, own_address: str) -> dict[str, Any]:
    """The cluster, as `hello` and `members` tell it. A node that stands alone is its own leader and only member."""
    if not topology.members:
        me = {"name": services.name, "state": "alone", "role": "leader", "address": own_address}
        return {"mode": topology.mode, "epoch": 0, "leader": services.name, "members": [me]}
    return {
        "mode": topology.mode,
        "epoch": topology.epoch,
        "leader": topology.leader or None,
        "members": [
            {
                "name": one.name,
                "state": one.state,
                "role": one.role,
                "address": one.amqps if tls else one.amqp,
                "epoch": topology.epoch,
            }
            for one in topology.members
        ],
    }
