"""A cold standby: one store on a disk that two machines can reach, and a broker that is started on it when the other is gone.

TIDEMARK_COLD_MESSAGES says how many messages there are (5,000 unless told); the time of the start is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from helpers.broker import SOURCE, BrokerProcess

MESSAGES = int(os.environ.get("TIDEMARK_COLD_MESSAGES", "5000"))
PERSISTENT = pika.BasicProperties(delivery_mode=2)

pytestmark = pytest.mark.timeout(60 + MESSAGES // 1000)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Two, with ports and names of their own and one data directory."""
    pair = tuple(BrokerProcess(tmp_path / "shared", "--name", name) for name in ("n1", "n2"))
    yield pair  # type: ignore[misc]
    for broker in pair:
        broker.close()


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.address.host, broker.address.port))


def test_another_broker_goes_on_with_the_store_of_one_that_was_killed_and_not_while_it_lives(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    """H-18: n2 on n1's store: refused by the lock while n1 runs, even if it is frozen; after KILL it has every confirmed message,
    in order."""
    n1, n2 = brokers
    n1.start()
    with connect(n1) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(MESSAGES):
            channel.basic_publish("", "q", b"%d" % number + bytes(90), PERSISTENT)
            if number % 1000 == 999:
                channel.tx_commit()
        channel.tx_commit()
    n1.pause()
    command = [sys.executable, "-m", "tidemark", "serve", "--name", "n2", "--data", str(n2.data)]
    refused = subprocess.run(
        [*command, "--amqp", "127.0.0.1:0", "--admin", ""],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert refused.returncode == 2, refused.stderr
    assert f"in use by process {n1.pid}" in refused.stderr

    n1.kill()
    began = time.monotonic()
    n2.start()
    print(f"cold standby: started with {MESSAGES:,} messages in {time.monotonic() - began:.2f} s")
    found = []
    with connect(n2) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        for method, _, body in channel.consume("q", inactivity_timeout=5):
            assert method is not None, f"only {len(found)} came"
            found.append(int(body.rstrip(b"\0")))
            if len(found) == MESSAGES:
                break
            if len(found) % 500 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
    assert found == list(range(MESSAGES))
