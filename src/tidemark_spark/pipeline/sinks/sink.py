"""What every sink can do.

A sink is used by one thread of the driver, from `open` to `close`. It keeps rows and mark in one transaction of its
own system: after a crash at any moment it holds either both or neither. A sink whose system has no transactions over
both (files, say) writes the rows so that they only count once the mark is there.

Invariant: after `apply` returned, and after any crash in it, what the sink shows is exactly what its mark says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark_spark.pipeline.values import Applied, Change, Digest, Mark, Mode


class Sink(Protocol):
    def open(self) -> Mark | None:
        """Connect, and say how far this sink has got; None when it holds nothing of this pipeline.

        Raises:
            SinkUnavailable: it cannot be reached; worth trying again.
            SinkRefused: it can be reached, and says no; trying again does not help.
        """
        ...

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        """Make the table (index, folder, …) for rows of this schema, or see that the one that is there fits.

        A column that the table does not have yet is added, where the system can do that; a column whose type differs
        is refused.

        Raises:
            SchemaDrift: the rows do not fit what is there; says which column, and both types.
            SinkUnavailable, SinkRefused
        """
        ...

    def apply(self, change: Change) -> Applied:
        """Do all of the change and store its mark, in one transaction; nothing if `decide` says that it is there.

        Upserts replace the row with their key. Deletes of keys that are not there are fine.

        Raises:
            SinkBehind, SinkOfAnotherQuery: as `decide`.
            RowRefused: a row does not fit (names its key and sequence). Nothing was applied.
            SinkUnavailable, SinkRefused: nothing was applied, or all was: asking `open` tells.
        """
        ...

    def digest(self) -> Digest:
        """Which versions the sink holds now, read back from it. Mode mirror only."""
        ...

    def reset(self, drop: bool) -> None:
        """Forget the mark; with `drop` also remove all rows. The next batch starts from the beginning."""
        ...

    def close(self) -> None: ...
