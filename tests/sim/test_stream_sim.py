"""Streams of a whole broker on a disk that loses, tears and fills up. A failing seed prints how to replay it.

S-18 and S-19 as far as one node goes, K-8, K-17, K-19, K-29, K-34, K-35.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tidemark.broker.broker import Broker
from tidemark.broker.streams import commit
from tidemark.broker.streams.copies import Copier
from tidemark.broker.streams.ends import NOTHING, Ends, Step
from tidemark.broker.streams.marks import Marks
from tidemark.broker.streams.pins import Pin, Pins
from tidemark.broker.streams.producers import Producers
from tidemark.broker.streams.retention import Keeper
from tidemark.broker.streams.state import State
from tidemark.broker.streams.stream import Stream
from tidemark.broker.streams.truncation import Truncation
from tidemark.errors import PreconditionFailed
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import BrokenPromise
from tidemark.sim.streams import StreamRun, run_seed
from tidemark.speed import PURE
from tidemark.store.checkpoint import Checkpointer
from tidemark.store.compaction import Compactor
from tidemark.store.journal import Journal

GROUPS, SEEDS_PER_GROUP = (20, 50) if not PURE else (2, 5)


@pytest.mark.parametrize("group", range(GROUPS))
def test_whatever_happens_streams_give_the_answers_of_plain_lists(group: int) -> None:
    for seed in range(group * SEEDS_PER_GROUP, (group + 1) * SEEDS_PER_GROUP):
        run_seed(seed)


@pytest.mark.parametrize("seed", [20448, 22052, 22088])
def test_seeds_that_once_found_something_stay_clean(seed: int) -> None:
    """Two starts from a checkpoint, and nothing alive between: a search by time got stuck there."""
    run_seed(seed)


def test_the_runs_do_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen.update(run_seed(seed).counts)
    few = {
        "checkpoints": 50,
        "compactions": 50,
        "conflicts": 50,
        "copies": 30,
        "copies refused": 30,
        "crashes": 150,
        "ended": 50,
        "expired": 3,
        "full": 3,
        "leases ended": 20,
        "looked back": 20,
        "made anew": 10,
        "markers": 100,
        "pins read": 300,
        "purges": 20,
        "resets": 5,
        "resumed": 20,
        "sent again": 50,
        "tombstones purged": 50,
        "torn": 5,
        "truncated": 100,
    }
    assert {what: seen[what] for what, least in few.items() if seen[what] < least} == {}


def test_the_same_seed_replays_the_same_run() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        StreamRun(11, say=story.append).run()
    assert stories[0] == stories[1]


# Bugs on purpose: the simulator must find them --------------------------------------------------


def lets_go_of_what_snapshots_see(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "hold", lambda *_: None)
    patch.setattr(Stream, "unhold", lambda *_: None)


def lets_go_of_what_is_not_superseded_durably(patch: pytest.MonkeyPatch) -> None:
    honest = Stream.tidy

    def tidy(self: Stream) -> None:
        honest(self)
        self.release(self.arena.next_seq)

    patch.setattr(Stream, "tidy", tidy)


def forgets_pins_over_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pins, "restored", lambda *_: None)


def holds_pins_too_late_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    honest = Pins.restored

    def restored(self: Pins, *record: Any) -> None:
        self._stream.release(self._stream.arena.next_seq)
        honest(self, *record)

    patch.setattr(Pins, "restored", restored)


def keeps_pins_whose_lease_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pin, "lease_ended", lambda *_: None)


def compacts_away_what_pins_see(patch: pytest.MonkeyPatch) -> None:
    honest = Broker.holds

    def holds(self: Broker, number: int, seq: int) -> bool:
        stream: Any = self.queues.get(number)
        if stream is not None and stream.keeps and stream.holds(seq):
            key = stream.key_at(stream.place(seq))
            newest = stream.current(key) if key is not None else None
            return newest is None or bool(newest[0] == seq)
        return honest(self, number, seq)

    patch.setattr(Broker, "holds", holds)


def drops_tombstones_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Compactor, "_may_be_undone", lambda *_: False)


def purges_what_consumers_have_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "_passed", lambda self, _: self._stream.caught_up())


def does_not_tell_who_missed_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "check_deletes", lambda *_: None)


def ends_by_the_last_step_only(patch: pytest.MonkeyPatch) -> None:
    honest = Ends.restored

    def restored(self: Ends, body: dict[str, Any]) -> None:
        honest(self, {**body, "steps": body["steps"][-1:]})

    patch.setattr(Ends, "restored", restored)


def forgets_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    def apply(self: Ends, step: Step, before: Step) -> None:
        if before is not NOTHING or step is self.last:
            honest(self, step, before)

    honest = Ends._apply
    patch.setattr(Ends, "_apply", apply)
    patch.setattr(Ends, "restored", lambda *_: None)


def notes_producers_in_a_frame_of_their_own(patch: pytest.MonkeyPatch) -> None:
    honest = Producers.note

    def note(self: Producers, *what: Any) -> int:
        self._state._journal.flush(what[4])
        return honest(self, *what)

    patch.setattr(Producers, "note", note)


def forgets_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "restored", lambda *_: None)


def confirms_marks_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = Marks.move

    def move(self: Marks, *where: Any) -> int:
        honest(self, *where)
        return self._stream.broker.journal.durable_seq

    patch.setattr(Marks, "move", move)


def confirms_pins_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = Pins.pin

    def pin(self: Pins, *what: Any) -> Pin:
        made = honest(self, *what)
        made.safe_at = self._stream.broker.journal.durable_seq
        return made

    patch.setattr(Pins, "pin", pin)


def moves_marks_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "tidemark.broker.streams.marks._moved", lambda point, seq, end: point._replace(seq=seq, end=end)
    )


def does_not_look_at_conditions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "_check_expected", lambda *_: None)


def cuts_batches_in_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "ensure", lambda *_: None)


def shows_streams_up_to_different_frames(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "_show_part", lambda *_: None)


def shows_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    honest = Stream.caught_up

    def caught_up(self: Stream) -> int:
        honest(self)
        self.boundary = max(self.boundary, self.last_seq)
        return self.boundary

    patch.setattr(Stream, "caught_up", caught_up)


def keeps_old_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "tidy", lambda *_: None)


def names_a_checkpoint_before_the_journal_is_durable(patch: pytest.MonkeyPatch) -> None:
    def look(self: Checkpointer, now_ms: int) -> None:
        patch.setattr(self._journal, "passed", lambda _: True)
        honest(self, now_ms)
        patch.delattr(self._journal, "passed")

    honest = Checkpointer._look
    patch.setattr(Checkpointer, "_look", look)


def skips_staged_rows_that_are_not_there(patch: pytest.MonkeyPatch) -> None:
    honest = Copier.step

    def step(self: Copier) -> bool:
        try:
            return honest(self)
        except PreconditionFailed:
            return bool(self._work)

    patch.setattr(Copier, "step", step)


def copies_in_a_frame_of_its_own(patch: pytest.MonkeyPatch) -> None:
    honest = commit.put_rows

    def put_rows(stream: Any, journal: Any, *what: Any) -> tuple[int, int]:
        journal.flush(what[1])
        return honest(stream, journal, *what)

    patch.setattr(commit, "put_rows", put_rows)


def truncates_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def step(self: Truncation, now_ms: int, look_max: int | None = None) -> bool:
        self.ended += self._stream.end_below(self._upto + 1, self._stream.arena.next_seq)
        self._after = self._upto
        return False

    patch.setattr(Truncation, "step", step)


def does_not_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "_sync", lambda *_: None)


BUGS = [
    lets_go_of_what_snapshots_see,
    lets_go_of_what_is_not_superseded_durably,
    forgets_pins_over_a_restart,
    holds_pins_too_late_after_a_restart,
    keeps_pins_whose_lease_has_ended,
    compacts_away_what_pins_see,
    drops_tombstones_too_early,
    purges_what_consumers_have_not_seen,
    does_not_tell_who_missed_deletes,
    ends_by_the_last_step_only,
    forgets_what_has_ended,
    notes_producers_in_a_frame_of_their_own,
    forgets_producers,
    confirms_marks_too_early,
    confirms_pins_too_early,
    moves_marks_back,
    does_not_look_at_conditions,
    cuts_batches_in_two,
    shows_streams_up_to_different_frames,
    shows_what_is_not_durable,
    keeps_old_state,
    names_a_checkpoint_before_the_journal_is_durable,
    skips_staged_rows_that_are_not_there,
    copies_in_a_frame_of_its_own,
    truncates_in_memory_only,
    does_not_sync,
]


@pytest.mark.skipif(PURE, reason="the runs are the same, only slower")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(BrokenPromise, match=r"python -m tidemark\.sim\.streams --seed"):
        run_seeds(1000)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_seed(seed)
