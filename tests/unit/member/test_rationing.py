"""What a member that catches up is given while clients write, and while they do not."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.world import Group, Process, StallingDisk

from tidemark.cluster.mode import State
from tidemark.member.member import Member
from tidemark.member.rationing import BUSY_PER_S, LOOK_MS, Ration
from tidemark.model.peers import Message
from tidemark.store.journal import Journal
from tidemark.wire.amqp091.methods import BasicAck

KiB = 1024
BODY = 4000
BYTES_PER_S = 400 * KiB
STEP_MS = 50


# The machine ----------------------------------------------------------------------------------------------------------


def test_while_nobody_writes_nothing_is_limited() -> None:
    ration = Ration(BYTES_PER_S)
    for now in range(0, 1000, 10):
        ration.tick(now, 7, 700)
        assert not ration.limited


def test_while_clients_write_it_is_what_they_write_and_so_much_a_second() -> None:
    ration = Ration(BYTES_PER_S)
    ration.tick(0, 0, 0)
    more = [ration.tick(now, now, 100 * now) for now in range(10, 1010, 10)]
    assert ration.limited
    assert sum(more) == BYTES_PER_S + 100 * 1000


@pytest.mark.parametrize(("records", "limited"), [(BUSY_PER_S // 10 - 1, False), (BUSY_PER_S // 10, True)])
def test_a_trickle_of_records_limits_nothing(records: int, limited: bool) -> None:
    ration = Ration(BYTES_PER_S)
    ration.tick(LOOK_MS, 100, 0)
    ration.tick(2 * LOOK_MS, 100 + records * LOOK_MS // 100, 0)
    assert ration.limited is limited


def test_the_limit_ends_when_clients_write_no_more() -> None:
    ration = Ration(BYTES_PER_S)
    ration.tick(LOOK_MS, 1000, 1000)
    assert ration.limited
    ration.tick(2 * LOOK_MS, 1000, 1000)
    assert not ration.limited


def test_whoever_stood_still_makes_up_for_none_of_that_at_once() -> None:
    ration = Ration(BYTES_PER_S)
    ration.tick(0, 0, 0)
    assert ration.tick(60_000, 0, 500) == BYTES_PER_S * LOOK_MS // 1000 + 500


def test_a_journal_that_was_read_anew_takes_nothing_away() -> None:
    """What was written counts from its start."""
    ration = Ration(BYTES_PER_S)
    ration.tick(10, 10, 1 << 30)
    assert ration.tick(20, 10, 0) == 0
    assert ration.tick(30, 10, 0) == BYTES_PER_S // 100


# Members --------------------------------------------------------------------------------------------------------------


def without_one(mode: str, messages: int) -> tuple[Group, Client, str]:
    """Three members, one of which is gone with its store, and so many messages."""
    group = Group("abc", mode=mode, catch_up_bytes_per_s=BYTES_PER_S)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    victim = group.followers[-1].name
    group.kill(victim)
    group.pass_ms(100, 10)
    publish(client, messages)
    group.pass_ms(100, 10)
    client.read_all()
    return group, client, victim


def publish(client: Client, count: int) -> int:
    """Returns about how many bytes of the journal it was."""
    for _ in range(count):
        client.publish(1, "q", bytes(BODY), properties=PERSISTENT)
    return count * (BODY + 200)


def confirmed(client: Client) -> int:
    """Up to which message; all before it are."""
    return max(answer.delivery_tag for answer in client.read_all() if isinstance(answer, BasicAck))


def held(process: Process) -> int:
    return process.node.store.journal.bytes_after(0)


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_beside_clients_that_write_it_gets_its_ration_and_gains_on_them(mode: str) -> None:
    group, client, victim = without_one(mode, 150)
    for _ in range(4):
        publish(client, 10)
        group.pass_ms(STEP_MS)
    back = group.restart(victim, StallingDisk())
    allowed = BYTES_PER_S * STEP_MS // 1000
    steps, before = 0, held(back)
    while back.state is not State.READY and steps < 100:
        steps += 1
        written = publish(client, 10)
        group.pass_ms(STEP_MS)
        assert confirmed(client) == 190 + 10 * steps
        if back.state is not State.READY:
            # A frame more than there is room for may be on its way, and small ones go joined.
            assert held(back) - before < allowed + written + 70 * KiB
        before = held(back)
    assert 10 < steps < 60, "it was held back, and came all the same"
    compare(group)


def test_while_nobody_writes_it_is_filled_in_no_time() -> None:
    group, _, victim = without_one("standby", 150)
    before = group.ticks_ms
    back = group.restart(victim, StallingDisk())
    group.settle()
    assert group.ticks_ms == before
    assert back.state is State.READY
    compare(group)


def test_those_that_confirms_wait_for_are_not_rationed() -> None:
    group = Group("abc", catch_up_bytes_per_s=64 * KiB)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    for number in range(1, 21):
        publish(client, 40)
        group.settle()
        assert confirmed(client) == 40 * number
        group.pass_ms(10)


def test_a_tick_is_enough_to_be_given_the_next_ration() -> None:
    """Nothing else may happen for a while."""
    group, client, victim = without_one("standby", 400)
    for _ in range(4):
        publish(client, 10)
        group.pass_ms(STEP_MS)
    back = group.restart(victim, StallingDisk())
    group.settle()
    before = held(back)
    group.leader.member.tick(group.now_ms + 50, group.ticks_ms + 50)
    group._deliver()
    assert held(back) > before


def test_nothing_is_looked_at_for_one_that_only_waits_for_its_ration() -> None:
    """Every acknowledgement of the others would have it looked at, and publishers wait for these."""
    group, client, victim = without_one("standby", 400)
    for _ in range(4):
        publish(client, 10)
        group.pass_ms(STEP_MS)
    group.restart(victim, StallingDisk())
    group.settle()
    shipping = group.leader.member._shipping
    [(_, sender)] = [item for item in shipping._senders.items() if item[0] == victim]
    assert not sender.has_sent(group.leader.node.store.ends)
    assert not shipping.may_go_on(group.leader.member.mode.awaited())


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_one_that_confirms_begin_to_wait_for_is_sent_what_it_lacks_at_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next ration may be 50 ms away."""
    group, client, victim = without_one(mode, 150)
    for _ in range(4):
        publish(client, 10)
        group.pass_ms(STEP_MS)
    back = group.restart(victim, StallingDisk())
    honest, lacking = Member.peer_said, []

    def peer_said(self: Member, peer: str, message: Message) -> None:
        before = victim in self.mode.awaited()
        honest(self, peer, message)
        if not before and self is group.leader.member and victim in self.mode.awaited():
            sender = self._shipping._senders[victim]
            lacking.append(not sender.has_sent(self.node.store.ends))

    monkeypatch.setattr(Member, "peer_said", peer_said)
    for _ in range(100):
        for _ in range(10):
            publish(client, 1)
        if back.state is State.READY:
            break
        group.pass_ms(10)
    assert lacking == [False]


def test_a_member_is_filled_while_it_catches_up_and_follows_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it keeps in memory of what it is given is another matter then: see `Journal.fill`."""
    group, _, victim = without_one("standby", 10)
    told: list[tuple[str, bool]] = []
    honest = Journal.fill
    monkeypatch.setattr(
        Journal,
        "fill",
        lambda self, now: told.append((group.processes[victim].state, now)) or honest(self, now),
    )
    group.restart(victim, StallingDisk())
    group.settle()
    assert told[-2:] == [(State.CATCHUP, True), (State.READY, False)]


def test_one_that_was_held_back_is_filled_when_clients_stop() -> None:
    group, client, victim = without_one("standby", 400)
    for _ in range(4):
        publish(client, 10)
        group.pass_ms(STEP_MS)
    back = group.restart(victim, StallingDisk())
    group.settle()
    assert back.state is State.CATCHUP
    group.pass_ms(LOOK_MS, 2)
    assert back.state is State.READY
