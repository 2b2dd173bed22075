"""Checks of addresses: free to listen on, or who answers there; whether etcd, the peers and the groups can be reached."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

from tidemark.cli.doctor.finding import Finding, fail, ok, warn
from tidemark.config import Config, parse_address
from tidemark.runtime import machine
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import ConnectionStart, decode_method

PATIENCE_S = 2.0
LISTENERS = ("amqp", "amqps", "admin", "admins", "peer")


def ports(config: Config, held: int | None) -> Iterator[Finding]:
    """Each address that the broker listens on. `held`: a broker has the data directory open, so it should answer."""
    for name in LISTENERS:
        text = getattr(config.listen, name, "")
        if not text:
            continue
        address = parse_address(f"listen.{name}", text)
        check, where = f"ports.{name}", f"listen.{name} {address}"
        if address.port == 0:
            yield ok(check, f"listen.{name}: any free port")
            continue
        who = answered(address.host, address.port, name)
        if who is None:
            yield _free(check, where, address.host, address.port, held)
        elif who.startswith("Tidemark") and (held is not None or name == "peer"):
            yield ok(check, f"{where} is answered by {who}")
        elif held is not None:
            yield warn(
                check,
                f"{where} is answered by {who}",
                "is it the broker that has the data directory open? stop the other",
            )
        else:
            pid = machine.listening_pid(address.port)
            by = f"process {pid}" if pid else "another process, perhaps of another user"
            yield fail(
                check,
                f"{where} is in use: {who} answers, {by}",
                f"stop it, or choose another listen.{name} (see 'ss -ltnp')",
            )


def _free(check: str, where: str, host: str, port: int, held: int | None) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as problem:
        advice = {
            errno.EACCES: "ports below 1024 are for root: choose another, or AmbientCapabilities=CAP_NET_BIND_SERVICE",
            errno.EADDRNOTAVAIL: "no interface of this machine has that address: see 'ip address'",
        }.get(problem.errno or 0, "see 'ss -ltnp' for who has it")
        return fail(check, f"{where} cannot be used: {(problem.strerror or str(problem)).lower()}", advice)
    if held is not None:
        return warn(
            check,
            f"{where} is free, though process {held} has the data directory open",
            "the broker that runs listens elsewhere: compare its settings with these",
        )
    return ok(check, f"{where} is free")


def answered(host: str, port: int, name: str) -> str | None:
    """Who listens there, as far as it says; None when nobody does."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((host, port), PATIENCE_S) as connection:
            if name == "amqp":
                return _amqp(connection)
            if name == "admin":
                return _http(host, port)
            return "Tidemark or another" if name == "peer" else "a server with TLS"
    except ConnectionRefusedError:
        return None
    except OSError as problem:
        return (
            None
            if problem.errno in (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH)
            else "somebody"
        )


def _amqp(connection: socket.socket) -> str:
    try:
        connection.sendall(PROTOCOL_HEADER)
        data = b""
        while len(data) < 8 or len(data) < 8 + int.from_bytes(data[3:7], "big"):
            if not (piece := connection.recv(4096)) or len(data) > 1 << 16:
                return "a server that does not speak AMQP"
            data += piece
        start = decode_method(data[7 : 7 + int.from_bytes(data[3:7], "big")])
    except Exception:
        return "a server that does not speak AMQP"
    if not isinstance(start, ConnectionStart):
        return "a server that does not speak AMQP"
    told = start.server_properties
    return f"{_text(told.get('product'))} {_text(told.get('version'))}".strip()


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _http(host: str, port: int) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/api/overview")
        answer = connection.getresponse()
        answer.read()
        realm = answer.getheader("WWW-Authenticate") or ""
    except (OSError, http.client.HTTPException):
        return "a server that does not speak HTTP"
    finally:
        connection.close()
    if "Tidemark" in realm:
        return "Tidemark"
    return "RabbitMQ" if "RabbitMQ" in realm else "another web server"


def etcd(config: Config) -> Iterator[Finding]:
    """Whether each etcd can be reached and is healthy."""
    cluster = config.cluster
    if not cluster.name or cluster.provider != "etcd":
        return
    if config.front.groups and config.origins["cluster.etcd"] == "default":
        return  # these are the settings of a front, which asks no etcd
    well = 0
    for endpoint in cluster.etcd:
        began = time.perf_counter()
        problem = _etcd_problem(endpoint)
        ms = (time.perf_counter() - began) * 1000
        if problem is None:
            well += 1
            limit = cluster.lease_s * 1000 / 10
            if ms > limit:
                yield warn(
                    "cluster.etcd",
                    f"etcd {endpoint} takes {ms:.0f} ms to answer, and a lease is {cluster.lease_s} s",
                    "put etcd near and on a fast disk, or raise cluster.lease_s",
                )
            else:
                yield ok("cluster.etcd", f"etcd {endpoint} is well and answers in {ms:.0f} ms")
        else:
            yield warn("cluster.etcd", f"etcd {endpoint}: {problem}", "see 'etcdctl endpoint health'")
    if not well:
        yield fail(
            "cluster.etcd.reachable",
            "no etcd answers: a leader steps back, and nobody can take over",
            "start etcd, or correct cluster.etcd",
        )


def _etcd_problem(endpoint: str) -> str | None:
    host, _, port = endpoint.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return f"no answer: {problem or type(problem).__name__}"
    finally:
        connection.close()
    if str(found.get("health")) != "true":
        return f"it is not well: {found.get('reason') or found}"
    return None


def peers(config: Config) -> Iterator[Finding]:
    """Whether peers that are named in the settings can be reached."""
    for entry in config.cluster.peers if config.cluster.name else ():
        name, _, text = entry.partition("=")
        address = parse_address("cluster.peers", text)
        try:
            with socket.create_connection((address.host, address.port), PATIENCE_S):
                yield ok("cluster.peers", f"peer {name} at {address} can be reached")
        except OSError as problem:
            yield warn(
                "cluster.peers",
                f"peer {name} at {address}: {(problem.strerror or str(problem)).lower()}",
                "is it running, and do firewalls let listen.peer through?",
            )


def groups(config: Config) -> Iterator[Finding]:
    """Whether the groups that queues may ask for have members. Etcd is asked, so it must be reached."""
    cluster = config.cluster
    if not cluster.groups or cluster.provider != "etcd":
        return
    for group in cluster.mode_of:
        members = _registered(cluster.etcd, replace(cluster, group=group, groups=()).identity)
        if members is None:
            return  # that no etcd answers is a finding of its own
        if members:
            yield ok("cluster.groups", f"group {group} has {len(members)} members: {', '.join(members)}")
        else:
            yield fail(
                "cluster.groups",
                f"no member of group {group} is there: queues that live in it cannot be used",
                f"start its members with cluster.group = {group}, or take it out of cluster.groups",
            )


def _registered(endpoints: tuple[str, ...], identity: str) -> list[str] | None:
    """The members of a group that are alive, as etcd has them; None if it does not answer."""
    prefix = f"/tidemark/{identity}/members/".encode()
    begin, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    body = {name: base64.b64encode(key).decode() for name, key in (("key", begin), ("range_end", end))}
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)
        try:
            connection.request("POST", "/v3/kv/range", json.dumps(body | {"keys_only": True}))
            found = json.loads(connection.getresponse().read())
            keys = [base64.b64decode(row["key"]) for row in found.get("kvs", [])]
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            continue
        finally:
            connection.close()
        return [key.removeprefix(prefix).decode() for key in keys]
    return None


def behind_front(config: Config) -> Iterator[Finding]:
    """Whether a front with these settings reaches each of its groups."""
    for group, places in config.front.places().items():
        here, away = [], []
        for place in places:
            address = parse_address("front.groups", place.address)
            words = f"{place.member} at {address}" if place.member else str(address)
            try:
                with socket.create_connection((address.host, address.port), PATIENCE_S):
                    here.append(words)
            except OSError as problem:
                away.append(f"{words}: {(problem.strerror or str(problem)).lower()}")
        if not here:
            yield fail(
                "front.groups",
                f"no member of group {group} can be reached ({'; '.join(away)})",
                "start it, or correct front.groups; do firewalls let listen.peer through?",
            )
        elif away:
            yield warn(
                "front.groups",
                f"group {group} is reached, but not all of it ({'; '.join(away)})",
                "is it running, and do firewalls let listen.peer through?",
            )
        else:
            yield ok("front.groups", f"group {group} is reached: {', '.join(here)}")
