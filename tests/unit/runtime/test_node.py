"""The node, without a socket: what it does about its disk, its memory and its peers."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.config import load
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.node import Node
from tidemark.sim.disk import SimDisk
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import Method, decode_method, encode_method

HERE = PeerInfo("127.0.0.1", 1)
SETTINGS = {
    "store.segment_bytes": "1MiB",
    "store.extent_bytes": "64KiB",
    "limits.disk_free_bytes_min": "1000",
}
SETTINGS |= {"broker.scrypt_log2_n": "10"}


class Outside:
    """Remembers what the node said, and lets everybody in."""

    def __init__(self) -> None:
        self.node: Node
        self.notes: list[tuple[str, str]] = []
        self.logins: list[tuple[FrontEnd, Login]] = []
        self.replacements: dict[FrontEnd, FrontEnd] = {}

    def due(self) -> None:
        pass

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        self.replacements[old] = new

    def login(self, front_end: FrontEnd, login: Login) -> None:
        self.logins.append((front_end, login))

    def note(self, level: str, event: str, **facts: object) -> None:
        self.notes.append((level, event))


class Peer:
    """A client that speaks in whole methods."""

    def __init__(self, node: Node, outside: Outside) -> None:
        self.node = node
        self.front_end = node.connect(HERE)
        self.write(PROTOCOL_HEADER)
        self.front_end = outside.replacements[self.front_end]
        self.say(0, methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest"))
        [(front_end, login)] = outside.logins
        outside.logins.clear()
        node.verdict(front_end, Verdict(login.user))
        self.say(0, methods.ConnectionTuneOk(channel_max=10, frame_max=131072))
        self.say(0, methods.ConnectionOpen(virtual_host="/"))
        self.say(1, methods.ChannelOpen())
        self.say(1, methods.ConfirmSelect())
        self.heard()

    def write(self, data: bytes) -> None:
        assert self.front_end.receive(memoryview(data)) == len(data)
        self.node.turn(self.node.now_ms + 1)

    def say(self, channel: int, method: Method) -> None:
        self.write(encode_method(channel, method))

    def publish(self, body: bytes) -> None:
        publish = encode_method(1, methods.BasicPublish(routing_key="q"))
        header = bytes.fromhex("003c0000") + len(body).to_bytes(8, "big") + bytes.fromhex("1000") + b"\x02"
        frames = [(2, header), (3, body)]
        rest = b"".join(bytes([k, 0, 1]) + len(p).to_bytes(4, "big") + p + b"\xce" for k, p in frames)
        self.write(publish + rest)

    def heard(self) -> list[Any]:
        """The methods that came since the last time."""
        data, found = b"".join(self.front_end.output()), []
        while data:
            size = int.from_bytes(data[3:7], "big")
            if data[0] == 1:
                found.append(decode_method(data[7 : 7 + size]))
            data = data[8 + size :]
        return found


class World:
    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        self.outside = Outside()
        self.node = Node(load(SETTINGS), self.disk, self.outside, bytes)
        self.node.start(1000)
        self.settle()

    def settle(self) -> None:
        """Let the disk finish what it has."""
        for _ in range(3):
            self.node.turn(self.node.now_ms + 1)
            self.node.completed(self.node.now_ms)

    def peer(self) -> Peer:
        return Peer(self.node, self.outside)

    def close(self) -> None:
        for front_end in list(self.node.front_ends):
            self.node.disconnect(front_end)
        self.node.close(self.node.now_ms + 1)
        while not self.node.closed():
            self.node.completed(self.node.now_ms)


def names(heard: list[Any]) -> list[str]:
    return [type(method).__name__ for method in heard]


@pytest.fixture
def world() -> World:
    return World()


def test_a_publish_is_confirmed_when_the_disk_has_it_and_not_before(world: World) -> None:
    peer = world.peer()
    peer.say(1, methods.QueueDeclare(queue="q", durable=True))
    world.settle()
    peer.heard()

    peer.publish(b"hello")
    assert peer.heard() == []
    world.settle()
    assert names(peer.heard()) == ["BasicAck"]


def test_what_was_confirmed_is_there_after_a_crash(world: World) -> None:
    peer = world.peer()
    peer.say(1, methods.QueueDeclare(queue="q", durable=True))
    peer.publish(b"hello")
    world.settle()
    assert "BasicAck" in names(peer.heard())

    again = World(world.disk.crash())

    [queue] = again.node.broker.queues.values()
    assert (queue.name, queue.ready) == ("q", 1)


def test_a_clean_close_leaves_a_clean_store(world: World) -> None:
    world.peer()
    world.close()
    assert World(world.disk).node.store.files.found.state == "clean"


def test_a_failed_disk_refuses_what_is_pending_and_ends_every_connection(world: World) -> None:
    peer, other = world.peer(), world.peer()
    peer.say(1, methods.QueueDeclare(queue="q", durable=True))
    world.settle()
    peer.heard()

    world.disk.fail_next()
    peer.publish(b"hello")
    world.settle()

    assert world.node.failed is not None
    assert names(peer.heard()) == ["BasicNack", "ConnectionClose"]
    [close] = other.heard()
    assert close.reply_code == 541
    assert ("error", "store failed") in world.outside.notes


def test_nothing_is_confirmed_after_the_disk_failed(world: World) -> None:
    peer = world.peer()
    peer.say(1, methods.QueueDeclare(queue="q", durable=True))
    world.settle()
    world.disk.fail_next()
    peer.publish(b"one")
    world.settle()
    peer.heard()

    peer.publish(b"two")
    world.settle()

    assert "BasicAck" not in names(peer.heard())


def test_over_the_memory_mark_publishers_are_told_and_let_go_well_below_it(world: World) -> None:
    peer = world.peer()
    peer.front_end._handshake.agreed.client_properties["capabilities"] = {"connection.blocked": True}
    world.node.watch(memory_bytes=101, memory_high_bytes=100, disk_free_bytes=10**9)
    assert world.node.broker.blocked == "low on memory"

    peer.publish(b"against the alarm")
    assert "ConnectionBlocked" in names(peer.heard())
    assert not peer.front_end.wants_read()

    world.node.watch(memory_bytes=99, memory_high_bytes=100, disk_free_bytes=10**9)
    assert world.node.broker.blocked == "low on memory"
    world.node.watch(memory_bytes=95, memory_high_bytes=100, disk_free_bytes=10**9)
    assert world.node.broker.blocked is None
    assert peer.front_end.wants_read()


def test_with_too_little_free_disk_publishers_wait_and_both_causes_are_named(world: World) -> None:
    world.node.watch(memory_bytes=101, memory_high_bytes=100, disk_free_bytes=999)
    assert world.node.alarms.reason == "low on memory and disk"
    world.node.watch(memory_bytes=1, memory_high_bytes=100, disk_free_bytes=1000)
    assert world.node.alarms.reason is None


def test_who_connects_during_an_alarm_is_blocked_too(world: World) -> None:
    world.node.watch(memory_bytes=101, memory_high_bytes=100, disk_free_bytes=10**9)
    peer = world.peer()
    peer.publish(b"x")
    assert not peer.front_end.wants_read()


def test_a_verdict_for_a_peer_that_has_gone_is_dropped(world: World) -> None:
    front_end = world.node.connect(HERE)
    world.node.disconnect(front_end)
    world.node.verdict(front_end, Verdict("guest"))
    assert world.node.front_ends == {}
