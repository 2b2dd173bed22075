"""Real clusters whose members know one another by certificates alone: no secret, TLS on every link.

Clients come with TLS and without, at any member; their certificates are of another authority than those of members.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pika
import pytest
from helpers.broker import Address, parse_address
from helpers.certificates import Authority
from helpers.etcd import PROGRAM, Etcd
from helpers.front import FrontProcess
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProbableAuthenticationError
from system.cluster.cluster import (
    PERSISTENT,
    Cluster,
    Consumer,
    Publisher,
    Watch,
    connect,
    drained,
    fresh,
    judge,
    wait_until,
)
from system.cluster.conftest import LOG_LINES, MODES
from system.cluster.test_external import External

from tidemark import cli
from tidemark.cli.trial import HOST, Mode, free_ports
from tidemark.model.wiring import FRONT_USER
from tidemark.wire.peer.handshake import OF_CLIENTS, Client, Dialler, LinkKind

FAILOVER_S = 4.0
"""Longer than a failover takes on a machine that does other things."""
SIGNED = "its certificate is not signed by an authority in cluster.peer_authorities"

pytestmark = pytest.mark.timeout(120)


class Certified(Cluster):
    """Members with a certificate each and no secret, which clients reach with TLS and without."""

    def __init__(self, directory: Path, mode: Mode, etcd: str) -> None:
        self.members = Authority.create(directory / "members", "members")
        self.clients = Authority.create(directory / "clients", "clients")
        settings = {
            "cluster.secret_file": "",
            "cluster.peer_authorities": str(self.members.certificate),
            "tls.certificate": str(self.clients.issue("server")),
            "tls.authorities": str(self.clients.certificate),
            "tls.clients": "ask",
        }
        super().__init__(directory / "cluster", mode, etcd=etcd, settings=settings)
        self._amqps = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        for name in self.names:
            self.members.issue(name)

    def start(self) -> Certified:
        self.restart(*self.names)
        self.trial.wait_whole()
        return self

    def restart(self, *names: str, settings: Mapping[str, str] | None = None) -> None:
        for name in names:
            super().restart(name, settings=self.own(name) | dict(settings or {}))

    def own(self, name: str) -> dict[str, str]:
        """What is set for this member alone."""
        certificate = self.members.folder / f"{name}.pem"
        return {
            "cluster.peer_certificate": str(certificate),
            "listen.amqps": f"{HOST}:{self._amqps[name]}",
        }

    def encrypted(self, *names: str, user: str = "") -> list[Address]:
        """Where these members, or all, take clients with TLS; they know this user by a certificate."""
        context = ssl.create_default_context(cafile=str(self.clients.certificate))
        if user:
            context.load_cert_chain(self.clients.issue(user))
        return [Address(HOST, self._amqps[name], tls=context) for name in names or self.names]

    def peer_port(self, name: str, certificate: Path | None) -> ssl.SSLSocket:
        """A TLS connection to where this member takes others, with this certificate."""
        context = ssl.create_default_context(cafile=str(self.members.certificate))
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(certificate)
        where = parse_address(self.trial.members[name].peer)
        return context.wrap_socket(socket.create_connection((where.host, where.port), 5))

    def certificate_of(self, name: str) -> bytes:
        """What this member shows to others."""
        with self.peer_port(name, self.members.issue("a look")) as link:
            shown = link.getpeercert(binary_form=True)
        assert shown is not None
        return shown


@contextlib.contextmanager
def an_etcd(directory: Path) -> Iterator[str]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    etcd = Etcd(directory / "etcd").start()
    try:
        yield etcd.endpoint
    finally:
        etcd.close()


@pytest.fixture(scope="module", params=MODES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    directory = tmp_path_factory.mktemp(f"certified-{request.param}")
    with an_etcd(directory) as etcd:
        made = Certified(directory, request.param, etcd)
        try:
            yield made.start()
        finally:
            made.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, shared: Certified) -> Iterator[Certified]:
    failed = request.session.testsfailed
    shared.whole()
    yield shared
    if request.session.testsfailed > failed:
        for name in shared.names:
            print(f"--- {name}", *shared.log(name).splitlines()[-LOG_LINES:], sep="\n")


in_standby = pytest.mark.parametrize("shared", ["standby"], indirect=True)
in_chain = pytest.mark.parametrize("shared", ["chain"], indirect=True)
"""For what is the same in either mode."""


# What a cluster does ---------------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_leader_dies(cluster: Certified) -> None:
    """S-22, S-1, Q-56: P1 with TLS and P2 without at any member, KILL the leader: another leads, SET, ORD; EQ."""
    encrypted, plain = fresh("encrypted"), fresh("plain")
    cluster.declare(encrypted, plain)
    first, second = cluster.backups
    at = cluster.encrypted(first, cluster.leader, second)

    with (
        Watch(cluster),
        Publisher(cluster, encrypted, at=at) as one,
        Publisher(cluster, plain, first=(second,)) as other,
    ):
        one.await_more(30)
        leader = cluster.leader
        when = cluster.kill(leader)
        one.await_more(30)
        other.await_more(30)
        gaps = [one.gap_after(when), other.gap_after(when)]
        cluster.restart(leader)
        cluster.await_state(leader, "ready")
        one.await_more(20)

    print(f"{cluster.mode}: kill -9 to the next confirm {', '.join(f'{gap * 1000:.0f}' for gap in gaps)} ms")
    assert max(gaps) < FAILOVER_S
    judge(one, drained(cluster, encrypted))
    judge(other, drained(cluster, plain))
    cluster.await_equal()
    for name in cluster.names:
        cluster.certificate_of(name)  # TLS is spoken there


@in_chain
def test_new_certificates_are_taken_one_member_after_the_other(cluster: Certified) -> None:
    """S-22, Q-56: new certificates of the same authority under load, members with old and new ones side by side: SET, ORD; EQ."""
    encrypted, plain = fresh("encrypted"), fresh("plain")
    cluster.declare(encrypted, plain)
    before = {name: cluster.certificate_of(name) for name in cluster.names}

    with (
        Watch(cluster),
        Publisher(cluster, encrypted, at=cluster.encrypted()) as one,
        Publisher(cluster, plain) as other,
    ):
        for name in (*cluster.backups, cluster.leader):
            cluster.members.issue(name)
            cluster.stop(name)
            cluster.restart(name)
            cluster.await_state(name, "ready")
            one.await_more(10)
            other.await_more(10)

    assert all(cluster.certificate_of(name) != old for name, old in before.items())
    gaps = one.longest_gap(), other.longest_gap()
    print(f"{cluster.mode}: all three replaced, longest wait {max(gaps) * 1000:.0f} ms")
    assert max(gaps) < FAILOVER_S
    judge(one, drained(cluster, encrypted))
    judge(other, drained(cluster, plain))
    cluster.await_equal()


@in_standby
def test_clients_with_tls_and_without_mix_at_all_members(cluster: Certified) -> None:
    """A-6, H-2: P with TLS at one member, C without at another, and the other way round: byte for byte."""
    body = os.urandom(300_000)
    names = cluster.names
    for one, other in zip(names, [*names[1:], names[0]], strict=True):
        queue = fresh("mixed")
        for sending, taking in (
            (cluster.encrypted(one), [cluster.address(other)]),
            ([cluster.address(one)], cluster.encrypted(other)),
        ):
            with connect(sending) as publisher, connect(taking) as consumer:
                channel = publisher.channel()
                channel.queue_declare(queue, durable=True)
                channel.confirm_delivery()
                channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)
                assert consumer.channel().basic_get(queue, auto_ack=True)[2] == body
    seen = cluster.admin(cluster.leader, "GET", "/api/connections")
    assert all(one["peer_host"] == HOST for one in seen)


@in_standby
def test_a_user_with_the_least_rights_is_known_by_a_certificate_at_every_member(cluster: Certified) -> None:
    """Q-56, S-22: who comes by a backup is the same user, with the same rights, as at the leader."""
    queue, user = fresh("narrow"), fresh("ann")
    cluster.declare(queue)
    cluster.admin(cluster.leader, "PUT", f"/api/users/{user}", {"password": "not used", "tags": ""})
    rights = {"configure": "", "write": "^amq\\.default$", "read": ""}
    cluster.admin(cluster.leader, "PUT", f"/api/permissions/%2F/{user}", rights)
    for name in cluster.names:
        [where] = cluster.encrypted(name, user=user)
        assert where.tls is not None
        login = pika.ConnectionParameters(
            where.host, where.port, credentials=ExternalCredentials(), ssl_options=pika.SSLOptions(where.tls)
        )
        with pika.BlockingConnection(login) as link:
            channel = link.channel()
            channel.confirm_delivery()
            channel.basic_publish("", queue, b"1", PERSISTENT, mandatory=True)
            with pytest.raises(ChannelClosedByBroker) as refused:
                channel.basic_get(queue)
            assert refused.value.reply_code == 403
    cluster.await_equal()
    assert cluster.queues(cluster.leader)[queue] == 3


@in_standby
def test_what_one_member_refuses_harms_no_other(cluster: Certified) -> None:
    """A-5: n2 with stricter settings: a client is refused at n2 only; what others publish is there, too; all processes run."""
    queue = fresh("strict")
    cluster.declare(queue)
    strict = cluster.backups[-1]
    cluster.stop(strict)
    cluster.restart(strict, settings={"tls.clients": "require"})
    cluster.await_state(strict, "ready")
    began = {name: cluster.look()[name].pid for name in cluster.names}

    with pytest.raises((AMQPError, OSError)):
        pika.BlockingConnection(tls_parameters(*cluster.encrypted(strict)))
    for name in cluster.names:
        user = "guest" if name == strict else ""
        with connect(cluster.encrypted(name, user=user)) as link:
            link.channel().basic_publish("", queue, b"1", PERSISTENT)

    wait_until("all have it", lambda: all(cluster.queues(name)[queue] == 3 for name in cluster.names))
    assert {name: cluster.look()[name].pid for name in cluster.names} == began
    cluster.stop(strict)


def tls_parameters(where: Address) -> pika.ConnectionParameters:
    assert where.tls is not None
    return pika.ConnectionParameters(
        where.host, where.port, ssl_options=pika.SSLOptions(where.tls), socket_timeout=5
    )


# Who stays outside -----------------------------------------------------------------------------------------------------


@in_standby
def test_a_member_without_a_certificate_of_ours_is_kept_out_and_harms_nobody(
    cluster: Certified, tmp_path: Path
) -> None:
    """S-22, Q-56: it says why, as does the one that it dialled; publishing goes on; with the right certificate it is ready."""
    queue = fresh("kept-out")
    cluster.declare(queue)
    leader, victim = cluster.leader, cluster.backups[0]
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret that somebody believes is enough")
    plain = {"cluster.peer_certificate": "", "cluster.peer_authorities": ""}
    untrusted = SIGNED, "does it trust cluster.peer_certificate? its log says why"
    unencrypted = (
        "it does not speak TLS: if it is a member, set cluster.peer_certificate there",
        "if its links have certificates, set cluster.peer_certificate here; its log says why",
    )
    wrong = [
        ({"cluster.peer_certificate": str(Authority.create(tmp_path, "another").issue(victim))}, untrusted),
        ({"cluster.peer_certificate": str(cluster.clients.issue("guest"))}, untrusted),
        (plain | {"cluster.secret_file": str(secret)}, unencrypted),
    ]

    with Publisher(cluster, queue, first=(leader,)) as publisher:
        cluster.kill(victim)
        wait_until("the others go on", lambda: victim not in cluster.status(leader)["ready"])
        free = time.monotonic()
        for settings, (here, there) in wrong:
            seen = {name: len(cluster.log(name)) for name in cluster.names}
            cluster.restart(victim, settings=settings)
            wait_until(
                "it says why", lambda seen=seen, there=there: there in cluster.log(victim)[seen[victim] :]
            )
            wait_until(
                "so does the leader", lambda seen=seen, here=here: here in cluster.log(leader)[seen[leader] :]
            )
            told = cluster.must(victim, "status").out
            assert f"no link to {leader}: " in told and there in told
            publisher.await_more(20)
            assert cluster.states()[victim] == "joining"
            cluster.kill(victim)
        gap = publisher.gap_after(free)
        cluster.restart(victim)
        cluster.await_state(victim, "ready")

    assert gap < 1.0 and cluster.leader == leader and not publisher.again
    judge(publisher, drained(cluster, queue))
    cluster.await_equal()


@in_standby
def test_only_a_member_gets_an_answer_from_the_peer_port(cluster: Certified) -> None:
    """F-9: whatever a client wants there: without TLS, without a certificate, with one of a client, it gets nothing."""
    leader = cluster.leader
    seen = len(cluster.log(leader))
    words = {kind: introduction(cluster, leader, kind).output() for kind in LinkKind}
    strangers = (None, cluster.clients.issue("guest"))

    for kind in LinkKind:
        where = parse_address(cluster.trial.members[leader].peer)
        with socket.create_connection((where.host, where.port), 5) as plain:
            plain.sendall(words[kind])
            assert said(plain) == b""
        for certificate in strangers:
            with contextlib.suppress(ssl.SSLError), cluster.peer_port(leader, certificate) as link:
                link.sendall(words[kind])
                assert said(link) == b""
    with cluster.peer_port(leader, cluster.members.issue("n9")) as link:
        link.sendall(words[LinkKind.SURVEY])
        assert leader.encode() in said(link), "it is no wonder that nobody gets an answer"

    log = cluster.log(leader)[seen:]
    assert log.count("it does not speak TLS") == log.count(SIGNED) == len(LinkKind)
    assert log.count("it shows no certificate: if it is a member, set cluster.peer_certificate there") == len(
        LinkKind
    )
    assert "link opened" not in log


@in_standby
def test_what_members_and_fronts_may_say_is_refused_at_the_ports_of_clients(cluster: Certified) -> None:
    """F-9: a link of members is not taken there, at whichever member, and nobody can log in as a front."""
    for name in cluster.names:
        plain = cluster.address(name)
        [encrypted] = cluster.encrypted(name, user="guest")
        for kind in LinkKind:
            with socket.create_connection((plain.host, plain.port), 5) as link:
                link.sendall(introduction(cluster, name, kind).output())
                assert said(link)[:4] in (b"", b"AMQP"), "no more than which protocols are spoken"
        parameters = tls_parameters(encrypted)
        for credentials in (
            pika.PlainCredentials(FRONT_USER, ""),
            pika.PlainCredentials(FRONT_USER, "guest"),
        ):
            parameters.credentials = credentials
            with pytest.raises(ProbableAuthenticationError):
                pika.BlockingConnection(parameters)
    assert cluster.states()[cluster.leader] == "active"


def introduction(cluster: Certified, to: str, kind: LinkKind) -> Dialler:
    """Of one who knows all there is to know: names, and that there is no secret."""
    client = Client(HOST, 4711) if kind in OF_CLIENTS else None
    return Dialler("n9", cluster.trial.name, b"", bytes(32), to, client, kind)


def said(link: socket.socket) -> bytes:
    """What comes until it is closed, or the first of it."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        return link.recv(4096)
    return b""


# Commands ----------------------------------------------------------------------------------------------------------------


@in_standby
def test_administrators_may_use_every_member(cluster: Certified) -> None:
    """H-35, Q-6: status, a hand-over and `tidemark doctor` work at any member; a change is made at the leader only."""
    leader, heir = cluster.leader, cluster.backups[0]
    for name in cluster.names:
        assert cluster.status(name)["leader"] == leader
        worst, found = doctor(cluster, name)
        links = {one["check"]: one for one in found if one["check"].startswith("cluster.peer.")}
        assert {one["level"] for one in links.values()} == {"ok"} and len(links) == 3, links
        assert worst < 2, [one for one in found if one["level"] == "fail"]
    cluster.must(leader, "demote", "--to", heir)
    cluster.whole()
    assert cluster.leader == heir

    stranger = Authority.create(cluster.trial.directory / "doctor", "another").issue(heir)
    worst, found = doctor(cluster, heir, {"cluster.peer_certificate": str(stranger)})
    [links] = [one for one in found if one["check"] == "cluster.peer.links"]
    assert worst == 2 and SIGNED in links["text"]


def doctor(
    cluster: Certified, name: str, settings: Mapping[str, str] | None = None
) -> tuple[int, list[dict[str, str]]]:
    """What `tidemark doctor` finds with the settings of a member."""
    command = cluster.trial._command(name, cluster.own(name) | dict(settings or {}))
    words = command[command.index("serve") + 1 :]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        worst = cli.main(["doctor", "--json", *words])
    return worst, json.loads(out.getvalue())


# Without an etcd -------------------------------------------------------------------------------------------------------


def test_without_an_etcd_members_tell_one_another_over_encrypted_links_too(tmp_path: Path) -> None:
    """S-22, H-14, H-61: views go over links with certificates; a backup that is promoted after a kill has all that was confirmed."""
    authority = Authority.create(tmp_path / "members")
    settings = {
        "cluster.secret_file": "",
        "cluster.peer_certificate": str(authority.issue("members")),
        "cluster.peer_authorities": str(authority.certificate),
    }
    cluster = External(tmp_path / "cluster", settings=settings)
    try:
        cluster.found("n1")
        queue = fresh("by-hand")
        cluster.declare(queue)
        with Publisher(cluster, queue) as publisher:
            publisher.await_more(50)
            cluster.kill("n1")
            said = cluster.must("n2", "promote")
            publisher.await_more(20)
            cluster.restart("n1")
            cluster.await_state("n1", "ready")
            cluster.must("n3", "promote")
            publisher.await_more(20)
        cluster.trial.wait_whole()

        assert "not reached: n1" in said.out and "n3" not in said.out
        assert cluster.leader == "n3"
        judge(publisher, drained(cluster, queue))
        cluster.await_equal()
    finally:
        cluster.close()


# Fronts ----------------------------------------------------------------------------------------------------------------


def test_fronts_and_groups_need_no_more_than_certificates(tmp_path: Path) -> None:
    """S-22: wiring, clients' links and dead letters of two groups go over links with certificates; a front with another
    certificate reaches nobody, and says why."""
    authority = Authority.create(tmp_path / "members")
    another = Authority.create(tmp_path / "another", "another")
    settings = {
        "cluster.secret_file": "",
        "cluster.peer_certificate": str(authority.issue("members")),
        "cluster.peer_authorities": str(authority.certificate),
    }
    groups: dict[str, Mode] = {"main": "standby", "fast": "chain"}
    with an_etcd(tmp_path) as etcd:
        cluster = Cluster(
            tmp_path / "cluster", "standby", nodes=1, etcd=etcd, settings=settings, groups=groups
        )
        stranger = FrontProcess(
            tmp_path / "front",
            *("--name", "stranger", "--cluster.name", cluster.trial.name),
            *("--cluster.peer-certificate", str(another.issue("stranger"))),
            *("--cluster.peer-authorities", str(authority.certificate)),
            **{group: f"{group}-n1@{cluster.trial.members[f'{group}-n1'].peer}" for group in groups},
        )
        try:
            cluster.start()
            exchange, here, there, dying = (fresh(word) for word in ("exchange", "here", "there", "dying"))
            cluster.declare(here)
            cluster.declare(there, **{"x-group": "fast"})
            cluster.declare(
                dying, **{"x-group": "fast", "x-dead-letter-exchange": exchange, "x-message-ttl": 10}
            )
            with cluster.channel() as channel:
                channel.exchange_declare(exchange, "fanout", durable=True)
                for queue in (here, there):
                    channel.queue_bind(queue, exchange)
            with Consumer(cluster, here) as consumer:
                with Publisher(cluster, "", exchange=exchange) as publisher:
                    publisher.await_more(100)
                    stranger.launch()
                    wait_until("it says why", lambda: "main not reached" in stranger.log_path.read_text())
                    publisher.await_more(50)
                judge(publisher, consumer.await_all(publisher))
            judge(publisher, drained(cluster, there))

            with cluster.channel() as channel:
                channel.confirm_delivery()
                channel.basic_publish("", dying, b"7 letter", PERSISTENT)
            wait_until("the letter is in main", lambda: cluster.queues("main-n1")[here] == 1)
            assert "does it trust cluster.peer_certificate? its log says why" in stranger.log_path.read_text()
            assert SIGNED in cluster.log("main-n1")
        finally:
            stranger.close()
            cluster.close()
