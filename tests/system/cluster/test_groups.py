"""Two groups of one cluster, of real brokers on one etcd: they do not mix, main tells fronts its wiring whoever leads, and
fronts publish to queues that they name."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from helpers.broker import parse_address
from helpers.etcd import PROGRAM, Etcd
from pika.exceptions import ChannelClosedByBroker, UnroutableError
from system.cluster.cluster import PERSISTENT, Cluster, fresh, wait_until

from tidemark.broker.groups import OUTBOX
from tidemark.config import Address
from tidemark.errors import PeerRefused
from tidemark.model.wiring import FRONT_USER
from tidemark.runtime.log import Log
from tidemark.runtime.wiring_link import WiringLink
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.properties import Properties, encode_properties
from tidemark.wire.peer.handshake import Client, Dialler, LinkKind
from tidemark.wire.peer.wiring import Decoder, Greeting, Message, Ping, Waiting, Whole

SECRET = b"a secret of all groups of the shop"
PLAIN = encode_properties(Properties())


class Groups:
    """The groups main (two members, if not said otherwise) and fast (one) of the cluster shop."""

    def __init__(self, directory: Path, etcd: str, members: int = 2) -> None:
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        common = {"cluster.name": "shop", "cluster.secret_file": str(secret)}
        self.main = Cluster(
            directory / "main",
            "standby",
            nodes=members,
            etcd=etcd,
            settings=common | {"cluster.groups": "fast=chain"},
        )
        self.fast = Cluster(
            directory / "fast", "chain", nodes=1, etcd=etcd, settings=common | {"cluster.group": "fast"}
        )

    def start(self) -> Groups:
        self.main.trial.up()
        self.fast.trial.up()
        self.main.trial.wait_whole()
        self.fast.trial.wait_whole()
        return self

    def close(self) -> None:
        self.main.close()
        self.fast.close()


@contextmanager
def running(directory: Path) -> Iterator[Groups]:
    """Both groups, and the etcd that they share."""
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    etcd = Etcd(directory / "etcd").start()
    made = Groups(directory, etcd.endpoint)
    try:
        yield made.start()
    finally:
        made.close()
        etcd.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    with running(tmp_path_factory.mktemp("groups")) as groups:
        yield groups


@pytest.fixture
def groups(shared: Groups) -> Groups:
    """The two groups, whole."""
    shared.main.whole()
    shared.fast.whole()
    return shared


def peers(cluster: Cluster) -> dict[str, Address]:
    return {name: parse_address(place.peer) for name, place in cluster.trial.members.items()}


class Front:
    """The copy of the wiring in a front, in a loop of its own."""

    def __init__(self, main: Cluster) -> None:
        self.lines = io.StringIO()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.link: WiringLink = self._called(lambda: self._made(main))

    def _made(self, main: Cluster) -> WiringLink:
        log = Log("debug", stream=self.lines)
        link = WiringLink("front", "shop", SECRET, peers(main), Amqp091Content(), log)
        link.start()
        return link

    def _called(self, what: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def fresh(self, timeout_s: float = 30) -> None:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(self.link.copy.fresh, answered.set)
        assert answered.wait(timeout_s), self.lines.getvalue()

    def ask(self, what: Callable[[Any], Any]) -> Any:
        """What the copy answers, when it is fresh."""
        self.fresh()
        return self._called(lambda: what(self.link.copy.copy))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.link.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture
def front(groups: Groups) -> Iterator[Front]:
    made = Front(groups.main)
    yield made
    made.close()


def dialled(
    cluster: Cluster, identity: str, name: str, kind: LinkKind, client: Client | None = None
) -> socket.socket:
    """A link to a member that has been welcome.

    Raises:
        PeerRefused: it was not.
    """
    where = peers(cluster)[name]
    link = socket.create_connection((where.host, where.port), 10)
    handshake = Dialler("front", identity, SECRET, os.urandom(32), name, client, kind)
    while not handshake.done:
        out = handshake.output()
        if out:
            link.sendall(out)
        data = link.recv(1)
        assert data, "the link was closed"
        handshake.receive(data)
    return link


class Door:
    """Takes one connection of a client library and carries it over a link of a front."""

    def __init__(self, cluster: Cluster, identity: str, kind: LinkKind = LinkKind.FRONT) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._link = dialled(cluster, identity, cluster.leader, kind, Client("127.0.0.1", 4711))
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        client, _ = self._listener.accept()
        threading.Thread(target=self._pour, args=(client, self._link), daemon=True).start()
        self._pour(self._link, client)

    @staticmethod
    def _pour(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        target.close()


def test_groups_of_one_cluster_have_leaders_and_queues_of_their_own(groups: Groups) -> None:
    main, fast = groups.main, groups.fast
    assert set(main.names) & set(fast.names), "they even have names in common"
    assert main.look()[main.leader].status["ready"] == [main.leader, *main.backups]
    assert fast.look()[fast.leader].status["ready"] == [fast.leader]
    assert main.look()[main.leader].status["cluster"] != fast.look()[fast.leader].status["cluster"]
    queue = fresh("q")
    main.declare(queue, **{"x-group": "fast"})
    assert queue in main.queues(main.leader) and queue not in fast.queues(fast.leader)
    assert main.admin(main.backups[0], "GET", f"/api/queues/%2F/{queue}")["group"] == "fast"
    with pytest.raises(PeerRefused, match=r"is of cluster 'shop', .* of 'shop/groups/fast'"):
        dialled(fast, "shop", fast.leader, LinkKind.REPLICA)


def test_a_front_has_the_wiring_of_whoever_leads_main(groups: Groups, front: Front) -> None:
    main = groups.main
    with main.channel() as channel:
        for n in range(20):
            name = f"q{n}"
            channel.queue_declare(name, durable=True, arguments={"x-cluster-mode": "chain"})
            channel.queue_bind(name, "amq.topic", "k.#")
            assert front.ask(lambda copy, name=name: copy.group_of("/", name)) == "fast"
        channel.queue_declare("here", exclusive=True)
        channel.queue_bind("here", "amq.topic", "k.#")
        expected = {"fast": [f"q{n}" for n in range(20)], "main": ["here"]}
        assert front.ask(lambda copy: copy.routes("/", b"amq.topic", b"k.1", PLAIN, user="guest")) == expected
    leader = main.leader
    assert front.link.leader == leader
    main.kill(leader)
    wait_until("another leads", lambda: front.link.leader not in ("", leader))
    expected = {"fast": [f"q{n}" for n in range(20)]}
    assert front.ask(lambda copy: copy.routes("/", b"amq.topic", b"k.1", PLAIN, user="guest")) == expected


def test_a_leader_that_was_frozen_answers_no_echo_after_another_leads(groups: Groups, front: Front) -> None:
    main = groups.main
    front.fresh()
    old = main.leader
    main.freeze(old)
    wait_until("another leads", lambda: main.trial.leader() not in (None, "", old))
    new = main.leader
    with main.channel(new) as channel:
        channel.queue_declare("declared meanwhile", durable=True)
    assert front.ask(lambda copy: copy.group_of("/", "declared meanwhile")) == "main"
    main.thaw(old)
    assert front.ask(lambda copy: copy.group_of("/", "declared meanwhile")) == "main"


def test_when_an_operator_has_another_member_lead_fronts_follow(groups: Groups, front: Front) -> None:
    main = groups.main
    front.fresh()
    leader, heir = main.leader, main.backups[0]
    main.admin(heir, "POST", "/api/tidemark/cluster/promote", {})
    wait_until("the front is told by the new leader", lambda: front.link.leader == heir)
    with main.channel() as channel:
        channel.queue_declare("after", durable=True)
    assert front.ask(lambda copy: copy.group_of("/", "after")) == "main"
    wait_until("the old one knows of no front", lambda: "front gone" in main.log(leader))


def test_another_group_has_no_wiring_to_give(groups: Groups) -> None:
    fast = groups.fast
    link, decoder = dialled(fast, "shop/groups/fast", fast.leader, LinkKind.WIRING), Decoder()
    link.settimeout(10)
    heard: list[Message] = []
    while Ping() not in heard:
        heard += decoder.feed(link.recv(4096))
    assert [type(message) for message in heard if not isinstance(message, Waiting)] == [Greeting, Whole, Ping]


def test_a_front_publishes_to_queues_that_it_names_and_a_relayed_client_cannot(groups: Groups) -> None:
    main = groups.main
    a, b = fresh("a"), fresh("b")
    main.declare(a, b)
    headers = {"x-tidemark-to": [a, b, "gone"], "x-tidemark-exchange": "orders", "x-tidemark-key": "new.7"}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    door = Door(main, "shop")
    link = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", door.port))
    channel = link.channel()
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish("", "", b"by a front", properties)
    method, shown, body = channel.basic_get(b, auto_ack=True)
    assert (body, method.exchange, method.routing_key) == (b"by a front", "orders", "new.7")
    assert not shown.headers
    assert [one.method.reply_text for one in returned.value.messages] == ["gone"]
    assert any(":4711" in one["name"] for one in main.admin(main.leader, "GET", "/api/connections"))
    link.close()
    with main.channel(main.backups[0]) as relayed:
        relayed.confirm_delivery()
        with pytest.raises(UnroutableError):
            relayed.basic_publish("", "", b"by a client", properties, mandatory=True)
    main.await_equal()
    held = main.queues(main.leader)
    assert (held[a], held[b]) == (1, 0)


def test_a_dead_letter_of_another_group_waits_for_main_and_survives_its_leader(groups: Groups) -> None:
    fast = groups.fast
    queue = fresh("dying")
    fast.declare(queue, **{"x-dead-letter-exchange": "in main", "x-message-ttl": 10})
    with fast.channel() as channel:
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"letter", PERSISTENT)
    wait_until("it is dead", lambda: fast.queues(fast.leader).get(OUTBOX) == 1)
    fast.kill(fast.leader)
    fast.whole()
    with fast.channel() as channel, pytest.raises(ChannelClosedByBroker, match="the broker's own"):
        channel.basic_get(OUTBOX)
    door = Door(fast, "shop/groups/fast", LinkKind.OWN)
    front = pika.PlainCredentials(FRONT_USER, "")
    link = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", door.port, credentials=front))
    _, properties, body = link.channel().basic_get(OUTBOX)
    assert body == b"letter" and properties.headers["x-tidemark-exchange"] == "in main"
    assert properties.headers["x-tidemark-key"] == queue
    assert properties.headers["x-death"][0]["queue"] == queue
    link.close()
