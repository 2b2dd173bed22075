"""A broker that is killed starts from its checkpoint, on the disk and with the process of everyday life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from helpers.broker import BrokerProcess

MESSAGES = 2000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"TIDEMARK_STORE_CHECKPOINT_BYTES": str(256 << 10), "TIDEMARK_STORE_CHECKPOINT_WAIT_MS": "100"}
    made = BrokerProcess(tmp_path / "data", environment=settings)
    made.start()
    yield made
    made.close()


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.address.url()))


def publish(broker: BrokerProcess, first: int, count: int) -> None:
    """Persistent messages to a queue, and revisions of ten keys to a stream, all confirmed."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        arguments = {"x-queue-type": "stream", "x-stream-key": "routing-key"}
        channel.exchange_declare("keys", "topic", durable=True)
        channel.queue_declare("revised", durable=True, arguments=arguments)
        channel.queue_bind("revised", "keys", "#")
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(first, first + count):
            body = b"%06d" % number + bytes(500)
            channel.basic_publish("", "kept", body, persistent)
            channel.basic_publish("keys", f"key {number % 10}", body, persistent)


def log_has(broker: BrokerProcess, words: str, times: int = 1) -> bool:
    return broker.log_path.read_text(errors="replace").count(words) >= times


def wait_for_log(broker: BrokerProcess, words: str, times: int = 1) -> None:
    deadline = time.monotonic() + 30
    while not log_has(broker, words, times):
        assert time.monotonic() < deadline, f"the log does not say {words!r}"
        time.sleep(0.05)


def contents(broker: BrokerProcess) -> tuple[list[int], list[int]]:
    """What the queue gives, and what the stream holds."""
    queued, revised = [], []
    with connect(broker) as connection:
        channel = connection.channel()
        while (got := channel.basic_get("kept"))[0] is not None:
            queued.append(int(got[2][:6]))
        channel.basic_qos(prefetch_count=100)
        for method, _, body in channel.consume(
            "revised", arguments={"x-stream-offset": "first"}, inactivity_timeout=1
        ):
            if method is None:
                break
            revised.append(int(body[:6]))
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
    return queued, revised


@pytest.mark.slow
def test_a_killed_broker_starts_from_its_checkpoint_and_has_everything(broker: BrokerProcess) -> None:
    publish(broker, 0, MESSAGES)
    wait_for_log(broker, "checkpoint made")
    publish(broker, MESSAGES, 50)
    broker.kill()
    broker.start()
    assert log_has(broker, "checkpoint=ckpt-")
    queued, revised = contents(broker)
    assert queued == list(range(MESSAGES + 50))
    assert revised == list(range(MESSAGES + 40, MESSAGES + 50))
    assert not log_has(broker, "checkpoint failed")


@pytest.mark.slow
def test_a_stopped_broker_leaves_a_checkpoint(broker: BrokerProcess) -> None:
    publish(broker, 0, 300)
    broker.stop()
    assert len(list(broker.data.glob("ckpt-*"))) == 1
    broker.start()
    assert log_has(broker, "checkpoint=ckpt-")
    queued, revised = contents(broker)
    assert queued == list(range(300))
    assert revised == list(range(290, 300))
