"""The window of a stream's consumer, compiled and not: the same answers, and those of a plain list."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.broker import _unacked_py, _window_py
from tidemark.model import _runs_py

_unacked_c = pytest.importorskip("tidemark.broker._unacked_c")
_window_c = pytest.importorskip("tidemark.broker._window_c")
_runs_c = pytest.importorskip("tidemark.model._runs_c")

DICE = st.integers(0, 2**32).map(Random)


class Touched:
    """A stream that counts how often it was touched."""

    def __init__(self) -> None:
        self.count = 0

    def touch(self) -> None:
        self.count += 1


class Side:
    """One implementation: a window and the delivery tags of its channel."""

    def __init__(self, windows: ModuleType, unacked: ModuleType, runs: ModuleType) -> None:
        self.due: list[Any] = []
        self.stream = Touched()
        self.window = windows.Window(10, "owner", self.due, self.stream)
        self.holder = unacked.Holder(self.stream, self.window)
        self.unacked = unacked.Unacked()
        self._runs = runs

    def taken(self, seqs: list[int]) -> Any:
        taken = self._runs.Taken(0)
        for seq in seqs:
            taken.add(seq * 7, seq, 1, 3, 0, 0)
        return taken

    def state(self) -> tuple[Any, ...]:
        return (
            self.window.position,
            self.window.boundary,
            len(self.window),
            self.window.stirred,
            self.due,
            self.stream.count,
            self.holder.unacked,
            self.unacked.count,
            self.unacked.last_tag,
        )


def sides() -> list[Side]:
    return [Side(_window_py, _unacked_py, _runs_py), Side(_window_c, _unacked_c, _runs_c)]


class Model:
    """All deliveries there ever were, as (tag or None, sequence, is a boundary), and what is settled."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int | None, int, bool]] = []
        self.settled: set[int] = set()

    def reached(self, also: set[int] = frozenset()) -> tuple[int, int]:  # type: ignore[assignment]
        position = boundary = 10
        for tag, seq, is_boundary in self.deliveries:
            if tag is not None and tag not in self.settled | also:
                break
            position = seq
            if is_boundary:
                boundary = seq
        return position, boundary


@settings(max_examples=300, deadline=None)
@given(DICE)
def test_the_window_follows_the_acknowledgements_in_any_order(dice: Random) -> None:
    both, model = sides(), Model()
    seq, tag = 10, 0
    for _ in range(dice.randrange(1, 40)):
        step = dice.choice(("give", "give", "told", "untold", "accept", "accept", "upto", "looked"))
        if step == "give":
            seqs = [seq := seq + dice.randrange(1, 4) for _ in range(dice.randrange(1, 30))]
            assert {side.unacked.add(side.holder, side.taken(seqs)) for side in both} == {tag + 1}
            model.deliveries += [(tag + 1 + i, each, False) for i, each in enumerate(seqs)]
            tag += len(seqs)
        elif step == "told":
            seq += 1
            assert {side.unacked.add_boundary(side.holder, seq) for side in both} == {tag + 1}
            tag += 1
            model.deliveries.append((tag, seq, True))
        elif step == "untold":
            seq += 1
            for side in both:
                side.window.add_boundary(seq, False)
            model.deliveries.append((None, seq, True))
        elif step == "looked":
            for side in both:
                side.window.stirred = False
                side.due.clear()
        elif tag:
            last = dice.randrange(1, tag + 1)
            first = 0 if step == "upto" else max(1, last - dice.randrange(3))
            outstanding = {n for n in range(max(first, 1), last + 1) if n not in model.settled}
            if dice.random() < 0.5:
                popped = [side.unacked.pop(first, last) for side in both]
                ordinals = [[ordinal for _, _, ordinal in each] for each in popped]
                assert ordinals[0] == ordinals[1]
                for side in both:
                    assert side.window.after(ordinals[0]) == model.reached(outstanding)
                for side in both:
                    for ordinal in ordinals[0]:
                        side.window.settle(ordinal)
            else:
                assert {side.unacked.accept(first, last) for side in both} == {len(outstanding)}
            model.settled |= outstanding
        assert both[0].state() == both[1].state()
        assert (both[0].window.position, both[0].window.boundary) == model.reached()


@pytest.mark.parametrize("make", [lambda: sides()[0], lambda: sides()[1]], ids=["python", "compiled"])
def test_a_boundary_that_nobody_is_told_of_is_passed_with_the_message_before_it(
    make: Callable[[], Side],
) -> None:
    side = make()
    side.unacked.add(side.holder, side.taken([11, 12]))
    side.window.add_boundary(15, False)
    side.unacked.accept(2, 2)
    assert (side.window.position, side.window.boundary) == (10, 10)
    side.unacked.accept(1, 1)
    assert (side.window.position, side.window.boundary) == (15, 15)


@pytest.mark.parametrize("make", [lambda: sides()[0], lambda: sides()[1]], ids=["python", "compiled"])
def test_an_owner_is_due_once_until_it_is_looked_at(make: Callable[[], Side]) -> None:
    side = make()
    side.unacked.add(side.holder, side.taken([11, 12, 13]))
    side.unacked.accept(3, 3)
    side.unacked.accept(0, 2)
    assert side.due == ["owner"]
    assert side.stream.count == 1
