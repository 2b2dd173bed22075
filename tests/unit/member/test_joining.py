"""Members that come and stay: in which order, what they are given, and what others notice of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.test_chain import lead, sources
from unit.member.world import Group, Process, StallingDisk

from tidemark.cluster.mode import State
from tidemark.model.peers import Log, Unit
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicQos,
    ConnectionBlocked,
    ConnectionUnblocked,
)

KiB = 1024


def confirmed(client: Client) -> int:
    return sum(isinstance(answer, BasicAck) for answer in client.read_all())


def test_members_stand_in_the_view_in_the_order_in_which_they_became_ready() -> None:
    """X-10: the order of the view is that of joining; it is the order of the chain and of succession."""
    group = Group("abcd", mode="chain")
    group.until_ready()
    assert group.view is not None
    head, second, third, fourth = group.view.ready

    group.kill(second)
    group.pass_ms(100, 10)
    group.restart(second)
    group.until_ready()
    assert group.view.ready == (head, third, fourth, second)
    group.settle()
    assert sources(group) == {"1": "0", "2": "1", "3": "2"}

    for heir, rest in ((third, (fourth, second)), (fourth, (second,)), (second, ())):
        group.kill(group.leader.name)
        assert lead(group).name == heir
        assert group.view.ready == (heir, *rest)


class Given:
    """What a member was given, log by log."""

    def __init__(self, process: Process) -> None:
        self.units: dict[Log, list[Unit]] = {log: [] for log in Log}
        self._given: Callable[[str, int, Unit], None] = process.member.given
        process.member.given = self._take  # type: ignore[method-assign]

    def _take(self, peer: str, epoch: int, unit: Unit) -> None:
        self.units[unit.log].append(unit)
        self._given(peer, epoch, unit)

    def is_in_order(self, log: Log) -> bool:
        end = 0
        for unit in self.units[log]:
            if unit.previous != end or not end < unit.first <= unit.last:
                return False
            end = unit.last
        return bool(self.units[log])


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_member_is_filled_from_front_to_back_while_wiring_and_messages_come_and_go(mode: str) -> None:
    """X-18: catch-up goes forward, in queues with live consumers as in logs, and its end is told at its beginning. X-19: the
    catalog is a log: it is copied and followed, and nothing stalls for it."""
    group = Group("abc", mode=mode)
    group.until_ready()
    client, consumer = group.leader.open(confirms=True), group.leader.open()
    client.declare("q", durable=True)
    for number in range(50):
        client.publish(1, "q", b"%d" % number, properties=PERSISTENT)
    consumer.ask(1, BasicQos(prefetch_count=10))
    consumer.send(1, BasicConsume(queue="q", consumer_tag="live"))
    joiner = group.followers[-1].name
    group.kill(joiner)
    group.pass_ms(100, 10)
    client.read_all()
    group.muted = {(one, joiner) for one in "abc"}
    back = group.restart(joiner, StallingDisk())
    given = Given(back)
    before = group.ticks_ms

    work(client, consumer, 0)
    assert back.state is State.JOINING
    group.muted = set()
    group.settle()
    work(client, consumer, 20)
    assert group.ticks_ms == before, "no time had to pass for any answer"
    group.until_ready()

    assert given.is_in_order(Log.CATALOG)
    assert given.is_in_order(Log.JOURNAL)
    compare(group)


def work(client: Client, consumer: Client, first: int) -> None:
    """Declare, publish and consume; everything is answered at once."""
    for number in range(first, first + 20):
        client.declare(f"new {number}", durable=True)
        client.publish(1, f"new {number}", b"x", properties=PERSISTENT)
        client.publish(1, "q", b"more", properties=PERSISTENT)
        assert confirmed(client) == 2
        [*_, delivered] = consumer.read_all()
        consumer.send(1, BasicAck(delivery_tag=delivered.method.delivery_tag, multiple=True))


def test_publishers_wait_for_a_member_that_falls_behind_and_not_for_one_that_does_not_come_back() -> None:
    """X-23: ordered thresholds: so many bytes behind, publishers are held up; for so long, it is left out and they go on; so
    much more, the log is not kept for it, and it is filled anew."""
    group = Group("abc", lag_bytes=1024 * KiB, keep_bytes=3 * 1024 * KiB, backup_timeout_ms=1000)
    group.until_ready()
    slow = group.followers[0]
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    group.pass_ms(100)
    with group.stall(slow.name):
        for _ in range(12):
            client.publish(1, "q", b"x" * 100 * KiB, properties=PERSISTENT)
        [blocked] = client.read_all()
        assert isinstance(blocked, ConnectionBlocked) and f"{slow.name} cannot keep up" in blocked.reason

        group.pass_ms(100, 15)
        assert group.view is not None and slow.name not in group.view.ready
        assert {type(answer) for answer in client.read_all()} == {BasicAck, ConnectionUnblocked}
        group.kill(slow.name)
        for _ in range(40):
            client.publish(1, "q", b"x" * 100 * KiB, properties=PERSISTENT)
            assert confirmed(client) == 1
            client.send(1, BasicAck(delivery_tag=client.ask(1, BasicGet(queue="q")).method.delivery_tag))
            group.pass_ms(100)
    back = group.restart(slow.name)
    group.until_ready()
    assert ("warning", "store emptied") in back.notes
    compare(group)
