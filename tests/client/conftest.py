"""Peers that are scripted, brokers that are real, and names that nobody else uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from client.peer import Peer, Script
from helpers.broker import Address

import tidemark.client
from tidemark.client import Client


@pytest.fixture
def peer() -> Iterator[Callable[[Script], Peer]]:
    started: list[Peer] = []

    def start(script: Script) -> Peer:
        started.append(Peer(script))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def url(broker: Address) -> str:
    return f"tidemark://{broker.user}:{broker.password}@{broker.host}:{broker.port}/"


@pytest.fixture
def db(url: str) -> Iterator[Client]:
    with tidemark.client.connect(url, timeout=20) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A stream's name that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"
