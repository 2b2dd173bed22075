"""A CPU of its own for each process, and a small one: a cgroup with a quota, `cpu.cfs_quota_us` or in cgroup v2 `cpu.max`.

On a machine with few cores processes share them, so that more processes are not more power. With quotas that add up to no more
than the cores each has as much as on a machine of its own, whatever the others do, and never more. Who has no quota waits.

A quota is for 20 ms, long beside the kernel's ticks (4 ms at 250 Hz), at which it is enforced: who runs over it stands still for
as much longer. So a process with a tenth of a core may stand still for 40 ms at a time, which leases of 2 s do not notice.

Invariant: when the context ends, however it does, the processes are where they were and the groups are gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.cli.trial.processes import unbroken

_PERIOD_US = 20_000
_GONE_S = 1.0
_PREFIX = "tidemark-bench-"
_MOUNTS = Path("/proc/mounts")


class NoQuotasError(RuntimeError):
    """Processes cannot be given quotas here; the message says why."""


@dataclass(frozen=True, slots=True)
class Controller:
    """Where the kernel takes quotas."""

    folder: Path
    unified: bool
    """Whether it is cgroup v2."""

    def group(self, pid: int) -> Path:
        return self.folder / f"{_PREFIX}{os.getpid()}-{pid}"

    def limit(self, group: Path, share: float) -> None:
        """To so much of one core, before whoever has no quota: a hundred times the usual weight."""
        quota_us = round(_PERIOD_US * share)
        if self.unified:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            (group / "cpu.weight").write_text("10000")
            return
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cpu.shares").write_text("102400")

    def home(self, pid: int) -> Path:
        """The group that a process is in.

        Raises:
            OSError: the process is gone.
        """
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names if self.unified else "cpu" in names.split(","):
                return self.folder / path.lstrip("/")
        return self.folder


def mounted(mounts: str) -> Controller | None:
    """Where `/proc/mounts` says that the controller is: of cgroup v1 where there are both, as it has it then."""
    unified = None
    for line in mounts.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(Path(folder), unified=False)
        if kind == "cgroup2":
            unified = Controller(Path(folder), unified=True)
    return unified


def controller() -> Controller:
    """The one of this machine, tried out.

    Raises:
        NoQuotasError: there is none that we may use.
    """
    found = mounted(_MOUNTS.read_text())
    if found is None:
        raise NoQuotasError("no cgroups are mounted that limit CPU")
    _sweep(found.folder)
    group = found.group(os.getpid())
    try:
        group.mkdir()
        try:
            found.limit(group, 0.5)
        finally:
            group.rmdir()
    except OSError as problem:
        raise NoQuotasError(
            f"no CPU quota can be set in {found.folder} ({problem.strerror}); that takes root, and the controller 'cpu' there"
        ) from None
    return found


def _sweep(folder: Path) -> None:
    """Remove what a campaign has left behind that was killed. A group in which something still runs stays."""
    for group in folder.glob(f"{_PREFIX}*"):
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()


@dataclass(frozen=True, slots=True)
class SmallCpu:
    """What one process has."""

    group: Path
    share: float
    """Of one core."""

    def periods(self) -> tuple[int, int]:
        """How many there were in which it ran, and in how many of them it had to stand still, its quota used up."""
        found = dict(line.split() for line in (self.group / "cpu.stat").read_text().splitlines())
        return int(found["nr_periods"]), int(found["nr_throttled"])


@contextlib.contextmanager
def small_cpus(shares: Mapping[int, float]) -> Iterator[dict[int, SmallCpu]]:
    """While it is open each of these processes, with all its threads, has so much of one core.

    Raises:
        NoQuotasError: see `controller`; or together they would have more than there is.
        OSError: a process is gone.
    """
    cores = len(os.sched_getaffinity(0))
    if (wanted := sum(shares.values())) > cores:
        raise NoQuotasError(f"the quotas add up to {wanted:.1f} cores, of which there are {cores}")
    found = controller()
    homes = {pid: found.home(pid) for pid in shares}
    cpus = {pid: SmallCpu(found.group(pid), share) for pid, share in shares.items()}
    try:
        for pid, cpu in cpus.items():
            cpu.group.mkdir()
            found.limit(cpu.group, cpu.share)
            (cpu.group / "cgroup.procs").write_text(str(pid))
        yield cpus
    finally:
        with unbroken():
            for pid, cpu in cpus.items():
                _remove(cpu.group, homes[pid])


def _remove(group: Path, home: Path) -> None:
    """Send home who is in it, and remove it; one that is just ending may be in the way for a moment."""
    deadline = time.monotonic() + _GONE_S
    while group.exists():
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (home / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
