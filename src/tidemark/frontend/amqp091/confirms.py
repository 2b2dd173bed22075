"""Which publishes of a channel wait to be confirmed.

A channel in confirm mode numbers its publishes 1, 2, 3, … A publish may be confirmed when the
journal is durable up to the sequence that it needs (0: at once); a refused one is nacked. Answers
go out in the order of the numbers, so every one of them can be cumulative: an answer (tag, kind)
covers all numbers up to `tag` that have had none.

Invariant: every number gets exactly one answer, and the numbers answered are always 1 … `answered`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tidemark.wire.amqp091.methods import BasicAck, BasicNack


@dataclass(slots=True)
class _Span:
    """Numbers up to `last` that share one fate."""

    sequence: int
    last: int
    accepted: bool


class Confirms:
    """The unconfirmed publishes of one channel."""

    __slots__ = ("_waiting", "accepted", "answered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.answered = 0
        self.accepted = 0
        """How many of the answers were acks."""
        self._waiting: deque[_Span] = deque()

    def __len__(self) -> int:
        """How many publishes have no answer yet."""
        return self.published - self.answered

    @property
    def sequence(self) -> int:
        """What must be durable for all of them to be answered."""
        return max((span.sequence for span in self._waiting), default=0)

    def add(self, count: int, sequence: int, refused: list[int]) -> None:
        """`count` more publishes, of which those at the positions `refused` are nacked."""
        begin = self.published
        if not refused:
            self._extend(begin + count, sequence, True)
            return
        done = 0
        for position in refused:
            if position > done:
                self._extend(begin + position, sequence, True)
            self._extend(begin + position + 1, 0, False)
            done = position + 1
        if count > done:
            self._extend(begin + count, sequence, True)

    def _extend(self, last: int, sequence: int, accepted: bool) -> None:
        waiting = self._waiting
        if waiting and waiting[-1].accepted is accepted and waiting[-1].sequence >= sequence:
            waiting[-1].last = last
        elif last > self.published:
            waiting.append(_Span(sequence, last, accepted))
        self.published = last

    def take(self, durable: int) -> list[BasicAck | BasicNack]:
        """The answers that may be given now."""
        answers: list[BasicAck | BasicNack] = []
        waiting = self._waiting
        while waiting and waiting[0].sequence <= durable:
            span = waiting.popleft()
            # An ack that is followed by another is part of it.
            if span.accepted and waiting and waiting[0].accepted and waiting[0].sequence <= durable:
                continue
            answers.append(self._answer(span))
        return answers

    def fail(self) -> list[BasicAck | BasicNack]:
        """The journal has stopped: nothing that waits will ever be safe."""
        if not self._waiting:
            return []
        last = self._waiting[-1].last
        self._waiting.clear()
        return [self._answer(_Span(0, last, False))]

    def _answer(self, span: _Span) -> BasicAck | BasicNack:
        count = span.last - self.answered
        several = count > 1
        self.answered = span.last
        if span.accepted:
            self.accepted += count
            return BasicAck(delivery_tag=span.last, multiple=several)
        return BasicNack(delivery_tag=span.last, multiple=several, requeue=False)
