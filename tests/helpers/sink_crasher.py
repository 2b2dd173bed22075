"""Kills processes that apply batches to a sink, or lets two of them fight over it; run as a program of its own.

    python -m helpers.sink_crasher '{"kind": "duckdb", "options": {…}, "task": "crash", "rounds": 12, "seed": 1}'

It imports everything once and forks for each round, before any connection or thread is there: a round takes as long as
the sink, not as an interpreter needs to start. It prints one JSON object with what it saw; an error ends it with 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from helpers import sink_model as model
from tidemark_spark.errors import SinkUnavailable
from tidemark_spark.pipeline.sinks import KINDS, make_sink
from tidemark_spark.pipeline.sinks.sink import Sink

OPENED, APPLIED, SKIPPED = b"o", b"a", b"s"
PATIENCE_S = 60.0


def open_sink(task: dict[str, Any]) -> tuple[Sink, int]:
    """The sink, ready for batches, and the last batch that it holds. Waits while another process has it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        sink = make_sink(model.SINK, model.PIPELINE, task["kind"], task["options"])
        try:
            held = model.held_batch(sink.open())
            sink.prepare(model.SCHEMA, "mirror")
            return sink, held
        except SinkUnavailable:
            sink.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def digest_of(task: dict[str, Any], sink: Sink) -> Any:
    if task["kind"] == "amqp":
        from helpers.sink_reading import amqp_digest

        return amqp_digest(task["options"])
    return sink.digest()


# What the forked ones do ---------------------------------------------------------------------------


def apply_for_ever(task: dict[str, Any], tell: Callable[[bytes], None]) -> None:
    sink, held = open_sink(task)
    tell(OPENED)
    while True:
        held += 1
        sink.apply(model.change(held))
        tell(APPLIED)


def check(task: dict[str, Any], tell: Callable[[bytes], None]) -> None:
    """What the sink holds is what its mark says."""
    sink, held = open_sink(task)
    if task.get("repeat"):  # a sink without transactions is right again when the batch was repeated
        held += 1
        sink.apply(model.change(held))
    found, wanted = digest_of(task, sink), model.digest(model.state(held))
    assert found == wanted, f"after batch {held} the sink holds {found}, not {wanted}"
    sink.close()
    tell(f"{held}".encode())


def apply_all(task: dict[str, Any], tell: Callable[[bytes], None]) -> None:
    """All batches from the first, as a driver does that knows nothing of the other one."""
    sink, _ = open_sink(task)
    for batch in range(task["batches"]):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                applied = sink.apply(model.change(batch))
                break
            except SinkUnavailable:
                sink.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                sink, _ = open_sink(task)
        tell(SKIPPED if applied.skipped else APPLIED)
    sink.close()


# Rounds --------------------------------------------------------------------------------------------


class Forked:
    """A process that runs one of the above and tells bytes through a pipe."""

    def __init__(
        self, work: Callable[[dict[str, Any], Callable[[bytes], None]], None], task: dict[str, Any]
    ) -> None:
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.reader)
                work(task, lambda told: os.write(writer, told) and None)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)

    def wait_for_a_byte(self) -> None:
        ready, _, _ = select.select([self.reader], [], [], PATIENCE_S)
        assert ready, "the process said nothing for a minute"
        assert os.read(self.reader, 1), "the process ended before it had opened the sink"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> tuple[int, bytes]:
        """Its exit code (minus a signal), and all that it told."""
        told = b""
        while part := os.read(self.reader, 65536):
            told += part
        os.close(self.reader)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), told


def crash(task: dict[str, Any]) -> dict[str, Any]:
    dice = random.Random(task["seed"])
    held: list[int] = []
    confirmed = 0
    for number in range(task["rounds"]):
        victim = Forked(apply_for_ever, task)
        victim.wait_for_a_byte()
        # None to three whole batches, and then a moment in or after the next one, however long a batch takes here.
        whole, batch_s = number % 4, 0.05
        for _ in range(whole):
            began = time.monotonic()
            victim.wait_for_a_byte()
            batch_s = time.monotonic() - began
        time.sleep(dice.uniform(0, 1.5 * batch_s))
        victim.kill()
        code, told = victim.finish()
        assert code == -signal.SIGKILL, f"the process ended by itself with {code}"
        confirmed_now = whole + len(told)
        at_least = (held[-1] if held else -1) + confirmed_now
        code, said = Forked(check, task).finish()
        assert code == 0, f"after {len(held) + 1} kills the sink is wrong"
        held.append(int(said))
        confirmed += confirmed_now
        assert held[-1] >= at_least, f"batch {at_least} was confirmed, and the sink holds {held[-1]}"
    return {"held": held, "confirmed": confirmed}


def race(task: dict[str, Any]) -> dict[str, Any]:
    dice = random.Random(task["seed"])
    writers = [Forked(apply_all, task), Forked(apply_all, task)]
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        frozen = dice.choice(writers)
        if not is_running(frozen.pid):
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen.pid, signal.SIGSTOP)
            time.sleep(dice.uniform(0, 0.05))
            os.kill(frozen.pid, signal.SIGCONT)
        time.sleep(dice.uniform(0, 0.05))
    ends = [writer.finish() for writer in writers]
    code, said = Forked(check, task).finish()
    assert code == 0, "after two writers the sink is wrong"
    return {
        "codes": [code for code, _ in ends],
        "applied": [told.count(APPLIED) for _, told in ends],
        "skipped": [told.count(SKIPPED) for _, told in ends],
        "held": int(said),
    }


def is_running(pid: int) -> bool:
    # A process that ended and was not waited for yet still has its number; it says nothing any more.
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"  # noqa: PTH123
    except FileNotFoundError:
        return False


def main() -> None:
    task = json.loads(sys.argv[1])
    __import__(f"tidemark_spark.pipeline.sinks.{KINDS[task['kind']].split(':')[0]}")
    with contextlib.suppress(ImportError):
        __import__("pandas")  # DuckDB looks for it with the first table, which takes a second
    print(json.dumps({"crash": crash, "race": race}[task["task"]](task)), flush=True)


if __name__ == "__main__":
    main()
