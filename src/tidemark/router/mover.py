"""Moves messages on, out of stand-ins and outboxes, to the queues that they are for.

    stand-in of main ────┐                                       ┌──► its queue, by name
                         ├─► Source ─► parcel of parts ─► Target ─┤
    outbox of a group ───┘   consumes                   confirms └──► every queue that main's wiring has for the letter

A stand-in holds what did not come through a front: dead letters of main, publishes at main's own port, and what a front gave
to main because the group did not have the queue. An outbox holds dead letters whose exchange is in main. A part is one
message for one queue. When the groups have confirmed all parts of a parcel it is acknowledged where it came from. So it is
moved at least once, whoever dies; who dies between the two makes it twice.

The leader of each group says in which queues messages wait (`broker/feed.py`), and reminds us while nobody takes them. Consuming
from all stand-ins would cost a consumer for each, and asking for their lengths a question for each, again and again. So a queue
in which nothing waits costs nothing: it is taken when we are told, and left when it has been idle and is found empty. Every
front is told and takes it; the broker gives the messages to one at a time, in order, and to the next when that one goes.

A queue that its group does not have, because a front died before it made it there or somebody deleted it behind main's back, is
declared there as main has it. That waits a moment first, for a queue that is being deleted is gone from its group before
it is gone from main. A message that closes the channel is found by publishing those that were on their way one at a time, so that
it alone stays behind. What a group refuses, and what goes to a group that cannot be reached, stays where it is: the part is
tried again later; a queue of which nothing gets through is left for a while, longer each time.

The front comes for itself (`LinkKind.OWN`): who sent a message, and whether he may, was asked when it was published.

Invariant: a message is acknowledged only after every part was confirmed, or its queue or exchange is gone from a fresh copy
of the wiring.
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
from tidemark.model.wiring import FRONT_USER
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


class At(Enum):
    """Where a part is."""

    OUT = auto()
    """On its way, or about to be."""
    RESTING = auto()
    """It was refused, and is tried again later."""
    DONE = auto()


@dataclass(slots=True, eq=False)
class Taking:
    """A queue that we consume from."""

    source: Source
    number: int
    """Of its channel."""
    queue: str
    last_ms: int
    """When there last was something to do."""
    held: dict[int, Parcel] = field(default_factory=dict)
    """What has been delivered and is not acknowledged, by tag."""
    moved: int = 0
    asked: bool = False
    """It is being asked whether it is empty."""
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
        """No part of it is anywhere, or on its way there."""
        return self.failed or (bool(self.parts) and all(part.at is At.RESTING for part in self.parts))


@dataclass(slots=True, eq=False)
class Part:
    """A message for one queue."""

    parcel: Parcel
    group: str
    queue: str
    at: At = At.OUT
    missing: bool = False
    """The group has said that it does not have the queue."""
    alone: bool = False
    """It was one of several on their way when the channel was closed: it is published when no other is, to see which it was."""
    tries: int = 0
    due_ms: int = 0
    """When something is done about it again."""


class Mover:
    """All that one front moves."""

    def __init__(self, outside: Outside, name: str) -> None:
        """`name` is that of the front."""
        self.outside = outside
        self.peer = PeerInfo(name, 0, front=name, own=True)
        self.moved = self.refused = self.unroutable = self.made = 0
        self._sources: dict[Place, Source] = {}
        self._targets: dict[Place, Target] = {}
        self._later: list[Part] = []
        self._problems: dict[tuple[str, str, str], str] = {}
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
        later, self._later = self._later, []
        for part in later:
            if part.parcel.taking.gone:
                continue
            if part.due_ms > now_ms:
                self._later.append(part)
            else:
                part.at = At.OUT
                self._target(part).give(part)
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
        self._later.clear()

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
            home = wiring.group_of(vhost, parcel.taking.queue)
            if home is None or home == MAIN:
                return  # the stand-in is gone, and what was in it; main ends our consumer soon
            routes = {home: (parcel.taking.queue,)}
        else:
            routes = wiring.letter_routes(vhost, parcel.exchange, parcel.key, parcel.properties)  # type: ignore[assignment]
        parcel.parts = [Part(parcel, home, queue) for home, queues in routes.items() for queue in queues]
        if not parcel.parts:
            self.unroutable += 1
            source.settle(parcel)
        for part in parcel.parts:
            self._target(part).give(part)

    def confirmed(self, part: Part) -> None:
        """The part is safe, or its queue is gone."""
        part.at = At.DONE
        parcel = part.parcel
        if not parcel.taking.gone and all(each.at is At.DONE for each in parcel.parts):
            self.moved += 1
            parcel.taking.moved += 1
            self._problems.pop((*parcel.taking.source.place, parcel.taking.queue), None)
            parcel.taking.source.settle(parcel)

    def rest(self, part: Part, problem: str) -> None:
        """The part was not taken: it is tried again, later each time."""
        taking = part.parcel.taking
        if taking.gone:
            return
        self.refused += 1
        part.at, part.missing = At.RESTING, False
        part.due_ms = self.outside.now_ms + rest_ms(part.tries)
        part.tries += 1
        self._later.append(part)
        self.problem(*taking.source.place, taking.queue, problem)

    def missing(self, part: Part) -> None:
        """Its group does not have the queue: see about it in a moment."""
        part.due_ms = self.outside.now_ms + MISSING_MS
        self._later.append(part)

    def problem(self, group: str, vhost: str, queue: str, problem: str) -> None:
        if self._problems.get((group, vhost, queue)) != problem:
            self._problems[group, vhost, queue] = problem
            self.outside.note(
                "warning", "messages not moved", group=group, vhost=vhost, queue=queue, problem=problem
            )

    def well(self, place: Place) -> None:
        """Its leader is reached again."""
        self._problems.pop((*place, ""), None)

    def _target(self, part: Part) -> Target:
        place = part.group, part.parcel.taking.source.place[1]
        target = self._targets.get(place)
        if target is None:
            target = self._targets[place] = Target(self, place)
        return target


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
            self._taken[queue] = self._channels[number] = Taking(self, number, queue, self.now_ms)
            link.send(
                _encoded(number, ChannelOpen(), BasicQos(prefetch_count=PREFETCH), BasicConsume(queue=queue))
            )

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
        self._waiting: list[Part] = []
        """For the link to open."""
        self._line: deque[Part] = deque()
        """For those on their way, because it goes alone, or one of them does."""
        self._sent = 0
        self._unconfirmed: dict[int, Part] = {}
        """By number of the publish, in that order."""
        self._making: dict[str, list[Part]] = {}
        """By queue that is being declared: what is for it."""
        self._fresh = 0
        """How many wait for a fresh copy."""
        self._last_ms = mover.outside.now_ms

    @property
    def idle(self) -> bool:
        return not (self.link or self._leaving or self._waiting or self._line or self._fresh)

    def give(self, part: Part) -> None:
        """Publish it, or make its queue first if the group said that it has none."""
        self._last_ms = self.now_ms
        link = self.dialled()
        if link.state is not State.OPEN:
            self._waiting.append(part)
        elif part.missing:
            self._make(part)
        else:
            self._line.append(part)
            self._go_on(link)

    def _go_on(self, link: Link) -> None:
        """Publish what may be on its way together."""
        line, out = self._line, self._unconfirmed
        while line and not (out and (line[0].alone or next(iter(out.values())).alone)):
            part = line.popleft()
            if not part.parcel.taking.gone:
                self._publish(link, part)

    def _publish(self, link: Link, part: Part) -> None:
        parcel, limit = part.parcel, link.terms.frame_max
        entries = naming.entries([part.queue], _raw(parcel.exchange), _raw(parcel.key))
        properties = with_entries(parcel.properties, entries)
        if limit and len(properties) + ENVELOPE_BYTES + CONTENT_START.size > limit:
            self.mover.rest(part, f"properties and the name of the queue are larger than a frame of {limit}")
            return
        self._sent += 1
        self._unconfirmed[self._sent] = part
        link.send(_PUBLISH + encode_content(PUBLISHING, properties, parcel.body, limit))

    def tick(self, now_ms: int) -> None:
        self.tick_links(now_ms)
        busy = self._waiting or self._line or self._unconfirmed or self._making or self._fresh
        if not busy and self.link is not None and now_ms - self._last_ms >= LEAVE_MS:
            self.leave()

    # What the leader says ----------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self._sent = 0
        link.send(_encoded(PUBLISHING, ChannelOpen(), ConfirmSelect()) + encode_method(MAKING, ChannelOpen()))
        waiting, self._waiting = self._waiting, []
        for part in waiting:
            self.give(part)

    def heard(self, link: Link, piece: Piece) -> None:
        match method_of(piece):
            case BasicAck(delivery_tag=tag, multiple=multiple):
                for part in self._answered(tag, multiple):
                    (self.mover.missing if part.missing else self.mover.confirmed)(part)
                self._go_on(link)
            case BasicNack(delivery_tag=tag, multiple=multiple):
                for part in self._answered(tag, multiple):
                    self.mover.rest(part, f"queue '{part.queue}' in group '{self.place[0]}' refuses them")
                self._go_on(link)
            case BasicReturn(reply_code=code, reply_text=queue) if code == NOT_FOUND:
                # It does not say of which publish; with others for the queue on their way it is the same.
                for part in self._unconfirmed.values():
                    part.missing = part.missing or part.queue == queue
            case QueueDeclareOk(queue=queue):
                self._made(link, queue)
            case ChannelClose(reply_text=text):
                link.send(encode_method(piece[0], ChannelCloseOk()))
                if piece[0] == MAKING:
                    link.send(encode_method(MAKING, ChannelOpen()))
                    self._not_made(text)
                elif self._unconfirmed:
                    self._sent = 0
                    link.send(_encoded(PUBLISHING, ChannelOpen(), ConfirmSelect()))
                    self._not_taken(text)
                    self._go_on(link)
                else:
                    self.leave()
                    self.lost(text)
            case _:
                pass

    def _not_taken(self, why: str) -> None:
        """The channel is closed about one of those on their way: let it rest if it was alone, else find out which it is."""
        parts = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        if len(parts) == 1:
            self.mover.rest(parts[0], why)
            return
        for part in parts:
            part.alone = True
        self._line.extendleft(reversed(parts))

    def _answered(self, tag: int, multiple: bool) -> list[Part]:
        self._last_ms = self.now_ms
        if not multiple:
            part = self._unconfirmed.pop(tag, None)
            return [] if part is None else [part]
        numbers = [number for number in self._unconfirmed if number <= tag]
        return [self._unconfirmed.pop(number) for number in numbers]

    def lost(self, why: str) -> None:
        parts = [*self._unconfirmed.values(), *self._line, *self._waiting]
        for making in self._making.values():
            parts += making
        self._unconfirmed.clear()
        self._line.clear()
        self._waiting.clear()
        self._making.clear()
        for part in parts:
            self.mover.rest(part, why)

    # Queues that the group does not have -------------------------------------------------------------

    def _make(self, part: Part) -> None:
        """Declare its queue as main has it, or let the part go if main has it no more."""
        self._fresh += 1

        def then() -> None:
            self._fresh -= 1
            group, vhost = self.place
            part.missing = False
            spec = self.mover.outside.wiring.spec_of(vhost, part.queue)
            link = self.dialled()
            if spec is None:
                self.mover.confirmed(part)
            elif (spec.group or MAIN) != group:
                part.group = spec.group or MAIN
                self.mover.missing(part)
            elif group == MAIN or link.state is not State.OPEN:
                self.give(part)
            elif part.queue in self._making:
                self._making[part.queue].append(part)
            else:
                self._making[part.queue] = [part]
                declare = QueueDeclare(queue=part.queue, durable=spec.durable, arguments=spec.arguments)
                link.send(encode_method(MAKING, declare))

        self.mover.outside.wiring.fresh(then)

    def _made(self, link: Link, queue: str) -> None:
        self.mover.made += 1
        group, vhost = self.place
        self.mover.outside.note("warning", "queue made again", group=group, vhost=vhost, queue=queue)
        self._line += self._making.pop(queue, [])
        self._go_on(link)

    def _not_made(self, why: str) -> None:
        """The channel is closed about the first declaration; those behind it were not read."""
        making, self._making = self._making, {}
        for parts in making.values():
            for part in parts:
                self.mover.rest(part, why)


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
