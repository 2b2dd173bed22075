"""Once a second: what a stream is to let go of, by its own rules.

    x-max-age              messages that were accepted longer ago end
    x-max-length-bytes     the oldest messages end until the rest is small enough
    tombstones             end when every registered consumer has passed them, or at the end of their lease
    x-stream-history       superseded versions leave when they have been superseded for so long
    x-stream-pin-bytes-max the oldest pin or snapshot goes while superseded messages take more

Each is a step of `Ends`, so a record; nothing ends by the clock alone. Reading the time of a message may bring
a megabyte back from the disk, so the time of the oldest one is remembered, and a rule is asked again when it
can have an answer.

Invariant: a tombstone that a registered consumer has not passed stays until its own lease is over.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from tidemark.model.records import HEAD

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream

STEPS = 200
"""A rule about a span of time is applied about so often in that span, and at most once a second."""
SCAN = 4096
SAMPLES_MAX = 1 << 14
NEVER = 1 << 62


class Timeline:
    """Which sequence was the newest at which moment, since the start. The longer it runs, the coarser it is."""

    def __init__(self) -> None:
        self._ms: list[int] = []
        self._seqs: list[int] = []
        self._step_ms = 0

    def note(self, now_ms: int, seq: int) -> None:
        """What is the newest now; called about once a second."""
        if self._seqs and (seq == self._seqs[-1] or now_ms <= self._ms[-1] + self._step_ms):
            return
        self._ms.append(now_ms)
        self._seqs.append(seq)
        if len(self._ms) > SAMPLES_MAX:
            del self._ms[1::2], self._seqs[1::2]
            self._step_ms = (self._ms[-1] - self._ms[0]) // len(self._ms)

    def seq_at(self, ms: int) -> int:
        """A sequence that had been given by then; 0 if that is not known."""
        at = bisect_right(self._ms, ms)
        return self._seqs[at - 1] if at else 0


class Keeper:
    """Applies the rules to one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._age_ms = 0
        """When x-max-age is asked next."""
        self._step_ms = 0
        """When something may end next."""
        self._past_ms = 0
        self._lease_ms = 0
        self._oldest_tombstone = 0

    def tick(self, now_ms: int) -> bool:
        """Apply all rules. False when there is nothing to come back for until the stream changes.

        Raises:
            StoreError: the journal takes nothing now; the rest is for the next time.
        """
        stream, policy = self._stream, self._stream.policy
        if now_ms >= self._step_ms:
            self._end_some(now_ms)
        if policy.history_ms and stream.held:
            self._past(policy.history_ms, now_ms)
        if policy.pin_bytes_max is not None:
            self._bound_pins(policy.pin_bytes_max, now_ms)
        return bool(
            stream.tombstones
            or (policy.age_ms_max is not None and stream.live)
            or (policy.length_bytes_max is not None and stream.live_bytes > policy.length_bytes_max)
            or (policy.history_ms and stream.held)
            or (policy.pin_bytes_max is not None and stream.held)
        )

    def _end_some(self, now_ms: int) -> None:
        """End what is too old, too much, or deleted and seen by all."""
        stream, policy = self._stream, self._stream.policy
        floor = purged = 0
        if policy.age_ms_max is not None and stream.live + stream.tombstones:
            floor = self._too_old(policy.age_ms_max, now_ms)
        if policy.length_bytes_max is not None and stream.live_bytes > policy.length_bytes_max:
            floor = max(floor, self._too_much(stream.live_bytes - policy.length_bytes_max))
        if stream.tombstones:
            purged = self._passed(now_ms)
            # A floor ends tombstones too. Who has not seen them is told to start over.
            oldest = stream.oldest_tombstone()
            if oldest is not None and oldest[0] < floor:
                purged = max(purged, floor - 1)
        if floor or purged:
            stream.ends.advance(now_ms, floor=floor, purged=purged)
            if policy.history_ms:
                # Each step is remembered for as long as the history: few large ones instead of one a second.
                self._step_ms = now_ms + max(1000, policy.history_ms // STEPS)

    # Age and size ------------------------------------------------------------------------------

    def _too_old(self, age_ms: int, now_ms: int) -> int:
        """The floor below which everything is too old; 0: nothing is."""
        if now_ms < self._age_ms:
            return 0
        stream = self._stream
        taken = stream.take(stream.caught_up(), 0, stream.boundary, 1, 1)
        if taken is None:
            return 0
        oldest_ms = self._accepted_ms(taken.entry(0)[2])
        soon_ms = now_ms + max(1000, age_ms // STEPS)
        if oldest_ms > now_ms:
            # It was accepted by a clock that was ahead: that says nothing about those behind it.
            self._age_ms = soon_ms
        else:
            self._age_ms = max(oldest_ms + age_ms, soon_ms)
            if oldest_ms + age_ms > now_ms:
                return 0
        upto = min(stream.seq_at(now_ms - age_ms), stream.boundary)
        return upto + 1 if upto else 0

    def _too_much(self, excess: int) -> int:
        """The floor that frees `excess` bytes of values; only what is shown ends."""
        stream = self._stream
        boundary, after = stream.caught_up(), 0
        while excess > 0:
            taken = stream.take(boundary, after, boundary, SCAN, NEVER)
            if taken is None:
                break
            for _, seq, _, size, _, _ in taken:
                after, excess = seq, excess - size
                if excess <= 0:
                    break
        return after + 1 if after else 0

    # Tombstones ------------------------------------------------------------------------------

    def _passed(self, now_ms: int) -> int:
        """Up to where tombstones may end; 0: none may."""
        stream = self._stream
        oldest = stream.oldest_tombstone()
        if oldest is None or oldest[0] > stream.caught_up():
            return 0
        seq, loc = oldest
        lease_ms = stream.policy.tombstone_lease_ms
        if seq != self._oldest_tombstone:
            # A clock that was ahead when it was accepted must not keep it for ever.
            self._oldest_tombstone, self._lease_ms = seq, min(self._accepted_ms(loc), now_ms) + lease_ms
        upto = 0
        if now_ms >= self._lease_ms:
            upto = stream.seq_at(now_ms - lease_ms)
        stream.broker.streams.flush(now_ms)
        lowest = stream.marks.lowest()
        if lowest is not None:
            upto = max(upto, lowest)
        upto = min(upto, stream.boundary)
        return upto if upto >= seq else 0

    def _accepted_ms(self, loc: int) -> int:
        return int(HEAD.unpack_from(self._stream.arena.record(loc))[5])

    # The past, and what it costs ---------------------------------------------------------------

    def _past(self, history_ms: int, now_ms: int) -> None:
        if now_ms < self._past_ms:
            return
        self._past_ms = now_ms + max(1000, history_ms // STEPS)
        stream = self._stream
        upto = stream.broker.streams.timeline.seq_at(now_ms - history_ms)
        upto = min(max(upto, stream.seq_at(now_ms - history_ms)), stream.caught_up())
        if upto > stream.ends.past:
            stream.ends.forget_past(upto, now_ms)
            stream.tidy()

    def _bound_pins(self, bytes_max: int, now_ms: int) -> None:
        stream = self._stream
        if stream.held_bytes <= bytes_max:
            return
        stream.tidy()
        while self._kept_bytes() > bytes_max and stream.drop_oldest_view(now_ms):
            pass

    def _kept_bytes(self) -> int:
        """What pins and snapshots keep. Of a stream that keeps its past anyway: what the oldest one sees of it."""
        stream = self._stream
        if not stream.policy.history_ms:
            return stream.held_bytes
        oldest = stream.oldest_view()
        return 0 if oldest is None else stream.kept(oldest.seq)[1]
