"""Members that are slow: what may be on its way to them, who waits for them, and what ends the wait."""

from __future__ import annotations

from itertools import permutations

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.world import Group, Process, StallingDisk

from tidemark.cluster.mode import State
from tidemark.sim.store import CONFIG
from tidemark.wire.amqp091.methods import BasicAck, BasicNack, ConnectionBlocked, ConnectionUnblocked

WINDOW = 64 << 10
BODY = 4000
FRAME = BODY + 200
"""What the frame of one such message has at most."""
MODES = ("standby", "chain")
CAUSES = ("memory", "disk", "one", "other")


def a_group(names: str = "ab", **settings: int | str) -> tuple[Group, Client]:
    group = Group(names, **settings)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    return group, client


def publish(client: Client, count: int, size: int = BODY) -> None:
    """One frame each."""
    for number in range(count):
        client.publish(1, "q", b"%d" % number + bytes(size), properties=PERSISTENT)


def on_its_way(group: Group, peer: Process) -> int:
    """Bytes that were sent to it and that it has not acknowledged."""
    peers = group.leader.member.status()["peers"]
    return {one["name"]: one["unacked_bytes"] for one in peers}.get(peer.name, 0)  # type: ignore[attr-defined]


def begin(group: Group, name: str) -> Process:
    """Start this member with an empty store. Nothing has happened yet."""
    group.lives += 1
    process = group.processes[name] = Process(group, name, StallingDisk())
    group.introduce()
    return process


def move(group: Group) -> None:
    """A little happens: everything that waits is carried once."""
    group._dial_all()
    while group.later:
        group.later.popleft()()
    for process in group:
        process.work()
    group._deliver()


# What is on its way ---------------------------------------------------------------------------------------------------


def test_no_more_is_on_its_way_to_a_slow_member_than_the_window_allows() -> None:
    """Q-28: in flight is the window and what the last frame has beyond it, however much is published."""
    group, client = a_group(window_bytes=WINDOW)
    slow = group.followers[0]
    with group.stall(slow.name):
        publish(client, 100)
        assert WINDOW <= on_its_way(group, slow) < WINDOW + FRAME
        assert slow.node.store.ends.journal < group.leader.node.store.ends.journal
        assert client.read_all() == []
    group.settle()
    assert on_its_way(group, slow) == 0
    assert client.read_all()[-1] == BasicAck(delivery_tag=100, multiple=True)
    assert slow.queue("q").ready == 100


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_member_that_is_filled_gets_no_more_at_a_time_than_it_has_acknowledged(names: str) -> None:
    """U-3, Q-28: catching up obeys the receiver's credit, and the receiver holds no more in memory than it may."""
    group, client = a_group(names, window_bytes=WINDOW)
    victim = group.followers[-1].name
    group.kill(victim)
    group.pass_ms(100, 5)
    publish(client, 200)
    filled = begin(group, victim)
    most = resident = 0
    for _ in range(500):
        move(group)
        most = max(most, on_its_way(group, filled))
        filled.member.maintain(group.now_ms, 1 << 20)
        resident = max(resident, filled.node.arena.resident_bytes)
        if filled.node.store.durable_ends == group.leader.node.store.ends:
            break
    assert filled.queue("q").ready == 200
    assert WINDOW / 2 < most < WINDOW + FRAME
    assert resident < CONFIG.cache_bytes + WINDOW + FRAME
    group.until_ready()
    compare(group)


@pytest.mark.parametrize("how", ["shutdown", "drop"])
def test_a_member_that_catches_up_can_be_stopped_though_the_leader_has_no_memory_left(how: str) -> None:
    """U-2: whatever holds it up, whoever asks is answered, and nothing more is sent to it or waits for it."""
    group, client = a_group("abc", window_bytes=WINDOW)
    victim = group.followers[-1].name
    group.kill(victim)
    group.pass_ms(100, 5)
    publish(client, 100)
    client.read_all()
    leader, filled = group.leader, begin(group, victim)
    while filled.state is not State.CATCHUP:
        move(group)
    with group.stall(victim):
        for _ in range(20):
            move(group)
        leader.node.watch(2, 1, 1 << 40)
        assert on_its_way(group, filled) >= WINDOW
        assert filled.state is State.CATCHUP
        if how == "shutdown":
            assert filled.member.ask("shutdown").done
            assert filled.last_words == ["an operator asked for it"]
            group.kill(victim)
            group.settle()
            assert on_its_way(group, filled) == 0
        else:
            assert leader.member.ask("drop", victim).done
    leader.node.watch(0, 1 << 40, 1 << 40)
    publish(client, 1)
    group.settle()
    assert isinstance(client.read_all()[-1], BasicAck)
    group.pass_ms(100, 20)
    assert group.view is not None and victim not in group.view.ready


def test_a_member_is_filled_while_publishers_are_blocked() -> None:
    """U-2: an alarm is about publishers only, so it cannot hold up a member that comes back."""
    group, client = a_group("abc")
    victim = group.followers[-1].name
    group.kill(victim)
    group.pass_ms(100, 5)
    publish(client, 50)
    group.leader.node.watch(2, 1, 1 << 40)
    filled = group.restart(victim, StallingDisk())
    group.settle()
    assert group.leader.node.alarms.memory
    assert filled.state is State.READY
    assert filled.queue("q").ready == 50


# Who waits ------------------------------------------------------------------------------------------------------------


class Trouble:
    """A leader with everything that blocks publishers, one by one: memory, disk, and each of its two backups."""

    def __init__(self, mode: str) -> None:
        self.group, self.client = a_group("abc", mode=mode, lag_bytes=1 << 20, backup_timeout_ms=60_000)
        self.leader = self.group.leader
        self.names = dict(zip(("one", "other"), (one.name for one in self.group.followers), strict=True))
        self.causes: set[str] = set()

    def begin(self) -> None:
        for follower in self.group.followers:
            follower.disk.stalled = True  # type: ignore[attr-defined]
        publish(self.client, 15, 100_000)
        self.causes = set(CAUSES)
        self.look()
        self.client.publish(1, "q", b"must wait", properties=PERSISTENT)

    def end(self, cause: str, *, death: bool) -> None:
        """One of them is over: the member has caught up, or it is dead."""
        self.causes.discard(cause)
        name = self.names.get(cause, "")
        if name and death:
            self.group.kill(name)
            for _ in range(60):
                self.group.ticks_ms += 10
                for process in self.group:
                    process.member.tick(self.group.now_ms, self.group.ticks_ms)
                self.group.settle()
        elif name:
            self.group[name].disk.stalled = False  # type: ignore[attr-defined]
        self.look()

    def look(self) -> None:
        """What a shell does now and then."""
        self.group.settle()
        memory, disk = "memory" in self.causes, "disk" in self.causes
        self.leader.node._store_full = lambda: disk  # type: ignore[method-assign]
        self.leader.node.watch(2 if memory else 0, 1, 1 << 40)
        self.leader.member.maintain(self.group.now_ms, 1 << 20)
        self.group.settle()

    def reason(self) -> str | None:
        low = [cause for cause in ("memory", "disk") if cause in self.causes]
        behind = [self.names[cause] for cause in ("one", "other") if cause in self.causes]
        words = [f"low on {' and '.join(low)}"] if low else []
        words += [f"{' and '.join(behind)} cannot keep up"] if behind else []
        return ", ".join(words) or None


@pytest.mark.parametrize("death", [False, True])
@pytest.mark.parametrize("order", [*permutations(CAUSES)], ids=" ".join)
def test_publishers_wait_while_one_cause_is_left_and_go_on_when_the_last_is_over(
    order: tuple[str, ...], death: bool
) -> None:
    """U-12: what blocks publishers is a set of causes, each of a member; whichever ends first, the others hold, and a member
    that dies takes its cause with it."""
    trouble = Trouble("standby")
    trouble.begin()
    for cause in order:
        assert trouble.leader.node.alarms.reason == trouble.reason()
        assert trouble.leader.node.broker.blocked == trouble.reason()
        trouble.end(cause, death=death)
    assert trouble.leader.node.alarms.reason is None

    said = [
        one for one in trouble.client.read_all() if isinstance(one, ConnectionBlocked | ConnectionUnblocked)
    ]
    assert isinstance(said[0], ConnectionBlocked)
    assert [type(one) for one in said].count(ConnectionUnblocked) == 1
    assert isinstance(said[-1], ConnectionUnblocked)


def test_a_leader_that_takes_over_does_not_inherit_what_blocked_the_one_before() -> None:
    """U-12: an alarm of a member that is dead blocks nobody."""
    trouble = Trouble("standby")
    trouble.begin()
    for follower in trouble.group.followers:
        follower.disk.stalled = False  # type: ignore[attr-defined]
    after = trouble.group.fail_over()
    assert after.node.alarms.reason is None
    client = after.open(confirms=True)
    client.publish(1, "q", b"on", properties=PERSISTENT)
    trouble.group.pass_ms(100, 700)
    assert isinstance(client.read_all()[-1], BasicAck)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_full_queue_refuses_costs_a_slow_member_nothing(mode: str) -> None:
    """U-13: with reject-publish the log of every member, and what waits for the slow one, is what was accepted."""
    group, client = a_group("abc", mode=mode)
    client.declare("full", durable=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    slow = group.followers[-1]
    ends = {process.name: process.node.store.ends.journal for process in group}
    with group.stall(slow.name):
        for number in range(500):
            client.publish(1, "full", b"%d" % number + bytes(1000), properties=PERSISTENT)
        group.pass_ms(10, 5)
        waiting = sum(len(data) for *_, data in group.waiting)
        assert waiting == 0
        assert max(on_its_way(group, one) for one in group.followers) < 10 * 1200
        assert slow.node.arena.resident_bytes < CONFIG.cache_bytes + 10 * 1200
    group.settle()
    answered = refused = 0
    for one in client.read_all():
        refused += isinstance(one, BasicNack) and one.delivery_tag - answered
        answered = one.delivery_tag
    assert (answered, refused) == (500, 490)
    for process in group:
        assert process.queue("full").ready == 10
        store = process.node.store
        assert store.journal.bytes_after(ends[process.name]) < 20 * 1200
