"""Ten thousand connections at a time to one broker process, and an ordinary client among them.

The crowd is raw sockets without a thread each: `Crowd` shakes hands on a window of them at a time, driven by
one selector. Both processes need a file for each connection, so the test needs a limit of open files that is
above the usual one; root can raise it.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pika
import pytest
from helpers.amqp import Inbox, eventually
from helpers.broker import Address, BrokerProcess
from helpers.raw import (
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CLOSE,
    CLOSE_OK,
    OPEN,
    OPEN_OK,
    PROTOCOL_HEADER,
    START,
    START_OK,
    TUNE,
    TUNE_OK,
    encode_method,
    long,
    longlong,
    longstr,
    octet,
    short,
    shortstr,
    table,
)

Start = Callable[..., BrokerProcess]
Method = tuple[int, int]

CONNECTIONS = 10_000
WINDOW = 256
"""How many shake hands at a time."""
FILES = CONNECTIONS + 200
MESSAGES = 1_000
MESSAGES_AT_ONCE = 100
CONNECTION_BYTES_MAX = 100 << 10
PATIENCE_S = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

ANSWERS: dict[Method, bytes] = {
    START: encode_method(
        0, START_OK, table({}) + shortstr("PLAIN") + longstr("\0guest\0guest") + shortstr("en_US")
    ),
    TUNE: encode_method(0, TUNE_OK, short(0) + long(131072) + short(0))
    + encode_method(0, OPEN, shortstr("/") + shortstr("") + octet(0)),
    OPEN_OK: encode_method(1, CHANNEL_OPEN, shortstr("")),
}
"""What a client says to what it hears, until its channel is open."""
GOODBYE = encode_method(0, CLOSE, short(200) + shortstr("bye") + short(0) + short(0))


class Crowd:
    """Many connections, each with one open channel."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._deadline = time.monotonic() + PATIENCE_S
        self.members: list[socket.socket] = []

    def open(self, count: int) -> None:
        begun = done = 0
        while done < count:
            while begun < count and begun - done < WINDOW:
                self._dial()
                begun += 1
            for member, heard in self._hear():
                if heard == CHANNEL_OPEN_OK:
                    self._selector.unregister(member)
                    done += 1
                else:
                    assert heard in ANSWERS, f"after {done} connections the broker said {heard}"
                    member.sendall(ANSWERS[heard])

    def _dial(self) -> None:
        member = socket.create_connection((self._address.host, self._address.port), 10)
        self.members.append(member)
        member.sendall(PROTOCOL_HEADER)
        self._selector.register(member, selectors.EVENT_READ, bytearray())

    def _hear(self) -> Iterator[tuple[socket.socket, Method]]:
        """The methods that have come, waited for."""
        assert time.monotonic() < self._deadline, "the broker does not keep up"
        for key, _ in self._selector.select(5):
            member = key.fileobj
            assert isinstance(member, socket.socket)
            received: bytearray = key.data
            piece = member.recv(65536)
            assert piece, f"a connection was dropped after {bytes(received)!r}"
            received += piece
            while len(received) >= 7:
                (size,) = struct.unpack_from(">I", received, 3)
                if len(received) < size + 8:
                    break
                class_id, method_id = struct.unpack_from(">HH", received, 7)
                del received[: size + 8]
                yield member, (class_id, method_id)

    def leave(self) -> None:
        """Every other one says goodbye and waits for the answer; the rest just hang up."""
        self._deadline = time.monotonic() + PATIENCE_S
        polite = self.members[::2]
        for member in self.members[1::2]:
            member.close()
        for at in range(0, len(polite), WINDOW):
            together = polite[at : at + WINDOW]
            for member in together:
                member.sendall(GOODBYE)
                self._selector.register(member, selectors.EVENT_READ, bytearray())
            gone = 0
            while gone < len(together):
                for member, heard in self._hear():
                    assert heard == CLOSE_OK
                    self._selector.unregister(member)
                    member.close()
                    gone += 1
        self.members.clear()

    def close(self) -> None:
        self._selector.close()
        for member in self.members:
            member.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """So many open files are allowed, here and in what is started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard == resource.RLIM_INFINITY else max(hard, FILES)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), wanted))
    except (ValueError, OSError):
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            raise
        pytest.skip(f"needs {FILES} open files in a process; the hard limit (ulimit -Hn) is {hard}")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, wanted))


@pytest.fixture
def broker(many_files: None, start_broker: Start) -> BrokerProcess:
    return start_broker("--set", f"limits.connections_max={CONNECTIONS + 2000}")


@pytest.fixture
def crowd(broker: BrokerProcess) -> Iterator[Crowd]:
    crowd = Crowd(broker.address)
    yield crowd
    crowd.close()


def memory_bytes(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def open_files(broker: BrokerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir())


def totals(broker: BrokerProcess) -> dict[str, int]:
    """What there is, as the admin API counts it."""
    url = f"http://{broker.admin.host}:{broker.admin.port}/api/overview"
    answer = httpx.get(url, auth=("guest", "guest"), timeout=10)
    found: dict[str, int] = answer.raise_for_status().json()["object_totals"]
    return found


def work(broker: BrokerProcess) -> float:
    """An ordinary client publishes with confirms and consumes; how long that took, in seconds."""
    began = time.monotonic()
    persistent = pika.BasicProperties(delivery_mode=2)
    expected = [longlong(number) for number in range(MESSAGES)]
    where = pika.ConnectionParameters(broker.address.host, broker.address.port)
    with pika.BlockingConnection(where) as connection:
        publishing, consuming = connection.channel(), connection.channel()
        publishing.confirm_delivery()
        publishing.queue_declare("work", durable=True)
        inbox = Inbox(consuming, "work")
        for at in range(0, MESSAGES, MESSAGES_AT_ONCE):
            for body in expected[at : at + MESSAGES_AT_ONCE]:
                publishing.basic_publish("", "work", body, persistent)
            inbox.wait(at + MESSAGES_AT_ONCE, 20)
            consuming.basic_ack(0, multiple=True)
        assert inbox.bodies == expected
        assert not any(delivery.redelivered for delivery in inbox.received)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ten_thousand_connections_are_served_cost_little_and_all_go_again(
    broker: BrokerProcess, crowd: Crowd, capsys: pytest.CaptureFixture[str]
) -> None:
    alone_s = work(broker)
    files_before, bytes_before = open_files(broker), memory_bytes(broker)

    began = time.monotonic()
    crowd.open(CONNECTIONS)
    opening_s = time.monotonic() - began
    bytes_each = (memory_bytes(broker) - bytes_before) / CONNECTIONS
    assert (totals(broker)["connections"], totals(broker)["channels"]) == (CONNECTIONS, CONNECTIONS)

    among_many_s = work(broker)

    began = time.monotonic()
    crowd.leave()
    eventually(lambda: totals(broker)["connections"] == 0, 30)
    leaving_s = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\n{CONNECTIONS} connections: opened in {opening_s:.1f} s, left in {leaving_s:.1f} s, "
            f"{bytes_each / 1024:.1f} KiB each; {MESSAGES} messages took {among_many_s:.2f} s among them, "
            f"{alone_s:.2f} s alone"
        )
    assert bytes_each < CONNECTION_BYTES_MAX
    assert among_many_s < 10 + 5 * alone_s
    assert eventually(lambda: open_files(broker) <= files_before)
    assert totals(broker)["channels"] == 0

    broker.stop()
    log = broker.log_path.read_text()
    assert "unexpected" not in log
    assert "refused" not in log
