"""The numbers of a producer's writes, and the one write whose fate is not known.

Invariant: numbers rise, and a write that had no answer is in `_doubt` until it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidemark.client import operations as ops
from tidemark.client.errors import ClientClosed, NotConnected, ProducerClash, TimedOut, Unconfirmed
from tidemark.client.operations import Call, Numbered
from tidemark.client.values import Receipt
from tidemark.errors import TidemarkError


class Numbering:
    """What a producer remembers. Whoever uses it sees to it that writes go one after the other."""

    def __init__(self, name: str, last: int) -> None:
        self._name = name
        self._number = last
        self._doubt: Call[Receipt] | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def last(self) -> int:
        """The last number that was used; a source that numbers its own records goes on behind it."""
        return self._number

    def _numbered(self, make: Callable[[Numbered], Call[Receipt]], number: int | None) -> Call[Receipt]:
        """The next write, under the caller's own number or the next one."""
        chosen = ops.next_number(self._number, number)
        call = make(Numbered(self._name, chosen))
        self._number = max(self._number, chosen)
        return call

    @contextmanager
    def _in_doubt(self, call: Call[Receipt]) -> Iterator[None]:
        """While it is sent, nobody knows whether it is stored.

        Raises:
            Unconfirmed: nor afterwards.
        """
        # Also a wait that is cancelled leaves its write in doubt.
        self._doubt = call
        try:
            yield
        except (TimedOut, NotConnected, ClientClosed) as problem:
            raise Unconfirmed(operation=call.name, problem=str(problem), producer=self._name) from None
        except (TidemarkError, ValueError, TypeError):
            self._doubt = None  # refused: that is an answer; or it cannot be sent at all
            raise
        self._doubt = None

    def _checked(self, receipt: Receipt, attempts: int, number: int | None) -> Receipt:
        """What was stored before under a number that was just chosen, is another's.

        Raises:
            ProducerClash: somebody else writes under this name.
        """
        if receipt.duplicate and number is None and attempts == 1:
            raise ProducerClash(producer=self._name, number=self._number)
        return receipt
