"""What a front says in the headers of a message that it has routed: its queues, and how it is shown to consumers.

Messages of one exchange and key mostly have the same headers, byte by byte. So what was read from a table is remembered by
its bytes, with the table that is stored in its place, and most messages are neither decoded nor encoded again.

Invariant: what is remembered depends on the bytes alone; whether the queues are here is asked for every message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.broker.placing import raw, text
from tidemark.broker.vhost import QUEUES_PER_MESSAGE_MAX
from tidemark.errors import PreconditionFailed
from tidemark.model.turns import Moved
from tidemark.model.wiring import EXCHANGE_HEADER, KEY_HEADER, LIFE_HEADER, TO_HEADER, TURN_HEADER
from tidemark.ports import Content

NAME_BYTES_MAX = 255
KNOWN_MAX = 1024
TABLE_BYTES_MAX = 4096
"""Larger tables are read anew each time: what is remembered stays small."""


@dataclass(frozen=True, slots=True)
class Listed:
    queues: tuple[str, ...]
    """Each once, in the order in which they were named."""
    shown: tuple[bytes, bytes]
    """The exchange and the key that the client published to."""
    headers: dict[str, Any]
    """What is left of the headers."""
    table: bytes
    """The same, as it is stored; empty if there are none."""
    life: int = 0
    """Which incarnation of the queues it is for; 0: whichever there is."""
    moved: Moved | None = None
    """Whence and in which turn it is moved on; None: it is not, or by a front that does not say so."""


class Lists:
    """The lists that came over one channel."""

    def __init__(self, content: Content, turns: bool = False) -> None:
        """`turns`: the front says in which turn it has taken what it moves on, and for which life of its queue that is. From
        others these are headers like others: an older front lets through what a client says in them."""
        self._content = content
        self._turns = turns
        self._known: dict[bytes, Listed] = {}

    def read(self, properties: bytes) -> Listed:
        """What the headers say.

        Raises:
            PreconditionFailed: one of them is not what a front says.
        """
        table = self._content.headers_table(properties)
        known = self._known.get(table)
        if known is None:
            known = self._read(properties)
            if len(table) <= TABLE_BYTES_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[table] = known
        return known

    def _read(self, properties: bytes) -> Listed:
        headers = self._content.headers(properties)
        names = headers.pop(TO_HEADER, [])
        if not isinstance(names, list) or len(names) > QUEUES_PER_MESSAGE_MAX:
            raise PreconditionFailed(
                reason=f"the header '{TO_HEADER}' is no list of at most {QUEUES_PER_MESSAGE_MAX} queues"
            )
        queues = dict.fromkeys(_name(name, TO_HEADER) for name in names)
        exchange, key = (raw(_name(headers.pop(one, ""), one)) for one in (EXCHANGE_HEADER, KEY_HEADER))
        life = headers.pop(LIFE_HEADER, 0) if self._turns else 0
        if not isinstance(life, int):
            raise PreconditionFailed(reason=f"the header '{LIFE_HEADER}' is no number")
        moved = _moved(headers.pop(TURN_HEADER)) if self._turns and TURN_HEADER in headers else None
        headers.pop("BCC", None)  # it was for whoever routes
        table = self._content.headers_table(self._content.with_headers(properties, headers))
        return Listed(tuple(queues), (exchange, key), headers, table, life, moved)


def _moved(value: Any) -> Moved:
    """Where a message waited, and the number of the turn."""
    match value:
        case [group, queue, str(of), int(reign), int(count), int(link)]:
            source = f"{_name(group, TURN_HEADER)}/{_name(queue, TURN_HEADER)}"
            return Moved(source, of, (reign, count, link))
    raise PreconditionFailed(reason=f"the header '{TURN_HEADER}' says no turn: {value!r}")


def _name(value: Any, header: str) -> str:
    """A name of an exchange or queue, or a key. One that is no text comes as bytes."""
    name = text(value) if isinstance(value, bytes) else value
    if not isinstance(name, str) or len(raw(name)) > NAME_BYTES_MAX:
        raise PreconditionFailed(
            reason=f"the header '{header}' has no name of {NAME_BYTES_MAX} bytes at most: {value!r}"
        )
    return name
