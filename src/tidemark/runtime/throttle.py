"""How often somebody may try: failed logins make the next try wait, and connections come no faster than they may.

`Throttle` is asked before a password is looked at, for AMQP and for the management API alike. Failures are counted
three times:

    of an address with a user     so that one client with a wrong password waits, and not its neighbours
    of an address                 ten times as many: it tries one user after another
    of a user                     ten times as many: somebody tries from many addresses. Addresses from which this
                                  user has logged in are let through, so that nobody can lock it out

Behind the number that is free each further failure doubles the wait, from a second up to a bound. After ten quiet
minutes all is forgotten. A try that had to wait is not looked at and does not count. What one address fails beyond its
free number as one user counts for these two alone: a client that never stops trying must hold up nobody else.

`Rate` is a bucket: so many a second, and as many at once as come in one. `Rates` has one for each address.

Invariant: both hold at most a fixed number of entries; the least recently used is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

FORGOTTEN_MS = 10 * 60_000
WIDER = 10
"""How many times as many failures an address has for all users, and a user from all addresses."""
KNOWN_MS = 24 * 3600_000
"""For how long an address counts as one from which a user logs in."""
ENTRIES_MAX = 10_000
USER_MAX = 256
"""Characters of a name that are remembered: no user has a longer one, but somebody may try."""

Key = tuple[Literal["pair", "address", "user"], str, str]


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_ms: int = 0
    until_ms: int = 0
    """Nothing is looked at before this."""


class Throttle:
    """Who must wait before the next try to log in."""

    def __init__(self, failures_max: int = 10, wait_s_max: int = 60) -> None:
        """`failures_max` failures are free; 0: all are."""
        self._free = failures_max
        self._wait_ms_max = 1000 * wait_s_max
        self._failures: OrderedDict[Key, _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()
        """(address, user) of logins that went well, with when the last one was."""

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, host: str, user: str, now_ms: int, guesses: int = 0) -> float:
        """How long a login of this user from this address must wait; 0: it may be tried now.

        While so many `guesses` of theirs are being looked at, as many more may fail: they count already.
        """
        if not self._free:
            return 0
        waits = [self._until_ms(key, now_ms) - now_ms for key in self._keys(host, user, now_ms)]
        failures = self._failures.get(_keys(host, user)[0])
        if guesses and guesses + (failures.count if failures else 0) >= self._free:
            waits.append(1000)
        return max(0, *waits) / 1000

    def failed(self, host: str, user: str, now_ms: int) -> None:
        """A login was looked at and refused."""
        if not self._free:
            return
        for key in _keys(host, user):
            free = self._free if key[0] == "pair" else WIDER * self._free
            found = self._entry(key, now_ms)
            found.count += 1
            alone = key[0] == "pair" and found.count > free
            found.last_ms = now_ms
            if found.count >= free:
                # The exponent is bounded so that the number is not a long one.
                wait_ms = 1000 << min(found.count - free, 20)
                found.until_ms = now_ms + min(wait_ms, self._wait_ms_max)
            if alone:
                return

    def passed(self, host: str, user: str, now_ms: int) -> None:
        """A login went well. What this address has done as somebody else is not forgotten for it."""
        if self._free:
            self._failures.pop(_keys(host, user)[0], None)
            self._known[host, user] = now_ms
            self._known.move_to_end((host, user))
            if len(self._known) > ENTRIES_MAX:
                self._known.popitem(last=False)

    def _keys(self, host: str, user: str, now_ms: int) -> list[Key]:
        keys = _keys(host, user)
        return keys[:2] if self._knows(host, user, now_ms) else keys

    def _knows(self, host: str, user: str, now_ms: int) -> bool:
        return now_ms - self._known.get((host, user), -KNOWN_MS) < KNOWN_MS

    def _until_ms(self, key: Key, now_ms: int) -> int:
        found = self._failures.get(key)
        if found is None or now_ms < found.last_ms:  # a clock that was set back must not lock anybody out
            return 0
        return found.until_ms

    def _entry(self, key: Key, now_ms: int) -> _Failures:
        found = self._failures.get(key)
        if found is None or not 0 <= now_ms - found.last_ms <= FORGOTTEN_MS:
            found = self._failures[key] = _Failures()
        self._failures.move_to_end(key)
        if len(self._failures) > ENTRIES_MAX:
            self._failures.popitem(last=False)
        return found


def _keys(host: str, user: str) -> list[Key]:
    user = user[:USER_MAX]
    return [("pair", host, user), ("address", host, ""), ("user", "", user)]


class Rate:
    """So many a second, and no more at once than come in one second."""

    __slots__ = ("_full_ms", "_tokens", "per_s")

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self._tokens = float(per_s)
        self._full_ms = 0

    def take(self, now_ms: int) -> bool:
        """One more comes now. False: that is too fast, and it does not count."""
        passed_ms = now_ms - self._full_ms
        if passed_ms > 0:
            self._tokens = min(float(self.per_s), self._tokens + passed_ms * self.per_s / 1000)
        self._full_ms = now_ms
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Rates:
    """How fast connections come: in all, and of each address. 0 is no limit."""

    def __init__(self, per_s_max: int, address_per_s_max: int) -> None:
        self._all = Rate(per_s_max) if per_s_max else None
        self._each_per_s = address_per_s_max
        self._each: OrderedDict[str, Rate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._each)

    def refusal(self, host: str, now_ms: int) -> str | None:
        """Why a connection from this address is not taken now; None: it is."""
        if self._each_per_s and not self._of(host).take(now_ms):
            return f"this broker takes {self._each_per_s} connections a second from one address"
        if self._all is not None and not self._all.take(now_ms):
            return f"this broker takes {self._all.per_s} connections a second"
        return None

    def _of(self, host: str) -> Rate:
        found = self._each.get(host)
        if found is None:
            found = self._each[host] = Rate(self._each_per_s)
            if len(self._each) > ENTRIES_MAX:
                self._each.popitem(last=False)
        self._each.move_to_end(host)
        return found
