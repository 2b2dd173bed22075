"""Operations that take several turns: cut, lag, truncate, and commits that copy rows or take messages."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from unit.frontend.stream.client import Refused, StreamClient, a_put, connected
from unit.node.world import NodeWorld

from tidemark.broker.streams import copies, cuts, takes, truncation
from tidemark.broker.streams.room import SLICE_BYTES
from tidemark.errors import DiskFull
from tidemark.model.rows import Row
from tidemark.wire.amqp091.methods import QueueDeclare
from tidemark.wire.stream.frames import Kind, encode_frame


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


@pytest.fixture
def client(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> StreamClient:
    """Every step is short, so that all of them take several turns."""
    for module, name in (
        (copies, "SLICE_ROWS"),
        (takes, "STEP_MESSAGES"),
        (truncation, "LOOK_MAX"),
        (cuts, "LOOK_MAX"),
    ):
        monkeypatch.setattr(module, name, 2)
    monkeypatch.setattr(cuts.Cutter.step, "__defaults__", (2,))
    client = connected(world)
    client.ask("declare", stream="s")
    client.ask("declare", stream="log", arguments={"x-stream-key": "log"})
    return client


def staged(client: StreamClient, count: int = 10) -> tuple[int, int]:
    done = client.put("log", [Row(b"k%d" % n, b"staged") for n in range(count)])
    return done["first"], done["last"]


def copy(*ranges: tuple[int, int], into: str = "s") -> dict[str, Any]:
    return {"copy": "log", "ranges": [list(each) for each in ranges], "into": into}


def values(client: StreamClient, stream: str = "s") -> dict[bytes | None, bytes]:
    return {row.key: row.value for row in client.rows(stream)}


def snapshots(world: NodeWorld, stream: str = "log") -> int:
    found: Any = world.queue(stream)
    count: int = found.stream().snapshots
    return count


def pieces(frame: Any) -> list[tuple[int, ...]]:
    assert frame.header["pieces"] == len(frame.payload) // 24
    return list(struct.iter_unpack("<3q", bytes(frame.payload)))


# Cut and lag ----------------------------------------------------------------------------------------------


def test_a_snapshot_and_a_pin_are_cut_over_several_turns(world: NodeWorld, client: StreamClient) -> None:
    first, last = staged(client)
    number = client.snapshot("log")
    client.ask("snapshot", stream="log", pin="p")
    expected = [(first + n * 3 + 2, 3, 18) for n in range(3)] + [(last, 1, 6)]
    assert pieces(client.answer(client.send("cut", snapshot=number, rows=3))) == expected
    assert pieces(client.answer(client.send("cut", stream="log", pin="p", rows=3))) == expected
    assert client.ask("lag", stream="log", after=first)["rows"] == 9
    assert client.ask("lag", stream="log", after=0) | {"history": ""} == {
        "history": "", "sequence": last, "rows": 10, "bytes": 60,
    }  # fmt: skip
    client.ask("close", snapshot=number)
    assert snapshots(world) == 1, "the pin's own view is open; of cut and lag nothing is"


def test_closing_a_snapshot_the_request_or_the_connection_ends_its_cut(
    world: NodeWorld, client: StreamClient
) -> None:
    staged(client)
    number = client.snapshot("log")
    cut, data = client.request("cut", snapshot=number, rows=1)
    close, more = client.request("close", snapshot=number)
    client.write(data + more)
    assert client.answer(close).header == {}
    with pytest.raises(Refused, match="was closed"):
        client.answer(cut)

    client.ask("snapshot", stream="log", pin="p")
    cut, data = client.request("cut", stream="log", pin="p", rows=1)
    close, more = client.request("close", request=cut)
    client.write(data + more)
    assert client.answer(cut).header == {"closed": True}
    before = snapshots(world)
    other = connected(world)
    _, data = other.request("cut", stream="log", pin="p", rows=1)
    other.push(data)
    world.lose(other)  # type: ignore[arg-type]
    world.turn()
    assert snapshots(world) == before


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rows": 0}, "at least 1"),
        ({"rows": "many"}, "'rows' must be a number"),
        ({"limit": 10**12}, "at most 100000 pieces"),
        ({"parts": 2, "bytes": 1}, "both were given"),
        ({"shards": [4]}, "shards of this stream"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_and_keeps_nothing_open(
    world: NodeWorld, client: StreamClient, fields: dict[str, Any], why: str
) -> None:
    staged(client)
    client.ask("snapshot", stream="log", pin="p")
    before = snapshots(world)
    with pytest.raises(Refused, match=why):
        client.ask("cut", stream="log", pin="p", **fields)
    assert snapshots(world) == before


def test_only_so_many_cuts_and_lags_are_under_way_at_once(world: NodeWorld, client: StreamClient) -> None:
    first, _ = staged(client)
    client.ask("snapshot", stream="log", pin="p")
    requests = [client.request("cut", stream="log", pin="p", rows=1) for _ in range(16)]
    requests += [
        client.request("lag", stream="log", after=first),
        client.request("lag", stream="log", after=0),
    ]
    client.write(b"".join(data for _, data in requests))
    *cuts_, late, known = [number for number, _ in requests]
    assert {client.answer(number).header["pieces"] for number in cuts_} == {10}
    with pytest.raises(Refused, match="16 cuts and lags of this connection are under way"):
        client.answer(late)
    assert client.answer(known).header["rows"] == 10, "what is known at once is no work"


# Truncation -----------------------------------------------------------------------------------------------


def test_a_truncation_is_answered_when_it_is_on_the_disk(world: NodeWorld, client: StreamClient) -> None:
    first, _ = staged(client)
    with world.slow_disk():
        number = client.send("truncate", stream="log", upto=first + 4)
        assert client.inbox == []
    world.turn()
    assert client.answer(number).header["ended"] == 5
    assert client.ask("purge", stream="log")["ended"] == 5
    assert client.rows("log") == []
    with pytest.raises(Refused, match="the newest sequence is"):
        client.ask("truncate", stream="log", upto=1 << 60)


def test_rows_that_were_put_behind_a_purge_stay(world: NodeWorld, client: StreamClient) -> None:
    staged(client)
    purge, data = client.request("purge", stream="log")
    header, payload = a_put([Row(b"new", b"v")])
    put, more = client.request("put", payload, stream="log", **header)
    client.write(data + more)
    assert client.answer(purge).header["ended"] == 10
    client.answer(put)
    assert values(client, "log") == {b"new": b"v"}


# Copies ---------------------------------------------------------------------------------------------------


def test_a_copy_is_answered_when_it_is_on_the_disk(world: NodeWorld, client: StreamClient) -> None:
    span = staged(client)
    with world.slow_disk():
        number = client.send("commit", operations=[copy(span)])
        assert client.inbox == []
    world.turn()
    answer = client.answer(number).header
    assert answer["last"] - answer["first"] == 9 and not answer["duplicate"]
    assert values(client) == {b"k%d" % n: b"staged" for n in range(10)}
    assert snapshots(world) == 0


def test_writes_behind_a_copy_wait_for_it_and_reads_do_not(world: NodeWorld, client: StreamClient) -> None:
    span = staged(client)
    requests = [client.request("commit", operations=[copy(span)], producer="p", sequence=1)]
    for value in (b"1", b"2"):
        header, payload = a_put([Row(b"k1", value)])
        requests.append(client.request("put", payload, stream="s", **header))
    requests.append(client.request("commit", operations=[copy(span)], producer="p", sequence=2))
    header, payload = a_put([Row(b"k2", b"last")])
    requests.append(client.request("put", payload, stream="s", **header))
    requests.append(client.request("info", stream="s"))
    client.push(b"".join(data for _, data in requests))
    assert client.front_end.statistics().state == "blocked"
    world.turn()

    *writes, info = [client.answer(number).header for number, _ in requests]
    assert info["live"] == 0, "a read is not held up"
    sequences = [write["first"] for write in writes]
    assert sequences == sorted(sequences)
    found = values(client)
    assert (found[b"k1"], found[b"k2"], found[b"k3"]) == (b"staged", b"last", b"staged")
    assert client.front_end.statistics().state == "open"


def test_writes_behind_a_copy_that_is_refused_go_on(world: NodeWorld, client: StreamClient) -> None:
    first, last = staged(client)
    client.put("s", [Row(b"x", b"between")])
    staged(client, 1)
    number, data = client.request("commit", operations=[copy((first, last + 2))])
    header, payload = a_put([Row(b"k", b"v")])
    put, more = client.request("put", payload, stream="s", **header)
    client.write(data + more)
    with pytest.raises(Refused, match="are not there"):
        client.answer(number)
    client.answer(put)
    assert values(client) == {b"x": b"between", b"k": b"v"}
    assert snapshots(world) == 0


def test_a_copy_that_is_closed_before_its_commit_stores_nothing(
    world: NodeWorld, client: StreamClient
) -> None:
    span = staged(client)
    number, data = client.request("commit", operations=[copy(span)])
    close, more = client.request("close", request=number)
    client.write(data + more)
    assert client.answer(number).header == {"closed": True}
    client.answer(close)
    assert values(client) == {} and snapshots(world) == 0


def test_a_copy_that_waits_for_the_disk_cannot_be_closed_any_more(
    world: NodeWorld, client: StreamClient
) -> None:
    span = staged(client)
    with world.slow_disk():
        number = client.send("commit", operations=[copy(span)])
        with pytest.raises(Refused, match="cannot be closed"):
            client.ask("close", request=number)
    world.turn()
    client.answer(number)
    assert len(values(client)) == 10


def test_a_goodbye_waits_for_a_copy_and_for_what_is_behind_it(world: NodeWorld, client: StreamClient) -> None:
    span = staged(client)
    number, data = client.request("commit", operations=[copy(span)])
    header, payload = a_put([Row(b"k1", b"behind")])
    put, more = client.request("put", payload, stream="s", **header)
    client.write(data + more + b"".join(encode_frame(Kind.GOODBYE, 0, {})))
    assert client.answer(number).header["first"] < client.answer(put).header["first"]
    assert [frame.kind for frame in client.inbox] == [Kind.GOODBYE] and client.inbox[0].header == {}
    assert values(connected(world))[b"k1"] == b"behind"


def test_a_connection_that_breaks_during_a_copy_leaves_nothing_behind(
    world: NodeWorld, client: StreamClient
) -> None:
    span = staged(client)
    other = connected(world)
    _, data = other.request("commit", operations=[copy(span)])
    other.push(data)
    assert snapshots(world) == 1
    world.lose(other)  # type: ignore[arg-type]
    world.turn()
    assert snapshots(world) == 0 and values(client) == {}


def test_a_copy_waits_while_publishers_must_and_is_refused_when_that_takes_too_long(
    world: NodeWorld, client: StreamClient
) -> None:
    span = staged(client)

    def watch(memory_bytes: int) -> None:
        world.node.watch(memory_bytes=memory_bytes, memory_high_bytes=100, disk_free_bytes=10**9)

    for seconds, is_stored in ((1, True), (31, False)):
        number, data = client.request("commit", operations=[copy(span)])
        client.push(data)
        watch(101)
        world.turn()
        assert client.inbox == []
        world.now_ms += seconds * 1000
        world.node.turn(world.now_ms)
        world.node.tick(world.now_ms)
        world.turn()
        watch(1)
        world.turn()
        if is_stored:
            assert client.answer(number).header["first"] > 0
        else:
            with pytest.raises(Refused) as caught:
                client.answer(number)
            assert caught.value.code == "broker.blocked"
    assert snapshots(world) == 0


def test_a_copy_that_finds_no_room_waits_for_it(
    world: NodeWorld, client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = staged(client)

    def full(need: int) -> None:
        raise DiskFull(path="here")

    with monkeypatch.context() as patch:
        patch.setattr(world.node.journal, "ensure", full)
        number = client.send("commit", operations=[copy(span)])
        assert client.inbox == []
    world.now_ms += 1000
    world.node.tick(world.now_ms)
    world.turn()
    assert client.answer(number).header["first"] > 0
    assert len(values(client)) == 10


def copying(world: NodeWorld, span: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> list[StreamClient]:
    """Three connections, each with a copy of its own under way; there is room for the slices of one."""
    room = world.node.broker.streams.room
    monkeypatch.setattr(room, "_bytes_max", SLICE_BYTES)
    clients = [connected(world) for _ in range(3)]
    for each in clients:
        each.push(each.request("commit", operations=[copy(span)])[1])
    return clients


def test_what_copies_of_all_connections_hold_is_bounded_and_all_are_done(
    world: NodeWorld, client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = staged(client, 50)
    room = world.node.broker.streams.room
    held = []
    original = room.holds

    def holds(reads: Any, size: int) -> None:
        original(reads, size)
        held.append(len([each for each in room._held.values() if each]))

    monkeypatch.setattr(room, "holds", holds)
    clients = copying(world, span, monkeypatch)
    world.turn()

    for each in clients:
        [answer] = each.inbox
        assert answer.header["last"] - answer.header["first"] == 49
    assert len(held) == 3 * 25 and max(held) == 1, "the others held nothing while one was read"
    assert room.bytes == 0 and not room._held and not room._waiting
    assert snapshots(world) == 0


def test_who_does_not_read_cannot_keep_the_room_of_copies_from_others(
    world: NodeWorld, client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = staged(client, 50)
    first, *others = copying(world, span, monkeypatch)
    first.front_end.writable(False)
    for _ in range(20):
        world.now_ms += 1000
        world.node.turn(world.now_ms)
        world.node.tick(world.now_ms)
        world.turn()
    for each in others:
        assert each.inbox[0].header["last"] - each.inbox[0].header["first"] == 49
    first.front_end.writable(True)
    world.turn()
    assert [frame.kind for frame in first.inbox] == [Kind.ERROR]
    assert world.node.broker.streams.room.bytes == 0


def test_a_copy_that_waits_too_long_for_its_turn_is_refused(
    world: NodeWorld, client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = staged(client, 50)
    room = world.node.broker.streams.room

    class Busy:
        def go_on(self) -> None:
            pass

    busy = Busy()
    room.join(busy)
    room.holds(busy, room._bytes_max)
    number = client.send("commit", operations=[copy(span)])
    world.turn()
    assert client.inbox == []
    for _ in range(31):
        world.now_ms += 1000
        world.node.turn(world.now_ms)
        world.node.tick(world.now_ms)
    world.turn()
    with pytest.raises(Refused, match=r"broker\.batch_bytes_max") as caught:
        client.answer(number)
    assert caught.value.code == "broker.blocked"
    room.leave(busy)
    assert room.bytes == 0 and snapshots(world) == 0


def test_what_a_copy_has_read_counts_as_what_its_connection_keeps(
    world: NodeWorld, client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = staged(client, 50)
    number, data = client.request("commit", operations=[copy(span)])

    def full(need: int) -> None:
        raise DiskFull(path="here")

    with monkeypatch.context() as patch:
        patch.setattr(world.node.journal, "ensure", full)
        client.push(data)
        world.turn()
        assert client.front_end.wants_read()
        object.__setattr__(client.front_end.config, "kept_bytes_max", 100)
        assert not client.front_end.wants_read(), "it holds 50 rows that wait for the disk"
    world.now_ms += 1000
    world.node.tick(world.now_ms)
    world.turn()
    client.answer(number)
    assert client.front_end.wants_read()


def test_a_copy_that_was_stored_is_a_duplicate_though_its_rows_have_ended(
    world: NodeWorld, client: StreamClient
) -> None:
    span = staged(client)
    first = client.ask("commit", operations=[copy(span)], producer="p", sequence=1)
    client.ask("purge", stream="log")
    again = client.ask("commit", operations=[copy(span)], producer="p", sequence=1)
    assert again == first | {"duplicate": True}
    with pytest.raises(Refused, match="are not there"):
        client.ask("commit", operations=[copy(span)], producer="p", sequence=2)
    assert client.ask("producer", producer="p")["last"] == 1


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"copy": "log", "into": "s"}, "protocol.syntax"),
        ({"copy": "log", "into": "s", "ranges": [[1]]}, "protocol.syntax"),
        ({"copy": "log", "into": "s", "ranges": [[1, "2"]]}, "protocol.syntax"),
        ({"copy": "log", "into": "s", "ranges": [[True, 2]]}, "protocol.syntax"),
        ({"copy": "log", "into": "s", "ranges": [[0, 1]]}, "precondition-failed"),
        ({"copy": "log", "into": "s", "ranges": [[1, 1 << 62]]}, "channel.content-too-large"),
        ({"copy": "log", "into": "s", "ranges": [[1, 1]] * 20_000}, "channel.content-too-large"),
        ({"copy": "log", "into": "nowhere", "ranges": [[1, 1]]}, "not-found"),
        ({"take": "q", "into": "s"}, "protocol.syntax"),
        ({"take": "q", "into": "s", "limit": 0}, "protocol.syntax"),
        ({"take": "q", "into": "s", "limit": 1 << 60}, "channel.content-too-large"),
        ({"take": "nowhere", "into": "s", "limit": 1}, "not-found"),
    ],
)
def test_a_copy_or_take_that_cannot_be_is_refused_at_once(
    world: NodeWorld, client: StreamClient, operation: dict[str, Any], code: str
) -> None:
    world.open().ask(1, QueueDeclare(queue="q", durable=True))
    newest = world.node.arena.next_seq
    with pytest.raises(Refused) as caught:
        client.ask("commit", operations=[operation])
    assert caught.value.code == code, caught.value
    assert world.node.arena.next_seq == newest and snapshots(world) == 0


# Takes ----------------------------------------------------------------------------------------------------


def test_messages_are_taken_over_several_turns_and_given_back_with_the_connection(
    world: NodeWorld, client: StreamClient
) -> None:
    world.open().ask(1, QueueDeclare(queue="q", durable=True))
    for n in range(10):
        client.ask("commit", b"%d" % n, operations=[{"publish": "", "key": "q", "length": 1}])
    queue = world.queue("q")
    other = connected(world)
    _, data = other.request("commit", operations=[{"take": "q", "into": "log", "limit": 10}])
    other.push(data)
    world.node.turn(world.now_ms)
    other.front_end.output()
    assert queue.acquired == 2
    world.lose(other)  # type: ignore[arg-type]
    world.turn()
    assert (queue.ready, queue.acquired) == (10, 0)

    answer = client.ask("commit", operations=[{"take": "q", "into": "log", "limit": 7}])
    assert answer["taken"] == [7]
    assert [row.value for row in client.rows("log")] == [b"%d" % n for n in range(7)]
    assert (queue.ready, queue.acquired) == (3, 0)
