"""What the planning process does beside Spark's calls."""

from __future__ import annotations

import threading

from spark.unit.model_feed import ModelFeed

from tidemark_spark.micro_batches import MicroBatches
from tidemark_spark.options import read_options
from tidemark_spark.streaming import keep_leases


def test_leases_are_kept_as_soon_as_it_is_known_how_short_they_are() -> None:
    """The thread starts before the stream was asked; its tombstone lease may be far shorter than pinLease."""
    feed = ModelFeed()
    feed.tombstone_lease_s = 0.2
    options = read_options({"tidemark.url": "tidemark://h/", "subscribe": "orders", "groupId": "g"}, "stream")
    planner = MicroBatches(feed, options)
    stopped, renewed = threading.Event(), threading.Event()
    thread = threading.Thread(target=keep_leases, args=(planner, stopped))
    thread.start()
    try:
        planner.latest(planner.initial())
        feed.register = lambda _group: renewed.set()  # type: ignore[method-assign]
        assert renewed.wait(10)
    finally:
        stopped.set()
        thread.join()
