"""Members that were away: what is kept for them, and for how long; and stores that were used without their cluster."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group

from tidemark.model.peers import Log
from tidemark.node import Node
from tidemark.store.check import check_store
from tidemark.wire.amqp091.methods import BasicAck, BasicGet, QueueDelete


def traffic(group: Group, client: Client, count: int) -> None:
    """Messages come and go, so that segments become free."""
    for number in range(count):
        client.publish(1, "q", b"x" * 3000, properties=PERSISTENT)
        client.read_all()
        client.send(1, BasicAck(delivery_tag=client.ask(1, BasicGet(queue="q")).method.delivery_tag))
        if number % 20 == 0:
            group.pass_ms(200, 3)


def with_queue(**settings: int) -> tuple[Group, Client]:
    group = Group("abc", **settings)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    return group, client


def test_a_member_that_restarts_goes_on_from_where_it_was() -> None:
    """X-5: a restarted backup gets the difference to what it has."""
    group, client = with_queue()
    away = group.followers[0].name
    traffic(group, client, 30)
    group.kill(away)
    group.pass_ms(300, 3)
    traffic(group, client, 80)
    back = group.restart(away)
    group.until_ready()
    assert not back.retired_nodes  # its store was not emptied
    assert 80 * 3000 < back.member.moved_bytes < 1.1 * 80 * 3200


def test_a_member_that_was_ahead_is_sent_only_what_is_different() -> None:
    """M5: what moves is what parts the two logs, not the store."""
    group, client = with_queue()
    for number in range(100):
        client.publish(1, "q", b"%d" % number + b"x" * 3000, properties=PERSISTENT)
    client.read_all()
    ahead = group.leader.name
    with ExitStack() as silent:
        for other in group.followers:
            silent.enter_context(group.mute(ahead, other.name))
        for number in range(5):
            client.publish(1, "q", b"lost %d" % number, properties=PERSISTENT)
        group.settle()
        group.kill(ahead)
    group.pass_ms(300, 3)
    back = group.restart(ahead)
    group.until_ready()

    assert ("info", "logs cut back") in back.notes
    assert back.member.moved_bytes < 5000


def test_a_leader_that_was_replaced_goes_on_from_where_it_was() -> None:
    group, client = with_queue()
    traffic(group, client, 20)
    old = group.leader.name
    client = group.fail_over().open(confirms=True)
    traffic(group, client, 80)
    back = group.restart(old)
    group.until_ready()
    assert back.node.store.log_start(Log.JOURNAL) == group.leader.node.store.log_start(Log.JOURNAL) == 0


@pytest.mark.parametrize("catalog", [False, True])
def test_no_more_is_kept_for_a_member_that_is_away_than_is_allowed(catalog: bool) -> None:
    group, client = with_queue(keep_bytes=150_000)
    away = group.followers[0].name
    group.kill(away)
    group.pass_ms(300, 3)
    store = group.leader.node.store
    if catalog:
        for _ in range(6):
            for number in range(150):
                client.declare(f"t{number}", durable=True)
                client.ask(1, QueueDelete(queue=f"t{number}"))
            group.pass_ms(100, 2)
        assert sum(segment.used for segment in store.catalog.segments) < 300_000
        assert store.log_start(Log.CATALOG) > 0
    else:
        traffic(group, client, 100)
        group.pass_ms(200, 10)
        assert store.log_start(Log.JOURNAL) > 0
    group.restart(away)
    group.until_ready()
    assert group[away].queue("q").number == group.leader.queue("q").number


def test_a_member_that_was_used_alone_is_told_what_to_do() -> None:
    group, client = with_queue()
    away = group.followers[0]
    client.publish(1, "q", b"one", properties=PERSISTENT)
    group.kill(away.name)
    group.pass_ms(500, 3)
    node = Node(group.config(away.name), away.disk, away, away.member._entropy)
    node.start(group.now_ms)
    assert node.broker.vhosts["/"].queues["q"].ready == 1
    node.close(group.now_ms)
    while not node.closed():
        node.completed(group.now_ms)
    back = group.restart(away.name)
    group.pass_ms(200, 5)
    assert "start with an empty data directory" in back.last_words[0]
    assert not back.member.serving


def test_the_stores_of_members_are_found_to_be_sound() -> None:
    group, client = with_queue()
    traffic(group, client, 10)
    old = group.leader.name
    group.fail_over()
    group.restart(old)
    group.until_ready()
    for process in group:
        assert list(check_store(process.disk)) == []
