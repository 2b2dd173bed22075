"""Confirms of several groups become the client's."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.router.confirms import Confirms
from tidemark.wire.amqp091.methods import BasicAck, BasicNack


def test_confirms_of_one_group_are_passed_on() -> None:
    confirms = Confirms()
    for _ in range(3):
        confirms.add([("a", 1)])
    assert confirms.take("a", 2, True) == [BasicAck(2, True)]
    assert confirms.take("a", 3, True) == [BasicAck(3, False)]
    assert len(confirms) == 0


def test_a_message_of_two_groups_is_confirmed_by_the_second_one() -> None:
    confirms = Confirms()
    confirms.add([("a", 1)])
    confirms.add([("a", 1), ("b", 2)])
    confirms.add([("b", 1)])
    assert confirms.take("a", 2, True) == [BasicAck(1, False)]
    assert confirms.take("b", 1, True) == []
    assert confirms.take("b", 3, True) == [BasicAck(3, True)]


def test_a_message_that_one_group_refuses_is_refused() -> None:
    """U-10: one of its targets has failed."""
    confirms = Confirms()
    confirms.add([("a", 1), ("b", 1)])
    confirms.add([("a", 1)])
    assert confirms.take("b", 1, False) == []
    assert confirms.take("a", 2, True) == [BasicNack(1, False, False), BasicAck(2, False)]


def test_what_went_elsewhere_instead_is_waited_for() -> None:
    confirms = Confirms()
    for _ in range(2):
        confirms.add([("a", 1)])
    confirms.also("a", "main")
    confirms.add([("main", 1)])
    assert confirms.take("a", 2, True) == []
    assert confirms.take("main", 1, True) == [BasicAck(2, True)]
    assert confirms.take("main", 2, True) == [BasicAck(3, False)]


def test_what_went_elsewhere_instead_may_have_been_the_oldest_that_waits() -> None:
    confirms = Confirms()
    confirms.add([("a", 1)])
    confirms.add([("b", 1)])
    confirms.add([("a", 1)])
    confirms.also("a", "main")
    assert confirms.take("b", 1, True) == []
    assert confirms.take("a", 2, True) == []
    assert confirms.take("main", 1, True) == [BasicAck(3, True)]


def test_if_what_went_elsewhere_instead_is_refused_so_is_all_that_it_may_have_been() -> None:
    confirms = Confirms()
    for group in "aba":
        confirms.add([(group, 1)])
    confirms.also("a", "main")
    confirms.add([("a", 1)])
    confirms.take("a", 3, True)
    confirms.take("b", 1, True)
    assert confirms.take("main", 1, False) == [
        BasicNack(1, False, False),
        BasicAck(2, False),
        BasicNack(3, False, False),
        BasicAck(4, False),
    ]


def test_what_is_kept_grows_no_faster_than_what_is_published() -> None:
    confirms = Confirms()
    for _ in range(1000):
        confirms.add([("a", 1)])
        confirms.add([("main", 1)])
        confirms.also("a", "main")
    assert sum(len(parts) for parts in confirms._parts.values()) <= 3000
    assert confirms.take("a", 1000, True) == []
    assert confirms.take("main", 2000, True) == [BasicAck(2000, True)]


@settings(max_examples=300)
@given(st.integers(0, 2**32).map(Random))
def test_a_number_is_answered_once_and_not_before_all_its_groups_have(dice: Random) -> None:
    confirms = Confirms()
    sent = dict.fromkeys("abc", 0)
    answered = dict.fromkeys("abc", 0)
    needs: list[dict[str, int]] = []
    fates: dict[str, list[bool]] = {group: [] for group in "abc"}
    told: list[bool] = []
    moved: list[tuple[int, int]] = []
    """Publishes of which a part went to c instead, and its number there."""

    def take(group: str, tag: int) -> None:
        accepted = dice.random() < 0.8
        fates[group] += [accepted] * (tag - answered[group])
        answered[group] = tag
        for answer in confirms.take(group, tag, accepted):
            assert answer.multiple == (answer.delivery_tag - len(told) > 1)
            told.extend([isinstance(answer, BasicAck)] * (answer.delivery_tag - len(told)))

    for _ in range(60):
        if dice.random() < 0.5:
            groups = dice.sample("abc", dice.choice([1, 1, 1, 2, 3]))
            parts = [(group, dice.choice([1, 1, 2])) for group in groups]
            for group, count in parts:
                sent[group] += count
            needs.append({group: sent[group] for group, _ in parts})
            confirms.add(parts)
        elif dice.random() < 0.2:
            group = dice.choice("ab")
            waiting = [at for at, need in enumerate(needs) if need.get(group, 0) > answered[group]]
            if waiting:
                sent["c"] += 1
                moved.append((dice.choice(waiting), sent["c"]))
                confirms.also(group, "c")
        elif busy := [group for group in "abc" if sent[group] > answered[group]]:
            group = dice.choice(busy)
            take(group, dice.randrange(answered[group] + 1, sent[group] + 1))
        assert all(answered[group] >= tag for need in needs[: len(told)] for group, tag in need.items())
        assert all(answered["c"] >= tag for at, tag in moved if at < len(told))
    for group in "abc":
        if sent[group] > answered[group]:
            take(group, sent[group])
    assert len(told) == len(needs)
    assert len(confirms) == 0
    for need, good in zip(needs, told, strict=True):
        if good:
            assert all(fates[group][tag - 1] for group, tag in need.items())
    assert all(fates["c"][tag - 1] for at, tag in moved if told[at])
