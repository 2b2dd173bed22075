"""Two groups of one cluster behind one front: to ordinary clients they are one broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from helpers.broker import BrokerProcess
from helpers.front import FrontProcess
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAuthenticationError,
    UnroutableError,
)
from system.cluster.cluster import PERSISTENT, fresh, wait_until
from system.cluster.test_groups import Groups, peers, running

ELSEWHERE = {"x-group": "fast"}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    with running(tmp_path_factory.mktemp("groups")) as made:
        yield made


def front_of(groups: Groups, place: Path, *names: str) -> FrontProcess:
    """A front of these groups, which are whole."""
    places = {}
    for name in names:
        cluster = getattr(groups, name)
        cluster.whole()
        found = peers(cluster).items()
        places[name] = ",".join(f"{member}@{where.host}:{where.port}" for member, where in found)
    secret = groups.main.trial.directory.parent / "secret"
    arguments = ("--name", "front", "--cluster.name", "shop", "--cluster.secret-file", str(secret))
    return FrontProcess(place, *arguments, **places).start()


@pytest.fixture
def front(groups: Groups, tmp_path: Path) -> Iterator[BrokerProcess]:
    process = front_of(groups, tmp_path / "front", "main", "fast")
    yield process
    process.close()


def connected(front: BrokerProcess) -> BlockingChannel:
    address = front.address
    return pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port)).channel()


def declared(channel: BlockingChannel) -> tuple[str, str, str]:
    """A queue of main, one of the other group, and an exchange that both are bound to."""
    here, there, exchange = fresh("here"), fresh("there"), fresh("exchange")
    channel.queue_declare(here, durable=True)
    channel.queue_declare(there, durable=True, arguments=ELSEWHERE)
    channel.exchange_declare(exchange, "topic", durable=True)
    for queue in (here, there):
        channel.queue_bind(queue, exchange, "a.#")
    return here, there, exchange


def test_a_message_reaches_the_queues_of_both_groups(groups: Groups, front: BrokerProcess) -> None:
    channel = connected(front)
    here, there, exchange = declared(channel)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish(exchange, "a.b", b"%d" % number, PERSISTENT, mandatory=True)
    with pytest.raises(UnroutableError):
        channel.basic_publish(exchange, "b", b"", PERSISTENT, mandatory=True)
    assert groups.main.queues(groups.main.leader)[there] == 0
    assert groups.fast.queues(groups.fast.leader)[there] == 20
    got: list[tuple[str, Any]] = []
    for queue in (here, there):
        channel.basic_consume(
            queue, lambda _, method, __, body, queue=queue: got.append((queue, (method, body)))
        )
    wait_until("all is here", lambda: channel.connection.process_data_events(0.1) or len(got) == 40)
    assert sorted(method.delivery_tag for _, (method, _) in got) == list(range(1, 41))
    assert {(method.exchange, method.routing_key) for _, (method, _) in got} == {(exchange, "a.b")}
    for queue in (here, there):
        bodies = [body for name, (_, body) in got if name == queue]
        assert bodies == [b"%d" % number for number in range(20)]
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert connected(front).queue_declare(there, passive=True).method.message_count == 0
    assert groups.main.queues(groups.main.leader)[here] == 0


def test_what_was_confirmed_survives_the_leader_of_either_group(groups: Groups, front: BrokerProcess) -> None:
    channel = connected(front)
    here, there, exchange = declared(channel)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish(exchange, "a", b"%d" % number, PERSISTENT)
    for cluster in (groups.fast, groups.main):
        connection = connected(front).connection
        connection.channel().queue_declare(there, passive=True)
        cluster.kill(cluster.leader)
        with pytest.raises(ConnectionClosedByBroker, match="the leader of group"):
            _until_closed(connection)
        cluster.whole()
    channel = connected(front)
    for queue in (here, there):
        got = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(50)]
        assert got == [b"%d" % number for number in range(50)]


def _until_closed(connection: pika.BlockingConnection) -> None:
    for _ in range(20):
        connection.process_data_events(1)


def test_main_sees_the_address_of_the_client(groups: Groups, front: BrokerProcess) -> None:
    channel = connected(front)
    port = channel.connection._impl._transport._sock.getsockname()[1]
    names = [one["name"] for one in groups.main.admin(groups.main.leader, "GET", "/api/connections")]
    assert any(f"127.0.0.1:{port} ->" in name for name in names)


def test_users_and_virtual_hosts_are_mains_alone(groups: Groups, front: BrokerProcess) -> None:
    user, vhost, queue = fresh("user"), fresh("vhost"), fresh("queue")
    for path, body in (
        (f"/api/vhosts/{vhost}", {}),
        (f"/api/users/{user}", {"password": "secret", "tags": ""}),
        (f"/api/permissions/{vhost}/{user}", {"configure": ".*", "write": ".*", "read": f"{queue}-not"}),
    ):
        groups.main.admin(groups.main.leader, "PUT", path, body)
    address = front.address
    login = pika.PlainCredentials(user, "secret")
    where = pika.ConnectionParameters(address.host, address.port, vhost, login)
    channel = pika.BlockingConnection(where).channel()
    channel.queue_declare(queue, durable=True, arguments=ELSEWHERE)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"m", PERSISTENT, mandatory=True)
    assert groups.fast.admin(groups.fast.leader, "GET", f"/api/queues/{vhost}/{queue}")["messages"] == 1
    with pytest.raises(ChannelClosedByBroker, match="403"):
        channel.basic_get(queue)
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(
            pika.ConnectionParameters(address.host, address.port, vhost, pika.PlainCredentials(user, "wrong"))
        )


def test_a_queue_is_deleted_everywhere(groups: Groups, front: BrokerProcess) -> None:
    channel = connected(front)
    _, there, _ = declared(channel)
    channel.queue_delete(there)
    assert there not in groups.main.queues(groups.main.leader)
    assert there not in groups.fast.queues(groups.fast.leader)


def test_a_front_of_one_group_passes_on_what_clients_say_and_takes_nothing_for_its_own(
    groups: Groups, tmp_path: Path
) -> None:
    front = front_of(groups, tmp_path / "front", "main")
    try:
        channel = connected(front)
        queue = fresh("q")
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"x", PERSISTENT, mandatory=True)
        named = pika.BasicProperties(delivery_mode=2, headers={"x-tidemark-to": [queue]})
        with pytest.raises(UnroutableError):
            channel.basic_publish("", "", b"y", named, mandatory=True)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"x"
        assert channel.basic_get(queue)[0] is None
    finally:
        front.close()


def test_a_client_cannot_name_queues_through_a_front_of_several_groups(front: BrokerProcess) -> None:
    channel = connected(front)
    here, there, _ = declared(channel)
    channel.confirm_delivery()
    named = pika.BasicProperties(delivery_mode=2, headers={"x-tidemark-to": [here, there]})
    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish("", "", b"y", named, mandatory=True)
    assert [one.body for one in returned.value.messages] == [b"y"]
    for queue in (here, there):
        assert channel.basic_get(queue)[0] is None
