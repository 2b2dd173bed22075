"""Certificates on the links between members and with fronts: how both sides are set up, and in words why a link was not opened.

Each side shows a certificate that is signed by an authority in the other's `cluster.peer_authorities`. Who has one is a
member as far as TLS is concerned, whatever name is on it: the handshake that follows (`wire/peer/handshake.py`) says which.

A listener takes its sockets itself (`TlsDoor`): asyncio's own server keeps silent about a handshake that fails, and who was kept
out and why is what an operator looks for. TLS tells the one who was kept out nothing that arrives, so what it says is a guess
with the place to look.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemark.cluster.config import ClusterConfig
from tidemark.errors import ConfigError

REST_S = 1.0
"""How long nobody is taken after a socket could not be, most likely for want of files."""
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"})
EXPIRED = 10
ABOUT_CERTIFICATES = {
    9: "is not valid yet: is a clock wrong?",
    EXPIRED: "has expired: give it a new one and start it again",
    26: "is for one side of a link only: its extended key usage must allow server and client authentication",
}
"""What OpenSSL found wrong, besides the authority."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """How links are encrypted; both sides show a certificate of the same authority."""

    listening: ssl.SSLContext
    dialling: ssl.SSLContext


def peer_tls(certificate: Path, key: Path | None, authorities: Path) -> PeerTls:
    """The contexts of both sides.

    Raises:
        ConfigError: a file is not what its setting says.
    """
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Members are known by their authority and by the handshake, wherever their address is.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as problem:
            raise ConfigError(
                key="cluster.peer_certificate",
                problem=f"{certificate} with authorities {authorities} cannot be used: {problem}",
            ) from None
        contexts.append(context)
    return PeerTls(*contexts)


def peer_tls_of(cluster: ClusterConfig) -> PeerTls | None:
    """How links are encrypted, if they are.

    Raises:
        ConfigError: a file is not what its setting says, or there is no file with authorities.
    """
    if cluster.peer_certificate is None:
        return None
    if cluster.peer_authorities is None:
        raise ConfigError(key="cluster.peer_authorities", problem="is needed with cluster.peer_certificate")
    return peer_tls(cluster.peer_certificate, cluster.peer_key, cluster.peer_authorities)


# Why not, in words -------------------------------------------------------------------------------------------------


def not_opened(error: OSError) -> str:
    """Why a link could not be dialled."""
    if isinstance(error, ssl.SSLError):
        if error.reason in NOT_TLS:
            return "it does not speak TLS: set cluster.peer_certificate there, or take it out here"
        return about_tls(error)
    if isinstance(error, ConnectionResetError) and error.errno is None:
        return "it closed the link before it was encrypted: its log says why"
    return (error.strerror or str(error)).lower()


def unheard(tls: PeerTls | None) -> str:
    """The other side closed a link without having said a word."""
    if tls is None:
        words = "if its links have certificates, set cluster.peer_certificate here;"
    else:
        words = "does it trust cluster.peer_certificate?"
    return f"it closed the link before it said anything: {words} its log says why"


def not_taken(error: OSError) -> str | None:
    """Why one who has dialled was shown out; None: it went away by itself."""
    if isinstance(error, ssl.SSLError):
        if error.reason == NO_CERTIFICATE:
            return "it shows no certificate: if it is a member, set cluster.peer_certificate there"
        if error.reason in NOT_TLS:
            return "it does not speak TLS: if it is a member, set cluster.peer_certificate there"
        return about_tls(error)
    return str(error).lower() if isinstance(error, ConnectionAbortedError) else None


def about_tls(error: ssl.SSLError) -> str:
    """What is wrong with the other side's certificate, or with its TLS."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    words = ABOUT_CERTIFICATES.get(error.verify_code)
    if words is None:
        words = (
            f"is not signed by an authority in cluster.peer_authorities ({error.verify_message}): give it one that is, or "
            "add its authority here"
        )
    return f"its certificate {words}"


# The listener ------------------------------------------------------------------------------------------------------


class TlsDoor:
    """Takes connections and opens TLS on each; whoever shows the right certificate gets a protocol."""

    def __init__(
        self,
        listener: socket.socket,
        tls: PeerTls,
        made: Callable[[], asyncio.BaseProtocol],
        refused: Callable[[str, str], None],
        opening_s: float,
        opening_max: int,
    ) -> None:
        """`refused` is told the address of one who was shown out, and why."""
        self._listener = listener
        self._context = tls.listening
        self._made = made
        self._refused = refused
        self._opening_s = opening_s
        self._opening_max = opening_max
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Nobody is taken any more; those whose handshake is not over are shown out."""
        tasks = [self._task, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        with self._listener:
            while True:
                try:
                    raw, where = await self._loop.sock_accept(self._listener)
                except OSError as problem:
                    self._refused(
                        "", f"nobody is taken for a moment: {(problem.strerror or str(problem)).lower()}"
                    )
                    await asyncio.sleep(REST_S)
                    continue
                far = f"{where[0]}:{where[1]}"
                if len(self._opening) < self._opening_max:
                    task = self._loop.create_task(self._open(raw, far))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
                else:
                    raw.close()
                    self._refused(far, "too many connections that have not said who they are")

    async def _open(self, raw: socket.socket, far: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._made, raw, ssl=self._context, ssl_handshake_timeout=self._opening_s
            )
        except OSError as problem:
            why = not_taken(problem)
            if why is not None:
                self._refused(far, why)
