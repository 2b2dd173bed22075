"""Whether a position means the same here as where it was taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.broker.streams.world import StreamWorld, at_once, rows

from tidemark.broker.streams.commit import Batch, Put
from tidemark.broker.streams.positions import FromMark, Judgement, Position, is_safe, judge, last_of
from tidemark.errors import LostBranch, PreconditionFailed, StreamReset
from tidemark.store.segment import HISTORIES_MAX, with_history

A, B, C, STRANGER = b"a" * 16, b"b" * 16, b"c" * 16, b"?" * 16
TABLE = [(C, 2000), (B, 901), (A, 1)]
"""A was cut off at 900, B at 1999; C goes on and has shown 2500."""
SHOWN = 2500


@pytest.mark.parametrize(
    ("position", "verdict", "seq"),
    [
        (Position(C, 2400), "ok", 2400),
        (Position(C, 50), "ok", 50),
        (Position(A, 900), "ok", 900),
        (Position(B, 1999), "ok", 1999),
        (Position(A, 950), "rewound", 900),
        (Position(B, 2300), "rewound", 1999),
        (Position(C, 2501), "rewound", 2500),
        (Position(STRANGER, 10), "reset", 0),
        (Position(STRANGER, 0), "ok", 0),
        (Position(b"", 0), "ok", 0),
    ],
)
def test_a_position_is_good_up_to_where_its_history_was_cut_off(
    position: Position, verdict: str, seq: int
) -> None:
    """X-32, K-84: a mark carries its history; a number of another branch is never taken for ours."""
    assert judge(TABLE, SHOWN, position) == Judgement(verdict, seq)  # type: ignore[arg-type]


def test_who_read_part_of_a_snapshot_whose_end_was_lost_goes_back_to_its_start() -> None:
    """K-85: snapshot 890 to 950; 895 had been read, the branch is at 900: versions that 950 buried were not seen."""
    assert judge(TABLE, SHOWN, Position(A, 895, 950, 890)) == Judgement("rewound", 890)
    assert judge(TABLE, SHOWN, Position(A, 895, 900, 890)) == Judgement("ok", 895)
    assert judge(TABLE, SHOWN, Position(A, 950, 950, 890)) == Judgement("rewound", 890)


def test_a_history_that_fell_off_the_end_of_the_table_is_unknown() -> None:
    """K-90: the table is capped; what is older is a reset, never taken for good."""
    assert judge(TABLE[:2], SHOWN, Position(A, 10)) == Judgement("reset", 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 400))
def test_a_good_position_lies_below_every_later_start(steps: list[int], which: int, seq: int) -> None:
    table: list[tuple[bytes, int]] = []
    first = 1
    for number, step in enumerate(steps):
        table.insert(0, (bytes([number]) * 16, first))
        first += step
    history = bytes([min(which, len(steps) - 1)]) * 16
    found = judge(table, first, Position(history, seq))
    later = [start for known, start in table if known > history]
    assert (found.verdict == "ok") == (seq < min(later, default=first + 1))
    assert found.seq <= seq


def test_a_receipt_is_safe_when_it_is_on_the_disk_and_lost_when_its_branch_is() -> None:
    """K-92, X-20: the levels are said by name."""
    assert is_safe(TABLE, SHOWN, 2400, C, 2400, 1) == "yes"
    assert is_safe(TABLE, SHOWN, 2400, C, 2401, 1) == "not yet"
    assert is_safe(TABLE, SHOWN, 2400, C, 2401, 0) == "yes"
    assert is_safe(TABLE, SHOWN, 2400, C, 9999, 0) == "not yet"
    assert is_safe(TABLE, SHOWN, 2400, A, 900, 1) == "yes"
    assert is_safe(TABLE, SHOWN, 2400, A, 901, 1) == "lost branch"


def test_a_receipt_of_an_unknown_history_is_never_called_lost() -> None:
    """What it is for may be stored: who is told that it is lost writes it a second time."""
    for table, history in ((TABLE, STRANGER), (TABLE[:2], A)):
        with pytest.raises(PreconditionFailed, match="not known here, or no longer; read the stream"):
            is_safe(table, SHOWN, 2400, history, 1, 1)


def test_a_receipt_is_answered_not_yet_until_the_disk_has_it() -> None:
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"k", b"v"), turn=False)
    assert world.streams.safe(receipt.history, receipt.last_seq) == "not yet"

    world.turn()

    assert world.streams.safe(receipt.history, receipt.last_seq) == "yes"
    assert world.crash().streams.safe(receipt.history, receipt.last_seq) == "yes"


def test_a_receipt_that_a_power_cut_took_back_is_a_lost_branch() -> None:
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"k", b"v"), turn=False)
    after = world.crash()
    after.put((b"other", b"v"))
    assert after.streams.safe(receipt.history, receipt.last_seq) == "lost branch"


def test_after_a_crash_each_receipt_says_whether_its_batch_is_among_the_first_that_were_kept() -> None:
    """Frames that are full go to the disk before the turn ends, so some of what was never confirmed may be there."""
    kept = set()
    for seed in range(40):
        world = StreamWorld()
        world.declare("s")
        world.declare("t")
        world.world.disk.dice.seed(seed)
        changes = [(b"%d" % number, b"%d" % number * 700) for number in range(10)]
        receipts = [
            world.session.commit(Batch([Put("s", rows(change)), Put("t", rows(change))]))
            for change in changes
        ]

        after = world.crash(power=seed % 2 == 0)

        stored = len(after.now("s"))
        assert after.now("s") == after.now("t") == changes[:stored]
        after.put(*[(b"new", b"has a number that was given before")] * 2 * len(changes))
        assert [after.streams.safe(receipt.history, receipt.last_seq) for receipt in receipts] == (
            ["yes"] * stored + ["lost branch"] * (len(changes) - stored)
        )
        kept.add(stored)
    assert 0 in kept and len(kept) > 2, "the runs were not of all kinds"


def test_more_replicas_than_there_are_is_an_error_not_a_wait() -> None:
    world = StreamWorld()
    with pytest.raises(PreconditionFailed, match="3 replicas were asked for; this node is alone"):
        world.streams.safe(world.streams.history, 1, replicas=3)


def test_every_start_opens_a_history_and_positions_of_earlier_ones_stay_good() -> None:
    """K-27, K-84: what was shown before a crash is a place to go on from after it."""
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"), (b"b", b"2"))
    before = Position(world.streams.history, world.stream().boundary)

    after = world.crash().crash()
    after.put((b"c", b"3"))

    assert after.streams.history != before.history
    assert after.streams.judge(before.history, before.seq) == Judgement("ok", before.seq)
    assert after.now(after=before) == [(b"c", b"3")]


def test_a_boundary_is_a_record_of_the_stream_so_that_lost_transient_messages_do_not_cut_it_off() -> None:
    """Sequences of transient messages are forgotten by a crash; no position may lie on one."""
    world = StreamWorld()
    world.declare()
    session = world.broker.open_session("/", "guest", None, "other")
    session.declare_queue("transient")
    world.put((b"a", b"1"), turn=False)
    publishing = session.publishing(None)  # type: ignore[arg-type]
    for _ in range(5):
        publishing.publish_one("", "transient", b"\0\0", b"gone with the process")
    world.turn()
    seen = Position(world.streams.history, world.stream().boundary)

    assert world.crash().streams.judge(seen.history, seen.seq).verdict == "ok"


def test_a_position_that_was_shown_before_it_was_durable_is_rewound_after_a_crash() -> None:
    """K-84, with broker.show = "at-once": the consumer has seen what the power cut took back."""
    world = at_once()
    world.declare()
    durable = world.put((b"a", b"1")).last_seq
    world.put((b"a", b"2"), turn=False)
    seen = Position(world.streams.history, world.stream().caught_up())
    after = world.crash()
    after.put((b"x", b"1"))

    with pytest.raises(LostBranch) as caught:
        after.session.snapshot("s", after=seen)
    assert durable <= caught.value.rewind_to < seen.seq
    assert "go on from there" in str(caught.value)


def test_a_position_of_another_store_is_a_reset() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    with pytest.raises(StreamReset, match="its history is unknown here"):
        world.session.snapshot("s", after=Position(STRANGER, 1))


def test_however_often_the_node_starts_marks_pins_and_producers_stay_true() -> None:
    """K-90: more starts than the table has room for. What was restored is on our branch, or it would not be there."""
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"a", b"1"), producer="p", sequence=7)
    seen = world.stream().boundary
    world.session.move("s", "c", None, seen)
    world.session.pin("s", "p", 1 << 40)
    world.turn()
    old = world.streams.history

    for _ in range(HISTORIES_MAX + 2):
        world = world.crash()
        world.put(*((b"b%d" % number, b"1") for number in range(8)))

    assert old not in [history for history, _ in world.streams.histories]
    assert world.session.reader("s", FromMark("c")).after == seen
    mark = world.session.mark("s", "c")
    assert mark is not None
    world.session.move("s", "c", mark.history, mark.seq)
    [pin] = world.session.pins("s")
    assert world.streams.judge(pin.history, pin.seq).verdict == "ok"
    again = world.put((b"a", b"1"), producer="p", sequence=7)
    assert again.duplicate and again.last_seq == receipt.last_seq
    assert world.streams.safe(again.history, again.last_seq) == "yes"
    with pytest.raises(PreconditionFailed, match="not known here"):
        world.streams.safe(receipt.history, receipt.last_seq)


def test_starts_that_came_to_nothing_do_not_push_out_the_histories_of_what_is_there() -> None:
    """A unit that fails and is started again every second does so a hundred times in two minutes."""
    world = StreamWorld()
    world.declare()
    receipt = world.put((b"a", b"1"))
    position = world.streams.history, world.stream().boundary
    for _ in range(HISTORIES_MAX + 20):
        world = world.crash()

    assert len(world.streams.histories) == HISTORIES_MAX
    assert world.streams.safe(receipt.history, receipt.last_seq) == "yes"
    assert world.streams.safe(receipt.history, receipt.last_seq + 1000) == "lost branch"
    assert world.streams.judge(*position).verdict == "ok"


@given(st.lists(st.integers(-3, 9), min_size=HISTORIES_MAX - 3, max_size=HISTORIES_MAX + 40))
def test_a_history_that_is_forgotten_changes_nothing_that_is_said_of_the_others(steps: list[int]) -> None:
    """Whatever was written in it, and though numbers were given again."""
    everything: list[tuple[bytes, int]] = []
    table: list[tuple[bytes, int]] = []
    first = 1
    for number, step in enumerate(steps):
        history = number.to_bytes(16, "big")
        everything = [(history, first), *everything]
        table = with_history(table, history, first)
        first = max(1, first + step)

    assert len(table) == min(len(steps), HISTORIES_MAX)
    newest = max(since for _, since in everything) + 10
    known = [history for history, _ in table]
    assert known[: HISTORIES_MAX // 2] == [history for history, _ in everything[: HISTORIES_MAX // 2]]
    for history in known:
        assert last_of(table, newest, history) == last_of(everything, newest, history)
