"""Superseded versions of keys: followers keep what a pin may still need, and let go of the rest."""

from __future__ import annotations

import pytest
from unit.member.world import Group, Process, StallingDisk

from tidemark.broker.streams.session import StreamSession
from tidemark.errors import HistoryGone
from tidemark.model.peers import Completed

LEASE_MS = 3_600_000


class Pair:
    def __init__(self) -> None:
        self.group = Group("ab")
        self.group.until_ready()
        self.leader: Process = self.group.leader
        self.follower: Process = self.group.followers[0]
        self.session: StreamSession = self.leader.session()
        self.session.declare("s")
        self.group.settle()

    def put(self, **rows: str) -> None:
        self.leader.put(**rows)
        self.group.settle()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_follower_lets_go_under_steady_load(pair: Pair) -> None:
    """The leader is always ahead of what is complete, and what it says about versions is about where it is."""
    leader, follower, group = pair.leader, pair.follower, pair.group
    for number in range(200):
        leader.put(k=str(number))
        leader.work()
        group._deliver()
        follower.work()
        leader.put(j=str(number))
        leader.work()
        group._deliver()
    assert follower.stream().held < 50


def test_no_more_is_let_go_of_than_is_complete(pair: Pair) -> None:
    """Transient messages take numbers, which another leader gives again, to other messages."""
    pair.put(k="1")
    client = pair.leader.open()
    client.declare("passing")
    pair.leader.put(k="2")
    client.publish(1, "passing", *[b"x"] * 50)
    assert pair.leader.node.arena.next_seq > 50
    told = [message for _, message in pair.leader.told if isinstance(message, Completed)]
    assert told[-1].floor > 0
    assert all(message.floor <= message.upto.journal for message in told)


def test_every_open_snapshot_counts_not_only_those_of_one_stream(pair: Pair) -> None:
    pair.session.declare("t")
    pair.group.settle()
    pair.put(k="old")
    with pair.session.snapshot("s") as snapshot:
        for number in range(5):
            pair.leader.put("t", k=str(number))
            pair.put(k=str(number))
            with pair.session.snapshot("t"):
                pair.put(j=str(number))
        pair.session.pin("s", "p", LEASE_MS, at=snapshot.seq)[0].close()
        pair.group.settle()
    pair.put(k="last")
    assert pair.follower.rows(seq=snapshot.seq) == {b"k": b"old"}


def test_what_is_pinned_is_kept_though_the_pin_was_made_while_an_older_frame_was_acknowledged(
    pair: Pair,
) -> None:
    leader, follower, group = pair.leader, pair.follower, pair.group
    pair.put(k="older", j="1")
    pair.put(k="old", j="1")
    snapshot = pair.session.snapshot("s")
    pair.put(k="new")
    leader.put(j="2")
    leader.work()
    group._deliver()
    follower.work()  # its acknowledgement is on its way
    pair.session.pin("s", "p", LEASE_MS, at=snapshot.seq)[0].close()
    snapshot.close()
    group._deliver()
    leader.flush()
    group._deliver()  # what is complete, and which versions may go
    follower.session().snapshot("s").close()  # somebody who reads here gives it a reason to tidy up
    group.settle()
    pair.put(j="3")
    assert follower.rows(seq=snapshot.seq) == {b"k": b"old", b"j": b"1"}


def test_a_snapshot_that_followers_have_let_go_of_cannot_be_pinned(pair: Pair) -> None:
    pair.put(k="old")
    pair.session.pin("s", "p", LEASE_MS)[0].close()
    pair.put(k="new")
    pair.put(j="1")
    with pair.session.pinned("s", "p") as snapshot:
        pair.session.release("s", "p")
        for number in range(3):
            pair.put(j=str(number))
        assert pair.leader.rows(seq=snapshot.seq) == {b"k": b"old"}
        assert pair.follower.rows(seq=snapshot.seq) == {}
        with pytest.raises(HistoryGone):
            pair.session.pin("s", "again", LEASE_MS, at=snapshot.seq)


def test_a_quiet_stream_can_be_pinned_where_it_is(pair: Pair) -> None:
    pair.put(k="1")
    pair.put(k="2")
    pair.session.declare("busy")
    pair.group.settle()
    snapshot = pair.session.snapshot("s")
    for number in range(5):
        pair.leader.put("busy", k=str(number))
        pair.group.settle()
    pair.session.pin("s", "p", LEASE_MS)[0].close()
    pair.session.pin("s", "q", LEASE_MS, at=snapshot.seq)[0].close()
    snapshot.close()
    pair.put(k="3")
    assert pair.follower.rows(seq=snapshot.seq) == {b"k": b"2"}


def test_who_reads_an_old_pin_does_not_keep_followers_from_letting_go(pair: Pair) -> None:
    pair.put(k="old")
    pair.session.pin("s", "p", LEASE_MS)[0].close()
    pair.put(k="new")
    pair.put(k="newer")
    with pair.session.pinned("s", "p"):
        for number in range(30):
            pair.put(k=str(number))
        assert pair.follower.stream().held < 10


def test_a_pin_is_there_after_a_takeover_with_all_that_it_held(pair: Pair) -> None:
    pair.put(k="1", j="1")
    snapshot, _ = pair.session.pin("s", "p", LEASE_MS)
    snapshot.close()
    for number in range(10):
        pair.put(k=str(number))
    after = pair.group.fail_over()
    assert after.rows(seq=snapshot.seq) == {b"k": b"1", b"j": b"1"}
    assert after.rows() == {b"k": b"9", b"j": b"1"}


def test_a_pin_whose_release_is_in_the_log_does_not_come_back_with_a_takeover() -> None:
    group = Group("abc")
    group.until_ready()
    old, heir, third = (group[name] for name in group.view.ready)  # type: ignore[union-attr]
    session = old.session()
    session.declare("s")
    group.settle()
    old.put(k="1")
    session.pin("s", "p", LEASE_MS)[0].close()
    group.settle()
    assert "p" in heir.stream().pins.by_name
    with group.mute(old.name, third.name):
        session.release("s", "p")
        group.settle()
        after = group.fail_over()
    assert after is heir
    assert "p" not in heir.stream().pins.by_name


@pytest.mark.parametrize("wiped", [False, True])
def test_a_member_that_was_filled_or_restarted_does_not_show_a_past_that_it_lacks(wiped: bool) -> None:
    group = Group("abc")
    group.until_ready()
    leader, follower = group.leader, group.followers[0]
    leader.session().declare("s")
    group.settle()
    group.kill(follower.name)
    group.pass_ms(500, 3)
    moments = []
    for number in range(120):
        leader.put(k=str(number), **{f"x{number % 5}": "y" * 300})
        group.settle()
        moments.append(leader.stream().boundary)
    group.pass_ms(200, 20)
    follower = group.restart(follower.name, StallingDisk() if wiped else None)
    group.until_ready()
    for number, seq in enumerate(moments):
        try:
            snapshot = follower.session().snapshot("s", at=seq)
        except HistoryGone:
            continue
        with snapshot:
            assert follower.rows(seq=seq)[b"k"] == str(number).encode()
    assert follower.rows() == leader.rows()
