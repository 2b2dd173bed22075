"""Where members and clients of a cluster are, and what becomes of those who use one address, a list, or an address that moves.

Members reach one another on a network of their own (127.0.0.2), clients are on another (127.0.0.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aio_pika
import pika
import pytest
from helpers.broker import Address
from helpers.etcd import PROGRAM
from helpers.virtual_address import VirtualAddress
from system.cluster.cluster import PERSISTENT, Cluster, Publisher, drained, fresh, judge, wait_until

from tidemark.client import connect, waiting

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

MEMBERS_HOST, CLIENTS_HOST = "127.0.0.2", "127.0.0.1"
MiB = 1 << 20
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cluster.md").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    settings = {"cluster.lag_bytes": str(MiB)}
    made = Cluster(tmp_path_factory.mktemp("addresses"), "standby", settings=settings)
    for name, place in made.trial.members.items():
        port = place.peer.rpartition(":")[2]
        made.trial.members[name] = replace(place, peer=f"{MEMBERS_HOST}:{port}")
    yield made.start()
    made.close()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    return shared.whole()


def url(*addresses: Address) -> str:
    return f"tidemark://guest:guest@{','.join(f'{one.host}:{one.port}' for one in addresses)}/"


# Sockets --------------------------------------------------------------------------------------------------------------


def inodes(pid: int) -> set[str]:
    """Of the sockets that a process has open."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            words = str(file.readlink())
            if words.startswith("socket:["):
                found.add(words[8:-1])
    return found


def table(kind: str) -> list[list[str]]:
    """All sockets of a kind on this machine: `/proc/net/KIND` in words."""
    return [line.split() for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]


def place_of(words: str) -> str:
    """An address as `/proc/net/tcp` writes it, HOST:PORT."""
    host, _, port = words.partition(":")
    return f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}"


def pids(cluster: Cluster) -> dict[str, int]:
    return {name: cluster.trial.processes[name].pid for name in cluster.names}


def test_members_need_nothing_but_tcp(cluster: Cluster) -> None:
    """H-20: no multicast, no daemon for groups: no member has a socket of another kind that reaches beyond its machine."""
    beyond = {kind: {words[9] for words in table(kind)} for kind in ("udp", "udp6", "raw", "raw6")}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.bind((CLIENTS_HOST, 0))
        assert {words[9] for words in table("udp")} & inodes(os.getpid()), (
            "else nothing is found in these tables"
        )
    for name, pid in pids(cluster).items():
        mine = inodes(pid)
        assert mine & {words[9] for words in table("tcp")}
        assert not {kind for kind, found in beyond.items() if found & mine}, name


def test_members_speak_with_one_another_at_their_own_addresses_only(cluster: Cluster) -> None:
    """H-39: what is replicated, and clients that are passed on, go over the members' network; none of it touches the clients'."""
    backup = cluster.backups[0]
    with cluster.channel(backup) as channel:
        channel.queue_declare(fresh("passed-on"), durable=True)
        owner = {inode: name for name, pid in pids(cluster).items() for inode in inodes(pid)}
        ends = {}
        for words in table("tcp"):
            if words[3] == "01" and words[9] in owner:
                ends[place_of(words[1]), place_of(words[2])] = owner[words[9]]
    between = {
        pair: (name, ends[pair[::-1]])
        for pair, name in ends.items()
        if pair[::-1] in ends and ends[pair[::-1]] != name
    }
    peers = {place.peer for place in cluster.trial.members.values()}
    assert {frozenset(names) for names in between.values()} >= {
        frozenset((cluster.leader, one)) for one in cluster.backups
    }
    for pair, names in between.items():
        assert peers & set(pair), f"{names} are connected by {pair}"


# Following ------------------------------------------------------------------------------------------------------------


def test_a_backup_is_never_far_behind_under_load(cluster: Cluster) -> None:
    """H-4: half of what one writer reaches is put; a reader at a backup sees each row within 100 ms after its confirm."""
    name, count = fresh("real-time"), 300
    seen: dict[int, float] = {}

    def read() -> None:
        with connect(url(*cluster.addresses()), read_from="tail") as reader:
            nodes.append(reader.reading_from)
            for batch in reader.stream(name).follow(idle=10):
                now = time.monotonic()
                seen.update({row.sequence: now for row in batch})
                if len(seen) >= count + 1:
                    return

    nodes: list[str] = []
    with connect(url(*cluster.addresses())) as db:
        stream = db.stream(name, create=True)
        stream.put("warm", "up")
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        wait_until("the reader reads", lambda: seen)
        confirmed, pause = {}, 0.0
        for number in range(count):
            began = time.monotonic()
            sequence = stream.put(f"{number}", "x" * 100).sequence
            confirmed[sequence] = time.monotonic()
            pause = confirmed[sequence] - began
            time.sleep(pause)
        reading.join(15)
    assert nodes and nodes[0] in cluster.backups
    assert set(confirmed) <= set(seen)
    late = sorted(max(0.0, seen[sequence] - at) for sequence, at in confirmed.items())
    print(
        f"a backup shows a row {late[count // 2] * 1000:.1f} ms after its confirm, at most {late[-1] * 1000:.1f} ms"
    )
    assert late[count * 99 // 100] < 0.1


@pytest.mark.parametrize("recovers", [True, False])
def test_publishers_at_all_members_wait_for_a_member_that_does_not_keep_up(
    cluster: Cluster, recovers: bool
) -> None:
    """A-66, S-15: publishers at the leader and at a backup are told and wait while the other backup is frozen; all go on when it
    thaws, or when the cluster does without it."""
    queue = fresh("flow")
    cluster.declare(queue)
    leader, (relaying, frozen) = cluster.leader, cluster.backups
    told: dict[str, list[str]] = {leader: [], relaying: []}
    pipes = {name: pika.BlockingConnection(_parameters(cluster.address(name))) for name in told}
    for name, pipe in pipes.items():
        pipe.add_on_connection_blocked_callback(
            lambda _, frame, name=name: told[name].append(str(frame.method.reason))
        )
        pipe.add_on_connection_unblocked_callback(lambda *_, name=name: told[name].append("go on"))
    channels = {name: pipe.channel() for name, pipe in pipes.items()}
    cluster.freeze(frozen)
    began = time.monotonic()
    sent = 0
    while not all(told.values()) and time.monotonic() - began < 3:
        for name, pipe in pipes.items():
            if not told[name]:
                for _ in range(20):
                    channels[name].basic_publish("", queue, bytes(16 << 10), PERSISTENT)
                sent += 20
            pipe.process_data_events(0.02)
    assert [len(words) for words in told.values()] == [1, 1], told
    assert all(frozen in words[0] for words in told.values())
    with cluster.channel(relaying) as consumer:
        assert consumer.queue_declare(queue, passive=True), "whoever does not publish is served"
    if recovers:
        cluster.thaw(frozen)
    wait_until(
        "they go on",
        lambda: (
            [p.process_data_events(0.02) for p in pipes.values()]
            and all(w[-1] == "go on" for w in told.values())
        ),
    )
    cluster.thaw(frozen)
    for name, channel in channels.items():
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"after", PERSISTENT, mandatory=True)
        pipes[name].close()
    cluster.whole()
    with cluster.channel() as channel:
        assert channel.queue_delete(queue).method.message_count == sent + 2


def _parameters(address: Address) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(address.host, address.port, heartbeat=0)


# Clients --------------------------------------------------------------------------------------------------------------


def test_a_client_that_knows_one_address_recovers_when_it_moves_to_the_next_leader(cluster: Cluster) -> None:
    """H-16: KILL the leader, point the one address that clients have at the next; AMQP and stream clients go on by retrying.
    H-34: one virtual address is all that their URL names."""
    queue, name = fresh("virtual"), fresh("virtual")
    cluster.declare(queue)
    leader = cluster.leader
    virtual = VirtualAddress(cluster.address(leader))
    publisher = Publisher(cluster, queue)
    publisher._addresses = [virtual.address]
    with connect(url(virtual.address)) as db, publisher, db.producer(fresh("p")) as producer:
        db.stream(name, create=True)
        keys = [f"{number}" for number in range(40)]
        for key in keys[:20]:
            producer.put(name, key, "x")
        publisher.await_more(20)
        cluster.kill(leader)
        virtual.move(cluster.address(cluster.leader))
        for key in keys[20:]:
            producer.put(name, key, "x")
        publisher.await_more(20)
        assert [row.key for row in db.stream(name).snapshot()] == [key.encode() for key in keys]
    assert virtual.accepted >= 3
    virtual.close()
    judge(publisher, drained(cluster, queue))


def test_a_client_that_declares_what_it_needs_goes_on_where_its_queue_was_never_heard_of(
    cluster: Cluster,
) -> None:
    """H-75: a queue that was at the leader only is absent on the next one: a client that declares again when it is connected
    again makes it anew, and goes on."""
    name = fresh("made-anew")
    leader, backup = cluster.leader, cluster.backups[0]

    async def story() -> list[bytes]:
        where = cluster.address(backup)
        async with await aio_pika.connect_robust(
            f"{where.url()}?reconnect_interval=0.1&fail_fast=no"
        ) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True, arguments={"x-replicate": "none"})
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await message.ack()
                await received.put(message.body)

            await queue.consume(take)
            found = []
            for body in (b"1", b"2"):
                for _ in range(100):
                    with contextlib.suppress(Exception):  # the connection is gone, or not there again yet
                        await asyncio.wait_for(
                            channel.default_exchange.publish(aio_pika.Message(body), name), 1
                        )
                        found.append(await asyncio.wait_for(received.get(), 2))
                        break
                    await asyncio.sleep(0.1)
                if body == b"1":
                    assert not any(name in cluster.queues(other) for other in cluster.backups)
                    await asyncio.to_thread(cluster.kill, leader)
            await queue.delete(if_unused=False, if_empty=False)
            return found

    assert asyncio.run(story()) == [b"1", b"2"]


def test_the_example_of_the_page_keeps_of_each_queue_what_it_says(cluster: Cluster) -> None:
    """H-88: a client chooses by an argument when it declares; the example in docs/cluster.md runs as it stands."""
    [example] = [block for block in PAGE.split("```python\n")[1:] if "x-replicate" in block]
    address = cluster.address(cluster.leader)
    code = example.partition("```")[0].replace("127.0.0.1:5672", f"{address.host}:{address.port}")
    exec(compile(code, "docs/cluster.md", "exec"), {})
    expected = {"orders": "messages", "prices": "configuration", "progress": "none"}
    with cluster.channel() as channel:
        for queue in expected:
            channel.confirm_delivery()
            channel.basic_publish("", queue, b"1", PERSISTENT, mandatory=True)
    exchanges = [one["name"] for one in cluster.admin(cluster.backups[0], "GET", "/api/exchanges")]
    assert "audit" in exchanges and "ticks" not in exchanges
    held = cluster.queues(cluster.backups[0])
    assert {queue: held.get(queue) for queue in expected} == {"orders": 1, "prices": 0, "progress": None}
    with cluster.channel() as channel:
        for queue in expected:
            channel.queue_delete(queue)
        for exchange in ("audit", "ticks"):
            channel.exchange_delete(exchange)


def test_a_client_outlives_every_member_that_it_was_told_of(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-90: the client is given one address; a member joins, and all others are stopped one after the other, the leader last, so
    that the client is connected all the time until nobody is left whom it knew at first: it goes on at the new one."""
    monkeypatch.setattr(waiting, "REFRESH_S", 0.2)
    name = fresh("long-lived")
    leader, backups = cluster.leader, cluster.backups
    with connect(url(cluster.address(leader)), timeout=20) as db, db.producer(fresh("p")) as producer:
        stream = db.stream(name, create=True)
        stored: list[bytes] = []

        def put(count: int) -> None:
            for _ in range(count):
                producer.put(name, f"{len(stored)}", "x")
                stored.append(b"%d" % len(stored))

        put(10)
        [joined] = cluster.trial.join()
        cluster.await_state(joined, "ready")
        began = time.monotonic()
        while time.monotonic() - began < 1:
            put(1)
            time.sleep(0.05)
        for leaving in (*backups, leader):
            cluster.stop(leaving)
            put(10)
        assert db.node == joined
        assert [row.key for row in stream.snapshot()] == stored
