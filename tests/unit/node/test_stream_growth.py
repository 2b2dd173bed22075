"""A stream grows while it is read by shards: over AMQP and over the stream protocol nobody misses anything."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import Client
from unit.frontend.stream.client import Refused, StreamClient, connected
from unit.node.world import NodeWorld

from tidemark.model.rows import Row
from tidemark.wire.amqp091.methods import BasicAck, BasicConsume, BasicConsumeOk, BasicQos

KEYS = [b"%03d" % number for number in range(200)]


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


@pytest.fixture
def client(world: NodeWorld) -> StreamClient:
    client = connected(world)
    client.ask("declare", stream="s", arguments={"x-stream-shards": 2})
    client.put("s", [Row(key, key) for key in KEYS])
    return client


def grow(client: StreamClient, shards: int) -> None:
    client.ask("declare", stream="s", arguments={"x-stream-shards": shards})


def consume(world: NodeWorld, *shards: int, prefetch: int = 1000) -> Client:
    client = world.open()
    client.ask(1, BasicQos(prefetch_count=prefetch))
    arguments: dict[str, Any] = {
        "x-stream-offset": "mark",
        "x-stream-consumer": "c",
        "x-stream-commit": "each",
        "x-stream-shards": list(shards),
    }
    client.send(1, BasicConsume(queue="s", consumer_tag="t", arguments=arguments))
    assert client.read() == BasicConsumeOk(consumer_tag="t")
    return client


def keys_of(client: StreamClient, **what: Any) -> list[bytes | None]:
    return [row.key for row in client.read(**what)[0]]


@pytest.mark.parametrize("shards", [3, 4])
def test_a_consumer_that_began_before_the_growth_marks_only_what_it_was_given(
    world: NodeWorld, client: StreamClient, shards: int
) -> None:
    slow, quick = consume(world, 0, prefetch=3), consume(world, 1)
    given = set(slow.bodies())
    assert len(given) == 3
    slow.send(1, BasicAck(delivery_tag=2, multiple=True))
    grow(client, shards)
    done = quick.bodies()
    given |= set(done)
    quick.send(1, BasicAck(delivery_tag=len(done), multiple=True))
    world.rest()
    for each in (slow, quick):
        world.lose(each)

    again = [consume(world, shard) for shard in range(shards)]
    resumed = [set(each.bodies()) for each in again]
    assert given.union(*resumed) == set(KEYS)
    assert not set(done) & resumed[shards - 1]


def test_a_pinned_snapshot_is_read_by_the_shards_that_its_reader_was_told_of(
    world: NodeWorld, client: StreamClient
) -> None:
    pinned = client.ask("snapshot", stream="s", pin="p", lease_ms=3_600_000)
    assert pinned["shards"] == 2
    halves = [keys_of(client, stream="s", pin="p", shards=[shard]) for shard in range(2)]
    assert sorted(halves[0] + halves[1]) == KEYS  # type: ignore[operator, type-var]

    grow(client, 4)

    for again in (client, connected(world.crash())):
        assert [keys_of(again, stream="s", pin="p", shards=[shard]) for shard in range(2)] == halves
        assert again.ask("snapshot", stream="s", pin="p", lease_ms=3_600_000)["shards"] == 2
        assert [pin["shards"] for pin in again.ask("pins", stream="s")["pins"]] == [2]
        with pytest.raises(Refused, match="shards of this stream, which are 0 to 1"):
            again.read(stream="s", pin="p", shards=[2])
        assert again.ask("snapshot", stream="s")["shards"] == 4


def test_a_read_of_a_shard_that_is_under_way_when_the_stream_grows_gives_all_of_that_shard(
    client: StreamClient,
) -> None:
    number = client.snapshot("s")
    wanted = keys_of(client, snapshot=number, shards=[1])
    request = client.send("read", snapshot=number, shards=[1], batch_bytes=30, credit=30)
    grow(client, 4)
    client.grant(request, 1 << 30)
    *_, end = client.about(request)
    assert end.header["marker"]["count"] == len(wanted)
    assert keys_of(client, snapshot=number, shards=[1]) == wanted


@pytest.mark.parametrize("by_commit", [False, True])
def test_a_mark_that_is_moved_says_of_how_many_shards_it_speaks(
    client: StreamClient, by_commit: bool
) -> None:
    follow = client.send("follow", stream="s", shards=[1], **{"from": "first"})
    start, *_ = client.about(follow)
    assert start.header["shards"] == 2
    grow(client, 4)
    head = client.ask("heads", streams=["s"])["streams"]["s"]
    place = {"consumer": "c", "history": head["history"], "sequence": head["sequence"]}

    def move(**more: Any) -> None:
        if by_commit:
            client.ask("commit", operations=[{"mark": "s", **place, **more}])
        else:
            client.ask("mark", stream="s", **place, **more)

    move(shard=3, of=4)
    assert marked(client) == [0, 0, 0, head["sequence"]]
    move(shard=1, of=start.header["shards"])
    assert marked(client) == [0, 0, head["sequence"], head["sequence"]]
    with pytest.raises(Refused, match="never had 5 shards"):
        move(shard=1, of=5)
    with pytest.raises(Refused, match="field 'of' must be a number from 1"):
        move(shard=1, of=0)


def marked(client: StreamClient) -> list[int]:
    [mark] = client.ask("marks", stream="s")["marks"]
    shards: list[int] = mark["shards"]
    return shards
