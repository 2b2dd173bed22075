"""Every error on purpose: facts as fields, a code that never changes, one sentence with the next step.

    TidemarkError
    ├── RemoteProtocolError      the peer broke the protocol: its connection is closed
    │   ├── FrameError           501, bytes that are no frame
    │   ├── SyntaxFault          502, a frame that is no method or table
    │   ├── CommandInvalid       503, a method that is not expected now
    │   ├── ChannelFault         504, a channel that is not open, or open twice
    │   ├── UnexpectedFrame      505, content where none belongs
    │   ├── NotAllowed           530, asked for what was ruled out (vhost, limits, reuse of a tag)
    │   └── NotImplementedHere   540, a method or flag that we do not offer
    ├── ChannelError             the command failed: its channel is closed
    │   ├── ContentTooLarge      311
    │   ├── AccessRefused        403
    │   ├── NotFound             404
    │   ├── ResourceLocked       405
    │   ├── PreconditionFailed   406
    │   ├── NotAStream           406, asked of a queue what only a stream has
    │   ├── Conflict             406, a key is not at the sequence that a put expected
    │   ├── HistoryGone          406, a snapshot of a past that is no longer kept
    │   ├── PinExpired           406, a snapshot that was let go of
    │   ├── StreamReset          406, a position from which deletes would be missed: start over
    │   ├── LostBranch           406, a position that a crash took back: rewind
    │   ├── NotATail             406, rows that only the tails of the chain show
    │   └── PublishersBlocked    506, no room for more messages now
    ├── LoginRefused             403 on the connection
    ├── InternalError            541, our fault: a bug or a failing machine
    ├── ConnectionForced         320, an operator closed the connection
    ├── StoreError               the disk or what is on it
    │   ├── DiskFailed           a write or sync failed: the journal has stopped for good
    │   ├── DiskFull             no room: publishers wait
    │   ├── CorruptRecord        bytes that are not what was written
    │   ├── StoreLocked          another process has the data directory
    │   ├── LogGone              a log is no longer whole from there on
    │   ├── UnitRefused          a part of a log, from another member, that cannot be the next
    │   └── StoreForeign         a data directory that is not ours, or of another version
    └── ConfigError              a setting that cannot be: exit 2

`amqp091` is the reply code that front ends send; it is on the class, so they need no table of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self


@dataclass(eq=False, kw_only=True)
class TidemarkError(Exception):
    """Base of the tree. Subclasses are dataclasses: their fields are the facts."""

    code: ClassVar[str] = "tidemark"
    amqp091: ClassVar[int] = 541  # internal-error
    amqp10: ClassVar[str] = "amqp:internal-error"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        # Errors cross process borders (Spark workers, the CLI); plain exceptions with
        # keyword fields do not unpickle.
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


def _rebuild(kind: type[Any], facts: dict[str, Any]) -> Any:
    return kind(**facts)


@dataclass(eq=False, kw_only=True)
class _Reasoned(TidemarkError):
    reason: str

    def __str__(self) -> str:
        return self.reason


# The peer broke the protocol: its connection is closed -------------------------------------


@dataclass(eq=False, kw_only=True)
class RemoteProtocolError(_Reasoned):
    """The peer broke the protocol; the connection ends with `amqp091` as its reply code."""

    code: ClassVar[str] = "protocol"
    amqp091: ClassVar[int] = 503


@dataclass(eq=False, kw_only=True)
class FrameError(RemoteProtocolError):
    """Bytes that are no frame: too large, without its end mark, of an unknown type."""

    code: ClassVar[str] = "protocol.frame"
    amqp091: ClassVar[int] = 501


@dataclass(eq=False, kw_only=True)
class SyntaxFault(RemoteProtocolError):
    """A frame whose inside cannot be read: truncated fields, a bad table."""

    code: ClassVar[str] = "protocol.syntax"
    amqp091: ClassVar[int] = 502


@dataclass(eq=False, kw_only=True)
class CommandInvalid(RemoteProtocolError):
    """A method that is not expected in this state."""

    code: ClassVar[str] = "protocol.command"
    amqp091: ClassVar[int] = 503


@dataclass(eq=False, kw_only=True)
class ChannelFault(RemoteProtocolError):
    """A channel that is not open, is open already, or is over the negotiated number."""

    code: ClassVar[str] = "protocol.channel"
    amqp091: ClassVar[int] = 504


@dataclass(eq=False, kw_only=True)
class UnexpectedFrame(RemoteProtocolError):
    """Content where none belongs, or a method in the middle of content."""

    code: ClassVar[str] = "protocol.unexpected-frame"
    amqp091: ClassVar[int] = 505


@dataclass(eq=False, kw_only=True)
class NotAllowed(RemoteProtocolError):
    """The peer asked for what was ruled out: an unknown virtual host, a limit, a tag in use."""

    code: ClassVar[str] = "protocol.not-allowed"
    amqp091: ClassVar[int] = 530


@dataclass(eq=False, kw_only=True)
class NotImplementedHere(RemoteProtocolError):
    """A method or flag that this broker does not offer."""

    code: ClassVar[str] = "protocol.not-implemented"
    amqp091: ClassVar[int] = 540


@dataclass(eq=False, kw_only=True)
class LoginRefused(RemoteProtocolError):
    """Wrong user, password or mechanism, or a user that may not come from there."""

    code: ClassVar[str] = "access.login-refused"
    amqp091: ClassVar[int] = 403


@dataclass(eq=False, kw_only=True)
class ConnectionForced(RemoteProtocolError):
    """An operator, or our own shutdown, ended the connection."""

    code: ClassVar[str] = "connection.forced"
    amqp091: ClassVar[int] = 320


@dataclass(eq=False, kw_only=True)
class InternalError(RemoteProtocolError):
    """Our fault: a bug or a failing machine."""

    code: ClassVar[str] = "internal"
    amqp091: ClassVar[int] = 541


# A command failed: its channel is closed ----------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ChannelError(_Reasoned):
    """A command that failed; its channel is closed with `amqp091` as the reply code."""

    code: ClassVar[str] = "channel"
    amqp091: ClassVar[int] = 406


@dataclass(eq=False, kw_only=True)
class ContentTooLarge(ChannelError):
    """A message over the size that this broker takes."""

    code: ClassVar[str] = "channel.content-too-large"
    amqp091: ClassVar[int] = 311


@dataclass(eq=False, kw_only=True)
class AccessRefused(ChannelError):
    """The user's permissions, or a reserved name, do not allow it."""

    code: ClassVar[str] = "access.refused"
    amqp091: ClassVar[int] = 403


@dataclass(eq=False, kw_only=True)
class NotFound(ChannelError):
    """An exchange, queue or virtual host that does not exist."""

    code: ClassVar[str] = "not-found"
    amqp091: ClassVar[int] = 404


@dataclass(eq=False, kw_only=True)
class ResourceLocked(ChannelError):
    """An exclusive queue of another connection."""

    code: ClassVar[str] = "resource-locked"
    amqp091: ClassVar[int] = 405


@dataclass(eq=False, kw_only=True)
class PreconditionFailed(ChannelError):
    """Declared differently before, not empty, in use, a tag that was never given, a bad argument."""

    code: ClassVar[str] = "precondition-failed"
    amqp091: ClassVar[int] = 406


# Streams -----------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class _StreamError(ChannelError):
    """What can go wrong with one stream. The sentence is made of the facts."""

    reason: str = ""
    stream: str

    def __post_init__(self) -> None:
        self.reason = self.reason or self._sentence()

    def _sentence(self) -> str:
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class NotAStream(_StreamError):
    """A queue that is not a stream has no keys, snapshots or marks."""

    code: ClassVar[str] = "stream.not-a-stream"

    def _sentence(self) -> str:
        return f"queue '{self.stream}' is not a stream; declare one with x-queue-type = stream"


@dataclass(eq=False, kw_only=True)
class StreamElsewhere(_StreamError):
    """The stream lives in another group of the cluster: ask there."""

    code: ClassVar[str] = "stream.elsewhere"

    group: str
    number: int = 0
    """Of its stand-in, by which main tells it from a later stream of that name; 0 if nobody said it."""

    def _sentence(self) -> str:
        return (
            f"stream '{self.stream}' lives in group '{self.group}'; use it on a connection to that group, through a front "
            f"(the client: db.group('{self.group}'))"
        )


@dataclass(eq=False, kw_only=True)
class Conflict(_StreamError):
    """A put expected another version of its key. Nothing of its batch was stored."""

    code: ClassVar[str] = "stream.conflict"

    key: bytes
    expected: int
    current: int
    """The sequence of the key's value; 0 when it has none."""

    def _sentence(self) -> str:
        is_now = f"at sequence {self.current}" if self.current else "not there"
        wanted = f"at sequence {self.expected}" if self.expected else "not to be there"
        return (
            f"key {self.key!r} of stream '{self.stream}' is {is_now} but was expected {wanted}; nothing of the "
            "batch was stored. Read the key and put again"
        )


@dataclass(eq=False, kw_only=True)
class HistoryGone(_StreamError):
    """A past that is not kept any more, and that no pin holds."""

    code: ClassVar[str] = "stream.history-gone"

    seq: int
    oldest: int

    def _sentence(self) -> str:
        return (
            f"stream '{self.stream}' can no longer show how it was at sequence {self.seq}; the oldest exact "
            f"snapshot is at {self.oldest}. Pin a snapshot, or keep more with x-stream-history"
        )


@dataclass(eq=False, kw_only=True)
class PinExpired(_StreamError):
    """A snapshot that is not held any more: its lease ended, or it kept more than the stream allows."""

    code: ClassVar[str] = "stream.pin-expired"

    pin: str
    seq: int
    problem: str

    def _sentence(self) -> str:
        what = f"pin '{self.pin}'" if self.pin else "the snapshot"
        return (
            f"{what} of stream '{self.stream}' at sequence {self.seq} is gone: {self.problem}. "
            "Open a new snapshot and read it from its start"
        )


@dataclass(eq=False, kw_only=True)
class StreamReset(_StreamError):
    """Deletes after this position were forgotten, or it is of a history that nobody knows."""

    code: ClassVar[str] = "stream.reset"

    seq: int
    purged: int
    """Deletes up to here are no longer told."""

    def _sentence(self) -> str:
        if self.purged:
            why = f"deletes up to sequence {self.purged} are no longer kept"
        else:
            why = "its history is unknown here"
        return (
            f"sequence {self.seq} is no place to go on from in stream '{self.stream}': {why}. "
            "Forget what you have of it and read from the first message"
        )


@dataclass(eq=False, kw_only=True)
class LostBranch(_StreamError):
    """A position that was true in a history which was cut off before it."""

    code: ClassVar[str] = "stream.lost-branch"

    seq: int
    rewind_to: int

    def _sentence(self) -> str:
        return (
            f"sequence {self.seq} of stream '{self.stream}' was taken back by a failure; what you have is true up "
            f"to {self.rewind_to}: undo what came later and go on from there"
        )


@dataclass(eq=False, kw_only=True)
class NotATail(_StreamError):
    """Rows of streams are shown by the tails of this chain only (`cluster.reads`), and this member is none."""

    code: ClassVar[str] = "stream.not-a-tail"

    member: str
    tails: str
    """Their names, and where clients reach them: `n3 at 10.0.0.3:5672`, one or several."""
    epoch: int

    def _sentence(self) -> str:
        return (
            f"stream '{self.stream}' is read at the tails of the chain (cluster.reads), and {self.member} is none; read it at "
            f'{self.tails} in the stream protocol (tidemark.client: read_from="tail")'
        )


@dataclass(eq=False, kw_only=True)
class PublishersBlocked(ChannelError):
    """The broker is short of memory or disk, and the put waited too long."""

    code: ClassVar[str] = "broker.blocked"
    amqp091: ClassVar[int] = 506


# The disk and what is on it ------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class StoreError(TidemarkError):
    """Base of what can go wrong below the journal."""

    code: ClassVar[str] = "store"


@dataclass(eq=False, kw_only=True)
class DiskFailed(StoreError):
    """A write or sync failed. The journal has stopped for good: nothing after it was confirmed."""

    code: ClassVar[str] = "store.disk-failed"

    path: str
    operation: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.path} failed: {self.problem}; nothing after it was confirmed. "
            "Check the disk, then restart: recovery keeps all that was confirmed"
        )


@dataclass(eq=False, kw_only=True)
class DiskFull(StoreError):
    """There is no room for the next segment. Publishers wait; nothing is lost."""

    code: ClassVar[str] = "store.disk-full"
    amqp091: ClassVar[int] = 506  # resource-error

    path: str

    def __str__(self) -> str:
        return f"no room for the journal in {self.path}; publishers wait until space is freed"


@dataclass(eq=False, kw_only=True)
class CorruptRecord(StoreError):
    """Bytes on disk are not what was written."""

    code: ClassVar[str] = "store.corrupt"

    path: str
    offset: int
    problem: str
    queues: tuple[str, ...] = ()

    def __str__(self) -> str:
        whose = f" (queues {', '.join(self.queues)})" if self.queues else ""
        return (
            f"{self.path} at byte {self.offset}{whose}: {self.problem}; "
            "run 'tidemark store check' on the data directory to see what is affected"
        )


@dataclass(eq=False, kw_only=True)
class StoreLocked(StoreError):
    """Another process has the data directory."""

    code: ClassVar[str] = "store.locked"

    path: str
    pid: int | None

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid else "another process"
        return f"{self.path} is in use by {who}; stop it or choose another --data directory"


@dataclass(eq=False, kw_only=True)
class LogGone(StoreError):
    """A log no longer holds everything behind a sequence: part of it was compacted, or the log was copied without it."""

    code: ClassVar[str] = "store.log-gone"

    log: str
    seq: int
    start: int

    def __str__(self) -> str:
        return (
            f"the {self.log.lower()} log is whole only from {self.start} on, not from {self.seq}; "
            "who needs more must be given everything from the beginning"
        )


@dataclass(eq=False, kw_only=True)
class UnitRefused(StoreError):
    """What another member sent as the next part of a log cannot be that."""

    code: ClassVar[str] = "store.unit-refused"

    log: str
    problem: str

    def __str__(self) -> str:
        return f"a unit of the {self.log.lower()} log is refused: {self.problem}; nothing of it was stored"


@dataclass(eq=False, kw_only=True)
class StoreForeign(StoreError):
    """The directory holds something that is not a Tidemark store, or one of another version."""

    code: ClassVar[str] = "store.foreign"

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path} cannot be used as a data directory: {self.problem}"


@dataclass(eq=False, kw_only=True)
class ConfigError(TidemarkError):
    """A setting that cannot be."""

    code: ClassVar[str] = "config"

    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}"


# Between members of a cluster ----------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class PeerFault(_Reasoned):
    """Bytes that no member of this cluster sends; the link is closed."""

    code: ClassVar[str] = "cluster.peer-fault"


@dataclass(eq=False, kw_only=True)
class PeerRefused(TidemarkError):
    """Another member does not want a link with this one."""

    code: ClassVar[str] = "cluster.peer-refused"

    member: str
    reason: str

    def __str__(self) -> str:
        return f"member '{self.member}' refuses a link: {self.reason}"


@dataclass(eq=False, kw_only=True)
class NotLeading(TidemarkError):
    """Another member leads now: what waited here for the group is not known to be safe."""

    code: ClassVar[str] = "cluster.not-leading"
    amqp091: ClassVar[int] = 320

    member: str

    def __str__(self) -> str:
        return f"member '{self.member}' does not lead any more; ask the one that does whether the change was made"


@dataclass(eq=False, kw_only=True)
class MembershipAway(TidemarkError):
    """No etcd answers. What is agreed on stays as it is; without its lease a leader stops confirming."""

    code: ClassVar[str] = "cluster.membership-away"

    endpoints: str
    problem: str

    def __str__(self) -> str:
        return f"no etcd answers at {self.endpoints}: {self.problem}; check that it runs and can be reached"


@dataclass(eq=False, kw_only=True)
class NotHere(TidemarkError):
    """What was asked is for the member that leads; this one only reads."""

    code: ClassVar[str] = "cluster.not-here"
    amqp091: ClassVar[int] = 320

    operation: str
    leader: str
    """Empty while nobody leads."""
    address: str
    """Where clients reach it; empty if that is not known."""
    epoch: int

    def __str__(self) -> str:
        if not self.leader:
            return f"{self.operation} is for the member that leads, and none does now; try again"
        where = f"{self.leader} at {self.address or 'an address that is not known here'}"
        return f"{self.operation} is for the member that leads: connect to {where}"


@dataclass(eq=False, kw_only=True)
class MemberBehind(TidemarkError):
    """This member has not yet got what the client has seen elsewhere, and will not show it less."""

    code: ClassVar[str] = "cluster.behind"

    member: str
    sequence: int
    """What must be here before it answers."""
    shown: int
    """What is here."""

    def __str__(self) -> str:
        return (
            f"member '{self.member}' is at sequence {self.shown} and has not got sequence {self.sequence}, which this "
            "client has seen; ask another member, or again in a moment"
        )
