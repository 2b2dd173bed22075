"""What lies in stand-ins and outboxes is moved on, at least once, by fronts in memory to real brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.frontend.harness import PERSISTENT, Client, World
from unit.router.harness import Front

from tidemark.broker.feed import WiringFeed
from tidemark.broker.groups import OUTBOX
from tidemark.broker.streams.session import StreamSession
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import FRONT_USER, QueueSpec
from tidemark.router import mover as machine
from tidemark.router import naming
from tidemark.router.link import Link, method_of
from tidemark.router.mover import End, Mover, Source, Target
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.cutter import PASSED, Piece
from tidemark.wire.amqp091.frames import CONTENT_START, ENVELOPE_BYTES
from tidemark.wire.amqp091.properties import Properties, encode_properties

ELSEWHERE = {"x-group": "fast"}


class Ear:
    """What the leader of a group tells a front about waiting messages."""

    def __init__(self, moving: Moving, group: str) -> None:
        self._moving = moving
        self._group = group
        self.feed = WiringFeed(moving.front.worlds[group].broker)
        # The copy of the front listens to main by a feed of its own.
        self._before = moving.front.worlds[group].broker.feed
        self.feed.listen(self)
        if self._before is not None:
            moving.front.worlds[group].broker.feed = self._before

    def changed(self, change: bytes) -> None:
        pass

    def waits(self, vhost: str, queue: str) -> None:
        self._moving.told.append((self._group, vhost, queue))


class Moving:
    """A front with a mover, and the brokers behind it."""

    def __init__(self) -> None:
        self.front = Front("fast")
        self.mover = Mover(self.front, "front")
        self.told: list[tuple[str, str, str]] = []
        for world in self.front.worlds.values():
            world.broker.waits = None
        self.ears = {group: Ear(self, group) for group in (MAIN, "fast")}
        self.main, self.fast = self.front.worlds[MAIN], self.front.worlds["fast"]

    def declare(self, *queues: str, **arguments: Any) -> None:
        """Queues that live in fast, as a front declares them."""
        client = self.front.open()
        for queue in queues:
            client.declare(queue, durable=True, arguments=ELSEWHERE | arguments)

    def turn(self) -> None:
        for _ in range(100):
            told, self.told = self.told, []
            for one in told:
                self.mover.told(*one)
            self.front.turn()
            if not self.told:
                return
        raise AssertionError("there is no end to what waits")

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.front.now_ms += 1000
            for world in self.front.worlds.values():
                world.pass_ms(1000)
            for ear in self.ears.values():
                ear.feed.remind(ear)
            self.mover.tick(self.front.now_ms)
            self.turn()

    @property
    def links(self) -> list[Link]:
        wires = self.front.wires
        return [link for link in wires if link.owner.peer.own and not wires[link].cut]

    def noted(self, event: str) -> list[dict[str, object]]:
        return [facts for _, name, facts in self.front.notes if name == event]


@pytest.fixture
def moving() -> Moving:
    return Moving()


def bodies(world: World, queue: str) -> list[bytes]:
    client, found = world.open(), []
    while isinstance(content := client.ask(1, methods.BasicGet(queue=queue, no_ack=True)), object):
        if isinstance(content, methods.BasicGetEmpty):
            return found
        found.append(content.body)
    return found


def at_main(moving: Moving, queue: str, *contents: bytes, **options: Any) -> Client:
    """A client at main's own port publishes to a stand-in."""
    client = moving.main.open()
    client.publish(1, queue, *contents, **({"properties": PERSISTENT} | options))
    return client


def test_what_is_published_at_mains_own_port_reaches_the_queue_in_its_group(moving: Moving) -> None:
    moving.declare("q")
    client = moving.main.open()
    client.ask(1, methods.ExchangeDeclare(exchange="e", type="topic"))
    client.ask(1, methods.QueueBind(queue="q", exchange="e", routing_key="#"))
    headers = {"h": 1, "x-tidemark-to": ["elsewhere"]}
    properties = encode_properties(Properties(headers=headers, delivery_mode=2, user_id="guest"))
    client.publish(1, "a.b", b"one", exchange="e", properties=properties)
    moving.turn()

    assert (moving.main.ready("q"), moving.fast.ready("q")) == (0, 1)
    content = moving.fast.open().ask(1, methods.BasicGet(queue="q", no_ack=True))
    assert (content.method.exchange, content.method.routing_key, content.body) == ("e", "a.b", b"one")
    assert content.properties == Properties(headers={"h": 1}, delivery_mode=2, user_id="guest")
    assert moving.main.broker.vhosts["/"].queues["q"].acquired == 0, "it is acknowledged"


def test_order_and_large_bodies_survive(moving: Moving) -> None:
    moving.declare("q")
    sent = [b"%d" % number + bytes(number * 3000) for number in range(100)]
    at_main(moving, "q", *sent)
    moving.turn()
    assert bodies(moving.fast, "q") == sent
    assert moving.mover.statistics() == {"moved": 100, "refused": 0, "unroutable": 0, "made": 0, "held": 0}


def test_empty_queues_cost_nothing_and_one_that_was_emptied_is_left(moving: Moving) -> None:
    moving.declare(*(f"q{number}" for number in range(100)))
    moving.turn()
    assert not moving.links

    at_main(moving, "q7", b"x")
    moving.turn()
    assert len(moving.links) == 2
    moving.pass_s(30)
    assert not moving.links and not moving.mover._sources and not moving.mover._targets
    assert not moving.main.broker.vhosts["/"].queues["q7"].consumers
    assert moving.noted("messages moved") == [{"group": MAIN, "vhost": "/", "queue": "q7", "count": 1}]

    at_main(moving, "q7", b"y")
    moving.turn()
    assert bodies(moving.fast, "q7") == [b"x", b"y"]


def test_more_queues_than_are_taken_at_a_time_are_all_taken_in_the_end(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "TAKEN_MAX", 2)
    names = [f"q{number}" for number in range(7)]
    moving.declare(*names)
    for name in names:
        at_main(moving, name, b"x")
    moving.pass_s(20)
    assert [bodies(moving.fast, name) for name in names] == [[b"x"]] * 7


def test_a_queue_that_another_is_at_does_not_keep_others_waiting(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "TAKEN_MAX", 1)
    moving.declare("busy", "q")
    client = moving.main.open()
    client.ask(1, methods.BasicQos(prefetch_count=1))
    client.ask(1, methods.BasicConsume(queue="busy"))
    at_main(moving, "busy", b"1", b"2")
    for queue in ("busy", "q"):
        moving.mover.told(MAIN, "/", queue)
    at_main(moving, "q", b"x")
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"x"]

    client.front_end.receive_eof()
    moving.pass_s(5)
    assert sorted(bodies(moving.fast, "busy")) == [b"1", b"2"]


# Dead letters ---------------------------------------------------------------------------------------


def dying(moving: Moving, exchange: str = "dead", **arguments: Any) -> Client:
    """A queue of fast whose messages die at once; returns a client of the front."""
    moving.declare("dying", **{"x-dead-letter-exchange": exchange, "x-message-ttl": 0} | arguments)
    client = moving.front.open()
    if exchange:
        client.ask(1, methods.ExchangeDeclare(exchange=exchange, type="topic"))
    return client


def test_a_dead_letter_reaches_the_queues_of_all_groups_as_main_routes_it(moving: Moving) -> None:
    client = dying(moving)
    moving.declare("there")
    client.declare("here", durable=True)
    for queue in ("here", "there"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="dead", routing_key="#"))
    client.publish(1, "dying", b"last words", properties=PERSISTENT)
    moving.turn()

    assert moving.fast.ready(OUTBOX) == 0
    for world, queue in ((moving.main, "here"), (moving.fast, "there")):
        content = world.open().ask(1, methods.BasicGet(queue=queue, no_ack=True))
        assert (content.method.exchange, content.method.routing_key) == ("dead", "dying")
        [death] = content.properties.headers["x-death"]
        assert (death["queue"], death["reason"], content.body) == ("dying", "expired", b"last words")
        assert not [name for name in content.properties.headers if name.startswith("x-tidemark")]
    assert moving.mover.moved == 1


def test_a_dead_letter_follows_an_alternate_exchange_and_one_that_nobody_wants_is_gone(
    moving: Moving,
) -> None:
    client = dying(moving, "", **{"x-dead-letter-routing-key": "nobody"})
    client.publish(1, "dying", b"lost", properties=PERSISTENT)
    moving.turn()
    assert (moving.fast.ready(OUTBOX), moving.mover.unroutable, moving.mover.moved) == (0, 1, 0)

    client.declare(
        "other", durable=True, arguments=ELSEWHERE | {"x-dead-letter-exchange": "d", "x-message-ttl": 0}
    )
    client.ask(1, methods.ExchangeDeclare(exchange="rest", type="fanout"))
    client.ask(
        1, methods.ExchangeDeclare(exchange="d", type="direct", arguments={"alternate-exchange": "rest"})
    )
    client.declare("here", durable=True)
    client.ask(1, methods.QueueBind(queue="here", exchange="rest"))
    client.publish(1, "other", b"found", properties=PERSISTENT)
    moving.turn()
    assert bodies(moving.main, "here") == [b"found"]


def test_a_letter_that_would_only_go_round_ends(moving: Moving) -> None:
    client = dying(moving)
    client.ask(1, methods.QueueBind(queue="dying", exchange="dead", routing_key="#"))
    client.publish(1, "dying", b"x", properties=PERSISTENT)
    moving.turn()
    assert (moving.mover.unroutable, moving.fast.ready(OUTBOX), moving.fast.ready("dying")) == (1, 0, 0)


def test_nobody_is_asked_whether_a_letter_may(moving: Moving) -> None:
    """Who published it may not publish to the dead-letter exchange: as in a broker, that does not matter."""
    client = dying(moving)
    client.declare("here", durable=True)
    client.ask(1, methods.QueueBind(queue="here", exchange="dead", routing_key="#"))
    for spec in [*moving.main.broker.access.permissions.values()]:
        moving.main.broker.put(type(spec)(spec.user, spec.vhost, spec.configure, "^amq.default$", spec.read))
    client.publish(1, "dying", b"x", properties=PERSISTENT)
    moving.turn()
    assert moving.main.ready("here") == 1


def test_a_client_cannot_have_a_message_routed_by_putting_it_into_the_outbox(moving: Moving) -> None:
    client = dying(moving)
    client.declare("here", durable=True)
    client.ask(1, methods.QueueBind(queue="here", exchange="dead", routing_key="#"))
    client.publish(1, "dying", b"a letter", properties=PERSISTENT)
    moving.turn()
    headers = {"x-tidemark-exchange": "dead", "x-tidemark-key": "x", "x-tidemark-to": ["here"]}
    forged = encode_properties(Properties(headers=headers, delivery_mode=2))
    moving.fast.open().publish(1, OUTBOX, b"forged", properties=forged)
    moving.turn()
    assert bodies(moving.main, "here") == [b"a letter"]
    assert moving.fast.ready(OUTBOX) == 0


# What goes wrong -------------------------------------------------------------------------------------


def test_a_queue_that_its_group_does_not_have_is_made_again(moving: Moving) -> None:
    moving.declare("q", **{"x-max-priority": 5})
    moving.fast.broker.delete_queue(moving.fast.broker.vhosts["/"].queues["q"])
    at_main(moving, "q", *(b"%d" % number for number in range(50)))
    moving.turn()
    assert "q" not in moving.fast.broker.vhosts["/"].queues, "it may be about to be deleted in main"

    moving.pass_s(3)
    assert bodies(moving.fast, "q") == [b"%d" % number for number in range(50)]
    assert moving.fast.broker.vhosts["/"].queues["q"].spec.arguments == ELSEWHERE | {"x-max-priority": 5}
    assert moving.noted("queue made again") == [{"group": "fast", "vhost": "/", "queue": "q"}]


def test_a_queue_that_main_has_deleted_meanwhile_is_not_made_again(moving: Moving) -> None:
    moving.declare("q")
    moving.fast.broker.delete_queue(moving.fast.broker.vhosts["/"].queues["q"])
    at_main(moving, "q", b"x")
    moving.turn()
    moving.main.broker.delete_queue(moving.main.broker.vhosts["/"].queues["q"])
    moving.pass_s(5)
    assert "q" not in moving.fast.broker.vhosts["/"].queues
    assert moving.mover.statistics()["held"] == 0


def test_a_queue_that_cannot_be_made_keeps_its_messages_in_main(moving: Moving) -> None:
    moving.declare("q")
    fast = moving.fast.broker
    fast.delete_queue(fast.vhosts["/"].queues["q"])
    fast.group = "another"
    at_main(moving, "q", b"x")
    moving.pass_s(4)
    assert moving.main.ready("q") == 1, "it is back"
    assert "this is the group 'another'" in str(moving.noted("messages not moved"))

    fast.group = "fast"
    moving.pass_s(10)
    assert bodies(moving.fast, "q") == [b"x"]


def test_what_a_queue_refuses_stays_and_is_moved_when_there_is_room(moving: Moving) -> None:
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    moving.declare("q")
    moving.fast.broker.delete_queue(moving.fast.broker.vhosts["/"].queues["q"])
    moving.fast.broker.create_queue(QueueSpec("/", "q", durable=True, arguments=ELSEWHERE | limits))
    at_main(moving, "q", *(b"%d" % number for number in range(5)))
    moving.pass_s(5)
    queue = moving.main.broker.vhosts["/"].queues["q"]
    assert moving.fast.ready("q") == 2 and queue.ready + queue.acquired == 3
    assert moving.mover.refused > 0
    [problem] = moving.noted("messages not moved")
    assert problem["problem"] == "queue 'q' in group 'fast' refuses them"

    found = []
    for _ in range(3):
        found += bodies(moving.fast, "q")
        moving.pass_s(70)
    assert sorted(found) == [b"%d" % number for number in range(5)]


def test_a_letter_that_one_of_its_queues_refuses_is_not_given_to_the_others_again(moving: Moving) -> None:
    client = dying(moving)
    client.declare("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    client.declare("here", durable=True)
    for queue in ("full", "here"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="dead", routing_key="#"))
    client.publish(1, "dying", b"x", properties=PERSISTENT)
    moving.pass_s(60)
    assert moving.main.ready("here") == 1
    assert moving.fast.broker.vhosts["/"].queues[OUTBOX].acquired == 1


@pytest.mark.parametrize("group", [MAIN, "fast"])
def test_when_a_leader_dies_nothing_is_lost(moving: Moving, group: str) -> None:
    moving.declare("q")
    moving.fast.syncing = False
    at_main(moving, "q", *(b"%d" % number for number in range(100)))
    moving.turn()
    queue = moving.main.broker.vhosts["/"].queues["q"]
    assert moving.fast.ready("q") == 32 and queue.acquired == 32, (
        "none is acknowledged before it is confirmed"
    )

    moving.front.lose(group)
    moving.fast.syncing = True
    moving.fast.sync()
    moving.pass_s(5)
    assert set(bodies(moving.fast, "q")) == {b"%d" % number for number in range(100)}
    assert queue.ready + queue.acquired == 0


def test_a_group_that_cannot_be_reached_is_tried_again(moving: Moving) -> None:
    moving.declare("q")
    moving.front.lose("fast")
    moving.front.away["fast"] = "no answer"
    at_main(moving, "q", b"x")
    moving.pass_s(5)
    assert moving.main.ready("q") == 1, "it is back, for whoever can"
    assert "no answer" in str(moving.noted("messages not moved"))

    moving.front.away.clear()
    moving.pass_s(70)
    assert bodies(moving.fast, "q") == [b"x"]


def test_two_fronts_share_the_work_and_one_takes_over_from_the_other(moving: Moving) -> None:
    moving.declare("q")
    second = Mover(moving.front, "second")
    moving.fast.syncing = False
    at_main(moving, "q", *(b"%d" % number for number in range(100)))
    for mover in (moving.mover, second):
        mover.told(MAIN, "/", "q")
    moving.turn()
    assert (moving.mover.statistics()["held"], second.statistics()["held"]) == (32, 0)

    moving.mover.stop()
    moving.fast.syncing = True
    moving.fast.sync()
    for _ in range(5):
        second.tick(moving.front.now_ms)
        moving.turn()
    assert second.moved == 100
    assert set(bodies(moving.fast, "q")) == {b"%d" % number for number in range(100)}


def link_of(moving: Moving, mover: Mover, kind: type[End], group: str) -> Link:
    [found] = [
        link
        for link in moving.links
        if link.group == group and isinstance(link.owner, kind) and link.owner.peer is mover.peer
    ]
    return found


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_what_a_front_has_on_its_way_when_another_goes_on_does_not_come_behind_it(
    moving: Moving, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without turns, with a leader that gives none, an order may be broken, and nothing is lost."""
    if not known:
        monkeypatch.setattr(machine, "turn_in", lambda _: None)
    moving.declare("q")
    second = Mover(moving.front, "second")
    at_main(moving, "q", b"0")
    moving.turn()
    link = link_of(moving, moving.mover, Target, "fast")
    moving.front.wires[link].hold()
    at_main(moving, "q", b"1", b"2")
    second.told(MAIN, "/", "q")
    moving.turn()
    assert moving.mover.statistics()["held"] == 2, "they are on their way"

    source = link_of(moving, moving.mover, Source, MAIN)
    moving.front.wires[source].hang_up()
    source.receive_eof()
    moving.turn()
    at_main(moving, "q", b"3")
    moving.turn()
    moving.front.wires[link].let_go()
    moving.turn()

    assert second.moved == 3
    late = [] if known else [b"1", b"2"]
    assert bodies(moving.fast, "q") == [b"0", b"1", b"2", b"3", *late]


def test_what_was_sent_on_a_link_that_is_lost_does_not_come_behind_what_is_sent_again(moving: Moving) -> None:
    """The turn goes on, as the letters are still on their way to another group."""
    client = dying(moving)
    moving.declare("there")
    client.declare("here", durable=True)
    for queue in ("here", "there"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="dead", routing_key="#"))
    client.publish(1, "dying", b"0", properties=PERSISTENT)
    moving.turn()
    lost, other = (link_of(moving, moving.mover, Target, group) for group in (MAIN, "fast"))
    for link in (lost, other):
        moving.front.wires[link].hold()
    client.publish(1, "dying", b"1", properties=PERSISTENT)
    moving.turn()
    lost.lose("it has been silent for too long")  # the leader has not heard of it

    moving.pass_s(2)
    client.publish(1, "dying", b"2", properties=PERSISTENT)
    moving.pass_s(1)
    moving.front.wires[lost].let_go()
    moving.turn()
    assert bodies(moving.main, "here") == [b"0", b"1", b"2"]


def test_a_leader_that_does_not_know_of_turns_is_told_none(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "capable_of", lambda *_: False)
    moving.declare("q")
    at_main(moving, "q", b"1")
    moving.turn()
    content = moving.fast.open().ask(1, methods.BasicGet(queue="q", no_ack=True))
    assert content.body == b"1" and content.properties.headers is None
    assert len(moving.fast.broker.streams.fences) == 0


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_turn_that_a_client_claims_means_nothing(
    moving: Moving, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not known:
        monkeypatch.setattr(machine, "turn_in", lambda _: None)
    moving.declare("q")
    headers = {"x-tidemark-turn": ["main", "q", "", 1 << 40, 1, 1], "h": 1}
    properties = encode_properties(Properties(headers=headers, delivery_mode=2))
    at_main(moving, "q", b"1", properties=properties)
    moving.turn()
    moving.front.open().publish(1, "q", b"2", properties=properties)
    at_main(moving, "q", b"3")
    moving.turn()
    assert bodies(moving.fast, "q") == [b"1", b"2", b"3"]
    assert len(moving.fast.broker.streams.fences) == known


@pytest.mark.parametrize("life", [1 << 40, "abc"])
def test_a_life_that_a_client_claims_means_nothing(moving: Moving, life: Any) -> None:
    client = moving.front.open()
    client.declare("q", durable=True, arguments=ELSEWHERE)
    client.ask(1, methods.ConfirmSelect())
    properties = encode_properties(Properties(headers={"x-tidemark-life": life, "h": 1}, delivery_mode=2))
    at_main(moving, "q", b"1", properties=properties)
    moving.turn()
    client.publish(1, "q", b"2", properties=properties)
    moving.turn()
    at_main(moving, "q", b"3")
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"1", b"2", b"3"]


def test_a_life_that_an_older_front_lets_through_means_nothing(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tuple(name for name in naming.OURS if name != "x-tidemark-life")
    monkeypatch.setattr(naming, "OURS", ours)
    moving.declare("q")
    properties = encode_properties(Properties(headers={"x-tidemark-life": 1 << 40}, delivery_mode=2))
    moving.front.open().publish(1, "q", b"1", properties=properties)
    moving.turn()
    assert bodies(moving.fast, "q") == [b"1"]


def test_a_main_that_was_restored_from_an_older_copy_is_not_kept_out(moving: Moving) -> None:
    """Its epochs are behind those that queues have seen: an operator let it go on, so they are not compared."""
    moving.declare("q")
    moving.main.broker.turns.begin(f"{'c' * 32}.0", 9)
    at_main(moving, "q", b"0")
    moving.turn()
    moving.pass_s(30)
    moving.main.broker.turns.begin(f"{'c' * 32}.4", 4)
    at_main(moving, "q", b"1")
    moving.pass_s(30)
    assert bodies(moving.fast, "q") == [b"0", b"1"]


@pytest.mark.parametrize(
    "error",
    [KeyError("a mistake of ours"), PreconditionFailed(reason="too many queues")],
    ids=["ours", "known"],
)
def test_a_message_that_cannot_be_routed_stays_where_it_is_and_others_pass(
    moving: Moving, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    client = dying(moving)
    client.declare("here", durable=True)
    client.ask(1, methods.QueueBind(queue="here", exchange="dead", routing_key="#"))
    routes = moving.front.copy.letter_routes

    def fails(vhost: str, exchange: str, key: str, properties: bytes) -> Any:
        if b"poison" in properties:
            raise error
        return routes(vhost, exchange, key, properties)

    monkeypatch.setattr(moving.front.copy, "letter_routes", fails)
    poison = encode_properties(Properties(headers={"h": "poison"}, delivery_mode=2))
    client.publish(1, "dying", b"poison", properties=poison)
    client.publish(1, "dying", b"x", properties=PERSISTENT)
    moving.pass_s(5)
    assert bodies(moving.main, "here") == [b"x"]
    assert moving.noted("messages not moved")
    assert bool(moving.noted("unexpected exception")) == isinstance(error, KeyError)
    monkeypatch.undo()
    moving.pass_s(60)
    assert bodies(moving.main, "here") == [b"poison"]
    assert moving.fast.ready(OUTBOX) == 0


def test_a_message_that_does_not_fit_holds_up_its_queue_and_no_other(moving: Moving) -> None:
    moving.declare("q", "other")
    config = moving.fast.config
    moving.fast.config = replace(config, frame_bytes_max=4096)
    large = encode_properties(Properties(headers={"h": "x" * 50_000}, delivery_mode=2))
    at_main(moving, "q", b"large", properties=large)
    at_main(moving, "q", b"behind it")
    at_main(moving, "other", b"x")
    moving.pass_s(3)
    assert "larger than a frame" in str(moving.noted("messages not moved"))
    assert (moving.fast.ready("q"), moving.fast.ready("other")) == (0, 1)
    queue = moving.main.broker.vhosts["/"].queues["q"]
    assert queue.ready + queue.acquired == 2

    moving.fast.config = config
    moving.front.lose("fast")
    moving.pass_s(70)
    assert bodies(moving.fast, "q") == [b"large", b"behind it"]


def test_what_a_client_may_send_can_be_moved_with_all_that_is_added_to_it(moving: Moving) -> None:
    """As many as are on their way at a time, in the largest frames, and one that has died before and says so in its headers."""
    moving.declare("q")
    client = moving.front.open()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 1}
    client.declare("dying", durable=True, arguments=letters)
    large = encode_properties(Properties(headers={"h": "x" * 131_038}, delivery_mode=2))
    assert len(large) + ENVELOPE_BYTES + CONTENT_START.size == moving.main.config.frame_bytes_max
    at_main(moving, "dying", b"letter", properties=large)
    moving.pass_s(2)
    at_main(moving, "q", *(b"%d" % number for number in range(machine.PREFETCH)), properties=large)
    at_main(moving, "q", b"small")
    moving.pass_s(2)
    assert (moving.main.ready("q"), moving.fast.ready("q")) == (0, machine.PREFETCH + 2)
    assert not moving.noted("messages not moved")


def test_a_message_that_closes_the_channel_holds_up_its_queue_and_no_other(moving: Moving) -> None:
    moving.declare("q", "other")
    config = moving.fast.config
    moving.fast.config = replace(config, message_bytes_max=1000)
    few = [b"%d" % number for number in range(5)]
    at_main(moving, "q", b"1", b"x" * 2000, b"2", b"y" * 2000, b"3")
    at_main(moving, "other", *few)
    moving.pass_s(3)
    # Those that the group had taken and not confirmed when the channel was closed may come twice.
    assert set(bodies(moving.fast, "q")) == {b"1"}
    assert last_times(bodies(moving.fast, "other")) == few
    assert "2000" in str(moving.noted("messages not moved"))
    queue = moving.main.broker.vhosts["/"].queues["q"]
    assert queue.ready + queue.acquired == 4
    at_main(moving, "other", b"later")
    at_main(moving, "q", b"4")
    moving.pass_s(60)
    assert bodies(moving.fast, "q") == [] and set(bodies(moving.fast, "other")) == {b"later"}

    moving.fast.config = config
    moving.front.lose("fast")
    moving.pass_s(70)
    assert last_times(bodies(moving.fast, "q")) == [b"x" * 2000, b"2", b"y" * 2000, b"3", b"4"]
    assert queue.ready + queue.acquired == 0


def test_a_source_is_not_read_while_too_much_is_on_its_way(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "HELD_BYTES_MAX", 1000)
    moving.declare("q")
    moving.fast.syncing = False
    at_main(moving, "q", bytes(2000))
    moving.turn()
    [source] = moving.mover._sources.values()
    assert source.link is not None and not source.link.wants_read()
    moving.fast.sync()
    moving.turn()
    assert source.link.wants_read()


# Order ---------------------------------------------------------------------------------------------

KEYED = ELSEWHERE | {"x-queue-type": "stream", "x-stream-key": "routing-key"}


def newest(world: World, stream: str = "s") -> bytes | None:
    """The state of the one key that these tests publish: the name of the stream."""
    session = StreamSession(world.broker.open_session("/", "guest", None, "test"))
    row = session.get(stream, stream.encode())
    return None if row is None else row.value


def last_times(bodies: Iterable[bytes]) -> list[bytes]:
    """Each once, where it was last: all that matters to one who keeps the newest."""
    return list(dict.fromkeys(reversed(list(bodies))))[::-1]


def said(method: methods.Method) -> Piece:
    """As a group says it on the channel that is published on."""
    return machine.PUBLISHING, PASSED, 1, methods.encode_method(machine.PUBLISHING, method)


@pytest.fixture
def keyed(moving: Moving) -> Moving:
    moving.front.open().declare("s", durable=True, arguments=KEYED)
    return moving


def test_what_comes_while_a_queue_is_missing_waits_behind_what_found_it_missing(keyed: Moving) -> None:
    """Somebody else makes the queue before the mover does, and only then the newer version comes."""
    fast = keyed.fast.broker
    spec = fast.vhosts["/"].queues["s"].spec
    fast.delete_queue(fast.vhosts["/"].queues["s"])
    at_main(keyed, "s", b"older")
    keyed.turn()
    fast.create_queue(replace(spec, number=0))
    at_main(keyed, "s", b"newer")
    keyed.turn()
    keyed.pass_s(5)
    assert newest(keyed.fast) == b"newer"
    assert keyed.mover.moved == 2 and keyed.main.broker.vhosts["/"].queues["s"].acquired == 0


def test_what_comes_while_a_leader_is_dialled_again_waits_behind_what_was_on_its_way(keyed: Moving) -> None:
    keyed.fast.syncing = False
    at_main(keyed, "s", b"older")
    keyed.turn()
    keyed.front.lose("fast")
    keyed.fast.syncing = True
    at_main(keyed, "s", b"newer")
    keyed.turn()
    queue = keyed.main.broker.vhosts["/"].queues["s"]
    assert queue.ready + queue.acquired == 2, "neither is acknowledged before it is confirmed"
    keyed.fast.sync()
    keyed.pass_s(5)
    assert newest(keyed.fast) == b"newer" and queue.ready + queue.acquired == 0


def test_what_a_queue_takes_behind_one_that_it_has_refused_comes_behind_it_once_more(
    keyed: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses the first of two that are on their way together, as one does whose disk is full for a moment."""
    queue = keyed.main.broker.vhosts["/"].queues["s"]
    heard = Target.heard
    refused: list[int] = []

    def refuses(target: Target, link: Link, piece: Any) -> None:
        method = method_of(piece)
        if isinstance(method, methods.BasicAck) and not refused:
            assert method.delivery_tag == 2 and method.multiple
            refused.append(queue.acquired)
            heard(target, link, said(methods.BasicNack(delivery_tag=1)))
            heard(target, link, said(methods.BasicAck(delivery_tag=2)))
            refused.append(queue.acquired)
        else:
            heard(target, link, piece)

    monkeypatch.setattr(Target, "heard", refuses)
    at_main(keyed, "s", b"older", b"newer")
    keyed.turn()
    assert refused == [2, 2], (
        "the newer one is confirmed, and not acknowledged: the older one comes behind it"
    )
    keyed.pass_s(5)
    assert newest(keyed.fast) == b"newer" and queue.ready + queue.acquired == 0


def test_what_found_its_queue_missing_is_not_acknowledged_whatever_else_is_refused(
    keyed: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirm behind a return says only that the group has done with it."""
    queue, fast = keyed.main.broker.vhosts["/"].queues["s"], keyed.fast.broker
    spec = fast.vhosts["/"].queues["s"].spec
    fast.delete_queue(fast.vhosts["/"].queues["s"])
    heard = Target.heard
    acks: list[int] = []

    def refuses(target: Target, link: Link, piece: Any) -> None:
        method = method_of(piece)
        if isinstance(method, methods.BasicAck) and not acks:
            acks.append(method.delivery_tag)
            heard(target, link, said(methods.BasicNack(delivery_tag=2)))
            heard(target, link, said(methods.BasicAck(delivery_tag=1)))
        else:
            heard(target, link, piece)

    monkeypatch.setattr(Target, "heard", refuses)
    at_main(keyed, "s", b"older", b"newer")
    keyed.turn()
    assert acks == [2] and queue.acquired == 2
    fast.create_queue(replace(spec, number=0))
    keyed.pass_s(5)
    assert newest(keyed.fast) == b"newer" and queue.ready + queue.acquired == 0


def test_what_is_behind_a_message_that_is_refused_for_good_is_not_sent_again_and_again(
    moving: Moving,
) -> None:
    limits = {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}
    moving.declare("q")
    moving.fast.broker.delete_queue(moving.fast.broker.vhosts["/"].queues["q"])
    moving.fast.broker.create_queue(QueueSpec("/", "q", durable=True, arguments=ELSEWHERE | limits))
    at_main(moving, "q", bytes(2000), *(b"%d" % number for number in range(5)))

    found = []
    for _ in range(10):
        moving.pass_s(60)
        found += bodies(moving.fast, "q")

    assert sorted(found) == [b"%d" % number for number in range(5)]
    assert moving.mover.moved == 0, "they are where they were"


def test_a_queue_that_refuses_some_gets_them_in_order_and_holds_up_no_other(moving: Moving) -> None:
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    moving.declare("q", "other")
    moving.fast.broker.delete_queue(moving.fast.broker.vhosts["/"].queues["q"])
    moving.fast.broker.create_queue(QueueSpec("/", "q", durable=True, arguments=ELSEWHERE | limits))
    few = [b"%d" % number for number in range(8)]
    at_main(moving, "q", *few)
    found = []
    for number in range(60):
        moving.pass_s(1)
        found += bodies(moving.fast, "q")
        at_main(moving, "other", b"%d" % number)
        moving.turn()
        assert bodies(moving.fast, "other") == [b"%d" % number], "another queue is not held up"
    assert found == few


def test_a_letter_waits_behind_one_that_the_same_queue_did_not_take_and_other_queues_go_on(
    moving: Moving,
) -> None:
    client = dying(moving)
    client.declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("here", durable=True)
    for queue in ("full", "here"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="dead", routing_key="#"))
    for body in (b"1", b"2", b"3"):
        client.publish(1, "dying", body, properties=PERSISTENT)
        moving.turn()
    assert bodies(moving.main, "here") == [b"1", b"2", b"3"]
    found = []
    for _ in range(100):
        found += bodies(moving.main, "full")
        moving.pass_s(1)
    assert found == [b"1", b"2", b"3"]
    assert bodies(moving.main, "here") == [] and moving.fast.ready(OUTBOX) == 0


def test_a_virtual_host_that_is_gone_is_forgotten(moving: Moving) -> None:
    moving.front.away[MAIN] = "no answer"
    moving.mover.told(MAIN, "gone", "q")
    moving.pass_s(3)
    moving.front.away.clear()
    moving.mover.told(MAIN, "gone", "q")
    moving.pass_s(30)
    assert not moving.mover._sources and not moving.links
    problems = [str(facts["problem"]) for facts in moving.noted("messages not moved")]
    assert "no answer" in problems[0] and "vhost gone not found" in problems[1] and len(problems) == 2


def test_when_the_front_ends_nothing_is_begun_any_more(moving: Moving) -> None:
    moving.declare("q")
    moving.front.copy.slow = True
    at_main(moving, "q", b"x")
    moving.turn()
    moving.mover.stop()
    moving.front.copy.freshen()
    moving.turn()
    assert not moving.links and (moving.main.ready("q"), moving.fast.ready("q")) == (1, 0)


def test_a_front_is_known_as_one_where_it_comes_for_itself(moving: Moving) -> None:
    moving.declare("q")
    at_main(moving, "q", b"x")
    moving.turn()
    assert FRONT_USER in [session.user for session in moving.main.broker.sessions]
    assert FRONT_USER in [session.user for session in moving.fast.broker.sessions]


STEPS = st.lists(
    st.sampled_from(
        ["publish", "die", "lose main", "lose fast", "stall", "go on", "delete", "wait", "wait long"]
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
@example(["publish", "stall", "publish", "lose fast", "wait", "go on", "die", "lose main"])
@example(["stall", "publish", "delete", "lose fast", "publish", "wait", "die", "go on"])
def test_whatever_happens_every_message_arrives_and_for_the_last_time_in_its_order(steps: list[str]) -> None:
    moving = Moving()
    client = dying(moving)
    moving.declare("q")
    client.declare("here", durable=True)
    for queue in ("q", "here"):
        client.ask(1, methods.QueueBind(queue=queue, exchange="dead", routing_key="#"))
    found: dict[str, list[bytes]] = {"q": [], "here": []}
    sent: dict[str, list[bytes]] = {"q": [], "here": []}

    def take(queue: str, world: World) -> None:
        if queue in world.broker.vhosts["/"].queues:
            found[queue] += bodies(world, queue)

    for number, step in enumerate(steps):
        body = b"%d" % number
        match step:
            case "publish":
                at_main(moving, "q", *(body + b"-%d" % each for each in range(40)))
                sent["q"] += [body + b"-%d" % each for each in range(40)]
            case "die":
                moving.fast.open().publish(1, "dying", body, properties=PERSISTENT)
                for queue in sent:
                    sent[queue].append(body)
            case "lose main" | "lose fast":
                moving.front.lose(step.removeprefix("lose "))
            case "stall":
                moving.fast.syncing = False
            case "go on":
                moving.fast.syncing = True
                moving.fast.sync()
            case "delete":
                # A queue that is deleted takes its messages along, so they are fetched first.
                take("q", moving.fast)
                queue = moving.fast.broker.vhosts["/"].queues.get("q")
                if queue is not None:
                    moving.fast.broker.delete_queue(queue)
            case "wait":
                moving.pass_s(1)
            case "wait long":
                moving.pass_s(15)
        moving.turn()
    moving.fast.syncing = True
    moving.fast.sync()
    moving.pass_s(70)
    take("q", moving.fast)
    take("here", moving.main)
    for queue in sent:
        # There is no order between letters and what was published.
        for published in (True, False):
            wanted, got = (
                [one for one in all if (b"-" in one) is published] for all in (sent[queue], found[queue])
            )
            assert last_times(got) == wanted
    assert moving.main.ready("q") == 0 and moving.mover.statistics()["held"] == 0
