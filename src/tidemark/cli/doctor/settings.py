"""Checks of the configuration: whether it can be used, and settings that are allowed but known to hurt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidemark.cli.doctor.finding import Finding, fail, ok, size, warn
from tidemark.config import Config, parse_address
from tidemark.runtime.authenticator import is_loopback


def sources(config: Config) -> Iterator[Finding]:
    counts = Counter(_source(origin) for origin in config.origins.values())
    text = ", ".join(f"{count} from {source}" for source, count in sorted(counts.items()))
    yield ok("config.settings", f"{len(config.origins)} settings: {text}")


def _source(origin: str) -> str:
    if origin == "default" or origin.startswith("file "):
        return origin
    return "flags" if origin.startswith("--") else "the environment"


def open_to_others(config: Config, *names: str) -> list[str]:
    """Those of these listeners that other machines can reach."""
    return [
        name
        for name in names
        if (address := getattr(config.listen, name, ""))
        and not is_loopback(parse_address(name, address).host)
        and parse_address(name, address).host != "localhost"
    ]


def known_bad(config: Config) -> Iterator[Finding]:
    findings = list(_bad(config))
    yield from findings
    if not findings:
        yield ok("config.known-bad", "no setting that is known to hurt")


def _bad(config: Config) -> Iterator[Finding]:
    broker, store, limits, amqp = config.broker, config.store, config.limits, config.amqp091
    plain = open_to_others(config, "amqp", "admin")
    if plain:
        yield warn(
            "config.plain",
            f"listen.{' and listen.'.join(plain)} can be reached from other machines without TLS: passwords are readable "
            "on the way",
            "listen on listen.amqps and listen.admins with tls.certificate instead, or keep these on 127.0.0.1",
        )
    reachable = open_to_others(config, "amqp", "amqps", "admin", "admins")
    first = broker.default_user
    if reachable and first not in broker.loopback_users and broker.default_password == "guest":
        yield fail(
            "config.guest",
            f"user '{first}' with the password that everybody knows may log in from other machines",
            "set broker.default_password, or name the user in broker.loopback_users",
        )
    if store.on_corruption == "skip":
        yield warn(
            "config.on_corruption",
            "store.on_corruption is 'skip': after damage the broker starts without the messages that were hit",
            "set it to 'refuse' again once the damage is dealt with",
        )
    if broker.show == "at-once":
        yield warn(
            "config.show",
            "broker.show is 'at-once': consumers may see messages that a crash takes back",
            "use 'durable' unless that is wanted",
        )
    if limits.memory_high > 0.8 and not limits.memory_high_bytes:
        yield warn(
            "config.memory_high",
            f"limits.memory_high is {limits.memory_high:g}: the system may end the broker before publishers wait",
            "use 0.4 to 0.7",
        )
    if limits.disk_free_bytes_min < 2 * store.segment_bytes:
        yield warn(
            "config.disk_free",
            f"limits.disk_free_bytes_min is {size(limits.disk_free_bytes_min)}, less than two segments of the journal",
            f"set it to {size(max(1 << 30, 4 * store.segment_bytes))} or more",
        )
    if amqp.heartbeat_s == 0:
        yield warn(
            "config.heartbeat",
            "amqp091.heartbeat_s is 0: clients that vanish are not noticed, and keep their messages",
            "use 10 to 60",
        )
    if config.log.level == "debug":
        yield warn("config.log", "log.level is 'debug', which is slow and tells much", "use 'info'")
    yield from _cluster(config)


def _cluster(config: Config) -> Iterator[Finding]:
    cluster = config.cluster
    if not cluster.name:
        if config.listen.peer:
            yield warn(
                "config.cluster",
                "listen.peer is set and cluster.name is not: this broker stands alone",
                "set cluster.name, or take listen.peer out",
            )
        return
    if cluster.size == 2:
        yield warn(
            "config.cluster.size",
            "a cluster of two cannot be founded while one is away, and has one copy when one is lost",
            "use three members",
        )
    if cluster.provider == "etcd" and len(cluster.etcd) in (1, 2) and cluster.size > 1:
        yield warn(
            "config.cluster.etcd",
            f"cluster.etcd names {len(cluster.etcd)}: when that etcd is away, nobody can take over",
            "run etcd on three machines and name all of them",
        )
    if cluster.lease_s < 2:
        yield warn(
            "config.cluster.lease",
            f"cluster.lease_s is {cluster.lease_s}: a pause of the machine moves the leadership",
            "use 2 or more",
        )
    if cluster.secret_file is None and cluster.peer_certificate is None and open_to_others(config, "peer"):
        yield fail(
            "config.cluster.secret",
            f"listen.peer {config.listen.peer} can be reached from other machines and there is no cluster.secret_file",
            "openssl rand -hex 32 > secret; chmod 600 secret; give the same file to every member",
        )
    secret = cluster.secret_file
    if secret is not None and secret.stat().st_mode & 0o077:
        yield warn(
            "config.cluster.secret", f"others on this machine may read {secret}", f"chmod 600 {secret}"
        )
