"""Who says who leads when there is no etcd: an operator that does what docs/cluster.md asks of one, and tries what it forbids.

It looks at the members a few times a second. If none of them leads it promotes one, and before that it *fences* (takes the power
of) every other that may lead: all that it has promoted since they were started. It does not promote a member that may not have
heard that a leader went on without it, unless one that knows can be reached; then nothing else goes wrong until the
promotion is over (`relies`), because whether it goes wrong is the operator's to see to.

What it tries besides are steps of a run's plan (`STEPS`): it hands over, demotes, fails over without need, promotes two at once, and
promotes members that must refuse.

Invariant: whoever is not fenced and may lead is in `_may_lead`, with the life of its process in which it may.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tidemark.cluster.mode import Answer, State
from tidemark.model.peers import Name, View
from tidemark.sim.store import BrokenPromise

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine
    from tidemark.sim.cluster.world import World

LOOK_US = 200_000
ANSWER_US = 5_000_000
"""A command that is not answered by then is given up; it may be done all the same."""
BEGIN_US = 2_500_000
"""So long after a promotion was answered the member must lead; else another is promoted."""
RELY_US = 1_500_000
"""So long after the answer to a promotion it is certain to be over, when nothing else goes wrong."""
LEFT_OUT_US = 4_500_000
"""So long after it was cut off a member is left out."""
LEADS = (State.RECOVERING, State.ACTIVE)


class Commands:
    """Asks members for something, and waits for what they answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._asked: dict[Name, tuple[int, int]] = {}
        """Member → the life of its process in which it was asked something, and when that is given up."""

    def ask(
        self,
        machine: Machine,
        command: str,
        then: Callable[[Machine, Answer], None],
        member: Name = "",
        *,
        accept_loss: bool = False,
    ) -> None:
        life = machine.life
        self._asked[machine.name] = life, self.world.timeline.now_us + ANSWER_US
        self.world.say(machine.name, "is asked: %s%s", command, " --accept-loss" if accept_loss else "")

        def answered(answer: Answer) -> None:
            self.world.say(machine.name, "answers: %s", answer)
            self._asked.pop(machine.name, None)
            then(machine, answer)

        def put() -> None:
            assert machine.telling is not None
            machine.telling.ask(command, answered, member, accept_loss=accept_loss)

        machine.post(put)

    def give_up_late(self) -> None:
        """Wait no longer for those that have died, or whose answer is overdue."""
        for name, (life, until_us) in list(self._asked.items()):
            if self.world.machines[name].life != life or self.world.timeline.now_us >= until_us:
                del self._asked[name]

    def _answers(self, machine: Machine) -> bool:
        return machine.running and not machine.frozen and not machine.stopping


class Operator(Commands):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.dice = Random(f"{world.seed} operator")
        self.founder = self.dice.choice(list(world.machines))
        self.relies_until_us = 0
        self._may_lead: dict[Name, int] = {}
        self._patient_until_us = 0
        world.timeline.after(LOOK_US, self._look_again)

    def relies(self) -> bool:
        """Whether it relies on what works now, and nothing may go wrong."""
        return self.world.timeline.now_us < self.relies_until_us

    # Looking after the cluster -------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self.world.timeline.after(LOOK_US, self._look_again)
        self._look()

    def _look(self) -> None:
        now_us = self.world.timeline.now_us
        self.give_up_late()
        if self._asked:
            return
        if self.leader is not None:
            self._patient_until_us = now_us + self.dice.choice((100_000, 600_000, 2_000_000))
        elif now_us >= self._patient_until_us:
            self.fail_over()

    @property
    def leader(self) -> Machine | None:
        """Who says that it leads, when it is asked."""
        for machine in self.world.machines.values():
            if self._answers(machine) and machine.member.mode.state in LEADS:
                return machine
        return None

    def fail_over(self) -> None:
        """Promote somebody; whoever may still lead is fenced first."""
        if self.world.led is None:
            self._found()
            return
        able = [machine for machine in self.world.machines.values() if self._may_promote(machine)]
        if not able:
            return
        ready = [machine for machine in able if machine.member.mode.state is State.READY]
        machine = self.dice.choice(ready if ready and self.dice.random() < 0.6 else able)
        self._fence_others((machine,))
        self.promote(machine)

    def _found(self) -> None:
        """One member, and always the same one, until it leads."""
        machine = self.world.machines[self.founder]
        if self._answers(machine):
            self.promote(machine)

    def _may_promote(self, machine: Machine) -> bool:
        """Whether it is told by somebody if it was left out."""
        if not self._answers(machine):
            return False
        if self.world.up_to_date(machine.name):
            return True
        return self.world.calm() and any(self.knows_better(other) for other in self.world.machines.values())

    def knows_better(self, machine: Machine) -> bool:
        """Whether it can tell another that was left out, and will not be fenced before that."""
        return self._answers(machine) and not self._suspect(machine) and self.world.up_to_date(machine.name)

    def _suspect(self, machine: Machine) -> bool:
        """Whether it may lead, as far as this operator knows."""
        return machine.running and self._may_lead.get(machine.name) == machine.life

    def _fence_others(self, spared: tuple[Machine, ...]) -> None:
        for other in self.world.machines.values():
            if other not in spared and self._suspect(other):
                self.fence(other)

    def fence(self, machine: Machine) -> None:
        from tidemark.sim.cluster.faults import start_later

        self.world.say(machine.name, "is fenced")
        self.world.count("fenced by the operator")
        machine.die(power=True)
        start_later(machine, self.dice.choice((200_000, 1_000_000, 3_000_000)))

    # Commands ------------------------------------------------------------------------------------------------------

    def promote(self, machine: Machine) -> None:
        if not self.world.up_to_date(machine.name):
            self.rely(ANSWER_US)
            self.world.count("promoted without knowing the view")
        self._may_lead[machine.name] = machine.life
        self.ask(machine, "promote", self._promoted)

    def _promoted(self, machine: Machine, answer: Answer) -> None:
        now_us = self.world.timeline.now_us
        self.relies_until_us = min(self.relies_until_us, now_us + RELY_US)
        self.world.count("promotions done" if answer.done else "promotions refused")
        if answer.done:
            self._patient_until_us = now_us + BEGIN_US
        elif self._may_lead.get(machine.name) == machine.life and machine.member.mode.state not in LEADS:
            del self._may_lead[machine.name]

    def rely(self, for_us: int) -> None:
        self.relies_until_us = max(self.relies_until_us, self.world.timeline.now_us + for_us)

    @property
    def busy(self) -> bool:
        return bool(self._asked) or self.world.timeline.now_us < self._patient_until_us

    def demoted(self, machine: Machine, answer: Answer) -> None:
        if answer.done:
            self._may_lead.pop(machine.name, None)
            self._patient_until_us = 0


# Steps of a plan ---------------------------------------------------------------------------------------------------


def _idle(world: World) -> tuple[Operator, Machine, View] | None:
    """The operator, if it has nothing to do, who leads, and by which view."""
    operator = world.operator
    assert operator is not None
    leader = operator.leader
    if operator._asked or leader is None or world.led is None or world.led.leader != leader.name:
        return None
    return operator, leader, world.led


def demote(world: World, dice: Random) -> None:  # noqa: ARG001
    """The leader leads no more; the operator then promotes somebody."""
    if (found := _idle(world)) is not None:
        operator, leader, _ = found
        operator.ask(leader, "demote", operator.demoted)


def hand_over(world: World, dice: Random) -> None:
    """Another is promoted while the leader leads, and can be reached."""
    found = _idle(world)
    if found is None or not world.calm():
        return
    operator, leader, view = found
    heirs = [world.machines[name] for name in view.ready if name != leader.name]
    heirs = [one for one in heirs if operator._answers(one)]
    if heirs:
        operator.rely(ANSWER_US)
        operator.promote(dice.choice(heirs))


def fail_over(world: World, dice: Random) -> None:  # noqa: ARG001
    """A leader that is well is fenced, and another promoted."""
    if (found := _idle(world)) is not None:
        operator, leader, _ = found
        operator.fence(leader)
        operator.fail_over()


def promote_two(world: World, dice: Random) -> None:
    """The leader is fenced, and two are promoted at the same moment, which can reach one another."""
    found = _idle(world)
    if found is None or not world.calm():
        return
    operator, leader, view = found
    heirs = [world.machines[name] for name in view.ready if name != leader.name and world.up_to_date(name)]
    heirs = [one for one in heirs if operator._answers(one)]
    if len(heirs) > 1:
        operator.fence(leader)
        operator.rely(ANSWER_US)
        for heir in dice.sample(heirs, 2):
            world.timeline.after(dice.choice((0, 300, 2000)), lambda heir=heir: _promote(operator, heir))  # type: ignore[misc]


def _promote(operator: Operator, machine: Machine) -> None:
    if operator._answers(machine):
        operator.promote(machine)


def promote_left_out(world: World, dice: Random) -> None:
    """The leader goes on without a member that it cannot tell, and is fenced. That member takes itself for ready; it is promoted
    as soon as it can reach one that knows better, and must refuse."""
    found = _idle(world)
    if found is None or not world.calm():
        return
    operator, leader, view = found
    heirs = [name for name in view.ready if name != leader.name]
    if len(heirs) < 2:
        return
    machine = world.machines[dice.choice(heirs)]
    ways = [(machine.name, name) for name in world.machines if name != machine.name]
    ways += [(b, a) for a, b in ways]
    world.say(machine.name, "is cut off until the leader has gone on without it")
    for way in ways:
        world.network.cut(*way)

    def heal() -> None:
        for way in ways:
            world.network.heal(*way)
        knows = [one for one in world.machines.values() if operator.knows_better(one)]
        left_out = operator._answers(machine) and not world.up_to_date(machine.name)
        if left_out and knows and world.calm() and _idle(world) is not None:
            operator._fence_others((machine,))
            operator.promote(machine)

    operator.rely(LEFT_OUT_US + LOOK_US)
    world.timeline.after(LEFT_OUT_US, heal)


def promote_unready(world: World, dice: Random) -> None:
    """A member that may lack something is promoted, in plain words or with --accept-loss though nothing needs to be lost: it
    must refuse."""
    found = _idle(world)
    if found is None or not world.calm():
        return
    operator, _, view = found
    unready = [
        one for name, one in world.machines.items() if name not in view.ready and operator._answers(one)
    ]
    if not unready:
        return
    machine = dice.choice(unready)
    accept_loss = dice.random() < 0.5
    operator.rely(ANSWER_US)

    def answered(machine: Machine, answer: Answer) -> None:
        now = world.led
        if (
            answer.done
            and machine.name not in view.ready
            and now is not None
            and machine.name not in now.ready
        ):
            raise BrokenPromise(f"{machine.name} lacks something and was promoted: {answer.text}")
        operator._promoted(machine, answer)

    operator._may_lead[machine.name] = machine.life
    operator.ask(machine, "promote", answered, machine.name if accept_loss else "", accept_loss=accept_loss)
