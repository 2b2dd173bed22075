"""Fences: no message that was moved on gets into a queue behind one of a later turn (`model/turns.py`).

A queue knows, for each stand-in or outbox that messages for it come from, the highest number that it has seen. What
comes with a lower one was sent by a front that another has followed, which has moved the same message or has found it
acknowledged: it is refused. The number is in the journal before or with the first message of its turn, so whoever leads next refuses it, too.
That is one small record a turn, in the place of the one before; it goes with the queue.

Numbers of another cluster cannot be compared, nor those from before an operator let it go on with what stores were left: main was made
anew or restored, and nothing of the former one is worth waiting for. The newer comer is right.

Invariant: the number for a source never falls while the queue and the cluster of the source are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.broker.streams import state
from tidemark.model.turns import Moved


@dataclass(slots=True)
class Fence:
    of: str
    number: tuple[int, ...]
    safe_at: int
    """The sequence of the record that says so; 0: the queue ends with the process, and so does its fence."""


class Fences:
    def __init__(self, own_state: state.State) -> None:
        self._state = own_state
        self._known: dict[int, dict[str, Fence]] = {}
        """By number of the queue and source."""

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def keeps_out(self, queue: int, moved: Moved) -> bool:
        """Whether a later turn has been seen."""
        fence = self._known.get(queue, {}).get(moved.source)
        return fence is not None and fence.of == moved.of and moved.number < fence.number

    def note(self, queue: Any, moved: Moved, now_ms: int) -> int:
        """A message of this turn is about to be put into the queue. Returns the sequence to wait for before it is confirmed.

        Raises:
            StoreError: the journal takes nothing now; nothing has changed.
        """
        fence = self._known.get(queue.number, {}).get(moved.source)
        if fence is not None and (fence.of, fence.number) == (moved.of, moved.number):
            return fence.safe_at
        safe_at = 0
        if queue.spec.in_catalog:
            body = {"of": moved.of, "at": moved.number}
            safe_at = self._state.write([state.change(_key(queue.number, moved.source), body)], now_ms)
        self._known.setdefault(queue.number, {})[moved.source] = Fence(moved.of, moved.number, safe_at)
        return safe_at

    def restored(self, queue: int, source: str, body: dict[str, Any], seq: int) -> None:
        """Recovery: what the journal says."""
        self._known.setdefault(queue, {})[source] = Fence(body["of"], tuple(body["at"]), seq)

    def forget(self, queue: int) -> list[state.Change]:
        """The queue is gone: what becomes of the records."""
        fences = self._known.pop(queue, {})
        return [(_key(queue, source), None) for source, fence in fences.items() if fence.safe_at]


def _key(queue: int, source: str) -> bytes:
    return state.key("fence", queue, source)
