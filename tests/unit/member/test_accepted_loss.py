"""All that were ready are lost, and an operator goes on with another: members with real stores."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.world import Group, Process

from tidemark.broker.streams.commit import Batch, Put
from tidemark.cluster.mode import MemberHere, State
from tidemark.model.peers import Acked, Log
from tidemark.model.rows import Row, RowBatch
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
    chosen, other = (group[name] for name in others)
    store = other.node.store
    status = store.files.status
    answer = chosen.member.ask(
        "promote",
        accept_loss=True,
        answers=(MemberHere(other.name, status.cluster, store.durable_ends, status.epoch),),
    )
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
    assert "its lease is good" in chosen.member.ask("promote", name, accept_loss=True).text
    group.end_lease(lost)
    assert "members could not be asked" in chosen.member.ask("promote", accept_loss=True).text
    answer = chosen.member.ask("promote", name, accept_loss=True)
    assert answer.done and "still being filled" in answer.text
    group.until_ready()
    assert chosen.queue("q").ready == held
    group.restart(other)
    group.restart(lost)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [held] * 3
    compare(group)
