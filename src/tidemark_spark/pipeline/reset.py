"""Start a sink over: its mark, Spark's checkpoint, and what the broker keeps for it.

Without `drop` the rows stay, and the next run puts every key of the stream over them; keys that were deleted in the stream
meanwhile may stay in the sink. Rows of mode append have no key: all of them would be there twice, so that is refused.
With `drop` the rows go too, and the sink is filled anew.

Invariant: the sink forgets its mark first. Whatever fails after that, the next run begins at the beginning.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import tidemark.client
from tidemark.errors import TidemarkError
from tidemark_spark.errors import SinkRefused
from tidemark_spark.pipeline.checkpoint import LocalFiles
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.status import locked

if TYPE_CHECKING:
    from tidemark_spark.pipeline.file import Pipeline, SinkTable, Source


def reset(pipeline: Pipeline, table: SinkTable, *, drop: bool) -> list[str]:
    """Let one sink begin anew; what was done, a sentence each.

    Raises:
        PipelineRuns: stop it first.
        SinkUnavailable, SinkRefused: nothing was changed.
    """
    done = []
    if table.mode == "append" and not drop and table.kind != "amqp":  # messages cannot be taken back
        raise SinkRefused(
            sink=table.name,
            problem="its rows (mode append) have no key, so all of them would be there twice; use --drop, which removes them first",
        )
    with locked(pipeline):
        sink = make_sink(table.name, pipeline.name, table.kind, table.options)
        try:
            sink.open()
            sink.reset(drop)
        finally:
            sink.close()
        done.append(
            "the sink forgot its mark"
            + (" and its rows" if drop else "; keys that are deleted in the stream may stay")
        )
        folder = pipeline.checkpoint(table.name, "").rstrip("/")
        if "://" in folder and not folder.startswith("file:"):
            done.append(f"delete the checkpoint {folder} yourself: it is not on this machine")
        else:
            LocalFiles(folder).remove()
            done.append("its checkpoint is deleted")
        shutil.rmtree(pipeline.state / table.name, ignore_errors=True)
        for source in pipeline.chain(table).sources:
            try:
                done += _forget(pipeline, table, source)
            except (TidemarkError, ValueError) as error:
                done.append(
                    f"the broker was not told ({error}); what it keeps for this sink ends with its lease"
                )
    return done


def _forget(pipeline: Pipeline, table: SinkTable, source: Source) -> list[str]:
    """Release the pins and the mark of this sink's queries."""
    roles = ("", source.name, f"rejected-{source.name}")
    groups = {pipeline.consumer(table.name, role) for role in roles}
    done = []
    with tidemark.client.connect(source.url, timeout=10.0, name="tidemark pipeline reset") as db:
        orders = db.stream(source.stream)
        pins = [one.name for one in orders.pins() if group_of_pin(one.name) in groups]
        for name in pins:
            with contextlib.suppress(TidemarkError):
                orders.pinned(name).release()
        marks = [one.consumer for one in orders.marks() if one.consumer in groups]
        for name in marks:
            with contextlib.suppress(TidemarkError):
                orders.unregister(name)
        if pins or marks:
            done.append(
                f"stream {source.stream} keeps nothing for it any more ({len(pins)} pins, {len(marks)} marks)"
            )
    return done


def group_of_pin(name: str) -> str | None:
    """Whose a pin of the connector is: `spark.<group>.<query>.<its own>`."""
    words = name.split(".")
    return ".".join(words[1:-2]) if words[0] == "spark" and len(words) > 3 else None
