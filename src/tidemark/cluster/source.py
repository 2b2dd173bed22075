"""The one that a follower reads from, and how far it has got with it.

    turned to ─► linked ─► hello said ─► offer: resume ─► session: kept, acknowledged
                   ▲            │ no answer in time            │ something is missing
                   └────────────┴──────────────────────────────┘ another hello

What is learned on a link is forgotten with it; what is learned in an epoch (`in_line`, `vouched`, `copied`), with that.
Where the logs end is said by `kept` while they are ahead of the disk.

Invariant: there is a session only over a link, and none while a hello waits for its offer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.cluster.mode import Given
from tidemark.model.peers import Acked, Ends, Log, Name, Offer

HELLO_MS = 500
"""A hello that is not answered is said again."""
REPEAT_MS = 1000
"""An acknowledgement is said again, in case the last one was lost."""


@dataclass(slots=True)
class Source:
    name: Name | None = None
    """None: this member leads, or does not know of a leader."""
    linked: bool = False
    hello_at: int | None = None
    """When the hello was said that waits for its offer."""
    hello_wanted: bool = False
    session: bool = False
    """It has offered to resume, on this link."""
    in_line: bool = False
    """It has, in this epoch: the log is part of the leader's."""
    vouched: bool = False
    """It was the leader itself."""
    vouched_by: int = 0
    """The revision of the view by which it led then, if our store was not whole."""
    copied: bool = False
    """What the copy's source had at first is here."""
    kept: Ends | None = None
    """Where the logs end with all that was kept, on disk or not; None: ask the facts."""
    _goal: Ends = field(default_factory=Ends)
    _acked: Acked | None = None
    _acked_at: int = 0

    # The link --------------------------------------------------------------------------------------------------

    def turn_to(self, name: Name | None) -> bool:
        """Read from this one from now on. Whether it is another one than before."""
        if name == self.name:
            return False
        self.name = name
        self.link_lost()
        return True

    def link_made(self) -> None:
        self.linked, self.session = True, False
        self.hello_at, self.hello_wanted = None, True

    def link_lost(self) -> None:
        self.linked = self.session = self.hello_wanted = False
        self.hello_at = None

    def new_epoch(self) -> None:
        """What was said in another epoch counts no more. The link stays."""
        self.session = self.in_line = self.vouched = self.copied = False
        self.hello_at, self.hello_wanted = None, False
        self._acked = None

    def cut(self) -> None:
        """The logs are cut back, and the link is closed."""
        self.linked = self.session = self.in_line = self.vouched = self.hello_wanted = False
        self.hello_at = self.kept = self._acked = None

    # Hellos and offers -----------------------------------------------------------------------------------------

    def say_hello(self, now: int, durable: Ends, ends: Ends) -> bool:
        """Whether it is time for a hello, which counts as said then: once all that is here is on the disk. What is
        not could be of a line that is cut off."""
        if self.hello_at is not None and now >= self.hello_at + HELLO_MS:
            self.hello_at, self.hello_wanted = None, True
        whole_on_disk = durable == ends and (self.kept is None or durable.covers(self.kept))
        if not self.hello_wanted or not self.linked or not whole_on_disk:
            return False
        self.hello_wanted, self.hello_at, self.kept = False, now, None
        return True

    def hello_again_at(self) -> int | None:
        return self.hello_at + HELLO_MS if self.hello_at is not None else None

    def resume(self, offer: Offer, ends: Ends, *, leads: bool) -> None:
        """It sends what comes behind our logs, which end here; `leads`: it knows who is ready."""
        self.session = self.in_line = True
        self.kept = ends
        self._goal, self._acked = offer.ends, None
        if leads:
            self.vouched, self.vouched_by = True, offer.revision

    # What comes ------------------------------------------------------------------------------------------------

    def keep(self, given: Given) -> bool:
        """Whether this comes right behind our log. What we have is skipped; if something is missing we ask again."""
        assert self.kept is not None
        end = self.kept[given.log]
        if given.previous == end and given.first > end:
            catalog = given.last if given.log is Log.CATALOG else self.kept.catalog
            journal = given.last if given.log is Log.JOURNAL else self.kept.journal
            self.kept = Ends(catalog, journal)
            return True
        if given.last > end:
            self.session, self.hello_wanted = False, True
        return False

    def is_copied(self, durable: Ends) -> bool:
        """Whether what it had at first is here just now, for the first time."""
        if self.copied or not durable.covers(self._goal):
            return False
        self.copied = True
        return True

    def acknowledge(self, acked: Acked, now: int) -> bool:
        """Whether this is to be said: it is news, or was said long ago. It counts as said then."""
        if acked == self._acked and now < self.acknowledge_again_at():
            return False
        self._acked, self._acked_at = acked, now
        return True

    def acknowledge_again_at(self) -> int:
        return self._acked_at + REPEAT_MS
