"""What a store says about itself: META, written once, and STATUS, written at every start and clean stop.

Both are one JSON object with a checksum, replaced as a whole (new file, sync, rename).

    empty    there is no META: nobody has used this directory yet; or it was reset (`rewind.reset`)
    clean    the last process closed the store; `end` is where the journal ended
    dirty    a process uses it, or died while it did

Invariant: STATUS is dirty on the disk before the first change of a start, clean only after the last.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tidemark.errors import StoreForeign
from tidemark.ports import Disk
from tidemark.store.frames import crc32c

FORMAT = 1
META = "META"
STATUS = "STATUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    state: Literal["empty", "clean", "dirty"]
    store: str = ""
    """The UUID of this store, in hex."""
    generation: int = 0
    """How many times it was started."""
    history: str = ""
    """The UUID of the history that was written last, in hex."""
    end: int = 0
    """Clean only: the place where the journal ends."""
    catalog_end: int = 0
    """Clean only: the place where the catalog log ends."""
    last_seq: int = 0
    """Clean only: the highest sequence in the journal."""
    cluster: str = ""
    """The UUID of the cluster that it belongs to, in hex; empty: to none."""
    epoch: int = 0
    """The last epoch of that cluster in which it took part."""
    founding: str = ""
    """The histories by which it has tried to found a cluster, in hex with blanks between; empty when it belongs to one."""
    role: str = "alone"
    """What it was then: alone, leader or backup."""
    alone_from: int = 0
    """It was started without its cluster: that history begins here in the journal. 0: never."""

    def __str__(self) -> str:
        return f"clean({self.store})" if self.state == "clean" else self.state


def read_status(disk: Disk) -> Status:
    """The status of a store.

    Raises:
        StoreForeign: META is not ours.
    """
    if not disk.exists(META):
        strangers = [name for name in disk.list() if not name.startswith(("tmp-", "pool-", "spill/"))]
        if strangers:
            raise StoreForeign(
                path=strangers[0], problem="it holds files but no META of a store; choose an empty directory"
            )
        return Status(state="empty")
    meta = read_facts(disk, META)
    if meta is None:
        raise StoreForeign(path=META, problem="META cannot be read; restore it from a copy of the directory")
    if meta.get("format") != FORMAT:
        raise StoreForeign(
            path=META, problem=f"its format is {meta.get('format')}, this version reads {FORMAT}"
        )
    dirty = Status(state="dirty", store=str(meta["store"]))
    status = read_facts(disk, STATUS) if disk.exists(STATUS) else None
    if status is None or status.get("store") != meta["store"]:
        # Unreadable is treated as dirty: that only costs the proof of where a clean stop ended.
        return dirty
    try:
        return status_from(status)
    except TypeError:
        return dirty


def status_from(facts: dict[str, Any]) -> Status:
    """What was written, also by a version that says more.

    Raises:
        TypeError: something is missing.
    """
    known = {one.name for one in fields(Status)}
    return Status(**{name: value for name, value in facts.items() if name in known})


def facts_of(status: Status) -> dict[str, Any]:
    """What is written of it. What says nothing is left out where older versions would not know it."""
    facts = asdict(status)
    if not status.founding:
        del facts["founding"]
    return facts


def write_meta(disk: Disk, store: str) -> None:
    write_facts(disk, META, {"format": FORMAT, "store": store})


def write_status(disk: Disk, status: Status) -> None:
    write_facts(disk, STATUS, facts_of(status))


def read_facts(disk: Disk, name: str) -> dict[str, Any] | None:
    """What `write_facts` wrote; None if it cannot be read."""
    try:
        line, crc = disk.read(name, 0, 1 << 16).decode("ascii").splitlines()
        return json.loads(line) if int(crc, 16) == crc32c(line.encode()) else None
    except ValueError:
        return None


def write_facts(disk: Disk, name: str, facts: dict[str, Any]) -> None:
    """Have this in the file of this name: what was there before, or all of it."""
    line = json.dumps(facts, sort_keys=True)
    temporary = f"tmp-{name}"
    if disk.exists(temporary):
        disk.remove(temporary)
    disk.write(temporary, 0, f"{line}\n{crc32c(line.encode()):08x}\n".encode())
    disk.sync(temporary)
    disk.rename(temporary, name)
