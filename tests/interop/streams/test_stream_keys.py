"""Streams over AMQP 0-9-1, by ordinary clients: keys, markers and shards.

What RabbitMQ's streams do too runs on both; what only Tidemark has (keys, marks, markers, numbered producers,
transactions that are one step) asks for `tidemark_only` or for a broker of its own.
"""

from __future__ import annotations

from random import Random

import pika
import pytest
from helpers.amqp import Connect, channel_refused, eventually, put
from interop.streams.harness import Declare, contents, declare, delete_key, markers, put_keyed, reading
from pika.adapters.blocking_connection import BlockingChannel

# Keys and tombstones ---------------------------------------------------------------------------------


def test_only_the_newest_message_of_a_key_is_read(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-2, K-13, M1: a consumer that was away reads each key once."""
    stream = new_stream(key="header:key")
    for round_ in range(50):
        for key in ("a", "b", "c"):
            put_keyed(channel, stream, key, b"%s%d" % (key.encode(), round_))
    put_keyed(channel, stream, "b", b"b-last")
    inbox = reading(channel, stream)
    assert inbox.settle() == [b"a49", b"c49", b"b-last"]
    keys = [each.properties.headers["x-stream-key"] for each in inbox.received]
    assert keys == ["a", "c", "b"]


@pytest.mark.parametrize("rule", ["routing-key", "message-id", "header:id", "none"])
def test_the_key_comes_from_where_the_stream_says(
    channel: BlockingChannel, new_stream: Declare, name: str, rule: str, tidemark_only: None
) -> None:
    """K-2: routing key, message-id, a header, or none."""
    stream = new_stream(key=rule)
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_bind(stream, name)
    for number in range(4):
        key = f"k{number % 2}"
        properties = pika.BasicProperties(message_id=key, headers={"id": key})
        channel.basic_publish(name, key, b"%d" % number, properties)
    inbox = reading(channel, stream)
    expected = [b"0", b"1", b"2", b"3"] if rule == "none" else [b"2", b"3"]
    assert inbox.settle() == expected
    keys = [each.properties.headers.get("x-stream-key") for each in inbox.received]
    assert keys == ([None] * 4 if rule == "none" else ["k0", "k1"])


def test_a_message_without_what_the_key_is_made_of_is_never_buried(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-91: it is its own key."""
    stream = new_stream(key="header:key")
    put(channel, stream, b"1", b"2")
    put_keyed(channel, stream, "k", b"3")
    inbox = reading(channel, stream)
    assert inbox.settle() == [b"1", b"2", b"3"]
    assert "x-stream-key" not in inbox.received[0].properties.headers


def test_a_key_that_is_no_text_comes_as_bytes(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key")
    channel.basic_publish("", stream, b"x", pika.BasicProperties(headers={"key": b"\xff\x00"}))
    channel.basic_publish("", stream, b"y", pika.BasicProperties(headers={"key": 17}))
    inbox = reading(channel, stream)
    inbox.wait(2)
    assert [each.properties.headers["x-stream-key"] for each in inbox.received] == [b"\xff\x00", "17"]


def test_a_tombstone_deletes_its_key_and_is_told(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-83: a delete reaches those who have the key, and who comes later knows as much."""
    stream = new_stream(key="header:key")
    put_keyed(channel, stream, "a", b"1")
    put_keyed(channel, stream, "b", b"2")
    follower = reading(channel, stream)
    follower.wait(2)
    delete_key(channel, stream, "a")
    follower.wait(3)
    assert contents(follower) == {"b": b"2"}
    tombstone = follower.received[-1]
    assert tombstone.body == b""
    assert tombstone.properties.headers["x-tombstone"] is True
    late = reading(channel, stream)
    late.settle()
    assert contents(late) == {"b": b"2"}
    assert "x-tombstone" not in late.received[0].properties.headers


# Markers --------------------------------------------------------------------------------------------


def test_a_boundary_is_told_as_an_empty_message(
    channel: BlockingChannel, connect: Connect, new_stream: Declare, tidemark_only: None
) -> None:
    """K-18, X-32: from, to, how many, how many deletes, and a hash of what was between."""
    stream = new_stream(key="header:key")
    transaction = connect().channel()
    transaction.tx_select()
    for number in range(5):
        put_keyed(transaction, stream, f"k{number}", b"%d" % number)
    transaction.tx_commit()
    inbox = reading(channel, stream, markers=True)
    marker = inbox.wait(6)[-1]
    headers = marker.properties.headers
    offsets = [each.properties.headers["x-stream-offset"] for each in inbox.received[:5]]
    assert headers["x-stream-marker"] is True
    assert marker.body == b""
    assert (headers["x-stream-count"], headers["x-stream-tombstones"]) == (5, 0)
    assert headers["x-stream-from"] < offsets[0]
    assert headers["x-stream-to"] >= offsets[-1]
    assert headers["x-stream-history"] == inbox.received[0].properties.headers["x-stream-history"]
    assert len(bytes.fromhex(headers["x-stream-hash"])) == 16

    delete_key(transaction, stream, "k0")
    put_keyed(transaction, stream, "k9", b"9")
    transaction.tx_commit()
    inbox.wait(9)
    second = markers(inbox)[1]
    assert (second["x-stream-count"], second["x-stream-tombstones"]) == (1, 1)
    assert second["x-stream-from"] == headers["x-stream-to"]
    assert second["x-stream-hash"] != headers["x-stream-hash"]


def test_two_readers_of_the_same_snapshot_get_the_same_hash(
    channel: BlockingChannel, connect: Connect, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, *[b"%d" % n for n in range(50)])
    found = []
    for prefetch in (3, 100):
        other = connect().channel()
        inbox = reading(other, stream, prefetch=prefetch, markers=True)
        while not markers(inbox):
            other.connection.process_data_events(0.05)
            other.basic_ack(0, multiple=True)
        found.append(markers(inbox)[0])
        assert len([each for each in inbox.received if each.body]) == found[-1]["x-stream-count"]
    assert found[0] == found[1]


def test_money_is_neither_made_nor_lost_at_any_marker(
    channel: BlockingChannel, connect: Connect, new_stream: Declare, tidemark_only: None
) -> None:
    """S-18, K-19, K-35: transfers are transactions over two keys; whoever stops at a marker sees whole ones only."""
    stream, dice = new_stream(key="header:key", shards=4), Random(7)
    accounts = {f"a{n}": 100 for n in range(8)}
    bank = connect().channel()
    bank.tx_select()
    for account, balance in accounts.items():
        put_keyed(bank, stream, account, b"%d" % balance)
    bank.tx_commit()

    readers = [reading(connect().channel(), stream, prefetch=prefetch, markers=True) for prefetch in (2, 50)]
    checked = 0
    known: list[dict[str, int]] = [{} for _ in readers]
    seen = [0 for _ in readers]

    def look(quiet_s: float = 0.0) -> None:
        nonlocal checked
        for index, inbox in enumerate(readers):
            inbox.channel.connection.process_data_events(quiet_s)
            while seen[index] < len(inbox.received):
                delivery = inbox.received[seen[index]]
                seen[index] += 1
                headers = delivery.properties.headers
                if headers.get("x-stream-marker"):
                    assert sum(known[index].values()) == 800
                    checked += 1
                else:
                    known[index][headers["x-stream-key"]] = int(delivery.body)
                inbox.channel.basic_ack(delivery.tag)

    for number in range(150):
        source, target = dice.sample(sorted(accounts), 2)
        amount = dice.randrange(1, 20)
        accounts[source] -= amount
        accounts[target] += amount
        for account in (source, target):
            put_keyed(bank, stream, account, b"%d" % accounts[account])
        if number % 10 == 9:
            bank.tx_rollback()
            accounts[source] += amount
            accounts[target] -= amount
        else:
            bank.tx_commit()
        look()

    def all_know() -> bool:
        look(0.02)
        return all(each == accounts for each in known)

    eventually(all_know)
    assert checked > 10


# Shards ---------------------------------------------------------------------------------------------


def test_shards_part_the_keys_and_a_consumer_may_take_some(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key", shards=3)
    for number in range(60):
        put_keyed(channel, stream, f"k{number}", b"%d" % number)
    parts = []
    for shards in ([0], [1], [2]):
        inbox = reading(channel, stream, shards=shards)
        inbox.settle()
        parts.append(set(inbox.bodies))
    assert all(parts)
    assert sorted(map(int, parts[0] | parts[1] | parts[2])) == list(range(60))
    assert sum(map(len, parts)) == 60
    both = reading(channel, stream, shards=[0, 2])
    assert set(both.settle()) == parts[0] | parts[2]
    assert both.bodies == sorted(both.bodies, key=int)


def test_shards_grow_by_declaring_again_and_never_shrink(
    connect: Connect, channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key", shards=2)
    for number in range(40):
        put_keyed(channel, stream, f"k{number}", b"%d" % number)
    declare(channel, stream, key="header:key", shards=4)
    declare(channel, stream, key="header:key")
    got = []
    for shard in range(4):
        got += reading(channel, stream, shards=[shard]).settle()
    assert sorted(map(int, got)) == list(range(40))
    with channel_refused(406):
        declare(connect().channel(), stream, key="header:key", shards=2)
