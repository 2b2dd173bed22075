"""Peers that are scripted, brokers that are real, and names that nobody else uses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client.peer import Peer, Script
from client.twins import Awaited
from helpers.broker import Address

import tidemark.client
from tidemark.client import AsyncClient, Client


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


@pytest.fixture(params=["blocking", "asyncio"])
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Connects one client or the other; both are used alike (`twins`)."""
    loop = asyncio.new_event_loop()
    opened: list[Any] = []

    def connect(url: str, **settings: Any) -> Any:
        if request.param == "blocking":
            client: Any = tidemark.client.connect(url, **settings)
        else:
            client = Awaited(loop, loop.run_until_complete(_opened(url, settings)))
        opened.append(client)
        return client

    yield connect
    for client in opened:
        client.close()
    loop.close()


async def _opened(url: str, settings: dict[str, Any]) -> AsyncClient:
    return await tidemark.client.connect_async(url, **settings)


@pytest.fixture
def either(open_client: Callable[..., Any], url: str) -> Any:
    """A client of the broker that all tests share: the blocking one, then the other."""
    return open_client(url, timeout=20)
