"""Clients of members that do not lead: passed on to the leader as who they are, or told where to go."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from helpers.broker import SOURCE, BrokerProcess
from helpers.etcd import Etcd
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError
from system.cluster.cluster import Cluster, fresh, wait_until

from tidemark.client import NotConnected
from tidemark.client import connect as stream_connect

MiB = 1 << 20


def connection(cluster: Cluster, name: str) -> pika.BlockingConnection:
    where = cluster.address(name)
    return pika.BlockingConnection(
        pika.ConnectionParameters(where.host, where.port, socket_timeout=5, stack_timeout=10)
    )


def local_port(link: pika.BlockingConnection) -> int:
    raw: socket.socket = link._impl._transport._sock
    port: int = raw.getsockname()[1]
    return port


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_may_connect_anywhere_and_the_leader_knows_it_as_who_it_is(cluster: Cluster) -> None:
    """X-4, X-25: by default a backup passes clients on: all end at the leader."""
    queue, backup = fresh("anywhere"), cluster.backups[0]
    link = connection(cluster, backup)
    channel = link.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"over the backup")
    with cluster.channel(cluster.leader) as direct:
        _, _, body = direct.basic_get(queue, auto_ack=True)

    assert body == b"over the backup"
    named = f"127.0.0.1:{local_port(link)} -> 127.0.0.1:{cluster.address(backup).port}"
    assert named in [one["name"] for one in cluster.admin(cluster.leader, "GET", "/api/connections")]
    link.close()


def test_a_client_that_comes_while_the_leader_hangs_is_served_when_another_leads(cluster: Cluster) -> None:
    """S-10, A-71: at every backup, those that wait are neither closed nor left with the one that hangs: all are answered as soon
    as the first one is."""
    began: dict[socket.socket, str] = {}
    answered: dict[socket.socket, tuple[float, bytes]] = {}
    leader, backups = cluster.leader, cluster.backups
    cluster.freeze(leader)
    deadline = time.monotonic() + 30
    try:
        while len(answered) < len(began) or not answered:
            assert time.monotonic() < deadline, f"{len(began) - len(answered)} of {len(began)} wait for ever"
            for name in backups if not answered else ():
                where = cluster.address(name)
                one = socket.create_connection((where.host, where.port))
                one.sendall(b"AMQP\x00\x00\x09\x01")
                began[one] = name
            for one in select.select([one for one in began if one not in answered], [], [], 0.1)[0]:
                answered[one] = time.monotonic(), one.recv(100)
    finally:
        for one in began:
            one.close()
        cluster.thaw(leader)

    assert [began[one] for one, (_, heard) in answered.items() if not heard.startswith(b"\x01")] == []
    times = [when for when, _ in answered.values()]
    assert max(times) - min(times) < 1, "some were left with the member that hangs"


def test_large_messages_pass_a_backup_both_ways(cluster: Cluster) -> None:
    queue = fresh("large")
    bodies = [bytes([number]) * (MiB * number) for number in range(1, 9)]
    with cluster.channel(cluster.backups[0]) as channel:
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body)
    with cluster.channel(cluster.backups[1]) as channel:
        found = [channel.basic_get(queue, auto_ack=True)[2] for _ in bodies]

    assert found == bodies


def test_a_client_that_does_not_read_costs_the_backup_no_memory(cluster: Cluster) -> None:
    queue, backup = fresh("unread"), cluster.backups[0]
    with cluster.channel(cluster.leader) as channel:
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for _ in range(80):
            channel.basic_publish("", queue, b"x" * MiB)
    pid = cluster.trial.processes[backup].pid
    before = resident_bytes(pid)
    link = connection(cluster, backup)
    channel = link.channel()
    # Written past the client's own loop, which would read the answers.
    channel._impl.basic_consume(queue, lambda *_: None, auto_ack=True)
    link._flush_output()
    time.sleep(2)

    assert resident_bytes(pid) - before < 30 * MiB
    link._impl._transport._sock.close()
    with cluster.channel(cluster.leader) as channel:
        channel.queue_delete(queue)


def test_a_stream_client_is_passed_on_too(cluster: Cluster) -> None:
    where = cluster.address(cluster.backups[0])
    with stream_connect(f"tidemark://guest:guest@{where.host}:{where.port}/") as client:
        stream = client.stream(fresh("stream"), create=True, key="explicit")
        stream.put(b"key", b"value")
        row = stream.get(b"key")

    assert row is not None and bytes(row.value) == b"value"


def test_a_wrong_password_is_refused_as_by_the_leader_itself(cluster: Cluster) -> None:
    where = cluster.address(cluster.backups[0])
    parameters = pika.ConnectionParameters(
        where.host, where.port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(AMQPError, match="403"):
        pika.BlockingConnection(parameters)


def test_when_the_leader_dies_its_relayed_clients_are_cut_at_once(cluster: Cluster) -> None:
    """U-11: no client is left without a word when whoever served it is gone."""
    link = connection(cluster, cluster.backups[0])
    channel = link.channel()
    channel.queue_declare(fresh("cut"), durable=True)
    began_s = cluster.kill(cluster.leader)
    with pytest.raises(AMQPError):
        link.process_data_events(10)

    assert time.monotonic() - began_s < 2


@pytest.fixture(scope="module", params=["redirect", "reject"])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose backups pass nobody on."""
    settings = {"cluster.client_access": request.param}
    cluster = Cluster(tmp_path_factory.mktemp("strict"), "standby", nodes=2, settings=settings)
    yield cluster.start()
    cluster.close()


def test_a_backup_that_passes_nobody_on_says_where_the_leader_is(strict: Cluster) -> None:
    """X-4: redirect and reject. K-42, K-58: a write at the wrong node is an error that names the head."""
    [backup] = strict.backups
    leader = strict.address(strict.leader)
    with pytest.raises(AMQPError, match=f"320.*connect to {strict.leader} at {leader.host}:{leader.port}"):
        connection(strict, backup)
    with strict.channel(strict.leader) as channel:
        channel.queue_declare(fresh("direct"))


def test_a_stream_client_of_such_a_backup_is_told_too_and_follows_a_redirection(strict: Cluster) -> None:
    """X-4, X-25, K-58: the library follows a redirection to the leader."""
    where = strict.address(strict.backups[0])
    url = f"tidemark://guest:guest@{where.host}:{where.port}/"
    if strict.trial.settings["cluster.client_access"] == "redirect":
        with stream_connect(url, timeout=5) as db:
            assert db.node == strict.leader
    else:
        with pytest.raises(NotConnected, match=f"connect to {strict.leader} at"):
            stream_connect(url, timeout=2)


def test_a_backup_that_passes_nobody_on_still_serves_readers(strict: Cluster) -> None:
    name = fresh("read")
    leader, backup = strict.address(strict.leader), strict.address(strict.backups[0])
    url = f"tidemark://guest:guest@{leader.host}:{leader.port},{backup.host}:{backup.port}/"
    with stream_connect(url, read_from="tail") as db:
        stream = db.stream(name, create=True)
        stream.put("k", "v")
        assert db.reading_from == strict.backups[0]
        assert [row.value for row in stream.snapshot()] == [b"v"]


# Without a leader ------------------------------------------------------------------------------------------------------


def settings(etcd: Etcd, secret: Path | None, size: int) -> list[str]:
    chosen = ["cluster.name=shop", f"cluster.etcd={etcd.endpoint}", f"cluster.size={size}"]
    if secret is not None:
        secret.write_text("a secret of these tests, long enough")
        secret.chmod(0o600)
        chosen.append(f"cluster.secret_file={secret}")
    return [word for one in chosen for word in ("--set", one)]


Start = Callable[..., BrokerProcess]


def test_without_a_leader_a_client_waits_a_little_and_is_told(
    etcd: Etcd, start_broker: Start, tmp_path: Path
) -> None:
    member = start_broker("--name", "a", "--peer", "127.0.0.1:0", *settings(etcd, tmp_path / "secret", 2))
    assert re.search(r" peer=127\.0\.0\.1:\d+ state=joining pid=\d+$", member.ready_line)
    began_s = time.monotonic()
    with pytest.raises(AMQPError, match=r"320.*no member of the cluster leads now; try again"):
        pika.BlockingConnection(pika.ConnectionParameters(member.address.host, member.address.port))

    assert 0.8 < time.monotonic() - began_s < 4
    member.stop()


def test_a_client_that_waits_is_served_as_soon_as_the_member_leads_itself(
    etcd: Etcd, start_broker: Start, tmp_path: Path
) -> None:
    member = start_broker("--name", "a", "--peer", "127.0.0.1:0", *settings(etcd, tmp_path / "secret", 1))
    where = member.address
    with pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port)) as link:
        channel = link.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x")
    member.stop()


def test_a_member_that_was_alone_keeps_all_when_it_starts_again(
    etcd: Etcd, start_broker: Start, tmp_path: Path
) -> None:
    """Q-81: KILL the only member of a cluster: it starts again by itself, with everything."""
    member = start_broker("--name", "a", "--peer", "127.0.0.1:0", *settings(etcd, tmp_path / "secret", 1))
    where = member.address
    with pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port)) as link:
        channel = link.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", "q", str(number).encode(), pika.BasicProperties(delivery_mode=2))
    member.kill()
    member.start()
    time.sleep(0.3)
    link = pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port))
    found = [link.channel().basic_get("q", auto_ack=True)[2] for _ in range(50)]

    assert found == [str(number).encode() for number in range(50)]
    link.close()


def test_a_leader_that_cannot_prove_it_leads_tells_its_clients_nothing_until_it_can(
    etcd: Etcd, start_broker: Start, tmp_path: Path
) -> None:
    member = start_broker("--name", "a", "--peer", "127.0.0.1:0", *settings(etcd, tmp_path / "secret", 1))
    where = pika.ConnectionParameters(member.address.host, member.address.port)
    link = pika.BlockingConnection(where)
    channel = link.channel()
    channel.queue_declare("q", durable=True)
    etcd.pause()
    log = member.log_path
    wait_until("the lease has run out", lambda: "state=fenced" in log.read_text())
    threading.Timer(2, etcd.resume).start()
    with pytest.raises(AMQPError, match="no member of the cluster leads now"):
        pika.BlockingConnection(where)
    assert "state=active" not in log.read_text().rpartition("state=fenced")[2]
    channel.queue_declare("q", passive=True)

    after = log.read_text().rpartition("state=fenced")[2]
    assert "state=active" in after, "it was answered while nobody could know whether it was true"
    link.close()


def test_a_member_that_others_cannot_reach_or_that_anybody_could_join_does_not_start(
    etcd: Etcd, tmp_path: Path
) -> None:
    """H-39: members have real addresses of their own: one that is not this machine's alone is refused."""
    for address, secret, words in (
        ("0.0.0.0:0", tmp_path / "secret", "must be the address by which other members reach this one"),
        ("127.0.0.1:0", tmp_path / "short", "must hold at least 16 bytes"),
    ):
        chosen = settings(etcd, secret, 1)
        if secret.name == "short":
            secret.write_text("secret")
        command = [sys.executable, "-m", "tidemark", "serve", "--data", str(tmp_path / "data")]
        command += ["--amqp", "127.0.0.1:0", "--admin", "", "--peer", address, *chosen]
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 2, done.stderr
        assert words in done.stderr


# Who is served where ---------------------------------------------------------------------------------------------------


def test_a_client_with_a_list_of_addresses_ends_at_the_leader(strict: Cluster) -> None:
    """Q-5, H-3, H-36: a backup that passes nobody on ends the connection, and client libraries try the next address."""
    [backup], leader = strict.backups, strict.leader
    places = [strict.address(backup), strict.address(leader)]
    began_s = time.monotonic()
    link = pika.BlockingConnection(
        [pika.ConnectionParameters(one.host, one.port, socket_timeout=5, stack_timeout=10) for one in places]
    )
    took_s = time.monotonic() - began_s
    raw: socket.socket = link._impl._transport._sock
    assert raw.getpeername()[1] == places[1].port
    assert took_s < 2
    link.channel().queue_declare(fresh("list"), durable=True)
    link.close()
    with stream_connect(
        "tidemark://guest:guest@" + ",".join(f"{one.host}:{one.port}" for one in places)
    ) as db:
        assert db.node == leader


def test_a_backup_serves_nobody_from_its_first_moment_on(strict: Cluster) -> None:
    """Q-4: connect again and again while it starts, catches up and is ready: never accepted."""
    [backup] = strict.backups
    strict.kill(backup)
    over, served, refused = threading.Event(), [], [0]

    def knock() -> None:
        while not over.is_set():
            try:
                served.append(connection(strict, backup))
            except (AMQPError, AMQPConnectorException, OSError):
                refused[0] += 1

    knocking = [threading.Thread(target=knock, daemon=True) for _ in range(3)]
    for one in knocking:
        one.start()
    strict.restart(backup)
    strict.await_state(backup, "ready")
    at_ready = refused[0]
    wait_until("it was asked when it was ready, too", lambda: refused[0] > at_ready + 10 or served)
    over.set()
    for one in knocking:
        one.join(20)

    assert served == []
    assert at_ready > 10
