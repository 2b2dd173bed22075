"""One message at a time: who may publish it, and finding its queues, where the fast path cannot.

Dead letters, copies (CC, BCC), headers exchanges and the admin API come this way. What they share with the
fast path is the end of it: `Publisher.put` encodes the message once and puts it on its queues. A copy of the wiring
(`wiring_copy.py`) asks here too, so it finds the same queues and refuses the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from tidemark.broker.arguments import type_name
from tidemark.broker.core import Route
from tidemark.errors import AccessRefused, PreconditionFailed
from tidemark.model.runs import PublishRun

if TYPE_CHECKING:
    from tidemark.broker.access import Access
    from tidemark.broker.queue import Queue
    from tidemark.broker.vhost import VirtualHost


IMPERSONATOR = "impersonator"
"""Users with this tag may publish in the name of others."""


def raw(name: str) -> bytes:
    """A name as it came over the wire."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def run_of_one(
    exchange: bytes,
    key: bytes,
    properties: bytes,
    body: bytes,
    *,
    flags: int = 0,
    priority: int = 0,
    ttl_ms: int = -1,
) -> PublishRun:
    """A run with a single row over bytes of its own."""
    run = PublishRun(0, b"".join((exchange, key, properties, body)))
    at_key = len(exchange)
    at_properties = at_key + len(key)
    at_body = at_properties + len(properties)
    run.add(
        (0, len(exchange)),
        (at_key, len(key)),
        (at_properties, len(properties)),
        (at_body, len(body)),
        flags,
        priority,
        ttl_ms,
    )
    return run


def route_for(access: Access, user: str, vhost: VirtualHost, exchange: bytes, key: bytes) -> Route:
    """Where this user's messages to the exchange with this key go.

    Raises:
        AccessRefused: the user may not publish there, or nobody may.
        NotFound: there is no such exchange.
    """
    name = text(exchange)
    access.check(user, vhost.name, "write", "exchange", name)
    found = vhost.exchange(name)
    if found.spec.internal:
        raise AccessRefused(reason=f"cannot publish to internal exchange '{name}' in vhost '{vhost.name}'")
    if found.type == "topic":
        access.check_topic(user, vhost.name, "write", name, text(key))
    return vhost.resolve(exchange, key)


def check_user_id(access: Access, user: str, named: str | None) -> None:
    """That a message may say that it is from `named`.

    Raises:
        PreconditionFailed: it is another user's, and this one may not speak for others.
    """
    if named is None or named == user:
        return
    spec = access.users.get(user)
    if spec is None or IMPERSONATOR not in spec.tags:
        raise PreconditionFailed(
            reason=f"user_id property set to '{named}' but authenticated user was '{user}'"
        )


def queues_closely(
    vhost: VirtualHost, exchange: bytes, key: bytes, route: Route, headers: dict[str, Any], has_copies: bool
) -> tuple[Queue, ...]:
    """The queues of a message that has copies, or whose way (`route`) depends on its headers.

    Raises:
        PreconditionFailed: CC or BCC is no list.
    """
    keys, first = [text(key)], cast(tuple["Queue", ...], ())
    if has_copies:
        for name in ("CC", "BCC"):
            keys += copy_keys(headers, name, type_name(headers.get(name)))
        if type(route) is Route:
            first = cast(tuple["Queue", ...], route.queues)
            keys = keys[1:]
    return tuple(dict.fromkeys(first + queues_of(vhost, text(exchange), keys, headers)))


def queues_of(
    vhost: VirtualHost, exchange: str, keys: Iterable[str], headers: dict[str, Any]
) -> tuple[Queue, ...]:
    """The queues that a message with these keys goes to, each once, in the order they are found.

    Raises:
        NotFound: there is no such exchange.
    """
    found: dict[Queue, None] = {}
    for key in keys:
        route = vhost.resolve(raw(exchange), raw(key))
        queues = route.queues if type(route) is Route else vhost.route_message(exchange, key, headers)
        found.update(dict.fromkeys(queues))  # type: ignore[arg-type]
    return tuple(found)


def copy_keys(headers: dict[str, Any], name: str, type_name: str | None = None) -> list[str]:
    """The further routing keys in a CC or BCC header.

    Raises:
        PreconditionFailed: the header is no list.
    """
    copies = headers.get(name)
    if copies is None:
        return []
    if not isinstance(copies, list):
        kind = type_name or type(copies).__name__
        raise PreconditionFailed(reason=f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return [key for key in copies if isinstance(key, str)]


def bad_expiration(expiration: str) -> PreconditionFailed:
    """What is said about an expiration that is no number of milliseconds."""
    digits = expiration.removeprefix("-")
    if not digits.isdecimal() or not digits.isascii():
        number = "".join(c for c in expiration if c.isascii() and c.isdigit())
        problem = f'{{leftover_string,"{expiration.lstrip(number)}"}}' if number else "no_integer"
    elif expiration.startswith("-"):
        problem = f"{{value_negative,{expiration}}}"
    else:
        problem = f"{{value_too_large,{expiration}}}"
    return PreconditionFailed(reason=f"invalid expiration '{expiration}': {problem}")
