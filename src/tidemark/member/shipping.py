"""What goes to each peer, how far each peer is, and what the logs must keep for them.

A sender reads both logs from where its peer stands and ships frame after frame, the wiring first, as far as the peer's
credit goes: what is on its way and not acknowledged is bounded. Following and catching up are the same thing here. But
whoever nobody waits for is rationed while clients write (`rationing.py`), and is sent small frames joined.

Invariant: nothing is shipped that the local logs do not hold, and to one peer each log in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from tidemark.cluster.config import ClusterConfig
from tidemark.errors import LogGone, StoreError
from tidemark.member.rationing import Ration
from tidemark.model.peers import Acked, Ends, Log, Name, Unit
from tidemark.store.store import Store
from tidemark.store.units import joined

SHIP_BYTES = 1 << 20
"""How much is read from a log for a peer at once."""
LOGS = tuple(Log)
Read = dict[tuple[Log, int, int], list[Unit]]
"""What was read from the logs for peers just now, by (log, behind which sequence, how much at most)."""


class Links(Protocol):
    """The part of a member's shell that carries frames."""

    def ship(self, peer: Name, epoch: int, unit: Unit) -> None:
        """Send one frame of a log. Its bytes are taken before this returns."""

    def shipped(self) -> None:
        """All readers have been given what they can take: other bytes may come under the same numbers from now on."""

    def backlog(self, peer: Name) -> int:
        """Bytes for this peer that its socket has not taken yet."""

    def drop(self, peer: Name) -> None:
        """Close the links with it; a source is dialled again."""

    def note(self, level: str, event: str, **facts: object) -> None:
        """A line for the log."""


@dataclass(slots=True)
class Sender:
    """What goes to one peer: from where, and how much of it is on its way."""

    after: dict[Log, int]
    unacked: deque[tuple[Log, int, int]] = field(default_factory=deque)
    """(log, last sequence, bytes) of what was sent and not acknowledged."""
    unacked_bytes: int = 0
    ration_bytes: int = 0
    """How much it may be sent now, if it is rationed."""

    def has_sent(self, ends: Ends) -> bool:
        """All up to here."""
        return self.after[Log.JOURNAL] >= ends.journal and self.after[Log.CATALOG] >= ends.catalog

    def acked(self, durable: Ends) -> None:
        while self.unacked and self.unacked[0][1] <= durable[self.unacked[0][0]]:
            self.unacked_bytes -= self.unacked.popleft()[2]


class Shipping:
    def __init__(self, config: ClusterConfig, links: Links) -> None:
        self._config = config
        self._links = links
        self._senders: dict[Name, Sender] = {}
        self._acks: dict[Name, Ends] = {}
        """What members have said in this epoch to have on their disks."""
        self._positions: dict[Name, Ends] = {}
        """How far they were when they were heard of last; those that are away will go on from there."""
        self._ration = Ration(config.catch_up_bytes_per_s)
        self._held_back = False
        """Somebody lacks something that could not be sent yet: more may go with the next acknowledgement."""
        self._short: list[Name] = []
        """Those who had nothing left of their ration. The next one comes with a tick; but if confirms begin to wait for one
        of them before that, it is rationed no more."""

    # Who gets what -------------------------------------------------------------------------------------------

    def begin(self, peer: Name, after: Ends) -> None:
        self._senders[peer] = Sender({log: after[log] for log in Log})
        self._held_back = True

    def end(self, peer: Name) -> None:
        self._senders.pop(peer, None)

    def end_all(self) -> None:
        self._senders.clear()

    @property
    def readers(self) -> list[Name]:
        """Those that something is sent to."""
        return list(self._senders)

    def acked(self, peer: Name, message: Acked) -> None:
        told = {peer: message.durable, **dict(message.behind)}
        self._acks |= told
        self._positions |= told
        if peer in self._senders:
            self._senders[peer].acked(message.durable)

    def new_epoch(self, ready: Sequence[Name], me: Name, complete: Ends) -> None:
        """Another epoch begins; those were ready in the last one."""
        self._acks.clear()  # what was said may have been cut back since
        # Nobody is cut back to before what is complete, and the ready have at least that.
        before, known = self._positions, (*ready, *self._positions)
        self._positions = {name: before.get(name, complete).least(complete) for name in known if name != me}

    def having(self, names: Iterable[Name], seq: int) -> int:
        """How many of these have said that their journal reaches so far."""
        return sum(1 for name in names if self._acks.get(name, Ends()).journal >= seq)

    # Sending --------------------------------------------------------------------------------------------------

    def tick(self, store: Store, now_ms: int) -> None:
        """Often: those that are rationed get their share of the time that has passed."""
        more = self._ration.tick(now_ms, store.ends.journal, store.journal.bytes_written)
        most = max(more, self._config.window_bytes)
        for sender in self._senders.values():
            sender.ration_bytes = min(sender.ration_bytes + more, most)

    def pump(self, store: Store, epoch: int, awaited: Collection[Name]) -> None:
        """Send every peer what it lacks, as far as its credit goes, and its ration if it is not one of the `awaited`."""
        window, ends = self._config.window_bytes, store.ends
        read: Read = {}
        self._held_back, self._short = False, []
        for peer, sender in list(self._senders.items()):
            catches_up = peer not in awaited
            rationed = catches_up and self._ration.limited
            while (
                not sender.has_sent(ends)
                and sender.unacked_bytes < window
                and self._links.backlog(peer) < window
            ):
                most = min(SHIP_BYTES, window - sender.unacked_bytes)
                if rationed:
                    most = min(most, sender.ration_bytes)
                sent = self._ship_some(store, epoch, peer, sender, most, catches_up, read) if most > 0 else 0
                if not sent:
                    break
                if rationed:
                    sender.ration_bytes -= sent
            if rationed and sender.ration_bytes <= 0:
                self._short.append(peer)
            elif not sender.has_sent(ends):
                self._held_back = True
        self._links.shipped()

    def may_go_on(self, awaited: Collection[Name]) -> bool:
        """Whether more might be sent than at the last `pump`, though the logs hold nothing new."""
        return self._held_back or any(name in awaited for name in self._short)

    def _ship_some(
        self,
        store: Store,
        epoch: int,
        peer: Name,
        sender: Sender,
        most: int,
        catches_up: bool,
        read: Read,
    ) -> int:
        """Send about so much of what comes next. Returns how much it was. What was `read` for one is there for all that
        are as far."""
        for log in LOGS:
            if sender.after[log] >= store.ends[log]:
                continue
            place = log, sender.after[log], most
            try:
                units = read.get(place) or read.setdefault(place, store.units_after(*place))
            except LogGone:
                # It fell too far behind: it asks again and is told to begin anew.
                self.end(peer)
                self._links.drop(peer)
                return 0
            except StoreError as error:
                # The link stays: what is damaged now is damaged when it asks again.
                self._links.note("error", "log cannot be read", member=peer, error=str(error))
                self.end(peer)
                return 0
            if catches_up and log is Log.JOURNAL:
                units = joined(units)
            for unit in units:
                if unit.previous != sender.after[log]:
                    unit = replace(unit, previous=sender.after[log])
                self._links.ship(peer, epoch, unit)
                sender.after[log] = unit.last
                sender.unacked.append((log, unit.last, len(unit.payload)))
                sender.unacked_bytes += len(unit.payload)
            return sum(len(unit.payload) for unit in units)
        return 0

    # What follows from how far they are ---------------------------------------------------------------------------

    def needed(self, store: Store, complete: Ends) -> Ends:
        """From where on the logs must be kept: what is not complete, and what members still need, linked or away, as
        far as that is allowed."""
        keep = complete
        for peer, position in list(self._positions.items()):
            if self._can_keep(store, position):
                keep = keep.least(position)
            else:
                del self._positions[peer]
        for peer, sender in self._senders.items():
            after = Ends(sender.after[Log.CATALOG], sender.after[Log.JOURNAL])
            if peer not in self._positions and self._can_keep(store, after):
                keep = keep.least(after)
        return keep

    def _can_keep(self, store: Store, behind: Ends) -> bool:
        needed = store.journal.bytes_after(behind.journal)
        needed += sum(one.used for one in store.catalog.segments if one.last_seq > behind.catalog)
        return needed <= self._config.keep_bytes

    def lagging(self, store: Store, ready: Sequence[Name], already: Sequence[Name]) -> tuple[Name, ...]:
        """Those of the ready that are so far behind that publishers must wait; less far for who was so `already`."""
        most, journal = self._config.lag_bytes, store.journal
        return tuple(
            name
            for name in ready
            if name in self._acks
            and journal.bytes_after(self._acks[name].journal) > (most // 2 if name in already else most)
        )

    def status(self, ends: Ends) -> list[dict[str, Any]]:
        return [
            {
                "name": peer,
                "acked": asdict(self._acks.get(peer, Ends())),
                "lag": max(0, ends.journal - self._acks.get(peer, Ends()).journal),
                "unacked_bytes": sender.unacked_bytes,
            }
            for peer, sender in self._senders.items()
        ]
