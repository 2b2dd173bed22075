"""Peers that misbehave, and too many of them: each costs little, and the others do not notice."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from helpers.amqp import drain, eventually, put, sync
from helpers.broker import BrokerProcess
from helpers.raw import RawConnection

Start = Callable[..., BrokerProcess]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HEADER = b"AMQP\x00\x00\x09\x01"


def dial(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.address.host, broker.address.port), timeout=10)


def connect(broker: BrokerProcess, **options: object) -> pika.BlockingConnection:
    where = broker.address
    return pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port, **options))


def memory_bytes(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def open_files(broker: BrokerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir())


def is_closed_by_peer(link: socket.socket, timeout_s: float) -> bool:
    """Read until the other side closes; False if it has not in this time."""
    link.settimeout(timeout_s)
    try:
        while link.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@contextmanager
def a_bystander(broker: BrokerProcess) -> Iterator[None]:
    """A well-behaved client: whatever happens meanwhile, it can still publish and consume."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("bystander", exclusive=True)
        put(channel, "bystander", b"before")
        yield
        put(channel, "bystander", b"after")
        assert drain(channel, "bystander") == [b"before", b"after"]


# Bytes that make no sense -------------------------------------------------------------------


def test_garbage_is_closed_at_once_and_leaves_nothing_behind(own_broker: BrokerProcess) -> None:
    dice = random.Random(7)
    before = open_files(own_broker)
    with a_bystander(own_broker):
        for size in (1, 7, 8, 100, 10_000, 1_000_000):
            for prefix in (b"", HEADER, b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01"):
                with dial(own_broker) as link:
                    try:
                        link.sendall(prefix + dice.randbytes(size))
                        link.shutdown(socket.SHUT_WR)
                    except OSError:
                        continue  # it was thrown out before it had finished
                    assert is_closed_by_peer(link, 10), (prefix, size)

    assert eventually(lambda: open_files(own_broker) <= before)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">BHI", 1, 0, 0xFFFFFFFF), id="a frame of 4 GiB"),
        pytest.param(struct.pack(">BHI", 1, 0, 200_000) + bytes(200_001), id="a frame over the limit"),
        pytest.param(struct.pack(">BHI", 9, 0, 0) + b"\xce", id="an unknown frame type"),
        pytest.param(struct.pack(">BHI", 1, 0, 4) + b"abcd\xcd", id="a wrong end mark"),
        pytest.param(struct.pack(">BHI", 3, 1, 4) + b"body\xce", id="a body without a header"),
    ],
)
def test_a_broken_frame_after_the_handshake_ends_the_connection(
    own_broker: BrokerProcess, frame: bytes
) -> None:
    with a_bystander(own_broker), RawConnection(own_broker.address) as peer:
        peer.handshake()
        peer.send(frame)
        words = peer.last_words()
        assert words is not None
        assert words.code in (501, 503, 505)


def test_a_table_that_is_nested_without_end_is_refused(own_broker: BrokerProcess) -> None:
    table = b""
    for _ in range(5000):
        inner = b"\x01a" + b"F" + struct.pack(">I", len(table)) + table
        table = inner
    declare = struct.pack(">HHHB", 50, 10, 0, 1) + b"q\x00" + struct.pack(">I", len(table)) + table
    with a_bystander(own_broker), RawConnection(own_broker.address) as peer:
        peer.handshake()
        peer.send_frame(1, 1, declare)
        words = peer.last_words()
        assert words is not None
        assert words.code == 502


def test_a_header_that_announces_a_huge_body_reserves_no_memory(own_broker: BrokerProcess) -> None:
    with a_bystander(own_broker):
        before = memory_bytes(own_broker)
        peers = [RawConnection(own_broker.address) for _ in range(20)]
        for peer in peers:
            peer.handshake()
            publish = struct.pack(">HHH", 60, 40, 0) + b"\x00\x01q\x00"
            header = struct.pack(">HHQH", 60, 0, 128 << 20, 0)
            peer.send_frame(1, 1, publish)
            peer.send_frame(2, 1, header)
        time.sleep(0.3)
        assert memory_bytes(own_broker) - before < 32 << 20
        for peer in peers:
            peer.close()


# Peers that are slow, silent or gone ---------------------------------------------------------


def test_a_peer_that_takes_too_long_to_shake_hands_is_dropped(start_broker: Start) -> None:
    broker = start_broker("--set", "amqp091.handshake_s_max=1")
    with a_bystander(broker), dial(broker) as silent, dial(broker) as slow:
        slow.settimeout(0.2)
        began = time.monotonic()
        for byte in HEADER * 4:
            try:
                slow.send(bytes([byte]))
                if slow.recv(4096) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
            if time.monotonic() - began > 6:
                pytest.fail("a peer that drips bytes is kept for ever")
        assert is_closed_by_peer(silent, 5)


def test_a_peer_that_vanishes_without_a_word_is_noticed_by_its_heartbeats(own_broker: BrokerProcess) -> None:
    with connect(own_broker) as keeper:
        keeper.channel().queue_declare("held")
        put(keeper.channel(), "held", b"precious")
        gone = connect(own_broker, heartbeat=1)
        channel = gone.channel()
        assert channel.basic_get("held")[2] == b"precious"

        # From now on `gone` says nothing; its socket stays open.
        def back() -> bool:
            keeper.process_data_events(0.1)
            method, _, body = keeper.channel().basic_get("held", auto_ack=True)
            return method is not None and method.redelivered and body == b"precious"

        assert eventually(back, 15)


# A consumer that stops reading ---------------------------------------------------------------


def test_a_consumer_that_does_not_read_does_not_fill_memory_and_others_go_on(start_broker: Start) -> None:
    broker = start_broker("--set", "store.cache_bytes=32MiB")
    with connect(broker) as publisher, RawConnection(broker.address) as deaf:
        channel = publisher.channel()
        channel.queue_declare("stream", durable=False)
        deaf.handshake()
        consume = struct.pack(">HHH", 60, 20, 0) + b"\x06stream\x00" + b"\x02" + struct.pack(">I", 0)
        deaf.send_frame(1, 1, consume)
        sync(channel)
        before = memory_bytes(broker)

        for _ in range(8000):
            channel.basic_publish("", "stream", bytes(50_000))
        sync(channel)

        # 400 MB were published; the cache has 32 MiB, its pool of free blocks as much, and spilling lags a little.
        assert memory_bytes(broker) - before < 160 << 20
        with a_bystander(broker):
            pass


# Too many ------------------------------------------------------------------------------------


def test_a_thousand_connections_are_served_and_all_go_again(own_broker: BrokerProcess) -> None:
    before = open_files(own_broker)
    began = time.monotonic()
    peers = []
    for _ in range(1000):
        peers.append(RawConnection(own_broker.address).handshake())
    took_s = time.monotonic() - began

    assert took_s < 30, f"1,000 logins took {took_s:.1f} s"
    with a_bystander(own_broker):
        assert open_files(own_broker) >= before + 1000
    for peer in peers:
        peer.close()
    assert eventually(lambda: open_files(own_broker) <= before)


def test_one_connection_too_many_is_closed_and_the_others_stay(start_broker: Start) -> None:
    broker = start_broker("--set", "limits.connections_max=3")
    with a_bystander(broker), connect(broker), connect(broker), dial(broker) as extra:
        extra.sendall(HEADER)
        assert is_closed_by_peer(extra, 5)
    connect(broker).close()
    assert eventually(lambda: "connections refused" in broker.log_path.read_text())


# Memory ----------------------------------------------------------------------------------------


def test_over_the_memory_mark_publishers_wait_and_consumers_go_on(start_broker: Start) -> None:
    broker = start_broker("--set", "limits.memory_high_bytes=1MiB")
    eventually(lambda: "publishers blocked" in broker.log_path.read_text())

    # Not closed at the end: a close would wait for a broker that does not read this connection.
    channel = connect(broker, blocked_connection_timeout=3).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", exclusive=True)
    with pytest.raises(pika.exceptions.ConnectionBlockedTimeout):
        put(channel, "q", b"this one may be taken", b"this one waits")
    with connect(broker) as other:
        other.channel().queue_declare("r", exclusive=True)
