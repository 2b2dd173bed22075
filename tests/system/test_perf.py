"""`tidemark perf` as a user runs it: a process of its own, against a real Tidemark and a real RabbitMQ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.broker import BrokerProcess

from bench.rabbitmq import RabbitMQ, server_script

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENOUGH_PER_S = 50_000


def perf(url: str, *words: str, code: int = 0) -> dict[str, Any]:
    """The summary of a run that ends with this code."""
    command = [sys.executable, "-m", "tidemark", "perf", "--json", "--url", url, *words]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("perf") / "data", "--limits.disk-free-bytes-min", "64MiB"
    ).start()
    yield process
    process.stop()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--type", "quorum"),
        ("--type", "stream", "-y", "2"),
        ("--type", "keyed", "--keys", "50", "-x", "2"),
        ("--transient", "--no-ack"),
        ("--queues", "3", "-x", "3", "-y", "6", "--size", "1000"),
        ("--window", "0"),
        ("--size", "300000", "--count", "100"),
    ],
    ids=" ".join,
)
def test_everything_that_was_confirmed_arrives_once(broker: BrokerProcess, words: tuple[str, ...]) -> None:
    found = perf(broker.address.url(), "--count", "5000", *words)
    assert (found["lost"], found["duplicates"], found["unconfirmed"]) == (0, 0, 0)
    assert found["published"] == (100 if "300000" in words else 5000)
    if "keyed" not in words:
        assert found["consumed"] == found["published"] * (2 if "stream" in words else 1)


def test_its_queues_are_gone_in_the_end_and_a_queue_that_was_named_stays(broker: BrokerProcess) -> None:
    import httpx

    def names() -> list[str]:
        found = httpx.get(
            f"http://{broker.admin.host}:{broker.admin.port}/api/queues", auth=("guest", "guest")
        ).json()
        return [one["name"] for one in found]

    perf(broker.address.url(), "--count", "10", "--queue", "mine", "-y", "0")
    assert names() == ["mine"]
    assert perf(broker.address.url(), "--queue", "mine", "-x", "0", "-t", "1")["consumed"] == 10


def test_the_rate_is_kept(broker: BrokerProcess) -> None:
    found = perf(broker.address.url(), "--rate", "500", "-x", "2", "-t", "3")
    due = 500 * found["seconds"]
    assert 0.9 * due <= found["published"] <= due + 1
    assert 2.9 <= found["seconds"] < 10
    assert found["deliver_ms"]["p50"] < 1000


def test_one_process_publishes_fifty_thousand_confirmed_messages_a_second(broker: BrokerProcess) -> None:
    """What it takes for 50,000 messages is counted in its own time on the processor, which does not depend on others."""
    before = os.times()
    found = perf(broker.address.url(), "--count", "200000", "--window", "1000", "-y", "0")
    after = os.times()
    spent_s = after.children_user - before.children_user + after.children_system - before.children_system
    assert found["confirmed"] == 200_000
    assert 200_000 / spent_s > ENOUGH_PER_S, f"{spent_s:.2f} s of processor time"


def test_interrupted_it_still_sums_up(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "tidemark", "perf", "--url", broker.address.url(), "--seconds", "60"]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()  # the first second is over
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    text = process.stdout.read()
    assert process.wait(30) == 0
    assert time.monotonic() - began < 20
    assert "0 lost, 0 duplicates" in text


def test_rabbitmq_can_be_measured_too(tmp_path: Path) -> None:
    if server_script() is None:
        if os.environ.get("CI"):
            pytest.fail("rabbitmq-server is not installed")
        pytest.skip("rabbitmq-server is not installed")
    with RabbitMQ(tmp_path) as rabbit:
        url = f"amqp://guest:guest@127.0.0.1:{rabbit.port}/%2F"
        for words in (("-x", "2", "-y", "2"), ("--type", "stream"), ("--size", "200000", "--count", "50")):
            found = perf(url, "--count", "5000", *words)
            assert (found["lost"], found["duplicates"], found["unconfirmed"]) == (0, 0, 0)
            assert found["consumed"] == found["published"]
