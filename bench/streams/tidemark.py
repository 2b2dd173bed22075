"""Tidemark's stream cases, over its stream protocol on loopback.

Every figure comes with a check: rows are read back and compared with what was put, counts with what the broker
says it has. A run that does not agree has no figures.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np

from bench import proc
from bench.cases import BATCH, Case, Kind
from bench.measure import Figures, RunFailedError, Scale, disk_loop
from bench.streams.peers import expect, reading
from bench.streams.pump import Pumped, opening_figures, send
from bench.streams.putting import APPENDED, KEYED, Putter, together
from bench.streams.scanning import Scanned, Scanner, check_rows, scan_for, scan_once
from bench.streams.wire import KEY_BYTES, VALUE_BYTES, Batch, Client
from bench.tidemark_server import TidemarkServer

_ROUNDS = 2
_OPENS = 2_000
_MEMORY_STEPS = 4
_FACT = re.compile(r"(\w+)=(\d+)(?= |$)")


def figures(case: Case, folder: Path, keys: int, scale: Scale) -> Figures:
    """What one run of the case gives.

    Raises:
        RunFailedError: the broker answered an error, or has other rows than it was given.
    """
    measure = {
        Kind.STREAM_KEYED: _keyed,
        Kind.STREAM_OPEN: _open,
        Kind.STREAM_SCAN: _scan,
        Kind.STREAM_RESTART: _restart,
        Kind.STREAM_MEMORY: _memory,
        Kind.STREAM_PEERS: _peers,
    }[case.kind]
    return measure(folder, keys, scale)


# Updates -------------------------------------------------------------------------------------------


def _keyed(folder: Path, keys: int, scale: Scale) -> Figures:
    """Keyed and unkeyed puts in turn on one broker, the bare disk loop before and after."""
    row_bytes = KEY_BYTES + VALUE_BYTES
    with TidemarkServer(folder) as server, Client(server.port) as client:
        putter = Putter(server, client, keys)
        putter.declare(KEYED, APPENDED)
        putter.fill(0, keys)
        disks = [disk_loop(folder, BATCH * row_bytes, scale)]
        keyed: list[Pumped] = []
        appended: list[Pumped] = []
        for _ in range(_ROUNDS):
            for stream, runs in ((APPENDED, appended), (KEYED, keyed)):
                runs.append(putter.run(stream, scale.stream_s, scale.warmup_s / 2))
        disks.append(disk_loop(folder, BATCH * row_bytes, scale))
        putter.check()
    disk_rows = sum(each["disk_syncs_per_s"] for each in disks) / len(disks) * BATCH
    updates, appends = together(keyed), together(appended)
    return {
        **updates.figures("keyed"),
        **appends.figures("unkeyed"),
        "share_of_unkeyed": updates.per_s / appends.per_s,
        "disk_rows_per_s": disk_rows,
        "share_of_disk": updates.per_s / disk_rows,
    }


# Snapshots ------------------------------------------------------------------------------------------


def _open(folder: Path, keys: int, scale: Scale) -> Figures:
    """Snapshots opened one after the other, as a client sees it."""
    with TidemarkServer(folder) as server, Client(server.port) as client:
        putter = Putter(server, client, keys)
        putter.declare(KEYED)
        putter.fill(0, keys)
        putter.run(KEYED, scale.stream_s)
        time.sleep(scale.settle_s)
        times = []
        cpu_before = server.cpu_seconds()
        for _ in range(_OPENS):
            began = time.perf_counter()
            opened = client.call({"op": "snapshot", "stream": KEYED})
            times.append(time.perf_counter() - began)
            client.call({"op": "close", "snapshot": opened["snapshot"]})
        cpu_s = server.cpu_seconds() - cpu_before
        putter.check()
    return {**opening_figures(times), "open_close_cpu_us": cpu_s / _OPENS * 1e6}


def _scan(folder: Path, keys: int, scale: Scale) -> Figures:
    """Whole snapshots read as Arrow: alone, without the marker's hash, and beside a writer at full speed."""
    with (
        TidemarkServer(folder) as server,
        Client(server.port) as client,
        Client(server.port) as reader,
    ):
        putter = Putter(server, client, keys)
        putter.declare(KEYED)
        putter.fill(0, keys)
        check_rows(reader, keys)
        alone = scan_for(server, reader, keys, lambda since: since < scale.stream_s)
        unhashed = scan_for(server, reader, keys, lambda since: since < scale.stream_s, hashed=False)
        undisturbed: list[Pumped] = []
        disturbed: list[Pumped] = []
        beside = Scanned()
        for _ in range(_ROUNDS):
            undisturbed.append(putter.run(KEYED, scale.stream_s, scale.warmup_s / 2))
            with Scanner(server, reader, keys) as scanner:
                disturbed.append(putter.run(KEYED, scale.stream_s, scale.warmup_s / 2))
            beside.rows += scanner.done.rows
            beside.seconds += scanner.done.seconds
        putter.check()
        check_rows(reader, keys)
        time.sleep(scale.settle_s)
        aged = scan_for(server, reader, keys, lambda since: since < scale.stream_s)
    writer, slowed = together(undisturbed), together(disturbed)
    return {
        "rows_per_s": alone.rows / alone.seconds,
        "rows_per_cpu_s": alone.rows / max(alone.cpu_s, 0.01),
        "bytes_per_s": alone.bytes / alone.seconds,
        "unhashed_rows_per_s": unhashed.rows / unhashed.seconds,
        "unhashed_rows_per_cpu_s": unhashed.rows / max(unhashed.cpu_s, 0.01),
        "aged_rows_per_s": aged.rows / aged.seconds,
        "aged_rows_per_cpu_s": aged.rows / max(aged.cpu_s, 0.01),
        "writer_slowdown": 1 - slowed.per_s / writer.per_s,
        "writer_alone_per_s": writer.per_s,
        "writer_beside_scan_per_s": slowed.per_s,
        "beside_writer_rows_per_s": beside.rows / beside.seconds,
    }


# Restart --------------------------------------------------------------------------------------------


class _Killable(TidemarkServer):
    """A broker that can be killed, and started again on its data by entering it again."""

    _poll_s = 0.001
    _start_timeout_s = 300.0

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def recovery(self) -> dict[str, int]:
        """The numbers that the broker logged about its recovery, by name."""
        for line in (self._folder / f"{self.name}.log").read_text(errors="replace").splitlines():
            if "store recovered" in line:
                return {name: int(value) for name, value in _FACT.findall(line)}
        raise RunFailedError("the broker's log has no line 'store recovered'")


def _restart(folder: Path, keys: int, scale: Scale) -> Figures:
    """Killed in the middle of updates; then the time from the start of the process to the first row it gives."""
    server = _Killable(folder)
    with server:
        with Client(server.port) as client:
            putter = Putter(server, client, keys)
            putter.declare(KEYED)
            putter.fill(0, keys)
            putter.run(KEYED, scale.stream_s)
        with Client(server.port) as client:
            batch = Batch(KEYED, BATCH, keyed=True)
            send(client.connection, batch.aim(1, np.arange(BATCH, dtype=np.uint64)))
            server.kill()
    began = time.perf_counter()
    with server:
        ready_s = time.perf_counter() - began
        with Client(server.port) as client:
            found = client.call({"op": "get", "stream": KEYED}, int(keys - 1).to_bytes(KEY_BYTES, "little"))
            serving_s = time.perf_counter() - began
            if not found["found"]:
                raise RunFailedError("Tidemark has lost a key that it had confirmed")
            info = client.call({"op": "info", "stream": KEYED})
            expect("Tidemark", "keys after the restart", keys, int(info["live"]))
            rss = proc.rss_bytes([server.pid])
            check_rows(client, keys)
        facts = server.recovery()
    phases = {f"recovery_{name}": float(value) for name, value in facts.items() if name.endswith("ms")}
    return {
        "serving_s": serving_s,
        "ready_s": ready_s,
        "outside_recovery_ms": serving_s * 1e3 - facts.get("ms", 0),
        "rss_after_restart": float(rss),
        **phases,
    }


# Memory ---------------------------------------------------------------------------------------------


def _memory(folder: Path, keys: int, scale: Scale) -> Figures:
    """How the broker's resident set grows with the keys, messages themselves left on the disk."""
    cache = max(2 << 20, min(64 << 20, keys * 160 // 8 // 4096 * 4096))
    with (
        TidemarkServer(folder, ("--set", f"store.cache_bytes={cache}")) as server,
        Client(server.port) as client,
    ):
        putter = Putter(server, client, keys)
        putter.declare(KEYED)
        points: list[tuple[int, int]] = []
        for step in range(_MEMORY_STEPS):
            putter.fill(keys * step // _MEMORY_STEPS, keys * (step + 1) // _MEMORY_STEPS)
            time.sleep(scale.settle_s)
            points.append((keys * (step + 1) // _MEMORY_STEPS, proc.rss_bytes([server.pid])))
        filled = client.call({"op": "info", "stream": KEYED})["memory_bytes"]
        putter.run(KEYED, scale.stream_s)
        putter.check()
        updated = client.call({"op": "info", "stream": KEYED})["memory_bytes"]
    return {
        # The first part fills caches and pools, too; keys alone are what comes after it.
        "rss_bytes_per_key": slope(points[1:]),
        "index_bytes_per_key": filled / keys,
        "updated_bytes_per_key": updated / keys,
        "rss_bytes": float(points[-1][1]),
    }


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes a key, by least squares."""
    x, y = (np.array(column, float) for column in zip(*points, strict=True))
    return float(np.polyfit(x, y, 1)[0])


# Beside the peers -----------------------------------------------------------------------------------


def _peers(folder: Path, keys: int, scale: Scale) -> Figures:
    with (
        TidemarkServer(folder) as server,
        Client(server.port) as client,
        Client(server.port) as reader,
    ):
        putter = Putter(server, client, keys)
        putter.declare(KEYED, APPENDED)
        putter.fill(0, keys)
        time.sleep(scale.settle_s)
        found = {
            **reading(lambda: scan_once(reader, keys, hashed=True)[0], server.cpu_seconds, scale.stream_s),
            **putter.run(KEYED, scale.stream_s, scale.warmup_s).figures("keyed"),
            **putter.run(APPENDED, scale.stream_s, scale.warmup_s).figures("append"),
            **putter.run_singles(KEYED, scale.stream_s, scale.warmup_s).figures("single"),
        }
        putter.check()
        check_rows(reader, keys)
    return found
