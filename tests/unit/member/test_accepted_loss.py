"""All that were ready are lost, and an operator goes on with another: members with real stores."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.world import Group, Process

from tidemark.broker.streams.commit import Batch, Put
from tidemark.cluster.mode import State
from tidemark.errors import StoreError
from tidemark.member import counting
from tidemark.member.member import Member
from tidemark.model.peers import Acked, Ends, Hello, Log
from tidemark.model.rows import Row, RowBatch
from tidemark.store.rewind import reset
from tidemark.wire.amqp091.methods import BasicAck, BasicGet

MODES = ("standby", "chain")


def publish(client: Client, *bodies: bytes) -> None:
    client.publish(1, "q", *bodies, properties=PERSISTENT)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}


def alone(mode: str, shared: int, **settings: int) -> tuple[Group, Client]:
    """All have so many messages; then the others go, and the leader is the only one that is ready."""
    group = Group("abc", mode=mode, **settings)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    for number in range(shared):
        publish(client, b"%d " % number + b"x" * 3000)
    group.pass_ms(100, 3)
    for process in list(group.followers):
        group.kill(process.name)
        group.pass_ms(300, 3)
    assert group.view is not None and group.view.ready == (group.leader.name,)
    return group, client


def go_on(group: Group, lost: str) -> Process:
    """That one is killed, the others start, and the first of them is told to lead whatever is lost."""
    others = [name for name in "abc" if name != lost]
    group.kill(lost)
    for name in others:
        group.restart(name)
    group.pass_ms(100, 3)
    chosen = group[others[0]]
    answer = group.promote(chosen.name, accept_loss=True)
    assert answer.done, answer.text
    group.until_ready()
    assert group.leader is chosen and ("warning", "loss accepted") in chosen.notes
    return chosen


@pytest.mark.parametrize("mode", MODES)
def test_what_only_the_lost_member_had_is_counted_and_cut_off_when_it_comes_back(mode: str) -> None:
    group, client = alone(mode, 5)
    lost = group.leader.name
    publish(client, *(b"only here %d" % number for number in range(7)))
    chosen = go_on(group, lost)
    publish(chosen.open(confirms=True), b"afterwards")
    group.pass_ms(100, 2)

    back = group.restart(lost)
    group.until_ready()

    assert ("warning", "confirmed messages given up") in back.notes
    assert back.member.given_up_messages == back.member.status()["given_up_messages"] == 7
    assert back.state is State.READY and back.member.status()["accepted"] == 2
    assert [process.queue("q").ready for process in group] == [6, 6, 6]
    compare(group)


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_member_that_has_let_go_of_messages_which_others_still_have_is_filled_anew(mode: str) -> None:
    """It was done with them by acknowledgements that are given up: in its journal they would be missing for ever."""
    group, client = alone(mode, 60, keep_bytes=0)
    leader = group.leader
    for _ in range(59):
        client.send(1, BasicAck(delivery_tag=client.ask(1, BasicGet(queue="q")).method.delivery_tag))
    for number in range(40):
        publish(client, b"only here %d" % number + b"x" * 3000)
        group.pass_ms(100, 2)
    group.pass_ms(200, 10)
    assert leader.node.store.log_start(Log.JOURNAL) > 0
    chosen = go_on(group, leader.name)
    assert chosen.queue("q").ready == 60, "their acknowledgements are lost, so they come again"

    back = group.restart(leader.name)
    group.until_ready()

    assert ("warning", "store emptied") in back.notes and back.member.given_up_messages == 40
    assert [process.queue("q").ready for process in group] == [60, 60, 60]
    compare(group)


def test_a_receipt_for_what_was_given_up_is_of_a_lost_branch() -> None:
    group, _ = alone("standby", 1)
    leader = group.leader
    session = leader.session()
    session.declare("s")
    group.settle()
    receipt = session.commit(Batch([Put("s", RowBatch.build([Row(b"key", b"value")]))]))
    group.settle()
    streams = leader.node.broker.streams
    assert streams.safe(receipt.history, receipt.last_seq) == "yes"

    chosen = go_on(group, leader.name)
    back = group.restart(leader.name)
    group.until_ready()

    for process in (chosen, back):
        assert process.node.broker.streams.safe(receipt.history, receipt.last_seq) == "lost branch"


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_was_being_filled_for_the_first_time_can_go_on_with_what_it_got(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is nothing better, and somebody says so."""
    group, _ = alone(mode, 60, window_bytes=64 << 10)
    lost = group.leader.name
    name, other = (name for name in "abc" if name != lost)
    tell = Process.tell
    with monkeypatch.context() as patch:
        # What is not acknowledged is not followed by more.
        patch.setattr(Process, "tell", lambda *said: None if isinstance(said[2], Acked) else tell(*said))
        group.restart(name, type(group[name].disk)())
    held = group[name].queue("q").ready
    assert 0 < held < 60 and group[name].state is State.CATCHUP
    group.kill(lost)
    group.pass_ms(100, 3)

    chosen = group[name]
    assert "its lease is good" in group.promote(name, accept_loss=True, named=True).text
    group.end_lease(lost)
    assert f"{other} (connection refused) could not be asked" in group.promote(name, accept_loss=True).text
    answer = group.promote(name, accept_loss=True, named=True)
    assert answer.done and "still being filled" in answer.text
    group.until_ready()
    assert chosen.queue("q").ready == held
    group.restart(other)
    group.restart(lost)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [held] * 3
    compare(group)


@pytest.mark.parametrize("mode", MODES)
def test_one_that_has_only_begun_to_catch_up_is_not_taken_for_the_best(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost leader had led in an epoch of its own: one was in line with it in that, and holds less than another."""
    group, client = alone(mode, 5)
    lost = group.leader.name
    short, long = (name for name in "abc" if name != lost)
    group.restart(long)
    group.until_ready()
    publish(client, *(b"all but one %d" % number for number in range(20)))
    group.kill(long)
    group.pass_ms(300, 3)
    group.kill(lost)
    group.restart(lost)
    group.pass_ms(100, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "ship", lambda *_: None)
        group.restart(short)
        group.kill(lost)
    group.end_lease(lost)
    group.restart(long)
    group.pass_ms(100, 3)
    stores = {name: group[name].here() for name in (short, long)}
    assert stores[short].epoch > stores[long].epoch
    assert stores[short].durable.journal < stores[long].durable.journal

    answer = group.promote(short, accept_loss=True)
    assert not answer.done and f"Promote {long} with --accept-loss" in answer.text
    assert group.promote(long, accept_loss=True).done
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [25, 25]


@pytest.mark.parametrize("acks", [9, 12, 15])
def test_when_the_cluster_was_founded_again_an_old_store_has_no_holes(
    acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had let go of messages by acknowledgements that are cut off; with etcd's data the knowledge of that is lost."""
    group, client = alone("standby", 60, keep_bytes=0)
    lost = group.leader.name
    for _ in range(acks):
        client.send(1, BasicAck(delivery_tag=client.ask(1, BasicGet(queue="q")).method.delivery_tag))
    for number in range(12):
        publish(client, b"only here %d" % number + b"x" * 100)
        group.pass_ms(100, 2)
    group.pass_ms(200, 10)
    assert group.leader.node.store.log_start(Log.JOURNAL) > 0
    monkeypatch.setattr(Member, "maintain", lambda *_: True)
    group.kill(lost)
    group.view = None
    others = [name for name in "abc" if name != lost]
    for name in others:
        group.restart(name)
    group.pass_ms(100, 3)
    assert not group.promote(others[0]).done, "the third could not be asked"
    assert group.promote(others[0], accept_loss=True, named=True).done
    group.until_ready()

    group.restart(lost)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [60, 60, 60]
    compare(group)


@pytest.mark.parametrize("again", [False, True])
def test_a_store_that_was_being_emptied_when_its_process_died_is_not_whole(again: bool) -> None:
    group, client = alone("standby", 20)
    lost = group.leader.name
    publish(client, b"only here")
    chosen = go_on(group, lost)
    reset(group[lost].disk)
    group.muted.add((lost, chosen.name))
    back = group.restart(lost)
    if again:
        group.kill(lost)
        back = group.restart(lost)
    assert (back.here().epoch, back.here().durable) == (0, Ends())
    hellos = [message for _, message in back.told if isinstance(message, Hello)]
    assert [hello.whole for hello in hellos[:1]] == [False]

    group.muted.clear()
    group.pass_ms(1000, 2)
    group.until_ready()
    assert back.queue("q").ready == 20


def test_a_ready_member_that_is_emptied_and_dies_does_not_lead_with_nothing() -> None:
    """An operator has it filled anew, and everything ends before the leader has heard of it."""
    group = Group("ab")
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    publish(client, b"one")
    leader, backup = group.leader.name, group.followers[0].name
    group.kill(backup)
    reset(group[backup].disk)
    group.kill(leader)
    group.restart(backup)
    group.pass_ms(1000, 10)
    assert not group[backup].member.serving

    group.restart(leader)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [1, 1]


def test_of_more_than_can_be_counted_in_a_moment_it_is_said_that_it_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "READ_BYTES", 1 << 10)
    monkeypatch.setattr(counting, "COUNT_BYTES_MAX", 4 << 10)
    group, client = alone("standby", 5)
    publish(client, *(b"only here %d" % number + b"x" * 1000 for number in range(40)))
    store = group.leader.node.store
    found, all_counted = counting.count_messages(store, 0)
    assert 0 < found < 45 and not all_counted
    monkeypatch.undo()
    assert counting.count_messages(store, 0) == (45, True)


def test_what_cannot_be_read_is_not_counted_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    group, _ = alone("standby", 5)
    store = group.leader.node.store

    def unreadable(*_: object) -> None:
        raise StoreError

    monkeypatch.setattr(store, "units_after", unreadable)
    assert counting.count_messages(store, 0) == (0, False)
