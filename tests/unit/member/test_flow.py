"""A ready member that does not keep up: publishers wait for it, everywhere and only they, until it has caught up or is left out."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from unit.frontend.harness import PERSISTENT, Client, Content
from unit.member.world import Group, Process

from tidemark.wire.amqp091.methods import BasicAck, BasicGet, ConnectionBlocked, ConnectionUnblocked

MiB = 1 << 20
LAG_BYTES = MiB
PIECE = bytes(32 * 1024)
PATIENT_MS = 600_000
MODES = ("standby", "chain")


def a_group(mode: str, publishers: int = 2, **settings: int) -> tuple[Group, list[Client]]:
    """With publishers at the leader, where clients of every member are."""
    chosen = {"lag_bytes": LAG_BYTES, "backup_timeout_ms": PATIENT_MS, "ack_budget_ms": 0, **settings}
    group = Group("abc", mode=mode, **chosen)
    group.until_ready()
    clients = [group.leader.open(confirms=True) for _ in range(publishers)]
    clients[0].declare("q", durable=True)
    return group, clients


def publish(clients: list[Client]) -> int:
    """One piece from each client that is still read from; how many."""
    reading = [client for client in clients if client.front_end.wants_read()]
    for client in reading:
        client.publish(1, "q", PIECE, properties=PERSISTENT)
    return len(reading)


def press(group: Group, clients: list[Client]) -> list[int]:
    """Publish until nobody is read from any more. What the slowest lacked after each step."""
    lags = []
    for _ in range(200):
        sent = publish(clients)
        group.pass_ms(10)
        lags.append(lag(group))
        if not sent:
            return lags
    raise AssertionError("publishers are never made to wait")


def lag(group: Group) -> int:
    """How much of the leader's journal the slowest of the others does not have on its disk."""
    journal = group.leader.node.store.journal
    return max(journal.bytes_after(one.node.store.durable_ends.journal) for one in group.followers)


def reasons(process: Process) -> str:
    return process.node.alarms.reason or ""


def unblocked(client: Client) -> bool:
    return client.front_end.wants_read() and ConnectionUnblocked() in client.read_all()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_all_publishers_wait_for_a_slow_member_and_consumers_do_not(mode: str, which: int) -> None:
    """S-15, A-65: the lag of a ready member stays below its limit and what was on its way then, for the whole run. A-66: publishers
    of all connections wait, are told why, and go on; consumers are served meanwhile."""
    group, clients = a_group(mode)
    for number in range(10):
        clients[0].publish(1, "q", b"%d" % number, properties=PERSISTENT)
    clients[0].read_all()
    consumer = group.leader.open()
    slow = group.followers[which].name
    worst = 0
    for _ in range(3):
        with group.stall(slow):
            worst = max(worst, *press(group, clients))
            late = group.leader.open(confirms=True)
            late.publish(1, "q", PIECE, properties=PERSISTENT)
            for client in (*clients, late):
                blocked = [each for each in client.read_all() if isinstance(each, ConnectionBlocked)]
                assert [slow in each.reason for each in blocked] == [True]
                assert not client.front_end.wants_read()
            for _ in range(10):
                taken = consumer.ask(1, BasicGet(queue="q"))
                assert isinstance(taken, Content), "what is confirmed is delivered"
                consumer.send(1, BasicAck(delivery_tag=taken.method.delivery_tag))
            assert consumer.front_end.wants_read()
        group.pass_ms(10, 3)
        assert lag(group) == 0
        assert all(unblocked(client) for client in (*clients, late))
    assert LAG_BYTES < worst < LAG_BYTES + 10 * len(PIECE)


def test_publishers_wait_for_a_slow_member_in_the_turn_in_which_it_is_too_far_behind() -> None:
    """A-65: however much comes before the next tick. And the tick lets them go on, as soon as it has come near."""
    group, clients = a_group("standby", lag_bytes=2 * MiB)
    slow = group.followers[0].name
    with group.stall(slow):
        while slow not in reasons(group.leader):
            assert lag(group) < 4 * MiB
            assert publish(clients) == len(clients)
            group.settle()
        publish(clients)
        assert publish(clients) == 0, "who publishes all the same is not read from"
    group.settle()
    group.leader.member.tick(group.now_ms, group.ticks_ms)
    assert reasons(group.leader) == ""


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_is_waited_for_and_dies_is_waited_for_no_more(mode: str) -> None:
    """S-15: the one because of whom publishers wait is gone; the others go on without it."""
    group, clients = a_group(mode)
    slow = group.followers[1].name
    with group.stall(slow):
        press(group, clients)
        group.kill(slow)
    group.pass_ms(100, 5)
    assert all(unblocked(client) for client in clients)
    publish(clients)
    for client in clients:
        assert [type(each) for each in client.read_all()] == [BasicAck]
    assert group.view is not None
    assert slow not in group.view.ready


def test_a_member_that_is_waited_for_too_long_is_left_out() -> None:
    """S-15, X-23: first publishers wait, then the cluster does without it; it comes back when it is well."""
    group, clients = a_group("standby", backup_timeout_ms=2000)
    slow = group.followers[0].name
    with group.stall(slow):
        press(group, clients)
        group.pass_ms(100, 30)
        assert all(unblocked(client) for client in clients)
        assert publish(clients) == 2
        assert all(isinstance(client.read_all()[-1], BasicAck) for client in clients)
    group.until_ready()
    assert lag(group) == 0


def test_of_two_reasons_to_wait_one_that_ends_lets_nobody_go_on() -> None:
    """S-15: two members are slow, and memory is low; publishers go on when the last of it is over."""
    group, clients = a_group("standby")
    leader, (one, other) = group.leader, [follower.name for follower in group.followers]
    with ExitStack() as slow, group.stall(other):
        slow.enter_context(group.stall(one))
        press(group, clients)
        assert one in reasons(leader) and other in reasons(leader)
        slow.close()
        group.pass_ms(10, 3)
        assert reasons(leader) == f"{other} cannot keep up"
        assert not any(client.front_end.wants_read() for client in clients)
        leader.node.watch(2, 1, 1 << 40)
        assert reasons(leader) == f"low on memory, {other} cannot keep up"
    group.settle()
    leader.member.maintain(group.now_ms, 1 << 20)
    group.settle()
    assert reasons(leader) == "low on memory"
    assert not any(client.front_end.wants_read() for client in clients)
    leader.node.watch(0, 1, 1 << 40)
    group.settle()
    assert all(unblocked(client) for client in clients)
