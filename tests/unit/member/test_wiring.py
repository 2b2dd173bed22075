"""The wiring of a cluster: every change is on all members, whoever comes, goes or leads while it is made."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group, Process

from tidemark.cluster.mode import State
from tidemark.model.wiring import PolicySpec
from tidemark.wire.amqp091.methods import (
    BasicAck,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)

MODES = ("standby", "chain")


def a_group(mode: str) -> Group:
    group = Group("abc", name="trial", mode=mode)
    group.until_ready()
    return group


def image(process: Process) -> list[bytes]:
    """All wiring that this member knows."""
    return sorted(process.node.broker.image())


# Each change ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_each_change_that_was_answered_is_on_every_member(mode: str) -> None:
    """H-19: create and delete of queue and exchange, bind and unbind; each is seen in the wiring of all others when it is answered."""
    group = a_group(mode)
    client = group.leader.open()
    bound: dict[str, Any] = {"queue": "q", "exchange": "e", "routing_key": "k"}
    joined: dict[str, Any] = {"destination": "amq.fanout", "source": "e", "routing_key": "#"}
    steps: list[tuple[Method, type[Method], int]] = [
        (QueueDeclare(queue="q", durable=True, arguments={"x-max-length": 5}), QueueDeclareOk, 1),
        (ExchangeDeclare(exchange="e", type="topic", durable=True), ExchangeDeclareOk, 1),
        (QueueBind(**bound), QueueBindOk, 1),
        (ExchangeBind(**joined), ExchangeBindOk, 1),
        (ExchangeUnbind(**joined), ExchangeUnbindOk, -1),
        (QueueUnbind(**bound), QueueUnbindOk, -1),
        (QueueDelete(queue="q"), QueueDeleteOk, -1),
        (ExchangeDelete(exchange="e"), ExchangeDeleteOk, -1),
    ]
    for asked, answer, more in steps:
        before = [len(image(process)) for process in group]
        assert isinstance(client.ask(1, asked), answer)
        assert [len(image(process)) for process in group] == [count + more for count in before], asked
        first, *others = [image(process) for process in group]
        assert others == [first, first]


def test_patterns_exceptions_and_single_queues_say_what_is_passed_on() -> None:
    """H-80: control over what is propagated: by a pattern of names, by exceptions from it, and by the queue itself."""
    group = a_group("standby")
    broker = group.leader.node.broker
    broker.put_policy(PolicySpec("/", "scratch", r"^tmp\.", "queues", 0, {"replicate": "none"}))
    broker.put_policy(
        PolicySpec("/", "except", r"^tmp\.shape\.", "queues", 1, {"replicate": "configuration"})
    )
    broker.put_policy(PolicySpec("/", "kept", r"\.kept$", "queues", 2, {"replicate": "messages"}))
    client = group.leader.open(confirms=True)
    names = ("orders", "tmp.a", "tmp.shape.a", "tmp.a.kept", "tmp.asked")
    for name in names:
        arguments = {"x-replicate": "messages"} if name == "tmp.asked" else {}
        client.declare(name, durable=True, arguments=arguments)
        client.publish(1, name, b"1", properties=PERSISTENT)
        assert [type(answer) for answer in client.read_all()] == [BasicAck]
    after = group.fail_over()
    found = {name: None if (queue := after.queue(name)) is None else queue.ready for name in names}
    assert found == {"orders": 1, "tmp.a": None, "tmp.shape.a": 0, "tmp.a.kept": 1, "tmp.asked": 1}


# Races ----------------------------------------------------------------------------------------------------------------


class Storm:
    """Random changes at whoever leads, few names, so that they are deleted, made anew and asked for in two ways."""

    def __init__(self, group: Group, dice: Random) -> None:
        self.group = group
        self.dice = dice
        self.at: Process | None = None
        self.client: Client
        self.answered = 0
        self.refused = 0

    def blow(self, count: int) -> None:
        for _ in range(count):
            if self.at is not self.group.leader:
                self.at = self.group.leader
                self.client = self.at.open()
            self.client.send(1, self.dice.choice(self.CHANGES)(self))
            self._hear()

    def _hear(self) -> None:
        for answer in self.client.read_all():
            if isinstance(answer, ChannelClose):
                self.refused += 1
                self.client.send(1, ChannelCloseOk(), ChannelOpen())
            else:
                self.answered += 1

    def declare_queue(self) -> Method:
        arguments = self.dice.choice([{}, {"x-max-length": 3}, {"x-dead-letter-exchange": self._exchange()}])
        return QueueDeclare(queue=self._queue(), durable=True, arguments=arguments)

    def delete_queue(self) -> Method:
        return QueueDelete(queue=self._queue())

    def declare_exchange(self) -> Method:
        arguments = self.dice.choice([{}, {"alternate-exchange": self._exchange()}])
        kind = self.dice.choice(["direct", "fanout"])
        return ExchangeDeclare(exchange=self._exchange(), type=kind, durable=True, arguments=arguments)

    def delete_exchange(self) -> Method:
        return ExchangeDelete(exchange=self._exchange())

    def bind(self) -> Method:
        return QueueBind(queue=self._queue(), exchange=self._exchange(), routing_key=self.dice.choice("kl"))

    def unbind(self) -> Method:
        return QueueUnbind(queue=self._queue(), exchange=self._exchange(), routing_key=self.dice.choice("kl"))

    def bind_exchange(self) -> Method:
        return ExchangeBind(destination=self._exchange(), source=self._exchange(), routing_key="k")

    def _queue(self) -> str:
        return f"q{self.dice.randrange(4)}"

    def _exchange(self) -> str:
        return f"e{self.dice.randrange(3)}"

    CHANGES: tuple[Callable[[Storm], Method], ...] = (
        declare_queue, declare_queue, delete_queue, declare_exchange, declare_exchange, delete_exchange, bind, bind, unbind,
        bind_exchange,
    )  # fmt: skip


def attach(group: Group, name: str, *meanwhile: Callable[[], None]) -> None:
    """A member that is away starts again; between its steps these things happen."""
    held = {(other.name, name) for other in group}
    group.muted |= held  # nothing comes to it before something has happened
    group.restart(name)
    for happens in meanwhile:
        happens()
        group.muted -= held
        group.settle()
        group.muted |= held
    group.muted -= held
    for _ in range(100):  # who comes and goes all the time waits longer each time
        if group[name].state is State.READY:
            break
        group.pass_ms(5000)
    group.until_ready()
    group.settle()


@pytest.mark.parametrize("mode", MODES)
def test_storms_of_deletes_and_creates_while_a_member_attaches_leave_all_alike(mode: str) -> None:
    """S-11, H-81: 100 rounds in each mode: a member is away, comes back, or begins anew, and sometimes the leader goes, while
    queues, exchanges (also alternates) and bindings are deleted, made again and made differently; wiring is equal afterwards."""
    dice = Random(mode)
    group = a_group(mode)
    storm = Storm(group, dice)
    for number in range(100):
        storm.blow(3)
        if number % 10 == 9:
            away = group.leader.name
            group.fail_over()
        else:
            away = dice.choice(group.followers).name
            group.kill(away, power=dice.random() < 0.5)
            group.pass_ms(300)
        storm.blow(dice.randrange(8))
        if number % 10 == 4:
            group.processes[away].disk = type(group[away].disk)()  # its store is lost
        attach(group, away, *[lambda: storm.blow(dice.randrange(1, 6))] * 3)
        first, *others = [image(process) for process in group]
        assert others == [first, first], f"round {number}"
        assert len({process.node.broker.next_number for process in group}) == 1
    assert storm.answered > 500, "else it was no storm"
    assert storm.refused > 50, "else no two asked for different things under one name"


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_create_while_a_member_attaches_is_never_missed(mode: str, lost: bool) -> None:
    """H-82: declared before, while and after it reads the wiring: each is there, and with it when it leads."""
    group = a_group(mode)
    client = group.leader.open()
    away = group.followers[0].name
    made: list[str] = []

    def declare() -> None:
        made.append(f"q{len(made)}")
        client.send(1, QueueDeclare(queue=made[-1], durable=True))

    for _ in range(20):
        group.kill(away)
        group.pass_ms(300, 2)
        declare()
        if lost:
            group.processes[away].disk = type(group[away].disk)()
        attach(group, away, *[declare] * 4)
        declare()
        group.settle()
        assert [name for name in made if group[away].queue(name) is None] == []
    answers = client.read_all()
    assert len(answers) == len(made) and all(isinstance(answer, QueueDeclareOk) for answer in answers)
    while group.leader.name != away:
        old = group.leader.name
        after = group.fail_over()
        group.restart(old)
        group.until_ready()
    assert all(after.queue(name) is not None for name in made)
