"""How much may be sent to a member that catches up, so that those who write here feel little of it.

    nobody writes      as much as it takes
    clients write      what they write, and so many bytes a second of what it lacks

So it gains on those who write, however fast they are, and always by as much. That few records come in counts as
nobody: a trickle is not held up, and a store is whole again sooner.

It is told the time, and how far the journal is, several times in `LOOK_MS`.

Invariant: what is allowed while clients write is at least what they have written meanwhile.
"""

from __future__ import annotations

LOOK_MS = 100
"""Whether clients write is judged by so much time."""
BUSY_PER_S = 100
"""Fewer records in a second than this are a trickle."""


class Ration:
    def __init__(self, bytes_per_s: int) -> None:
        self.limited = False
        """Clients write: what may be sent has a limit."""
        self._bytes_per_s = bytes_per_s
        self._now_ms = 0
        self._written_bytes = 0
        self._looked_ms = 0
        self._looked_seq = 0

    def tick(self, now_ms: int, seq: int, written_bytes: int) -> int:
        """The journal ends with this record, and so much was written to it since the start. Returns how much more each
        member that catches up may be sent; that says something only if it is `limited`."""
        # A process that stood still makes up for none of that at once.
        passed_ms = min(now_ms - self._now_ms, LOOK_MS)
        more = self._bytes_per_s * passed_ms // 1000 + written_bytes - self._written_bytes
        self._now_ms, self._written_bytes = now_ms, written_bytes
        looked_ms = now_ms - self._looked_ms
        if looked_ms >= LOOK_MS:
            self.limited = (seq - self._looked_seq) * 1000 >= BUSY_PER_S * looked_ms
            self._looked_ms, self._looked_seq = now_ms, seq
        return max(0, more)
