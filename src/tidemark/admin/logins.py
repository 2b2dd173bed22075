"""Logins at the management API: tokens that stand for a password.

A token is random, is shown once, and is kept here only as its digest, so what this process holds opens nothing. It is
good for one user as that user was at the login: when the password or the tags change, or the user goes, it has ended.

Invariant: a token is accepted only while its user has the password hash and the tags that it was given for.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from tidemark.broker.access import Access
from tidemark.model.wiring import UserSpec

TOKENS_MAX = 10_000
TOKENS_EACH_MAX = 100


@dataclass(frozen=True, slots=True)
class Token:
    user: UserSpec
    """As it was at the login."""
    until_ms: int


class Tokens:
    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._by_digest: OrderedDict[bytes, Token] = OrderedDict()
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._by_digest)

    def issue(self, user: UserSpec, now_ms: int) -> tuple[str, Token]:
        """A new one for this user. Whoever has too many loses the oldest."""
        token = secrets.token_urlsafe(32)
        made = Token(user, now_ms + self._ms)
        own = [digest for digest, one in self._by_digest.items() if one.user.name == user.name]
        if len(own) >= TOKENS_EACH_MAX:
            del self._by_digest[own[0]]
        while len(self._by_digest) >= TOKENS_MAX:
            self._by_digest.popitem(last=False)
        self._by_digest[_digest(token)] = made
        return token, made

    def user(self, token: str, access: Access, now_ms: int) -> UserSpec | None:
        """Whose it is; None: nobody's any more."""
        wanted = _digest(token)
        found = self._by_digest.get(wanted)
        if found is None:
            return None
        user = access.users.get(found.user.name)
        if now_ms >= found.until_ms or user is None or not same_rights(user, found.user):
            del self._by_digest[wanted]
            return None
        return user

    def end(self, token: str) -> None:
        self._by_digest.pop(_digest(token), None)


def same_rights(now: UserSpec, before: UserSpec) -> bool:
    """Whether a login of before is one of now."""
    # A digest of both takes the same time wherever they differ.
    return hmac.compare_digest(_digest(now.password_hash), _digest(before.password_hash)) and (
        now.name,
        now.tags,
    ) == (before.name, before.tags)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
