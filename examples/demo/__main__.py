"""The demo: a shop's orders flow in over AMQP, Spark keeps three sinks equal to the stream, and everything is killed once.

It starts `tidemark serve` with an embedded store in a temporary folder, feeds it a day of orders with pika (revisions
and cancellations), runs `tidemark pipeline run orders.toml` meanwhile, kills the broker and later the Spark driver with
SIGKILL, starts them again, and in the end compares the shop's own books with the stream, a Delta table, a DuckDB
warehouse and a full-text index. Everything is stopped and removed at the end.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from chart import chart
from pika.exceptions import AMQPError
from processes import Broker, Pipeline
from shop import Shop

import tidemark.client

HERE = Path(__file__).parent
PER_TRANSACTION = 500
PACE = 8_000
"""Events a second at most: faster than most shops, slow enough to kill things in the middle of it."""


class Feed(threading.Thread):
    """Publishes the shop's day, so many events a transaction; a transaction that was not confirmed is sent again."""

    def __init__(self, broker: Broker, shop: Shop) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._shop = shop
        self.sent: list[tuple[float, int]] = []
        """(when, how many events were confirmed by then)"""
        self.error: Exception | None = None

    @property
    def confirmed(self) -> int:
        return self.sent[-1][1] if self.sent else 0

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.error = error

    def _run(self) -> None:
        part: list[tuple[str, bytes]] = []
        channel = self._channel()
        began = time.monotonic()
        for event in self._shop.day():
            part.append(event)
            if len(part) == PER_TRANSACTION:
                channel = self._store(channel, part)
                part.clear()
                time.sleep(max(0.0, began + self.confirmed / PACE - time.monotonic()))
        self._store(channel, part)

    def _channel(self) -> Any:
        channel = self._broker.connect().channel()
        channel.tx_select()
        return channel

    def _store(self, channel: Any, part: list[tuple[str, bytes]]) -> Any:
        while True:
            try:
                for order, body in part:
                    headers = None if body else {"x-tombstone": True}
                    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
                    channel.basic_publish("shop", order, body, properties)
                channel.tx_commit()
            except (AMQPError, OSError):
                channel = self._channel()
            else:
                self.sent.append((time.monotonic(), self.confirmed + len(part)))
                return channel


def wait(what: str, until: Callable[[], bool], pipeline: Pipeline, feed: Feed, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not until():
        if feed.error is not None:
            raise feed.error
        if not pipeline.alive() or time.monotonic() > deadline:
            raise SystemExit(
                f"waiting for {what}: the pipeline is not getting there. It said:\n{pipeline.log()}"
            )
        time.sleep(0.05)


def delivered(pipeline: Pipeline) -> dict[str, int]:
    """Sink → up to which sequence it holds the stream."""
    held: dict[str, int] = {}
    for report in pipeline.reports:
        if report.get("sequence"):
            held[report["sink"]] = report["sequence"]
    return held


def compare(folder: Path, db: tidemark.client.Client, shop: Shop) -> bool:
    """Count the orders and sum up their cents in the books, the stream and each sink."""
    import json

    import duckdb
    from deltalake import DeltaTable

    from tidemark_spark.pipeline.sinks.search import SearchSink

    books = len(shop.orders), sum(order["cents"] for order in shop.orders.values())
    rows = [("the shop's books", *books)]
    stream = [json.loads(row.value) for row in db.stream("orders").snapshot() if not row.deleted]
    rows.append(("stream", len(stream), sum(order["cents"] for order in stream)))
    lake = DeltaTable(folder / "lake" / "orders").to_pyarrow_table(columns=["cents"])
    rows.append(("Delta table", lake.num_rows, sum(lake["cents"].to_pylist())))
    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as warehouse:
        found = warehouse.execute("SELECT count(*), sum(cents) FROM orders").fetchone()
        assert found is not None
        rows.append(("DuckDB", *found))
        cities = warehouse.execute(
            "SELECT city, count(*), sum(amount) FROM orders GROUP BY city ORDER BY 3 DESC LIMIT 3"
        ).fetchall()
    search = SearchSink("search", "shop", {"path": str(folder / "search"), "key_column": "order_id"})
    search.open()
    digest = search.digest()
    rows.append(("full-text index", digest.rows, None))
    hits = search.search('goods:teapot AND wish:"ring twice"', limit=3)
    search.close()
    for name, count, cents in rows:
        print(f"  {name:<18} {count:>8,} orders" + ("" if cents is None else f" {cents / 100:>16,.2f}"))
    print("  warehouse, best cities: " + ", ".join(f"{city} {amount:,.0f}" for city, _, amount in cities))
    print("  search for a teapot and 'ring twice': " + ", ".join(str(hit["order_id"]) for hit in hits))
    return all((count, cents) == books or (cents is None and count == books[0]) for _, count, cents in rows)


def story(folder: Path, shop: Shop) -> bool:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    broker = Broker(folder)
    say(f"a broker with an embedded store listens on 127.0.0.1:{broker.port}")
    setup = broker.connect()
    channel = setup.channel()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare(
        "orders", durable=True, arguments={"x-queue-type": "stream", "x-stream-key": "routing-key"}
    )
    channel.queue_bind("orders", "shop", "#")
    setup.close()
    pipeline = Pipeline(HERE / "orders.toml", folder, broker.url)
    pipeline.start()
    say("the pipeline starts: stream → Spark → Delta table, DuckDB, full-text index")
    feed = Feed(broker, shop)
    try:
        wait(
            "the first reports",
            lambda: any(r.get("state") == "running" for r in pipeline.reports),
            pipeline,
            feed,
        )
        feed.start()
        say(f"pika publishes {shop.events:,} events on {shop.keys:,} orders, {PER_TRANSACTION} a transaction")
        wait("a quarter of the events", lambda: feed.confirmed > shop.events // 4, pipeline, feed)
        broker.kill()
        say(f"SIGKILL to the broker, {feed.confirmed:,} events confirmed; it starts again on the same data")
        broker.start()
        wait("half of the events", lambda: feed.confirmed > shop.events // 2, pipeline, feed)
        wait("the first rows in a sink", lambda: bool(delivered(pipeline)), pipeline, feed)
        pipeline.kill()
        say(
            f"SIGKILL to the Spark driver and its workers in the middle of a batch; sinks at {delivered(pipeline)}"
        )
        pipeline.start()
        say("the driver starts again on its checkpoint")
        feed.join()
        if feed.error is not None:
            raise feed.error
        with tidemark.client.connect(broker.url) as db:
            head = db.stream("orders").snapshot().sequence
            say(
                f"the day is over: {shop.events:,} events, {shop.cancelled:,} cancellations; the sinks catch up"
            )
            wait(
                "the sinks to catch up",
                lambda: len(held := delivered(pipeline)) == 3 and min(held.values()) >= head,
                pipeline,
                feed,
            )
            say("all sinks have reached the end of the stream; the pipeline is asked to stop")
            code = pipeline.stop()
            equal = compare(folder, db, shop)
            say(
                "verify: each sink is read back and compared with the stream, by count and hash of all versions"
            )
            verified, result = pipeline.ask("verify")
            for sink in result:
                print(f"  {sink['sink']:<18} {sink['verdict']:<8} {sink['rows']:,} rows, hash {sink['hash']}")
        print()
        print(chart(feed.sent, pipeline.reports, began))
        ok = equal and code == 0 and verified == 0
        say("stream and sinks are equal: nothing lost, nothing twice" if ok else "NOT EQUAL, see above")
        return ok
    finally:
        pipeline.stop()
        broker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, help="a folder to leave everything in, to look at afterwards")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    shop = Shop(events=given.events, keys=given.keys)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        return 0 if story(given.keep.resolve(), shop) else 1
    with tempfile.TemporaryDirectory(prefix="tidemark-demo-") as folder:
        return 0 if story(Path(folder), shop) else 1


if __name__ == "__main__":
    sys.exit(main())
