"""What goes wrong in a world of fronts, besides what goes wrong with machines (`sim/cluster/faults.py`).

Invariant: as there, a fault is a function of the world as it is and of its own dice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidemark.model.wiring import MAIN
from tidemark.sim.cluster import faults
from tidemark.sim.cluster.checkers import queues
from tidemark.sim.cluster.faults import _cut, _for
from tidemark.sim.cluster.network import Link
from tidemark.sim.fronts.feeds import FEED
from tidemark.sim.fronts.front import Front
from tidemark.sim.fronts.leader import FRONT, OWN, Leader
from tidemark.sim.fronts.world import FrontsWorld
from tidemark.wire.amqp091.methods import QueueDelete

Fault = Callable[[FrontsWorld, Random], None]


def _front(world: FrontsWorld, dice: Random) -> Front:
    return dice.choice(list(world.fronts.values()))


def _pair(world: FrontsWorld, dice: Random) -> tuple[str, str]:
    """A front and the leader of a group."""
    return dice.choice(list(world.fronts)), dice.choice(list(world.machines))


def start_later(front: Front, wait_us: int) -> None:
    life = front.life

    def start() -> None:
        if front.life == life and not front.running:
            front.start()

    front.timeline.after(wait_us, start)


def kill_front(world: FrontsWorld, dice: Random) -> None:
    front = _front(world, dice)
    if front.running:
        wait_us, power = _for(dice, 10, 300, 1500), dice.random() < 0.3
        world.say(front.name, "%s for %d ms", "loses its power" if power else "is killed", wait_us // 1000)
        front.die(power=power)
        start_later(front, wait_us)


def stop_front(world: FrontsWorld, dice: Random) -> None:
    """A clean stop and a start."""
    front = _front(world, dice)
    if front.running and not front.frozen:
        world.say(front.name, "is asked to stop")
        front.stop()
        _start_again(front, front.life, _for(dice, 300, 1000))


def _start_again(front: Front, life: int, wait_us: int) -> None:
    """Start it when that life is over."""

    def again() -> None:
        if front.running and front.life == life:
            front.timeline.after(20_000, again)
        elif not front.running:
            front.start()

    front.timeline.after(wait_us, again)


def freeze_front(world: FrontsWorld, dice: Random) -> None:
    front = _front(world, dice)
    if front.running and not front.frozen:
        wait_us = _for(dice, 20, 200, 900, 2500)
        world.say(front.name, "stands still for %d ms", wait_us // 1000)
        front.freeze()
        world.timeline.after(wait_us, front.thaw)


def cut_front(world: FrontsWorld, dice: Random) -> None:
    """A front and a leader do not hear each other, or one does not hear the other."""
    front, leader = _pair(world, dice)
    wait_us = _for(dice, 50, 400, 1500, 4000)
    ways = dice.choice(([(front, leader)], [(leader, front)], [(front, leader), (leader, front)]))
    world.say("", "cut %s for %d ms", ways, wait_us // 1000)
    _cut(world, ways, wait_us)


def tear_front(world: FrontsWorld, dice: Random) -> None:
    """Links between a front and a leader break; they can be made again at once."""
    front, leader = _pair(world, dice)
    kinds = dice.choice(((FRONT,), (OWN,), (FEED,), (FRONT, OWN, FEED)))
    world.say(front, "loses its links of kind %s with %s", kinds, leader)
    for link in list(world.network.links):
        if link.between(front, leader) and link.kind in kinds:
            link.tear()


def slow_front(world: FrontsWorld, dice: Random) -> None:
    front, leader = _pair(world, dice)
    wait_us, factor = _for(dice, 100, 1000, 3000), dice.choice((5, 30, 200))
    ways = dice.choice(([(front, leader)], [(leader, front)], [(front, leader), (leader, front)]))
    world.say("", "%s are %d times as slow for %d ms", ways, factor, wait_us // 1000)
    for way in ways:
        world.network.slow[way] = factor

    def heal() -> None:
        for way in ways:
            world.network.slow.pop(way, None)

    world.timeline.after(wait_us, heal)


def slow_feed(world: FrontsWorld, dice: Random) -> None:
    """What main tells of its wiring does not leave it for a while."""
    main = world.machines[MAIN]
    assert isinstance(main, Leader)
    wait_us = _for(dice, 20, 200, 1500)
    world.say(MAIN, "does not tell its wiring for %d ms", wait_us // 1000)
    main.mute(True)
    world.timeline.after(wait_us, lambda: main.mute(False))


def hand_over(world: FrontsWorld, dice: Random) -> None:
    """A front loses main while what it has sent to the groups takes long: another goes on before that is there."""
    factor, sends_us = dice.choice((300, 1000, 3000)), _for(dice, 1, 2, 5)

    def begin(front: Front) -> None:
        world.say(front.name, "is %d times as slow to the groups, and loses main", factor)
        ways = [(front.name, group) for group in world.groups]
        world.network.slow |= dict.fromkeys(ways, factor)

        def lose_main() -> None:
            for way in ways:
                world.network.slow.pop(way, None)
            for link in _own_links(world, front, (MAIN,)):
                link.tear()

        world.timeline.after(sends_us, lose_main)

    _when_one_moves(world, begin)


def stale_front(world: FrontsWorld, dice: Random) -> None:
    """Main gives up a front, which does not hear of it and cannot reach the groups. When it can, another has gone on, and the
    leaders that knew of that have failed."""
    away_us, deaf_us = _for(dice, 300, 700, 1500), _for(dice, 2000, 3000, 5000)

    def begin(front: Front) -> None:
        world.say(front.name, "is given up by main and does not hear it for %d ms", deaf_us // 1000)
        for end in [end for link in _own_links(world, front, world.groups) for end in link.ends]:
            end.lose()
        _cut(world, [(front.name, group) for group in world.groups], away_us)
        for end in [end for link in _own_links(world, front, (MAIN,)) for end in link.ends]:
            if end.name == MAIN:
                end.lose()
            else:
                world.timeline.after(deaf_us, end.lose)
        world.timeline.after(away_us - 100_000, fail)

    def fail() -> None:
        for machine in (world.machines[group] for group in world.groups):
            if machine.running:
                world.say(machine.name, "fails for a moment")
                machine.die(power=machine.dice.random() < 0.5)
                faults.start_later(machine, 50_000)

    _when_one_moves(world, begin)


def _when_one_moves(world: FrontsWorld, then: Callable[[Front], None]) -> None:
    """Do it to a front that is about to send messages of main to their groups."""
    until_us = world.timeline.now_us + 400_000

    def look() -> None:
        moving = [front for front in world.fronts.values() if front.running and _holds(front)]
        if moving:
            then(moving[0])
        elif world.timeline.now_us < until_us:
            world.timeline.after(100, look)

    look()


def _holds(front: Front) -> bool:
    """Whether it has messages of main that are not safe elsewhere yet."""
    return any(source.held for (group, _), source in front.mover._sources.items() if group == MAIN)


def _own_links(world: FrontsWorld, front: Front, groups: Sequence[str]) -> list[Link]:
    """Over which the front takes messages of these groups, or brings them there."""
    return [
        link
        for link in world.network.links
        if link.kind == OWN and any(link.between(front.name, group) for group in groups)
    ]


def freeze_between(world: FrontsWorld, dice: Random) -> None:
    """A front stands still when a group has just deleted a queue, and main is about to."""
    wait_us = _for(dice, 1200, 1800, 2500)
    until_us = world.timeline.now_us + 400_000
    before: set[str] = set()

    def look() -> None:
        nonlocal before
        found = {
            name
            for group in world.groups
            if world.machines[group].running
            for name in queues(world.machines[group].node)
        }
        main = world.machines[MAIN]
        deleting = [front for front in world.fronts.values() if front.running and front.asked(QueueDelete)]
        if deleting and main.running and any(name in queues(main.node) for name in before - found):
            front = dice.choice(deleting)
            world.say(front.name, "stands still for %d ms, between two deletes", wait_us // 1000)
            front.freeze()
            world.timeline.after(wait_us, front.thaw)
        elif world.timeline.now_us < until_us:
            before = found
            world.timeline.after(40, look)

    look()


def tear_clients(world: FrontsWorld, dice: Random) -> None:
    front = _front(world, dice)
    world.say(front.name, "loses its links with clients")
    for link in list(world.network.links):
        if link.kind == "client" and any(end.name == front.name for end in link.ends):
            link.tear()


def _harming(fault: Callable[[Any, Random], None]) -> Fault:
    def harm(world: FrontsWorld, dice: Random) -> None:
        world.harmed_us = world.timeline.now_us
        fault(world, dice)

    return harm


OF_MACHINES = ("lose_power", "kill", "stop", "lose_all_power", "freeze", "stall", "slow_disk", "fill")
OF_FRONTS: dict[str, tuple[int, Fault]] = {
    "kill_front": (8, kill_front),
    "stop_front": (3, stop_front),
    "freeze_front": (4, freeze_front),
    "cut_front": (8, cut_front),
    "tear_front": (8, tear_front),
    "slow_front": (4, slow_front),
    "slow_feed": (4, slow_feed),
    "hand_over": (4, hand_over),
    "stale_front": (3, stale_front),
    "tear_clients": (3, tear_clients),
    "freeze_between": (4, freeze_between),
}
FAULTS: dict[str, tuple[int, Fault]] = {
    name: (often, _harming(fault))
    for name, (often, fault) in (
        *((name, faults.FAULTS[name]) for name in OF_MACHINES),
        *OF_FRONTS.items(),
    )
}
THEMES: tuple[tuple[tuple[str, ...], int], ...] = (
    ((), 40_000),
    ((), 40_000),
    (("kill_front", "tear_front", "cut_front", "freeze_front"), 60_000),
    (("lose_power", "kill", "lose_all_power", "stall", "slow_disk"), 40_000),
    (("slow_front", "slow_feed", "tear_front", "kill"), 40_000),
)


def heal(world: FrontsWorld) -> None:
    faults.heal(world)
    for machine in world.machines.values():
        assert isinstance(machine, Leader)
        machine.mute(False)
    for front in world.fronts.values():
        front.thaw()
        if not front.running:
            start_later(front, 1000)
