"""Cutting a snapshot into pieces, and counting what lies behind a sequence."""

from __future__ import annotations

import random
from typing import Any

import pytest
from unit.broker.streams.world import StreamWorld

from tidemark.broker.streams.cuts import PIECES_MAX, Cutter, Piece
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.errors import PinExpired, PreconditionFailed


def cut(snapshot: Snapshot, look: int = 7, **how: int | tuple[int, ...] | None) -> list[Piece]:
    cutter = Cutter(snapshot, **how)  # type: ignore[arg-type]
    while cutter.step(look):
        pass
    return cutter.pieces


def filled(count: int = 100, shards: int = 1) -> StreamWorld:
    """Some keys were rewritten, some deleted, so there are gaps between the sequences."""
    world = StreamWorld()
    world.declare(shards=shards)
    world.declare("other")
    dice = random.Random(count)
    for number in range(count):
        world.put((b"k%d" % number, b"v" * dice.randrange(20)), turn=False)
        if number % 5 == 0:
            world.put((b"x", b"y"), to="other", turn=False)
            world.put((b"k%d" % dice.randrange(number + 1), dice.choice([None, b"again"])), turn=False)
    world.turn()
    return world


@pytest.mark.parametrize("look", [1, 3, 1000])
def test_pieces_are_consecutive_exact_and_as_large_as_allowed(look: int) -> None:
    world = filled()
    with world.session.snapshot("s") as snapshot:
        pieces = cut(snapshot, look, rows=7, bytes=60)
        content = world.content(snapshot)

        found, after = [], 0
        for piece in pieces:
            part = world.content(snapshot, until=piece.until)[len(found) :]
            assert after < piece.until and piece.rows == len(part)
            assert piece.bytes == sum(len(value or b"") for _, _, value in part)
            assert piece.rows <= 7 and (piece.bytes <= 60 or piece.rows == 1)
            found += part
            after = piece.until
        assert found == content and after == snapshot.seq
        firsts = {piece.until: row for piece, row in zip(pieces, _behind(content, pieces), strict=False)}
        for piece in pieces[:-1]:
            assert piece.rows == 7 or piece.bytes + len(firsts[piece.until][2] or b"") > 60


def _behind(content: list[tuple[int, bytes | None, bytes | None]], pieces: list[Piece]) -> list[Any]:
    """The first row behind each piece but the last."""
    return [next(row for row in content if row[0] > piece.until) for piece in pieces[:-1]]


def test_pieces_do_not_depend_on_how_often_it_rests_nor_on_what_is_written_meanwhile() -> None:
    world = filled()
    with world.session.snapshot("s") as snapshot:
        expected = cut(snapshot, 1000, rows=9)
        cutter = Cutter(snapshot, rows=9)
        number = 0
        while cutter.step(11):
            number += 1
            world.put((b"k%d" % number, None), (b"new%d" % number, b"x"))
        assert cutter.pieces == expected


def test_parts_have_about_the_same_number_of_rows() -> None:
    world = filled()
    with world.session.snapshot("s") as snapshot:
        pieces = cut(snapshot, parts=8)
        assert len(pieces) == 8 and pieces[-1].until == snapshot.seq
        assert {piece.rows for piece in pieces[:-1]} == {13} and sum(p.rows for p in pieces) == 100
        assert len(cut(snapshot, parts=1000)) == 100


def test_a_limit_ends_the_cut_early_and_one_goes_on_behind_it() -> None:
    world = filled()
    with world.session.snapshot("s") as snapshot:
        every = cut(snapshot, rows=10)
        some = cut(snapshot, rows=10, limit=4)
        assert some == every[:4]
        assert cut(snapshot, rows=10, after=some[-1].until) == every[4:]
        assert cut(snapshot, rows=10, limit=len(every)) == every


def test_a_part_of_the_shards_and_of_the_sequences_is_cut_by_itself() -> None:
    world = filled(shards=8)
    with world.session.snapshot("s") as snapshot:
        until = snapshot.seq // 2
        for shards in ((3,), (0, 1, 2), (1, 5, 6)):
            pieces = cut(snapshot, rows=3, shards=shards, after=20, until=until)
            content = world.content(snapshot, shards=shards, until=until)
            content = [row for row in content if row[0] > 20]
            assert sum(piece.rows for piece in pieces) == len(content)
            assert pieces[-1].until == until


def test_a_range_without_rows_is_one_empty_piece_and_no_range_is_none() -> None:
    world = filled()
    with world.session.snapshot("s") as snapshot:
        assert cut(snapshot, after=snapshot.seq, rows=1) == []
        assert cut(snapshot) == [Piece(snapshot.seq, 100, snapshot.tally()[2])]
        first = world.content(snapshot)[0][0]
        assert cut(snapshot, until=first - 1, rows=1) == [Piece(first - 1, 0, 0)]
    world.declare("empty")
    with world.session.snapshot("empty") as snapshot:
        assert sum(piece.rows for piece in cut(snapshot, rows=1)) == 0


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"rows": 0}, "'rows' must be at least 1"),
        ({"bytes": 0}, "'bytes' must be at least 1"),
        ({"limit": 0}, "'limit' must be at least 1"),
        ({"parts": 4, "rows": 1}, "both were given"),
        ({"limit": PIECES_MAX + 1}, "go on with 'after'"),
        ({"parts": 10**9}, "at most 100000 pieces"),
        ({"rows": 1, "shards": (9,)}, "has the shards 0 to 0"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_words(how: dict[str, int], why: str) -> None:
    world = filled(3)
    with world.session.snapshot("s") as snapshot, pytest.raises(PreconditionFailed, match=why):
        Cutter(snapshot, **how)  # type: ignore[arg-type]


def test_one_step_makes_a_bounded_number_of_pieces() -> None:
    world = StreamWorld()
    world.declare("log", key="log")
    world.put(*((None, b"v") for _ in range(20_000)), to="log")
    with world.session.snapshot("log") as snapshot:
        cutter = Cutter(snapshot, rows=1, limit=PIECES_MAX)
        steps = 1
        before = 0
        while cutter.step():
            steps += 1
            assert len(cutter.pieces) - before <= 1024
            before = len(cutter.pieces)
        assert len(cutter.pieces) == 20_000 and steps == 20


def test_a_snapshot_that_expires_ends_its_cut_with_the_reason() -> None:
    world = filled()
    snapshot, _ = world.session.pin("s", "p", 1000)
    cutter = Cutter(snapshot, rows=1)
    assert cutter.step(5)
    world.rest(2000)
    world.session.stream("s", "read").expire_snapshots(snapshot.pin, "its lease ended")  # type: ignore[arg-type]
    with pytest.raises(PinExpired):
        cutter.step(5)


def test_what_lies_behind_the_end_or_the_beginning_is_known_at_once() -> None:
    world = filled()
    stream = world.stream()
    stream.caught_up()
    assert stream.behind(stream.boundary) == (0, 0)
    assert stream.behind(0) == (stream.live + stream.tombstones, stream.live_bytes)
    assert stream.behind(stream.first_seq) is None
    with world.session.snapshot("s") as snapshot:
        world.put((b"k1", b"held"))
        assert stream.behind(0) is None, "superseded rows are there that a walk must leave out"
        assert cut(snapshot)[0].rows == 100


# A log ------------------------------------------------------------------------------------------------


def test_in_a_log_rows_keep_their_keys_and_nothing_buries_anything() -> None:
    world = StreamWorld()
    stream = world.declare("log", key="log")
    world.put((b"k", b"1"), (b"k", b"2"), (None, b"3"), (b"k", None), (b"k", b"4"), to="log")

    expected = [(b"k", b"1"), (b"k", b"2"), (None, b"3"), (b"k", None), (b"k", b"4")]
    assert world.now("log") == expected
    assert (stream.live, stream.tombstones, stream.held) == (5, 0, 0)
    assert world.session.get("log", b"k") is None, "nothing is the newest of a key here"
    with world.session.snapshot("log") as snapshot:
        assert snapshot.tally() == (4, 1, 4)

    world.rest(30 * 86_400_000)
    assert world.now("log") == expected, "a delete in a log is a row like any other"
    world.compact()
    again = world.crash()
    assert again.now("log") == expected
    assert (again.stream("log").live, again.stream("log").tombstones) == (5, 0)
