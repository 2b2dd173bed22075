"""A real front moves on what lies in stand-ins and outboxes of two groups of real brokers; nothing is lost when it is killed."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from helpers.etcd import PROGRAM, Etcd
from helpers.front import FrontProcess
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ProbableAuthenticationError
from system.cluster.cluster import PERSISTENT, Cluster, fresh, wait_until
from system.cluster.test_groups import Groups, peers

from tidemark.broker.groups import OUTBOX
from tidemark.model.wiring import FRONT_USER

ELSEWHERE = {"x-group": "fast"}
Start = Callable[[], FrontProcess]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    directory = tmp_path_factory.mktemp("groups")
    etcd = Etcd(directory / "etcd").start()
    made = Groups(directory, etcd.endpoint, members=1)
    try:
        yield made.start()
    finally:
        made.close()
        etcd.close()


@pytest.fixture
def start_front(groups: Groups, tmp_path: Path) -> Iterator[Start]:
    started: list[FrontProcess] = []

    def start() -> FrontProcess:
        places = {
            name: ",".join(f"{member}@{place.host}:{place.port}" for member, place in peers(cluster).items())
            for name, cluster in (("main", groups.main), ("fast", groups.fast))
        }
        name = f"front-{len(started)}"
        secret = groups.main.trial.directory.parent / "secret"
        arguments = ("--name", name, "--cluster.name", "shop", "--cluster.secret-file", str(secret))
        front = FrontProcess(tmp_path / name, *arguments, **places)
        started.append(front)
        return front.start()

    yield start
    for front in started:
        front.close()


def connected(front: FrontProcess) -> BlockingChannel:
    address = front.address
    return pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port)).channel()


def published_at_main(main: Cluster, queue: str, numbers: range) -> None:
    with main.channel() as channel:
        channel.confirm_delivery()
        for number in numbers:
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


def held(cluster: Cluster, queue: str) -> int:
    """How many messages are in a queue; -1: there is no such queue."""
    return cluster.queues(cluster.leader).get(queue, -1)


def taken(channel: BlockingChannel, queue: str) -> Counter[int]:
    found: Counter[int] = Counter()
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found[int(body)] += 1
    return found


def test_dead_letters_of_a_group_reach_queues_of_all_groups(groups: Groups, start_front: Start) -> None:
    channel = connected(start_front())
    dying, here, there, exchange = fresh("dying"), fresh("here"), fresh("there"), fresh("dead")
    channel.exchange_declare(exchange, "fanout", durable=True)
    channel.queue_declare(here, durable=True)
    channel.queue_declare(there, durable=True, arguments=ELSEWHERE)
    arguments = ELSEWHERE | {"x-dead-letter-exchange": exchange, "x-message-ttl": 10}
    channel.queue_declare(dying, durable=True, arguments=arguments)
    for queue in (here, there):
        channel.queue_bind(queue, exchange)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", dying, b"%d" % number, PERSISTENT)
    wait_until("all letters are in main", lambda: held(groups.main, here) == 20)
    wait_until("all letters are in fast", lambda: held(groups.fast, there) == 20)
    wait_until("the outbox is empty", lambda: held(groups.fast, OUTBOX) == 0)
    method, properties, _ = channel.basic_get(there)
    assert (method.exchange, method.routing_key) == (exchange, dying)
    assert properties.headers["x-death"][0]["queue"] == dying


def test_what_a_client_publishes_at_mains_own_port_is_moved(groups: Groups, start_front: Start) -> None:
    channel = connected(start_front())
    queue = fresh("q")
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    published_at_main(groups.main, queue, range(100))
    wait_until("all is in fast", lambda: held(groups.fast, queue) == 100)
    wait_until("nothing is in main", lambda: held(groups.main, queue) == 0)
    assert [int(channel.basic_get(queue, auto_ack=True)[2]) for _ in range(100)] == list(range(100))


def test_nothing_is_lost_when_a_front_is_killed_in_the_middle(groups: Groups, start_front: Start) -> None:
    first = start_front()
    channel = connected(first)
    queue = fresh("q")
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    channel.connection.close()
    first.stop()
    published_at_main(groups.main, queue, range(2000))
    left: list[int] = []
    while len(left) < 3 and 0 not in left:
        front, before = start_front(), max(0, held(groups.fast, queue))
        wait_until("it moves", lambda before=before: held(groups.fast, queue) > before)
        front.kill()
        left.append(held(groups.main, queue))
    assert left[0] > 0, "the first was killed in the middle"
    channel = connected(start_front())
    wait_until("nothing is in main", lambda: held(groups.main, queue) == 0)
    found = taken(channel, queue)
    assert set(found) == set(range(2000))
    # A front holds 32 of a queue at a time.
    assert found.total() - 2000 <= 3 * 32


@pytest.mark.parametrize("victim", ["main", "fast"])
def test_nothing_is_lost_when_a_group_is_killed_in_the_middle(
    groups: Groups, start_front: Start, victim: str
) -> None:
    front = start_front()
    channel = connected(front)
    queue = fresh("q")
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    front.pause()
    published_at_main(groups.main, queue, range(1000))
    front.resume()
    wait_until("it moves", lambda: held(groups.fast, queue) > 0)
    cluster = {"main": groups.main, "fast": groups.fast}[victim]
    cluster.kill(cluster.leader)
    cluster.whole()
    wait_until("nothing is in main", lambda: held(groups.main, queue) == 0, 60)
    found = taken(connected(front), queue)
    assert set(found) == set(range(1000))


def test_a_queue_that_was_deleted_behind_mains_back_is_made_again(groups: Groups, start_front: Start) -> None:
    front = start_front()
    channel = connected(front)
    queue = fresh("q")
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    with groups.fast.channel() as there:
        there.queue_delete(queue)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    wait_until("it is there again", lambda: held(groups.fast, queue) == 10)
    assert held(groups.main, queue) == 0
    assert "queue made again" in front.log_path.read_text()


def test_a_front_at_rest_has_no_connection_for_itself(groups: Groups, start_front: Start) -> None:
    channel = connected(start_front())
    queue = fresh("q")
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    published_at_main(groups.main, queue, range(1))
    wait_until("it is moved", lambda: held(groups.fast, queue) == 1)

    def users() -> list[str]:
        return [
            one["user"]
            for cluster in (groups.main, groups.fast)
            for one in cluster.admin(cluster.leader, "GET", "/api/connections")
        ]

    began = time.monotonic()
    wait_until("it has left", lambda: FRONT_USER not in users(), 30)
    assert time.monotonic() - began < 30 and "guest" in users()


def test_nobody_logs_in_under_the_name_of_a_front(groups: Groups, start_front: Start) -> None:
    front = start_front()
    login = pika.PlainCredentials(FRONT_USER, "")
    for address in (
        front.address,
        groups.main.address(groups.main.leader),
        groups.fast.address(groups.fast.leader),
    ):
        with pytest.raises(ProbableAuthenticationError):
            pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port, credentials=login))
