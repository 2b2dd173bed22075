"""What a pinned snapshot costs the broker while its keys are rewritten: the writer's rate, memory, bytes kept.

The same writer updates the same keys in turn: without a pin; with a snapshot of all keys pinned and nobody reading it, as
during a micro-batch whose sink is slow; and while Spark reads such snapshots as fast as it can.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from bench.measure import Figures
from bench.results import Results
from bench.spark import cases
from bench.spark.cases import Case
from bench.spark.processes import in_turn
from bench.spark.scanning import reading
from bench.spark.setting import Broker, Setting
from bench.streams.putting import KEYED, Putter
from bench.streams.wire import Client

_PIN = "bench"


def pin(case: Case, setting: Setting, results: Results) -> None:
    """The figures of all rounds."""
    keys = setting.scale.rows(case.rows)
    with setting.broker() as broker, Client(broker.server.port) as client:
        putter = Putter(broker.server, client, keys)
        putter.declare(KEYED)
        putter.fill(0, keys)
        reading(setting.stream(broker, KEYED), keys, broker.clocks)()
        broker.release_pins(KEYED)
        putter.run(KEYED, setting.scale.pump_s)
        for _, name in in_turn(case.contestants, setting.scale.rounds):
            results.add(case.name, name, _phase(name, setting, broker, putter, keys))
        putter.check()


def _phase(name: str, setting: Setting, broker: Broker, putter: Putter, keys: int) -> Figures:
    stream = broker.client.stream(KEYED)
    with contextlib.ExitStack() as around:
        if name == cases.PINNED:
            around.enter_context(stream.pin(_PIN))
        scanned = around.enter_context(_reading(setting, broker, keys)) if name == cases.READ else None
        before = broker.server.rss_bytes()
        done = putter.run(KEYED, setting.scale.pump_s, setting.scale.pump_s / 8)
        kept = sum(pin.bytes_kept for pin in stream.pins())
        grown = max(0, broker.server.rss_bytes() - before)
    broker.release_pins(KEYED)
    figures = {**done.figures("updates"), "kept_bytes": float(kept), "rss_grown_bytes": float(grown)}
    if name == cases.PINNED:
        figures["kept_bytes_per_update"] = kept / done.total_rows
    if scanned is not None:
        figures["read_rows_per_s"] = sum(scanned) / max(1, len(scanned))
    return figures


@contextlib.contextmanager
def _reading(setting: Setting, broker: Broker, keys: int) -> Iterator[list[float]]:
    """Spark reads the whole stream again and again; the list has the rates."""
    rates: list[float] = []
    ending = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        once = reading(setting.stream(broker, KEYED), keys, broker.clocks)
        try:
            while not ending.is_set():
                rates.append(once()["rows_per_s"])
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield rates
    finally:
        ending.set()
        thread.join()
    if failures:
        raise failures[0]
