"""Moves messages on, out of stand-ins and outboxes, to the queues that they are for.

    stand-in of main ────┐                                       ┌──► its queue, by name
                         ├─► Source ─► parcel of parts ─► Target ─┤    one Lane a queue
    outbox of a group ───┘   consumes                   confirms └──► every queue that main's wiring has for the letter

A stand-in holds what did not come through a front: dead letters of main, publishes at main's own port, and what a front gave
to main because the group did not have the queue. An outbox holds dead letters whose exchange is in main. A part is one
message for one queue. When the groups have confirmed all parts of a parcel it is acknowledged where it came from. So it is
moved at least once, whoever dies; who dies between the two makes it twice.

The leader of each group says in which queues messages wait (`broker/feed.py`), and reminds us while nobody takes them. Consuming
from all stand-ins would cost a consumer for each, and asking for their lengths a question for each, again and again. So a queue
in which nothing waits costs nothing: it is taken when we are told, and left when it has been idle and is found empty. Every
front is told and takes it; the broker gives the messages to one at a time, in order, and to the next when that one goes.

A queue gets its parts in their order, for in a stream with keys an older version that comes last would bury the newer one. So a
part that is refused or in doubt holds up all behind it in its lane: when they are tried again, they begin with that one, and what the
queue had taken from behind it comes once more. Other lanes go on meanwhile.

That holds from front to front, too. What one has sent may still be on its way when the next goes on with the queue, and it may not even
know that there is a next one. So each part says in which turn it was taken (`model/turns.py`), and a queue refuses what comes
behind a later turn. The same number tells two links apart: what was sent on one that is lost does not come behind what is sent again.

A queue that its group does not have, because a front died before it made it there or somebody deleted it behind main's back, is
declared there as main has it. That waits a moment first, for a queue that is being deleted is gone from its group before
it is gone from main. If the group says that this life of it is over (`broker/incarnations.py`), main begins another. A part says
which life it is for, so one that comes late gets into no queue that has only the name. A message that closes the channel is found by publishing those that were on their way one at a time, so that
its lane alone is held up. What a group refuses, and what goes to a group that cannot be reached, stays where it is: the lane is
tried again later; a queue of which nothing gets through is left for a while, longer each time.

The front comes for itself (`LinkKind.OWN`): who sent a message, and whether he may, was asked when it was published.

Invariant: a message is acknowledged only after every part was confirmed, or its queue or exchange is gone from a fresh copy
of the wiring. The last time that a part is published is behind the last time of each that was before it in its lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from tidemark.broker.groups import OUTBOX
from tidemark.errors import TidemarkError
from tidemark.frontend.amqp091.config import OWN_BYTES
from tidemark.frontend.services import PeerInfo
from tidemark.model.turns import CAPABILITY as TURNS
from tidemark.model.turns import Turn, turn_in
from tidemark.model.wiring import FRONT_USER, NUMBER_ARGUMENT, QueueSpec
from tidemark.router import naming
from tidemark.router.connection import Outside
from tidemark.router.link import Link, State, Terms, method_of
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091.cutter import DELIVER, Piece
from tidemark.wire.amqp091.frames import (
    CONTENT_START,
    ENVELOPE_BYTES,
    FRAME_START,
    HEADER,
    METHOD,
    encode_content,
)
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionTune,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueMake,
    QueueMakeOk,
    QueueRenew,
    decode_method,
    encode_method,
)
from tidemark.wire.amqp091.publishes import with_entries
from tidemark.wire.amqp091.sasl import PLAIN

PREFETCH = 32
TAKEN_MAX = 32
"""How many queues of one virtual host and group are taken at a time; the others wait for their turn."""
HELD_BYTES_MAX = 32 << 20
"""With more than this on its way a source is not read."""
IDLE_MS = 10_000
"""After so long without a message a queue is asked whether it is empty; at once if others wait for their turn."""
LEAVE_MS = 10_000
"""After so long without work a target is left."""
REST_MS_MIN, REST_MS_MAX = 1_000, 60_000
FORGET_MS = 10_000
"""A queue that has rested and of which we are not told again for so long is forgotten."""
MISSING_MS = 1_000
"""A queue that is not in its group is made there if main still has it after so long."""
HEARTBEAT_S = 10
CHANNELS_MAX = 1000

NOT_FOUND = 404
PUBLISHING, MAKING = 1, 2
"""The channels of a target."""
_PUBLISH = encode_method(PUBLISHING, BasicPublish())

Place: TypeAlias = tuple[str, str]
"""A group and a virtual host."""


@dataclass(slots=True, eq=False)
class Taking:
    """A queue that we consume from."""

    source: Source
    number: int
    """Of its channel."""
    queue: str
    last_ms: int
    """When there last was something to do."""
    stand_in: int = 0
    """The number that the queue must have; 0: any."""
    held: dict[int, Parcel] = field(default_factory=dict)
    """What has been delivered and is not acknowledged, by tag."""
    moved: int = 0
    asked: bool = False
    """It is being asked whether it is empty."""
    turn: Turn | None = None
    """Our number among those who take it; None: its leader gives none."""
    gone: bool = False
    """What was held is back in the queue: nothing of it can be acknowledged any more."""


@dataclass(slots=True, eq=False)
class Parcel:
    """A message on its way."""

    taking: Taking
    tag: int
    exchange: str
    key: str
    properties: bytes
    body: bytes
    parts: list[Part] = field(default_factory=list)
    failed: bool = False
    """It could not be said where it goes: it is given back, and tried again later."""

    @property
    def size(self) -> int:
        return len(self.properties) + len(self.body)

    @property
    def stuck(self) -> bool:
        """No part of it is anywhere for good, or on its way there."""
        return self.failed or (bool(self.parts) and all(part.resting for part in self.parts))


@dataclass(slots=True, eq=False)
class Part:
    """A message for one queue."""

    parcel: Parcel
    group: str
    queue: str
    spec: QueueSpec | None = None
    """The queue as main has it."""
    lane: Lane | None = None
    """Where it is, or was when it was done."""
    taken: bool = False
    """The group has confirmed it. It is done when all before it in its lane are."""
    missing: bool = False
    """The group has said that it does not have the queue: a confirm that follows means nothing."""
    done: bool = False
    alone: bool = False
    """It was one of several on their way when the channel was closed, or its queue refuses messages: it is published when no
    other is, to see which it was."""

    @property
    def gone(self) -> bool:
        """It is back where it came from."""
        return self.parcel.taking.gone

    @property
    def resting(self) -> bool:
        return not self.done and self.lane is not None and self.lane.at is At.RESTING and not self.lane.out


class At(Enum):
    """What is done about a lane."""

    GOING = auto()
    """It is published as it comes."""
    RESTING = auto()
    """Something was not taken: it is tried again later."""
    MISSING = auto()
    """The group has said that it does not have the queue: see about that in a moment."""
    MAKING = auto()
    """The queue is being declared."""


@dataclass(slots=True, eq=False)
class Lane:
    """All that is for one queue and not done, in its order.

    ├─ taken, or on its way ─┼─ to be published ─┤
    parts[0]                 next
    """

    queue: str
    parts: deque[Part] = field(default_factory=deque)
    next: int = 0
    out: int = 0
    """How many are on their way."""
    at: At = At.GOING
    missing: bool = False
    """The queue is to be made before anything is published again."""
    tries: int = 0
    due_ms: int = 0
    """When something is done about it again."""

    @property
    def first(self) -> Part | None:
        """The next to be published, if one may be."""
        if self.at is not At.GOING:
            return None
        while self.next < len(self.parts) and self.parts[self.next].gone:
            del self.parts[self.next]
        return self.parts[self.next] if self.next < len(self.parts) else None

    def done(self) -> list[Part]:
        """Takes those out at its beginning that are done, or gone."""
        found = []
        while self.parts and (self.parts[0].taken or self.parts[0].gone):
            found.append(self.parts.popleft())
            self.next = max(0, self.next - 1)
        return found

    def go_back(self) -> None:
        """Begin with the first again: what was taken behind it is published behind it once more."""
        self.parts = deque(part for part in self.parts if not part.gone)
        self.next = 0
        for part in self.parts:
            part.taken = part.missing = False


class Mover:
    """All that one front moves."""

    def __init__(self, outside: Outside, name: str) -> None:
        """`name` is that of the front."""
        self.outside = outside
        self.peer = PeerInfo(name, 0, front=name, own=True)
        self.moved = self.refused = self.unroutable = self.made = 0
        self._sources: dict[Place, Source] = {}
        self._targets: dict[Place, Target] = {}
        self.links = 0
        """How many links to groups there have been: each has a number of its own."""
        self._problems: dict[tuple[str, str, str], str] = {}
        self.refusing: set[tuple[Place, str]] = set()
        """Queues that have refused something, and taken nothing since: what is behind it is not sent in vain, again and again."""
        self._stopped = False

    def told(self, group: str, vhost: str, queue: str) -> None:
        """The leader of a group says that messages wait in this queue of its."""
        if self._stopped or (group != MAIN and queue != OUTBOX):
            return
        place = group, vhost
        source = self._sources.get(place)
        if source is None:
            source = self._sources[place] = Source(self, place)
        source.told(queue)

    def tick(self, now_ms: int) -> None:
        for place, source in list(self._sources.items()):
            source.tick(now_ms)
            if source.idle:
                del self._sources[place]
        for place, target in list(self._targets.items()):
            target.tick(now_ms)
            if target.idle:
                del self._targets[place]

    def stop(self) -> None:
        """The front ends: what is held goes back to its queues."""
        self._stopped = True
        for end in [*self._sources.values(), *self._targets.values()]:
            end.leave()
        self._sources.clear()
        self._targets.clear()

    def statistics(self) -> dict[str, int]:
        return {
            "moved": self.moved,
            "refused": self.refused,
            "unroutable": self.unroutable,
            "made": self.made,
            "held": sum(source.held for source in self._sources.values()),
        }

    # What sources and targets say --------------------------------------------------------------------

    def route(self, parcels: list[Parcel]) -> None:
        """Find out where these are for, by a copy of the wiring that is as new as they are, and send them there."""

        def then() -> None:
            for parcel in parcels:
                if not parcel.taking.gone:
                    self._guarded(parcel)

        self.outside.wiring.fresh(then)

    def _guarded(self, parcel: Parcel) -> None:
        """Route it. If that goes wrong it stays where it is, and does not keep the others from going on."""
        try:
            self._route(parcel)
        except Exception as error:
            parcel.failed = True
            if not isinstance(error, TidemarkError):
                self.outside.note("error", "unexpected exception", where="mover", error=error)
            self.problem(*parcel.taking.source.place, parcel.taking.queue, str(error) or type(error).__name__)

    def _route(self, parcel: Parcel) -> None:
        wiring, source = self.outside.wiring, parcel.taking.source
        group, vhost = source.place
        if group == MAIN:
            spec = wiring.spec_of(vhost, parcel.taking.queue)
            if spec is None or not spec.group or source.is_another(parcel.taking, spec):
                return  # the stand-in is gone, and what was in it; main ends our consumer soon
            routes = {spec.group: (parcel.taking.queue,)}
        else:
            routes = wiring.letter_routes(vhost, parcel.exchange, parcel.key, parcel.properties)  # type: ignore[assignment]
        parcel.parts = [
            Part(parcel, home, queue, wiring.spec_of(vhost, queue))
            for home, queues in routes.items()
            for queue in queues
        ]
        if not parcel.parts:
            self.unroutable += 1
            source.settle(parcel)
        for part in parcel.parts:
            self.give(part)

    def give(self, part: Part) -> None:
        """Bring it to its group."""
        self._target(part.group, part.parcel.taking.source.place[1]).give(part)

    def renew(self, vhost: str, renewal: QueueRenew) -> None:
        """Let main begin a new life of a queue."""
        self._target(MAIN, vhost).renew(renewal)

    def _target(self, group: str, vhost: str) -> Target:
        target = self._targets.get((group, vhost))
        if target is None:
            target = self._targets[group, vhost] = Target(self, (group, vhost))
        return target

    def confirmed(self, part: Part) -> None:
        """The part is safe, or its queue is gone."""
        part.done = True
        parcel = part.parcel
        if not parcel.taking.gone and all(each.done for each in parcel.parts):
            self.moved += 1
            parcel.taking.moved += 1
            self._problems.pop((*parcel.taking.source.place, parcel.taking.queue), None)
            parcel.taking.source.settle(parcel)

    def note_refused(self, part: Part, problem: str) -> None:
        """The part was not taken."""
        taking = part.parcel.taking
        if not taking.gone:
            self.refused += 1
            self.problem(*taking.source.place, taking.queue, problem)

    def problem(self, group: str, vhost: str, queue: str, problem: str) -> None:
        if self._problems.get((group, vhost, queue)) != problem:
            self._problems[group, vhost, queue] = problem
            self.outside.note(
                "warning", "messages not moved", group=group, vhost=vhost, queue=queue, problem=problem
            )

    def well(self, place: Place) -> None:
        """Its leader is reached again."""
        self._problems.pop((*place, ""), None)


class End:
    """A connection to the leader of a group, made when it is needed. Fits `link.Owner`."""

    def __init__(self, mover: Mover, place: Place) -> None:
        self.mover = mover
        self.place = place
        self.peer = mover.peer
        self.link: Link | None = None
        self._leaving: Link | None = None
        """A link that we have said goodbye on."""

    @property
    def now_ms(self) -> int:
        return self.mover.outside.now_ms

    @property
    def _frame_max(self) -> int:
        return self.mover.outside.config.frame_bytes_max + OWN_BYTES

    def dialled(self) -> Link:
        """The link, dialled if there is none."""
        if self.link is None:
            outside, (group, vhost) = self.mover.outside, self.place
            terms = Terms(
                {"product": "Tidemark", "connection_name": f"mover of {self.peer.host}"},
                PLAIN,
                FRONT_USER.encode(),
                vhost=vhost,
            )
            terms.client_properties["capabilities"] = {
                "authentication_failure_close": True,
                "consumer_cancel_notify": True,
                TURNS: True,
            }
            terms.heartbeat = HEARTBEAT_S
            self.link = Link(self, group, terms, frame_max=self._frame_max, whole=True)
            outside.dial(self.link, "")
        return self.link

    def leave(self) -> None:
        if self.link is not None:
            self._leaving, self.link = self.link, None
            self._leaving.close()

    def tick_links(self, now_ms: int) -> None:
        if self.link is not None:
            self.link.tick(now_ms)
        if self._leaving is not None:
            # It has had a second, or whatever a tick is, to answer.
            self._leaving.drop()
            self._leaving = None

    def link_touched(self, link: Link) -> None:
        self.mover.outside.touched(link)

    def link_drained(self, link: Link) -> None:
        """What is on its way is counted until it is confirmed (`room`)."""

    def link_tuned(self, link: Link, offer: ConnectionTune) -> None:
        terms, limit = link.terms, self._frame_max
        terms.frame_max = min(offer.frame_max or limit, limit)
        terms.channel_max = min(offer.channel_max or CHANNELS_MAX, CHANNELS_MAX)
        terms.tuned = terms.admitted = True

    def link_opened(self, link: Link) -> None:
        if link is self.link:
            self.mover.well(self.place)
            self.opened(link)

    def link_refused(self, link: Link, close: ConnectionClose) -> None:
        self.link_lost(link, close.reply_text)

    def link_lost(self, link: Link, why: str) -> None:
        if link is self.link:
            self.link = None
            self.lost(f"the leader of group '{self.place[0]}' cannot be reached: {why}")

    def link_closed(self, link: Link) -> None:
        if link is self._leaving:
            self._leaving = None

    def link_heard(self, link: Link, piece: Piece) -> None:
        if link is self.link:
            self.heard(link, piece)

    def link_told(self, link: Link, method: Method) -> None:
        """A leader that is blocked does not read; what is not confirmed waits."""

    def room(self) -> bool:
        return True

    def opened(self, link: Link) -> None:
        raise NotImplementedError

    def lost(self, why: str) -> None:
        raise NotImplementedError

    def heard(self, link: Link, piece: Piece) -> None:
        raise NotImplementedError


class Source(End):
    """Takes what waits in queues of one group and virtual host."""

    def __init__(self, mover: Mover, place: Place) -> None:
        super().__init__(mover, place)
        self._wanted: dict[str, None] = {}
        """Queues that are to be taken when there is room."""
        self._taken: dict[str, Taking] = {}
        self._channels: dict[int, Taking | None] = {}
        """By number; None: we have closed it, and that is not answered yet."""
        self._resting: dict[str, int] = {}
        """Queues that are not taken before that time. Then we are told of them again, if they are still there."""
        self._tries: dict[str, int] = {}
        """How often in a row a queue has had to rest."""
        self._held_bytes = 0

    @property
    def idle(self) -> bool:
        """There is nothing to remember."""
        return not (self.link or self._leaving or self._wanted or self._taken or self._resting)

    @property
    def held(self) -> int:
        return sum(len(taking.held) for taking in self._taken.values())

    def told(self, queue: str) -> None:
        if queue not in self._taken and self._resting.get(queue, 0) <= self.now_ms:
            self._resting.pop(queue, None)
            self._wanted[queue] = None
            self._take_more()

    def _take_more(self) -> None:
        while self._wanted and len(self._taken) < TAKEN_MAX:
            queue = next(iter(self._wanted))
            del self._wanted[queue]
            link = self.dialled()
            number = next(each for each in range(1, CHANNELS_MAX) if each not in self._channels)
            taking = self._taken[queue] = self._channels[number] = Taking(self, number, queue, self.now_ms)
            consume = BasicConsume(queue=queue)
            if self.place[0] == MAIN and (spec := self.mover.outside.wiring.spec_of(self.place[1], queue)):
                taking.stand_in = spec.number
                consume.arguments[NUMBER_ARGUMENT] = spec.number
            link.send(_encoded(number, ChannelOpen(), BasicQos(prefetch_count=PREFETCH), consume))

    def is_another(self, taking: Taking, spec: QueueSpec) -> bool:
        """Whether the queue of that name is not the one that we consume from; an older leader has not looked at the number."""
        known = self.link is not None and self.link.knows_lives
        return known and taking.stand_in not in (0, spec.number)

    def tick(self, now_ms: int) -> None:
        for queue, due_ms in list(self._resting.items()):
            if due_ms + FORGET_MS <= now_ms:
                del self._resting[queue]
                self._tries.pop(queue, None)
        idle_ms = 0 if self._wanted else IDLE_MS
        for taking in list(self._taken.values()):
            if taking.held:
                if all(parcel.stuck for parcel in taking.held.values()):
                    self._give_back(taking)
            elif not taking.asked and now_ms - taking.last_ms >= idle_ms and self.link is not None:
                taking.asked = True
                self.link.send(encode_method(taking.number, QueueDeclare(queue=taking.queue, passive=True)))
        self._take_more()
        self.tick_links(now_ms)
        if not self._taken and self.link is not None:
            self.leave()

    def settle(self, parcel: Parcel) -> None:
        """It has been moved on."""
        taking = parcel.taking
        del taking.held[parcel.tag]
        taking.last_ms = self.now_ms
        self._held_bytes -= parcel.size
        self._tries.pop(taking.queue, None)
        assert self.link is not None and not taking.gone
        self.link.send(encode_method(taking.number, BasicAck(parcel.tag)))

    def room(self) -> bool:
        return self._held_bytes < HELD_BYTES_MAX

    # What the leader says ----------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """What is to be taken has been said already."""

    def heard(self, link: Link, piece: Piece) -> None:
        taking = self._channels.get(piece[0])
        if piece[1] == DELIVER:
            if taking is not None:
                self._delivered(taking, piece)
            return
        match method_of(piece):
            case ChannelClose(reply_code=code, reply_text=text):
                link.send(encode_method(piece[0], ChannelCloseOk()))
                if taking is not None:  # else we have said so, too, and that is answered
                    del self._channels[taking.number]
                    self._forget(taking)
                    if code != NOT_FOUND:  # else the queue has been deleted, and what was in it
                        self._rest(taking.queue)
                        self.mover.problem(*self.place, taking.queue, text)
            case ChannelCloseOk():
                self._channels.pop(piece[0], None)
            case BasicConsumeOk(consumer_tag=tag) if taking is not None:
                taking.turn = turn_in(tag)
            case BasicCancel() if taking is not None:
                self._close(taking)
            case QueueDeclareOk(message_count=count) if taking is not None:
                taking.asked = False
                if count and not self._wanted:
                    taking.last_ms = self.now_ms  # another front is at it, and we are next
                elif not taking.held:
                    self._close(taking)
                    if count:
                        self._wanted[taking.queue] = None  # behind those that wait for their turn
            case _:
                pass

    def _delivered(self, taking: Taking, piece: Piece) -> None:
        taking.last_ms = self.now_ms
        parcels = []
        for deliver, raw, body in messages(piece):
            # What a letter says in these headers its delivery says, too, and what a client says in them means nothing.
            properties = naming.without_entries(raw)[0] if naming.are_in(raw) else raw
            parcel = Parcel(
                taking, deliver.delivery_tag, deliver.exchange, deliver.routing_key, properties, body
            )
            taking.held[parcel.tag] = parcel
            self._held_bytes += parcel.size
            parcels.append(parcel)
        self.mover.route(parcels)

    def lost(self, why: str) -> None:
        for taking in list(self._taken.values()):
            self._forget(taking)
            self._rest(taking.queue)
        for queue in self._wanted:
            self._rest(queue)
        self._wanted.clear()
        self._channels.clear()
        self.mover.problem(*self.place, "", why)

    def leave(self) -> None:
        for taking in list(self._taken.values()):
            self._forget(taking)
        self._channels.clear()
        super().leave()

    # Leaving a queue ---------------------------------------------------------------------------------

    def _give_back(self, taking: Taking) -> None:
        """Nothing gets through: let others have it, and come back later."""
        self._close(taking)
        self._rest(taking.queue)

    def _close(self, taking: Taking) -> None:
        self._forget(taking)
        self._channels[taking.number] = None
        if self.link is not None:
            self.link.send(encode_method(taking.number, ChannelClose(200, "")))

    def _forget(self, taking: Taking) -> None:
        taking.gone = True
        self._held_bytes -= sum(parcel.size for parcel in taking.held.values())
        taking.held.clear()
        del self._taken[taking.queue]
        if taking.moved:
            group, vhost = self.place
            self.mover.outside.note(
                "info", "messages moved", group=group, vhost=vhost, queue=taking.queue, count=taking.moved
            )

    def _rest(self, queue: str) -> None:
        tries = self._tries.get(queue, 0)
        self._tries[queue] = tries + 1
        self._resting[queue] = self.now_ms + rest_ms(tries)


class Target(End):
    """Publishes to queues of one group and virtual host that it names, and waits for their confirms."""

    def __init__(self, mover: Mover, place: Place) -> None:
        super().__init__(mover, place)
        self._lanes: dict[str, Lane] = {}
        """By queue; none without parts."""
        self._ready: dict[Lane, None] = {}
        """Lanes whose next part may be on its way together with others."""
        self._doubtful: dict[Lane, None] = {}
        """Lanes whose next part goes alone, before all others."""
        self._link_number = 0
        self._sent = 0
        self._unconfirmed: dict[int, Part] = {}
        """By number of the publish, in that order."""
        self._making: dict[str, QueueSpec] = {}
        """Queues that are being declared."""
        self._renewals: dict[str, QueueRenew] = {}
        """What is to be said when the link is open, by queue."""
        self._fresh = 0
        """How many wait for a fresh copy."""
        self._last_ms = mover.outside.now_ms

    @property
    def idle(self) -> bool:
        return not (self.link or self._leaving or self._lanes or self._fresh or self._renewals)

    def give(self, part: Part) -> None:
        """Publish it behind all that is for its queue."""
        self._last_ms = self.now_ms
        lane = self._lanes.get(part.queue)
        if lane is None:
            lane = self._lanes[part.queue] = Lane(part.queue)
        part.lane = lane
        lane.parts.append(part)
        self._look_at(lane)
        self._go_on()

    def _look_at(self, lane: Lane) -> None:
        """Something about it has changed: settle what is done, and see what may be published."""
        for part in lane.done():
            if not part.gone:
                lane.tries = 0
                self.mover.refusing.discard((self.place, lane.queue))
                self.mover.confirmed(part)
        self._ready.pop(lane, None)
        self._doubtful.pop(lane, None)
        first = lane.first
        if first is not None:
            first.alone = first.alone or (self.place, lane.queue) in self.mover.refusing
            (self._doubtful if first.alone else self._ready)[lane] = None
        elif not lane.parts and self._lanes.get(lane.queue) is lane:
            del self._lanes[lane.queue]

    def _go_on(self) -> None:
        """Publish what may be on its way together."""
        out = self._unconfirmed
        while self._doubtful or self._ready:
            lane = next(iter(self._doubtful or self._ready))
            part = lane.first
            if part is not None:  # else all that was left is back where it came from
                link = self.dialled()
                if link.state is not State.OPEN or (out and (part.alone or next(iter(out.values())).alone)):
                    return
                self._publish(link, lane, part)
            self._look_at(lane)

    def _publish(self, link: Link, lane: Lane, part: Part) -> None:
        parcel, limit = part.parcel, link.terms.frame_max
        entries = naming.entries([part.queue], _raw(parcel.exchange), _raw(parcel.key))
        if link.knows_lives and part.spec is not None and part.spec.incarnation:
            entries += naming.life_entry(part.spec.incarnation)
        if parcel.taking.turn is not None and link.capable_of(TURNS):
            group, queue = parcel.taking.source.place[0], parcel.taking.queue
            entries += naming.turn_entry(group, queue, parcel.taking.turn, self._link_number)
        properties = with_entries(parcel.properties, entries)
        if limit and len(properties) + ENVELOPE_BYTES + CONTENT_START.size > limit:
            problem = f"properties and the name of the queue are larger than a frame of {limit}"
            self.mover.note_refused(part, problem)
            self._rest(lane)
            return
        self._sent += 1
        self._unconfirmed[self._sent] = part
        lane.next += 1
        lane.out += 1
        link.send(_PUBLISH + encode_content(PUBLISHING, properties, parcel.body, limit))

    def _rest(self, lane: Lane) -> None:
        """Something of it was not taken: try again, later each time."""
        if lane.at is not At.RESTING:
            lane.at, lane.missing = At.RESTING, False
            lane.due_ms = self.now_ms + rest_ms(lane.tries)
            lane.tries += 1
        self._look_at(lane)

    def tick(self, now_ms: int) -> None:
        self.tick_links(now_ms)
        for lane in list(self._lanes.values()):
            if lane.at in (At.RESTING, At.MISSING) and not lane.out and lane.due_ms <= now_ms:
                lane.go_back()
                if lane.missing and lane.parts:
                    self._make(lane)
                else:
                    lane.at = At.GOING
            self._look_at(lane)
        self._go_on()
        if not (self._lanes or self._fresh) and self.link is not None and now_ms - self._last_ms >= LEAVE_MS:
            self.leave()

    # What the leader says ----------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self.mover.links += 1
        self._link_number, self._sent = self.mover.links, 0
        link.send(_encoded(PUBLISHING, ChannelOpen(), ConfirmSelect()) + encode_method(MAKING, ChannelOpen()))
        self._renew()
        self._go_on()

    def heard(self, link: Link, piece: Piece) -> None:
        match method_of(piece):
            case BasicAck(delivery_tag=tag, multiple=multiple):
                for lane, part in self._answered(tag, multiple):
                    part.taken, lane.missing = not part.missing, lane.missing or part.missing
                    if part.missing and lane.at is At.GOING:
                        lane.at, lane.due_ms = At.MISSING, self.now_ms + MISSING_MS
                    self._look_at(lane)
                self._go_on()
            case BasicNack(delivery_tag=tag, multiple=multiple):
                for lane, part in self._answered(tag, multiple):
                    if part.gone:  # whoever took it after us moves it
                        self._look_at(lane)
                        continue
                    self.mover.note_refused(
                        part, f"queue '{part.queue}' in group '{self.place[0]}' refuses them"
                    )
                    self.mover.refusing.add((self.place, lane.queue))
                    self._rest(lane)
                self._go_on()
            case BasicReturn(reply_code=code, reply_text=queue) if code == NOT_FOUND:
                # It does not say of which publish; with others for the queue on their way it is the same.
                for part in self._unconfirmed.values():
                    part.missing = part.missing or part.queue == queue
            case QueueDeclareOk(queue=queue) | QueueMakeOk(queue=queue, gone=0):
                self._made(queue)
            case QueueMakeOk(queue=queue, gone=gone):
                self._is_over(queue, gone)
            case ChannelClose(reply_text=text):
                link.send(encode_method(piece[0], ChannelCloseOk()))
                if piece[0] == MAKING:
                    link.send(encode_method(MAKING, ChannelOpen()))
                    self._not_made(text)
                elif self._unconfirmed:
                    self._sent = 0
                    link.send(_encoded(PUBLISHING, ChannelOpen(), ConfirmSelect()))
                    self._not_taken(text)
                    self._go_on()
                else:
                    self.leave()
                    self.lost(text)
            case _:
                pass

    def _not_taken(self, why: str) -> None:
        """The channel is closed about one of those on their way: let its lane rest if it was alone, else find out which it is."""
        answered = self._answered(max(self._unconfirmed), True)
        for lane, part in answered:
            part.alone = True
            if len(answered) == 1:
                self.mover.note_refused(part, why)
                self._rest(lane)
            elif lane.at is At.GOING:
                lane.go_back()
            self._look_at(lane)

    def _answered(self, tag: int, multiple: bool) -> list[tuple[Lane, Part]]:
        """Those that are not on their way any more, with their lanes."""
        self._last_ms = self.now_ms
        if multiple:
            numbers = [number for number in self._unconfirmed if number <= tag]
        else:
            numbers = [tag] if tag in self._unconfirmed else []
        answered = []
        for number in numbers:
            part = self._unconfirmed.pop(number)
            assert part.lane is not None
            part.lane.out -= 1
            answered.append((part.lane, part))
        return answered

    def lost(self, why: str) -> None:
        for part in self._unconfirmed.values():
            assert part.lane is not None
            part.lane.out -= 1
        self._unconfirmed.clear()
        self._making.clear()
        self._renewals.clear()
        for lane in list(self._lanes.values()):
            if lane.at is not At.RESTING:
                self._rest_all(lane, why)

    def _rest_all(self, lane: Lane, why: str) -> None:
        for part in lane.parts:
            self.mover.note_refused(part, why)
        self._rest(lane)

    # Queues that the group does not have -------------------------------------------------------------

    def _make(self, lane: Lane) -> None:
        """Declare its queue as main has it, or let its parts go if main has it no more."""
        lane.at, lane.missing = At.MAKING, False
        self._fresh += 1

        def then() -> None:
            self._fresh -= 1
            if lane.at is At.MAKING:
                lane.go_back()
                self._make_as_main_has_it(lane)
                self._look_at(lane)
                self._go_on()

        self.mover.outside.wiring.fresh(then)

    def _make_as_main_has_it(self, lane: Lane) -> None:
        group, vhost = self.place
        spec = self.mover.outside.wiring.spec_of(vhost, lane.queue)
        for part in lane.parts:
            if spec is None or (part.spec is not None and part.spec.number != spec.number):
                part.taken = True  # the queue that it was for is gone
            else:
                part.spec = spec
        if spec is None:
            return
        if all(part.taken for part in lane.parts):
            lane.at = At.GOING
        elif (spec.group or MAIN) != group:
            parts, lane.parts = lane.parts, deque()
            for part in parts:
                part.group, part.alone = spec.group or MAIN, False
                self.mover.give(part)
        elif lane.parts and group != MAIN and (link := self.dialled()).state is State.OPEN:
            if lane.queue not in self._making:
                self._making[lane.queue] = spec
                declare = QueueDeclare(queue=lane.queue, durable=spec.durable, arguments=spec.arguments)
                make: Method = declare
                if spec.incarnation:
                    make = QueueMake(lane.queue, spec.incarnation, spec.durable, spec.arguments)
                link.send(encode_method(MAKING, make), encode_method(MAKING, declare))
        else:
            lane.at = At.GOING

    def _is_over(self, queue: str, gone: int) -> None:
        """The queue was deleted in the life that main has it in: go on in a new one."""
        spec = self._making.pop(queue, None)
        lane = self._lanes.get(queue)
        if spec is None or lane is None or lane.at is not At.MAKING:
            return
        self.mover.renew(self.place[1], QueueRenew(queue, spec.incarnation, gone))
        lane.at, lane.missing, lane.due_ms = At.MISSING, True, self.now_ms

    def renew(self, renewal: QueueRenew) -> None:
        """In main: begin a new life of a queue. It is asked for again if that does not come to pass."""
        self._last_ms = self.now_ms
        self._renewals[renewal.queue] = renewal
        if self.dialled().state is State.OPEN:
            self._renew()

    def _renew(self) -> None:
        renewals, self._renewals = self._renewals, {}
        for renewal in renewals.values():
            if self.link is not None and self.link.knows_lives:
                self.link.send(encode_method(MAKING, renewal))

    def _made(self, queue: str) -> None:
        self.mover.made += 1
        group, vhost = self.place
        self.mover.outside.note("warning", "queue made again", group=group, vhost=vhost, queue=queue)
        self._making.pop(queue, None)
        lane = self._lanes.get(queue)
        if lane is not None and lane.at is At.MAKING:
            lane.at = At.GOING
            self._look_at(lane)
        self._go_on()

    def _not_made(self, why: str) -> None:
        """The channel is closed about the first declaration; those behind it were not read."""
        lanes = [self._lanes[queue] for queue in self._making if queue in self._lanes]
        self._making.clear()
        for lane in lanes:
            if lane.at is At.MAKING:
                self._rest_all(lane, why)


def rest_ms(tries: int) -> int:
    return min(REST_MS_MAX, REST_MS_MIN << min(tries, 16))


def messages(piece: Piece) -> Iterator[tuple[BasicDeliver, bytes, bytes]]:
    """The deliveries in a piece, with properties and body."""
    frames = piece[3]
    method: Any = None
    properties, body = b"", list[bytes]()
    at = 0
    while at < len(frames):
        kind, _, size = FRAME_START.unpack_from(frames, at)
        start = at + FRAME_START.size
        payload = frames[start : start + size]
        if kind == METHOD:
            if method is not None:
                yield method, properties, b"".join(body)
            method, body = decode_method(payload), []
        elif kind == HEADER:
            properties = payload[CONTENT_START.size :]
        else:
            body.append(payload)
        at += size + ENVELOPE_BYTES
    yield method, properties, b"".join(body)


def _encoded(channel: int, *methods: Method) -> bytes:
    return b"".join(encode_method(channel, method) for method in methods)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
