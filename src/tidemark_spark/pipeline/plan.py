"""What a run would do: who reads what, how much lies before each sink, in how many batches and tasks. Drawn as a tree.

Only the brokers and the sinks' marks are asked; Spark is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidemark.errors import TidemarkError
from tidemark_spark.pipeline.status import behind, held_mark
from tidemark_spark.pipeline.tracking import reached

if TYPE_CHECKING:
    from rich.tree import Tree

    from tidemark_spark.pipeline.file import Pipeline, SinkTable


@dataclass(frozen=True, slots=True)
class SourcePlan:
    source: str
    stream: str
    rows: int | None
    """What is to be read, in unique keys; None: the broker does not say."""
    shards: int | None
    batches: int | None
    tasks: int | None
    """Of one batch, unless the source's options say otherwise."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class SinkPlan:
    sink: str
    kind: str
    mode: str
    steps: tuple[str, ...]
    """Transforms and expectations on the way, from the sink back to its sources."""
    start: str
    sources: tuple[SourcePlan, ...]
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(pipeline: Pipeline, tables: Sequence[SinkTable]) -> list[SinkPlan]:
    return [_plan(pipeline, table) for table in tables]


def _plan(pipeline: Pipeline, table: SinkTable) -> SinkPlan:
    chain = pipeline.chain(table)
    mark, problem = None, None
    try:
        mark = held_mark(pipeline, table)
        at = reached(mark)
        start = "from the beginning (back-fill)" if at is None else f"from sequence {at}"
    except TidemarkError as error:
        start, problem = "not known", str(error)
    steps = []
    for transform in reversed(chain.transforms):
        what = " ".join((transform.sql or "").split()) or f"python {transform.python}"
        steps += [
            f"expect {one.name}: {one.check}, otherwise {one.otherwise}"
            for one in chain.expectations
            if one.on == transform.name
        ]
        steps.append(f"{transform.name}: {what}")
    for source in chain.sources:
        steps += [
            f"expect {one.name}: {one.check}, otherwise {one.otherwise}"
            for one in chain.expectations
            if one.on == source.name
        ]
    sources = []
    for source in chain.sources:
        try:
            rows, _, shards = behind(source, mark)
            batches = math.ceil(rows / pipeline.max_rows_per_batch)
            least = int(source.options.get("minPartitions", 0))
            sources.append(
                SourcePlan(source.name, source.stream, rows, shards, batches, max(shards, least), None)
            )
        except TidemarkError as error:
            sources.append(SourcePlan(source.name, source.stream, None, None, None, None, str(error)))
    return SinkPlan(table.name, table.kind, table.mode, tuple(steps), start, tuple(sources), problem)


def tree(pipeline: Pipeline, plans: Sequence[SinkPlan]) -> Tree:
    """The plan as people read it: sinks, what they are made by, and where that comes from."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"pipeline {pipeline.name}", style="bold"))
    root.add(
        Text(
            f"every {pipeline.trigger}, at most {pipeline.max_rows_per_batch:,} rows a batch; state in {pipeline.state}",
            style="dim",
        )
    )
    for one in plans:
        branch = root.add(Text.assemble((one.sink, "bold"), f"  {one.kind}, {one.mode}, {one.start}"))
        if one.problem:
            branch.add(Text(one.problem, style="red"))
        here = branch
        for step in one.steps:
            here = here.add(Text(step if len(step) < 120 else step[:117] + "…"))
        for source in one.sources:
            if source.problem:
                here.add(Text(f"{source.source}: stream {source.stream}: {source.problem}", style="red"))
                continue
            shards = "1 shard" if source.shards == 1 else f"{source.shards} shards"
            batches = (
                "nothing to do"
                if source.rows == 0
                else f"{source.batches} batch{'es' if source.batches != 1 else ''} of {source.tasks} task{'s' if source.tasks != 1 else ''}"
            )
            here.add(
                Text(
                    f"{source.source}: stream {source.stream}, {shards}, {source.rows:,} rows to go: {batches}"
                )
            )
    return root
