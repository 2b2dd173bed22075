"""What streams may cost: a start, a step of a reader, a consumer that holds on, a record that rotted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import unit.node.world as node_world
from unit.broker.streams.world import COLUMNS, DAY_MS, StreamWorld
from unit.frontend.harness import PERSISTENT
from unit.node.world import NodeWorld

from tidemark.broker.streams._core_py import COLD_MAX
from tidemark.broker.streams.core import gather
from tidemark.broker.window import Window
from tidemark.model.runs import Taken

YEAR_MS = 365 * DAY_MS


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_world, "CONFIG", replace(node_world.CONFIG, checkpoint_bytes=16 << 10))


@pytest.mark.usefixtures("checkpoints")
def test_a_start_with_a_checkpoint_does_not_read_the_journal_for_its_marks() -> None:
    """K-27: the marks of consumers that moved at different times lie all over the journal."""
    world = StreamWorld()
    world.declare()
    for number in range(300):
        world.put((b"k%d" % number, b"v" * 3000), turn=False)
        world.session.move("s", f"c{number}", None, 1)
        world.turn()
    world.session.unregister("s", "c7")
    world.turn()
    world.world.rest(slices=60)

    again = world.crash(power=False)

    journal = again.world.node.journal
    assert journal.pager.pages_in < len(journal.pager.places) // 10
    assert {mark.consumer for mark in again.session.marks("s")} == {f"c{n}" for n in range(300) if n != 7}


@pytest.mark.usefixtures("checkpoints")
def test_marks_moved_after_a_checkpoint_are_where_they_moved() -> None:
    world = StreamWorld()
    world.declare()
    last = 0
    for number in range(100):
        last = world.put((b"k%d" % number, b"v" * 1000)).last_seq
    world.session.move("s", "early", None, 1)
    world.turn()
    world.world.rest(slices=60)
    world.session.move("s", "early", None, last)
    world.session.move("s", "late", None, last)
    world.turn()

    marks = {mark.consumer: mark.seq for mark in world.crash().session.marks("s")}

    assert marks == {"early": last, "late": last}


def test_rows_that_lie_far_apart_are_read_a_few_at_a_time() -> None:
    """A quiet stream beside a busy queue: every row lies in another piece of the journal."""
    world = StreamWorld()
    stream = world.declare(key="none")
    client = world.world.open()
    client.declare("q", durable=True)
    for _ in range(100):
        world.put((None, b"r" * 10), turn=False)
        for _ in range(6):
            client.publish(1, "q", b"m" * 500, properties=PERSISTENT)
        world.turn()
    world.world.rest()
    pager = world.world.node.journal.pager
    before, rows, steps = pager.pages_in, 0, 0

    with world.session.snapshot("s") as snapshot:
        after = None
        while (taken := snapshot.take(65536, 1 << 20, after=after)) is not None:
            after = snapshot.position
            rows += len(gather(stream, taken, COLUMNS))
            steps += 1
            assert pager.pages_in - before <= COLD_MAX + 1
            before = pager.pages_in

    assert rows == 100 and steps > 1


def test_a_consumer_that_holds_one_delivery_does_not_collect_boundaries() -> None:
    class Stream:
        def touch(self) -> None: ...

    window = Window(0, "owner", [], Stream())
    taken = Taken(0)
    taken.add(0, 5, 0, 0, 0, 0)
    ordinal = window.add(taken)
    for seq in range(10, 1000):
        window.add_boundary(seq, False)

    assert len(window) == 2
    window.settle(ordinal)
    assert (window.position, window.boundary, len(window)) == (999, 999, 0)


def test_a_clock_that_was_ahead_does_not_stop_retention() -> None:
    """K-82: one message of a start before the clock was set."""
    world = StreamWorld(NodeWorld(now_ms=1_700_000_000_000 + YEAR_MS))
    world.declare(key="none", max_age="10s")
    world.put((None, b"from the future"))
    world = StreamWorld(NodeWorld(world.world.disk.crash(True), 1_700_000_000_000))
    for _ in range(50):
        world.put((None, b"x"))
        world.rest(5000)

    assert world.stream().live < 5


def test_a_rotten_record_of_one_stream_does_not_stop_the_node() -> None:
    world = StreamWorld()
    world.declare(key="none", max_age="10s")
    for number in range(300):
        world.put((None, b"v" * 500), turn=number % 10 == 0)
    world.turn()
    world.world.rest(slices=5)
    stream, node = world.stream(), world.world.node
    oldest = stream.take(stream.boundary, 0, stream.boundary, 1, 1)
    assert oldest is not None
    number = oldest.entry(0)[2] >> 32
    place = node.journal.pager.places[number]
    node.journal.pager.drop_if_durable(number, node.journal.completed_ticket)
    world.world.disk.flip(place.segment.name, place.offset + 124)

    world.rest(11_000)

    assert node.failed is None
    assert ("error", "stream damaged") in world.world.notes
    world.declare("other")
    world.put((b"k", b"v"), to="other")
    assert world.now("other") == [(b"k", b"v")]
