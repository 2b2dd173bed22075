"""Which of several data directories is the best after a crash of all members, from constructed stores and real ones."""

from __future__ import annotations

from typing import Any

import pytest
from unit.member.test_accepted_loss import alone, publish
from unit.member.world import Process

from tidemark.model.peers import Ends, Takeover
from tidemark.store.best import StoreFacts, rank, read_store, unread
from tidemark.store.status import Status

US, THEM = "aa" * 16, "bb" * 16
H1, H2 = "1" * 32, "2" * 32
FIRST = (Takeover(H1, Ends(1, 1)),)


def a_store(
    path: str, epoch: int = 3, role: str = "backup", journal: int = 10, cluster: str = US, state: str = "dirty", **more: Any
) -> StoreFacts:  # fmt: skip
    alone_from = more.pop("alone_from", 0)
    status = Status(
        state=state, store="5" * 32, cluster=cluster, epoch=epoch, role=role, alone_from=alone_from
    )  # type: ignore[arg-type]
    return StoreFacts(path=path, status=status, ends=Ends(5, journal), **{"table": FIRST, **more})


def order(*stores: StoreFacts) -> list[str]:
    return [one.path for one in rank(stores).stores]


def test_the_highest_epoch_wins_over_a_longer_journal_and_over_an_old_leader() -> None:
    """H-63: an old leader with a lower generation, however much it wrote that the others do not share."""
    old = a_store("old", epoch=2, role="leader", journal=900)
    new = a_store("new", epoch=3, role="backup", journal=10, table=(Takeover(H2, Ends(5, 10)), *FIRST))
    assert order(old, new) == ["new", "old"]


def test_in_one_epoch_the_longer_journal_wins_then_the_leader_then_the_clean_one() -> None:
    """X-7: by epoch, sequence and role. They hold the same as far as they go."""
    leader, equal = a_store("leader", role="leader", journal=10), a_store("equal", journal=10, state="clean")
    longer, clean, short = a_store("longer", journal=12), a_store("clean", journal=9, state="clean"), a_store("short", journal=9)  # fmt: skip
    assert order(short, clean, equal, longer, leader) == ["longer", "leader", "equal", "clean", "short"]


def test_a_store_that_has_only_begun_to_catch_up_with_the_newest_leader_is_not_the_best() -> None:
    caught, full = a_store("caught", epoch=5, journal=5), a_store("full", epoch=4, journal=80)
    ranking = rank([caught, full])
    assert [one.path for one in ranking.stores] == ["full", "caught"]
    assert ranking.verdict == (
        "full is the best: caught was in line in epoch 5, the last that is known here, and this one holds all of that and "
        "more: its journal goes to 80; the store of that epoch's leader is not among these, which may hold more"
    )


def test_real_stores_say_which_histories_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader starts again, in an epoch of its own; one comes back to it and is sent nothing before all end."""
    group, client = alone("standby", 5)
    leader = group.leader.name
    short, full = (name for name in "abc" if name != leader)
    group.restart(full)
    group.until_ready()
    publish(client, *(b"%d" % number for number in range(20)))
    group.kill(full)
    group.pass_ms(300, 3)
    group.kill(leader)
    group.restart(leader)
    group.pass_ms(100, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "ship", lambda *_: None)
        group.restart(short)
        group.kill(short)
        group.kill(leader)
    found = {name: read_store(group[name].disk, name) for name in "abc"}

    assert [len(found[name].table) for name in (leader, full, short)] == [2, 1, 1]
    assert found[short].status.epoch > found[full].status.epoch
    assert order(*found.values()) == [leader, full, short]
    assert order(found[short], found[full]) == [full, short]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (a_store("bad", epoch=9, cluster=THEM), "it belongs to another cluster"),
        (a_store("bad", epoch=0), "it was being filled and never ready"),
        (a_store("bad", epoch=0, cluster="", role="alone", journal=999), "it never belonged to a cluster"),
        (a_store("bad", epoch=0, cluster="", state="empty"), "it is empty"),
        (a_store("bad", epoch=9, unfinished=True), "its logs were being cut back"),
    ],
)
def test_what_cannot_be_promoted_is_never_the_best(bad: StoreFacts, why: str) -> None:
    ranking = rank([bad, a_store("one", epoch=1), a_store("two", epoch=1)])
    assert [one.path for one in ranking.stores][-1] == "bad"
    assert ranking.stores[-1].problem.startswith(why)
    assert ranking.best is not None and ranking.best.path in ("one", "two")
    assert rank([bad]).best is None or bad.status.cluster == THEM


def test_of_two_clusters_with_as_many_stores_neither_is_chosen() -> None:
    ranking = rank([a_store("one"), a_store("two", cluster=THEM)])
    assert ranking.best is None
    assert "2 clusters" in ranking.verdict


def test_what_makes_a_choice_doubtful_is_said() -> None:
    two_leaders = rank([a_store("one", role="leader"), a_store("two", role="leader", journal=4)])
    assert "two led in the same epoch" in two_leaders.verdict
    no_leader = rank([a_store("one"), a_store("two")])
    assert "leader is not among these" in no_leader.verdict
    damaged = rank([a_store("one", role="leader", damaged=2, alone_from=7)])
    assert (
        damaged.stores[0].problem
        == "damaged in 2 places: see 'tidemark store check'; it was started without its cluster"
    )


def test_none_is_named_while_a_store_could_not_be_looked_at() -> None:
    stores = a_store("here"), unread("there", "there is no such directory")

    ranking = rank(stores)
    assert ranking.best is None and [one.path for one in ranking.stores] == ["here", "there"]
    assert ranking.verdict.startswith("there could not be looked at and may hold more, so none is named")

    ranking = rank(stores, missing_ok=True)
    assert ranking.best is not None and ranking.best.path == "here"
    assert ranking.verdict.endswith("; there could not be looked at and may hold more")
