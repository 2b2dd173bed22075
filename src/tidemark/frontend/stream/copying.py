"""A commit that copies rows or takes messages: they are read a slice in a turn, then all is committed at once.

Writes of the same connection wait until it is stored or refused, so their order is kept. When publishers must wait
the rows that were read are kept until they may go on, or that takes too long. What all connections hold so is bounded
(`broker.streams.room`): who would hold more waits for the others, and who gets nowhere for too long is refused, so that nobody
can keep the room from them.

Invariant: until the commit nothing has changed; a work that is closed before it leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.broker.streams.commit import Batch
from tidemark.broker.streams.copies import Copier
from tidemark.errors import DiskFull, PublishersBlocked, TidemarkError
from tidemark.frontend.stream.work import Link, Work

Commit = Callable[[int, Batch], None]
"""Stores a batch and answers the request when that is durable."""
STUCK_PART = 3
"""Who gets nowhere by his own fault is given up so much sooner: others may wait for the room that he has."""


class Copying(Work):
    writes = True

    def __init__(self, link: Link, request: int, copier: Copier, commit: Commit) -> None:
        super().__init__(link, request)
        self._copier = copier
        self._commit = commit
        self._batch: Batch | None = None
        """All that was read; None: not all of it yet."""
        self._waits_for: TidemarkError | None = None
        self._since_ms = link.services.now_ms
        """When it last got on."""
        self._room = link.services.broker.streams.room
        self._room.join(self)

    @property
    def held_bytes(self) -> int:
        return self._copier.bytes

    def run(self, bytes_max: int) -> bool:  # noqa: ARG002
        if self._batch is None:
            if not self._room.may_read(self):
                self._waits_for = PublishersBlocked(
                    reason="commits before this one that copy or take hold as much as they may "
                    "(broker.batch_bytes_max); nothing was stored, send it again later"
                )
                return False
            goes_on = self._copier.step()
            self._room.holds(self, self._copier.bytes)
            self._since_ms, self._waits_for = self.link.services.now_ms, None
            if goes_on:
                return True
            self._batch = self._copier.batch
        if self.link.blocked is not None:
            self._waits_for = PublishersBlocked(
                reason=f"publishers must wait ({self.link.blocked}); nothing was stored, send it again later"
            )
            return False
        try:
            self._commit(self.request, self._batch)
        except DiskFull as error:
            self._waits_for = error
        return False

    def go_on(self) -> None:
        self.link.wake(self)

    def tick(self, now_ms: int) -> None:
        waited_ms, patience_ms = now_ms - self._since_ms, self.link.config.blocked_s_max * 1000
        if self._waits_for is not None:
            if waited_ms >= patience_ms:
                self.link.refuse(self.request, self._waits_for)
            else:
                self.link.wake(self)
        elif waited_ms >= patience_ms // STUCK_PART:
            # It could go on, but its connection is not served.
            self.link.refuse(
                self.request,
                PublishersBlocked(
                    reason="this connection did not read what was sent to it, so its commit did not get on; nothing "
                    "was stored, send it again later"
                ),
            )

    def close(self) -> None:
        self._copier.close()
        self._batch = None
        self._room.leave(self)
