"""Logs that part: the table of takeovers, and a member that takes back what the cluster never had before it serves again."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from unit.member.test_alike import compare
from unit.member.test_chain import lead
from unit.member.world import Group, Process, StallingDisk

from tidemark.broker.streams.commit import Batch, Put
from tidemark.cluster.mode import State
from tidemark.model.peers import Ends
from tidemark.model.rows import Row, RowBatch
from tidemark.store.intent import INTENT
from tidemark.store.status import read_status, write_status

MODES = ("standby", "chain")


class Died(Exception):
    """The process is no more."""


def a_group(names: str = "abc", mode: str = "standby", **settings: int) -> Group:
    group = Group(names, mode=mode, **settings)
    group.until_ready()
    group.leader.session().declare("s")
    group.settle()
    return group


def put(process: Process, *rows: tuple[str, str | None]) -> None:
    """None deletes the key."""
    made = [Row(key.encode(), (value or "").encode(), tombstone=value is None) for key, value in rows]
    process.session().commit(Batch([Put("s", RowBatch.build(made))]))


def live(process: Process) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in process.rows().items() if value}


def table(process: Process) -> list[tuple[str, Ends]]:
    return [(row.history, row.first) for row in process.node.store.table]


def parted(group: Group, *lost: tuple[str, str | None]) -> tuple[str, Process]:
    """The leader writes this, which reaches nobody, and dies; the name of it, and who leads now."""
    old = group.leader
    with ExitStack() as silent:
        for other in group.followers:
            silent.enter_context(group.mute(old.name, other.name))
        put(old, *lost)
        group.settle()
        others = [process.node.store.ends for process in group if process is not old]
        assert all(old.node.store.durable_ends.journal > ends.journal for ends in others)
        group.kill(old.name)
    return old.name, lead(group)


# The table ---------------------------------------------------------------------------------------------------------


def test_the_first_leader_begins_the_table_and_every_takeover_adds_a_row_where_the_log_was() -> None:
    """K-62: each member shows the table of (history, where it begins). K-63: the first leader has a new id, at sequence 0. K-64:
    after 3,000 writes the next one, and a leader that only restarts, adds a new id behind the last of them."""
    group = Group("abc")
    group.until_ready()
    [(first, begins)] = table(group.leader)
    assert begins == Ends(1, 1), "behind 0"
    leader = group.leader
    leader.session().declare("s")
    group.settle()
    put(leader, *((f"k{number}", "v") for number in range(3000)))
    group.settle()
    end = leader.node.store.ends.journal
    assert end > 3000

    after = group.fail_over()
    group.until_ready()
    (second, begins), old = table(after)
    assert old == (first, Ends(1, 1)) and second != first
    assert begins.journal == end + 1
    shown = after.member.status()["histories"]
    assert shown == [
        {"history": second, "first": {"catalog": begins.catalog, "journal": end + 1}},
        {"history": first, "first": {"catalog": 1, "journal": 1}},
    ]
    assert all(process.member.status()["histories"] == shown for process in group)

    for process in list(group):
        group.kill(process.name)
    end = after.node.store.ends.journal
    group.restart(after.name)
    again = lead(group)
    (third, begins), *older = table(again)
    assert [history for history, _ in older] == [second, first]
    assert third not in (first, second)
    assert begins.journal == end + 1


def test_a_store_says_whose_it_is_what_it_was_and_how_it_was_left() -> None:
    """X-22: cluster, state, role and table of takeovers are of each store; the number of histories is its generation."""
    assert read_status(StallingDisk()).state == "empty"
    group = a_group()
    leader = group.leader
    found = {process.name: read_status(process.disk) for process in group}
    assert {status.cluster for status in found.values()} == {group.view.cluster}  # type: ignore[union-attr]
    assert {name: status.role for name, status in found.items()} == {
        process.name: "leader" if process is leader else "backup" for process in group
    }
    assert {(status.state, status.epoch) for status in found.values()} == {("dirty", 1)}
    assert len({status.store for status in found.values()}) == 3

    after = group.fail_over()
    assert (read_status(after.disk).role, read_status(after.disk).epoch) == ("leader", 2)
    assert (read_status(leader.disk).role, read_status(leader.disk).epoch) == ("leader", 1)
    assert [len(table(after)), len(table(leader))] == [2, 1]
    after.member.close(group.now_ms)
    while not after.member.closed():
        after.member.completed(group.now_ms)
    assert str(read_status(after.disk)) == f"clean({found[after.name].store})"


# Taking back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_what_only_an_old_leader_wrote_is_taken_back_key_by_key(mode: str) -> None:
    """K-61: write to A only, cut, promote B, write, A comes back: its unseen writes are gone, EQ. K-66: nothing above the next
    newer takeover survives. K-69: updates, inserts, deletes, and keys changed on both sides. K-70: a key with v1 before and
    v2 only on the loser shows v1. K-71: one that only the loser inserted is gone. K-72: what the winner wrote is there.
    K-73: the tables are equal."""
    group = a_group(mode=mode)
    before = {"updated": "v1", "deleted": "v1", "both": "v1", "deleted there": "v1", "kept": "v1"}
    put(group.leader, *before.items())
    group.settle()

    name, winner = parted(
        group,
        ("updated", "v2"),
        ("inserted", "v1"),
        ("deleted", None),
        ("both", "loser"),
        ("deleted there", "v2"),
        ("both new", "loser"),
    )
    branch = table(winner)[0][1]
    put(winner, ("both", "winner"), ("both new", "winner"), ("deleted there", None), ("later", "v1"))
    group.settle()
    back = group.restart(name)
    group.until_ready()

    assert ("info", "logs cut back") in back.notes
    after = {
        "updated": "v1",
        "deleted": "v1",
        "both": "winner",
        "both new": "winner",
        "kept": "v1",
        "later": "v1",
    }
    assert [live(process) for process in group] == [after, after, after]
    assert table(back) == table(winner)
    assert table(back)[0][1] == branch
    assert back.node.store.ends == winner.node.store.ends
    compare(group)


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_has_no_branch_of_its_own_goes_on_from_where_it_was(mode: str) -> None:
    """K-67: no newer entry, no branch: no rollback; it resumes at its own mark."""
    group = a_group(mode=mode)
    put(group.leader, ("k", "v1"))
    group.settle()
    name = group.leader.name
    winner = group.fail_over()
    put(winner, ("k", "v2"))
    group.settle()
    back = group.restart(name)
    group.until_ready()

    assert ("info", "logs cut back") not in back.notes
    assert not back.retired_nodes, "its store was neither cut nor emptied"
    compare(group)


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_whoever_takes_back_serves_nobody_before_it_is_done_and_may_die_at_any_moment(power: bool) -> None:
    """K-74: reads are refused until all steps are done; KILL at every step, RESTART: it is completed."""
    interrupted = 0
    for steps in range(200):
        group = a_group("ab")
        put(group.leader, ("k", "v1"))
        group.settle()
        name, winner = parted(group, ("k", "v2"), ("inserted", "v1"))
        put(winner, ("later", "v1"))
        group.settle()
        with group.mute(winner.name, name):
            back = group.restart(name)
            assert back.node.store.ends.journal > 0 and not back.member.readable
        try:
            with back.disk.dying(steps, Died):
                group.until_ready()
        except Died:
            cutting = back.disk.exists(INTENT)
            interrupted += cutting
            # It may also have died when all was done, of something else that it had to write.
            assert not back.member.readable or (not cutting and live(back) == live(winner))
            group.kill(name, power=power)
            back = group.restart(name)
            group.until_ready()
            done = False
        else:
            done = True
        assert back.member.readable
        assert live(back) == live(winner) == {"k": "v1", "later": "v1"}
        assert table(back) == table(winner)
        if done:
            assert interrupted > 3, "it never died in the midst of cutting"
            return
    raise AssertionError("it never came to its end")


def test_a_store_without_any_common_history_is_emptied_with_an_event_and_filled_anew() -> None:
    """K-68: no common master: full reset, with an event. X-5: from scratch only where nothing is in common."""
    group, other = a_group(), a_group("c")
    put(group.leader, ("k", "v1"))
    put(other.leader, ("foreign", "v1"))
    group.settle()
    other.settle()
    group.kill("c")
    group.pass_ms(100, 10)
    other.kill("c")
    disk = other["c"].disk
    assert group.view is not None
    write_status(disk, replace(read_status(disk), cluster=group.view.cluster))

    back = group.restart("c", disk)
    group.until_ready()

    assert ("warning", "store emptied") in back.notes
    assert back.state is State.READY
    assert live(back) == {"k": "v1"}
    assert not {history for history, _ in table(back)} & {history for history, _ in table(other.leader)}
    compare(group)
