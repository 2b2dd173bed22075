"""A private RabbitMQ starts, answers, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pika  # type: ignore[import-untyped]
import pytest

from bench import proc, rabbitmq
from bench.rabbitmq import RabbitMQ


@pytest.mark.skipif(rabbitmq.server_script() is None, reason="RabbitMQ is not installed")
def test_a_private_broker_serves_a_client_and_leaves_no_process_behind(tmp_path: Path) -> None:
    with RabbitMQ(tmp_path / "rabbit") as broker:
        started = broker.pids()
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as client:
            channel = client.channel()
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"hello")
            assert channel.basic_get("q", auto_ack=True)[2] == b"hello"
        assert broker.cpu_seconds() > 0
        assert broker.rss_bytes() > 10_000_000

    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not proc.speaks_amqp(broker.port)
