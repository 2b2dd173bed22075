"""Reads what sinks wrote as a user would, without the sink's own code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemark_spark.pipeline.values import Digest

Rows = list[dict[str, Any]]


def duckdb_rows(options: Mapping[str, Any]) -> Rows:
    import duckdb

    with duckdb.connect(options["path"]) as db:
        return list(db.sql(f"SELECT * FROM {options['table']}").to_arrow_table().to_pylist())


def postgres_rows(options: Mapping[str, Any]) -> Rows:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(options["url"], row_factory=dict_row) as db:
        return list(db.execute(f"SELECT * FROM {options['table']}").fetchall())


def delta_rows(options: Mapping[str, Any]) -> Rows:
    from deltalake import DeltaTable

    return list(DeltaTable(options["path"]).to_pyarrow_table().to_pylist())


def parquet_rows(options: Mapping[str, Any]) -> Rows:
    """The state that a change log describes: for mode mirror, the newest row of each key, if it is not deleted."""
    import duckdb

    key = options.get("key_column", "key")
    files = (
        f"read_parquet('{options['path']}/batch=*/*.parquet', hive_partitioning = true, union_by_name = true)"
    )
    with duckdb.connect() as db:
        columns = [row[0] for row in db.sql(f"DESCRIBE SELECT * FROM {files}").fetchall()]
        if "_deleted" not in columns:
            keys = options.get("key") or ["batch", "file_row_number"]
            order = ", ".join(keys)
            query = f"""
                SELECT * EXCLUDE (file_row_number)
                FROM (SELECT * FROM read_parquet('{options["path"]}/batch=*/*.parquet', hive_partitioning = true,
                      union_by_name = true, file_row_number = true))
                QUALIFY row_number() OVER (PARTITION BY {order} ORDER BY batch DESC) = 1"""
        else:
            query = f"""
                SELECT * FROM {files}
                QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY batch DESC) = 1 AND NOT _deleted"""
        found = db.sql(query).to_arrow_table().to_pylist()
    return [
        {name: value for name, value in row.items() if name not in ("batch", "_deleted")} for row in found
    ]


READERS = {
    "duckdb": duckdb_rows,
    "postgres": postgres_rows,
    "delta": delta_rows,
    "parquet": parquet_rows,
}
"""Sinks with rows that can be read like this; the others have tests of their own for their values."""


def amqp_digest(options: Mapping[str, Any]) -> Digest:
    """What a keyed stream holds that is bound to the exchange: messages of mode mirror make it a copy."""
    import tidemark.client
    from helpers import sink_model as model

    held: dict[str, int] = {}
    with (
        tidemark.client.connect(options["url"], timeout=20) as db,
        db.stream(options["exchange"]).snapshot() as snapshot,
    ):
        for row in snapshot.rows(columns=["key", "value", "deleted"]):
            if not row.deleted:
                held[row.key.decode()] = json.loads(row.value)["_sequence"]
    return model.digest(held)
