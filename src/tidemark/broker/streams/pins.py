"""Pins: snapshots with a name and a lease, which stay readable byte for byte until they are let go of.

A pin holds its snapshot in the stream's index from the moment it is asked for; the client is told when its record
is durable. Releasing lets go at once: what the pin kept leaves the index, but not the disk before the record of
the release is there too (compaction's barrier), so a crash in between brings the pin back with all it held.

A pin remembers how many shards there were when it was made: whoever reads it by shards counts by these, also when
the stream has grown.

What pins cost is bounded by x-stream-pin-bytes-max: when superseded messages take more, the oldest pin is
dropped, and its readers are told (PinExpired).

Invariant: every pin in `by_name` holds its sequence in the stream once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.broker.streams import state
from tidemark.broker.streams.marks import LEASE_MS_MAX
from tidemark.broker.streams.policy import checked_name
from tidemark.errors import HistoryGone, NotFound, PinExpired, PreconditionFailed

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream

FORGOTTEN_MAX = 1024
"""Names of dropped pins that are remembered, to say why they are gone."""


@dataclass(frozen=True, slots=True)
class PinStatistics:
    name: str
    seq: int
    history: bytes
    shards: int
    lease_until_ms: int
    messages_kept: int
    bytes_kept: int
    """What this pin sees and nobody would keep without pins and snapshots. Pins may share it."""
    floor: int
    """What is below had ended when it was made; see `StreamStatistics.floor`."""
    purged: int


class Pin:
    __slots__ = ("history", "lease_ms", "name", "pins", "safe_at", "seq", "shards", "until_ms")

    def __init__(self, pins: Pins, name: str, seq: int, history: bytes, shards: int) -> None:
        self.pins = pins
        self.name = name
        self.seq = seq
        self.history = history
        self.shards = shards
        self.lease_ms = 0
        self.until_ms = 0
        self.safe_at = 0

    def leased(self) -> bool:
        return self.pins.by_name.get(self.name) is self

    def lease_ended(self, now_ms: int) -> None:
        self.pins.drop(self, "its lease has ended", now_ms)


class Pins:
    """The pins of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.by_name: dict[str, Pin] = {}
        self._stream = stream
        self._dropped: dict[str, tuple[int, str]] = {}
        """(sequence, why) of pins that went without being released."""

    def key(self, name: str) -> bytes:
        return state.key("pin", self._stream.number, name)

    def get(self, name: str) -> Pin:
        """Raises:
        PinExpired: it was dropped.
        NotFound: there is none of this name.
        """
        pin = self.by_name.get(name)
        if pin is not None:
            return pin
        if name in self._dropped:
            seq, why = self._dropped[name]
            raise PinExpired(stream=self._stream.name, pin=name, seq=seq, problem=why)
        raise NotFound(
            reason=f"stream '{self._stream.name}' has no pin '{name}'; pin a snapshot under this name"
        )

    def pin(self, name: str, seq: int, lease_ms: int, now_ms: int) -> Pin:
        """Hold the snapshot at `seq` under a new name, or renew the lease of the one that has the name.

        `safe_at` of the pin is the sequence to wait for.

        Raises:
            PreconditionFailed: a name or a lease that cannot be.
            HistoryGone: members that follow may have let go of what it sees.
            StoreError: the journal takes nothing now; nothing is held.
        """
        checked_name("a pin", name)
        if not 0 < lease_ms <= LEASE_MS_MAX:
            raise PreconditionFailed(reason=f"a lease of {lease_ms} ms is not possible")
        streams = self._stream.broker.streams
        pin = self.by_name.get(name)
        fresh = pin is None
        if pin is None:
            if not self._stream.can_pin(seq):
                raise HistoryGone(stream=self._stream.name, seq=seq, oldest=self._stream.boundary)
            pin = Pin(self, name, seq, streams.history, self._stream.policy.shards)
        before = pin.lease_ms, pin.until_ms
        pin.lease_ms, pin.until_ms = lease_ms, now_ms + lease_ms
        try:
            pin.safe_at = streams.write([self._encoded(pin)], now_ms)
        except BaseException:
            pin.lease_ms, pin.until_ms = before
            raise
        if fresh:
            self._hold(pin)
        elif pin.until_ms < before[1]:
            streams.leases.add(pin)
        return pin

    def _hold(self, pin: Pin) -> None:
        self._stream.hold(pin.seq)
        self.by_name[pin.name] = pin
        self._dropped.pop(pin.name, None)
        self._stream.broker.streams.leases.add(pin)
        self._stream.attend()

    def release(self, name: str, now_ms: int) -> int:
        """Let go of it. Returns the sequence to wait for.

        Raises:
            NotFound, PinExpired: see `get`
            StoreError: the journal takes nothing now; the pin holds on.
        """
        return self._end(self.get(name), now_ms)

    def drop(self, pin: Pin, why: str, now_ms: int) -> int:
        """The pin goes though nobody released it. Its readers get PinExpired."""
        seq = self._end(pin, now_ms)
        while len(self._dropped) >= FORGOTTEN_MAX:
            del self._dropped[next(iter(self._dropped))]
        self._dropped[pin.name] = pin.seq, why
        self._stream.expire_snapshots(pin, why)
        return seq

    def _end(self, pin: Pin, now_ms: int) -> int:
        seq = self._stream.broker.streams.write([(self.key(pin.name), None)], now_ms)
        del self.by_name[pin.name]
        self._stream.unhold(pin.seq)
        self._stream.tidy()
        return seq

    def oldest(self) -> Pin | None:
        return min(self.by_name.values(), key=lambda pin: pin.seq, default=None)

    def statistics(self) -> list[PinStatistics]:
        found = []
        for pin in self.by_name.values():
            count, size = self._stream.kept(pin.seq)
            floor, purged, _ = self._stream.ends.at(pin.seq)
            found.append(
                PinStatistics(
                    pin.name, pin.seq, pin.history, pin.shards, pin.until_ms, count, size, floor, purged
                )
            )
        return found

    # Records -------------------------------------------------------------------------------

    def _encoded(self, pin: Pin) -> state.Change:
        body = {
            "seq": pin.seq,
            "h": pin.history.hex(),
            "n": pin.shards,
            "l": pin.lease_ms,
            "u": pin.until_ms,
        }
        return state.change(self.key(pin.name), body)

    def restored(self, name: str, body: dict[str, Any], seq: int) -> None:
        """Recovery: a pin as it was written. It holds from here on."""
        # Its record survived, so what it holds did, whatever became of the history it was made in.
        history = self._stream.broker.streams.history
        pin = Pin(self, name, body["seq"], history, body.get("n", self._stream.policy.shards))
        pin.lease_ms, pin.until_ms, pin.safe_at = body["l"], body["u"], seq
        self._hold(pin)

    def followed(self, name: str, body: dict[str, Any] | None, seq: int) -> None:
        """The leader made, renewed or ended this pin."""
        pin = self.by_name.get(name)
        if body is None:
            if pin is not None:
                del self.by_name[name]
                # Snapshots of it that are open here hold it themselves, as after a release.
                self._stream.unhold(pin.seq)
        elif pin is not None and pin.seq == body["seq"]:
            pin.lease_ms, pin.until_ms, pin.safe_at = body["l"], body["u"], seq
        else:
            self.followed(name, None, seq)
            self.restored(name, body, seq)

    def gone(self) -> list[state.Change]:
        """The stream is deleted: what becomes of the records."""
        changes: list[state.Change] = [(self.key(name), None) for name in self.by_name]
        self.by_name.clear()
        return changes
