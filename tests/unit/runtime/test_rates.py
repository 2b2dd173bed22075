"""Rates: what the broker counts, over time, on a real node whose clock the test moves."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.frontend.harness import PERSISTENT, Client
from unit.frontend.stream.client import connected
from unit.frontend.stream.test_following import MemberWorld
from unit.node.world import NodeWorld

from tidemark.frontend.services import PeerInfo
from tidemark.model.rows import Row
from tidemark.model.wiring import PermissionSpec, QueueSpec, VhostSpec
from tidemark.runtime import rates as rates_module
from tidemark.runtime.histogram import Histogram, class_of
from tidemark.runtime.rates import QUEUE, Rates, Series, Span, read_queue, span_of
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicReject,
    ConfirmSelect,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
)


class Clocked:
    """A node, a client and the rates, in a time that the test moves."""

    def __init__(self) -> None:
        self.world = NodeWorld()
        self.rates = Rates(self.world.node, lambda: self.world.now_ms)
        self.client: Client = self.world.open()

    def pass_s(self, seconds: int, each: Any = None) -> None:
        """Seconds go by; `each` is done in every one of them, before it is sampled."""
        for _ in range(seconds):
            if each is not None:
                each()
            self.world.now_ms += 1000
            self.world.turn()
            self.rates.sample()

    def publish(self, count: int, queue: str = "q", exchange: str = "") -> None:
        for _ in range(count):
            self.client.publish(1, queue, b"12345", exchange=exchange, properties=PERSISTENT)
        self.world.turn()


@pytest.fixture
def clocked() -> Clocked:
    made = Clocked()
    made.client.declare("q", durable=True)
    return made


def test_a_rate_is_that_of_the_last_five_seconds(clocked: Clocked) -> None:
    clocked.pass_s(10, lambda: clocked.publish(20))
    assert clocked.rates.details("queue", ("/", "q"))["publish_details"]["rate"] == pytest.approx(20, rel=0.1)
    assert clocked.rates.details("overview")["publish_details"]["rate"] == pytest.approx(20, rel=0.1)
    assert clocked.rates.details("exchange", ("/", ""))["publish_in_details"]["rate"] == pytest.approx(
        20, rel=0.1
    )


def test_a_rate_falls_to_nothing_when_nothing_happens_any_more(clocked: Clocked) -> None:
    clocked.pass_s(10, lambda: clocked.publish(20))
    clocked.pass_s(10)
    for kind, key, name in (("queue", ("/", "q"), "publish"), ("overview", None, "publish")):
        assert clocked.rates.details(kind, key)[f"{name}_details"]["rate"] == 0
    assert clocked.rates.details("queue", ("/", "q"))["publish"] == 200


def test_a_burst_after_a_long_rest_is_not_spread_over_the_rest(clocked: Clocked) -> None:
    clocked.pass_s(3, lambda: clocked.publish(1))
    clocked.pass_s(200)
    clocked.pass_s(5, lambda: clocked.publish(100))
    assert clocked.rates.rate("queue", ("/", "q"), "publish") == pytest.approx(100, rel=0.25)


def test_every_way_of_a_message_is_counted_by_its_name(clocked: Clocked) -> None:
    client, world = clocked.client, clocked.world
    queue = world.queue("q")
    clocked.publish(10)
    client.send(1, BasicGet(queue="q", no_ack=True))
    client.send(1, BasicGet(queue="q"))
    client.read_all()
    client.send(1, BasicAck(delivery_tag=2))
    client.send(1, BasicConsume(queue="q", consumer_tag="c"))
    world.turn()
    client.send(1, BasicAck(delivery_tag=5, multiple=True))  # 3, 4, 5
    client.send(1, BasicNack(delivery_tag=6, requeue=True))
    world.turn()
    client.send(1, BasicReject(delivery_tag=7, requeue=False))
    world.turn()
    stats = clocked.rates.details("queue", queue)
    told = {name: value for name, value in stats.items() if not name.endswith("_details")}
    assert told == {
        "publish": 10,
        "deliver": 9,  # eight, and the one that came back
        "get": 1,
        "get_no_ack": 1,
        "deliver_get": 11,
        "redeliver": 1,
        "ack": 4,
    }
    assert queue.dropped == 1


def test_what_expires_or_is_purged_is_no_acknowledgement(clocked: Clocked) -> None:
    clocked.publish(7)
    clocked.client.ask(1, QueuePurge(queue="q"))
    clocked.world.turn()
    assert "ack" not in clocked.rates.details("queue", ("/", "q"))
    assert clocked.world.queue("q").settled == 7


def test_a_get_that_finds_nothing_is_counted(clocked: Clocked) -> None:
    clocked.client.ask(1, BasicGet(queue="q"))
    clocked.pass_s(1)
    assert clocked.rates.details("overview")["get_empty"] == 1


def test_messages_that_no_queue_wants_are_counted_as_dropped_or_returned(clocked: Clocked) -> None:
    clocked.client.publish(1, "nowhere", b"x")
    clocked.client.publish(1, "nowhere", b"x", mandatory=True)
    clocked.world.turn()
    stats = clocked.rates.details("overview")
    assert (stats["publish"], stats["drop_unroutable"], stats["return_unroutable"]) == (2, 1, 1)
    exchange = clocked.rates.details("exchange", ("/", ""))
    assert exchange["publish_in"] == 2
    assert "publish_out" not in exchange


def test_confirms_are_counted_when_they_are_given(clocked: Clocked) -> None:
    clocked.client.ask(1, ConfirmSelect())
    clocked.publish(5)
    assert clocked.rates.details("overview")["confirm"] == 5
    [channel] = clocked.client.front_end.channels.values()
    assert clocked.rates.details("channel", channel)["confirm"] == 5


def test_totals_stay_when_a_queue_goes_and_lengths_do_not(clocked: Clocked) -> None:
    clocked.publish(4)
    assert clocked.rates.totals().ready == 4
    clocked.client.ask(1, QueueDelete(queue="q"))
    clocked.pass_s(2)
    now = clocked.rates.totals()
    assert (now.ready, now.queues, now.counts["publish"]) == (0, 0, 4)
    assert clocked.rates.details("queue", ("/", "q")) == {}


def test_a_queue_that_is_read_between_its_end_and_the_turn_counts_once(clocked: Clocked) -> None:
    clocked.publish(4)
    clocked.pass_s(1)
    queue = clocked.world.broker.vhosts["/"].queues["q"]
    queue.touch()
    clocked.world.broker.delete_queue(queue)
    assert clocked.rates.totals().counts["publish"] == 4
    clocked.pass_s(2)
    assert clocked.rates.totals().counts["publish"] == 4
    assert queue not in clocked.rates._last


def test_a_virtual_host_that_is_made_again_has_nothing_of_queues_that_were_read_late(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = clocked.world.broker
    broker.put(VhostSpec("other"))
    broker.put(PermissionSpec("guest", "other", ".*", ".*", ".*"))
    session = broker.open_session("other", "guest", None, "test")
    publishing: Any = session.publishing(None)  # type: ignore[arg-type]
    for number in range(5):
        session.declare_queue(f"q{number}", durable=True)
        publishing.publish_one("", f"q{number}", bytes(2), b"x")
    clocked.pass_s(1)
    assert clocked.rates.totals("other").ready == 5
    monkeypatch.setattr(rates_module, "SLICE", 2)
    broker.delete_vhost("other")
    clocked.world.now_ms += 61_000
    more = clocked.rates.sample()
    while more:
        more = clocked.rates.go_on()
    broker.put(VhostSpec("other"))
    assert clocked.rates.totals("other").ready == 0


def test_a_member_that_follows_catches_up_with_more_queues_than_a_slice(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "SLICE", 2)
    broker = clocked.world.broker
    queues = [broker.create_queue(QueueSpec("/", f"q{number}", True))[0] for number in range(5)]
    clocked.pass_s(3)
    clocked.world.node.serving = False
    for queue in queues:
        queue.touch()
    asyncio.run(asyncio.wait_for(clocked.rates.catch_up(), 10))


def test_totals_of_a_member_that_follows_are_of_what_it_has() -> None:
    leader, follower = MemberWorld("a"), MemberWorld("b")
    leader.lead("aa" * 16)
    rates = Rates(follower.node, lambda: follower.now_ms)
    client = leader.open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    for count in (3, 6):
        client.publish(1, "q", b"1", b"2", b"3", properties=PERSISTENT)
        leader.settle()
        follower.adopt_from(leader)
        follower.complete(leader.ends)
        rates.sample()
        assert rates.totals().ready == count


def test_totals_are_the_sums_of_all_queues_whatever_happened(clocked: Clocked) -> None:
    client, world = clocked.client, clocked.world
    for name in ("a", "b", "c"):
        client.declare(name)
    client.send(1, BasicConsume(queue="a", no_ack=True))
    for round_ in range(30):
        client.publish(1, "abc"[round_ % 3], b"x" * round_)
        if round_ % 7 == 0:
            client.send(1, BasicGet(queue="b"))
            client.send(1, BasicGet(queue="q"))
        world.turn()
        if round_ % 5 == 0:
            clocked.pass_s(1)
    live = [read_queue(queue) for queue in world.broker.queues.values()]
    sums = dict(zip(QUEUE, map(sum, zip(*live, strict=True)), strict=True))
    now = clocked.rates.totals()
    assert now.ready == sums["messages_ready"]
    assert now.acquired == sums["messages_unacknowledged"]
    assert now.acquired_bytes == sums["acquired_bytes"]
    assert now.consumers == 1
    assert {name: now.counts[name] for name in ("publish", "deliver_get", "get_empty")} == {
        name: sums[name] for name in ("publish", "deliver_get", "get_empty")
    }
    assert clocked.rates.of_kind("classic")["publish"] == sums["publish"]


def test_a_restart_begins_with_what_was_on_the_disk(clocked: Clocked) -> None:
    clocked.publish(6)
    again = clocked.world.crash()
    after = Rates(again.node, lambda: again.now_ms)
    assert after.totals().ready == 6
    assert after.totals().counts["publish"] == 0


def test_a_virtual_host_has_its_own(clocked: Clocked) -> None:
    clocked.world.broker.put(VhostSpec("other"))
    clocked.publish(3)
    assert clocked.rates.totals("/").ready == 3
    assert clocked.rates.totals("other").ready == 0
    assert clocked.rates.details("vhost", "/")["publish"] == 3


def test_samples_go_back_as_far_as_is_asked_newest_first(clocked: Clocked) -> None:
    clocked.pass_s(40, lambda: clocked.publish(10))
    told = clocked.rates.details("overview", msg_rates_age=30, msg_rates_incr=5)["publish_details"]
    moments = [each["timestamp"] for each in told["samples"]]
    assert len(moments) == 7
    assert moments == sorted(moments, reverse=True)
    assert {a - b for a, b in itertools.pairwise(moments)} == {5000}
    counts = [each["sample"] for each in told["samples"]]
    assert [a - b for a, b in itertools.pairwise(counts)] == [50] * 6
    assert told["avg_rate"] == pytest.approx(10)


def test_lengths_have_samples_too(clocked: Clocked) -> None:
    clocked.pass_s(12, lambda: clocked.publish(2))
    told = clocked.rates.lengths("queue", ("/", "q"), lengths_age=10, lengths_incr=5)
    assert told["messages"] == told["messages_ready"] == 24
    assert told["messages_ready_details"]["rate"] == pytest.approx(2, rel=0.2)
    samples = [each["sample"] for each in told["messages_details"]["samples"]]
    assert samples == sorted(samples, reverse=True)
    assert samples[0] > samples[-1]


def test_the_bytes_of_a_connection_that_is_gone_stay_in_the_total(clocked: Clocked) -> None:
    clocked.pass_s(1)
    other = clocked.world.open()
    before = clocked.rates.bytes_in
    assert before > 0
    clocked.rates.disconnected(other.front_end)
    clocked.world.lose(other)
    clocked.pass_s(1)
    assert clocked.rates.bytes_in >= before


def test_a_connection_that_had_said_nothing_when_it_was_sampled_is_not_kept_in_mind(clocked: Clocked) -> None:
    opening = clocked.world.node.connect(PeerInfo("127.0.0.1", 1))
    clocked.pass_s(1)  # another front end takes its place when it speaks, and nobody says so here
    assert set(clocked.rates._bytes) == set(clocked.world.node.front_ends) - {opening}


def test_a_stream_connection_is_a_publisher_from_its_first_batch_to_its_end(clocked: Clocked) -> None:
    counts = clocked.world.broker.counts.stream
    client = connected(clocked.world)
    client.ask("declare", stream="s")
    assert counts.publishers == 0
    for key in (b"a", b"b"):
        client.put("s", [Row(key=key, value=b"1")])
    assert (counts.publishers, counts.received) == (1, 2)
    clocked.world.node.disconnect(client.front_end)
    assert counts.publishers == 0


def test_a_connection_has_rates_from_when_somebody_looks(clocked: Clocked) -> None:
    front_end = clocked.client.front_end
    assert clocked.rates.bytes(front_end)["recv_oct_details"]["rate"] == 0
    clocked.pass_s(5, lambda: clocked.publish(10))
    assert clocked.rates.bytes(front_end)["recv_oct_details"]["rate"] > 100
    clocked.pass_s(70)
    assert not clocked.rates._watched


def test_churn_counts_what_was_opened_and_closed(clocked: Clocked) -> None:
    clocked.world.lose(clocked.world.open(channels=3))
    told = clocked.rates.churn()
    assert (told["connection_created"], told["connection_closed"]) == (2, 1)
    assert (told["channel_created"], told["channel_closed"]) == (4, 3)
    assert (told["queue_declared"], told["queue_created"], told["queue_deleted"]) == (1, 1, 0)


def test_when_very_many_queues_change_each_has_its_turn(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "SLICE", 10)
    for number in range(55):
        clocked.client.declare(f"q{number}")
        clocked.client.publish(1, f"q{number}", b"x")
    clocked.world.turn()
    rounds = 1
    more = clocked.rates.sample()
    while more:
        more = clocked.rates.go_on()
        rounds += 1
    assert rounds >= 5
    assert clocked.rates.totals().ready == 55


def test_only_so_many_queues_have_long_series_and_all_have_rates(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "LONG_MAX", 2)
    names = [f"q{number}" for number in range(5)]
    for name in names:
        clocked.client.declare(name)
    clocked.pass_s(60, lambda: [clocked.publish(5, name) for name in names])
    for name in names:
        assert clocked.rates.rate("queue", ("/", name), "publish") == pytest.approx(5, rel=0.2)
    lengths = sorted(len(series) for series in clocked.rates._queues.values())
    assert lengths[0] <= rates_module.SHORT + 1
    assert lengths[-1] >= 12


def test_what_has_not_changed_for_long_is_let_go_of(clocked: Clocked) -> None:
    clocked.publish(1)
    clocked.pass_s(1)
    assert clocked.rates._queues
    clocked.world.now_ms += 700_000
    clocked.rates.sample()
    assert not clocked.rates._queues
    assert clocked.rates.totals().ready == 1


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 1000)), max_size=200))
def test_a_series_never_says_more_or_less_than_there_was(steps: list[tuple[int, int]]) -> None:
    series, now_ms, value = Series(1, 5000, 20), 1_000_000, 0
    for elapsed_ms, more in steps:
        now_ms += elapsed_ms
        value += more
        series.add(now_ms, (value,))
        assert series.rate(0, now_ms, value) >= 0
    assert len(series) <= 20 + 20 // 4 + 1
    before = 0.0
    for moment in range(1_000_000, now_ms + 1, 7_000):
        [place] = series.places((moment,), now_ms)
        at = series.at(place, 0, value)
        assert before <= at <= value
        before = at


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ({}, None),
        ({"msg_rates_age": "60"}, None),
        ({"msg_rates_age": "60", "msg_rates_incr": "5"}, Span(60, 5)),
        ({"msg_rates_age": "x", "msg_rates_incr": "5"}, None),
        ({"msg_rates_age": "60", "msg_rates_incr": "0"}, None),
        ({"msg_rates_age": "999999", "msg_rates_incr": "60"}, Span(600, 60)),
    ],
)
def test_a_span_that_makes_no_sense_is_none(query: dict[str, str], span: Span | None) -> None:
    assert span_of(query, "msg_rates") == span


def test_ten_thousand_queues_of_which_a_hundred_are_busy_cost_next_to_nothing(clocked: Clocked) -> None:
    broker = clocked.world.broker
    for number in range(10_000):
        broker.create_queue(QueueSpec("/", f"idle{number}"))
    clocked.world.turn()
    while clocked.rates.go_on():
        pass
    busy = [broker.vhosts["/"].queues[f"idle{number}"] for number in range(100)]
    spent = 0.0
    for _ in range(20):
        for queue in busy:
            queue.published += 1
            broker.changed.add(queue)
        clocked.world.now_ms += 1000
        began = time.thread_time()
        clocked.rates.sample()
        spent += time.thread_time() - began
    # One per cent of a core is 10 ms a second; on a slow machine with others on it, too.
    assert spent / 20 < 0.010


def test_a_histogram_counts_in_classes_that_double() -> None:
    histogram = Histogram()
    for value in (0, 1, 2, 3, 4, 5, 1 << 30):
        histogram.add(value)
    upto = histogram.buckets(1.0)
    assert upto[:4] == [(1.0, 2), (2.0, 3), (4.0, 5), (8.0, 6)]
    assert upto[-1] == (float("inf"), 7)


@given(st.integers(0, 1 << 40))
def test_a_value_is_not_above_the_bound_of_its_class(value: int) -> None:
    place = class_of(value)
    bounds = [bound for bound, _ in Histogram().buckets(1.0)]
    assert value <= bounds[place]
    assert place == 0 or value > bounds[place - 1]
