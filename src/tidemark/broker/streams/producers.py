"""Producers that number their batches, so that one that is sent twice is stored once.

A producer has a name of its own choice, the same after a restart of it, and gives every batch a number higher than
the one before. Names belong to a user in a virtual host (`scoped`): nobody can use up the numbers of another user. The number of its last batch is kept, in a record in the same frame as the batch: both survive,
or neither. A batch that comes with that number or a lower one was stored already; it is answered as a duplicate,
with the place of the last batch and when that is safe.

At most `broker.producers_max` producers are remembered. Of more, those go that have not committed for the longest;
should one of these send an old batch again, it is stored again. One that is done says so (`forget`). A user who has more than a tenth of all makes room
among his own, so that nobody can have those of others forgotten.

Invariant: `last` of a producer never falls while it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tidemark.broker.streams import state
from tidemark.broker.streams.policy import NAME_BYTES_MAX, checked_name
from tidemark.errors import PreconditionFailed

_OWNER_CHARACTERS_MAX = 255
"""Of a virtual host, and of a user."""
_KEY_BYTES_MAX = len("producer///") + 2 * 4 * _OWNER_CHARACTERS_MAX + NAME_BYTES_MAX
_BODY_BYTES_MAX = 160
OWNER_SHARE = 10
"""A user with more than this part of all producers makes room among his own."""
_RECORDS_BYTES_MAX = state.record_bytes(_KEY_BYTES_MAX, _BODY_BYTES_MAX) + state.record_bytes(
    _KEY_BYTES_MAX, 0
)


@dataclass(slots=True)
class Producer:
    last: int
    """The number of its last batch."""
    history: bytes
    first_seq: int
    last_seq: int
    """Where that batch is."""
    safe_at: int
    """The sequence of the record that says so."""


class Producers:
    def __init__(self, own_state: state.State, count_max: int) -> None:
        self._state = own_state
        self._count_max = count_max
        self._known: OrderedDict[tuple[str, str], Producer] = OrderedDict()
        """By virtual host and scoped name, the least recently heard of first."""
        self._owned: dict[tuple[str, str], OrderedDict[tuple[str, str], None]] = {}
        """Those of each user in a virtual host, in the same order."""

    def __len__(self) -> int:
        return len(self._known)

    def last(self, vhost: str, name: str) -> int:
        """The number of the last batch; 0 when none is known."""
        known = self._known.get((vhost, name))
        return known.last if known else 0

    def known(self, vhost: str, name: str) -> Producer | None:
        return self._known.get((vhost, name))

    def duplicate(self, vhost: str, name: str, number: int) -> int | None:
        """None: the batch with this number is new. Else it was stored: the sequence to wait for.

        Raises:
            PreconditionFailed: a number that cannot be.
        """
        if len(vhost) > _OWNER_CHARACTERS_MAX:
            raise PreconditionFailed(reason="the name of the virtual host is too long for numbered producers")
        if not 0 < number < 1 << 63:
            raise PreconditionFailed(reason=f"batches are numbered from 1 on, {number} is not possible")
        known = self._known.get((vhost, name))
        return known.safe_at if known is not None and number <= known.last else None

    def key(self, vhost: str, name: str) -> bytes:
        return state.key("producer", _quoted(vhost), name)

    def bytes_max(self, vhost: str, name: str) -> int:  # noqa: ARG002 - names are short
        """The most that `note` takes in the journal: its own record, and that of who is forgotten."""
        return _RECORDS_BYTES_MAX

    def note(
        self, vhost: str, name: str, number: int, first_seq: int, now_ms: int, last_seq: int | None = None
    ) -> int:
        """A batch is in the frame that is open: write down that it came. The caller has asked for room.

        Returns the sequence to wait for.
        """
        last_seq = first_seq if last_seq is None else last_seq
        history = self._state.history()
        body = f'{{"last":{number},"history":"{history.hex()}","first":{first_seq},"seq":{last_seq}}}'
        changes: list[state.Change] = [(self.key(vhost, name), body.encode())]
        if (vhost, name) not in self._known and len(self._known) >= self._count_max:
            own = self._owned.get(_owner(vhost, name), OrderedDict())
            forgotten = next(iter(own if len(own) > self._count_max // OWNER_SHARE else self._known))
            self._forget(forgotten)
            changes.append((self.key(*forgotten), None))
        safe_at = self._state.put_all(changes, now_ms)
        self._remember((vhost, name), Producer(number, history, first_seq, last_seq, safe_at))
        return safe_at

    def forget(self, vhost: str, name: str, now_ms: int) -> int:
        """A producer is done for good. Returns the sequence to wait for; 0: it was not known.

        Raises:
            StoreError: the journal takes nothing now; it is remembered.
        """
        if (vhost, name) not in self._known:
            return 0
        seq = self._state.write([(self.key(vhost, name), None)], now_ms)
        self._forget((vhost, name))
        return seq

    def _remember(self, key: tuple[str, str], producer: Producer) -> None:
        own = self._owned.setdefault(_owner(*key), OrderedDict())
        self._known[key], own[key] = producer, None
        self._known.move_to_end(key)
        own.move_to_end(key)

    def _forget(self, key: tuple[str, str]) -> None:
        own = self._owned[_owner(*key)]
        del self._known[key], own[key]
        if not own:
            del self._owned[_owner(*key)]

    def restored(self, vhost: str, name: str, body: dict[str, Any], seq: int) -> None:
        """Recovery: in the order they were written, so the least recent is first."""
        # The record survived, so its batch did: it belongs to the present history too.
        history = self._state.history()
        self._remember((vhost, name), Producer(body["last"], history, body["first"], body["seq"], seq))

    def forget_vhost(self, vhost: str) -> list[state.Change]:
        """The virtual host is gone: what becomes of the records."""
        names = [name for host, name in self._known if host == vhost]
        for name in names:
            self._forget((vhost, name))
        return [(self.key(vhost, name), None) for name in names]


def _owner(vhost: str, name: str) -> tuple[str, str]:
    return vhost, name.partition("/")[0]


def scoped(user: str, name: str) -> str:
    """The name of a producer as it is known here: each user has names of his own.

    Raises:
        PreconditionFailed: a name that cannot be.
    """
    checked_name("a producer", name)
    if len(user) > _OWNER_CHARACTERS_MAX:
        raise PreconditionFailed(reason="the name of the user is too long for numbered producers")
    return f"{_quoted(user)}/{name}"


def _quoted(owner: str) -> str:
    return owner.replace("%", "%25").replace("/", "%2F")


def parse_key(rest: str) -> tuple[str, str]:
    """(virtual host, scoped name) of what stands behind "producer/"."""
    vhost, _, name = rest.partition("/")
    return vhost.replace("%2F", "/").replace("%25", "%"), name
