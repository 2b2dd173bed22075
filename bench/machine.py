"""Facts about the machine that figures cannot be read without, and how to make it behave.

On a virtual machine whose free memory goes back to the host, the first touch of a page costs
about 10 µs, many times the work being measured. `WarmMemory` fills free memory with clean page
cache, so that pages come from reclaim as on a server that has been up for a while.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import rabbitmq
from bench.streams import nats, redis

_LEAVE_FREE_BYTES = 512 << 20
_CHUNK_BYTES = 1 << 20


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        return "not installed"
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def disk_of(folder: Path) -> str:
    """File system and device under the folder."""
    best, text = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        inside = folder.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best):
            best, text = mount, f"{kind} on {device}"
    return text


def facts(folder: Path) -> dict[str, str]:
    root = Path(__file__).parent.parent
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{_meminfo_bytes('MemTotal') / (1 << 30):.1f} GiB",
        "kernel": platform.release(),
        "disk": disk_of(folder),
        "load average at start": f"{os.getloadavg()[0]:.2f}",
        "python": sys.version.split()[0],
        "gcc": _first_line(["gcc", "--version"]),
        "rabbitmq": rabbitmq.version() or "not installed",
        "nats-server": nats.version(),
        "redis": redis.version(),
        "tidemark commit": _first_line(["git", "-C", str(root), "describe", "--always", "--dirty"]),
    }


class WarmMemory:
    """Holds free memory as clean page cache while the context is open.

    It reads a sparse file, which costs memory but no disk. The pages go with the file, so it has
    to exist as long as anything is measured; the kernel takes them back whenever they are needed.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._path = folder / "warm-memory"
        self._say = say

    def __enter__(self) -> Self:
        size = max(0, _meminfo_bytes("MemFree") - _LEAVE_FREE_BYTES)
        if size:
            self._say(f"filling {size / (1 << 30):.1f} GiB of free memory with clean page cache")
        buffer = bytearray(_CHUNK_BYTES)
        with self._path.open("w+b", buffering=0) as file:
            file.truncate(size)
            while file.readinto(buffer):
                pass
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._path.unlink(missing_ok=True)
