"""How much a virtual host and a user may have at a time, and how much they have.

Limits are what RabbitMQ calls `vhost-limits` ("max-connections", "max-queues") and user limits ("max-connections",
"max-channels"). One that is not set, or negative, is no limit; 0 allows nothing. They are asked when something new
comes: what is there when a limit is lowered stays. Connections are those of clients, of whatever protocol; what the
management API does counts as none. In a cluster each member counts its own.

Invariant: `connections_of_vhost` and `connections_of_user` are the sessions with a connection behind them,
`channels_of_user` the open channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tidemark.broker.policies import NUMBER_MAX, invalid, shown
from tidemark.errors import NotAllowed, PreconditionFailed

CONNECTIONS, QUEUES, CHANNELS = "max-connections", "max-queues", "max-channels"
OF_VHOST = (CONNECTIONS, QUEUES)
OF_USER = (CONNECTIONS, CHANNELS)

COMPONENT, PARAMETER = "vhost-limits", "limits"
"""The runtime parameter that RabbitMQ keeps the limits of a virtual host in."""

Limits = Mapping[str, int]


def check_limits(called: str, known: tuple[str, ...], limits: Any) -> dict[str, int]:
    """The limits, when all of them are known ones.

    Raises:
        PreconditionFailed: they are not, in RabbitMQ's words.
    """
    if not isinstance(limits, dict):
        raise invalid(f"{called} not a list {shown(limits)}")
    for name in known:
        value = limits.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > NUMBER_MAX:
            raise invalid(f"{name} should be a number, actually was {shown(value)}")
    unknown = [f"{{{shown(name)},{shown(value)}}}" for name, value in limits.items() if name not in known]
    if unknown:
        raise invalid(f"Unrecognised terms [{','.join(unknown)}] in {called}")
    return {name: int(value) for name, value in limits.items()}


class Usage:
    """The limits, and what counts against them."""

    def __init__(self) -> None:
        self.of_vhost: dict[str, Limits] = {}
        self.of_user: dict[str, Limits] = {}
        self.connections_of_vhost: Counter[str] = Counter()
        self.connections_of_user: Counter[str] = Counter()
        self.channels_of_user: Counter[str] = Counter()

    # Limits -------------------------------------------------------------------------------------

    def check_connection(self, vhost: str, user: str) -> None:
        """Raises NotAllowed when the virtual host or the user has as many connections as it may."""
        limit = _reached(self.of_vhost.get(vhost), CONNECTIONS, self.connections_of_vhost[vhost])
        if limit is not None:
            raise NotAllowed(
                reason=f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            )
        limit = _reached(self.of_user.get(user), CONNECTIONS, self.connections_of_user[user])
        if limit is not None:
            raise NotAllowed(
                reason=f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )

    def check_channel(self, user: str) -> None:
        """Raises NotAllowed when the user has as many channels as it may."""
        limit = _reached(self.of_user.get(user), CHANNELS, self.channels_of_user[user])
        if limit is not None:
            raise NotAllowed(
                reason=f"number of channels opened for user '{user}' has reached the maximum allowed user limit "
                f"of ({limit})"
            )

    def check_queue(self, vhost: str, name: str, count: int) -> None:
        """Raises PreconditionFailed when the virtual host, with `count` queues, has as many as it may."""
        limit = _reached(self.of_vhost.get(vhost), QUEUES, count)
        if limit is not None:
            raise PreconditionFailed(
                reason=f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
            )

    # Counting -----------------------------------------------------------------------------------

    def connected(self, vhost: str, user: str, by: int = 1) -> None:
        """One connection more; with -1, one less."""
        for counter, name in ((self.connections_of_vhost, vhost), (self.connections_of_user, user)):
            _count(counter, name, by)

    def channels(self, user: str, by: int) -> None:
        """So many channels more, or less."""
        _count(self.channels_of_user, user, by)


def _count(counter: Counter[str], name: str, by: int) -> None:
    counter[name] += by
    if counter[name] <= 0:
        del counter[name]


def _reached(limits: Limits | None, name: str, count: int) -> int | None:
    """The limit, if one more would be over it."""
    limit = limits.get(name) if limits else None
    return limit if limit is not None and 0 <= limit <= count else None
