"""What must be true of rows, and what becomes of those of which it is not.

A check that is not true, false or unknown, fails. A row that fails any check is not in the view: what reads the view
never sees it, and a mirror deletes its key. Where the checks are told apart is the driver: rows that are to be dead
letters are put there, `fail` stops the sink before anything of the batch is applied, `drop` is counted.

Invariant: a row with an empty `FAILED` passed every expectation on its view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tidemark_spark.errors import ExpectationFailed, TransformationRefused
from tidemark_spark.pipeline.decode import BAD, DELETED, one_line
from tidemark_spark.pipeline.file import Expectation, Otherwise, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAILED = "__failed"
"""The names of the checks that a row failed; null when it passed them all."""
SHOWN_BYTES = 2000
DECODES = "decodes"
"""The expectation that every source has without being asked."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that failed."""

    on: str
    """The source or transform where it did."""
    failed: tuple[str, ...]
    key: bytes | None
    """As it is in the stream; None in a stream without keys."""
    shown: str
    """The key for people."""
    sequence: int
    value: bytes

    def to_json(self) -> dict[str, object]:
        """For people: what is long is cut, and what is no text is shown as far as it is."""
        shown = self.value[:SHOWN_BYTES].decode("utf-8", "replace")
        return {
            "on": self.on,
            "failed": list(self.failed),
            "key": self.shown,
            "sequence": self.sequence,
            "value": shown,
            "cut": len(self.value) > SHOWN_BYTES,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about a batch's rejected rows."""

    dead: tuple[Rejected, ...]
    dropped: int


def with_failures(
    view: DataFrame, on: str, expectations: Sequence[Expectation], *, source: bool
) -> DataFrame:
    """The view with a column that names, for each row, the checks that it failed.

    Raises:
        TransformationRefused: a check does not compile.
    """
    good = F.lit(True)
    names = []
    for one in expectations:
        if one.on != on:
            continue
        try:
            view.select(F.expr(one.check).cast("boolean"))
        except PySparkException as error:
            raise TransformationRefused(
                step=f"[[expect]] '{one.name}' check", problem=one_line(error)
            ) from None
        holds = F.coalesce(F.expr(one.check).cast("boolean"), F.lit(False))
        good = good & holds
        names.append(F.when(~holds, F.lit(one.name)))
    # Most rows are good, and are told so without making a list.
    nothing = F.lit(None).cast("array<string>")
    failed = F.when(~good, F.array_compact(F.array(*names))).otherwise(nothing) if names else nothing
    if source:
        decodes = F.array(F.lit(DECODES))
        failed = F.when(F.col(DELETED), nothing).when(F.col(BAD), decodes).otherwise(failed)
    return view.withColumn(FAILED, failed)


def judge(
    rejected: Iterable[Rejected], sources: Sequence[Source], expectations: Sequence[Expectation], sink: str
) -> Verdict:
    """Which of the rejected rows become dead letters; of several failed checks the strictest decides.

    Raises:
        ExpectationFailed: one of them stops the sink.
    """
    rules: Mapping[tuple[str, str], Otherwise] = {(one.name, DECODES): one.otherwise for one in sources} | {
        (one.on, one.name): one.otherwise for one in expectations
    }
    rows = sorted(rejected, key=lambda one: one.sequence)
    fatal = [
        (one, name) for one in rows for name in one.failed if rules.get((one.on, name), "fail") == "fail"
    ]
    if fatal:
        row, name = fatal[0]
        raise ExpectationFailed(
            sink=sink, on=row.on, expectation=name, key=row.shown, sequence=row.sequence, rows=len(fatal)
        )
    dead = tuple(one for one in rows if any(rules[one.on, name] == "dead-letter" for name in one.failed))
    return Verdict(dead, len(rows) - len(dead))
