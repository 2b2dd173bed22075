"""How much a turn may do of what need not all be done at once.

A turn that ends a million messages because they are too old, or gives them all to one consumer, keeps everybody
else waiting. So all queues together have an allowance for each turn, in messages and in bytes; what is left is for
the next turns, and a queue that has something left asks for one.

A queue may always do as much as was published to it since its last look, and a little more, whatever the others have
used: it never grows because its turns are short, and none waits for another one to be done.
"""

from __future__ import annotations

MESSAGES = 16_384
BYTES = 16 << 20
LETTER = 64
"""A message that becomes a dead letter is as much work as so many that just end or are given away."""
EXTRA = 16
"""How many messages of a queue may be worked on in every turn, beside those that came. Of dead letters it is one."""
STEP_BYTES = 64 << 10
"""What is taken at once when the bytes are used up."""


class Allowance:
    """What is left of a turn. `messages` and `bytes` are for all queues, `own` is for the one looked at."""

    __slots__ = ("bytes", "first", "messages", "own", "turn")

    def __init__(self) -> None:
        self.turn = 0
        """Its number."""
        self.own = 0
        self.first = True
        """The queue has not been looked at before in this turn."""
        self.messages, self.bytes = MESSAGES, BYTES

    def renew(self) -> None:
        """A turn begins."""
        self.turn += 1
        self.messages, self.bytes = MESSAGES, BYTES

    def begin(self, came: int, looked_turn: int) -> None:
        """A queue is looked at: how many were published to it since its last look, and in which turn that was."""
        self.own, self.first = came, looked_turn != self.turn

    def left(self, letters: bool = False) -> int:
        """How many more messages may be worked on; with `letters` each becomes a dead letter. 0 or less: none."""
        shared = self.messages if self.bytes > 0 else 0
        if letters:
            return max(shared // LETTER, self.own + self.first)
        return max(shared, self.own + EXTRA * self.first)

    def left_bytes(self) -> int:
        """How many bytes may be taken at once. At least a few: `left` says whether any may."""
        return max(self.bytes, STEP_BYTES)

    def spend(self, messages: int, size: int = 0, letters: bool = False) -> None:
        """So many were worked on, of together `size` bytes that had to be copied."""
        self.own -= messages
        self.messages -= messages * LETTER if letters else messages
        self.bytes -= size
