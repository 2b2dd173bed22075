"""Pins: snapshots that stay, byte for byte, until they are let go of."""

from __future__ import annotations

import pytest
from unit.broker.streams.world import DAY_MS, StreamWorld

from tidemark.errors import NotFound, PinExpired, PreconditionFailed


def rewritten(world: StreamWorld, times: int = 30) -> None:
    for number in range(times):
        world.put(*((b"k%d" % key, b"%d" % number * 1500) for key in range(20)))


def test_a_pin_stays_readable_byte_for_byte_through_rewrites_compaction_and_crashes() -> None:
    """The rule that makes exactly-once possible."""
    world = StreamWorld()
    world.declare(tombstone_lease=1000)
    rewritten(world, 3)
    world.put((b"k3", None))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    world.turn()
    expected = world.content(snapshot)
    assert len(expected) == 20

    for _ in range(3):
        rewritten(world)
        world.put(*((b"k%d" % key, None) for key in range(20)))
        world.rest(5_000)
        world.compact()
        world = world.crash()
        with world.session.pinned("s", "p") as again:
            assert world.content(again) == expected
    assert world.world.node.journal.statistics().segments > 0


def test_a_pin_is_durable_when_its_sequence_is_and_not_before() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    _, safe_at = world.session.pin("s", "p", DAY_MS)
    assert safe_at > world.world.node.journal.durable_seq
    with pytest.raises(NotFound, match="no pin 'p'; pin a snapshot under this name"):
        world.crash().session.pinned("s", "p")


def test_a_pin_holds_before_its_record_is_durable() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    with world.world.slow_disk():
        world.session.pin("s", "p", DAY_MS)
        world.put((b"k", b"2"), turn=False)
        world.world.node.turn(world.now_ms)
    world.turn()
    world.put((b"k", b"3"))
    with world.session.pinned("s", "p") as snapshot:
        assert [value for _, _, value in world.content(snapshot)] == [b"1"]


def test_after_a_crash_nothing_is_let_go_of_before_all_pins_hold() -> None:
    """Two pins of different streams and ages; the state of the second comes last in the journal."""
    world = StreamWorld()
    world.declare("s")
    world.declare("t")
    world.put((b"k", b"s1"), to="s")
    world.put((b"k", b"t1"), to="t")
    world.session.pin("s", "early", DAY_MS)
    world.put((b"k", b"s2"), to="s")
    world.session.pin("s", "late", DAY_MS)
    world.session.pin("t", "p", DAY_MS)
    world.put((b"k", b"t2"), to="t")
    world.put((b"k", b"s3"), to="s")

    after = world.crash()

    found = {
        (stream, pin): [value for _, _, value in after.content(after.session.pinned(stream, pin))]
        for stream, pin in (("s", "early"), ("s", "late"), ("t", "p"))
    }
    assert found == {("s", "early"): [b"s1"], ("s", "late"): [b"s2"], ("t", "p"): [b"t1"]}


def test_the_same_name_renews_the_lease_and_gives_the_same_snapshot() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    first, _ = world.session.pin("s", "p", 10_000)
    world.put((b"k", b"2"))
    world.rest(8_000)
    again, _ = world.session.pin("s", "p", 10_000)
    world.rest(8_000)

    assert again.seq == first.seq
    assert [value for _, _, value in world.content(world.session.pinned("s", "p"))] == [b"1"]


def test_a_lease_that_ends_is_written_down_and_its_reader_told() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"k", b"1"))
    snapshot, _ = world.session.pin("s", "p", 10_000)
    world.put((b"k", b"2"))
    world.rest(9_000)
    assert len(world.content(snapshot)) == 1
    world.rest(2_000)

    with pytest.raises(PinExpired, match=r"pin 'p' of stream 's' at sequence .* its lease has ended"):
        snapshot.take(1, 1)
    with pytest.raises(PinExpired):
        world.session.pinned("s", "p")
    assert stream.held == 0
    with pytest.raises(NotFound):
        world.crash().session.pinned("s", "p")


def test_after_a_start_a_lease_lasts_long_enough_to_be_renewed() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    world.session.pin("s", "p", 500)
    world.turn()

    after = world.crash()
    after.rest(2_000)
    after.session.renew("s", "p", DAY_MS)
    after.rest(120_000)

    assert after.session.pinned("s", "p").seq


def test_a_released_pin_lets_go_at_once_but_comes_back_whole_if_the_release_was_lost() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"k", b"1"))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    snapshot.close()
    world.put((b"k", b"2"))
    world.session.release("s", "p")
    assert stream.held == 0

    after = world.crash()
    assert [value for _, _, value in after.content(after.session.pinned("s", "p"))] == [b"1"]
    after.session.release("s", "p")
    after.turn()
    with pytest.raises(NotFound):
        after.crash().session.pinned("s", "p")


def test_an_open_snapshot_of_a_released_pin_stays_good() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    world.session.release("s", "p")
    world.put((b"k", b"2"))
    assert [value for _, _, value in world.content(snapshot)] == [b"1"]


def test_what_pins_cost_is_shown() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"x" * 10), (b"b", b"x" * 100))
    world.session.pin("s", "p", DAY_MS)
    [pin] = world.session.pins("s")
    assert (pin.messages_kept, pin.bytes_kept) == (0, 0)
    world.put((b"b", b"new"))
    [pin] = world.session.pins("s")
    assert (pin.name, pin.messages_kept, pin.bytes_kept) == ("p", 1, 100)
    assert pin.lease_until_ms == world.now_ms + DAY_MS


def test_over_the_limit_the_oldest_pin_goes_with_a_word_to_its_reader() -> None:
    """K-89: bounded, by an explicit error, never by different data."""
    world = StreamWorld()
    stream = world.declare(pin_bytes_max=1500)
    world.put((b"k", b"1" * 1000))
    old, _ = world.session.pin("s", "old", DAY_MS)
    world.put((b"k", b"2" * 1000))
    young, _ = world.session.pin("s", "young", DAY_MS)
    world.rest(1_000)
    assert len(world.content(old)) == 1
    world.put((b"k", b"3" * 1000))
    world.rest(1_000)

    with pytest.raises(PinExpired, match="kept more than the 1500 bytes that the stream allows"):
        old.take(1, 1)
    assert [value for _, _, value in world.content(young)] == [b"2" * 1000]
    assert stream.held_bytes == 1000
    with pytest.raises(NotFound):
        world.crash().session.pinned("s", "old")


def test_an_open_snapshot_counts_against_the_same_limit() -> None:
    world = StreamWorld()
    world.declare(pin_bytes_max=500)
    world.put((b"k", b"1" * 1000))
    snapshot = world.session.snapshot("s")
    world.put((b"k", b"2" * 1000))
    world.rest(1_000)
    with pytest.raises(PinExpired, match="kept more than the 500 bytes"):
        snapshot.take(1, 1)


def test_what_the_history_keeps_is_not_counted_against_pins() -> None:
    world = StreamWorld()
    world.declare(history=DAY_MS, pin_bytes_max=1500)
    for number in range(10):
        world.put((b"k", b"%d" % number * 1000))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    world.put((b"k", b"x" * 1000))
    world.rest(1_000)
    world.put((b"k", b"y" * 1000), (b"other", b"z" * 1000))
    world.rest(1_000)
    assert len(world.content(snapshot)) == 1


@pytest.mark.parametrize(
    ("name", "lease_ms"), [("", 1000), ("x" * 256, 1000), ("p", 0), ("p", -1), ("p", 1 << 60)]
)
def test_a_pin_that_cannot_be_is_refused_and_holds_nothing(name: str, lease_ms: int) -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"1"))
    with pytest.raises(PreconditionFailed):
        world.session.pin("s", name, lease_ms)
    assert world.session.pins("s") == []


def test_without_room_on_the_disk_nothing_is_pinned() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"k", b"1"))
    with world.world.no_room():
        with pytest.raises(Exception, match="no room"):
            world.session.pin("s", "p", DAY_MS)
        assert stream.pins.by_name == {}
    world.put((b"k", b"2"))
    assert stream.held == 0


def test_a_purge_and_retention_between_two_pins_look_the_same_after_a_crash() -> None:
    """Each step of retention takes effect at its own record, for every pin before and after it."""
    world = StreamWorld()
    stream = world.declare(tombstone_lease=1000, max_length_bytes=250)
    pins = {}

    def pin(name: str) -> None:
        snapshot, _ = world.session.pin("s", name, DAY_MS)
        world.turn()
        pins[name] = world.content(snapshot)

    world.put((b"a", b"1" * 100), (b"b", b"1" * 100), (b"d", b"x"))
    world.put((b"d", None))
    pin("before")
    world.rest(2_000)
    pin("tombstone purged")
    world.put((b"c", b"1" * 100))
    world.rest(1_000)
    pin("oldest evicted")
    stream.purge()
    world.turn()
    pin("purged")
    world.put((b"a", b"2"))
    pin("again")
    assert [len(content) for content in pins.values()] == [3, 2, 2, 0, 1]

    for again in (world.crash(), world.crash().crash()):
        for name, content in pins.items():
            assert again.content(again.session.pinned("s", name)) == content, name


def test_a_pin_has_the_shards_it_was_made_with_however_the_stream_grows() -> None:
    """A job that was planned over the shards of a pin reads every row once, before and after a restart."""
    world = StreamWorld()
    world.declare(shards=2)
    world.put(*((b"k%d" % number, b"v") for number in range(200)))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    world.turn()
    halves = [world.content(snapshot, shards=shard) for shard in range(2)]
    assert sum(map(len, halves)) == 200

    world.session.declare("s", {"x-stream-shards": 4})
    world.session.renew("s", "p", DAY_MS)
    world.turn()

    for again in (world, world.crash()):
        with again.session.pinned("s", "p") as pinned:
            assert [again.content(pinned, shards=shard) for shard in range(2)] == halves
            assert pinned.shards == 2
        assert [pin.shards for pin in again.session.pins("s")] == [2]
        assert again.session.snapshot("s").shards == 4


def test_a_pin_whose_record_tells_no_shards_has_those_of_the_stream() -> None:
    world = StreamWorld()
    world.declare(shards=3)
    end = world.put((b"k", b"1")).last_seq
    body = {"seq": end, "h": world.streams.history.hex(), "l": DAY_MS, "u": world.now_ms + DAY_MS}
    world.stream().pins.restored("p", body, end)
    assert world.session.pinned("s", "p").shards == 3


def test_two_names_that_would_be_one_on_the_disk_are_not_both_taken() -> None:
    """\u00e9 is c3 a9 there, and so are the surrogates that stand for these two bytes."""
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1"), producer="\u00e9", sequence=100).last_seq
    world.session.pin("s", "\u00e9", DAY_MS)
    world.session.move("s", "\u00e9", None, seen)

    for name in ("\udcc3\udca9", "a\ud800"):
        with pytest.raises(PreconditionFailed, match="of a pin is no text"):
            world.session.pin("s", name, DAY_MS)
        with pytest.raises(PreconditionFailed, match="of a consumer is no text"):
            world.session.move("s", name, None, 1)
        with pytest.raises(PreconditionFailed, match="of a producer is no text"):
            world.put((b"a", b"2"), producer=name, sequence=1)
        with pytest.raises(NotFound):
            world.session.release("s", name)
        assert world.session.unregister("s", name) <= world.world.node.journal.last_seq

    world.turn()
    after = world.crash()
    assert [pin.name for pin in after.session.pins("s")] == ["\u00e9"]
    assert [(mark.consumer, mark.seq) for mark in after.session.marks("s")] == [("\u00e9", seen)]
    assert after.session.producer_last("\u00e9") == 100


def test_a_name_of_bytes_that_are_no_text_is_the_same_after_a_restart() -> None:
    world = StreamWorld()
    world.declare()
    name = b"\xff\xc3".decode("utf-8", "surrogateescape")
    world.session.pin("s", name, DAY_MS)
    world.turn()
    assert [pin.name for pin in world.crash().session.pins("s")] == [name]
