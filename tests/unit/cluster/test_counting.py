"""A member that only counts while all goes its way does what one would do that looks at everything, every time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from unit.cluster.toys import Broken
from unit.cluster.world import run

from tidemark.cluster.chain.mode import ChainMode
from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import Effect, Event, Wake
from tidemark.cluster.replica import LogFacts, Replica
from tidemark.cluster.standby.mode import StandbyMode
from tidemark.model.peers import Name

SEEDS = int(os.environ.get("TIDEMARK_SEEDS", "30"))


class Twice:
    """Gives two readers the same dice."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._thrown: list[bytes] = []

    def first(self, size: int) -> bytes:
        self._thrown.append(self._entropy(size))
        return self._thrown[-1]

    def again(self, size: int) -> bytes:
        thrown = self._thrown.pop(0)
        assert len(thrown) == size
        return thrown


class Both:
    """Two modes over the same logs. One of them may count; the other looks at everything, and is to want the same."""

    mode: type[Replica]
    counted = 0

    def __init__(
        self, me: Name, config: ClusterConfig, entropy: Callable[[int], bytes], facts: LogFacts
    ) -> None:
        dice = Twice(entropy)
        self._counts = self.mode(me, config, dice.first, facts)  # type: ignore[call-arg, arg-type]
        self._looks = self.mode(me, config, dice.again, facts)  # type: ignore[call-arg, arg-type]
        self._looks._is_quiet = lambda: False  # type: ignore[method-assign]
        count = self._counts._count

        def counting(event: Event) -> None:
            type(self).counted += 1
            count(event)

        self._counts._count = counting  # type: ignore[method-assign]

    def step(self, event: Event) -> list[Effect]:
        self._looks._wake_at = self._counts._wake_at  # so both look when the one that counts does
        done, wanted = self._counts.step(event), self._looks.step(event)
        if _without_wakes(done) != _without_wakes(wanted):
            raise Broken(f"{event} makes it do {done}, and one that looks at everything {wanted}")
        at, needed = self._counts._wake_at, self._looks._wake_at
        if needed is not None and (at is None or at > needed):
            raise Broken(f"{event} lets it sleep until {at}, and one that looks at everything until {needed}")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._counts, name)


class BothStandby(Both):
    mode = StandbyMode


class BothChain(Both):
    mode = ChainMode


def _without_wakes(effects: list[Effect]) -> list[Effect]:
    """It may be woken sooner than it need be."""
    return [effect for effect in effects if not isinstance(effect, Wake)]


@pytest.mark.slow
@pytest.mark.timeout(0 if SEEDS > 100 else 300)
@pytest.mark.parametrize(
    ("both", "how"),
    [
        pytest.param(BothStandby, {}, id="standby"),
        pytest.param(BothChain, {}, id="chain"),
        pytest.param(BothChain, {"members": 5, "chain_tails": 2}, id="chain of five with two tails"),
    ],
)
def test_counting_alone_comes_to_the_same_as_looking_at_everything(
    both: type[Both], how: dict[str, Any]
) -> None:
    both.counted = 0
    for seed in range(SEEDS):
        try:
            run(seed, both, **how)  # type: ignore[arg-type]
        except Broken as error:
            error.add_note(f"run({seed}, {both.__name__}, **{how})")
            raise
    assert both.counted > 200 * SEEDS, "hardly ever was it enough to count"
