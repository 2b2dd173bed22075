"""What this machine and process have: memory, open files, other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    """The memory that this process may use: the machine's, or its control group's if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def resident_bytes() -> int:
    """What this process has in memory now, without what it shares."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - read every second
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * PAGE_BYTES


def give_back_memory() -> None:
    """Ask the allocator to return what it holds free, so that an alarm can end."""
    # Another C library than GNU's has its own ways.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def raise_open_files_limit() -> int:
    """Allow as many open files as the system lets us; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def listening_pid(port: int) -> int | None:
    """The process that listens on a port of this machine, as far as we may know."""
    wanted = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    wanted.add(f"socket:[{fields[9]}]")
        except (OSError, IndexError, ValueError):
            continue
    if not wanted:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            for file in (process / "fd").iterdir():
                if str(file.readlink()) in wanted:
                    return int(process.name)
        except OSError:
            continue
    return None


def command_of(pid: int) -> str:
    """How this process was started, its first words; "unknown" if we may not know."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    text = b" ".join(words[:4]).decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else "?" for char in text) or "unknown"
