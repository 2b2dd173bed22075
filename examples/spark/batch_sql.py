"""A stream as a table: SQL over a snapshot, over the past, and over the difference of two moments.

Run it against a broker on this machine: python examples/spark/batch_sql.py
"""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tidemark.client

URL = os.environ.get("TIDEMARK_URL", "tidemark://guest:guest@127.0.0.1:5672/")


def accounts(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """The stream `example.accounts` with its values as columns."""
    rows = (
        spark.read.format("tidemark")
        .option("tidemark.url", url)
        .option("subscribe", "example.accounts")
        .options(**options)
        .load()
    )
    return rows.selectExpr(
        "CAST(key AS STRING) AS account",
        "from_json(CAST(value AS STRING), 'owner STRING, cents BIGINT') AS fields",
        "sequence",
        "deleted",
    ).selectExpr("account", "fields.*", "sequence", "deleted")


def main(spark: SparkSession, url: str = URL) -> dict[str, Any]:
    with tidemark.client.connect(url) as db:
        stream = db.stream("example.accounts", create=True, history=3600)
        stream.put_many(
            [(f"a-{n}", json.dumps({"owner": f"owner {n % 10}", "cents": n})) for n in range(1000)]
        )
        morning = stream.snapshot().sequence
        stream.put_many([(f"a-{n}", json.dumps({"owner": "the bank", "cents": 0})) for n in range(100)])
        stream.delete("a-999")
        evening = stream.snapshot().sequence

    def total(frame: DataFrame) -> int:
        frame.createOrReplaceTempView("accounts")
        return int(spark.sql("SELECT sum(cents) FROM accounts WHERE NOT deleted").collect()[0][0])

    now = total(accounts(spark, url))
    then = total(accounts(spark, url, asOf=morning))
    changed = accounts(spark, url, diff=f"{morning},{evening}").groupBy("deleted").count().collect()
    difference = {("deleted" if row["deleted"] else "changed"): row["count"] for row in changed}
    print(f"cents in all accounts: {then} in the morning, {now} now; since then {difference}")
    return {"now": now, "then": then, "difference": difference}


if __name__ == "__main__":
    from tidemark_spark.session import build_session

    main(build_session("batch_sql", fast_start=True))
