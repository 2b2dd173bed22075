"""Tells the brokers that a pipeline reads from how it is doing, so that their page can show it.

A report is one row of the stream `tidemark.pipelines`, under the pipeline's name and this machine's; the newest one counts. It is
written once a second while something changes, every few seconds otherwise, and when the run ends. Nothing waits for
it: a broker that is away, or that does not let us write there, is asked again later.

Invariant: no report has a password in it, and none ever holds a sink up.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tidemark.client
from tidemark.errors import TidemarkError
from tidemark_spark.pipeline.tracking import SinkStatus, State

if TYPE_CHECKING:
    from tidemark.client import Client
    from tidemark_spark.pipeline.file import Pipeline, SinkTable

STREAM = "tidemark.pipelines"
REPORT_S = 1.0
STILL_S = 5.0
"""How often one that does not change says that it is still there."""
AWAY_S = 10.0
ASK_S = 2.0


class Reporter:
    def __init__(
        self,
        pipeline: Pipeline,
        tables: Sequence[SinkTable],
        began_ms: int,
        look: Callable[[], Sequence[SinkStatus]],
    ) -> None:
        self._look = look
        self._about = about(pipeline, tables, began_ms)
        self._reads = {one.name: one.reads for one in tables}
        self._key = f"{pipeline.name}@{self._about['host']}".encode()
        self._name = f"pipeline {pipeline.name} report"
        self._urls = list(dict.fromkeys(one.url for one in pipeline.sources.values()))
        self._clients: dict[str, Client] = {}
        self._away_until: dict[str, float] = {}
        self._said: str | None = None
        self._said_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Say how it ended."""
        self._over.set()
        self._thread.join(2 * ASK_S)
        if not self._thread.is_alive():
            self._say(last=True)
        for client in self._clients.values():
            with contextlib.suppress(TidemarkError, OSError):
                client.close()

    def _run(self) -> None:
        while not self._over.wait(REPORT_S):
            self._say()

    def _say(self, *, last: bool = False) -> None:
        sinks = self._look()
        facts = {
            **self._about,
            "state": state_of(sinks, last),
            "sinks": [{**one.to_json(), "name": one.sink, "reads": self._reads[one.sink]} for one in sinks],
        }
        said, now = json.dumps(facts), time.monotonic()
        if said == self._said and not last and now - self._said_at < STILL_S:
            return
        self._said, self._said_at = said, now
        body = json.dumps({**facts, "at_ms": time.time_ns() // 1_000_000}).encode()
        for url in self._urls:
            if last or self._away_until.get(url, 0.0) <= now:
                try:
                    self._client(url).stream(STREAM).put(self._key, body)
                except (TidemarkError, OSError, ValueError):
                    self._away_until[url] = now + AWAY_S

    def _client(self, url: str) -> Client:
        if url not in self._clients:
            client = tidemark.client.connect(url, timeout=ASK_S, name=self._name)
            try:
                client.stream(STREAM, create=True)
            except BaseException:
                client.close()
                raise
            self._clients[url] = client
        return self._clients[url]


def about(pipeline: Pipeline, tables: Sequence[SinkTable], began_ms: int) -> dict[str, Any]:
    """What stays the same while it runs."""
    return {
        "name": pipeline.name,
        "host": platform.node() or "?",
        "pid": os.getpid(),
        "began_ms": began_ms,
        "file": pipeline.path.name,
        "sources": [
            {"name": one.name, "stream": one.stream, "url": without_login(one.url)}
            for one in pipeline.sources.values()
        ],
        "steps": [
            {"name": one.name, "kind": "sql" if one.sql is not None else "python", "reads": list(one.reads)}
            for one in pipeline.transforms.values()
        ],
        "dead_letters": None if pipeline.dead_letters is None else pipeline.dead_letters.stream,
        "modes": {one.name: one.mode for one in tables},
    }


def without_login(url: str) -> str:
    """The address of a broker without the user and the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def state_of(sinks: Sequence[SinkStatus], last: bool) -> str:
    """How a run is doing as a whole: as badly as its worst sink."""
    states = {one.state for one in sinks}
    if State.FAILED in states:
        return "failed"
    if last:
        return "done" if states <= {State.DONE} else "stopped"
    for state in (State.RETRYING, State.STARTING, State.STOPPING):
        if state in states:
            return state.value
    return "running"
