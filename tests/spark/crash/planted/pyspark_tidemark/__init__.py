"""Found by Spark before the product's own: the same source, with a fault. It does not keep what a batch has shown.

When a batch is planned again, its pin is made anew, of what the stream holds by then: as a source would that only
remembers sequences.
"""

from __future__ import annotations

from typing import Any

from tidemark_spark.broker import BrokerFeed, Pin
from tidemark_spark.source import TidemarkDataSource


class DefaultSource(TidemarkDataSource):
    """A class of this module, so that Spark's processes import it, and with it the fault."""


def pinned_anew(feed: BrokerFeed, name: str, lease_s: float, *_more: Any) -> Pin:
    feed.release(name)
    return feed.pin(name, lease_s)


BrokerFeed.pinned = pinned_anew  # type: ignore[method-assign]
