"""Small CPUs are as small as they should be, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import proc
from bench.cluster import quota
from bench.cluster.quota import Controller, NoQuotasError, controller, mounted, small_cpus

V1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n"
SETS = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "folder", "unified"),
    [
        (SETS + V1, "/sys/fs/cgroup/cpu,cpuacct", False),
        (V2, "/sys/fs/cgroup/unified", True),
        (V2 + V1, "/sys/fs/cgroup/cpu,cpuacct", False),
    ],
)
def test_the_controller_is_found_where_it_is_mounted(mounts: str, folder: str, unified: bool) -> None:
    assert mounted("proc /proc proc rw 0 0\n" + mounts) == Controller(Path(folder), unified)


def test_without_a_controller_there_are_no_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text(SETS)

    with pytest.raises(NoQuotasError, match="no cgroups are mounted that limit CPU"):
        controller()


def test_a_controller_that_takes_no_groups_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path}/nowhere cgroup2 rw 0 0\n")

    with pytest.raises(NoQuotasError, match=r"no CPU quota can be set in .*/nowhere \(No such file"):
        controller()


def test_cgroup_v2_has_files_of_its_own(tmp_path: Path) -> None:
    Controller(tmp_path, unified=True).limit(tmp_path, 0.1)

    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "cpu.max": "2000 20000",
        "cpu.weight": "10000",
    }


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(NoQuotasError, match=r"the quotas add up to 2000\.0 cores"), small_cpus({1: 2000}):
        pass


# With the controller of this machine -----------------------------------------------------------------


@pytest.fixture
def found() -> Controller:
    try:
        return controller()
    except NoQuotasError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that takes what it gets."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


def home_while_interrupted(found: Controller, pid: int) -> Path:
    """The group that the process was in when Ctrl-C came."""
    try:
        with small_cpus({pid: 0.2}):
            small = found.home(pid)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return small


def groups(found: Controller) -> list[Path]:
    return list(found.folder.glob(f"tidemark-bench-{os.getpid()}-*"))


def test_a_busy_process_gets_its_share_and_no_more(found: Controller, busy: int) -> None:
    with small_cpus({busy: 0.25}) as cpus:
        time.sleep(0.1)
        began, before = time.monotonic(), proc.cpu_seconds([busy])
        time.sleep(0.8)
        share = (proc.cpu_seconds([busy]) - before) / (time.monotonic() - began)
        periods, throttled = cpus[busy].periods()

    assert 0.05 < share < 0.35
    assert periods >= throttled > 0
    assert groups(found) == []


def test_who_is_interrupted_leaves_no_group_and_the_process_where_it_was(
    found: Controller, busy: int
) -> None:
    home, small = found.home(busy), home_while_interrupted(found, busy)

    assert small != home
    assert found.home(busy) == home
    assert groups(found) == []


def test_a_process_that_ends_meanwhile_is_no_trouble(found: Controller, busy: int) -> None:
    with small_cpus({busy: 0.2}):
        os.kill(busy, 9)

    assert groups(found) == []


def test_a_process_that_is_gone_already_costs_the_others_nothing(found: Controller, busy: int) -> None:
    home = found.home(busy)

    with pytest.raises(OSError, match="No such"), small_cpus({busy: 0.2, 1 << 23: 0.2}):
        pass

    assert found.home(busy) == home
    assert groups(found) == []


def test_what_a_killed_campaign_left_behind_is_removed(found: Controller) -> None:
    left = found.folder / f"tidemark-bench-{1 << 23}-1"
    left.mkdir()

    controller()

    assert not left.exists()
