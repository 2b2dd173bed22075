"""A member far away, for the day on which all others are lost: it follows like any other, late, and nobody waits for it."""

from __future__ import annotations

import pytest
from contract.requirements_world import bodies
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group

from tidemark.cluster.mode import State
from tidemark.wire.amqp091.methods import BasicAck

FAR_MS = 200
"""How long everything takes on its way there, and back."""


class FarGroup(Group):
    """What goes to the far member and what comes from it is carried every `FAR_MS` only."""

    far = ""

    def pass_ms(self, elapsed_ms: int = 100, steps: int = 1) -> None:
        for _ in range(steps):
            before = self.ticks_ms
            super().pass_ms(elapsed_ms)
            if self.far and self.ticks_ms // FAR_MS != before // FAR_MS:
                apart, self.muted = self.muted, set()
                self._deliver()
                self.muted = apart
                self.settle()

    def move_away(self, name: str) -> None:
        self.far = name
        self.muted = {pair for other in "abc" for pair in ((other, name), (name, other))}


def publish(group: Group, client: Client, body: bytes) -> int:
    """Returns how many ms the confirm took."""
    client.publish(1, "q", body, properties=PERSISTENT)
    for waited in range(500):
        if any(isinstance(answer, BasicAck) for answer in client.read_all()):
            return 10 * waited
        group.pass_ms(10)
    raise AssertionError("no confirm")


def a_group(budget_ms: int) -> tuple[FarGroup, Client]:
    """One of the three is far away."""
    group = FarGroup("abc", ack_budget_ms=budget_ms)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    group.move_away(group.followers[-1].name)
    return group, client


@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
def test_a_far_member_delays_nobody_converges_and_leads_when_all_others_are_lost(again: bool) -> None:
    """H-84: disaster recovery is one more backup. cluster.ack_budget_ms says how slow one may be that confirms wait for; whoever is
    slower follows without being waited for. When the others and the view are gone for good, an operator has it lead."""
    group, client = a_group(budget_ms=100)
    far = group[group.far]
    sent = [b"%d" % number for number in range(300)]
    took, behind = [], []
    for number, body in enumerate(sent, start=1):
        took.append(publish(group, client, body))
        behind.append(number - far.queue("q").ready)
        group.pass_ms(20)
    assert max(took[:20]) >= FAR_MS
    assert max(took[-200:]) == 0, "publishers still wait for it"
    assert far.state is State.CATCHUP
    assert 5 < max(behind[-200:]) < 50, "it is late, and does not fall further behind"

    group.pass_ms(FAR_MS, 5)
    assert bodies(far.queue("q")) == sent
    answer = far.member.ask("promote")
    assert not answer.done and "may lack what was confirmed" in answer.text
    for process in list(group):
        if process is not far:
            group.kill(process.name)
            group.end_lease(process.name)
    group.view = None
    if again:
        group.kill(far.name)
        far = group.restart(far.name)
    far.member.view_changed(None)
    group.pass_ms(FAR_MS, 5)
    assert not far.member.serving, "nobody has asked it to"
    assert not group.promote(far.name).done, "others may have more"
    assert group.promote(far.name, accept_loss=True, named=True).done
    group.pass_ms(FAR_MS, 5)

    client = far.open(confirms=True)
    assert publish(group, client, b"after") == 0
    assert bodies(far.queue("q")) == [*sent, b"after"]


def test_without_a_budget_every_confirm_waits_for_the_far_member() -> None:
    """H-84, the other choice: nothing confirmed is ever missing there."""
    group, client = a_group(budget_ms=0)
    sent = [b"%d" % number for number in range(20)]
    for number, body in enumerate(sent):
        assert publish(group, client, body) >= FAR_MS
        assert bodies(group[group.far].queue("q")) == sent[: number + 1]
