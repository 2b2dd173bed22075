"""A chain whose tails alone show the rows of streams (`cluster.reads`): who refuses what, and what goes on everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, World
from unit.frontend.stream.client import Refused, StreamClient
from unit.frontend.stream.test_following import Pair, shown

from tidemark.frontend.services import MemberInfo, PeerInfo, Topology
from tidemark.wire.amqp091 import methods


def chain(*ready: str, tails: int = 1) -> Topology:
    """These are ready, in this order; a leads."""
    found = []
    for place, name in enumerate(ready):
        role = "head" if not place else "tail" if place >= max(1, len(ready) - tails) else "middle"
        where = f"10.0.0.{ord(name) - ord('a') + 1}"
        found.append(MemberInfo(name, "ready" if place else "active", role, f"{where}:5672", f"{where}:5671"))
    return Topology("chain", 7, "a", tuple(found))


class Chain(Pair):
    """`a` writes; `b` follows, at the place that the topology gives it."""

    def __init__(self, topology: Topology, reads: str = "tails") -> None:
        super().__init__(mode="chain", reads=reads)
        self.becomes(topology)
        self.put(("k", "1"))
        self.written("snapshot", stream="s", pin="p", lease_ms=60_000)
        self.catch_up()

    def becomes(self, topology: Topology) -> None:
        self.a.node.topology = self.b.node.topology = lambda: topology


SHOWING: list[tuple[str, dict[str, Any]]] = [
    ("get", {"stream": "s", "key": "aw=="}),
    ("snapshot", {"stream": "s"}),
    ("read", {"stream": "s", "pin": "p"}),
    ("diff", {"stream": "s", "a": 0}),
    ("follow", {"stream": "s", "from": "first"}),
]


@pytest.mark.parametrize(("op", "fields"), SHOWING, ids=[op for op, _ in SHOWING])
@pytest.mark.parametrize("place", ["head", "middle"])
def test_a_member_that_is_no_tail_shows_no_rows_and_names_the_tails(
    place: str, op: str, fields: dict[str, Any]
) -> None:
    """K-43: consumers read only from tails: at A or B an error that names them."""
    group = Chain(chain("a", "b", "c", "d", tails=2))
    client = group.writer if place == "head" else group.reader()

    with pytest.raises(Refused) as refused:
        client.ask(op, **fields)

    told = refused.value.header
    assert (told["error"], told["stream"], told["epoch"]) == ("stream.not-a-tail", "s", 7)
    assert told["member"] == ("a" if place == "head" else "b")
    assert told["tails"] == "c at 10.0.0.3:5672, d at 10.0.0.4:5672"
    assert told["tails"] in told["message"] and 'read_from="tail"' in told["message"]


@pytest.mark.parametrize(("op", "fields"), SHOWING, ids=[op for op, _ in SHOWING])
def test_a_tail_shows_everything(op: str, fields: dict[str, Any]) -> None:
    group = Chain(chain("a", "b"))
    reader = group.reader()

    request = reader.send(op, **fields)

    assert "error" not in reader.about(request)[0].header


def test_where_any_member_may_be_read_from_all_show_the_same() -> None:
    group = Chain(chain("a", "b", "c"), reads="any")
    assert shown(group.writer.rows("s")) == shown(group.reader().rows("s")) == {b"k": b"1"}


def test_the_last_member_of_a_chain_is_both_ends_of_it_and_shows_everything() -> None:
    group = Chain(chain("a", "b"))
    with pytest.raises(Refused, match=r"stream\.not-a-tail"):
        group.writer.snapshot("s")

    group.becomes(chain("a"))

    assert shown(group.writer.rows("s")) == {b"k": b"1"}


def test_what_shows_no_rows_is_answered_by_every_member() -> None:
    group = Chain(chain("a", "b", "c"))
    group.written("register", stream="s", consumer="c")
    group.written("mark", stream="s", consumer="c", sequence=1, history="aa" * 16)
    group.written("snapshot", stream="s", pin="q", lease_ms=60_000)
    group.catch_up()

    for client in (group.writer, group.reader()):
        client.ask("info", stream="s")
        client.ask("lag", stream="s", after=0)
        client.ask("cut", stream="s", pin="q", rows=1)
        assert client.ask("heads", streams=["s"])["streams"]["s"]["live"] == 1
        assert [one["pin"] for one in client.ask("pins", stream="s")["pins"]] == ["p", "q"]
    assert [one["sequence"] for one in group.writer.ask("marks", stream="s")["marks"]] == [1]


def test_a_pin_is_made_at_the_head_and_read_at_a_tail() -> None:
    group = Chain(chain("a", "b"))
    number = group.written("snapshot", stream="s", pin="q", lease_ms=60_000)["snapshot"]
    group.catch_up()

    with pytest.raises(Refused, match=r"stream\.not-a-tail"):
        group.writer.read(snapshot=number)
    assert shown(group.reader().read(stream="s", pin="q")[0]) == {b"k": b"1"}


def test_a_snapshot_that_a_tail_has_opened_is_read_to_its_end_though_another_is_the_tail_now() -> None:
    group = Chain(chain("a", "b"))
    reader = group.reader()
    number = reader.snapshot("s")

    group.becomes(chain("a", "b", "c"))

    assert shown(reader.read(snapshot=number)[0]) == {b"k": b"1"}
    with pytest.raises(Refused, match=r"stream\.not-a-tail"):
        reader.snapshot("s")


def test_what_the_leader_does_not_have_either_is_not_looked_for_at_a_tail() -> None:
    group = Chain(chain("a", "b"))
    with pytest.raises(Refused, match="not-found"):
        group.writer.ask("get", stream="none", key="aw==")
    with pytest.raises(Refused, match="not-found: stream 's' has no pin"):
        group.writer.read(stream="s", pin="none")


def test_a_client_over_tls_is_told_where_tails_speak_tls() -> None:
    group = Chain(chain("a", "b"))
    client = StreamClient(group.a)
    client.front_end.peer = PeerInfo("127.0.0.1", 1, tls=True)
    client.hello()
    with pytest.raises(Refused) as refused:
        client.snapshot("s")
    assert refused.value.header["tails"] == "b at 10.0.0.2:5671"


# AMQP, which the head alone serves ----------------------------------------------------------------------------------


def test_a_consumer_of_a_stream_over_amqp_is_told_where_the_tails_are_and_queues_are_consumed_as_ever() -> (
    None
):
    world = World()
    world.tails_only, world.topology = True, lambda: chain("a", "b")  # type: ignore[assignment,method-assign]
    client = world.open()
    client.ask(1, methods.BasicQos(prefetch_count=10))
    client.ask(1, methods.QueueDeclare(queue="q"))
    stream = methods.QueueDeclare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    client.ask(1, stream)
    client.publish(1, "s", b"stored", properties=PERSISTENT)

    taken = client.ask(1, methods.BasicConsume(queue="q"))
    refused = client.ask(1, methods.BasicConsume(queue="s"))

    assert isinstance(taken, methods.BasicConsumeOk)
    assert isinstance(refused, methods.ChannelClose) and refused.reply_code == 406
    assert "b at 10.0.0.2:5672" in refused.reply_text
    world.topology = lambda: chain("a")  # type: ignore[method-assign]
    client.ask(2, methods.ChannelOpen())
    client.ask(2, methods.BasicQos(prefetch_count=10))
    assert isinstance(
        client.ask(2, methods.BasicConsume(queue="s", arguments={"x-stream-offset": "next"})),
        methods.BasicConsumeOk,
    )
