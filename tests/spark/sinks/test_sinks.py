"""The contract of sinks: what holds for every kind of them, whatever is killed.

`place` goes through all kinds; the model in `helpers.sink_model` knows what must be there after which batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import sink_model as model

from tidemark_spark.errors import OptionError, SinkAhead, SinkBehind, SinkOfAnotherQuery
from tidemark_spark.pipeline.values import Applied

if TYPE_CHECKING:
    from spark.sinks.conftest import Place

KILLS = {"duckdb": 10, "postgres": 10, "parquet": 10, "delta": 10}
"""How often a driver is killed. The others have one mechanism a family (a transaction of the broker for stream and amqp), or
are slow to start over."""
KILLS_OF_OTHERS = 4


def after(batch: int) -> model.Digest:
    return model.digest(model.state(batch))


# Batches in order ----------------------------------------------------------------------------------


def test_a_fresh_sink_has_no_mark(place: Place) -> None:
    assert place.make().open() is None


def test_upserts_replace_rows_and_deletes_remove_them(place: Place) -> None:
    sink = place.ready()
    for batch in range(6):
        change = model.change(batch)
        applied = sink.apply(change)
        assert not applied.skipped
        assert applied.upserted == change.upserts.num_rows
        assert applied.deleted <= change.deletes.num_rows
        assert place.digest(sink) == after(batch)


def test_a_batch_that_comes_again_is_skipped(place: Place) -> None:
    sink = place.ready()
    sink.apply(model.change(0))
    sink.apply(model.change(1))

    assert sink.apply(model.change(1)) == Applied(skipped=True)
    assert sink.apply(model.change(0)) == Applied(skipped=True)
    assert place.digest(sink) == after(1)


def test_a_batch_that_begins_behind_the_mark_is_refused(place: Place) -> None:
    sink = place.ready()
    sink.apply(model.change(0))

    with pytest.raises(SinkBehind, match="up to sequence 100, but the next batch begins at 200"):
        sink.apply(model.change(2))
    assert place.digest(sink) == after(0)


def test_a_sink_that_lost_its_mark_takes_no_batch_from_the_middle(place: Place) -> None:
    with pytest.raises(SinkBehind, match="up to sequence 0"):
        place.ready().apply(model.change(3))


def test_a_batch_of_which_the_sink_holds_a_part_is_refused_and_nothing_of_it_is_put(place: Place) -> None:
    """M2: it is a zombie's; what it brings comes again from where the sink is."""
    sink = place.ready()
    sink.apply(model.change(0))
    sink.apply(model.change(1))

    with pytest.raises(SinkAhead):
        sink.apply(model.change(1, 3))
    assert place.digest(sink) == after(1)
    assert not sink.apply(model.change(2, 3)).skipped
    assert place.digest(sink) == after(3)


def test_a_new_checkpoint_goes_on_where_the_sink_is(place: Place) -> None:
    sink = place.ready()
    sink.apply(model.change(0, 2, number=40))

    assert not sink.apply(model.change(3, query="another", number=0)).skipped
    assert sink.apply(model.change(3, query="another", number=0)).skipped
    assert place.digest(sink) == after(3)


def test_an_empty_batch_moves_the_mark(place: Place) -> None:
    sink = place.ready()
    sink.apply(model.change(0))
    before = place.digest(sink)

    assert sink.apply(model.empty_change(1)) == Applied(skipped=False)
    assert place.digest(sink) == before
    assert place.make().open() == model.empty_change(1).mark


def test_a_first_batch_may_be_empty(place: Place) -> None:
    sink = place.ready()
    assert sink.apply(model.empty_change(0)) == Applied(skipped=False)
    sink.close()
    assert place.make().open() == model.empty_change(0).mark


def test_deletes_of_keys_that_are_not_there_are_fine(place: Place) -> None:
    sink = place.ready()
    change = model.change(0)
    sink.apply(change)
    nothing = model.rows([])
    gone = model.keys([("never-there", 150)])
    later = model.change(1)

    sink.apply(type(later)(later.mark, later.start, nothing, gone))
    assert place.digest(sink) == after(0)
    assert place.make().open() == later.mark


# Coming back ---------------------------------------------------------------------------------------


def test_a_sink_that_is_opened_again_knows_its_mark_and_rows(place: Place) -> None:
    first = place.ready()
    first.apply(model.change(0))
    first.apply(model.change(1))
    first.close()

    again = place.make()
    assert again.open() == model.change(1).mark
    again.prepare(model.SCHEMA, "mirror")
    assert place.digest(again) == after(1)
    again.apply(model.change(2))
    assert place.digest(again) == after(2)


def test_two_sinks_with_other_names_have_marks_of_their_own(place: Place) -> None:
    if place.kind in ("parquet", "search"):
        pytest.skip("a folder belongs to one sink")
    first = place.ready()
    first.apply(model.change(0))

    from tidemark_spark.pipeline.sinks import make_sink

    other = make_sink("other", model.PIPELINE, place.kind, place.options)
    place.opened.append(other)
    assert other.open() is None
    assert place.make().open() == model.change(0).mark


def test_reset_without_drop_forgets_the_mark_and_keeps_the_rows(place: Place) -> None:
    sink = place.ready()
    sink.apply(model.change(0, 3))
    sink.reset(drop=False)
    sink.close()

    again = place.make()
    assert again.open() is None
    again.prepare(model.SCHEMA, "mirror")
    assert place.digest(again) == after(3)
    again.apply(model.change(0, 4))
    assert place.digest(again) == after(4)


def test_reset_with_drop_starts_from_nothing(place: Place) -> None:
    if place.kind == "amqp":
        pytest.skip("what was published cannot be taken back")
    sink = place.ready()
    sink.apply(model.change(0, 3))
    sink.reset(drop=True)
    sink.close()

    again = place.make()
    assert again.open() is None
    again.prepare(model.SCHEMA, "mirror")
    assert place.digest(again) == model.digest({})
    again.apply(model.change(0))
    assert place.digest(again) == after(0)


def test_results_of_another_checkpoint_are_refused(place: Place) -> None:
    if place.kind == "redis":
        pytest.skip("Redis has no mode append")
    sink = place.make(**({"routing_key": "{name}"} if place.kind == "amqp" else {}))
    sink.open()
    rows = model.rows([("a", 1), ("b", 2)]).drop_columns(["_key", "_sequence"])
    sink.prepare(rows.schema, "append")
    sink.apply(model.result(rows, "append", 0))

    assert sink.apply(model.result(rows, "append", 0)).skipped
    with pytest.raises(SinkOfAnotherQuery):
        sink.apply(model.result(rows, "append", 1, query="another"))


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(place: Place) -> None:
    with pytest.raises(OptionError, match="did you mean 'key_column'"):
        place.make(key_colum="id")


# Whatever is killed --------------------------------------------------------------------------------


def test_after_kill_9_at_any_moment_a_sink_holds_what_its_mark_says(place: Place) -> None:
    kills = KILLS.get(place.kind, KILLS_OF_OTHERS)
    seen = place.run("crash", rounds=kills)

    assert len(seen["held"]) == kills
    assert seen["held"] == sorted(seen["held"])
    assert seen["confirmed"] >= kills


def test_two_drivers_at_once_apply_every_batch_once(place: Place) -> None:
    batches = 25
    seen = place.run("race", batches=batches)

    if place.kind == "opensearch":  # the one that is behind finds newer documents, and stops
        assert 0 in seen["codes"]
        return
    assert seen["codes"] == [0, 0], seen["errors"]
    assert sum(seen["applied"]) == batches
    assert sum(seen["skipped"]) == batches
    assert seen["held"] == batches - 1
