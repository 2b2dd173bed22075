"""Checks of certificate files: whether key and certificate belong together, and for how long they are good.

The certificate is shown to a client in memory that trusts just this one, so what is found is what a client would find. That of
a member is shown to another member in memory that has the same files.
"""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemark.cli.doctor.finding import Finding, fail, ok, warn
from tidemark.config import Config
from tidemark.errors import ConfigError
from tidemark.runtime.peer_tls import EXPIRED, about_tls, peer_tls_of

DAY_S = 86_400
SOON_DAYS = 14


def certificates(config: Config) -> Iterator[Finding]:
    pairs = {
        "tls": (config.tls.certificate, config.tls.key),
        "cluster.peer": (config.cluster.peer_certificate, config.cluster.peer_key),
    }
    for name, (certificate, key) in pairs.items():
        if certificate is not None:
            yield from pair(name, certificate, key)
    for name, file in (("tls", config.tls.authorities), ("cluster.peer", config.cluster.peer_authorities)):
        if file is not None:
            yield from authorities(name, file)
    yield from links(config)


def pair(name: str, certificate: Path, key: Path | None) -> Iterator[Finding]:
    check = f"{name}.certificate"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as problem:
        why = getattr(problem, "reason", None) or getattr(problem, "strerror", None) or str(problem)
        words = {
            "KEY_VALUES_MISMATCH": "the key is another certificate's",
            "BAD_PASSWORD_READ": "the key has a password",
        }.get(str(why), str(why))
        yield fail(
            check,
            f"{certificate} with key {key or certificate} cannot be used: {words}",
            "make the files anew, together",
        )
        return
    private = key or certificate
    if private.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH) & stat.S_IROTH:
        yield warn(f"{name}.key", f"everybody may read the private key {private}", f"chmod 600 {private}")
    facts = presented(context, certificate)
    if isinstance(facts, str):
        yield fail(check, f"{certificate}: {facts}", "get a new certificate")
        return
    ends_s = ssl.cert_time_to_seconds(facts["notAfter"])
    days = (ends_s - time.time()) / DAY_S
    names = ", ".join(value for _, value in facts.get("subjectAltName", ())) or "no name"
    text = f"{certificate} for {names} is good until {time.strftime('%Y-%m-%d', time.gmtime(ends_s))}"
    if days < SOON_DAYS:
        yield warn(
            check, f"{text}: {days:.0f} days", "get a new certificate, and restart the broker to have it used"
        )
    elif name == "tls" and not facts.get("subjectAltName"):
        yield warn(
            check, text, "clients check the subjectAltName: get a certificate with the host's name there"
        )
    else:
        yield ok(check, text)


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")


def presented(server: ssl.SSLContext, certificate: Path) -> dict[str, Any] | str:
    """What a client that trusts just this certificate learns from it, or why it refuses."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    try:
        return dict(_shaken(client, server).getpeercert() or {})
    except ssl.SSLCertVerificationError as problem:
        return "it has expired" if problem.verify_code == EXPIRED else problem.verify_message
    except ssl.SSLError as problem:
        return str(problem.reason)


def _shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a connection in memory.

    Raises:
        ssl.SSLError: one does not want the other.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    waiting = set(ends)
    for _ in range(10):
        for end in ends:
            if end not in waiting:
                continue
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            break
    return ends[0]


def links(config: Config) -> Iterator[Finding]:
    """Whether a member with the same authorities would open a link with this one, and who else could."""
    cluster, check = config.cluster, "cluster.peer.links"
    if cluster.peer_certificate is None:
        return
    try:
        tls = peer_tls_of(cluster)
        assert tls is not None
        _shaken(tls.dialling, tls.listening)
    except ConfigError as problem:
        if problem.key == "cluster.peer_authorities":
            yield fail(
                check, str(problem), "name a file with the authorities that sign members' certificates"
            )
        return  # what cannot be read is a finding of its own
    except ssl.SSLError as problem:
        if getattr(problem, "verify_code", 0) != EXPIRED:
            yield fail(
                check,
                f"a member with the same cluster.peer_authorities opens no link with this one: {about_tls(problem)}",
                "sign the certificates of all members by one authority, and give all its certificate as cluster.peer_authorities",
            )
        return
    if cluster.secret_file is None and _signed_by(config.tls.authorities) & _signed_by(
        cluster.peer_authorities
    ):
        yield fail(
            check,
            f"{config.tls.authorities} (tls.authorities) and {cluster.peer_authorities} have an authority in common, and there "
            "is no cluster.secret_file: every client with a certificate may act as a member, who may do everything",
            "have another authority sign those of members, or set cluster.secret_file on every member and front, too",
        )
    else:
        yield ok(check, "members with the same cluster.peer_authorities open links with this one")


def _signed_by(file: Path | None) -> set[bytes]:
    """The authorities in a file. That it cannot be read is a finding of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if file is not None:
        with suppress(ssl.SSLError, OSError):
            context.load_verify_locations(file)
    return set(context.get_ca_certs(binary_form=True))


def authorities(name: str, file: Path) -> Iterator[Finding]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    check = f"{name}.authorities"
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as problem:
        yield fail(check, f"{file} cannot be used: {problem}", "it must hold PEM certificates of authorities")
        return
    found = context.get_ca_certs()
    if not found:
        yield fail(
            check, f"{file} has no certificate of an authority", "put the authorities' certificates there"
        )
        return
    ends_s = min(ssl.cert_time_to_seconds(str(one["notAfter"])) for one in found)
    days = (ends_s - time.time()) / DAY_S
    until = time.strftime("%Y-%m-%d", time.gmtime(ends_s))
    if days < SOON_DAYS:
        yield warn(check, f"{file}: an authority is good until {until} only", "put its successor there too")
    else:
        yield ok(check, f"{len(found)} authorities, good until {until}")
