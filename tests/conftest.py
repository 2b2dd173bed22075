"""Brokers for tests.

`broker` is one broker for the whole session: tests use unique names and leave nothing that
harms others. `own_broker` is a fresh one that the test may kill. With TIDEMARK_TEST_ADDRESS
set to host:port the session's broker is that one, and with `rabbitmq` it is a private RabbitMQ:
that is how the tests are checked against what they describe. Tests that need a Tidemark broker
of their own are skipped then. With TIDEMARK_TEST_FRONT clients reach every broker through a front; with the
value `channels` it looks at every channel, as one does that has several groups behind it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from helpers.broker import Address, BrokerProcess, parse_address
from helpers.front import FrontedBroker
from hypothesis import Phase

# No test is timed: a busy machine is no fault of the code. A failure is told as it was found, with the blob that replays
# it, because shrinking takes minutes where a run takes long, and a timeout of pytest in the middle of it would be told
# instead. `pytest --hypothesis-profile=shrink --timeout=0 FILE` looks for one anew and makes it small.
SEARCH = [Phase.explicit, Phase.generate, Phase.target]
hypothesis.settings.register_profile(
    "tidemark", deadline=None, print_blob=True, phases=[*SEARCH, Phase.reuse]
)
hypothesis.settings.register_profile("shrink", deadline=None, print_blob=True, phases=[*SEARCH, Phase.shrink])
hypothesis.settings.load_profile("tidemark")

ROOT = Path(__file__).resolve().parents[1]
EXTERNAL = os.environ.get("TIDEMARK_TEST_ADDRESS")
BROKER: type[BrokerProcess] = FrontedBroker if os.environ.get("TIDEMARK_TEST_FRONT") else BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Where the broker that all tests share listens."""
    if EXTERNAL == "rabbitmq":
        sys.path.insert(0, str(ROOT))
        from bench.rabbitmq import RabbitMQ

        with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as rabbit:
            yield Address("127.0.0.1", rabbit.port)
        return
    if EXTERNAL:
        yield parse_address(EXTERNAL)
        return
    process = BROKER(tmp_path_factory.mktemp("broker") / "data").start()
    yield process.address
    process.stop()
    process.close()


@pytest.fixture
def tidemark_only() -> None:
    """Asked for by the few tests of what Tidemark does and others do not."""
    if EXTERNAL:
        pytest.skip("RabbitMQ leaves this open, Tidemark does not")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers with the test's own arguments; all end with the test."""
    if EXTERNAL:
        pytest.skip("this test needs a Tidemark broker of its own")
    started: list[BrokerProcess] = []

    def start(*arguments: str) -> BrokerProcess:
        process = BROKER(tmp_path / f"data-{len(started)}", *arguments)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


@pytest.fixture
def own_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A fresh broker for this test alone."""
    return start_broker()
