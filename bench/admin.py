"""What it costs the broker to be watched: the same load with nobody looking, and with the page open and Prometheus scraping.

A broker with many queues is loaded again and again, in turn watched and not watched, so that a machine that changes its mood
changes it for both. Whoever watches reads a stream of events as the page does (overview and a page of queues, pushed
about once a second) and asks for /metrics every five seconds, and does nothing with what it reads: its own time is not the
broker's.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import quote, urlencode

LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
SPANS = {"lengths_age": 60, "lengths_incr": 5, "msg_rates_age": 60, "msg_rates_incr": 5}
PATHS = (
    f"/overview?{urlencode(SPANS)}",
    "/queues?"
    + urlencode(
        {"page": 1, "page_size": 100, "sort": "message_stats.publish_details.rate"} | {"sort_reverse": "true"}
    ),
)
SCRAPE_S = 5.0
FIRST_S = 10.0
READ_BYTES = 1 << 16


@dataclass
class Watcher:
    """Somebody with the page open, and Prometheus."""

    port: int
    events_bytes: int = 0
    scrapes: int = 0
    problems: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _began: threading.Event = field(default_factory=threading.Event)

    def read_events(self) -> None:
        paths = "&".join(f"path={quote(path, safe='')}" for path in PATHS)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", f"/api/live?{paths}", headers=LOGIN)
            answer = connection.getresponse()
            if answer.status != 200:
                self.problems.append(f"/api/live answered {answer.status}: {answer.read(500)!r}")
                return
            while not self._over.is_set() and (data := answer.read1(READ_BYTES)):
                self.events_bytes += len(data)
                self._began.set()
        except OSError as problem:
            if not self._over.is_set():
                self.problems.append(f"/api/live: {problem}")
        finally:
            connection.close()

    def scrape(self) -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            try:
                connection.request("GET", "/metrics", headers=LOGIN)
                answer = connection.getresponse()
                if answer.status != 200 or b"rabbitmq_queues" not in answer.read():
                    self.problems.append(f"/metrics answered {answer.status}")
                self.scrapes += 1
            except OSError as problem:
                self.problems.append(f"/metrics: {problem}")
            finally:
                connection.close()
            if self._over.wait(SCRAPE_S):
                return

    def wait_for_first(self) -> None:
        if not self._began.wait(FIRST_S):
            self.problems.append(f"the page was sent nothing for {FIRST_S:.0f} s")

    def stop(self) -> None:
        self._over.set()


@contextlib.contextmanager
def watching(port: int) -> Iterator[Watcher]:
    """The page is open and metrics are scraped within this block."""
    watcher = Watcher(port)
    threads = [threading.Thread(target=work, daemon=True) for work in (watcher.read_events, watcher.scrape)]
    for thread in threads:
        thread.start()
    watcher.wait_for_first()
    time.sleep(1.0)
    try:
        yield watcher
    finally:
        watcher.stop()
        for thread in threads:
            thread.join(25)


def cost(alone: list[float], watched: list[float]) -> float:
    """By which share the second is below the first, by their medians; nothing is less than nothing."""
    return max(0.0, 1 - median(watched) / median(alone))
