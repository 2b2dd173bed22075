"""Who may log in, and what each user may do in each virtual host.

A permission is three patterns: `configure` (declare, delete), `write` (publish, bind a destination) and `read`
(consume, purge, bind a source). A pattern is a regular expression that is searched for in the name; the empty
one matches only the empty name, and the default exchange goes by the name `amq.default`. Topic permissions
narrow this further for the routing keys of one topic exchange; an exchange without one is not narrowed.

Passwords are kept as salted scrypt hashes. `verify` takes tens of milliseconds and 16 MiB by design: it is a
pure function that the shell runs on a thread. Hashes in RabbitMQ's format (salted SHA-2) are accepted, so
that its definitions can be imported, and are replaced when their user next logs in.

Invariant: every pattern here compiles; every permission belongs to a user and a virtual host that exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from tidemark.broker.patterns import BadPattern, Pattern
from tidemark.errors import AccessRefused, LoginRefused, PreconditionFailed
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec, UserSpec

Permission = Literal["configure", "write", "read"]
Kind = Literal["exchange", "queue"]

SALT_BYTES = 16
RABBITMQ_HASHES: dict[str, Callable[[bytes], bytes]] = {
    "rabbit_password_hashing_sha256": lambda data: hashlib.sha256(data).digest(),
    "rabbit_password_hashing_sha512": lambda data: hashlib.sha512(data).digest(),
}
RABBITMQ_SALT_BYTES = 4
_PARAMETERS = re.compile(r"scrypt\$n=([0-9]{1,8}),r=([0-9]{1,3}),p=([0-9]{1,3})\$([^$]+)\$([^$]+)")
SCRYPT_BYTES_MAX = 256 << 20


# Passwords ------------------------------------------------------------------------------------


def hash_password(password: str, salt: bytes, log2_n: int = 14) -> str:
    """A stored form of the password: `scrypt$n=…,r=8,p=1$salt$hash`."""
    n = 1 << log2_n
    key = hashlib.scrypt(_raw(password), salt=salt, n=n, r=8, p=1, maxmem=2 * SCRYPT_BYTES_MAX, dklen=32)
    return f"scrypt$n={n},r=8,p=1${_text(salt)}${_text(key)}"


def verify(stored: str, password: str) -> bool:
    """Whether the password is the one that was hashed. An empty one never is. Slow on purpose; touches nothing."""
    if not password:
        return False
    if match := _PARAMETERS.fullmatch(stored):
        n, r, p = (int(number) for number in match.group(1, 2, 3))
        salt, key = base64.b64decode(match[4]), base64.b64decode(match[5])
        given = hashlib.scrypt(
            _raw(password), salt=salt, n=n, r=r, p=p, maxmem=2 * SCRYPT_BYTES_MAX, dklen=len(key)
        )
        return hmac.compare_digest(given, key)
    algorithm, _, rest = stored.partition("$")
    if algorithm in RABBITMQ_HASHES:
        raw = base64.b64decode(rest)
        salt, key = raw[:RABBITMQ_SALT_BYTES], raw[RABBITMQ_SALT_BYTES:]
        return hmac.compare_digest(RABBITMQ_HASHES[algorithm](salt + _raw(password)), key)
    return False


def is_outdated(stored: str) -> bool:
    """The hash works but is not memory-hard: replace it when the password is at hand."""
    return stored.partition("$")[0] in RABBITMQ_HASHES


def check_stored_hash(stored: str) -> None:
    """Raises PreconditionFailed when `verify` could not read it. Empty stands for no password at all."""
    if not stored:
        return
    try:
        if match := _PARAMETERS.fullmatch(stored):
            n, r, p = (int(number) for number in match.group(1, 2, 3))
            salts = base64.b64decode(match[4], validate=True), base64.b64decode(match[5], validate=True)
            usable = n > 1 and n & (n - 1) == 0 and r > 0 and p > 0 and 128 * n * r * p <= SCRYPT_BYTES_MAX
            if usable and all(salts):
                return
        algorithm, _, rest = stored.partition("$")
        if algorithm in RABBITMQ_HASHES:
            size = len(RABBITMQ_HASHES[algorithm](b"")) + RABBITMQ_SALT_BYTES
            if len(base64.b64decode(rest, validate=True)) == size:
                return
    except (binascii.Error, ValueError):
        pass
    raise PreconditionFailed(
        reason="the password hash is in no known form; give a scrypt, rabbit_password_hashing_sha256 or "
        "rabbit_password_hashing_sha512 hash"
    )


def _raw(password: str) -> bytes:
    return password.encode("utf-8", "surrogateescape")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


_NOBODY = f"scrypt$n=16384,r=8,p=1${_text(b'no such user')}${_text(bytes(32))}"
"""A hash that no known password has, checked in place of a user's that does not exist: it takes as long."""


# Patterns -------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Pattern:
    """What it takes too long to find out about is not allowed.

    Raises:
        PreconditionFailed: it is no regular expression.
    """
    try:
        return Pattern(pattern or "^$")
    except BadPattern as problem:
        raise PreconditionFailed(
            reason=f"regular expression '{pattern}' is invalid: {problem}; see 're' in Python's manual"
        ) from None


def _expanded(pattern: str, user: str, vhost: str) -> str:
    """Topic patterns may name the user and the virtual host."""
    return pattern.replace("{username}", re.escape(user)).replace("{vhost}", re.escape(vhost))


def allowed_by(spec: PermissionSpec, permission: Permission, name: str) -> bool:
    return bool(compile_pattern(getattr(spec, permission)).search(name))


def check_patterns(spec: PermissionSpec, permission: Permission, kind: Kind, name: str) -> None:
    """Raises AccessRefused unless these patterns allow that with the exchange or queue."""
    if not allowed_by(spec, permission, _asked(kind, name)):
        raise _refused(spec.user, spec.vhost, kind, name)


def _asked(kind: Kind, name: str) -> str:
    return "amq.default" if kind == "exchange" and name == "" else name


def _refused(user: str, vhost: str, kind: Kind, name: str) -> AccessRefused:
    return AccessRefused(
        reason=f"access to {kind} '{_asked(kind, name)}' in vhost '{vhost}' refused for user '{user}'"
    )


class Access:
    def __init__(self, loopback_users: tuple[str, ...]) -> None:
        self.users: dict[str, UserSpec] = {}
        self.permissions: dict[tuple[str, str], PermissionSpec] = {}
        """By user and virtual host."""
        self.topic_permissions: dict[tuple[str, str, str], TopicPermissionSpec] = {}
        """By user, virtual host and exchange."""
        self._loopback_users = frozenset(loopback_users)

    # Logging in -------------------------------------------------------------------------

    def stored_hash(self, user: str, *, loopback: bool) -> str:
        """What to `verify` the password against. For a user that does not exist it is a hash that none fits.

        Raises:
            LoginRefused: this user may not come from there.
        """
        self.check_origin(user, loopback=loopback)
        spec = self.users.get(user)
        return spec.password_hash if spec is not None and spec.password_hash else _NOBODY

    def check_origin(self, user: str, *, loopback: bool) -> None:
        """Raises LoginRefused when this user may not come from there."""
        if user in self._loopback_users and not loopback:
            raise LoginRefused(
                reason=f"user '{user}' can only connect via localhost; create a user of your own, "
                "or take this one out of broker.loopback_users"
            )

    # What a user may do -----------------------------------------------------------------

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has any permission in this virtual host, be it for nothing."""
        return (user, vhost) in self.permissions

    def allows(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        spec = self.permissions.get((user, vhost))
        return spec is not None and allowed_by(spec, permission, name)

    def check(self, user: str, vhost: str, permission: Permission, kind: Kind, name: str) -> None:
        """Raises AccessRefused unless the user has this permission for the exchange or queue."""
        spec = self.permissions.get((user, vhost))
        if spec is None:
            raise _refused(user, vhost, kind, name)
        check_patterns(spec, permission, kind, name)

    def check_topic(
        self, user: str, vhost: str, permission: Literal["write", "read"], exchange: str, key: str
    ) -> None:
        """Raises AccessRefused when a topic permission rules this routing key out."""
        spec = self.topic_permissions.get((user, vhost, exchange))
        if spec is None:
            return
        pattern = _expanded(getattr(spec, permission), user, vhost)
        if not compile_pattern(pattern).search(key):
            raise AccessRefused(
                reason=f"access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' "
                f"refused for user '{user}'"
            )

    # Changes, all of them from the catalog ------------------------------------------------

    def remove_user(self, name: str) -> None:
        self.users.pop(name, None)
        for key in [key for key in self.permissions if key[0] == name]:
            del self.permissions[key]
        for topic in [topic for topic in self.topic_permissions if topic[0] == name]:
            del self.topic_permissions[topic]

    def remove_vhost(self, name: str) -> None:
        for key in [key for key in self.permissions if key[1] == name]:
            del self.permissions[key]
        for topic in [topic for topic in self.topic_permissions if topic[1] == name]:
            del self.topic_permissions[topic]
