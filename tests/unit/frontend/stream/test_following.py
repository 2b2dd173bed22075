"""Readers at a member that does not lead: what it shows, what it refuses, and for what it waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from unit.frontend.harness import START_MS
from unit.frontend.stream.client import Refused, StreamClient, a_put
from unit.node.world import NodeWorld

from tidemark.config import load
from tidemark.frontend.services import FrontEnd, Login, MemberInfo, PeerInfo, Topology, Verdict
from tidemark.model.peers import Ends, Log
from tidemark.model.rows import Row
from tidemark.node import Node
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG
from tidemark.wire.stream.frames import READER_PREAMBLE, Kind

FLAGS = {"broker.scrypt_log2_n": "10", "limits.disk_free_bytes_min": "0", "stream.behind_s_max": "3"}
TOPOLOGY = Topology(
    "chain",
    7,
    "a",
    (
        MemberInfo("a", "active", "head", "10.0.0.1:5672", "10.0.0.1:5671"),
        MemberInfo("b", "ready", "tail", "10.0.0.2:5672"),
    ),
)


class MemberWorld(NodeWorld):
    """A node that follows, until it is told to lead. Fits `node.Outside`."""

    def __init__(self, name: str, **flags: str) -> None:
        settings = load(
            {**FLAGS, "node.name": name, **{f"cluster.{key}": text for key, text in flags.items()}}
        )
        self.disk = SimDisk()
        self.now_ms = START_MS
        self.notes: list[tuple[str, str]] = []
        self.clients: dict[FrontEnd, Any] = {}
        self.node = Node(replace(settings, store=CONFIG), self.disk, self, Random(name).randbytes)
        self.node.topology = lambda: TOPOLOGY
        self.node.follow(self.now_ms)
        self.broker = self.node.broker

    def login(self, front_end: FrontEnd, login: Login) -> None:
        self.node.verdict(front_end, Verdict(login.user))

    def turn(self) -> None:
        for _ in range(100):
            self.node.turn(self.now_ms)
            self.carry()
            self.node.completed(self.now_ms)
            if not self.node.touched_front_ends:
                return
        raise AssertionError("the world does not come to rest")

    @property
    def ends(self) -> Ends:
        return self.node.store.durable_ends

    def lead(self, history: str) -> None:
        self.node.take_over(history, self.now_ms)
        self.turn()
        self.node.safe = self.ends
        self.node.serve(self.now_ms)
        self.settle()

    def settle(self) -> Ends:
        """It leads and needs nobody: what it has is complete."""
        self.turn()
        self.node.complete(self.ends)
        self.turn()
        return self.ends

    def adopt_from(self, other: MemberWorld) -> None:
        """Take what the other one has; nothing is called complete by it."""
        for log in Log:
            while units := other.node.store.units_after(log, self.node.store.ends[log], 1 << 20):
                for unit in units:
                    self.node.adopt(log, unit.payload)
        self.turn()

    def complete(self, upto: Ends) -> None:
        self.node.at(self.now_ms)
        self.node.complete(upto.least(self.ends))
        self.turn()

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            self.node.tick(self.now_ms)
            self.broker.streams.tick(self.now_ms)
            self.turn()


class Pair:
    """`a` leads, `b` follows."""

    def __init__(self, **flags: str) -> None:
        self.a, self.b = MemberWorld("a", **flags), MemberWorld("b", **flags)
        self.a.lead("aa" * 16)
        self.writer = StreamClient(self.a)
        self.writer.hello()
        self.written("declare", stream="s", arguments={"x-stream-key": "none"})
        self.catch_up()

    def written(self, op: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Done and complete where it is written; `b` has not heard of it."""
        number = self.writer.send(op, payload, **fields)
        self.a.settle()
        return self.writer.answer(number).header

    def catch_up(self) -> None:
        ends = self.a.settle()
        self.b.adopt_from(self.a)
        self.b.complete(ends)

    def put(self, *rows: tuple[str, str]) -> dict[str, Any]:
        header, payload = a_put(as_rows(rows))
        return self.written("put", payload, stream="s", **header)

    def reader(self) -> StreamClient:
        client = StreamClient(self.b)
        client.push(READER_PREAMBLE)
        client.ask("hello", user="guest", password="guest", vhost="/")
        return client


def as_rows(rows: Iterable[tuple[str, str]]) -> list[Row]:
    return [Row(key.encode(), value.encode()) for key, value in rows]


def shown(rows: Iterable[Row]) -> dict[bytes, bytes]:
    return {bytes(row.key or b""): bytes(row.value) for row in rows}


@pytest.fixture
def pair() -> Pair:
    return Pair()


# What it shows -----------------------------------------------------------------------------------------------------


def test_a_member_that_follows_shows_what_is_complete_and_no_more(pair: Pair) -> None:
    """By default (`cluster.reads`) a consumer may read at any ready member: each shows what all of them have."""
    pair.put(("k", "1"))
    pair.catch_up()
    pair.put(("k", "2"), ("l", "1"))
    pair.b.adopt_from(pair.a)
    reader = pair.reader()

    before = shown(reader.rows("s"))
    pair.b.complete(pair.a.ends)

    assert before == {b"k": b"1"}
    assert shown(reader.rows("s")) == {b"k": b"2", b"l": b"1"}


def test_its_snapshots_have_the_markers_of_the_leader(pair: Pair) -> None:
    for number in range(50):
        pair.put((f"k{number % 7}", str(number)))
    pair.catch_up()
    reader = pair.reader()

    _, there = pair.writer.read(snapshot=pair.writer.snapshot("s"))
    _, here = reader.read(snapshot=reader.snapshot("s"))

    assert here == there
    assert here["count"] == 7


def test_an_open_snapshot_stays_as_it_is_while_more_comes_and_goes_when_it_is_closed(pair: Pair) -> None:
    pair.put(("k", "1"))
    pair.catch_up()
    reader = pair.reader()
    number = reader.snapshot("s")
    for value in range(2, 30):
        pair.put(("k", str(value)))
    pair.catch_up()
    stream = next(iter(pair.b.broker.streams._streams().values()))

    rows, _ = reader.read(snapshot=number)
    held = stream.held
    reader.ask("close", snapshot=number)
    pair.b.broker.streams.let_go(pair.a.broker.streams.promise(1 << 60))
    pair.catch_up()

    assert shown(rows) == {b"k": b"1"}
    assert held > 0
    assert stream.held == 0


def test_a_snapshot_that_nobody_reads_expires(pair: Pair) -> None:
    pair.put(("k", "1"))
    pair.catch_up()
    reader = pair.reader()
    number = reader.snapshot("s")

    pair.b.pass_s(pair.b.broker.config.snapshot_idle_s + 1)

    with pytest.raises(Refused, match=r"stream\.pin-expired"):
        reader.read(snapshot=number)


def test_a_pin_of_the_leader_is_read_by_its_name(pair: Pair) -> None:
    pair.put(("k", "1"))
    pair.written("snapshot", stream="s", pin="p", lease_ms=60_000)
    pair.put(("k", "2"))
    pair.catch_up()

    rows, marker = pair.reader().read(stream="s", pin="p")

    assert shown(rows) == {b"k": b"1"}
    assert marker == pair.writer.read(stream="s", pin="p")[1]


def test_who_follows_here_is_given_what_becomes_complete(pair: Pair) -> None:
    reader = pair.reader()
    request = reader.send("follow", b"", stream="s", **{"from": "first"})
    reader.about(request)

    pair.put(("k", "1"))
    pair.b.adopt_from(pair.a)
    early = reader.about(request)
    pair.b.complete(pair.a.ends)
    frames = reader.about(request)

    assert early == []
    assert [frame.header.get("count") for frame in frames] == [1, None]
    assert frames[0].header["history"] == frames[1].header["marker"]["history"] == "aa" * 16


def test_who_waits_for_heads_is_told_when_something_is_complete(pair: Pair) -> None:
    reader = pair.reader()
    head = reader.ask("heads", streams=["s"])["streams"]["s"]["sequence"]
    request = reader.send("heads", streams=["s"], after={"s": head}, wait_ms=10_000)

    receipt = pair.put(("k", "1"))
    pair.catch_up()

    assert reader.answer(request).header["streams"]["s"]["sequence"] == receipt["last"]


# What it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("put", {"stream": "s", "count": 0, "columns": []}),
        ("commit", {"operations": []}),
        ("snapshot", {"stream": "s", "pin": "p"}),
        ("release", {"stream": "s", "pin": "p"}),
        ("mark", {"stream": "s", "consumer": "c"}),
        ("register", {"stream": "s", "consumer": "c"}),
        ("truncate", {"stream": "s", "upto": 1}),
        ("purge", {"stream": "s"}),
        ("declare", {"stream": "t"}),
        ("delete", {"stream": "s"}),
        ("producer", {"producer": "p"}),
        ("follow", {"stream": "s", "from": {"mark": "c"}}),
    ],
)
def test_whatever_only_the_leader_can_do_is_refused_with_where_to_go(
    pair: Pair, op: str, fields: dict[str, Any]
) -> None:
    """K-42: producers write to the head only; elsewhere the error names it. X-25: what was asked, leader, address and epoch."""
    reader = pair.reader()

    with pytest.raises(Refused) as refused:
        reader.ask(op, **fields)

    told = refused.value.header
    assert (told["error"], told["leader"], told["address"], told["epoch"]) == (
        "cluster.not-here", "a", "10.0.0.1:5672", 7,
    )  # fmt: skip
    assert "connect to a at 10.0.0.1:5672" in told["message"]


# For what it waits -------------------------------------------------------------------------------------------------


def seen(receipt: dict[str, Any]) -> dict[str, Any]:
    return {"journal": {receipt["history"]: receipt["last"]}}


def test_a_request_waits_until_what_its_client_has_seen_is_here(pair: Pair) -> None:
    """K-58: no silent wrong read by a member that is behind."""
    reader = pair.reader()
    receipt = pair.put(("k", "1"))

    request = reader.send("get", b"k", stream="s", seen=seen(receipt))
    early = reader.about(request)
    pair.catch_up()

    assert early == []
    assert reader.answer(request).header["found"]


def test_who_waits_too_long_is_told_how_far_this_member_is(pair: Pair) -> None:
    reader = pair.reader()
    receipt = pair.put(("k", "1"))
    request = reader.send("get", b"k", stream="s", seen=seen(receipt))

    pair.b.pass_s(4)

    with pytest.raises(Refused) as refused:
        reader.answer(request)
    assert refused.value.code == "cluster.behind"
    assert refused.value.header["sequence"] == receipt["last"]
    assert not pair.b.broker.streams.awaiting


@pytest.mark.parametrize(
    ("op", "place"), [("snapshot", "after"), ("snapshot", "at"), ("diff", "b"), ("follow", "from")]
)
def test_a_position_that_is_not_here_yet_is_waited_for_and_not_called_lost(
    pair: Pair, op: str, place: str
) -> None:
    pair.put(("k", "0"))
    pair.catch_up()
    reader = pair.reader()
    receipt = pair.put(("k", "1"))
    position = {"history": receipt["history"], "sequence": receipt["last"]}
    more = {"a": 0} if op == "diff" else {}

    request = reader.send(op, b"", stream="s", **{place: position}, **more)
    early = reader.about(request)
    pair.catch_up()

    assert early == []
    assert all(frame.kind is not Kind.ERROR for frame in reader.about(request))


def test_a_stream_that_was_just_declared_is_waited_for(pair: Pair) -> None:
    reader = pair.reader()
    declared = pair.written("declare", stream="t")

    request = reader.send("info", stream="t", seen={"catalog": declared["catalog"]})
    early = reader.about(request)
    pair.catch_up()

    assert early == []
    assert reader.answer(request).header["name"] == "t"


def test_a_receipt_is_judged_here_as_soon_as_it_is_complete(pair: Pair) -> None:
    """K-47: wait(S) at a tail is over only when the tail has S."""
    reader = pair.reader()
    receipt = pair.put(("k", "1"))
    request = reader.send(
        "safe", history=receipt["history"], sequence=receipt["last"], replicas=1, disks=1, wait_ms=9000
    )

    early = reader.about(request)
    pair.catch_up()

    assert early == []
    assert reader.answer(request).header == {"safe": "yes"}


# Takeovers ---------------------------------------------------------------------------------------------------------


def test_no_position_is_given_in_a_history_that_may_never_have_been(pair: Pair) -> None:
    pair.put(("k", "1"))
    pair.catch_up()
    reader = pair.reader()

    pair.b.node.take_over("bb" * 16, pair.b.now_ms)
    pair.b.turn()
    before = reader.ask("snapshot", stream="s")["history"]
    pair.b.complete(pair.b.ends)

    assert before == "aa" * 16
    assert reader.ask("snapshot", stream="s")["history"] == "bb" * 16


def test_readers_stay_when_their_member_begins_to_lead(pair: Pair) -> None:
    pair.put(("k", "1"))
    pair.catch_up()
    reader = pair.reader()
    old = reader.snapshot("s")
    request = reader.send("follow", b"", stream="s", **{"from": "next"})
    reader.about(request)

    pair.b.lead("bb" * 16)
    writer = StreamClient(pair.b)
    writer.hello()
    header, payload = a_put(as_rows([("k", "2")]))
    number = writer.send("put", payload, stream="s", **header)
    pair.b.settle()

    assert writer.answer(number).header["history"] == "bb" * 16
    assert shown(reader.read(snapshot=old)[0]) == {b"k": b"1"}
    rows, marker = reader.about(request)
    assert rows.header["history"] == marker.header["marker"]["history"] == "bb" * 16
    number = reader.send("put", payload, stream="s", **header)  # whoever leads takes it from anyone
    pair.b.settle()
    assert reader.answer(number).header["last"] > 0


# Who is there ------------------------------------------------------------------------------------------------------


def test_every_member_tells_who_is_there_and_what_each_is_for(pair: Pair) -> None:
    """K-40: the topology with its roles."""
    found = pair.reader().ask("members")

    assert (found["mode"], found["epoch"], found["leader"]) == ("chain", 7, "a")
    assert [(one["name"], one["state"], one["role"], one["address"]) for one in found["members"]] == [
        ("a", "active", "head", "10.0.0.1:5672"),
        ("b", "ready", "tail", "10.0.0.2:5672"),
    ]


def test_a_client_over_tls_is_told_the_addresses_for_tls(pair: Pair) -> None:
    client = StreamClient(pair.b)
    client.front_end.peer = PeerInfo("127.0.0.1", 1, tls=True)
    client.push(READER_PREAMBLE)

    welcome = client.ask("hello", user="guest", password="guest", vhost="/")

    assert welcome["cluster"] == ["10.0.0.1:5671"]


def test_a_node_that_stands_alone_is_its_own_leader() -> None:
    client = StreamClient(NodeWorld())
    welcome = client.hello()

    [me] = client.ask("members")["members"]

    assert welcome["leader"] == me["name"] and me["role"] == "leader"
    assert welcome["cluster"] == [me["address"]]
