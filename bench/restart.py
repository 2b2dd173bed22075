"""How long a start takes after kill -9, with many live keyed messages: with a checkpoint, and without one.

    python -m bench.restart --messages 10000000 --tail-mib 64 --data DIRECTORY

One process fills a stream through a whole node over real files, waits for a checkpoint, writes a tail behind it and
kills itself. Others start on what it left, each killed in turn, and say how long each phase of the start took. The
last one finds no checkpoint. The figure that counts is from the start of the interpreter to a node that serves.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

BATCH = 10_000
STREAM = "prices"
VALUE_BYTES = 100


class Outside:
    """Fits `node.Outside` and stays quiet."""

    def due(self) -> None: ...

    def replaced(self, old: Any, new: Any) -> None: ...

    def login(self, front_end: Any, login: Any) -> None: ...

    def note(self, level: str, event: str, **facts: object) -> None:
        print(level, event, facts, file=sys.stderr)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_node(data: Path) -> Any:
    from tidemark.config import load
    from tidemark.node import Node
    from tidemark.runtime.apart import Forked
    from tidemark.runtime.disk import FileDisk

    config = load({"limits.disk_free_bytes_min": "0", "node.data": str(data)})
    return Node(config, FileDisk(data), Outside(), os.urandom, Forked(data))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# Filling ------------------------------------------------------------------------------------


def batch_of(first: int, step: int, keys: int) -> Any:
    from tidemark.model.rows import RowBatch

    numbers = [(first + step * n) % keys for n in range(BATCH)]
    names = b"".join([b"key-%09d" % number for number in numbers])
    offsets = array("i", range(0, 13 * BATCH + 1, 13))
    value = os.urandom(VALUE_BYTES)
    places = array("i", range(0, VALUE_BYTES * BATCH + 1, VALUE_BYTES))
    return RowBatch(count=BATCH, keys=(offsets, names), values=(places, value * BATCH))


def fill(data: Path, messages: int, tail_mib: int) -> None:
    from tidemark.broker.streams.core import put_rows
    from tidemark.model.wiring import QueueSpec

    node = open_node(data)
    node.start(now_ms())
    arguments = {"x-queue-type": "stream", "x-stream-key": "none"}
    stream, _ = node.broker.create_queue(QueueSpec("/", STREAM, True, False, False, arguments))
    began = time.monotonic()

    def put(first: int, step: int) -> None:
        put_rows(stream, node.journal, batch_of(first, step, messages), now_ms(), b"")
        settle()

    def settle() -> None:
        node.turn(now_ms())
        node.completed(now_ms())
        node.maintain(now_ms(), 1 << 20)

    for number in range(messages // BATCH):
        put(number * BATCH, 1)
    print(f"filled in {time.monotonic() - began:.1f} s, {stream.live} live", file=sys.stderr)
    checkpointer = node.journal.checkpointer
    while True:
        settle()
        missing = node.journal.bytes_written - checkpointer._bytes
        if checkpointer._begun is None and checkpointer.made and missing < 1 << 24:
            break
        time.sleep(0.01)
    print(f"{checkpointer.made} checkpoints, the last took {checkpointer.took_ms} ms", file=sys.stderr)
    before = node.journal.bytes_written
    step = 0
    checkpointer.wait_ms = 1 << 40
    while node.journal.bytes_written - before < tail_mib << 20:
        put(step * 7919, 104_729)
        step += 1
    while not node.store.idle:
        settle()
    sizes = {name: node._disk.size(name) >> 20 for name in node._disk.list("ckpt-")}
    print(
        f"{node.statistics() if hasattr(node, 'statistics') else ''} checkpoint MiB: {sizes}", file=sys.stderr
    )
    die()


# Starting -----------------------------------------------------------------------------------


def timed(owner: Any, name: str, phases: dict[str, tuple[float, float]]) -> None:
    plain = getattr(owner, name)

    def wrapped(*arguments: Any, **facts: Any) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return plain(*arguments, **facts)
        finally:
            label = f"{getattr(owner, '__name__', str(owner)).rpartition('.')[2]}.{name}"
            before = phases.get(label, (0.0, 0.0))
            taken = time.perf_counter() - began, time.process_time() - cpu
            phases[label] = before[0] + taken[0], before[1] + taken[1]

    setattr(owner, name, wrapped)


def start(data: Path, began_s: float) -> None:
    phases: dict[str, tuple[float, float]] = {}
    from tidemark.store import checkpoint
    from tidemark.store.catalog_log import CatalogLog
    from tidemark.store.journal import Journal

    imported = time.time() - began_s
    timed(checkpoint, "read", phases)
    timed(checkpoint.Adoption, "_load", phases)
    timed(checkpoint.Adoption, "finish", phases)
    timed(CatalogLog, "recover", phases)
    timed(Journal, "recover", phases)
    for name in os.environ.get("TIMED", "").split():
        module, _, function = name.rpartition(".")
        timed(pkgutil.resolve_name(module), function, phases)
    node = open_node(data)
    report = node.start(now_ms())
    while not node.store.idle:
        node.completed(now_ms())
    total, cpu_s = time.time() - began_s, time.process_time()
    stream = next(q for q in node.broker.queues.values() if q.name == STREAM)
    began = time.perf_counter()
    row = stream.current(b"key-%09d" % 4711)
    body = len(node.arena.message(row[1]).body)
    rows = {name: [round(seconds * 1000) for seconds in both] for name, both in phases.items()}
    print(
        json.dumps(
            {
                "serving_s": round(total, 3),
                "imports_ms": round(imported * 1000),
                "phases_ms_wall_cpu": rows,
                "first_get_ms": round((time.perf_counter() - began) * 1000, 2),
                "body": body,
                "live": stream.live,
                "checkpoint": report.checkpoint,
                "unusable": report.unusable,
                "records_read": report.records,
                "bytes_read": report.bytes,
                "dropped": report.dropped,
                "resident_mib": resident() >> 20,
                "cpu_s": round(cpu_s, 3),
            }
        )
    )
    sys.stdout.flush()
    die()


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


# All together -------------------------------------------------------------------------------


def run(mode: str, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "bench.restart",
        "--mode",
        mode,
        *arguments,
        "--began",
        repr(time.time()),
    ]
    # As where it is installed: its source was compiled before.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "tidemark-bench-restart")}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.returncode
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--tail-mib", type=int, default=64)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--mode", default="all")
    parser.add_argument("--began", type=float, default=0.0)
    options = parser.parse_args()
    same = [
        "--messages",
        str(options.messages),
        "--data",
        str(options.data),
        "--tail-mib",
        str(options.tail_mib),
    ]
    if options.mode == "fill":
        fill(options.data, options.messages, options.tail_mib)
    elif options.mode == "start":
        start(options.data, options.began)
    else:
        shutil.rmtree(options.data, ignore_errors=True)
        run("fill", *same)
        for _ in range(options.starts):
            print("with a checkpoint   ", run("start", *same), end="")
        for path in options.data.glob("ckpt-*"):
            path.unlink()
        print("without a checkpoint", run("start", *same), end="")


if __name__ == "__main__":
    main()
