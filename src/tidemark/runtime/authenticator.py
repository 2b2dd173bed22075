"""Checks passwords without holding up the loop.

Hashing a password is slow on purpose, so it runs in a small pool of threads; the hash function lets go of the
interpreter meanwhile. A success is remembered under a keyed digest of the user, the password and the stored
hash: a thousand clients that reconnect are checked once, and a changed password is a different key. Logins
that are the same and arrive together share one check.

Before anything is checked, `throttle` is asked: who failed too often must wait (`Verdict.retry_s`).

Who may come from where, and which hash is whose, is the broker's `Access` to say.

Invariant: what is remembered cannot be turned back into a password without the key, which never leaves here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemark.broker import access
from tidemark.broker.access import Access
from tidemark.errors import LoginRefused
from tidemark.frontend.services import Login, PeerInfo, Verdict
from tidemark.runtime.clock import Clock
from tidemark.runtime.throttle import Throttle

REMEMBERED_MAX = 10_000
THREADS = 2


class Authenticator:
    def __init__(
        self,
        users: Access,
        throttle: Throttle | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.throttle = Throttle() if throttle is None else throttle
        self._access = users
        self._now_ms = now_ms or Clock().now_ms
        self._key = os.urandom(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[bool]] = {}
        self._guesses: Counter[tuple[str, str]] = Counter()
        """Different passwords of one user, from one address, that are being checked."""
        self._pool = ThreadPoolExecutor(THREADS, "tidemark-login")

    async def login(self, login: Login) -> Verdict:
        """The answer to what a peer says about itself."""
        try:
            if login.mechanism == "EXTERNAL":
                return self._external(login.peer)
            return await self._in_time(login.user, login.password, login.peer.host)
        except LoginRefused as error:
            return Verdict(None, str(error))

    async def _in_time(self, user: str, password: str, host: str) -> Verdict:
        """Check the password, unless there were too many wrong ones."""
        throttle = self.throttle
        wait_s = throttle.wait_s(host, user, self._now_ms(), self._guesses[host, user])
        if wait_s:
            return Verdict(
                None, f"too many failed logins of user '{user}' or from {host}: wait {wait_s:.0f} s", wait_s
            )
        try:
            verdict = await self._password(user, password, host)
        except LoginRefused:
            throttle.failed(host, user, self._now_ms())
            raise
        (throttle.failed if verdict.user is None else throttle.passed)(host, user, self._now_ms())
        return verdict

    def _external(self, peer: PeerInfo) -> Verdict:
        name = peer.certificate_name
        if name is None:
            return Verdict(None, "EXTERNAL without a client certificate")
        self._access.check_origin(name, loopback=is_loopback(peer.host))
        if name not in self._access.users:
            return Verdict(None, f"the certificate's user '{name}' does not exist")
        return Verdict(name)

    async def _password(self, user: str, password: str, host: str) -> Verdict:
        stored = self._access.stored_hash(user, loopback=is_loopback(host))
        if not await self._fits(user, stored, password, host):
            return Verdict(None, f"user '{user}' does not exist or the password is wrong")
        # The user may have been changed or deleted while the thread was at work.
        if user not in self._access.users or self._access.users[user].password_hash != stored:
            return Verdict(None, f"user '{user}' was changed during the login")
        return Verdict(user)

    async def _fits(self, user: str, stored: str, password: str, host: str) -> bool:
        digest = self._digest(user, stored, password)
        if digest in self._remembered:
            self._remembered.move_to_end(digest)
            return True
        running = self._running.get(digest)
        if running is None:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._pool, access.verify, stored, password)
            self._running[digest] = running
            self._guesses[host, user] += 1
            running.add_done_callback(lambda done: self._finished(digest, done, (host, user)))
        return await asyncio.shield(running)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finished(self, digest: bytes, done: asyncio.Future[bool], guess: tuple[str, str]) -> None:
        del self._running[digest]
        self._guesses[guess] -= 1
        if not self._guesses[guess]:
            del self._guesses[guess]
        if not done.cancelled() and done.exception() is None and done.result():
            self._remembered[digest] = None
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)

    def _digest(self, *parts: str) -> bytes:
        text = b"".join(
            len(raw).to_bytes(4, "big") + raw for raw in (p.encode("utf-8", "surrogateescape") for p in parts)
        )
        return hmac.new(self._key, text, hashlib.sha256).digest()


def is_loopback(host: str) -> bool:
    """Whether a peer's address is one of this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
