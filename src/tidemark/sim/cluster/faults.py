"""What goes wrong in a run. Each fault ends by itself after a while; `heal` ends all at once.

Invariant: a fault is a function of the world as it is and of its own dice: leaving out another one changes nothing
in how it is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tidemark.cluster.mode import Answer
from tidemark.sim.cluster import operator
from tidemark.sim.cluster.disk import ROOM, TimedDisk
from tidemark.sim.cluster.etcd import ETCD
from tidemark.sim.cluster.machine import Machine
from tidemark.sim.cluster.network import PEER, VIEW
from tidemark.sim.cluster.world import ALONE, EXTERNAL, World
from tidemark.store.checkpoint import PREFIX
from tidemark.store.frames import FRAME, find
from tidemark.store.recovery import Replay
from tidemark.store.segment import CATALOG_PREFIX, HEAD_BYTES, JOURNAL_PREFIX

Fault = Callable[[World, Random], None]


def _some(world: World, dice: Random) -> Machine:
    """Any machine, more often the one that leads."""
    serving = world.serving
    if serving is not None and dice.random() < 0.6:
        return serving
    return dice.choice(list(world.machines.values()))


def _for(dice: Random, *ms: int) -> int:
    """How long it lasts."""
    return dice.choice(ms) * 1000 + dice.randrange(1000)


def start_later(machine: Machine, wait_us: int) -> None:
    """Start its process then, unless something else has happened to it by then."""
    life = machine.life

    def start() -> None:
        if machine.life == life and not machine.running:
            for name in machine.disk.list(PREFIX):
                if machine.dice.random() < 0.1:
                    # A checkpoint that rots costs time, and nothing else.
                    machine.disk.flip(name, machine.dice.randrange(machine.disk.size(name)))
            machine.start()

    machine.timeline.after(wait_us, start)


def lose_power(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    if machine.running:
        wait_us = _for(dice, 30, 300, 1500, 4000)
        world.say(machine.name, "loses its power for %d ms", wait_us // 1000)
        machine.die(power=True)
        start_later(machine, wait_us)


def kill(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    if machine.running:
        wait_us = _for(dice, 10, 100, 1000, 3000)
        world.say(machine.name, "is killed for %d ms", wait_us // 1000)
        machine.die(power=False)
        start_later(machine, wait_us)


def stop(world: World, dice: Random) -> None:
    """A clean stop and a start."""
    _stop(world, _some(world, dice), _for(dice, 10, 500, 2000))


def _stop(world: World, machine: Machine, wait_us: int) -> None:
    if not machine.running or machine.frozen:
        return
    world.say(machine.name, "is asked to stop")
    machine.stop()
    life = machine.life

    def again() -> None:
        if not machine.running and machine.powered:
            machine.start()
        elif machine.running and machine.stopping and machine.life == life:
            machine.timeline.after(20_000, again)

    machine.timeline.after(wait_us, again)


def restart_all_in_turn(world: World, dice: Random) -> None:
    gap_us = _for(dice, 300, 1500)
    machines = list(world.machines.values())
    dice.shuffle(machines)
    for number, machine in enumerate(machines):
        world.timeline.after(
            number * gap_us,
            lambda machine=machine: world.when_it_may(lambda: _stop(world, machine, 50_000)),  # type: ignore[misc]
        )


def shut_down(world: World, dice: Random) -> None:
    """The whole cluster is shut down in good order and comes back in any; a member that does not stop is killed."""
    serving = world.serving
    if serving is None:
        return
    world.say(serving.name, "is asked to shut the cluster down")
    world.restless_until_us = world.timeline.now_us + 9_000_000
    serving.post(lambda: serving.member.ask("shutdown"))
    for machine in world.machines.values():
        _restart(world, machine, _for(dice, 6000, 6500, 8000))


def _restart(world: World, machine: Machine, wait_us: int) -> None:
    life = machine.life

    def again() -> None:
        if machine.running and machine.life == life:
            machine.die(power=False)
        if not machine.running and machine.powered:
            machine.start()

    world.timeline.after(wait_us, lambda: world.when_it_may(again))


def lose_all_power(world: World, dice: Random) -> None:
    world.say("", "the power is gone everywhere")
    for machine in world.machines.values():
        if machine.running:
            machine.die(power=True)
            start_later(machine, _for(dice, 10, 400, 2000))


def kill_all(world: World, dice: Random) -> None:
    world.say("", "every process is killed")
    for machine in world.machines.values():
        if machine.running:
            machine.die(power=False)
            start_later(machine, _for(dice, 10, 400, 2000))


def freeze(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    if not machine.running or machine.frozen:
        return
    wait_us = _for(dice, 20, 200, 900, 2500, 5000)
    world.say(machine.name, "stands still for %d ms", wait_us // 1000)
    machine.freeze()
    world.timeline.after(wait_us, machine.thaw)


def _cut(world: World, ways: list[tuple[str, str]], wait_us: int) -> None:
    for way in ways:
        world.network.cut(*way)

    def heal() -> None:
        for way in ways:
            world.network.heal(*way)

    world.timeline.after(wait_us, heal)


def isolate(world: World, dice: Random) -> None:
    """A machine is cut off from the others, perhaps also from etcd, perhaps in one direction only."""
    machine = _some(world, dice)
    others = [name for name in world.machines if name != machine.name]
    if dice.random() < 0.5 and world.etcd is not None:
        others.append(ETCD)
    wait_us = _for(dice, 50, 400, 1500, 4000, 6000)
    way = dice.choice(("both", "both", "in", "out"))
    ways = [(machine.name, name) for name in others if way != "in"]
    ways += [(name, machine.name) for name in others if way != "out"]
    world.say(machine.name, "is cut off from %s (%s) for %d ms", others, way, wait_us // 1000)
    _cut(world, ways, wait_us)


def cut(world: World, dice: Random) -> None:
    """Two machines do not hear each other, or one does not hear the other."""
    a, b = dice.sample(world.places, 2)
    wait_us = _for(dice, 50, 400, 1500, 4000)
    ways = [(a, b)] if dice.random() < 0.4 else [(a, b), (b, a)]
    world.say("", "cut %s for %d ms", ways, wait_us // 1000)
    _cut(world, ways, wait_us)


def tear(world: World, dice: Random) -> None:
    """Links break; they can be made again at once."""
    machine = _some(world, dice)
    clients = dice.random() < 0.4
    world.say(machine.name, "loses its links%s", " with clients" if clients else "")
    for link in list(world.network.links):
        if any(end.name == machine.name for end in link.ends) and (link.kind in (PEER, VIEW)) != clients:
            link.tear()


def slow(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    wait_us = _for(dice, 100, 1000, 3000)
    factor = dice.choice((5, 30, 200))
    ways = [(machine.name, name) for name in world.places if name != machine.name]
    ways += [(b, a) for a, b in ways]
    world.say(machine.name, "has links %d times as slow for %d ms", factor, wait_us // 1000)
    for way in ways:
        world.network.slow[way] = factor

    def heal() -> None:
        for way in ways:
            world.network.slow.pop(way, None)

    world.timeline.after(wait_us, heal)


def repeat(world: World, dice: Random) -> None:
    world.network.repeats = 0.2
    world.say("", "things come twice")
    world.timeline.after(_for(dice, 500, 2000), lambda: setattr(world.network, "repeats", 0.0))


def jump(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    by_ms = dice.choice((-3_600_000, -5000, -200, 200, 5000, 3_600_000))
    world.say(machine.name, "has its clock set by %d ms", by_ms)
    machine.clock.jump(by_ms)
    machine.clock.drift(dice.randint(-20_000, 20_000))


def stall(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    wait_us = _for(dice, 50, 500, 2000, 4000)
    disk = machine.disk
    world.say(machine.name, "has a disk that does nothing for %d ms", wait_us // 1000)
    disk.stall(True)
    world.timeline.after(wait_us, lambda: disk.stall(False))


def slow_disk(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    disk = machine.disk
    disk.slowness = dice.choice((5, 40))
    world.say(machine.name, "has a disk %d times as slow", disk.slowness)
    world.timeline.after(_for(dice, 200, 2000), lambda: setattr(disk, "slowness", 1))


def fill(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    disk = machine.disk
    used = disk.capacity - disk.free_bytes()
    disk.capacity = used + dice.choice((0, 20_000, 70_000))
    machine.may_fail = True
    world.say(machine.name, "has a disk with %d bytes free", disk.free_bytes())
    world.timeline.after(_for(dice, 200, 2000), lambda: setattr(disk, "capacity", ROOM))


def fail(world: World, dice: Random) -> None:
    machine = _some(world, dice)
    machine.may_fail = True
    machine.disk.fail_next(dice.randrange(20))
    world.say(machine.name, "has a disk that fails soon")


def etcd_away(world: World, dice: Random) -> None:
    etcd = world.etcd
    assert etcd is not None
    wait_us = _for(dice, 100, 1000, 3000)
    world.say("", "etcd is away for %d ms", wait_us // 1000)
    etcd.away()
    world.timeline.after(wait_us, etcd.back)


def etcd_brought_back(world: World, dice: Random) -> None:
    """Etcd is copied, and brought back from the copy when the view has changed since. An operator promotes somebody then."""
    assert world.caretaker is not None
    world.caretaker.copy(_for(dice, 50, 500, 2000), _for(dice, 20, 200, 1500))


def rot(world: World, dice: Random) -> None:
    """A bit of a follower's log flips while its process is down. When that reads its log again it must find out and refuse to
    start; it then begins with an empty store and is filled again.

    It happens to one member at a time, while another one leads and serves: a cluster that loses the stores of all members
    that have a message has lost it. Only bits of which the log itself proves that they were durable are flipped: at its very
    end no single copy can tell a bit that rots from a write that a crash cut short.
    """
    leader = world.serving
    view = world.view
    if view is None or leader is None or view.leader != leader.name or world.rotten is not None:
        return
    others = [one for one in world.machines.values() if one is not leader and one.running and not one.frozen]
    if not others:
        return
    machine = dice.choice(others)
    machine.die(power=dice.random() < 0.5)
    found = _proven(machine.disk)
    if found:
        name, start, end = dice.choice(found)
        offset, bit = dice.randrange(start, end), dice.randrange(8)
        for checkpoint in machine.disk.list(PREFIX):
            machine.disk.remove(checkpoint)  # else what it knows is not read again
        machine.disk.flip(name, offset, bit)
        machine.rotten, world.rotten = True, machine.name
        world.say(machine.name, "is killed, and bit %d of byte %d of %s flips", bit, offset, name)
    start_later(machine, _for(dice, 10, 300, 1500))


def refill(world: World, dice: Random) -> None:
    """An operator has a member empty its store and copy everything again."""
    machine = dice.choice(list(world.machines.values()))
    if not machine.running or machine.frozen or machine.stopping or machine.telling is None:
        return

    def answered(_: Machine, answer: Answer) -> None:
        world.count("refills begun" if answer.done else "refills refused")

    operator.Commands(world).ask(machine, "refill", answered)


def _proven(disk: TimedDisk) -> list[tuple[str, int, int]]:
    """(file, first byte, end) of the frames that a later one knew to be durable, or that compaction wrote."""
    found: list[tuple[str, int, int]] = []
    for prefix in (JOURNAL_PREFIX, CATALOG_PREFIX):
        frames: list[tuple[int, str, int, int]] = []
        claimed = 0
        for segment in Replay(disk, prefix, clean_end=0, skip=True, chunk_bytes=1 << 20).segments:
            data = disk.read(segment.name, 0, segment.size)
            at = find(data, HEAD_BYTES, segment.place(0))
            while at >= 0:
                fields = FRAME.unpack_from(data, at)
                place = 0 if segment.compacted else segment.place(at)
                frames.append((place, segment.name, at, at + fields[2]))
                claimed = max(claimed, fields[8], 1)
                at = find(data, at + fields[2], segment.place(0))
        found += [frame[1:] for frame in frames if frame[0] < claimed]
    return found


FAULTS: dict[str, tuple[int, Fault]] = {
    "lose_power": (8, lose_power),
    "kill": (8, kill),
    "stop": (3, stop),
    "lose_all_power": (2, lose_all_power),
    "kill_all": (1, kill_all),
    "freeze": (8, freeze),
    "tear": (6, tear),
    "slow": (3, slow),
    "jump": (3, jump),
    "stall": (5, stall),
    "slow_disk": (3, slow_disk),
    "fill": (2, fill),
    "fail": (2, fail),
}
"""By name, with how often each is chosen."""

CLUSTER_FAULTS = FAULTS | {
    "isolate": (8, isolate),
    "cut": (8, cut),
    "repeat": (2, repeat),
    "etcd_away": (4, etcd_away),
    "restart_all_in_turn": (1, restart_all_in_turn),
    "shut_down": (1, shut_down),
}


ASKED_FOR: dict[str, tuple[int, Fault]] = {
    "rot": (4, rot),
    "etcd_brought_back": (8, etcd_brought_back),
    "refill": (12, refill),
}
"""Faults of a cluster that are in a run only when it is about them."""

OF_ETCD = {"etcd_away", "etcd_brought_back"}


THEMES: tuple[tuple[tuple[str, ...], int], ...] = (
    ((), 40_000),
    ((), 40_000),
    (("isolate", "cut", "freeze", "etcd_away"), 80_000),
    (("lose_power", "lose_all_power", "kill", "stall", "slow_disk"), 40_000),
    (("kill", "stop", "tear", "restart_all_in_turn", "shut_down", "kill_all"), 40_000),
)
"""What a run is about: the faults to choose from (none: any), and how much time there is from step to step."""

EXTERNAL_THEMES = (
    *THEMES,
    (("hand_over", "promote_left_out", "promote_unready", "isolate", "kill"), 80_000),
    (("fail_over", "promote_two", "demote", "isolate", "freeze"), 60_000),
    (("lose_all_power", "lose_power", "isolate", "fail_over", "promote_unready"), 60_000),
)
"""The same when an operator says who leads."""


OPERATOR_STEPS: dict[str, tuple[int, Fault]] = {
    "hand_over": (5, operator.hand_over),
    "demote": (3, operator.demote),
    "fail_over": (3, operator.fail_over),
    "promote_two": (3, operator.promote_two),
    "promote_left_out": (3, operator.promote_left_out),
    "promote_unready": (6, operator.promote_unready),
}
"""What an operator does without need, when it says who leads. Nothing must go wrong by it."""

EXTERNAL_FAULTS = {name: one for name, one in CLUSTER_FAULTS.items() if name not in OF_ETCD} | OPERATOR_STEPS


def faults(mode: str, about: Sequence[str] = (), provider: str = ETCD) -> dict[str, tuple[int, Fault]]:
    """What can go wrong in this mode, in a run that is about these."""
    if mode == ALONE:
        return FAULTS
    asked = {name: ASKED_FOR[name] for name in about if name in ASKED_FOR}
    if provider == EXTERNAL:
        return EXTERNAL_FAULTS | {name: one for name, one in asked.items() if name not in OF_ETCD}
    return CLUSTER_FAULTS | asked


def heal(world: World) -> None:
    """Everything works again, and everybody is started."""
    world.network.heal_all()
    if world.etcd is not None and world.caretaker is not None:
        world.etcd.back()
        world.caretaker.over = True
    for machine in world.machines.values():
        machine.disk.capacity = ROOM
        machine.disk.slowness = 1
        # A disk may have failed while the process stood still: it finds out when it runs again.
        machine.may_fail = machine.may_fail and machine.frozen and machine.disk._fail_in is None
        machine.disk._fail_in = None
        machine.disk.stall(False)
        machine.thaw()
        if not machine.running:
            start_later(machine, 1000)
