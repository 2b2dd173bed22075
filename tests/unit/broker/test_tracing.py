"""A channel whose messages are traced does what every channel does, and tells of what it was asked to tell."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend.harness import Client, publish_frames
from unit.node.world import NodeWorld

from tidemark.broker.publishing import Publishing
from tidemark.broker.tracing import REMEMBERED_MAX, REMEMBERED_MS, Facts, TracedPublishing, Traces
from tidemark.wire.amqp091.methods import BasicConsume, ConfirmSelect, ExchangeDeclare, QueueBind
from tidemark.wire.amqp091.properties import Properties, encode_properties


class Collected:
    """A trace that remembers how it ended."""

    def __init__(self, parent: str, facts: Facts) -> None:
        self.parent, self.facts, self.ended = parent, facts, None

    ended: str | None

    def end(self, failed: str = "") -> None:
        assert self.ended is None, "it ends once"
        self.ended = failed


class Collector:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.published: list[Collected] = []
        self.delivered: list[tuple[Collected, Facts]] = []

    def publish(self, parent: str, state: str, facts: Facts) -> Collected | None:
        if parent == "not sampled":
            return None
        self.published.append(Collected(parent, facts))
        return self.published[-1]

    def deliver(self, trace: Any, facts: Facts) -> None:
        self.delivered.append((trace, facts))


CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["q", "full", "nowhere", "both", "unknown exchange"]),
        st.sampled_from([None, CONTEXT, "not sampled"]),
        st.booleans(),
        st.sampled_from([1, 2]),
    ),
    max_size=30,
)


def properties(context: str | None, mode: int) -> bytes:
    headers: dict[str, Any] | None = None if context is None else {"traceparent": context}
    return encode_properties(Properties(delivery_mode=mode, headers=headers))


def world_with(traces: Traces | None) -> tuple[NodeWorld, Client]:
    world = NodeWorld()
    world.broker.traces = traces
    client = world.open()
    client.declare("q", durable=True)
    client.declare("other", durable=True)
    client.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.ask(1, ExchangeDeclare(exchange="both", type="fanout"))
    client.ask(1, QueueBind(queue="q", exchange="both"))
    client.ask(1, QueueBind(queue="other", exchange="both"))
    client.ask(1, ConfirmSelect())
    return world, client


def outcome(world: NodeWorld, client: Client, rows: list[tuple[str, str | None, bool, int]]) -> Any:
    data = b""
    for number, (where, context, mandatory, mode) in enumerate(rows):
        exchange = where if where in ("both", "unknown exchange") else ""
        data += publish_frames(
            1, where, b"%d" % number, exchange, properties(context, mode), mandatory=mandatory
        )
    client.write(data)
    world.turn()
    told = [repr(each) for each in client.read_all()]
    held = {}
    for name in ("q", "other", "full"):
        queue = world.queue(name)
        taken = queue.take(1000, 1 << 40, hidden=True)
        entries = [] if taken is None else list(taken)
        held[name] = [(seq, bytes(world.node.arena.message(loc).body)) for _, seq, loc, *_ in entries]
    return told, held


@given(ROWS)
@settings(max_examples=60)
def test_with_traces_everything_is_published_confirmed_returned_and_refused_as_without(rows: Any) -> None:
    collector = Collector()
    traced = outcome(*world_with(Traces(collector, lambda: True, roots=False)), rows)
    plain = outcome(*world_with(None), rows)
    assert traced == plain
    assert all(each.ended is not None for each in collector.published)


@given(ROWS)
@settings(max_examples=30)
def test_with_roots_every_message_is_traced_until_one_cannot_be_published(rows: Any) -> None:
    collector = Collector()
    traced = outcome(*world_with(Traces(collector, lambda: True, roots=True)), rows)
    assert traced == outcome(*world_with(None), rows)
    reached = next((n for n, row in enumerate(rows) if row[0] == "unknown exchange"), len(rows))
    wanted = sum(row[1] != "not sampled" for row in rows[: reached + 1])
    assert sum(each.ended != "not published" for each in collector.published) == wanted


def test_how_a_publish_ended_is_told() -> None:
    collector = Collector()
    world, client = world_with(Traces(collector, lambda: True, roots=False))
    for where in ("q", "full", "full", "nowhere"):
        client.publish(1, where, b"x", properties=properties(CONTEXT, 1))
    world.turn()
    assert [each.ended for each in collector.published] == [
        "",
        "",
        "refused: a queue is full",
        "no queue wants it",
    ]


def test_a_delivery_is_told_with_the_trace_of_its_publish_and_others_are_not() -> None:
    collector = Collector()
    world, client = world_with(Traces(collector, lambda: True, roots=False))
    client.publish(1, "q", b"1", properties=properties(None, 1))
    client.publish(1, "q", b"2", properties=properties(CONTEXT, 1))
    client.send(1, BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    world.turn()
    [(trace, facts)] = collector.delivered
    assert trace is collector.published[0]
    assert (facts.queue, facts.tag, facts.redelivered, facts.size) == ("q", "c", False, 1)


def test_a_channel_that_is_not_picked_and_one_without_traces_publish_as_ever() -> None:
    for traces, kind in (
        (None, Publishing),
        (Traces(Collector(), lambda: False, roots=True), Publishing),
        (Traces(Collector(), lambda: True, roots=True), TracedPublishing),
    ):
        _, client = world_with(traces)
        client.publish(1, "q", b"x")
        [channel] = client.front_end.channels.values()
        assert type(channel._publishing) is kind


def test_only_so_many_messages_are_remembered_and_not_for_ever() -> None:
    traces, facts = Traces(Collector(), lambda: True, roots=True), Facts("", "q", 1, "c", "/")
    for seq in range(REMEMBERED_MAX + 50):
        traces.remember(seq, seq + 1, Collected("", facts), facts, 1000)
    assert len(traces.known) == REMEMBERED_MAX
    assert 49 not in traces.known and REMEMBERED_MAX + 49 in traces.known
    traces.remember(1 << 30, (1 << 30) + 2, Collected("", facts), facts, 1001 + REMEMBERED_MS)
    assert len(traces.known) == 2


def test_headers_that_are_no_text_are_no_context() -> None:
    collector = Collector()
    world, client = world_with(Traces(collector, lambda: True, roots=False))
    strange = encode_properties(Properties(headers={"traceparent": 7}))
    client.publish(1, "q", b"x", properties=strange)
    world.turn()
    assert world.queue("q").ready == 1
    assert collector.published == []
