"""A connection of the stream protocol: hello and goodbye, bad frames, heartbeats, back-pressure, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from unit.frontend.harness import Client
from unit.frontend.stream.client import Refused, StreamClient, a_put, connected
from unit.node.world import NodeWorld

from tidemark.errors import DiskFull
from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.opening import Opening
from tidemark.frontend.services import Login, PeerInfo, Verdict
from tidemark.frontend.stream.connection import FRAMES_A_TURN, UNREAD_FACTOR, StreamConnection
from tidemark.model.rows import Row
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.stream.frames import HEAD, PREAMBLE, Kind, encode_frame


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


def settings(world: NodeWorld, **changes: Any) -> None:
    """Connections that come from now on have these."""
    config = world.node.settings
    world.node.settings = replace(config, stream=replace(config.stream, **changes))


def goodbye(client: StreamClient) -> dict[str, Any]:
    """The last words of the broker; the connection is closed behind them."""
    assert client.front_end.closed
    last = client.inbox[-1]
    assert last.kind is Kind.GOODBYE
    return last.header


# Which protocol ----------------------------------------------------------------------------------------


def test_the_first_bytes_decide_which_protocol_a_connection_speaks(world: NodeWorld) -> None:
    assert isinstance(connected(world).front_end, StreamConnection)
    assert isinstance(world.open().front_end, Amqp091)
    assert {type(one) for one in world.node.front_ends} == {StreamConnection, Amqp091}


@pytest.mark.parametrize("header", [PREAMBLE, PROTOCOL_HEADER])
def test_the_first_bytes_may_come_one_by_one(world: NodeWorld, header: bytes) -> None:
    front_end = world.node.connect(PeerInfo("127.0.0.1", 1))
    client = world.clients[front_end] = Client(world, front_end)  # type: ignore[arg-type]
    for at in range(len(header)):
        client.write(header[at : at + 1])

    kind = StreamConnection if header is PREAMBLE else Amqp091
    assert isinstance(client.front_end, kind)
    assert not client.front_end.closed


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"TID/", b"\x00" * 8])
def test_what_speaks_neither_is_told_amqp_and_closed(world: NodeWorld, start: bytes) -> None:
    front_end = world.node.connect(PeerInfo("127.0.0.1", 1))
    client = world.clients[front_end] = StreamClient.__new__(StreamClient)  # type: ignore[assignment]
    said: list[bytes] = []
    client.hear = said.append  # type: ignore[method-assign]
    front_end.receive(memoryview(start))
    world.turn()

    assert said == [PROTOCOL_HEADER]
    assert all(one.closed for one in world.node.front_ends)


def test_another_version_is_told_ours_and_closed(world: NodeWorld) -> None:
    front_end = world.node.connect(PeerInfo("127.0.0.1", 1))
    assert front_end.receive(memoryview(b"TIDE\x00\x00\x02\x00 and more")) == 17
    assert front_end.output() == [PREAMBLE]
    assert front_end.closed


def test_who_says_nothing_is_dropped_in_time(world: NodeWorld) -> None:
    front_end = world.node.connect(PeerInfo("127.0.0.1", 1))
    assert isinstance(front_end, Opening)
    assert front_end.statistics().state == "opening"
    world.node.tick(world.now_ms + 10_000)
    assert not front_end.closed
    world.node.tick(world.now_ms + 10_001)
    assert front_end.closed


# Hello and goodbye -------------------------------------------------------------------------------------


def test_hello_is_answered_with_who_we_are(world: NodeWorld) -> None:
    client = StreamClient(world)
    told = client.hello(client={"name": "test", "version": "1"})

    assert told["node"] == "tidemark"
    assert told["frame_max"] == 64 << 20
    assert bytes.fromhex(told["history"]) == world.broker.streams.history
    now = client.front_end.statistics()
    assert (now.protocol, now.user, now.vhost, now.state) == ("TIDE 1.0", "guest", "/", "open")
    assert now.client_properties == {"name": "test", "version": "1"}
    assert now.bytes_in > 100 and now.bytes_out > 100


def test_a_refused_login_is_told_so_and_no_more(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(front_end: Any, login: Login) -> None:
        world.node.verdict(front_end, Verdict(None, "the password is wrong"))

    monkeypatch.setattr(world, "login", refuse)
    client = StreamClient(world)
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="wrong")

    assert goodbye(client)["error"] == "access.login-refused"
    assert "password" not in goodbye(client)["message"]


def test_a_virtual_host_that_is_not_there_ends_the_connection(world: NodeWorld) -> None:
    client = StreamClient(world)
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="guest", vhost="nowhere")
    assert goodbye(client)["error"] == "protocol.not-allowed"


@pytest.mark.parametrize("op", ["put", "hello"])
def test_nothing_may_be_asked_before_hello_is_answered(
    world: NodeWorld, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "login", lambda *_: None)
    client = StreamClient(world)
    client.push(PREAMBLE)
    if op == "hello":
        client.send("hello", user="guest", password="guest")
    client.send(op, stream="s")
    assert goodbye(client)["error"] == "protocol.command"


def test_a_stranger_cannot_send_large_frames(world: NodeWorld) -> None:
    client = StreamClient(world)
    client.push(PREAMBLE)
    client.write(HEAD.pack(1 << 20, Kind.REQUEST, 0, 0, 1, 0))
    assert "over the 65536" in goodbye(client)["message"]


def test_a_login_that_takes_too_long_is_given_up(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "login", lambda *_: None)
    client = StreamClient(world)
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="guest")
    world.node.tick(world.now_ms + 10_001)
    assert client.front_end.closed


def test_a_goodbye_is_answered_when_what_was_put_is_on_the_disk(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    header, payload = a_put([Row(b"k", b"v")])
    with world.slow_disk():
        number = client.send("put", payload, stream="s", **header)
        client.say(Kind.GOODBYE)
        assert client.inbox == []
        assert not client.front_end.closed
    world.turn()

    assert client.answer(number).header["first"] > 0
    assert goodbye(client) == {}


def test_a_goodbye_does_not_wait_for_ever(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    header, payload = a_put([Row(b"k", b"v")])
    with world.slow_disk():
        client.send("put", payload, stream="s", **header)
        client.say(Kind.GOODBYE)
        world.node.tick(world.now_ms + 10_001)
        assert client.front_end.closed


def test_a_shutdown_says_goodbye_with_the_reason(world: NodeWorld) -> None:
    client = connected(world)
    client.front_end.shutdown(320, "the broker is shutting down")
    world.turn()
    assert goodbye(client) == {
        "error": "connection.forced",
        "message": "the broker is shutting down",
        "reason": "the broker is shutting down",
    }


def test_a_connection_that_ends_leaves_nothing_open(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    client.put("s", [Row(b"k", b"v")])
    client.snapshot("s")
    client.send("follow", stream="s", **{"from": "first"})
    client.send("heads", streams=["s"], wait_ms=1000, after={"s": 1 << 40})
    stream = world.broker.vhosts["/"].queues["s"]
    assert stream._snapshots and len(stream._watchers) == 2  # type: ignore[attr-defined]

    world.lose(client)  # type: ignore[arg-type]

    assert not stream._snapshots and not stream._watchers  # type: ignore[attr-defined]
    assert not world.broker.sessions


# Bad frames --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 16,
        HEAD.pack(20, Kind.REQUEST, 0, 0, 1, 8) + b"not JSON",
        b"".join(encode_frame(Kind.ANSWER, 1, {})),
        b"".join(encode_frame(Kind.REQUEST, 0, {"op": "list"})),
        b"".join(encode_frame(Kind.CREDIT, 1, {"bytes": "many"})),
        b"".join(encode_frame(Kind.CREDIT, 1, {"bytes": -5})),
    ],
    ids=["no frame", "no JSON", "an answer", "request 0", "credit in words", "credit below zero"],
)
def test_a_peer_that_breaks_the_protocol_is_told_and_closed(world: NodeWorld, data: bytes) -> None:
    client = connected(world)
    client.write(data)
    assert goodbye(client)["error"].startswith("protocol.")


def test_a_request_number_in_use_ends_the_connection(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    number = client.send("follow", stream="s")
    client.write(b"".join(encode_frame(Kind.REQUEST, number, {"op": "list"})))
    assert "in use" in goodbye(client)["message"]


@pytest.mark.parametrize(
    ("op", "fields", "words"),
    [
        ("dance", {}, "there is no operation 'dance'"),
        (7, {}, "there is no operation 7"),
        ("info", {}, "info: field 'stream' is missing"),
        ("info", {"stream": 7}, "info: field 'stream' must be text, not 7"),
        ("info", {"stream": "x" * 256}, "at most 255 bytes"),
        ("info", {"stream": "nothing"}, "no stream 'nothing'"),
        ("mark", {"stream": "s", "consumer": "c", "sequence": 1}, "mark: field 'history' is missing"),
        ("reset", {"stream": "s", "consumer": "c", "sequence": True}, "'sequence' must be a number"),
        ("reset", {"stream": "s", "consumer": "c", "sequence": -1}, "a number from 0"),
        ("mark", {"stream": "s", "consumer": "c", "sequence": 1, "history": "xy"}, "32 hex digits"),
        ("read", {"snapshot": 99}, "no snapshot 99"),
        ("read", {"stream": "s", "pin": "p"}, "no pin 'p'"),
        ("snapshot", {"stream": "s", "at": "noon"}, "snapshot: field 'at' must be a number"),
        ("snapshot", {"stream": "s", "after": 7}, "snapshot: field 'after' must be an object"),
        ("follow", {"stream": "s", "from": "noon"}, "first, last, next or an object"),
        ("follow", {"stream": "s", "shards": [5]}, "shards of this stream"),
        ("follow", {"stream": "s", "columns": ["smell"]}, "there is no column 'smell'"),
        ("follow", {"stream": "s", "columns": ["key", "key"]}, "different columns"),
        ("follow", {"stream": "s", "encoding": "xml"}, "'rows' or 'arrow'"),
        ("get", {"stream": "s", "key": "***"}, "get: field 'key' must be base64"),
        ("close", {"request": 77}, "request 77 is not open"),
        ("commit", {"operations": [7]}, "a list of objects"),
        ("commit", {"operations": [{"put": "s", "length": 100}]}, "at most the 0 bytes"),
        ("commit", {"operations": [{}]}, "'put', 'publish', 'mark', 'copy' or 'take'"),
        (
            "mark",
            {"stream": "s", "consumer": "c", "history": "00" * 16, "sequence": 0, "shard": 0},
            "must say 'of' how many",
        ),
        (
            "commit",
            {"operations": [{"mark": "s", "consumer": "c", "sequence": 0, "shard": 0}]},
            "The stream may have grown since",
        ),
        ("snapshot", {"stream": "s", "at": {"sequence": 1}}, "field 'history' is missing"),
        ("diff", {"stream": "s", "a": {"history": "x", "sequence": 1}, "b": 2}, "32 hex digits"),
        ("truncate", {"stream": "s"}, "truncate: field 'upto' is missing"),
        ("lag", {"stream": "s", "after": -1}, "lag: field 'after' must be a number"),
        ("put", {"stream": "s", "count": 1, "columns": []}, "column 'values' is missing"),
        ("put", {"stream": "s", "encoding": "arrow"}, "the Arrow stream has no schema"),
        ("heads", {}, "a list of streams"),
        ("safe", {"history": "00" * 16, "sequence": 1, "replicas": 3}, "this node is alone"),
    ],
)
def test_a_request_that_cannot_be_done_is_an_error_with_a_sentence(
    world: NodeWorld, op: str, fields: dict[str, Any], words: str
) -> None:
    client = connected(world)
    client.ask("declare", stream="s")

    with pytest.raises(Refused, match=words.replace("*", r"\*")):
        client.ask(op, **fields)
    assert client.ask("info", stream="s")["name"] == "s"


def test_an_exception_that_nobody_expected_ends_only_its_connection(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = connected(world), connected(world)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidemark.frontend.stream.requests.Requests.perform", fail)
    client.send("list")
    monkeypatch.undo()

    assert goodbye(client)["error"] == "internal"
    assert ("error", "unexpected exception") in world.notes
    assert other.ask("list") == {"streams": []}


# Limits and waiting ------------------------------------------------------------------------------------


def test_a_connection_has_so_many_requests_open_and_no_more(world: NodeWorld) -> None:
    settings(world, requests_max=2)
    client = connected(world)
    client.ask("declare", stream="s")
    client.send("follow", stream="s")
    client.send("follow", stream="s")

    with pytest.raises(Refused, match="2 requests of this connection are open"):
        client.ask("list")
    assert not client.front_end.closed


def test_a_connection_has_so_many_snapshots_open_and_no_more(world: NodeWorld) -> None:
    settings(world, snapshots_max=2)
    client = connected(world)
    client.ask("declare", stream="s")
    first = client.snapshot("s")
    client.snapshot("s")

    with pytest.raises(Refused, match=r"2 snapshots open .*; close one first"):
        client.snapshot("s")
    client.ask("close", snapshot=first)
    assert client.snapshot("s") == 3


def test_a_ping_is_answered_with_what_it_brought(world: NodeWorld) -> None:
    client = connected(world)
    client.write(b"".join(encode_frame(Kind.PING, 7, {"a": 1}, [b"payload"])))
    [pong] = client.about(7)
    assert (pong.kind, pong.header, bytes(pong.payload)) == (Kind.PONG, {"a": 1}, b"payload")


def test_we_ping_when_nothing_was_sent_for_a_while_and_drop_nobody_for_silence(world: NodeWorld) -> None:
    client = connected(world)
    world.node.tick(world.now_ms + 59_999)
    world.turn()
    assert client.heard(Kind.PING) == []

    for _ in range(10):
        world.now_ms += 60_000
        world.node.tick(world.now_ms)
        world.turn()
    assert len(client.heard(Kind.PING)) == 10
    assert not client.front_end.closed


def test_an_operator_may_have_silent_clients_dropped(world: NodeWorld) -> None:
    settings(world, silent_s_max=5)
    client = connected(world)
    world.node.tick(world.now_ms + 5001)
    world.turn()
    assert goodbye(client)["message"] == "nothing was heard for 5 s"


def test_who_does_not_read_its_answers_is_read_no_further(world: NodeWorld) -> None:
    settings(world, output_bytes_max=4096)
    client = connected(world)
    client.front_end.writable(False)
    asked = 0
    while client.front_end.wants_read():
        client.push(client.request("list")[1])
        asked += 1
        assert asked < 1000
    assert client.front_end.output() == []
    assert client.inbox == []

    client.front_end.writable(True)
    world.turn()
    assert len(client.inbox) == asked
    assert client.front_end.wants_read()


def test_requests_that_come_together_are_taken_only_while_there_is_room_for_answers(world: NodeWorld) -> None:
    settings(world, output_bytes_max=4096)
    client = connected(world)
    client.ask("declare", stream="s")
    client.put("s", [Row(b"k", b"x" * 10_000)])
    numbers, frames = zip(*(client.request("get", b"k", stream="s") for _ in range(100)), strict=True)

    client.front_end.writable(False)
    client.push(b"".join(frames))
    waiting = client.front_end
    assert isinstance(waiting, StreamConnection)
    assert waiting._out_bytes < UNREAD_FACTOR * 4096 + 11_000
    assert not waiting.wants_read()

    client.front_end.writable(True)
    world.turn()
    assert [client.answer(number).header["found"] for number in numbers] == [True] * 100
    assert client.front_end.wants_read()


def test_many_frames_at_once_are_taken_over_several_turns_in_their_order(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    puts = []
    for number in range(3 * FRAMES_A_TURN):
        header, payload = a_put([Row(b"k", b"%d" % number)])
        puts.append(client.request("put", payload, stream="s", **header))
    half = puts[-1][1][:20]
    client.push(b"".join(data for _, data in puts[:-1]) + half)
    assert client.front_end.statistics().bytes_in
    assert not client.front_end.wants_read()
    # A read that had begun before may still bring something.
    client.push(puts[-1][1][20:])
    world.turn()

    lasts = [client.answer(number).header["last"] for number, _ in puts]
    assert lasts == sorted(lasts)
    [row] = client.rows("s")
    assert row.value == b"%d" % (len(puts) - 1)


@pytest.mark.parametrize("op", [[1], {}, None, 7, True])
def test_an_operation_that_is_no_text_is_refused_and_the_connection_goes_on(
    world: NodeWorld, op: Any
) -> None:
    client = connected(world)
    client.write(b"".join(encode_frame(Kind.REQUEST, 77, {"op": op})))
    with pytest.raises(Refused, match="there is no operation"):
        client.answer(77)
    assert client.ask("list") == {"streams": []}


HALF = "\ud800"
"""Half of a surrogate pair: JSON can escape it, nothing can store it."""


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("declare", {"stream": HALF}),
        ("declare", {"stream": "t", "arguments": {HALF: 1}}),
        ("declare", {"stream": "t", "arguments": {"a": [{"b": HALF}]}}),
        ("register", {"stream": "s", "consumer": HALF}),
        ("snapshot", {"stream": "s", "pin": HALF}),
        ("producer", {"producer": HALF}),
        ("commit", {"operations": [{"publish": "", "key": HALF, "length": 0}]}),
        ("commit", {"operations": [{"mark": "s", "consumer": HALF, "sequence": 1}]}),
    ],
)
def test_text_that_is_not_unicode_is_refused(world: NodeWorld, op: str, fields: dict[str, Any]) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    with pytest.raises(Refused, match="not Unicode"):
        client.ask(op, **fields)
    assert [one["name"] for one in client.ask("list")["streams"]] == ["s"]


@pytest.mark.parametrize("field", ["user", "password", "vhost"])
def test_a_login_with_text_that_is_not_unicode_is_told_so(world: NodeWorld, field: str) -> None:
    client = StreamClient(world)
    client.push(PREAMBLE)
    client.send("hello", **{"user": "guest", "password": "guest", "vhost": "/", field: HALF})
    assert "not Unicode" in goodbye(client)["message"]


def test_names_that_only_look_odd_are_taken(world: NodeWorld) -> None:
    client = connected(world)
    for name in ("😀", "\\ud800", "naïve"):
        assert client.ask("declare", stream=name)["name"] == name


def test_tables_are_nested_only_so_deep(world: NodeWorld) -> None:
    client = connected(world)
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    with pytest.raises(Refused, match="nested more than 16 deep"):
        client.ask("declare", stream="s", arguments={"a": deep})
    with pytest.raises(Refused, match="nested more than 16 deep"):
        client.ask("commit", operations=[{"publish": "", "key": "q", "headers": {"a": deep}, "length": 0}])


def test_what_a_client_says_about_itself_is_kept_only_as_far_as_it_is_plain(world: NodeWorld) -> None:
    client = StreamClient(world)
    facts = {
        "name": "x" * 1000,
        "version": "1",
        "deep": [[[]]],
        "big": 1 << 100,
        **{f"n{n}": n for n in range(99)},
    }
    client.hello(client=facts)
    kept = client.front_end.statistics().client_properties
    assert kept["name"] == "x" * 255 and kept["version"] == "1"
    assert "deep" not in kept and "big" not in kept
    assert len(kept) <= 32


def test_a_put_brings_only_so_many_rows_and_parts(world: NodeWorld) -> None:
    settings(world, put_rows_max=10, put_slow_rows_max=3, put_parts_max=4)
    client = connected(world)
    client.ask("declare", stream="s")
    client.put("s", [Row(b"%d" % n, b"v") for n in range(10)])
    with pytest.raises(Refused, match=r"10 rows .stream.put_rows_max.*send it in parts"):
        client.put("s", [Row(b"%d" % n, b"v") for n in range(11)])
    client.put("s", [Row(b"a%d" % n, b"v", expected=0) for n in range(3)])
    with pytest.raises(Refused, match=r"3 rows with headers or conditions .stream.put_slow_rows_max"):
        client.put("s", [Row(b"b%d" % n, b"v", expected=0) for n in range(4)])
    with pytest.raises(Refused, match="put_slow_rows_max"):
        client.put("s", [Row(b"b%d" % n, b"v", properties=b"\0\0") for n in range(4)])
    moves = [{"mark": "s", "consumer": "c", "sequence": 1}]
    client.ask("commit", operations=moves * 4)
    with pytest.raises(Refused, match=r"4 operations and record batches .stream.put_parts_max"):
        client.ask("commit", operations=moves * 5)
    assert len(client.rows("s")) == 13


def test_works_that_find_nothing_to_send_take_turns_too(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    client.ask("declare", stream="t")
    waiting = [
        client.send("heads", streams=["s", "t"], after={"s": 1 << 60, "t": 1 << 60}, wait_ms=60_000)
        for _ in range(9)
    ]
    connection = client.front_end
    assert isinstance(connection, StreamConnection)
    client.put("s", [Row(b"k", b"v")])
    assert not connection._ready  # it is no news to them, so they are not even woken
    assert not any(client.about(number) for number in waiting)


# Publishers must wait ------------------------------------------------------------------------------------


@pytest.fixture
def blocked(world: NodeWorld) -> Iterator[StreamClient]:
    settings(world, kept_bytes_max=10_000)
    client = connected(world)
    client.ask("declare", stream="s")
    world.node.watch(memory_bytes=101, memory_high_bytes=100, disk_free_bytes=10**9)
    return client


def test_puts_wait_in_their_order_while_publishers_must(world: NodeWorld, blocked: StreamClient) -> None:
    numbers = []
    for value in (b"1", b"2", b"3"):
        header, payload = a_put([Row(b"k", value)])
        numbers.append(blocked.send("put", payload, stream="s", **header))
    assert blocked.inbox == []
    assert blocked.front_end.statistics().state == "blocked"
    assert blocked.rows("s") == []

    world.node.watch(memory_bytes=1, memory_high_bytes=100, disk_free_bytes=10**9)
    world.turn()

    sequences = [blocked.answer(number).header["first"] for number in numbers]
    assert sequences == sorted(sequences)
    assert [row.value for row in blocked.rows("s")] == [b"3"]


def test_a_put_that_waits_too_long_is_refused(world: NodeWorld, blocked: StreamClient) -> None:
    header, payload = a_put([Row(b"k", b"v")])
    number = blocked.send("put", payload, stream="s", **header)
    world.node.tick(world.now_ms + 29_999)
    world.turn()
    assert blocked.inbox == []

    world.node.tick(world.now_ms + 30_000)
    world.turn()
    with pytest.raises(Refused, match="low on memory") as caught:
        blocked.answer(number)
    assert caught.value.code == "broker.blocked"
    world.node.watch(memory_bytes=1, memory_high_bytes=100, disk_free_bytes=10**9)
    world.turn()
    assert blocked.rows("s") == []


def test_what_waits_holds_only_so_much_before_the_socket_is_not_read(
    world: NodeWorld, blocked: StreamClient
) -> None:
    header, payload = a_put([Row(b"k", b"x" * 6000)])
    blocked.send("put", payload, stream="s", **header)
    assert blocked.front_end.wants_read()
    blocked.send("put", payload, stream="s", **header)
    assert not blocked.front_end.wants_read()

    world.node.watch(memory_bytes=1, memory_high_bytes=100, disk_free_bytes=10**9)
    world.turn()
    assert blocked.front_end.wants_read()


def test_a_long_header_counts_as_what_waits(world: NodeWorld, blocked: StreamClient) -> None:
    header, payload = a_put([Row(b"k", b"v")])
    blocked.send("put", payload, stream="s", more=[[]] * 4000, **header)
    assert not blocked.front_end.wants_read()

    world.node.watch(memory_bytes=1, memory_high_bytes=100, disk_free_bytes=10**9)
    world.turn()
    assert [row.value for row in blocked.rows("s")] == [b"v"]


def test_puts_that_wait_longer_than_a_goodbye_are_refused_before_the_end(
    world: NodeWorld, blocked: StreamClient
) -> None:
    header, payload = a_put([Row(b"k", b"v")])
    number = blocked.send("put", payload, stream="s", **header)
    blocked.say(Kind.GOODBYE)
    world.node.tick(world.now_ms + 10_001)
    world.turn()
    with pytest.raises(Refused, match=r"publishers must wait|memory"):
        blocked.answer(number)
    assert "took too long" in goodbye(blocked)["message"]


def test_a_put_that_finds_no_room_waits_for_it(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connected(world)
    client.ask("declare", stream="s")

    def full(need: int) -> None:
        raise DiskFull(path="here")

    header, payload = a_put([Row(b"k", b"v")])
    with monkeypatch.context() as patch:
        patch.setattr(world.node.journal, "ensure", full)
        number = client.send("put", payload, stream="s", **header)
        second = client.send("put", payload, stream="s", **header)
        assert client.inbox == []
    world.node.tick(world.now_ms + 1000)
    world.turn()

    assert client.answer(number).header["first"] < client.answer(second).header["first"]


def test_when_the_store_fails_nothing_is_answered_as_safe(world: NodeWorld) -> None:
    client = connected(world)
    client.ask("declare", stream="s")
    header, payload = a_put([Row(b"k", b"v")])
    with world.slow_disk():
        client.send("put", payload, stream="s", **header)
        client.front_end.store_failed("the disk is gone")
        world.carry()
    assert goodbye(client)["message"] == "the disk is gone"
    assert client.heard(Kind.ANSWER) == []
