"""A run as people see it: a live table in a terminal, plain lines elsewhere, JSON lines for programs; and a summary.

All three are views of the same `SinkStatus` values and decide nothing. The live table is drawn in place, four times
a second; the plain view says something when a state changes and every ten seconds; the JSON view writes one object a
sink, every second and when a state changes.

Invariant: what a view shows was true of each sink at one moment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

from tidemark_spark.pipeline.tracking import SinkStatus, State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tidemark_spark.pipeline.runner import Summary

PLAIN_S = 10.0
JSON_S = 1.0
STYLES = {
    State.RUNNING: "green",
    State.DONE: "green",
    State.STARTING: "cyan",
    State.STOPPING: "cyan",
    State.STOPPED: "cyan",
    State.RETRYING: "yellow",
    State.FAILED: "bold red",
}


class LiveView:
    """A table that is drawn in place."""

    def __init__(self, pipeline: str, console: Console) -> None:
        from rich.live import Live

        self._pipeline = pipeline
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def look(self, sinks: Sequence[SinkStatus]) -> None:
        self._live.update(progress_table(self._pipeline, sinks, time.monotonic() - self._began), refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """A line a sink, when something changes or some time has passed."""

    def __init__(self, out: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._said: dict[str, tuple[State, str | None]] = {}
        self._at: dict[str, float] = {}

    def look(self, sinks: Sequence[SinkStatus]) -> None:
        now = self._clock()
        for one in sinks:
            fact = one.state, one.error
            due = one.state is State.RUNNING and now - self._at.get(one.sink, now - PLAIN_S) >= PLAIN_S
            if self._said.get(one.sink) != fact or due:
                self._said[one.sink], self._at[one.sink] = fact, now
                print(line(one), file=self._out, flush=True)

    def close(self) -> None:
        pass


class JsonView:
    """An object a line on standard output."""

    def __init__(self, out: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stdout
        self._clock = clock
        self._said: dict[str, dict[str, Any]] = {}
        self._at: dict[str, float] = {}

    def look(self, sinks: Sequence[SinkStatus]) -> None:
        now = self._clock()
        for one in sinks:
            facts = one.to_json()
            before = self._said.get(one.sink, {})
            changed = before.get("state") != facts["state"] or before.get("error") != facts["error"]
            if changed or (facts != before and now - self._at.get(one.sink, 0.0) >= JSON_S):
                self._said[one.sink], self._at[one.sink] = facts, now
                self._write({"event": "progress", "at_ms": time.time_ns() // 1_000_000} | facts)

    def summary(self, pipeline: str, summary: Summary) -> None:
        sinks = [one.to_json() for one in summary.sinks]
        self._write(
            {
                "event": "summary",
                "pipeline": pipeline,
                "seconds": round(summary.seconds, 3),
                "failed": list(summary.failed),
                "sinks": sinks,
            }
        )

    def close(self) -> None:
        pass

    def _write(self, facts: dict[str, Any]) -> None:
        print(json.dumps(facts, ensure_ascii=False), file=self._out, flush=True)


# Words ------------------------------------------------------------------------------------------------


def line(one: SinkStatus) -> str:
    """How a sink is doing, in a line."""
    parts = [f"{one.sink}: {one.state}"]
    if one.batches:
        parts.append(f"{one.rows:,} rows, {one.rows_per_s:,.0f}/s")
    if one.lag_rows is not None:
        parts.append(f"{one.lag_rows:,} keys behind" if one.lag_rows else "up to date")
    if one.eta_s:
        parts.append(f"about {span(one.eta_s)} to go")
    if one.dead_letters:
        parts.append(f"{one.dead_letters:,} dead letters")
    if one.error:
        parts.append(one.error)
    if one.note:
        parts.append(one.note)
    return ", ".join(parts)


def span(seconds: float | None) -> str:
    """A time for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def boundary(one: SinkStatus) -> str:
    if one.sequence is None:
        return "–"
    at = (
        ""
        if one.boundary_at_ms is None
        else time.strftime(" %H:%M:%S", time.localtime(one.boundary_at_ms / 1000))
    )
    return f"{one.sequence}{at}" if one.boundary else f"{one.sequence} (inside a snapshot)"


def progress_table(pipeline: str, sinks: Sequence[SinkStatus], seconds: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"pipeline {pipeline}  ·  {span(seconds)}", title_justify="left", expand=False)
    for name in ("sink", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "rows/s", "behind", "lag", "ETA"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("boundary", no_wrap=True)
    if any(one.dead_letters for one in sinks):
        table.add_column("dead letters", justify="right", no_wrap=True)
    problems = []
    for one in sinks:
        cells: list[str | Text] = [
            one.sink,
            Text(one.state.value, style=STYLES[one.state]),
            f"{one.rows:,}",
            f"{one.rows_per_s:,.0f}",
            "–" if one.lag_rows is None else f"{one.lag_rows:,}",
            span(one.lag_s),
            span(one.eta_s),
            boundary(one),
        ]
        if any(other.dead_letters for other in sinks):
            cells.append(f"{one.dead_letters:,}")
        table.add_row(*cells)
        if one.error or one.note:
            problems.append(f"{one.sink}: {', '.join(text for text in (one.error, one.note) if text)}")
    if problems:
        table.caption = Text("\n".join(problems), style="yellow")
        table.caption_justify = "left"
    return table


def print_summary(pipeline: str, summary: Summary, console: Console) -> None:
    """What the run did, when it is over."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"pipeline {pipeline}: {span(summary.seconds)}", title_justify="left")
    table.add_column("sink", no_wrap=True)
    table.add_column("end", no_wrap=True)
    for name in ("batches", "rows", "upserted", "deleted", "dead letters", "dropped", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holds the stream up to", no_wrap=True)
    for one in summary.sinks:
        table.add_row(
            one.sink,
            Text(one.state.value, style=STYLES[one.state]),
            f"{one.batches:,}",
            f"{one.rows:,}",
            f"{one.upserted:,}",
            f"{one.deleted:,}",
            f"{one.dead_letters:,}",
            f"{one.dropped:,}",
            "–" if one.lag_rows is None else f"{one.lag_rows:,}",
            boundary(one),
        )
    console.print(table)
    for one in summary.sinks:
        if one.state is State.FAILED and one.error:
            console.print(Text(f"{one.sink} failed: {one.error}", style="red"))
