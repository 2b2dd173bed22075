"""Where brokers are: the URL, and whom to try next after how long.

    tidemark://user:password@host:port,host:port/vhost        tidemarks:// is the same over TLS
    tidemark://…/vhost?group=s1                               one group of a cluster, through its fronts

`Endpoints` is the list as a machine: it names the next address and how long to wait before it. One round over
the list is immediate; after each round without success the wait doubles, with dice, so that a thousand clients
do not come back in the same moment. Members of a cluster that a broker names stand behind those that were given.

Invariant: an address is never tried twice without all others in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
WAIT_FIRST_S = 0.05
WAIT_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says."""

    addresses: tuple[Address, ...]
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: bool
    group: str | None = None
    """Of a cluster of several groups, the one to use; None: main, which knows all."""


def parse_url(url: str) -> Target:
    """The parts of a URL; what is left out is guest, guest, 127.0.0.1, the default port and virtual host /.

    Raises:
        ValueError: it is not such a URL.
    """
    url, asked, options = url.partition("?group=")
    if asked and (not options or any(sign in options for sign in "@/&?")):
        # Nothing of the URL is shown: it may be the password that was cut in two here.
        raise ValueError(
            "'?group=' in a URL is followed by the name of one group and nothing else; in a user or password write ? as %3F"
        )
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("tidemark", "tidemarks"):
        raise ValueError(f"{_hidden(url)!r} is not a URL such as tidemark://user:password@host:5672/vhost")
    tls = scheme == "tidemarks"
    authority, _, path = rest.partition("/")
    if "@" in path:
        # Most likely the password was cut in two here: nothing of the URL is shown.
        raise ValueError(
            "the URL is not complete: it has an '@' behind its first '/'. In a user or password write / as %2F, in a "
            "virtual host write @ as %40"
        )
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    default = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    return Target(
        addresses=tuple(parse_address(part, default) for part in hosts.split(",")),
        user=unquote(user) if at else "guest",
        password=unquote(password) if at and colon else "guest",
        vhost=unquote(path) or "/",
        tls=tls,
        group=unquote(options) if asked else None,
    )


def with_group(url: str, group: str) -> str:
    """The URL, for a group of the cluster that it leads to; the empty one is main."""
    plain = url.partition("?group=")[0]
    return f"{plain}?group={quote(group, safe='')}" if group else plain


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """`host`, `host:port`, `[v6]:port`, or nothing at all for this machine.

    Raises:
        ValueError: the port is no number from 1 to 65535.
    """
    text = text.strip()
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        # What follows the colon is not shown: of a URL without its host that is the password.
        raise ValueError(
            f"{host!r} is not followed by a port from 1 to 65535, so this is not an address such as 127.0.0.1:5672"
        )
    return Address(host or "127.0.0.1", int(port) if port else default_port)


def _hidden(url: str) -> str:
    """A URL for a message, without its password: of what stands before the last @ only scheme and user are shown."""
    head, at, tail = url.rpartition("@")
    scheme, found, login = head.partition("://")
    if not scheme.isalnum():
        scheme, found, login = "", "", head
    return f"{scheme}{found}{login.partition(':')[0]}:…@{tail}" if at else url


class Endpoints:
    """The addresses of one client, in the order in which they are tried."""

    def __init__(self, addresses: Iterable[Address], dice: random.Random | None = None) -> None:
        self._given = self._addresses = list(dict.fromkeys(addresses))
        self._dice = dice or random.Random()
        self._next = 0
        self._tried = 0

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._addresses)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self._addresses))

    def next(self) -> tuple[Address, float]:
        """Whom to try now, and how many seconds to wait first."""
        rounds, place = divmod(self._tried, len(self._addresses))
        wait = 0.0
        if rounds and place == 0:
            longest = min(WAIT_S_MAX, WAIT_FIRST_S * 2 ** min(rounds - 1, 20))
            wait = self._dice.uniform(longest / 2, longest)
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        self._tried += 1
        return address, wait

    def learn(self, others: Iterable[Address]) -> None:
        """These are the members now: they stand behind the addresses that were given, and replace earlier ones."""
        found = list(dict.fromkeys([*self._given, *others]))
        if found != self._addresses:
            upcoming = self._addresses[self._next % len(self._addresses)]
            self._addresses = found
            self._next = found.index(upcoming) if upcoming in found else 0

    def connected(self, others: Iterable[Address] = (), at: Address | None = None) -> None:
        """The last one named, or `at`, let us in; when that connection breaks it is tried first."""
        address = self._addresses[(self._next - 1) % len(self._addresses)] if at is None else at
        others = list(others)
        if others:
            self.learn(others)
        self._next = self._addresses.index(address) if address in self._addresses else 0
        self._tried = 0
