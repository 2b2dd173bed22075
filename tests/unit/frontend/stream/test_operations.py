"""What can be asked over the stream protocol: writing, reading, following, marks, pins, permissions."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from unit.frontend.harness import Client
from unit.frontend.stream.client import Refused, StreamClient, a_put, connected, rows_of
from unit.node.world import NodeWorld

from tidemark.model.rows import Row, RowBatch, rows_digest
from tidemark.model.wiring import PermissionSpec, UserSpec
from tidemark.wire.amqp091.methods import BasicConsume, BasicQos, QueueDeclare
from tidemark.wire.amqp091.properties import Properties, encode_properties
from tidemark.wire.stream.frames import Kind
from tidemark.wire.stream.rows import decode_rows, encode_rows


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


@pytest.fixture
def client(world: NodeWorld) -> StreamClient:
    client = connected(world)
    client.ask("declare", stream="s")
    return client


def values(rows: list[Row]) -> dict[bytes | None, bytes]:
    return {row.key: row.value for row in rows if not row.tombstone}


def digest(rows: list[Row]) -> str:
    batch = RowBatch.build(rows)
    batch.sequences = struct.pack(f"<{len(rows)}q", *(row.seq for row in rows))
    return f"{rows_digest(batch):032x}"


def gone(key: bytes) -> Row:
    return Row(key, b"", tombstone=True)


# Streams -------------------------------------------------------------------------------------------------


def test_a_stream_is_declared_described_listed_and_deleted(world: NodeWorld, client: StreamClient) -> None:
    told = client.ask("declare", stream="t", arguments={"x-stream-key": "routing-key", "x-stream-shards": 4})
    assert (told["name"], told["key"], told["shards"], told["live"]) == ("t", "routing-key", 4, 0)
    assert told["arguments"]["x-stream-shards"] == 4
    assert [one["name"] for one in client.ask("list")["streams"]] == ["s", "t"]

    client.ask("delete", stream="t")
    assert [one["name"] for one in client.ask("list")["streams"]] == ["s"]
    with pytest.raises(Refused, match="no stream 't'"):
        client.ask("info", stream="t")


def test_the_name_of_a_stream_of_another_group_goes_with_its_number_and_through_a_front(
    world: NodeWorld, client: StreamClient
) -> None:
    world.broker.other_groups = {"fast": "chain"}
    told = client.ask("declare", stream="there", arguments={"x-group": "fast"})
    assert client.ask("list")["streams"][1]["number"] == told["number"] and told["group"] == "fast"
    with pytest.raises(Refused) as refused:
        client.ask("delete", stream="there")
    assert refused.value.code == "stream.elsewhere" and refused.value.header["number"] == told["number"]
    with pytest.raises(Refused, match="delete it through a front"):
        client.ask("delete", stream="there", stand_in=True, number=told["number"])

    fronted = StreamClient(world, front="f1")
    fronted.hello()
    world.broker.delete_queue(world.broker.vhosts["/"].queues["there"])
    again = client.ask("declare", stream="there", arguments={"x-group": "fast"})
    with pytest.raises(Refused, match="was deleted and made again"):
        fronted.ask("delete", stream="there", stand_in=True, number=told["number"])
    assert "there" in world.broker.vhosts["/"].queues
    fronted.ask("delete", stream="there", stand_in=True, number=again["number"])
    assert "there" not in world.broker.vhosts["/"].queues


def test_partitions_say_their_numbers(world: NodeWorld, client: StreamClient) -> None:
    world.broker.other_groups = {"fast": "chain"}
    made = client.ask("partition", stream="p", count=2)["partitions"]
    queues = world.broker.vhosts["/"].queues
    assert [one["number"] for one in made] == [queues["p-0"].number, queues["p-1"].number]


def test_a_queue_is_not_a_stream(world: NodeWorld, client: StreamClient) -> None:
    world.open().ask(1, QueueDeclare(queue="q", durable=True))
    with pytest.raises(Refused) as caught:
        client.ask("info", stream="q")
    assert caught.value.code == "stream.not-a-stream"


def test_a_declaration_is_answered_when_it_is_on_the_disk(world: NodeWorld, client: StreamClient) -> None:
    with world.slow_disk():
        number = client.send("declare", stream="t")
        assert client.inbox == []
    world.turn()
    assert client.answer(number).header["name"] == "t"


# Writing -------------------------------------------------------------------------------------------------


def test_a_put_is_answered_when_it_is_on_the_disk_and_seen_from_then_on(
    world: NodeWorld, client: StreamClient
) -> None:
    header, payload = a_put([Row(b"a", b"1"), Row(b"b", b"2")])
    with world.slow_disk():
        number = client.send("put", payload, stream="s", **header)
        assert client.inbox == []
        assert client.rows("s") == []
    world.turn()

    answer = client.answer(number).header
    assert answer["last"] == answer["first"] + 1
    assert answer["duplicate"] is False
    assert values(client.rows("s")) == {b"a": b"1", b"b": b"2"}


def test_what_was_answered_survives_a_crash_and_what_was_not_is_whole_or_gone(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    receipt = client.put("s", [Row(b"a", b"1")])
    with world.slow_disk():
        header, payload = a_put([Row(b"a", b"2"), Row(b"b", b"2")])
        number = client.send("put", payload, stream="s", **header)
        assert client.about(number) == []
        later = world.crash()

    again = connected(later)
    assert values(again.rows("s")) in ({b"a": b"1"}, {b"a": b"2", b"b": b"2"})
    told = again.ask("safe", history=receipt["history"], sequence=receipt["last"])
    assert told == {"safe": "yes"}


def test_puts_of_one_read_are_applied_in_their_order(world: NodeWorld, client: StreamClient) -> None:
    data, numbers = b"", []
    for value in range(5):
        header, payload = a_put([Row(b"k", b"%d" % value)])
        number, frame = client.request("put", payload, stream="s", **header)
        numbers.append(number)
        data += frame
    client.write(data)

    sequences = [client.answer(number).header["first"] for number in numbers]
    assert sequences == sorted(sequences)
    assert [row.value for row in client.rows("s")] == [b"4"]


def test_rows_may_have_headers_and_a_condition(client: StreamClient) -> None:
    properties = encode_properties(Properties(headers={"colour": "red"}))
    first = client.put("s", [Row(b"k", b"1", properties)])
    client.put("s", [Row(b"k", b"2", properties, expected=first["last"])])
    [row] = client.rows("s", columns=["key", "value", "headers"])
    assert (row.value, row.properties) == (b"2", properties)

    with pytest.raises(Refused, match="k") as caught:
        client.put("s", [Row(b"k", b"3", expected=first["last"])])
    assert caught.value.code == "stream.conflict"
    assert base64.b64decode(caught.value.header["key"]) == b"k"
    assert caught.value.header["expected"] == first["last"]
    assert [row.value for row in client.rows("s")] == [b"2"]


@pytest.mark.parametrize("properties", [b"\xff\xff", b"\x20\x00\x00\x00\x00\xff", b"\x00"])
def test_properties_that_nobody_could_read_are_refused(client: StreamClient, properties: bytes) -> None:
    with pytest.raises(Refused, match=r"protocol\.syntax"):
        client.put("s", [Row(b"k", b"v", properties)])
    assert client.rows("s") == []


def test_a_producer_that_sends_a_batch_twice_stores_it_once(client: StreamClient) -> None:
    assert client.ask("producer", producer="p") == {"last": 0}
    first = client.put("s", [Row(None, b"1")], producer="p", sequence=7)
    again = client.put("s", [Row(None, b"1")], producer="p", sequence=7)
    client.put("s", [Row(None, b"2")], producer="p", sequence=8)

    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert [row.value for row in client.rows("s")] == [b"1", b"2"]
    assert client.ask("producer", producer="p")["last"] == 8


def test_a_commit_puts_into_streams_and_queues_and_moves_marks_at_once(
    world: NodeWorld, client: StreamClient
) -> None:
    client.ask("declare", stream="t")
    amqp = world.open()
    amqp.ask(1, QueueDeclare(queue="q", durable=True))
    seen = client.put("s", [Row(b"old", b"1")])
    rows_s, payload_s = a_put([Row(b"a", b"1")])
    rows_t, payload_t = a_put([Row(b"b", b"2"), Row(b"c", b"3")])
    operations = [
        {"put": "s", "length": len(payload_s), **rows_s},
        {"publish": "", "key": "q", "headers": {"n": 1}, "length": 4},
        {"put": "t", "length": len(payload_t), **rows_t},
        {"mark": "s", "consumer": "me", "sequence": seen["last"]},
    ]

    answer = client.ask("commit", payload_s + b"body" + payload_t, operations=operations)

    assert answer["last"] > answer["first"]
    assert values(client.rows("s")) == {b"old": b"1", b"a": b"1"}
    assert values(client.rows("t")) == {b"b": b"2", b"c": b"3"}
    assert client.ask("mark", stream="s", consumer="me")["mark"]["sequence"] == seen["last"]
    assert world.queue("q").ready == 1


def test_a_commit_that_fails_in_one_part_changes_nothing(world: NodeWorld, client: StreamClient) -> None:
    rows, payload = a_put([Row(b"a", b"1")])
    bad, bad_payload = a_put([Row(b"b", b"1", expected=99)])
    operations = [
        {"put": "s", "length": len(payload), **rows},
        {"put": "s", "length": len(bad_payload), **bad},
    ]
    with pytest.raises(Refused, match=r"stream\.conflict"):
        client.ask("commit", payload + bad_payload, operations=operations)
    operations[1] = {"publish": "", "key": "nowhere", "length": 0}
    with pytest.raises(Refused, match="not-found"):
        client.ask("commit", payload, operations=operations)
    assert client.rows("s") == []


def test_amqp_and_the_stream_protocol_see_the_same_messages(world: NodeWorld, client: StreamClient) -> None:
    amqp: Client = world.open()
    amqp.publish(1, "s", b"from amqp")
    client.put("s", [Row(b"k", b"from here")])
    assert [row.value for row in client.rows("s")] == [b"from amqp", b"from here"]


# Reading -------------------------------------------------------------------------------------------------


def test_a_key_is_got_by_itself(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1"), Row(b"b", b"2")])
    last = client.put("s", [Row(b"a", b"3"), gone(b"b")])

    frame = client.answer(client.send("get", b"a", stream="s"))
    [row] = decode_rows(frame.header, frame.payload)
    assert (row.key, row.value, row.seq) == (b"a", b"3", last["first"])
    key = base64.b64encode(b"a").decode()
    assert client.ask("get", stream="s", key=key)["found"] is True
    assert client.ask("get", b"b", stream="s") == {"found": False}
    assert client.ask("get", b"c", stream="s") == {"found": False}


def test_a_snapshot_is_read_as_it_was_and_ends_in_a_marker_of_what_was_read(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1"), Row(b"b", b"2"), Row(None, b"3")])
    client.put("s", [gone(b"b")])
    number = client.snapshot("s")
    client.put("s", [Row(b"a", b"later")])

    rows, marker = client.read(snapshot=number)

    assert [(row.key, row.value, row.tombstone) for row in rows] == [
        (b"a", b"1", False),
        (None, b"3", False),
        (b"b", b"", True),
    ]
    assert (marker["count"], marker["tombstones"], marker["from"]) == (2, 1, 0)
    assert marker["hash"] == digest(rows)
    assert client.read(snapshot=number) == (rows, marker)
    assert client.read(snapshot=number, hash=False)[1]["hash"] is None


def test_a_range_of_a_snapshot_is_read_in_batches(client: StreamClient) -> None:
    answer = client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(100)])
    first = answer["first"]
    number = client.snapshot("s")

    frames = client.about(client.send("read", snapshot=number, batch_bytes=1000))
    assert len(frames) > 8
    positions = [frame.header["position"] for frame in frames[:-1]]
    assert positions == sorted(positions) and positions[-1] == answer["last"]
    rows, marker = client.read(snapshot=number, after=first + 9, until=first + 19)
    assert [row.key for row in rows] == [b"%03d" % i for i in range(10, 20)]
    assert (marker["from"], marker["to"], marker["count"]) == (first + 9, first + 19, 10)
    assert marker["hash"] == digest(rows)


def test_a_key_range_and_columns_are_pushed_down(client: StreamClient) -> None:
    client.put("s", [Row(b"%03d" % i, b"v") for i in range(20)])
    number = client.snapshot("s")
    keys = {"key_from": base64.b64encode(b"005").decode(), "key_to": base64.b64encode(b"008").decode()}

    rows, marker = client.read(snapshot=number, **keys, columns=["key"])

    assert [(row.key, row.value, row.seq) for row in rows] == [
        (b"005", b"", 0),
        (b"006", b"", 0),
        (b"007", b"", 0),
    ]
    assert marker["count"] == 3
    whole = client.read(snapshot=number, **keys)
    assert whole[1]["hash"] == marker["hash"] == digest(whole[0])


def test_shards_are_read_apart_and_together_give_everything(client: StreamClient) -> None:
    client.ask("declare", stream="t", arguments={"x-stream-shards": 3})
    client.put("t", [Row(b"%03d" % i, b"v") for i in range(60)])
    number = client.snapshot("t")
    parts = [client.read(snapshot=number, shards=[shard]) for shard in range(3)]

    keys = [{row.key for row in rows} for rows, _ in parts]
    assert all(20 > len(part) > 0 or len(part) >= 20 for part in keys)
    assert len(set.union(*keys)) == sum(len(part) for part in keys) == 60
    total = sum(int(marker["hash"], 16) for _, marker in parts) % (1 << 128)
    assert f"{total:032x}" == client.read(snapshot=number)[1]["hash"]


def test_a_read_with_credit_waits_for_more(client: StreamClient) -> None:
    client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(100)])
    number = client.send("read", snapshot=client.snapshot("s"), batch_bytes=1000, credit=1500)
    before = len(client.about(number))
    assert 1 <= before <= 2

    client.grant(number, 1500)
    assert 1 <= len(client.about(number)) <= 2
    client.grant(number, 1 << 20)
    *_, end = client.about(number)
    assert end.kind is Kind.ANSWER and end.header["marker"]["count"] == 100


def test_reads_of_one_connection_take_turns(world: NodeWorld, client: StreamClient) -> None:
    client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(200)])
    snapshot = client.snapshot("s")
    client.write(
        client.request("read", snapshot=snapshot, batch_bytes=1000)[1]
        + client.request("read", snapshot=snapshot, batch_bytes=1000)[1]
    )
    order = [frame.request for frame in client.inbox]
    assert order[:6] == [order[0], order[1]] * 3
    assert len(set(order)) == 2


def test_a_read_can_be_closed_and_so_can_its_snapshot(client: StreamClient) -> None:
    client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(100)])
    snapshot = client.snapshot("s")
    first = client.send("read", snapshot=snapshot, batch_bytes=1000, credit=1)
    second = client.send("read", snapshot=snapshot, batch_bytes=1000, credit=1)

    client.ask("close", request=first)
    assert client.about(first)[-1].header == {"closed": True}
    client.ask("close", snapshot=snapshot)
    end = client.about(second)[-1]
    assert end.kind is Kind.ERROR and end.header["error"] == "not-found"
    with pytest.raises(Refused, match="no snapshot"):
        client.read(snapshot=snapshot)


def test_a_diff_gives_what_changed_and_what_was_deleted(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1"), Row(b"b", b"1"), Row(b"c", b"1")])
    a = client.ask("snapshot", stream="s")["to"]
    client.put("s", [Row(b"a", b"2"), gone(b"b")])
    b = client.ask("snapshot", stream="s")["to"]

    *batches, end = client.about(client.send("diff", stream="s", a=a, b=b))
    assert [(row.key, row.tombstone) for row in rows_of(batches)] == [(b"a", False), (b"b", True)]
    assert (end.header["changed"], end.header["deleted"]) == (1, 1)


def test_a_pin_is_read_by_its_name_through_a_restart(world: NodeWorld, client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1")])
    pinned = client.ask("snapshot", stream="s", pin="p", lease_ms=3_600_000)
    client.put("s", [Row(b"a", b"2")])
    before = client.read(stream="s", pin="p")
    assert values(before[0]) == {b"a": b"1"}

    world = world.crash()
    client = connected(world)
    rows, marker = client.read(stream="s", pin="p")
    assert (rows, marker["hash"], marker["to"]) == (before[0], before[1]["hash"], pinned["to"])
    [pin] = client.ask("pins", stream="s")["pins"]
    assert (pin["pin"], pin["sequence"]) == ("p", pinned["to"]) and pin["bytes"] > 0
    client.ask("renew", stream="s", pin="p", lease_ms=1000)
    client.ask("release", stream="s", pin="p")
    with pytest.raises(Refused, match="no pin 'p'"):
        client.read(stream="s", pin="p")


# Following -------------------------------------------------------------------------------------------------


def test_a_follower_gets_what_comes_and_the_marker_of_each_snapshot(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1")])
    number = client.send("follow", stream="s", **{"from": "first"})
    start, *first, marker = client.about(number)
    assert start.header["after"] == 0
    assert values(rows_of(first)) == {b"a": b"1"}
    assert marker.header["marker"]["hash"] == digest(rows_of(first))

    answer = client.put("s", [Row(b"a", b"2"), Row(b"b", b"3")])
    *second, marker = client.about(number)
    assert [row.value for row in rows_of(second)] == [b"2", b"3"]
    assert marker.header["marker"]["to"] == answer["last"]
    assert marker.header["marker"]["count"] == 2

    client.ask("close", request=number)
    client.put("s", [Row(b"c", b"4")])
    assert [frame.header for frame in client.about(number)] == [{"closed": True}]


def test_a_follower_may_do_without_the_hash(client: StreamClient) -> None:
    number = client.send("follow", stream="s", hash=False)
    client.put("s", [Row(b"a", b"1"), Row(b"b", b"", tombstone=True)])
    marker = client.about(number)[-1].header["marker"]
    assert (marker["count"], marker["tombstones"], marker["hash"]) == (1, 1, None)


def test_a_follower_with_credit_gets_no_more_than_a_batch_over_it(client: StreamClient) -> None:
    number = client.send("follow", stream="s", credit=100, batch_bytes=1000, **{"from": "first"})
    client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(50)])
    got = len(rows_of(client.about(number)))
    assert 0 < got <= 12

    client.grant(number, 1 << 20)
    assert got + len(rows_of(client.about(number))) == 50


@pytest.mark.parametrize("start", ["next", "last", "mark", "position", "time"])
def test_a_follower_begins_where_it_says(world: NodeWorld, client: StreamClient, start: str) -> None:
    first = client.put("s", [Row(b"a", b"1")])
    world.now_ms += 5000
    client.put("s", [Row(b"b", b"2")])
    place = {"history": first["history"], "sequence": first["last"]}
    client.ask("mark", stream="s", consumer="me", **place)
    offset: Any = {
        "mark": {"mark": "me"},
        "position": place,
        "time": {"ms": world.now_ms - 1000},
    }.get(start, start)

    number = client.send("follow", stream="s", **{"from": offset})
    client.put("s", [Row(b"c", b"3")])

    expected = [b"3"] if start == "next" else [b"2", b"3"]
    assert [row.value for row in rows_of(client.about(number))] == expected


def test_a_follower_of_a_stream_that_is_deleted_is_told(client: StreamClient) -> None:
    number = client.send("follow", stream="s")
    client.about(number)
    client.ask("delete", stream="s")
    [end] = client.about(number)
    assert end.kind is Kind.ERROR and end.header["error"] == "not-found"


# Marks and news ----------------------------------------------------------------------------------------------


def test_marks_move_are_listed_and_reset(client: StreamClient) -> None:
    answer = client.put("s", [Row(b"a", b"1"), Row(b"b", b"2")])
    history = answer["history"]
    client.ask(
        "mark",
        stream="s",
        consumer="me",
        history=history,
        sequence=answer["first"],
        snapshot_end=answer["last"],
    )
    client.ask("register", stream="s", consumer="you", lease_ms=60_000)

    marks = {mark["consumer"]: mark for mark in client.ask("marks", stream="s")["marks"]}
    assert (marks["me"]["sequence"], marks["me"]["snapshot_end"]) == (answer["first"], answer["last"])
    assert marks["me"]["lease_until_ms"] is None and marks["you"]["lease_until_ms"] > 0
    client.ask("reset", stream="s", consumer="me", sequence=0)
    assert client.ask("mark", stream="s", consumer="me")["mark"]["sequence"] == 0
    client.ask("unregister", stream="s", consumer="you")
    assert [mark["consumer"] for mark in client.ask("marks", stream="s")["marks"]] == ["me"]
    assert client.ask("mark", stream="s", consumer="nobody") == {"mark": None}


def test_a_mark_is_answered_when_it_is_on_the_disk(world: NodeWorld, client: StreamClient) -> None:
    answer = client.put("s", [Row(b"a", b"1")])
    with world.slow_disk():
        number = client.send(
            "mark", stream="s", consumer="me", history=answer["history"], sequence=answer["last"]
        )
        assert client.inbox == []
    world.turn()
    assert "journal" in client.answer(number).header


def test_a_position_of_a_life_that_was_never_durable_is_refused(client: StreamClient) -> None:
    with pytest.raises(Refused) as caught:
        client.ask("mark", stream="s", consumer="me", history="77" * 16, sequence=5)
    assert caught.value.code == "stream.reset"
    with pytest.raises(Refused):
        client.snapshot("s", after={"history": "77" * 16, "sequence": 5})


def test_safe_answers_when_the_disk_has_it_or_the_time_is_over(
    world: NodeWorld, client: StreamClient
) -> None:
    header, payload = a_put([Row(b"k", b"v")])
    with world.slow_disk():
        client.send("put", payload, stream="s", **header)
        place = {"history": world.broker.streams.history.hex(), "sequence": world.node.journal.last_seq}
        assert client.ask("safe", **place) == {"safe": "not yet"}
        late = client.send("safe", wait_ms=1500, **place)
        waiting = client.send("safe", wait_ms=60_000, **place)
        assert client.about(late) == []
        world.now_ms += 1000
        world.node.tick(world.now_ms)
        assert client.about(late) == []
        world.now_ms += 1000
        world.node.tick(world.now_ms)
        world.turn()
        assert client.answer(late).header == {"safe": "not yet"}
        assert client.about(waiting) == []
    world.turn()
    assert client.answer(waiting).header == {"safe": "yes"}
    with pytest.raises(Refused, match="not known here"):
        client.ask("safe", history="77" * 16, sequence=1)


def test_heads_wait_for_news(world: NodeWorld, client: StreamClient) -> None:
    client.ask("declare", stream="t")
    heads = client.ask("heads", streams=["s", "t"])["streams"]
    assert heads["s"]["sequence"] == heads["t"]["sequence"] == 0
    after = {name: head["sequence"] for name, head in heads.items()}

    number = client.send("heads", streams=["s", "t"], after=after, wait_ms=60_000)
    assert client.about(number) == []
    answer = client.put("t", [Row(b"k", b"v")])
    told = client.answer(number).header["streams"]
    assert (told["t"]["sequence"], told["t"]["live"], told["s"]["sequence"]) == (answer["last"], 1, 0)

    late = client.send("heads", streams=["s"], after=after, wait_ms=1000)
    world.now_ms += 1000
    world.node.tick(world.now_ms)
    world.turn()
    assert client.answer(late).header["streams"]["s"]["sequence"] == 0


# Permissions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configure", "write", "read", "allowed"),
    [
        (".*", "", "", {"declare", "delete"}),
        ("", ".*", "", {"put"}),
        ("", "", ".*", {"snapshot", "follow", "mark", "get", "heads", "pin"}),
    ],
    ids=["configure", "write", "read"],
)
def test_permissions_are_those_of_queues(
    world: NodeWorld, client: StreamClient, configure: str, write: str, read: str, allowed: set[str]
) -> None:
    answer = client.put("s", [Row(b"a", b"1")])
    world.broker.put(UserSpec("bob", world.broker.password_hash("bob"), ()))
    world.broker.put(PermissionSpec("bob", "/", configure, write, read))
    bob = connected(world, user="bob")
    header, payload = a_put([Row(b"b", b"2")])
    place = {"history": answer["history"], "sequence": answer["last"]}
    requests: dict[str, Any] = {
        "put": ("put", payload, {"stream": "s", **header}),
        "snapshot": ("snapshot", b"", {"stream": "s"}),
        "pin": ("snapshot", b"", {"stream": "s", "pin": "p"}),
        "get": ("get", b"a", {"stream": "s"}),
        "mark": ("mark", b"", {"stream": "s", "consumer": "c", **place}),
        "heads": ("heads", b"", {"streams": ["s"]}),
        "follow": ("follow", b"", {"stream": "s"}),
        "declare": ("declare", b"", {"stream": "s"}),
        "delete": ("delete", b"", {"stream": "s"}),
    }
    done = set()
    for name, (op, data, fields) in requests.items():
        frames = bob.about(bob.send(op, data, **fields))
        if frames[0].kind is Kind.ERROR:
            assert frames[0].header["error"] == "access.refused", name
        else:
            done.add(name)
    assert done == allowed


def test_a_batch_of_rows_from_outside_is_checked_before_anything_is_written(client: StreamClient) -> None:
    header, parts = encode_rows(RowBatch.build([Row(b"a", b"value")]))
    payload = bytearray(b"".join(parts))
    payload[4:8] = struct.pack("<i", 1 << 30)
    with pytest.raises(Refused, match="keys: the offsets lead outside"):
        client.ask("put", bytes(payload), stream="s", **header)
    assert client.rows("s") == []


def test_amqp_consumers_of_a_stream_get_rows_that_were_put_here(
    world: NodeWorld, client: StreamClient
) -> None:
    amqp = world.open()
    amqp.ask(1, BasicQos(prefetch_count=10))
    amqp.ask(1, BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
    client.put("s", [Row(b"k", b"hello")])
    assert b"hello" in amqp.raw


def test_the_last_number_of_a_producer_is_told_when_it_is_on_the_disk(
    world: NodeWorld, client: StreamClient
) -> None:
    client.ask("declare", stream="p")
    header, payload = a_put([Row(b"k", b"v")])
    with world.slow_disk():
        put = client.send("put", payload, stream="p", producer="shop", sequence=3, **header)
        asked = client.send("producer", producer="shop")
        assert not client.about(asked)
    world.turn()
    assert client.answer(put).header["duplicate"] is False
    assert client.answer(asked).header["last"] == 3


def test_an_unregistered_consumer_is_gone_on_the_disk_before_a_second_try_is_answered(
    world: NodeWorld, client: StreamClient
) -> None:
    client.ask("declare", stream="p")
    client.ask("register", stream="p", consumer="c")
    with world.slow_disk():
        first = client.send("unregister", stream="p", consumer="c")
        second = client.send("unregister", stream="p", consumer="c")
        assert not client.about(first) and not client.about(second)
    world.turn()
    assert client.answer(first).header == client.answer(second).header


def test_who_goes_on_behind_the_last_row_gets_the_marker_that_he_missed(client: StreamClient) -> None:
    client.ask("declare", stream="p")
    done = client.put("p", [Row(b"k", b"v")])
    place = {"history": done["history"], "sequence": done["last"]}
    follow = client.send("follow", stream="p", **{"from": place})
    start, marker = client.about(follow)
    assert start.header["after"] == done["last"]
    assert (marker.header["marker"]["to"], marker.header["marker"]["count"]) == (done["last"], 0)


def test_a_consumer_that_registers_again_without_a_lease_keeps_the_one_it_has(client: StreamClient) -> None:
    client.ask("declare", stream="p")
    client.ask("register", stream="p", consumer="c", lease_ms=30 * 86_400_000)
    client.ask("register", stream="p", consumer="c")
    client.ask("register", stream="p", consumer="new")
    untils = {mark["consumer"]: mark["lease_until_ms"] for mark in client.ask("marks", stream="p")["marks"]}
    assert untils["c"] - untils["new"] == 23 * 86_400_000


def test_the_headers_of_a_row_fit_into_a_frame_of_amqp(client: StreamClient) -> None:
    client.ask("declare", stream="p")
    fits = encode_properties(Properties(headers={"a": "x" * 61_000}))
    client.put("p", [Row(b"k", b"v", properties=fits)])
    large = encode_properties(Properties(headers={"a": "x" * 61_500}))
    with pytest.raises(Refused, match="at most 61440 bytes"):
        client.put("p", [Row(b"k", b"v", properties=large)])
