"""A stream: keys, order, the boundary, and what a queue must offer."""

from __future__ import annotations

import pytest
from unit.broker.streams.world import DAY_MS, StreamWorld, rows

from tidemark.broker.streams.commit import Batch, Put
from tidemark.broker.streams.session import StreamSession
from tidemark.errors import AccessRefused, NotFound, NotImplementedHere, PinExpired, StreamReset
from tidemark.model.wiring import PermissionSpec, UserSpec, VhostSpec


class Watcher:
    def __init__(self) -> None:
        self.told: list[int] = []

    def stirred(self, stream: object) -> None:
        self.told.append(-1 if stream.deleted else stream.boundary)  # type: ignore[attr-defined]


def test_of_a_key_only_the_newest_version_is_there_at_once() -> None:
    """K-2, K-33: de-duplication happens at commit, before anybody reads."""
    world = StreamWorld()
    stream = world.declare()
    for number in range(1, 10):
        world.put((b"k", b"v%d" % number))

    assert world.now() == [(b"k", b"v9")]
    assert (stream.live, stream.entries, stream.held) == (1, 1, 0)


def test_sequences_rise_and_reading_gives_live_messages_in_their_order() -> None:
    """K-11, K-12, K-13, K-15."""
    world = StreamWorld()
    world.declare()
    receipts = [world.put((key, b"v")) for key in (b"a", b"b", b"a", b"c")]

    sequences = [receipt.first_seq for receipt in receipts]
    assert sequences == sorted(set(sequences))
    with world.session.snapshot("s") as snapshot:
        assert [(seq, key) for seq, key, _ in world.content(snapshot)] == [
            (sequences[1], b"b"),
            (sequences[2], b"a"),
            (sequences[3], b"c"),
        ]
    assert world.now(after=sequences[1]) == [(b"a", b"v"), (b"c", b"v")]


def test_messages_without_a_key_are_an_ordinary_log() -> None:
    """K-91."""
    world = StreamWorld()
    world.declare()
    world.put((None, b"1"), (None, b"1"))
    world.put((None, b"2"))
    assert world.crash().now() == [(None, b"1"), (None, b"1"), (None, b"2")]


@pytest.mark.parametrize("power", [True, False])
def test_a_key_is_at_one_sequence_after_a_crash_whatever_was_on_its_way(power: bool) -> None:
    """K-17: never at two sequences, never at none."""
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"first"))
    world.put((b"k", b"second"), turn=False)

    after = world.crash(power)

    assert after.now() in ([(b"k", b"first")], [(b"k", b"second")])
    assert after.stream().live == 1


def test_nothing_is_seen_before_it_is_on_the_disk() -> None:
    """K-78: neither a new message nor that it buries the old one."""
    world = StreamWorld()
    world.declare()
    world.put((b"k", b"old"))
    with world.world.slow_disk():
        world.put((b"k", b"new"), turn=False)
        world.world.node.turn(world.now_ms)
        assert world.now() == [(b"k", b"old")]
        row = world.session.get("s", b"k")
        assert row is not None and row.value == b"old"

    world.turn()

    assert world.now() == [(b"k", b"new")]


def test_the_boundary_stands_still_while_others_write() -> None:
    world = StreamWorld()
    world.declare("s")
    world.declare("other")
    world.put((b"k", b"v"))
    boundary = world.stream().boundary

    for _ in range(5):
        world.put((b"k", b"v"), to="other")

    assert world.stream().boundary == boundary == world.stream().last_seq


def test_a_watcher_is_told_once_when_more_is_shown_and_not_before() -> None:
    world = StreamWorld()
    stream, watcher = world.declare(), Watcher()
    stream.watch(watcher)
    world.put((b"a", b"1"), (b"b", b"1"), turn=False)
    assert watcher.told == []
    world.turn()
    world.turn()
    assert watcher.told == [stream.last_seq]

    stream.unwatch(watcher)
    world.put((b"a", b"2"))
    assert len(watcher.told) == 1


def test_a_deleted_key_is_not_there_and_readers_are_told_of_it() -> None:
    """K-83: a tombstone in the order of sequences."""
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"a", None))

    assert world.session.get("s", b"a") is None
    assert world.now() == [(b"b", b"1"), (b"a", None)]
    assert (stream.live, stream.tombstones) == (1, 1)


def test_basic_get_is_not_offered() -> None:
    world = StreamWorld()
    with pytest.raises(
        NotImplementedHere, match=r"basic\.get not supported by stream queues queue 's' in vhost '/'"
    ):
        world.declare().get()


def test_a_purge_ends_everything_up_to_now_and_stays_so_over_a_restart() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"b", None))
    assert stream.purge() == 1
    world.put((b"c", b"1"), turn=False)
    world.turn()

    assert world.now() == [(b"c", b"1")]
    after = world.crash()
    assert after.now() == [(b"c", b"1")]
    assert (after.stream().live, after.stream().tombstones) == (1, 0)


def test_a_purge_that_was_not_durable_did_not_happen() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"))
    stream.purge()
    assert world.crash().now() == [(b"a", b"1")]


def test_very_much_is_let_go_of_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.broker.streams.stream.RELEASE_AT_ONCE", 10)
    world = StreamWorld()
    stream = world.declare()
    world.put(*((b"k%d" % number, b"v") for number in range(100)))
    count, safe_at = world.session.purge("s")
    assert count == 100 and safe_at > world.world.node.journal.durable_seq
    world.world.node.turn(world.now_ms)
    world.world.node.completed(world.now_ms)
    assert stream.held == 90

    for _ in range(10):
        assert stream.held == 0 or world.broker.next_wake_ms() <= world.now_ms
        world.world.node.turn(world.now_ms)

    assert stream.held == 0 and world.broker.next_wake_ms() > world.now_ms


def test_who_has_read_something_before_a_purge_is_told_to_start_over() -> None:
    world = StreamWorld()
    stream = world.declare()
    seen = world.put((b"a", b"1")).last_seq
    reader = world.session.reader("s", "first")
    while reader.next(10, 1000) is not None:
        pass
    stream.purge()
    world.turn()

    with pytest.raises(StreamReset):
        world.session.snapshot("s", after=seen)
    with pytest.raises(StreamReset):
        reader.next(10, 1000)
    assert world.session.reader("s", "next").next(10, 1000) is None


def test_a_deleted_stream_takes_its_state_with_it() -> None:
    world = StreamWorld()
    stream, watcher = world.declare(), Watcher()
    world.put((b"a", b"1"))
    stream.watch(watcher)
    world.session.register("s", "c")
    world.session.move("s", "lazy", None, stream.boundary, wait=False)
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    stream.purge()
    world.turn()

    world.session.delete("s")
    world.turn()

    assert watcher.told[-1] == -1
    with pytest.raises(PinExpired, match="the stream was deleted"):
        snapshot.take(1, 1)
    assert list(world.streams.state.items()) == []
    assert list(world.crash().streams.state.items()) == []


def test_state_whose_stream_is_gone_is_deleted_at_the_start() -> None:
    """The record of the deletion of the stream is durable, that of its state is not."""
    world = StreamWorld()
    world.declare()
    world.session.register("s", "c")
    world.turn()
    world.streams.leads = False  # the process dies before the state follows
    world.session.delete("s")
    world.turn()
    assert len(list(world.streams.state.items())) == 1

    after = world.crash()
    after.turn()

    assert list(after.streams.state.items()) == []


def test_a_deleted_virtual_host_takes_streams_producers_and_their_state_with_it() -> None:
    world = StreamWorld()
    world.broker.put(VhostSpec("v"))
    world.broker.put(PermissionSpec("guest", "v", ".*", ".*", ".*"))
    there = StreamWorld(world.world)
    there.session = StreamSession(world.broker.open_session("v", "guest", None, "x"))
    there.session.declare("s", {"x-stream-key": "routing-key"})
    there.put((b"a", b"1"), producer="p", sequence=1)
    there.session.register("s", "c")
    world.turn()

    world.broker.delete_vhost("v")
    world.turn()

    assert list(world.streams.state.items()) == []
    assert world.crash().streams.producers.last("v", "guest/p") == 0


def test_permissions_are_those_of_queues() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    world.broker.put(UserSpec("reader", ""))
    world.broker.put(PermissionSpec("reader", "/", "", "", "^s$"))
    reader = StreamSession(world.broker.open_session("/", "reader", None, "r"))

    assert reader.get("s", b"a") is not None and reader.names() == ["s"]
    for refused in (
        lambda: reader.commit(Batch([Put("s", rows((b"a", b"2")))])),
        lambda: reader.delete("s"),
        lambda: reader.declare("new"),
        lambda: reader.describe("t"),
    ):
        with pytest.raises(AccessRefused):
            refused()


def test_the_counts_of_a_stream_are_those_of_a_queue() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"123"), (b"b", b"4567"))
    statistics = stream.statistics()
    assert (statistics.kind, statistics.ready, statistics.ready_bytes, statistics.unacked) == (
        "stream",
        2,
        7,
        0,
    )
    assert world.broker.statistics().ready == 2
    described = world.session.describe("s")
    assert (described.live, described.key, described.shards) == (2, "routing-key", 1)


def test_compaction_of_rewritten_keys_gives_space_back_and_keeps_every_key() -> None:
    """K-80, K-33: storage goes back to one version a key, and a restart finds exactly that."""
    world = StreamWorld()
    world.declare()
    for number in range(60):
        world.put(*((b"k%d" % key, b"%d" % number * 2000) for key in range(20)))
    before = world.world.node.journal.statistics().bytes_on_disk
    expected = sorted(world.now(), key=str)

    world.compact()

    assert world.world.node.journal.statistics().compactions > 0
    assert world.world.node.journal.statistics().bytes_on_disk < before
    assert sorted(world.now(), key=str) == expected
    assert sorted(world.crash().now(), key=str) == expected


def test_a_stream_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match="no stream 's' in vhost '/'; declare it first"):
        StreamWorld().session.get("s", b"k")
