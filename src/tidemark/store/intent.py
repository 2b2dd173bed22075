"""What is about to be done to the files of a store that is not open, written down before it is done.

    INTENT      one JSON object with a checksum, as STATUS

Cutting a log back takes several steps. Whoever dies between two of them leaves the intent, and whoever opens the
store next takes all of its steps again: each can be taken any number of times.

    for each log:    give `rest`, which was written before, its name; write the END frame of the segment that is cut, and
                     shorten it; remove the segments above it
    then:            remove the checkpoints above `checkpoints`, and the files for reuse: segments that come get ids
                     which these may have had
    then:            write STATUS; remove the intent

Invariant: while there is an intent, nothing but `finish` changes the store.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from tidemark.errors import StoreError
from tidemark.ports import Disk
from tidemark.store.names import CHECKPOINT_PREFIX
from tidemark.store.segment import parse_name
from tidemark.store.status import (
    Status,
    facts_of,
    read_facts,
    read_status,
    status_from,
    write_facts,
    write_status,
)

INTENT = "INTENT"
EVERYTHING = 1 << 64


def write(disk: Disk, logs: list[dict[str, Any]], checkpoints: int, status: Status) -> None:
    """Write an intent down. `checkpoints`: those at places above this go; `status` is what the store says then.

    A log is {"prefix", "above": segments with ids above this go, "cut": [name, offset, END frame in hex] or None,
    "rest": [temporary name, name] or None}.
    """
    write_facts(disk, INTENT, {"logs": logs, "checkpoints": checkpoints, "status": facts_of(status)})


def finish(disk: Disk) -> bool:
    """Do what was written down, if anything was. Returns whether."""
    if not disk.exists(INTENT):
        return False
    facts = read_facts(disk, INTENT)
    # It got its name when it was whole, so it can only have rotted.
    assert facts is not None, "INTENT cannot be read: restore the directory from a copy"
    for log in facts["logs"]:
        _cut_log(disk, log)
    for name in disk.list(CHECKPOINT_PREFIX):
        place = int(name.removeprefix(CHECKPOINT_PREFIX), 16)
        if place > facts["checkpoints"]:
            _discard(disk, name)
    for name in disk.list("pool-"):
        _discard(disk, name)
    write_status(disk, status_from(facts["status"]))
    _discard(disk, INTENT)
    return True


def _cut_log(disk: Disk, log: dict[str, Any]) -> None:
    kept = ""
    if log["rest"]:
        temporary, kept = log["rest"]
        if disk.exists(temporary):
            disk.rename(temporary, kept)
    if log["cut"]:
        name, offset, end = log["cut"]
        frame = bytes.fromhex(end)
        disk.write(name, offset, frame)
        disk.sync(name)
        disk.truncate(name, offset + len(frame))
        disk.sync(name)
    for name in reversed(disk.list(f"{log['prefix']}-")):
        named = parse_name(name)
        if named is not None and named[1] > log["above"] and name != kept:
            _discard(disk, name)


def _discard(disk: Disk, name: str) -> None:
    """A rename is durable, a remove may not be."""
    dead = f"tmp-dead-{name}"
    disk.rename(name, dead)
    with contextlib.suppress(StoreError):
        disk.remove(dead)


def dirty(disk: Disk) -> Status:
    """The status of a store whose logs end elsewhere than it says."""
    return replace(read_status(disk), state="dirty", end=0, catalog_end=0, last_seq=0)
