"""Bugs on purpose in what fronts do; see `sim/cluster/planted.py`. The simulator must find each within so many runs.

Invariant: without a plant nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.broker.incarnations import Gone
from tidemark.broker.session import Session
from tidemark.broker.streams.fences import Fences
from tidemark.broker.wiring_copy import FreshCopy
from tidemark.router.channel import Channel
from tidemark.router.confirms import Answer, Confirms
from tidemark.router.connection import Router
from tidemark.router.link import Link
from tidemark.router.mover import Lane, Mover, Part, Target
from tidemark.router.wiring import MAIN
from tidemark.sim.cluster.planted import LOST, Plant, Set, hunt
from tidemark.sim.cluster.run import FRONTS


def acknowledges_before_the_group_confirmed(set_: Set) -> None:
    publish = Target._publish

    def publish_and_settle(self: Target, link: Link, lane: Lane, part: Part) -> None:
        publish(self, link, lane, part)
        _settle(part)

    set_(Target, "_publish", publish_and_settle)
    set_(Mover, "confirmed", lambda _, part: _settle(part))


def _settle(part: Part) -> None:
    part.done = True
    taking = part.parcel.taking
    if not taking.gone and part.parcel.tag in taking.held:
        taking.source.settle(part.parcel)


def is_content_with_one_of_the_queues(set_: Set) -> None:
    """A letter for several queues is acknowledged when the first has it."""
    set_(Mover, "confirmed", lambda _, part: _settle(part))


def lets_others_overtake_what_was_not_taken(set_: Set) -> None:
    go_back = Lane.go_back

    def go_back_behind(self: Lane) -> None:
        go_back(self)
        self.parts.rotate(-1)

    set_(Lane, "go_back", go_back_behind)


def forgets_what_was_on_its_way(set_: Set) -> None:
    """The mover takes what it had sent on a link that is lost for done."""
    lost = Target.lost

    def forget(self: Target, why: str) -> None:
        for part in self._unconfirmed.values():
            assert part.lane is not None
            if part in part.lane.parts:
                part.lane.parts.remove(part)
                part.lane.next = max(0, part.lane.next - 1)
                self.mover.confirmed(part)
        lost(self, why)

    set_(Target, "lost", forget)


def lets_a_former_turn_in(set_: Set) -> None:
    """What a front had sent before another followed it is taken when it comes."""
    set_(Fences, "keeps_out", lambda *_: False)


def forgets_turns_when_it_starts(set_: Set) -> None:
    """A leader does not know what turns the one before it had seen."""
    set_(Fences, "restored", lambda *_: None)


def goes_on_without_a_group(set_: Set) -> None:
    """A front that loses the leader of a group forgets that its client waits for it."""
    lost = Router.link_lost

    def link_lost(self: Router, link: Link, why: str) -> None:
        if link.group == MAIN or not link.opened or not self.is_open:
            lost(self, link, why)
            return
        del self.links[link.group]
        for channel in self._channels._open.values():
            channel._expected.pop(link.group, None)
            if channel._confirms is not None:
                for answer in channel._confirms.take(link.group, 1 << 60, True):
                    channel._tell(answer)

    set_(Router, "link_lost", link_lost)


def _takes(set_: Set, change: Callable[[Confirms, str, int], str]) -> None:
    take = Confirms.take

    def take_otherwise(self: Confirms, group: str, tag: int, accepted: bool) -> list[Answer]:
        return take(self, change(self, group, tag), tag, accepted)

    set_(Confirms, "take", take_otherwise)


def credits_the_wrong_group(set_: Set) -> None:
    def change(self: Confirms, group: str, tag: int) -> str:  # noqa: ARG001
        waiting = [other for other, parts in self._parts.items() if other != group and parts]
        return waiting[0] if waiting else group

    _takes(set_, change)


def confirms_when_one_group_has_it(set_: Set) -> None:
    def change(self: Confirms, group: str, tag: int) -> str:
        for part in self._parts.get(group, ()):
            if part.last <= tag and not part.entry.alike:
                part.entry.left = 1
        return group

    _takes(set_, change)


def routes_by_what_may_be_stale(set_: Set) -> None:
    fresh = FreshCopy.fresh

    def at_once(self: FreshCopy, then: Callable[[], None]) -> None:
        if self.copy is not None:
            then()
        else:
            fresh(self, then)

    set_(FreshCopy, "fresh", at_once)


def keeps_returns_to_itself(set_: Set) -> None:
    def returned(self: Channel, group: str, piece: Any) -> None: ...

    set_(Channel, "_returned", returned)


def confirms_before_it_returns(set_: Set) -> None:
    """A return comes behind the confirm of its message."""
    returned, confirmed = Channel._returned, Channel._confirmed
    late: dict[Channel, list[tuple[str, Any]]] = {}

    def keep(self: Channel, group: str, piece: Any) -> None:
        late.setdefault(self, []).append((group, piece))

    def confirm(self: Channel, group: str, answer: Answer) -> None:
        confirmed(self, group, answer)
        for where, piece in late.pop(self, []):
            returned(self, where, piece)

    set_(Channel, "_returned", keep)
    set_(Channel, "_confirmed", confirm)


def forgets_the_dead(set_: Set) -> None:
    """A group does not know which lives of a queue are over."""
    set_(Gone, "last", lambda *_: 0)


def ends_whatever_there_is(set_: Set) -> None:
    """Main deletes a name, whichever life it is in."""
    end = Session.end_queue

    def end_any(self: Session, name: str, incarnation: int, **conditions: bool) -> Any:
        queue = self.vhost.queues.get(name)
        if self.broker.group == MAIN and queue is not None:
            incarnation = queue.spec.life
        return end(self, name, incarnation, **conditions)

    set_(Session, "end_queue", end_any)


def _plant(
    about: str, plant: Callable[[Set], None], found_by: str, seeds: int, work: str, faults: str = ""
) -> Plant:
    return Plant(about, plant, (found_by,), (hunt(seeds, FRONTS, work, faults),))


UNRETURNED = "is not returned, but nothing is bound"
LATE = "number .* comes last behind the last of number"
LEADERS = "kill,lose_power,stall,tear_front"
PLANTED: dict[str, Plant] = {
    "mover-early-ack": _plant(
        "what is moved on is acknowledged before its group confirms",
        acknowledges_before_the_group_confirmed,
        LOST,
        15,
        "moved",
        LEADERS,
    ),
    "mover-one-queue": _plant(
        "a letter is acknowledged when one of its queues has it",
        is_content_with_one_of_the_queues,
        LOST,
        10,
        "tight",
        "kill_front,tear_front",
    ),
    "mover-overtakes": _plant(
        "what was not taken is tried again behind the others",
        lets_others_overtake_what_was_not_taken,
        "delivers .* behind number",
        60,
        "moved",
        LEADERS,
    ),
    "mover-forgets": _plant(
        "what is in doubt when a link is lost is taken for moved",
        forgets_what_was_on_its_way,
        LOST,
        30,
        "moved",
        LEADERS,
    ),
    "former-turn": _plant(
        "what comes late of a front that another has followed is taken",
        lets_a_former_turn_in,
        LATE,
        10,
        "piled",
        "hand_over",
    ),
    "fence-forgotten": _plant(
        "a leader that starts takes what its former self would have refused",
        forgets_turns_when_it_starts,
        LATE,
        20,
        "piled",
        "stale_front",
    ),
    "front-forgets": _plant(
        "a front takes what is in doubt for confirmed",
        goes_on_without_a_group,
        f"{LOST}|again, whose acknowledgement was confirmed",
        20,
        "spread",
        LEADERS,
    ),
    "wrong-credit": _plant(
        "a confirm of one group is credited to another",
        credits_the_wrong_group,
        "has .* unconfirmed messages|somebody has .* messages of",
        40,
        "spread",
    ),
    "one-confirm": _plant(
        "one of two groups is enough for a confirm",
        confirms_when_one_group_has_it,
        LOST,
        20,
        "spread",
        LEADERS,
    ),
    "stale-wiring": _plant(
        "a front routes by wiring that may be stale",
        routes_by_what_may_be_stale,
        f"{UNRETURNED}|{LOST}|that nobody sent",
        5,
        "fresh",
        "slow_feed",
    ),
    "forgotten-tombstone": _plant(
        "a group forgets which lives of a queue are over",
        forgets_the_dead,
        "again, which was in it when it was deleted",
        15,
        "churn",
        "freeze_between",
    ),
    "any-life": _plant(
        "main deletes a name that has begun another life",
        ends_whatever_there_is,
        "is in its group, and main has no such queue",
        10,
        "rivals",
        "freeze_between",
    ),
    "no-return": _plant(
        "what finds no queue is not returned", keeps_returns_to_itself, UNRETURNED, 10, "fresh"
    ),
    "late-return": _plant(
        "a return comes behind the confirm", confirms_before_it_returns, UNRETURNED, 10, "fresh"
    ),
}
"""By name."""
