"""Who answers a client that this member does not serve and does not pass on: an ordinary front end, without a broker behind it.

The client's handshake goes as it always does, except that any login is taken, because nothing is behind it. Where a virtual host
would be opened the connection is closed with 320 and a sentence that says where to go. So a client that speaks any of
our protocols gets an answer that it understands and reports.

Invariant: no client gets further than the door: there is no session, and nothing of the store can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tidemark.errors import TidemarkError
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.opening import Opening
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.frontend.stream.config import StreamConfig
from tidemark.frontend.stream.pace import Pace
from tidemark.model.arena import Arena
from tidemark.model.wiring import MAIN


class NoBroker:
    """Stands where front ends look for the broker."""

    blocked: str | None = None
    group = MAIN

    def __init__(self, refusal: Callable[[], TidemarkError]) -> None:
        self._refusal = refusal

    def open_session(self, *_: object, **__: object) -> NoReturn:
        raise self._refusal()


class Door:
    """Fits `frontend.services.Services`, as far as a connection comes that is never open."""

    def __init__(
        self,
        name: str,
        config: Amqp091Config,
        stream_config: StreamConfig,
        replaced: Callable[[FrontEnd, FrontEnd], None],
        due: Callable[[], None],
        note: Callable[..., None],
        refusal: Callable[[], TidemarkError],
    ) -> None:
        self.name = name
        self.config = config
        self.stream_config = stream_config
        self.pace = Pace()
        self.arena = Arena()
        self.broker = NoBroker(refusal)
        self.now_ms = 0
        self.front_ends: dict[FrontEnd, None] = {}
        self._touched: dict[FrontEnd, None] = {}
        self._logins: list[tuple[FrontEnd, str]] = []
        self._replaced = replaced
        self._due = due
        self._note = note

    # What the shell does -------------------------------------------------------------------------------------

    def connect(self, peer: PeerInfo) -> FrontEnd:
        front_end = Opening(self, peer)  # type: ignore[arg-type]
        self.front_ends[front_end] = None
        return front_end

    def disconnect(self, front_end: FrontEnd) -> bool:
        """Its socket is gone. Whether it was one of these."""
        if front_end not in self.front_ends:
            return False
        del self.front_ends[front_end]
        self._touched.pop(front_end, None)
        front_end.receive_eof()
        return True

    def turn(self, now_ms: int) -> dict[FrontEnd, None]:
        """Those that have something to send."""
        self.now_ms = now_ms
        logins, self._logins = self._logins, []
        for front_end, user in logins:
            if front_end in self.front_ends:
                front_end.verdict(Verdict(user))
        touched, self._touched = self._touched, {}
        return touched

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for front_end in list(self.front_ends):
            front_end.tick(now_ms)

    # Services --------------------------------------------------------------------------------------------------

    def journal_durable(self) -> int:
        return 0

    def catalog_durable(self) -> int:
        return 0

    def journal_settlements(self) -> int:
        return 0

    def become(self, old: FrontEnd, new: FrontEnd) -> None:
        del self.front_ends[old]
        self.front_ends[new] = None
        self._touched.pop(old, None)
        self._replaced(old, new)

    def authenticate(self, front_end: FrontEnd, login: Login) -> None:
        self._logins.append((front_end, login.user or "nobody"))
        self._due()

    def touched(self, front_end: FrontEnd) -> None:
        self._touched[front_end] = None
        self._due()

    def waiting(self, front_end: FrontEnd) -> None:
        """Nothing is ever on its way to the disk here."""

    def note(self, level: str, event: str, **facts: object) -> None:
        self._note(level, event, **facts)
