"""Checks of the data directory: whose it is, who has it open, room, speed of syncs, the file system under it."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.cli.doctor.finding import Finding, fail, ok, size, warn
from tidemark.config import Config
from tidemark.runtime import machine
from tidemark.runtime.disk import LOCK

SYNCS = 24
SYNC_BYTES = 4096
SLOW_MS, VERY_SLOW_MS = 20.0, 200.0
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs"}


@dataclass(frozen=True, slots=True)
class Mount:
    kind: str
    place: str
    options: frozenset[str]


def holder(data: Path) -> int | None:
    """Process that has the directory open; 0 when it is not known which; None when nobody has."""
    try:
        fd = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        return None
    except BlockingIOError:
        found = os.pread(fd, 32, 0).strip()
        return int(found) if found.isdigit() else 0
    except OSError:
        return None
    finally:
        os.close(fd)


def directory(config: Config, held: int | None) -> Iterator[Finding]:
    data = config.node.data
    where = nearest(data)
    if not data.exists():
        if where.is_dir() and os.access(where, os.W_OK | os.X_OK):
            yield ok("data.directory", f"{data} is not there yet and can be made")
        else:
            yield fail(
                "data.directory",
                f"{data} is not there and cannot be made in {where}",
                f"make it for the broker's user: install -d -m 750 -o tidemark -g tidemark {data}",
            )
            return
    elif not data.is_dir():
        yield fail("data.directory", f"{data} is not a directory", "choose another node.data")
        return
    else:
        yield from _rights(data)
        if held:
            yield ok("data.holder", f"process {held} ({machine.command_of(held)}) has it open")
        elif held == 0:
            yield ok("data.holder", "another process has it open")
        else:
            yield ok("data.holder", "nobody has it open")
    yield from _room(config, where)
    yield from _file_system(where)


def nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _rights(data: Path) -> Iterator[Finding]:
    facts = data.stat()
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield fail(
            "data.owner",
            f"{data} belongs to user {facts.st_uid} and this is user {os.geteuid()}, who may not write there",
            f"run this and the broker as its owner, or: chown -R $USER {data}",
        )
        return
    strangers = sorted({one.stat().st_uid for one in _some(data)} - {facts.st_uid})
    if strangers:
        yield warn(
            "data.owner",
            f"files in {data} belong to user {', '.join(map(str, strangers))}, the directory to {facts.st_uid}",
            f"the broker was started by different users; chown -R {facts.st_uid} {data}",
        )
    elif facts.st_mode & stat.S_IXOTH and any(one.stat().st_mode & stat.S_IROTH for one in _some(data)):
        yield warn("data.owner", f"everybody may read messages in {data}", f"chmod -R o-rwx {data}")
    else:
        yield ok("data.owner", f"{data} belongs to user {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}")


def _some(data: Path) -> list[Path]:
    try:
        return [one for one, _ in zip(data.iterdir(), range(1000), strict=False)]
    except OSError:
        return []


def _room(config: Config, where: Path) -> Iterator[Finding]:
    usage, least = shutil.disk_usage(where), config.limits.disk_free_bytes_min
    facts = f"{size(usage.free)} of {size(usage.total)} are free, publishers wait below {size(least)}"
    advice = "free some, give it a larger disk, or lower limits.disk_free_bytes_min"
    if usage.free < least:
        yield fail("data.space", facts, advice)
    elif usage.free < 2 * least:
        yield warn("data.space", facts, advice)
    else:
        yield ok("data.space", facts)
    nodes = os.statvfs(where)
    if nodes.f_files and nodes.f_favail < 1000:
        yield fail(
            "data.inodes", f"only {nodes.f_favail} files can still be made", "remove small files on this disk"
        )


def mounted(where: Path, table: str | None = None) -> Mount | None:
    """The file system that a path is on."""
    try:
        text = Path("/proc/self/mountinfo").read_text() if table is None else table
    except OSError:
        return None
    best: Mount | None = None
    path = str(where.resolve())
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, last = left.split(), right.split()
        if len(fields) < 6 or len(last) < 3:
            continue
        place = fields[4].replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and (best is None or len(place) >= len(best.place)):
            options = frozenset(fields[5].split(",")) | frozenset(last[2].split(","))
            best = Mount(last[0], place, options)
    return best


def _file_system(where: Path) -> Iterator[Finding]:
    mount = mounted(where)
    if mount is not None:
        yield judged(mount)


def judged(mount: Mount) -> Finding:
    """What a file system means for a journal."""
    facts = f"{mount.kind} at {mount.place}"
    if mount.kind in ("tmpfs", "ramfs"):
        return warn(
            "data.file-system",
            f"{facts}: it is memory, and everything is gone when the machine restarts",
            "put node.data on a disk",
        )
    if mount.kind in REMOTE:
        return warn(
            "data.file-system",
            f"{facts}: a journal on another machine's disk is slow, and its locks may fail",
            "put node.data on a local disk; for copies on other machines use a cluster",
        )
    if mount.kind in ("overlay", "aufs"):
        return warn(
            "data.file-system",
            f"{facts}: it is a container's own layer, and goes with the container",
            "mount a volume at node.data",
        )
    bad = mount.options & {"nobarrier", "barrier=0"}
    if bad:
        return fail(
            "data.file-system",
            f"{facts} is mounted with {min(bad)}: a power failure may lose what was confirmed",
            "mount it without that",
        )
    return ok("data.file-system", facts)


def syncs(config: Config) -> Iterator[Finding]:
    """How long the disk takes to make a small write safe: what every confirm waits for."""
    where = nearest(config.node.data)
    try:
        times = sync_times_ms(where)
    except OSError as problem:
        yield warn(
            "data.sync",
            f"no file could be written in {where}: {(problem.strerror or str(problem)).lower()}",
            "run this as the broker's user",
        )
        return
    middle, worst = statistics.median(times), max(times)
    facts = f"a sync takes {middle:.2f} ms, at worst {worst:.1f} ms, of {len(times)}"
    if middle > VERY_SLOW_MS:
        yield fail("data.sync", facts, "publishers wait that long for each confirm: use a faster disk")
    elif middle > SLOW_MS:
        yield warn(
            "data.sync", facts, "use a disk with a write cache that survives a power failure, or a local SSD"
        )
    elif worst > VERY_SLOW_MS:
        yield warn(
            "data.sync", facts, "something else uses the disk in bursts: give the journal one of its own"
        )
    else:
        yield ok("data.sync", facts)


def sync_times_ms(where: Path, count: int = SYNCS) -> list[float]:
    """How long each of some writes of 4 KiB takes to be safe, in a file that is removed again."""
    with tempfile.NamedTemporaryFile(dir=where, prefix=".tidemark-doctor-") as file:
        fd, page, times = file.fileno(), os.urandom(SYNC_BYTES), []
        os.pwrite(fd, bytes(SYNC_BYTES * count), 0)
        os.fsync(fd)
        for i in range(count):
            os.pwrite(fd, page, i * SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(fd)
            times.append((time.perf_counter() - began) * 1000)
    return times
