"""What /proc says about a broker's processes, and the small things every server under test needs.

CPU is user plus system time of whole processes and of the children they have waited for, so threads and helpers
that have ended are counted too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
HOST = "127.0.0.1"


class ServerFailedError(RuntimeError):
    """A server under test did not start, or ended by itself."""


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold blanks itself."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """The process and all its descendants that are alive now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry.name)] = int(_stat_fields(int(entry.name))[1])
    members = [pid]
    for member in members:
        members.extend(child for child, parent in parents.items() if parent == member)
    return members


def start_times(pids: Iterable[int]) -> dict[int, str]:
    """When each living process was started: together with its number, that is who it is."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = _stat_fields(pid)[19]
    return found


def wait_gone(known: dict[int, str], timeout_s: float = 3) -> None:
    """Wait for these processes, which are not our children, to end; kill what does not."""
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in known if start_times([pid]).get(pid) == known[pid]]:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def cpu_seconds(pids: Iterable[int]) -> float:
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _stat_fields(pid)
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def turns(pid: int) -> tuple[int, int]:
    """How often the threads of a process have waited for something since its start, and how often it has written."""
    waits = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            waits += int(_lines(task / "status")["voluntary_ctxt_switches"])
    return waits, int(_lines(Path(f"/proc/{pid}/io"))["syscw"])


def _lines(path: Path) -> dict[str, str]:
    """Of a file with a name and a value in each line."""
    return dict(line.split(":", 1) for line in path.read_text().splitlines())


def rss_bytes(pids: Iterable[int]) -> int:
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held open together, so they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def speaks_amqp(port: int) -> bool:
    """Whether a server on this port answers the AMQP 0-9-1 header with a method frame."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"
    except OSError:
        return False


def wait_until(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    timeout_s: float,
    poll_s: float = 0.05,
) -> None:
    """Wait for a server to become ready.

    Raises:
        ServerFailedError: it ended, or the time ran out; the end of its log is in the message.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            what = "ended" if process.poll() is not None else f"was not ready in {timeout_s:.0f} s"
            tail = log.read_text(errors="replace")[-600:] if log.exists() else ""
            raise ServerFailedError(f"{log.stem} {what}; the end of its log:\n{tail}")
        time.sleep(poll_s)


def stop(process: subprocess.Popen[bytes], timeout_s: float = 20) -> None:
    """Ask the process to end, and make it end when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
