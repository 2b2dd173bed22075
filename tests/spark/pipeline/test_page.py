"""A pipeline on the management page, as a person sees it: `tidemark pipeline run` with a real Spark, in a real Chromium."""

from __future__ import annotations

import itertools
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.amqp import eventually
from helpers.pipelines import a_duckdb, a_file, an_order
from spark.pipeline.test_cli import Run

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

    from tidemark.client import Client, Stream

pytest.importorskip("playwright")
from playwright.sync_api import Locator, expect
from web.conftest import Shoot, Site, Visitors, browser, shoot, visitors

__all__ = ["browser", "shoot", "visitors"]  # fixtures

pytestmark = pytest.mark.timeout(180)

START_MS = 90_000
"""How long Spark may take to begin on a machine that has other things to do."""
LARGE = """
[[transform]]
name = "large"
sql = "SELECT _key, _sequence, customer, amount FROM orders WHERE amount >= 10 OR amount < 0"

[[expect]]
on = "large"
name = "positive"
check = "amount > 0"
otherwise = "fail"
"""


@contextmanager
def fed(stream: Stream) -> Iterator[None]:
    """Orders keep coming."""
    enough = threading.Event()

    def feed() -> None:
        for n in itertools.count():
            stream.put_many([(f"o-{n}-{part}", an_order()) for part in range(20)])
            if enough.wait(0.2):
                return

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    enough.set()
    thread.join()


def boundary(sink: Locator) -> int:
    """Up to where a sink is equal to its stream, as the page says it."""
    found = re.search(r"sequence ([\d,]+)", sink.locator("[data-label='Last boundary']").inner_text())
    return int(found[1].replace(",", "")) if found else -1


def test_a_pipeline_that_runs_is_drawn_with_its_speed_and_boundary_and_the_row_that_stops_a_sink(
    broker: SparkBroker, db: Client, name: str, tmp_path: Path, visitors: Visitors, shoot: Shoot
) -> None:
    stream = db.stream(name, create=True)
    stream.put("o-0", an_order())
    pipeline = a_file(
        tmp_path, broker.url, name, LARGE + a_duckdb("everything", "orders") + a_duckdb("big", "large")
    )
    site = Site(broker)
    page = visitors.enter(site)
    page.goto(site.at("/pipelines"))

    with Run(pipeline) as run:
        about = page.get_by_role("region", name=pipeline.name, exact=True)
        expect(about).to_be_visible(timeout=START_MS)
        # From the source by way of the step to the sinks.
        for box in ("orders", "large", "everything", "big"):
            expect(about.locator("svg.picture .box-title").get_by_text(box, exact=True)).to_be_visible()
        # Three arrows: a line that passes the step by is drawn in parts, of which the last has the tip.
        expect(about.locator("svg.picture .edge .tip:not([d=''])")).to_have_count(3)
        sinks = {word: about.get_by_role("row", name=word) for word in ("everything", "big")}
        with fed(stream):
            for sink in sinks.values():
                expect(sink.locator("[data-label='Rows/s']")).not_to_have_text("0/s", timeout=START_MS)
            shoot(page, "pipeline-running")
        end = stream.info().last_sequence
        for sink in sinks.values():
            expect(sink.locator("[data-label=Behind]")).to_have_text("up to date", timeout=START_MS)
            assert eventually(lambda sink=sink: boundary(sink) >= end)  # type: ignore[misc]

        bad = stream.put("o-bad", an_order(customer="<b>eve</b>", amount=-5)).sequence
        problem = about.locator(".problem")
        expect(problem).to_contain_text("positive", timeout=START_MS)
        expect(problem).to_contain_text("o-bad")
        expect(problem).to_contain_text(f"{bad:,}")
        expect(problem.locator(".value")).to_contain_text("<b>eve</b>")
        expect(about.locator("svg.picture .box.bad .box-title")).to_have_text("big")
        expect(sinks["big"]).to_contain_text("failed")
        # The other sink holds the row, and goes on.
        assert eventually(lambda: boundary(sinks["everything"]) >= bad)
        shoot(page, "pipeline-failed")
        code, _, said = run.end(signal.SIGTERM)
    assert code == 1, said
    expect(about.locator(".card-head")).to_contain_text("failed")
    expect(problem).to_contain_text("o-bad")
