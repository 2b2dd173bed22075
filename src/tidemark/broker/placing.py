"""One message at a time: finding its queues and putting it there, where the fast path cannot.

Dead letters, copies (CC, BCC), headers exchanges and the admin API come this way. What they share with the
fast path is the end of it: `Publisher.put` encodes the message once and puts it on its queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidemark.broker.core import Route
from tidemark.errors import PreconditionFailed
from tidemark.model.runs import PublishRun

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue
    from tidemark.broker.vhost import VirtualHost


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
