"""A declarative pipeline over a stream: a table of all versions seen, a view of totals, and a stream as sink."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

URL = os.environ["TIDEMARK_URL"]
spark = SparkSession.getActiveSession()


@dp.table
def versions() -> DataFrame:
    rows = (
        spark.readStream.format("tidemark")
        .option("tidemark.url", URL)
        .option("subscribe", "example.declared")
        .load()
    )
    return rows.selectExpr(
        "CAST(key AS STRING) AS id", "CAST(CAST(value AS STRING) AS BIGINT) AS cents", "sequence"
    )


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("versions").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))


dp.create_sink(
    "expensive", "tidemark", {"tidemark.url": URL, "stream": "example.expensive", "createStream": "true"}
)


@dp.append_flow(target="expensive", name="to_expensive")
def to_expensive() -> DataFrame:
    rows = spark.readStream.table("versions").where("cents >= 50")
    return rows.selectExpr("CAST(id AS BINARY) AS key", "CAST(CAST(cents AS STRING) AS BINARY) AS value")
