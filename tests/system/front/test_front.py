"""Ordinary clients of a real front, with a real broker behind it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aio_pika
import pika
import pytest
from helpers.broker import SOURCE, Address, BrokerProcess
from helpers.front import FrontProcess
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker, ProbableAuthenticationError

Start = Callable[..., FrontProcess]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    process.close()


@pytest.fixture
def start_front(tmp_path: Path) -> Iterator[Start]:
    """Starts fronts; each word is a place of a member of main."""
    started: list[FrontProcess] = []

    def start(*places: Address | str, arguments: tuple[str, ...] = ()) -> FrontProcess:
        words = [place if isinstance(place, str) else f"{place.host}:{place.port}" for place in places]
        front = FrontProcess(tmp_path / f"front-{len(started)}", *arguments, main=",".join(words))
        started.append(front)
        return front.start()

    yield start
    for front in started:
        front.close()


@pytest.fixture
def front(broker: BrokerProcess, start_front: Start) -> FrontProcess:
    return start_front(broker.address)


def connected(address: Address, password: str = "guest") -> pika.BlockingConnection:
    login = pika.PlainCredentials("guest", password)
    return pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port, credentials=login))


def closed_by_front(connection: pika.BlockingConnection) -> ConnectionClosedByBroker:
    """Wait for the front to close the connection."""
    try:
        for _ in range(10):
            connection.process_data_events(1)
    except ConnectionClosedByBroker as close:
        return close
    raise AssertionError("the connection is still open")


def nowhere() -> str:
    """A place where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_what_is_confirmed_through_a_front_is_at_the_broker(
    front: FrontProcess, broker: BrokerProcess
) -> None:
    connection = connected(front.address)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True)
    broker.kill()
    with contextlib.suppress(AMQPConnectionError):
        connection.close()
    broker.start()
    channel = connected(broker.address).channel()
    got = [channel.basic_get("q", auto_ack=True)[2] for _ in range(100)]
    assert got == [b"%d" % number for number in range(100)]


def test_a_consumer_is_told_when_the_broker_dies_and_comes_back_through_the_same_front(
    front: FrontProcess, broker: BrokerProcess
) -> None:
    connection = connected(front.address)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    method, _, body = next(channel.consume("q", inactivity_timeout=10))
    assert body == b"x"
    broker.kill()
    close = closed_by_front(connection)
    assert close.reply_code == 320
    assert "the leader of group 'main' cannot be reached" in close.reply_text
    broker.start()
    method, _, body = connected(front.address).channel().basic_get("q")
    assert (method.redelivered, body) == (True, b"x")


def test_a_front_whose_broker_is_away_says_so_and_waits_for_nobody(start_front: Start) -> None:
    front = start_front(nowhere(), arguments=("--front.dial-s-max", "1"))
    began = time.monotonic()
    with pytest.raises(AMQPConnectionError, match=r"\(320\).*connection refused"):
        connected(front.address)
    assert time.monotonic() - began < 5


def test_a_member_that_is_away_is_passed_over(broker: BrokerProcess, start_front: Start) -> None:
    front = start_front(nowhere(), broker.address)
    for _ in range(3):
        connected(front.address).channel().queue_declare("q")


def test_a_wrong_password_is_refused_by_the_broker(front: FrontProcess, broker: BrokerProcess) -> None:
    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        connected(front.address, "wrong")
    assert "login refused" in broker.log_path.read_text()


def test_asyncio_clients_work_through_a_front(front: FrontProcess) -> None:
    async def run() -> list[bytes]:
        connection = await aio_pika.connect(front.address.url())
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue("q", durable=True)
            exchange = await channel.declare_exchange("e", aio_pika.ExchangeType.TOPIC, durable=True)
            await queue.bind(exchange, "a.*")
            body = bytes(range(256)) * 4096
            await asyncio.gather(
                *(exchange.publish(aio_pika.Message(b"%d" % n + body), f"a.{n}") for n in range(50))
            )
            got: list[bytes] = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        got.append(message.body.removesuffix(body))
                    if len(got) == 50:
                        break
            return got

    assert sorted(asyncio.run(run()), key=int) == [b"%d" % number for number in range(50)]


def test_a_consumer_that_does_not_read_holds_up_nobody_and_costs_no_memory(
    front: FrontProcess, broker: BrokerProcess
) -> None:
    connection = connected(front.address)
    channel = connection.channel()
    channel.queue_declare("q")
    body = bytes(1 << 20)
    for _ in range(64):
        channel.basic_publish("", "q", body)
    lazy = connected(front.address)
    lazy.channel().basic_consume("q", lambda *_: None, auto_ack=True)
    time.sleep(2)
    status = Path(f"/proc/{front.pid}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident < 200_000, status
    assert channel.queue_declare("other").method.queue == "other"


def test_a_front_stops_when_it_is_told_and_tells_its_clients(
    front: FrontProcess, broker: BrokerProcess
) -> None:
    connection = connected(front.address)
    front._signal(signal.SIGTERM)
    close = closed_by_front(connection)
    assert (close.reply_code, "shutting down" in close.reply_text) == (320, True)
    assert front._reap(20) == 0
    assert connected(broker.address).is_open


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "must not be empty"),
        (("--group", "fast=127.0.0.1:1"), "must have the group 'main'"),
        (("--group", "main=here"), "must be HOST:PORT"),
        (("--group", "127.0.0.1:1"), "must be a list of NAME=MEMBER@HOST:PORT"),
    ],
)
def test_a_front_without_a_group_to_speak_with_does_not_start(arguments: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "tidemark", "front", "--amqp", "127.0.0.1:0", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
