"""Leaders and fronts die while clients publish to both groups: what was confirmed is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from helpers.broker import BrokerProcess
from pika.exceptions import AMQPError
from system.cluster.cluster import PERSISTENT, fresh
from system.cluster.test_groups import Groups
from system.front.test_groups import ELSEWHERE, connected, front_of, groups

__all__ = ["groups"]


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, and connects again when it must; knows which were confirmed."""

    def __init__(self, front: BrokerProcess, exchange: str, key: str, begin: int) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[int] = []
        self.told: list[str] = []
        """Why its connections ended."""
        self.stopping = False
        self._front, self._exchange, self._key, self._number = front, exchange, key, begin

    def run(self) -> None:
        while not self.stopping:
            try:
                channel = connected(self._front)
                channel.confirm_delivery()
                while not self.stopping:
                    self._number += 1
                    body = b"%d" % self._number
                    channel.basic_publish(self._exchange, self._key, body, PERSISTENT, mandatory=True)
                    self.confirmed.append(self._number)
            except (AMQPError, OSError) as problem:
                self.told.append(str(problem))
                time.sleep(0.1)


@pytest.fixture
def front(groups: Groups, tmp_path: Path) -> Iterator[BrokerProcess]:
    process = front_of(groups, tmp_path / "front", "main", "fast")
    yield process
    process.close()


def test_nothing_that_was_confirmed_is_lost_whoever_dies(groups: Groups, front: BrokerProcess) -> None:
    channel = connected(front)
    here, there, exchange = fresh("here"), fresh("there"), fresh("exchange")
    channel.queue_declare(here, durable=True)
    channel.queue_declare(there, durable=True, arguments=ELSEWHERE)
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_bind(here, exchange, "here.#")
    channel.queue_bind(here, exchange, "both.#")
    channel.queue_bind(there, exchange, "there.#")
    channel.queue_bind(there, exchange, "both.#")
    publishers = {
        key: Publisher(front, exchange, f"{key}.x", begin)
        for key, begin in (("here", 0), ("there", 1_000_000), ("both", 2_000_000))
    }
    for publisher in publishers.values():
        publisher.start()
    for victim in (groups.fast, groups.main, front, groups.fast, front, groups.main):
        before = {key: len(publisher.confirmed) for key, publisher in publishers.items()}
        if isinstance(victim, BrokerProcess):
            victim.kill()
            victim.start()
        else:
            victim.kill(victim.leader)
            victim.whole()
        _wait_for_more(publishers, before)
    for publisher in publishers.values():
        publisher.stopping = True
    for publisher in publishers.values():
        publisher.join(30)
        assert publisher.told, "nobody was disturbed"
    got = {queue: _drained(front, queue) for queue in (here, there)}
    confirmed = {key: set(publisher.confirmed) for key, publisher in publishers.items()}
    assert confirmed["here"] | confirmed["both"] <= got[here]
    assert confirmed["there"] | confirmed["both"] <= got[there]


def _wait_for_more(publishers: dict[str, Publisher], before: dict[str, int]) -> None:
    deadline = time.monotonic() + 40
    while any(len(one.confirmed) < before[key] + 20 for key, one in publishers.items()):
        assert time.monotonic() < deadline, {key: one.told[-3:] for key, one in publishers.items()}
        time.sleep(0.05)


def _drained(front: BrokerProcess, queue: str) -> set[int]:
    channel = connected(front)
    found: set[int] = set()
    for _, properties, body in channel.consume(queue, inactivity_timeout=2):
        if body is None:
            break
        assert isinstance(properties, pika.BasicProperties)
        found.add(int(body))
    channel.cancel()
    return found
