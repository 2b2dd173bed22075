"""Which of several stores holds the most, whatever leaders came and went: a small cluster played with a pen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from tidemark.model.lines import Held, best_first
from tidemark.model.peers import Ends, Takeover

A, B, C = "a" * 32, "b" * 32, "c" * 32


def held(epoch: int, journal: int, *histories: tuple[str, int], catalog: int = 1) -> Held:
    """Its newest history last, each with its first sequence."""
    rows = [Takeover(history, Ends(at + 1, first)) for at, (history, first) in enumerate(histories)]
    return Held(epoch, Ends(max(catalog, len(rows)), journal), tuple(reversed(rows)))


def order(*stores: Held) -> list[int]:
    """Their places in the call, best first."""
    return best_first(range(len(stores)), lambda at: stores[at])  # type: ignore[return-value]


def test_a_store_that_holds_all_of_a_newer_one_and_more_is_better() -> None:
    assert order(held(5, 5, (A, 1)), held(4, 80, (A, 1))) == [1, 0]


def test_a_store_that_parts_from_a_newer_one_is_not_however_long_it_is() -> None:
    assert order(held(4, 80, (A, 1)), held(5, 41, (A, 1), (B, 41))) == [1, 0]


def test_a_leader_whom_nobody_followed_is_not_better_than_what_the_next_one_went_on_with() -> None:
    """B took over at 41 alone; C went on from what A's leader had sent it, up to 43 at least."""
    in_line_with_c, of_a, of_b = held(6, 42, (A, 1)), held(4, 50, (A, 1)), held(5, 41, (A, 1), (B, 41))
    assert order(of_b, of_a, in_line_with_c) == [1, 2, 0]


def test_where_the_journals_are_the_same_the_catalogs_decide() -> None:
    assert order(held(5, 5, (A, 1)), held(4, 5, (A, 1), catalog=3)) == [1, 0]


def test_equals_stay_as_they_are_given() -> None:
    one = held(4, 9, (A, 1))
    assert order(one, one, one) == [0, 1, 2]


def test_of_stores_that_do_not_tell_their_histories_the_newer_is_better() -> None:
    assert order(held(4, 80), held(5, 5), held(5, 7)) == [2, 1, 0]


@dataclass
class Pen:
    """One store: whose records it holds, and in which epoch it was in line."""

    log: list[str] = field(default_factory=list)
    epoch: int = 0

    def held(self) -> Held:
        firsts = {history: at for at, history in reversed(list(enumerate(self.log, start=1)))}
        rows = sorted(firsts.items(), key=lambda row: row[1])
        return replace(held(self.epoch, len(self.log), *rows), ends=Ends(len(rows), len(self.log)))


def test_the_best_is_in_line_in_the_newest_epoch_or_holds_all_that_such_a_one_holds() -> None:
    for seed in range(300):
        play(Random(seed))


def play(dice: Random) -> None:
    """Five leaders, each one that was ready; then some of the stores are left."""
    stores = [Pen() for _ in range(4)]
    ready = set(range(4))
    for epoch in range(1, 6):
        leader = stores[dice.choice(sorted(ready))]
        leader.epoch = epoch
        leader.log += [f"{epoch:032x}"] * dice.randint(1, 5)
        confirmed = list(leader.log)
        ready = {stores.index(leader)}
        for at, store in enumerate(stores):
            if store is leader or dice.random() < 0.4:
                continue
            alike = next(
                (
                    n
                    for n, (ours, theirs) in enumerate(zip(store.log, leader.log, strict=False))
                    if ours != theirs
                ),
                min(len(store.log), len(leader.log)),
            )
            store.log = leader.log[: dice.randint(alike, len(leader.log))]
            store.epoch = epoch
            if store.log == leader.log:
                ready.add(at)
        if dice.random() < 0.5:
            leader.log += [f"{epoch:032x}"] * 2  # what nobody else was sent

    left = dice.sample(stores, dice.randint(1, 4))
    best = best_first(left, Pen.held)[0]
    newest = max(one.epoch for one in left)
    assert any(best.log[: len(one.log)] == one.log for one in left if one.epoch == newest)
    if newest == epoch:
        share = [len(list(_alike(one.log, confirmed))) for one in left]
        assert len(list(_alike(best.log, confirmed))) == max(share)


def _alike(ours: list[str], theirs: list[str]) -> list[str]:
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    return ours[: at if at is not None else min(len(ours), len(theirs))]
