"""Checks of the machine and the process: Python, compiled modules, open files, memory, swap, clock."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import pkgutil
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemark.cli.doctor.finding import Finding, fail, ok, size, warn
from tidemark.config import Config
from tidemark.runtime import machine
from tidemark.speed import PURE

OTHER_FILES = 256
"""Files that a broker has open besides its connections: segments, listeners, pipes."""
STA_UNSYNC = 0x0040
TIME_ERROR = 5


def python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < (3, 11):  # noqa: UP036 - a wrong installation is what this command is for
        yield fail("python.version", f"Python {version}", "use Python 3.11 or newer")
    else:
        yield ok("python.version", f"Python {version}, {platform.machine()}")
    if not __debug__:
        yield fail(
            "python.assertions", "Python runs with -O", "assertions are part of the broker: start without -O"
        )
    if PURE:
        yield warn(
            "python.compiled",
            "TIDEMARK_PURE is set: the broker runs without its compiled modules, slowly",
            "unset it",
        )
    else:
        yield from _compiled()
    if importlib.util.find_spec("uvloop") is None:
        yield warn("python.uvloop", "uvloop is not installed: the network is slower", "pip install uvloop")
    else:
        yield ok("python.uvloop", "uvloop is installed")


def compiled_modules() -> list[str]:
    """Names of all compiled modules that this version of Tidemark has, built or not."""
    import tidemark

    names = [
        one.name
        for one in pkgutil.walk_packages(tidemark.__path__, "tidemark.", onerror=lambda _: None)
        if one.name.endswith("_py") and one.name.rpartition(".")[2].startswith("_")
    ]
    return sorted(name.removesuffix("_py") + "_c" for name in names)


def _compiled() -> Iterator[Finding]:
    names, broken = compiled_modules(), []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as problem:
            # Some references have no twin; those that have one have it next to them.
            if importlib.util.find_spec(name) is not None or _has_source(name):
                broken.append(f"{name}: {problem}")
    if broken:
        yield fail(
            "python.compiled",
            f"{len(broken)} compiled modules cannot be loaded: {broken[0]}",
            "install the wheel for this Python, or build in the source tree with tools/build.sh",
        )
    else:
        yield ok("python.compiled", "compiled modules are in use")


def _has_source(name: str) -> bool:
    package = importlib.util.find_spec(name.rpartition(".")[0])
    if package is None or package.origin is None:
        return False
    return Path(package.origin).with_name(name.rpartition(".")[2] + ".pyx").exists()


def files(config: Config, pid: int | None) -> Iterator[Finding]:
    """Open files against limits.connections_max: of the broker that runs, or of one that would be started here."""
    hard, whose = resource.getrlimit(resource.RLIMIT_NOFILE)[1], "here"
    if pid is not None:
        found = _limit_of(pid)
        if found is not None:
            hard, whose = found, f"of process {pid}"
    need = config.limits.connections_max + OTHER_FILES
    facts = f"{hard:,} open files are allowed {whose}, limits.connections_max is {config.limits.connections_max:,}"
    if hard == resource.RLIM_INFINITY or hard >= need:
        yield ok("limits.files", facts)
    else:
        yield warn(
            "limits.files",
            facts,
            f"allow {need:,} (LimitNOFILE= of the systemd unit, 'ulimit -Hn' elsewhere), or lower limits.connections_max "
            f"to {max(1, hard - OTHER_FILES):,}",
        )


def _limit_of(pid: int) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                word = line.split()[4]
                return int(word) if word.isdecimal() else resource.RLIM_INFINITY
    except (OSError, IndexError):
        pass
    return None


def memory(config: Config) -> Iterator[Finding]:
    total = machine.memory_bytes()
    high = config.limits.memory_high_bytes or int(total * config.limits.memory_high)
    cache = config.store.cache_bytes
    facts = f"publishers wait above {size(high)} of {size(total)}; messages are kept in up to {size(cache)}"
    if cache >= high:
        yield fail(
            "memory.cache",
            facts,
            f"store.cache_bytes must be well below the limit: set it to {size(high // 2)} or less, or publishers will wait",
        )
    elif cache > high * 0.8:
        yield warn("memory.cache", facts, f"set store.cache_bytes to {size(high * 0.7)} or less")
    else:
        yield ok("memory.cache", facts)
    if high > total:
        yield fail(
            "memory.limit",
            f"limits.memory_high_bytes is {size(high)}, the machine or container has {size(total)}",
            "lower it, or the system ends the broker before publishers are made to wait",
        )
    yield from _swap()


def _swap() -> Iterator[Finding]:
    facts = meminfo()
    total, free = facts.get("SwapTotal", 0), facts.get("SwapFree", 0)
    try:
        swappiness = int(Path("/proc/sys/vm/swappiness").read_text())
    except (OSError, ValueError):
        swappiness = 0
    if not total:
        yield ok("memory.swap", "no swap")
    elif total - free > total // 4:
        yield warn(
            "memory.swap",
            f"{size(total - free)} of {size(total)} swap are in use: what the broker needs may be read from the disk",
            "give the machine more memory or fewer programs; sysctl vm.swappiness=1",
        )
    elif swappiness > 30:
        yield warn(
            "memory.swap",
            f"swap of {size(total)} with vm.swappiness {swappiness}",
            "sysctl vm.swappiness=1: a broker that is swapped out answers late",
        )
    else:
        yield ok(
            "memory.swap", f"{size(total - free)} of {size(total)} swap in use, vm.swappiness {swappiness}"
        )


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return found


def clock() -> Iterator[Finding]:
    """Whether something keeps the clock right, as the kernel knows it."""
    state = kernel_clock()
    if state is None:
        yield warn(
            "clock.synchronised",
            "this system does not say whether its clock is synchronised",
            "see that chrony, ntpd or systemd-timesyncd runs",
        )
        return
    synchronised, off_us = state
    if synchronised:
        yield ok("clock.synchronised", f"the clock is synchronised, at most {off_us / 1000:.1f} ms off")
    else:
        yield warn(
            "clock.synchronised",
            "nothing synchronises the clock: message times, time to live and leases drift",
            "run chrony, ntpd or systemd-timesyncd (timedatectl set-ntp true)",
        )


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kernel_clock() -> tuple[bool, int] | None:
    """Whether it is synchronised and how far it may be off in µs; None where that cannot be asked."""
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except (AttributeError, OSError):
        return None
    told = _Timex()
    state = call(ctypes.byref(told))
    if state < 0:
        return None
    return state != TIME_ERROR and not told.status & STA_UNSYNC, told.maxerror


def user() -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield warn(
            "machine.user",
            "this runs as root; a broker needs no rights beyond its data directory",
            "run it as a user of its own, as packaging/systemd does",
        )
