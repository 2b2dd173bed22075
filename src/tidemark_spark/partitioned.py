"""A partitioned stream as one DataFrame: a source for each partition, joined by UNION ALL.

Spark logs an offset for each source of a query, so every partition has its place in the checkpoint, its pins and its marks, and
a query over all of them is exactly once for the same reasons as one over a single stream. The partitions are always in the
same order, which is how Spark tells them apart when a query starts again; their number is for ever.

`options_of` is what each of them is told: what the user said, but for places in the stream, which each partition has for itself.

Invariant: a place in one partition is never taken for a place in another.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tidemark.client
from tidemark.client import operations as ops
from tidemark.client.address import with_group
from tidemark.errors import NotFound, TidemarkError
from tidemark.model.wiring import MAIN
from tidemark_spark.errors import OptionError
from tidemark_spark.options import READ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidemark.client.values import Partition

CONNECT_S = 30.0
POLL_MS = 1000
"""How long all partitions together wait for news, one after the other."""
PLACES = ("startingOffsets", "endingOffsets")
OF_ONE = {
    "tidemark.url": "is the argument url",
    "subscribe": "is the argument stream",
    "queue": "is no partitioned stream; read it with spark.readStream",
    "diff": "is of two sequences of one stream; read the partitions one by one",
}


def read_partitioned(
    spark: SparkSession,
    *,
    url: str,
    stream: str,
    streaming: bool,
    schema: str | StructType | None,
    partition_column: str | None,
    options: Mapping[str, Any],
) -> DataFrame:
    """See `tidemark_spark.read_partitioned`."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812

    partitions = partitions_of(url, stream)
    frames = []
    for number, (one, told) in enumerate(
        zip(partitions, options_of(options, [one.stream for one in partitions], streaming), strict=True)
    ):
        reader: Any = (spark.readStream if streaming else spark.read).format("tidemark")
        if schema is not None:
            reader = reader.schema(schema)
        home = url if one.group == MAIN else with_group(url, one.group)
        place = {"tidemark.url": home, "subscribe": one.stream}
        frame: DataFrame = reader.options(**place, **told).load()
        if partition_column is not None:
            frame = frame.withColumn(partition_column, F.lit(number))
        frames.append(frame)
    return functools.reduce(DataFrame.union, frames)


def partitions_of(url: str, stream: str) -> tuple[Partition, ...]:
    """The partitions of a stream, in order, each with the group of the cluster that it lives in.

    Raises:
        OptionError: there is no such partitioned stream.
        NotConnected, LoginRefused, …: as the client does.
    """
    try:
        with tidemark.client.connect(url, timeout=CONNECT_S, name="tidemark-spark") as db:
            partitions = db.call(ops.partitions(stream)).partitions
            for one in partitions:
                if one.group != db.group_name:
                    with contextlib.suppress(TidemarkError):  # its source tells what is wrong with it
                        db.stream(one.stream)  # if its group lacks it, it is made there
            return partitions
    except NotFound as problem:
        raise OptionError(
            option="stream",
            problem=f"{problem}. A stream that has no partitions is read with spark.read or spark.readStream and the option "
            f"subscribe",
        ) from None
    except ValueError as problem:
        raise OptionError(option="url", problem=str(problem)) from None


def options_of(
    given: Mapping[str, Any], partitions: Sequence[str], streaming: bool = True
) -> list[dict[str, str]]:
    """The options of each partition's source.

    Raises:
        OptionError: one that can only be about a single stream.
    """
    known = {option.name.lower(): option.name for option in READ}
    # As Spark's reader does it: True is "true".
    said = {
        known.get(name.lower(), name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    for name, problem in OF_ONE.items():
        if name in said:
            raise OptionError(option=name, problem=problem)
    if len(partitions) > 1 and said.get("asOf", "").strip().isdecimal():
        raise OptionError(
            option="asOf",
            problem="must be a time: each of the partitions has sequences of its own. Each shows its own state of that moment",
        )
    if streaming:
        said.setdefault("pollTimeout", f"{max(POLL_MS // len(partitions), 20)}ms")
    found = [dict(said) for _ in partitions]
    for name in PLACES:
        if name in said and said[name].strip().startswith("{"):
            for one, place in zip(found, _places(name, said[name], partitions), strict=True):
                one[name] = place
    return found


def _places(option: str, value: str, partitions: Sequence[str]) -> list[str]:
    """What is said of each partition."""
    try:
        places = json.loads(value)
    except ValueError:
        places = {}
    if sorted(places) != sorted(partitions):
        raise OptionError(
            option=option,
            problem=f"must name a place in each partition, such as {{{partitions[0]!r}: {{'0': 900}}, …}} as JSON, for "
            f"{', '.join(partitions)}; not {value!r}",
        )
    return [json.dumps(places[one]) for one in partitions]
