"""The one question that every cluster mode answers: what does this event make this member do?

The member appends first and asks afterwards, so a mode never holds messages: it moves sequence numbers.
`Complete` is the promise, to publishers and to consumers alike. When it may be said, and who sends to
whom, is all that tells one mode from another.

    store ─Stored, Durable─►┐                 ┌─► Send(peer, after)      ship what comes behind `after`
    links ─PeerUp, PeerDown,│                 ├─► Tell(peer, message)    hello, offer, acked, completed
           PeerSaid, Given ─┤   step(event)   ├─► Keep / Skip            store what a peer gave, or not
    views ─ViewChanged,     ├────────────────►├─► Complete               publishers; consumers
           MemberGone, Lease│                 ├─► Lead, Follow, Fence    what this member is now
    clock ─Tick ───────────►│                 ├─► Rewind, Reset          cut the logs back; begin again
    admin ─Asked ──────────►┘                 └─► Propose, Wake          ask for another view; call me then

A machine: no socket, file, clock, thread or dice. `step` never calls back, and what was kept from a peer is never
sent back to it. Every message between members carries the epoch; one of an older epoch is answered with
`Outdated` and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from tidemark.model.peers import Ends, Log, Message, Name, Takeover, View


class State(StrEnum):
    """What a member is. `cluster/states.py` has the table of legal changes."""

    JOINING = "joining"
    """It has no contact with a leader."""
    CATCHUP = "catch-up"
    """It is given what it lacks; it may not lead."""
    READY = "ready"
    """It holds all that was confirmed; it may lead."""
    RECOVERING = "recovering"
    """It leads; members that must answer have not come yet, so nothing is confirmed."""
    ACTIVE = "active"
    """It leads and confirms."""
    FENCED = "fenced"
    """It led and cannot prove any more that it still does: it confirms and shows nothing."""
    FAILED = "failed"
    """Its store has failed: it keeps and acknowledges nothing and never leads. Its process is there to say so."""


# Events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """The local logs go up to here in memory: this can be sent."""

    ends: Ends


@dataclass(frozen=True, slots=True)
class Durable:
    """The local logs are on the disk up to here."""

    ends: Ends


@dataclass(frozen=True, slots=True)
class Broken:
    """The local store has failed for good: it takes nothing more."""

    reason: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A link to a peer is open. `dialled`: we asked for it, so the peer is our source."""

    peer: Name
    dialled: bool


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The link is gone, or could not be made. `gone`: nothing listens at the peer's address any more."""

    peer: Name
    dialled: bool
    gone: bool = False


@dataclass(frozen=True, slots=True)
class PeerSaid:
    peer: Name
    message: Message


@dataclass(frozen=True, slots=True)
class Given:
    """A peer sent one frame of a log: records `first` to `last`, which come right behind `previous`."""

    peer: Name
    epoch: int
    log: Log
    previous: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The view as it is kept now; None if there is none yet."""

    view: View | None


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """Somebody else changed the view first (it comes as `ViewChanged`), or it could not be written."""

    proposed: View


@dataclass(frozen=True, slots=True)
class MemberGone:
    """The membership has lost this member: its lease has ended."""

    member: Name


@dataclass(frozen=True, slots=True)
class MemberHere:
    """This member is alive, and this is what its store holds: it counts for the very first view."""

    member: Name
    cluster: str
    """Empty if its store has never belonged to one."""
    durable: Ends
    epoch: int = 0
    """In which its store was whole and in line with a leader, the last time; 0 if never."""
    table: tuple[Takeover, ...] = ()
    """The histories that it holds, newest first; empty if it does not say."""
    failed: bool = False
    """Its store has failed: it cannot lead before it is started again."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """A member that could not be asked, and why."""

    member: Name
    why: str
    there: bool = False
    """Its process is: something takes connections at its address."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the other members have said of their stores just now."""

    revision: int
    """Of the view that was known when they were asked; 0: none was."""
    answers: tuple[MemberHere, ...] = ()
    unasked: tuple[Unasked, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """Our own membership is good until then (ms of the clock of `Tick`), safety margin taken off already.

    One that replaces a lease that had ended comes after a `ViewChanged` that was read later than its grant: else a
    leader that was replaced meanwhile would show what is no longer so.
    """

    until_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time. One comes before the other events of a turn, so that the mode's idea of the time is never old."""

    now_ms: int
    """Of a clock that never jumps."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator or a resource manager wants this. The answer is `Answer`."""

    command: Literal["promote", "demote", "drop", "refill", "reread", "shutdown"]
    member: Name = ""
    """Whom to demote it in favour of, or to drop. promote: this member itself, named because it shall be no other."""
    accept_loss: bool = False
    """promote: if no member that is ready is left, go on without what only those had."""
    survey: Survey | None = None
    """promote: what the others say; None: they were not asked, which is enough for a member that lacks nothing."""


Event = (
    Stored
    | Durable
    | Broken
    | PeerUp
    | PeerDown
    | PeerSaid
    | Given
    | ViewChanged
    | ProposalFailed
    | MemberGone
    | MemberHere
    | Lease
    | Tick
    | Asked
)

# Effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    peer: Name
    message: Message


@dataclass(frozen=True, slots=True)
class Send:
    """From now on send this peer the frames of both logs behind `after`, catalog first, as they come and as its
    credit allows. Replaces an earlier one."""

    peer: Name
    after: Ends


@dataclass(frozen=True, slots=True)
class Hush:
    """Send this peer nothing more."""

    peer: Name


@dataclass(frozen=True, slots=True)
class Keep:
    """Store the frame that was `Given` just now, as it is."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not store the frame that was `Given`: we have it, or it is not for us."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Publishers on this member may be told that all up to here is safe; it may be compacted, too."""

    upto: Ends


@dataclass(frozen=True, slots=True)
class Dial:
    """Keep a link to this peer, our source; to nobody if None."""

    peer: Name | None


@dataclass(frozen=True, slots=True)
class Belong:
    """Have the store say on the disk to which cluster it belongs and in which epoch it was whole; 0 is never. Done when
    the next effect is performed."""

    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Intend:
    """Have the store say on the disk by which history it is about to found a cluster, beside others that it has tried,
    until it belongs to one. Done when the next effect is performed."""

    history: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Open a history in both logs and serve clients."""

    epoch: int
    history: str
    accepted: bool = False
    """An operator wanted it so, whatever is missing here."""
    given_up: tuple[Name, ...] = ()
    """Those others that were ready then, as far as is known: what only they had is lost."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Serve no clients of our own; they belong to the leader. Read the store anew if this member led before: what it
    wrote and did not sync is forgotten."""

    leader: Name | None


@dataclass(frozen=True, slots=True)
class Fence:
    """Confirm and show nothing from now on. `Lead` or `Follow` comes later, or `Unfence`."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new from clients; what was taken is still confirmed. `Quit` comes next."""


@dataclass(frozen=True, slots=True)
class Unfence:
    """The lease came back and nobody had taken over."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Cut both logs back to here, read the store anew, and report `Stored`, `Durable`. Links are closed."""

    to: Ends
    accepted: bool = False
    """What is cut off may have been confirmed: an operator has accepted that it is lost."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Empty the store: it was never whole then, and will be filled from the beginning. Links are closed."""

    alike: Ends = field(default_factory=Ends)
    """Up to here it held what the source does."""
    accepted: bool = False
    """As for `Rewind`."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Read the store anew from its logs alone, and report `Stored`, `Durable`. Links are closed."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Write this view, if the one that it was derived from is still there (`view.revision`)."""

    view: View
    why: str = ""


@dataclass(frozen=True, slots=True)
class Became:
    """The state of this member has changed, for the log and for those who watch."""

    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """To `Asked`."""

    done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Wake:
    """A `Tick` is wanted at this time at the latest."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Say why and stop the process. `clean`: it was asked to; else it cannot go on."""

    reason: str
    clean: bool = False


Effect = (
    Tell
    | Send
    | Hush
    | Keep
    | Skip
    | Complete
    | Dial
    | Belong
    | Intend
    | Lead
    | Follow
    | Fence
    | Unfence
    | Drain
    | Rewind
    | Reread
    | Reset
    | Propose
    | Became
    | Answer
    | Wake
    | Quit
)


class Mode(Protocol):
    state: State

    @property
    def view_holds(self) -> bool:
        """Whether the view that is kept is the newest that this member has heard of."""

    def step(self, event: Event) -> list[Effect]: ...

    def over_budget(self) -> dict[Name, float]:
        """Member → for which share of the last seconds it took longer than it may to acknowledge, if this one leads."""

    def awaited(self) -> Collection[Name]:
        """Those that confirms wait for, as far as is known here."""
