"""Options of the connector: what there is, what each may be, and a sentence for everything else.

An option is one row of a table (`READ` here, the writer has its own): its name, how its text is read, its default and
one line about it. `parse_options` reads what a user gave by that table; `ReadOptions` is the result for reading, with
what makes no sense together refused. Names are those of spark-sql-kafka wherever the meaning is the same. Spark gives
names in lower case, so case does not matter.

Invariant: an option that is not in the table, or a value that cannot be, is an `OptionError` before anything is read.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from tidemark.client.address import parse_url
from tidemark.client.cluster import ReadFrom, read_from_of
from tidemark_spark.errors import OptionError

Mode: TypeAlias = Literal["batch", "stream"]

UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
UNITS_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}
LATEST = -1
"""In offsets by shard, as in spark-sql-kafka: where the stream ends …"""
EARLIEST = -2
"""… and where it begins."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table of options."""

    name: str
    read: Callable[[str], Any]
    """The value that a text stands for; raises ValueError with what is allowed."""
    default: Any
    about: str
    modes: tuple[Mode, ...] = ("batch", "stream")
    """Which reads know it. Tables of writers leave it as it is."""


# How a text is read --------------------------------------------------------------------------------


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def url(value: str) -> str:
    """`tidemark://user:password@host:port,host:port/vhost`."""
    parse_url(value)
    return value


def flag(value: str) -> bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"must be true or false, not {value!r}")


def count(value: str) -> int:
    """A whole number, 1 or more."""
    if re.fullmatch(r"[0-9][0-9_]*", value.strip()) and (number := int(value)) > 0:
        return number
    raise ValueError(f"must be a whole number, 1 or more, not {value!r}")


def duration(value: str) -> float:
    """Seconds, from a text such as 500ms, 90s, 15m, 1h; a bare number is seconds."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", value.lower())
    if found and (unit := UNITS_S.get(found[2].rstrip("s") if len(found[2]) > 2 else found[2] or "s")):
        return float(found[1]) * unit
    raise ValueError(f"must be a time such as 500ms, 90s, 15m or 1h, not {value!r}")


def size(value: str) -> int:
    """Bytes, from a text such as 1048576, 512k, 2m, 1g."""
    found = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", value.lower())
    if found and found[2] in UNITS_BYTES and int(found[1]):
        return int(found[1]) * UNITS_BYTES[found[2]]
    raise ValueError(f"must be a size such as 1048576, 512k, 2m or 1g, not {value!r}")


def moment(value: str) -> int:
    """Milliseconds since 1970, from such a number or an ISO time; a time without a zone is UTC."""
    if value.strip().isdecimal():
        return int(value)
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(
            f"must be milliseconds since 1970 or an ISO time such as 2025-01-31T12:00:00Z, not {value!r}"
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


# Offsets as a user writes them ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """A time: milliseconds since 1970."""

    ms: int


@dataclass(frozen=True, slots=True)
class ByShard:
    """A sequence for each shard, or for all when there is only one; with the history where the user gave it."""

    shards: tuple[tuple[int, str | None, int], ...]
    """(shard, history, sequence); LATEST and EARLIEST stand for the ends."""
    stream: str | None = None


Place: TypeAlias = Literal["earliest", "latest", "group"] | ByShard | Moment


def starting(value: str) -> Place:
    """`earliest`, `latest`, `group`, or JSON such as {"0": 900}."""
    word = value.strip().lower()
    if word in ("earliest", "latest", "group"):
        return word  # type: ignore[return-value]
    return _by_shard(value, 'must be earliest, latest, group, or JSON such as {"0": 900, "1": 900}')


def ending(value: str) -> Place:
    """`latest`, or JSON."""
    if value.strip().lower() == "latest":
        return "latest"
    found = _by_shard(value, 'must be latest, or JSON such as {"0": 900, "1": 900}')
    if any(sequence == EARLIEST for _, _, sequence in found.shards):
        raise ValueError(f"a read cannot end at the beginning ({EARLIEST})")
    return found


def _by_shard(value: str, allowed: str) -> ByShard:
    try:
        given = json.loads(value)
    except ValueError:
        raise ValueError(f"{allowed}, not {value!r}") from None
    stream = None
    if isinstance(given, dict) and len(given) == 1:
        [(stream, inner)] = given.items()
        if isinstance(inner, dict):
            given = inner
        else:
            stream = None
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{allowed}, not {value!r}")
    found = []
    for shard, place in given.items():
        history, sequence = place if isinstance(place, list) and len(place) == 2 else (None, place)
        is_number = isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= EARLIEST
        if not (shard.isdecimal() and is_number and isinstance(history, str | None)):
            raise ValueError(
                f"{allowed}; {shard!r}: {place!r} is not a shard with a sequence (or [history, sequence]), "
                f"{LATEST} for latest, {EARLIEST} for earliest"
            )
        found.append((int(shard), history, sequence))
    return ByShard(tuple(sorted(found)), stream)


def past(value: str) -> int | Moment:
    """A sequence, or an ISO time."""
    if value.strip().isdecimal():
        return int(value)
    try:
        return Moment(moment(value))
    except ValueError:
        raise ValueError(
            f"must be a sequence such as 900, or an ISO time such as 2025-01-31T12:00:00Z, not {value!r}"
        ) from None


def two_sequences(value: str) -> tuple[int, int]:
    """`a,b`: two sequences, the older one first."""
    found = re.fullmatch(r"\s*([0-9]+)\s*,\s*([0-9]+)\s*", value)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"must be two sequences, the older one first, such as 900,1200, not {value!r}")
    return int(found[1]), int(found[2])


def _group(value: str) -> str:
    if not 0 < len(value.encode()) <= 180:
        raise ValueError("must be a name of 1 to 180 bytes")
    return value


# The table -----------------------------------------------------------------------------------------

READ: tuple[Option, ...] = (
    Option(
        "tidemark.url", url, None, "where the broker is: tidemark://user:password@host:port,host:port/vhost"
    ),
    Option("subscribe", text, None, "the stream to read"),
    Option(
        "queue",
        text,
        None,
        "an AMQP queue to read instead of a stream; its messages are acknowledged",
        ("stream",),
    ),
    Option(
        "groupId",
        _group,
        None,
        "the consumer whose mark moves, for which deletes are kept; one for each query",
    ),
    Option("startingOffsets", starting, "earliest", "where a query without a checkpoint begins"),
    Option("startingTimestamp", moment, None, "the same by time: with what was accepted then or later"),
    Option("endingOffsets", ending, "latest", "where a batch read ends", ("batch",)),
    Option("asOf", past, None, "read the stream as it was then: a sequence or an ISO time", ("batch",)),
    Option("diff", two_sequences, None, "what changed between two sequences: a,b", ("batch",)),
    Option("maxOffsetsPerTrigger", count, None, "rows of a micro-batch at most", ("stream",)),
    Option("maxBytesPerTrigger", size, None, "bytes of values of a micro-batch at most", ("stream",)),
    Option("minOffsetsPerTrigger", count, None, "rows that a micro-batch waits for", ("stream",)),
    Option("maxTriggerDelay", duration, 900.0, "how long it waits for them at most", ("stream",)),
    Option("minPartitions", count, None, "into how many tasks a read is divided at least"),
    Option("maxPartitions", count, None, "into how many at most; several shards go into one task"),
    Option("maxRecordsPerPartition", count, None, "rows of a task at most"),
    Option(
        "failOnDataLoss",
        flag,
        True,
        "whether to stop when something that was to be read is not there any more",
    ),
    Option("includeHeaders", flag, False, "whether there is a column headers"),
    Option("filterPushdown", flag, False, "whether the broker gets to know the query's filters", ("batch",)),
    Option(
        "pinLease",
        duration,
        3600.0,
        "how long a pinned snapshot is kept when nobody renews it: queries do, and tasks of batch reads once they run",
    ),
    Option("pollTimeout", duration, 1.0, "how long the broker is asked to wait for news", ("stream",)),
    Option("retryTimeout", duration, 120.0, "how long a broker that is away is waited for"),
    Option(
        "readFrom",
        read_from_of,
        "leader",
        "which member of a cluster tasks read from: the leader, a tail (of a chain its last member, else a backup), or any",
    ),
    Option(
        "arrowBatchBytes",
        size,
        1 << 20,
        "the size of the Arrow batches that tasks get; the broker's stream.output_bytes_max (1m) bounds it too",
    ),
    Option(
        "verify", flag, False, "whether tasks hash what they read and compare it with the broker's marker"
    ),
)


def parse_options(
    given: Mapping[str, str], table: Sequence[Option], *, known: Sequence[Option] = ()
) -> dict[str, Any]:
    """The values of all options of a table, by their names; what was not given has its default.

    `known` are options that exist for somebody else: they are refused with that reason.

    Raises:
        OptionError: an option that is not in the table, or a value that cannot be.
    """
    names = {option.name.lower(): option for option in table}
    found = {option.name: option.default for option in table}
    for name, value in given.items():
        option = names.get(name.lower())
        if option is None:
            raise OptionError(option=name, problem=_unknown(name, table, known))
        try:
            found[option.name] = option.read(str(value))
        except ValueError as problem:
            raise OptionError(option=option.name, problem=str(problem)) from None
    return found


def _unknown(name: str, table: Sequence[Option], known: Sequence[Option]) -> str:
    names = {option.name.lower(): option.name for option in table}
    for option in known:
        if option.name.lower() == name.lower():
            return f"is not known here ({option.about}); there are {', '.join(sorted(names.values()))}"
    if name.lower() == "path":
        return "load() takes no path; name the stream with option subscribe"
    close = difflib.get_close_matches(name.lower(), names, 1, 0.6)
    if close:
        return f"there is no such option; did you mean {names[close[0]]}?"
    return f"there is no such option; there are {', '.join(sorted(names.values()))}"


# For reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read was told, checked. Plain data: it travels to the tasks."""

    mode: Mode
    url: str
    stream: str | None
    queue: str | None
    group: str | None
    start: Place
    end: Place
    as_of: int | Moment | None
    diff: tuple[int, int] | None
    rows_max: int | None
    bytes_max: int | None
    rows_min: int | None
    delay_s_max: float
    partitions_min: int | None
    partitions_max: int | None
    partition_rows_max: int | None
    fail_on_data_loss: bool
    headers: bool
    pushdown: bool
    lease_s: float
    poll_s: float
    retry_s: float
    batch_bytes: int
    verify: bool
    read_from: ReadFrom = "leader"

    @property
    def place(self) -> str:
        """The broker's addresses, without user and password: for messages."""
        target = parse_url(self.url)
        return f"{', '.join(map(str, target.addresses))} (virtual host {target.vhost})"


def read_options(given: Mapping[str, str], mode: Mode | None) -> ReadOptions:
    """The options of a read; `mode` None: it is not known yet which kind it will be.

    Raises:
        OptionError
    """
    table = [option for option in READ if mode is None or mode in option.modes]
    other = [option for option in READ if option not in table]
    found = parse_options(given, table, known=other)
    names = {name.lower() for name in given}
    for option in other:
        found[option.name] = option.default
    _check_together(found, names)
    start: Place = found["startingOffsets"]
    if found["startingTimestamp"] is not None:
        start = Moment(found["startingTimestamp"])
    if found["queue"] is not None:
        start = "group"  # whatever was taken from the queue and is not processed yet is read
    return ReadOptions(
        mode=mode or "batch",
        url=found["tidemark.url"],
        stream=found["subscribe"],
        queue=found["queue"],
        group=found["groupId"],
        start=start,
        end=found["endingOffsets"],
        as_of=found["asOf"],
        diff=found["diff"],
        rows_max=found["maxOffsetsPerTrigger"],
        bytes_max=found["maxBytesPerTrigger"],
        rows_min=found["minOffsetsPerTrigger"],
        delay_s_max=found["maxTriggerDelay"],
        partitions_min=found["minPartitions"],
        partitions_max=found["maxPartitions"],
        partition_rows_max=found["maxRecordsPerPartition"],
        fail_on_data_loss=found["failOnDataLoss"],
        headers=found["includeHeaders"],
        pushdown=found["filterPushdown"],
        lease_s=found["pinLease"],
        poll_s=found["pollTimeout"],
        retry_s=found["retryTimeout"],
        batch_bytes=min(max(found["arrowBatchBytes"], 16 << 10), 8 << 20),
        verify=found["verify"],
        read_from=found["readFrom"],
    )


def _check_together(found: Mapping[str, Any], names: set[str]) -> None:
    """Refuse what is missing and what excludes each other. Raises OptionError."""
    if found["tidemark.url"] is None:
        raise OptionError(
            option="tidemark.url",
            problem="is needed: where the broker is, such as tidemark://guest:guest@127.0.0.1:5672/",
        )
    if found["subscribe"] is None and found["queue"] is None:
        raise OptionError(option="subscribe", problem="is needed: the name of the stream to read")
    if found["subscribe"] is not None and found["queue"] is not None:
        raise OptionError(option="queue", problem="a read has either subscribe (a stream) or queue, not both")
    if found["queue"] is not None and found["groupId"] is None:
        raise OptionError(
            option="groupId",
            problem="is needed to read a queue: it names where its messages are kept until they are processed",
        )
    if found["queue"] is not None and (clash := {"startingoffsets", "startingtimestamp"} & names):
        raise OptionError(
            option="queue",
            problem=f"cannot be combined with {', '.join(sorted(clash))}: what was taken from a queue is acknowledged there, "
            f"so all of it is read",
        )
    if "startingtimestamp" in names and "startingoffsets" in names:
        raise OptionError(
            option="startingTimestamp",
            problem="a read has either startingTimestamp or startingOffsets, not both",
        )
    for name in ("asOf", "diff"):
        others = {"startingoffsets", "startingtimestamp", "endingoffsets", "asof", "diff"} - {name.lower()}
        if found[name] is not None and (clash := others & names):
            raise OptionError(option=name, problem=f"cannot be combined with {', '.join(sorted(clash))}")
    low, high = found["minPartitions"], found["maxPartitions"]
    if low is not None and high is not None and low > high:
        raise OptionError(option="minPartitions", problem=f"{low} is more than maxPartitions, {high}")
    if found["startingOffsets"] == "group" and found["groupId"] is None:
        raise OptionError(
            option="groupId", problem="is needed with startingOffsets=group: whose mark to go on from"
        )
    if found["pinLease"] < 10:
        raise OptionError(
            option="pinLease", problem="must be at least 10s, or a short pause would lose the snapshot"
        )
    for name in ("startingOffsets", "endingOffsets"):
        place = found[name]
        if isinstance(place, ByShard) and place.stream not in (None, found["subscribe"]):
            raise OptionError(
                option=name, problem=f"speaks of stream '{place.stream}', but '{found['subscribe']}' is read"
            )
