"""What a stream has ended for good: messages below a floor, tombstones that all have passed, versions of the past.

Nothing here happens silently. Each step is a record of the state stream, and takes effect at that record's
sequence `by`: a snapshot before it still sees what the step ended, one after it does not. On replay the same
messages may be on the disk still, so the steps are made again with the same `by`. That is why a step is
remembered while somebody can tell it from the next one: a pin between the two, or the kept past.

    by ──────● floor 10 ───────────● floor 50 ────────▶
                   ▲ pin: sees 10 … 49               two steps, as long as the pin is there

Invariant: made again after all puts, the steps give every entry the end that it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.broker.streams import state

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream


class Step(NamedTuple):
    floor: int
    """Messages with a lower sequence have ended."""
    purged: int
    """Tombstones up to this sequence have ended."""
    by: int


NOTHING = Step(0, 0, 0)


class Ends:
    """The ends of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.steps: list[Step] = []
        self.past = 0
        """Superseded versions that ended up to here may be gone: no snapshot before it can be opened exactly."""
        self.buries = False
        """Something was buried and let go of, and the stream keeps no past: a start must assume that any was."""
        self._stream = stream

    @property
    def last(self) -> Step:
        return self.steps[-1] if self.steps else NOTHING

    def at(self, seq: int) -> Step:
        """What had ended for a snapshot at this sequence; `by` is 0 when nothing had."""
        return next((step for step in reversed(self.steps) if step.by <= seq), NOTHING)

    def key(self) -> bytes:
        return state.key("stream", self._stream.number)

    def advance(self, now_ms: int, *, floor: int = 0, purged: int = 0) -> int:
        """End messages below `floor` and tombstones up to `purged`. Returns the sequence to wait for.

        Raises:
            StoreError: the journal takes nothing now; nothing ended.
        """
        stream, last = self._stream, self.last
        floor, purged = max(floor, last.floor), max(purged, last.purged)
        steps, past = self._merged()
        step = Step(floor, purged, stream.arena.next_seq)
        seq = self._write([*steps, step], past, self.buries, now_ms)
        assert seq == step.by
        self.steps, self.past = [*steps, step], past
        self._apply(step, last)
        stream.changed_at(seq)
        return seq

    def forget_past(self, upto: int, now_ms: int) -> None:
        """Versions that were superseded up to here may leave.

        Raises:
            StoreError: the journal takes nothing now.
        """
        past = max(self.past, upto)
        self._write(self.steps, past, self.buries, now_ms)
        self.past = past

    def begin_to_bury(self, now_ms: int) -> None:
        """From now on superseded versions leave as soon as they may.

        Raises:
            StoreError: the journal takes nothing now.
        """
        self._write(self.steps, self.past, True, now_ms)
        self.buries = True

    def _merged(self) -> tuple[list[Step], int]:
        """The steps without those that nobody can tell from the next one, and how much past that costs."""
        stream = self._stream
        seen = {pin.seq for pin in stream.pins.by_name.values()}
        kept, past = [], self.past
        for step, following in zip(self.steps, self.steps[1:], strict=False):
            over = past if stream.policy.history_ms else stream.boundary
            if following.by <= over and not any(step.by <= seq < following.by for seq in seen):
                past = max(past, following.by)
            else:
                kept.append(step)
        return kept + self.steps[-1:], past

    def _apply(self, step: Step, before: Step) -> None:
        if step.floor > before.floor:
            self._stream.end_below(step.floor, step.by)
        if step.purged > before.purged:
            self._stream.end_tombstones(step.purged, step.by)

    # Records -------------------------------------------------------------------------------

    def _write(self, steps: list[Step], past: int, buries: bool, now_ms: int) -> int:
        body: dict[str, Any] = {"steps": steps, "past": past}
        if buries:
            body["buries"] = 1
        return self._stream.broker.streams.write([state.change(self.key(), body)], now_ms)

    def restored(self, body: dict[str, Any]) -> None:
        """All puts were made again, or more of them: what was ended since the last such record ends again."""
        before, self.steps = self.last, [Step(*step) for step in body["steps"]]
        self.past, self.buries = body["past"], bool(body.get("buries"))
        for step in self.steps:
            if step.by > before.by:
                self._apply(step, before)
                before = step
