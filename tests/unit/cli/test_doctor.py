"""`tidemark doctor`: each thing that can be wrong is made wrong, and is found; with nothing wrong nothing is."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.server
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.broker import BrokerProcess
from helpers.certificates import SERVERS_ONLY, Authority, self_signed

from tidemark import config as configuration
from tidemark.cli import main
from tidemark.cli.api import Api
from tidemark.cli.doctor import broker as broker_checks
from tidemark.cli.doctor import machine, network, settings, store, tls
from tidemark.cli.doctor.finding import Finding, Level
from tidemark.config import Config
from tidemark.speed import PURE

Run = Callable[..., str]


def a_config(tmp_path: Path, **given: object) -> Config:
    flags = {"node.data": str(tmp_path / "data"), "listen.amqp": "127.0.0.1:0", "listen.admin": "127.0.0.1:0"}
    return configuration.load(flags | {key.replace("__", "."): str(value) for key, value in given.items()})


def levels(findings: Iterator[Finding] | list[Finding]) -> dict[str, str]:
    """Check → its worst level."""
    worst: dict[str, Level] = {}
    for one in findings:
        worst[one.check] = max(one.level, worst.get(one.check, Level.ok))
    return {check: level.name for check, level in worst.items()}


# Settings ------------------------------------------------------------------------------------------------


def test_the_defaults_are_not_known_to_hurt(tmp_path: Path) -> None:
    assert levels(settings.known_bad(a_config(tmp_path))) == {"config.known-bad": "ok"}


@pytest.mark.parametrize(
    ("given", "check", "level"),
    [
        ({"listen__amqp": "0.0.0.0:5672"}, "config.plain", "warn"),
        ({"listen__amqp": "0.0.0.0:5672", "broker__loopback_users": ""}, "config.guest", "fail"),
        ({"store__on_corruption": "skip"}, "config.on_corruption", "warn"),
        ({"broker__show": "at-once"}, "config.show", "warn"),
        ({"limits__memory_high": "0.95"}, "config.memory_high", "warn"),
        ({"limits__disk_free_bytes_min": "1MiB"}, "config.disk_free", "warn"),
        ({"amqp091__heartbeat_s": "0"}, "config.heartbeat", "warn"),
        ({"log__level": "debug"}, "config.log", "warn"),
        ({"listen__peer": "127.0.0.1:5680"}, "config.cluster", "warn"),
        (
            {"cluster__name": "c", "listen__peer": "10.0.0.1:1", "cluster__size": "3"},
            "config.cluster.secret",
            "fail",
        ),
        (
            {"cluster__name": "c", "listen__peer": "127.0.0.1:1", "cluster__size": "2"},
            "config.cluster.size",
            "warn",
        ),
        (
            {"cluster__name": "c", "listen__peer": "127.0.0.1:1", "cluster__size": "3"},
            "config.cluster.etcd",
            "warn",
        ),
        (
            {"cluster__name": "c", "listen__peer": "127.0.0.1:1", "cluster__lease_s": "1"},
            "config.cluster.lease",
            "warn",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_setting_that_hurts_is_found(tmp_path: Path, given: dict[str, str], check: str, level: str) -> None:
    assert levels(settings.known_bad(a_config(tmp_path, **given)))[check] == level


def test_a_setting_that_cannot_be_is_a_finding_and_the_machine_is_still_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--offline", "--json", "--set", "store.cache_byte=1"]) == 2
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["config.settings"]["level"] == "fail"
    assert "did you mean" in found["config.settings"]["text"]
    assert "python.version" in found


def test_settings_are_taken_by_the_same_names_as_for_serve(capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--name", "n1", "--amqp", "127.0.0.1:0", "--peer=127.0.0.1:0", "--store.cache-bytes", "64MiB"]
    main(["doctor", "--offline", "--json", *named])
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["config.settings"]["text"].endswith("4 from flags"), found["config.settings"]
    assert main(["doctor", "--offline", "--json", "--nam", "n1"]) == 2
    assert "did you mean '--name'?" in capsys.readouterr().out


# The machine ---------------------------------------------------------------------------------------------------


def test_more_connections_than_open_files_is_found(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    fits = a_config(tmp_path, limits__connections_max=max(1, hard - machine.OTHER_FILES))
    assert levels(machine.files(fits, None)) == {"limits.files": "ok"}
    more = a_config(tmp_path, limits__connections_max=hard)
    assert levels(machine.files(more, None)) == {"limits.files": "warn"}
    assert levels(machine.files(more, os.getpid())) == {"limits.files": "warn"}


def test_a_cache_that_does_not_fit_into_memory_is_found(tmp_path: Path) -> None:
    high = {"limits__memory_high_bytes": "1GiB"}
    assert (
        levels(machine.memory(a_config(tmp_path, **high, store__cache_bytes="256MiB")))["memory.cache"]
        == "ok"
    )
    assert (
        levels(machine.memory(a_config(tmp_path, **high, store__cache_bytes="900MiB")))["memory.cache"]
        == "warn"
    )
    assert (
        levels(machine.memory(a_config(tmp_path, **high, store__cache_bytes="1GiB")))["memory.cache"]
        == "fail"
    )
    assert (
        levels(machine.memory(a_config(tmp_path, limits__memory_high_bytes=1 << 60)))["memory.limit"]
        == "fail"
    )


@pytest.mark.parametrize(("state", "level"), [((True, 500), "ok"), ((False, 500), "warn"), (None, "warn")])
def test_a_clock_that_nobody_keeps_right_is_found(
    monkeypatch: pytest.MonkeyPatch, state: tuple[bool, int] | None, level: str
) -> None:
    monkeypatch.setattr(machine, "kernel_clock", lambda: state)
    assert levels(machine.clock()) == {"clock.synchronised": level}


def test_the_kernel_says_how_its_clock_is() -> None:
    state = machine.kernel_clock()
    assert state is not None and state[1] >= 0


@pytest.mark.parametrize(
    ("swap", "used", "swappiness", "level"),
    [(0, 0, "60", "ok"), (100, 50, "1", "warn"), (100, 0, "60", "warn"), (100, 0, "1", "ok")],
)
def test_swap_in_use_is_found(
    monkeypatch: pytest.MonkeyPatch, swap: int, used: int, swappiness: str, level: str
) -> None:
    facts = {"SwapTotal": swap << 20, "SwapFree": (swap - used) << 20}
    monkeypatch.setattr(machine, "meminfo", lambda: facts)
    monkeypatch.setattr(Path, "read_text", lambda _: swappiness)
    assert levels(machine._swap()) == {"memory.swap": level}


def test_all_compiled_modules_are_looked_for() -> None:
    names = machine.compiled_modules()
    assert {"tidemark.wire.amqp091._scanner_c", "tidemark.runtime._disk_c"} <= set(names)


# The data directory ------------------------------------------------------------------------------------------------


def test_a_directory_that_is_fine_is_ok_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    config = a_config(tmp_path, limits__disk_free_bytes_min="1MiB")
    config.node.data.mkdir(mode=0o750)
    found = levels([*store.directory(config, None), *store.syncs(config)])
    assert found["data.owner"] == found["data.space"] == found["data.holder"] == "ok"
    assert "data.sync" in found
    assert list(config.node.data.iterdir()) == []


def test_a_data_directory_that_is_a_file_or_cannot_be_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert levels(store.directory(a_config(tmp_path), None))["data.directory"] == "fail"
    nowhere = a_config(tmp_path, node__data=tmp_path / "data" / "inner")
    assert levels(store.directory(nowhere, None))["data.directory"] == "fail"


def test_messages_that_everybody_may_read_are_found(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    config.node.data.mkdir(mode=0o755)
    file = config.node.data / "journal"
    file.touch(0o640)
    assert levels(store.directory(config, None))["data.owner"] == "ok"
    file.chmod(0o644)
    assert levels(store.directory(config, None))["data.owner"] == "warn"


def test_a_disk_with_too_little_room_is_found(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    for least, level in ((free // 8, "ok"), (int(free * 0.7), "warn"), (free * 2, "fail")):
        config = a_config(tmp_path, limits__disk_free_bytes_min=least)
        assert levels(store.directory(config, None))["data.space"] == level


@pytest.mark.parametrize(
    ("ms", "level"), [([1.0], "ok"), ([50.0], "warn"), ([500.0], "fail"), ([1.0] * 9 + [900], "warn")]
)
def test_a_slow_disk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ms: list[float], level: str
) -> None:
    monkeypatch.setattr(store, "sync_times_ms", lambda _: ms)
    assert levels(store.syncs(a_config(tmp_path))) == {"data.sync": level}


TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:5 / /mnt/with\\040blank rw - nfs4 server:/x rw,vers=4.2
24 22 0:6 / /run rw,nosuid - tmpfs tmpfs rw
25 22 8:2 / /fast rw - xfs /dev/sdb rw,nobarrier
26 22 0:7 / /layer rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "level"),
    [
        ("/var", "ext4", "ok"),
        ("/mnt/with blank/x", "nfs4", "warn"),
        ("/run/x", "tmpfs", "warn"),
        ("/running", "ext4", "ok"),
        ("/fast", "xfs", "fail"),
        ("/layer", "overlay", "warn"),
    ],
)
def test_a_file_system_that_does_not_keep_its_promise_is_found(path: str, kind: str, level: str) -> None:
    mount = store.mounted(Path(path), TABLE)
    assert mount is not None and mount.kind == kind
    assert store.judged(mount).level.name == level


# Addresses --------------------------------------------------------------------------------------------------------------


def test_a_port_that_is_free_is_ok_and_one_in_use_is_found_with_its_owner(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert (
        levels(network.ports(a_config(tmp_path, listen__amqp=f"127.0.0.1:{free}"), None))["ports.amqp"]
        == "ok"
    )

    taken = a_config(
        tmp_path,
        listen__amqp=f"127.0.0.1:{broker.address.port}",
        listen__admin=f"127.0.0.1:{broker.admin.port}",
    )
    found = {one.check: one for one in network.ports(taken, None)}
    assert {one.level.name for one in found.values()} == {"fail"}
    assert "Tidemark" in found["ports.amqp"].text and f"process {broker.pid}" in found["ports.amqp"].text
    assert set(levels(network.ports(taken, broker.pid)).values()) == {"ok"}


def test_a_stranger_on_our_port_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=lambda: stranger.accept()[0].close(), daemon=True).start()
        config = a_config(tmp_path, listen__amqp=f"127.0.0.1:{stranger.getsockname()[1]}")
        [amqp] = [one for one in network.ports(config, None) if one.check == "ports.amqp"]
    assert amqp.level is Level.fail
    assert "does not speak AMQP" in amqp.text


def test_an_address_of_another_machine_is_found(tmp_path: Path) -> None:
    config = a_config(tmp_path, listen__amqp="192.0.2.1:5672")
    assert levels(network._free("ports.amqp", "x", "192.0.2.1", 5672, None) for _ in "x") == {
        "ports.amqp": "fail"
    }
    assert config.listen.amqp


def test_no_etcd_is_found(tmp_path: Path) -> None:
    config = a_config(
        tmp_path, cluster__name="c", listen__peer="127.0.0.1:0", cluster__etcd="127.0.0.1:1,127.0.0.1:2"
    )
    assert levels(network.etcd(config)) == {"cluster.etcd": "warn", "cluster.etcd.reachable": "fail"}


def test_a_peer_that_cannot_be_reached_is_found(tmp_path: Path, broker: BrokerProcess) -> None:
    cluster = {"cluster__name": "c", "listen__peer": "127.0.0.1:0"}
    away = a_config(tmp_path, **cluster, cluster__peers="b=127.0.0.1:1")
    assert levels(network.peers(away)) == {"cluster.peers": "warn"}
    there = a_config(tmp_path, **cluster, cluster__peers=f"b=127.0.0.1:{broker.address.port}")
    assert levels(network.peers(there)) == {"cluster.peers": "ok"}


def test_a_group_that_a_front_cannot_reach_is_found(tmp_path: Path, broker: BrokerProcess) -> None:
    there = f"a@127.0.0.1:{broker.address.port}"

    def found(places: str) -> list[tuple[str, str]]:
        findings = network.behind_front(
            a_config(tmp_path, cluster__name="shop", listen__peer="127.0.0.1:0", front__groups=places)
        )
        return [(one.level.name, one.text.split(":")[0]) for one in findings]

    assert list(network.behind_front(a_config(tmp_path))) == []
    assert found(f"main={there}") == [("ok", "group main is reached")]
    assert found(f"main={there},b@127.0.0.1:1")[0][0] == "warn"
    assert [level for level, _ in found(f"main={there},fast=b@127.0.0.1:1")] == ["ok", "fail"]


def test_a_group_without_members_is_found(tmp_path: Path) -> None:
    registered = {"/tidemark/shop/groups/fast/members/": ["f1", "f2"]}
    with an_etcd(registered) as endpoint:
        config = a_config(
            tmp_path,
            cluster__name="shop",
            listen__peer="127.0.0.1:0",
            cluster__groups="fast=chain,safe=standby",
            cluster__etcd=endpoint,
        )
        found = [(one.level.name, one.text) for one in network.groups(config)]
    assert found[0] == ("ok", "group fast has 2 members: f1, f2")
    assert found[1][0] == "fail" and "no member of group safe" in found[1][1]


@contextlib.contextmanager
def an_etcd(registered: dict[str, list[str]]) -> Iterator[str]:
    """Answers a range as etcd's gateway does."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prefix = base64.b64decode(body["key"]).decode()
            keys = [
                base64.b64encode((prefix + name).encode()).decode() for name in registered.get(prefix, [])
            ]
            text = json.dumps(
                {"header": {}} | ({"kvs": [{"key": key} for key in keys]} if keys else {})
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


# Certificates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "level"), [(365, "ok"), (5, "warn"), (-1, "fail")])
def test_a_certificate_that_ends_is_found(tmp_path: Path, days: float, level: str) -> None:
    certificate, key = self_signed(tmp_path, "localhost", days=days)
    assert levels(tls.pair("tls", certificate, key)) == {"tls.certificate": level}


def test_a_key_of_another_certificate_and_one_that_all_may_read_are_found(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "one")
    _, other = self_signed(tmp_path, "two")
    [found] = tls.pair("tls", certificate, other)
    assert found.level is Level.fail and "another certificate's" in found.text
    key.chmod(0o644)
    assert levels(tls.pair("tls", certificate, key))["tls.key"] == "warn"
    key.write_text("nonsense")
    assert levels(tls.pair("tls", certificate, key)) == {"tls.certificate": "fail"}


def test_authorities_are_looked_at(tmp_path: Path) -> None:
    good, _ = self_signed(tmp_path, "authority", authority=True)
    soon, _ = self_signed(tmp_path, "soon", authority=True, days=3)
    leaf, _ = self_signed(tmp_path, "leaf")
    assert levels(tls.authorities("tls", good)) == {"tls.authorities": "ok"}
    assert levels(tls.authorities("tls", soon)) == {"tls.authorities": "warn"}
    assert levels(tls.authorities("tls", leaf)) == {"tls.authorities": "fail"}


def test_a_certificate_that_other_members_would_not_take_is_found(tmp_path: Path) -> None:
    ours, another = (Authority.create(tmp_path / name, name) for name in ("ours", "another"))

    def found(certificate: Path, **given: object) -> Finding:
        given = {"cluster__peer_authorities": ours.certificate, **given}
        config = a_config(tmp_path, cluster__peer_certificate=certificate, **given)
        [one] = tls.links(config)
        return one

    assert found(ours.issue("n1")).level is Level.ok
    of_another = found(another.issue("n1"))
    assert of_another.level is Level.fail and "is not signed by an authority" in of_another.text
    one_sided = found(ours.issue("n1", usage=SERVERS_ONLY))
    assert one_sided.level is Level.fail and "extended key usage" in one_sided.text
    none = found(ours.issue("n1"), cluster__peer_authorities="")
    assert none.level is Level.fail and "cluster.peer_authorities: is needed" in none.text


def test_an_authority_of_clients_and_members_needs_a_secret_besides(tmp_path: Path) -> None:
    """A member may do everything, so a certificate of a client must not be enough to be one."""
    ours, clients = (Authority.create(tmp_path / name, name) for name in ("ours", "clients"))
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough")
    given = {"cluster__peer_certificate": ours.issue("n1")}
    given |= {"cluster__peer_authorities": ours.certificate}

    apart = a_config(tmp_path, **given, tls__authorities=clients.certificate)
    assert levels(tls.links(apart)) == {"cluster.peer.links": "ok"}
    shared = a_config(tmp_path, **given, tls__authorities=ours.certificate)
    assert levels(tls.links(shared)) == {"cluster.peer.links": "fail"}
    besides = a_config(tmp_path, **given, tls__authorities=ours.certificate, cluster__secret_file=secret)
    assert levels(tls.links(besides)) == {"cluster.peer.links": "ok"}


def test_what_only_clients_look_at_is_no_matter_of_members(tmp_path: Path) -> None:
    certificate = Authority.create(tmp_path).certificate  # it names no host
    assert levels(tls.pair("tls", certificate, None)) == {"tls.certificate": "warn"}
    assert levels(tls.pair("cluster.peer", certificate, None)) == {"cluster.peer.certificate": "ok"}


# A broker that runs ------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_well_has_nothing_that_fails(
    broker: BrokerProcess, admin_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--json", "--data", str(broker.data), "--url", admin_url]
    words += [
        "--set",
        f"listen.amqp=127.0.0.1:{broker.address.port}",
        "--set",
        f"listen.admin=127.0.0.1:{broker.admin.port}",
    ]
    assert main(words) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert [one for one in found if one["level"] == "fail"] == []
    ok = {one["check"] for one in found if one["level"] == "ok"}
    assert {"broker.health", "ports.amqp", "ports.admin", "clock.skew", "cluster.member"} <= ok
    # Without compiled modules it says so.
    assert ("broker.version" in ok) is not PURE
    [holder] = [one["text"] for one in found if one["check"] == "data.holder"]
    assert f"process {broker.pid}" in holder
    assert all(one["advice"] for one in found if one["level"] != "ok")


def test_nobody_answering_is_ok_unless_the_data_directory_is_in_use(tmp_path: Path) -> None:
    api = Api("http://127.0.0.1:1", "guest", "guest")
    assert levels(broker_checks.reached(api, None)[0]) == {"broker.answer": "ok"}
    assert levels(broker_checks.reached(api, 4711)[0]) == {"broker.answer": "fail"}


def test_a_login_that_is_refused_is_a_warning(admin_url: str) -> None:
    findings, answers = broker_checks.reached(Api(admin_url, "guest", "wrong"), None)
    assert (levels(findings), answers) == ({"broker.login": "warn"}, False)


class Answering(http.server.BaseHTTPRequestHandler):
    """A broker that says what a test wants."""

    answers: dict[str, tuple[int, Any]] = {}  # noqa: RUF012
    ahead_s = 0.0

    def do_GET(self) -> None:
        status, document = self.answers.get(self.path.partition("?")[0], (404, {"reason": "Not Found"}))
        body = json.dumps(document).encode()
        self.send_response_only(status)
        self.send_header("Date", email.utils.formatdate(time.time() + self.ahead_s, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


OVERVIEW = {"product_name": "Tidemark", "product_version": "0.1.0", "node": "n", "compiled": True}


@pytest.fixture
def said() -> Iterator[Callable[..., Api]]:
    servers = []

    def start(ahead_s: float = 0.0, **answers: Any) -> Api:
        paths = {
            "/api/" + name.replace("__", "/").replace("_", "-"): answer for name, answer in answers.items()
        }
        paths.setdefault("/api/overview", (200, OVERVIEW))
        handler = type("Handler", (Answering,), {"answers": paths, "ahead_s": ahead_s})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return Api(f"http://127.0.0.1:{server.server_address[1]}", "guest", "guest")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("ahead_s", "level"), [(0, "ok"), (60, "warn"), (-60, "warn")])
def test_a_clock_that_differs_is_found(said: Callable[..., Api], ahead_s: float, level: str) -> None:
    assert levels(broker_checks.reached(said(ahead_s), None)[0])["clock.skew"] == level


def test_another_version_or_another_broker_is_found(said: Callable[..., Api]) -> None:
    for change in ({"product_version": "0.0.9"}, {"product_name": "RabbitMQ"}, {"compiled": False}):
        api = said(overview=(200, OVERVIEW | change))
        assert levels(broker_checks.reached(api, None)[0])["broker.version"] == "warn"


def test_an_alarm_is_found_with_its_reason(said: Callable[..., Api]) -> None:
    failed = (503, {"status": "failed", "reason": "memory"})
    [found] = broker_checks.health(said(health__checks__alarms=failed))
    assert found.level is Level.fail and "memory" in found.text


@pytest.mark.parametrize(("state", "level"), [("ready", "ok"), ("fenced", "fail"), ("joining", "fail")])
def test_a_member_that_follows_is_well_though_clients_are_served_elsewhere(
    said: Callable[..., Api], state: str, level: str
) -> None:
    elsewhere = (503, {"status": "failed", "reason": "n2 does not lead"})
    api = said(health__checks__ready_to_serve_clients=elsewhere, tidemark__standing=(200, {"state": state}))
    assert levels(broker_checks.health(api)) == {"broker.health": level}


def test_a_long_queue_without_a_consumer_is_found(said: Callable[..., Api]) -> None:
    queue = {"name": "q", "vhost": "/", "type": "classic", "messages_ready": 10**6, "consumers": 0}
    assert levels(broker_checks.backlog(said(queues=(200, [queue])))) == {"broker.backlog": "warn"}
    read = queue | {"consumers": 1}
    assert levels(broker_checks.backlog(said(queues=(200, {"items": [read]})))) == {"broker.backlog": "ok"}


MEMBER = {
    "name": "a", "state": "active", "leader": "a", "epoch": 3, "ready": ["a", "b", "c"],
    "peers": [{"name": "b", "lag": 0}, {"name": "c", "lag": 0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({}, "cluster.copies", "ok"),
        ({"state": "catch-up"}, "cluster.member", "warn"),
        ({"leader": None}, "cluster.leader", "fail"),
        ({"ready": ["a"]}, "cluster.copies", "warn"),
        ({"peers": [{"name": "b", "lag": 10**6}]}, "cluster.lag", "warn"),
        ({"differing": ["'q' in vhost '/'"]}, "cluster.alike", "fail"),
    ],
)
def test_a_cluster_that_is_not_whole_is_found(
    said: Callable[..., Api], change: dict[str, Any], check: str, level: str
) -> None:
    """U-6: a member that is not ready or far behind is told to whoever looks after the cluster."""
    api = said(tidemark__cluster=(200, MEMBER | change))
    assert levels(broker_checks.cluster(api))[check] == level


def test_clocks_of_members_are_compared(said: Callable[..., Api]) -> None:
    late = said(-60.0, health__live=(200, {}))
    api = said(
        tidemark__cluster=(200, MEMBER),
        members=(200, [{"name": "b", "admin": late.url}, {"name": "c", "admin": "127.0.0.1:1"}]),
    )
    found = levels(broker_checks.cluster(api))
    assert (found["cluster.clock"], found["cluster.members"]) == ("warn", "warn")


def test_a_check_that_breaks_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "clock", lambda: 1 / 0)
    assert main(["doctor", "--offline", "--quiet"]) in (1, 2)
    assert "this check broke: ZeroDivisionError" in capsys.readouterr().out
