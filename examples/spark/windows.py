"""Structured streaming over two streams: orders joined with their payments, summed in windows, with a watermark.

Neither stream has keys: every event counts, none buries another. Run it against a broker on this machine:
python examples/spark/windows.py
"""

from __future__ import annotations

import json
import os
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tidemark.client

URL = os.environ.get("TIDEMARK_URL", "tidemark://guest:guest@127.0.0.1:5672/")


def events(spark: SparkSession, url: str, stream: str, fields: str) -> DataFrame:
    rows = spark.readStream.format("tidemark").option("tidemark.url", url).option("subscribe", stream).load()
    return rows.select(f.from_json(f.col("value").cast("string"), fields).alias("event")).select("event.*")


def paid_per_minute(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """How much was ordered and paid within ten minutes, by the minute of the order."""
    late = "10 minutes"
    orders = orders.withWatermark("ordered_at", late)
    payments = payments.withWatermark("paid_at", late)
    paid = orders.join(
        payments,
        f.expr("id = order_id AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 10 MINUTES"),
    )
    return paid.groupBy(f.window("ordered_at", "1 minute")).agg(
        f.count("*").alias("orders"), f.sum("cents").alias("cents")
    )


def main(spark: SparkSession, url: str = URL) -> dict[str, int]:
    with tidemark.client.connect(url) as db:
        orders = db.stream("example.orders", create=True, key="none")
        payments = db.stream("example.payments", create=True, key="none")
        moment = "2026-01-01T12:{:02}:30Z"
        orders.put_many(
            [
                (None, json.dumps({"id": n, "cents": 100, "ordered_at": moment.format(n % 4)}))
                for n in range(200)
            ]
        )
        payments.put_many(
            [
                (None, json.dumps({"order_id": n, "paid_at": moment.format(n % 4 + 1)}))
                for n in range(0, 200, 2)
            ]
        )
        # An event long afterwards: everything before it is late now, and its windows are final.
        later = "2026-01-01T18:00:00Z"
        orders.put(None, json.dumps({"id": 1000, "cents": 1, "ordered_at": later}))
        payments.put(None, json.dumps({"order_id": 1000, "paid_at": later}))

    result = paid_per_minute(
        events(spark, url, "example.orders", "id BIGINT, cents BIGINT, ordered_at TIMESTAMP"),
        events(spark, url, "example.payments", "order_id BIGINT, paid_at TIMESTAMP"),
    )
    seen: dict[str, int] = {}

    def show(batch: DataFrame, _: int) -> None:
        for row in batch.orderBy("window").collect():
            seen[f"{row['window']['start']:%H:%M}"] = row["orders"]

    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            result.writeStream.outputMode("append")
            .foreachBatch(show)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print("orders that were paid, by minute:", seen)
    return seen


if __name__ == "__main__":
    from tidemark_spark.session import build_session

    main(build_session("windows", fast_start=True))
