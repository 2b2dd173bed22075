"""What holds for sinks that keep tables: columns and their types, results, rows that do not fit, disks that are full."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from helpers import sink_model as model
from helpers.postgres import PostgresProcess

from tidemark_spark.errors import (
    OptionError,
    RowRefused,
    SchemaDrift,
    SinkOfAnotherQuery,
    SinkRefused,
    SinkUnavailable,
)
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.sinks.delta import DeltaSink
from tidemark_spark.pipeline.values import Change

if TYPE_CHECKING:
    from spark.sinks.conftest import Place

    from tidemark_spark.pipeline.sinks.sink import Sink

UTC = dt.UTC
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "yes": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "f32": (pa.float32(), [1.5, -0.25]),
    "f64": (pa.float64(), [1e308, 0.1]),
    "money": (pa.decimal128(10, 2), [Decimal("12345678.90"), Decimal("-0.05")]),
    "wide": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal("0E-10")]),
    "text": (pa.string(), ["", 'łódź "quoted", tab\t and \\N and line\nbreak']),
    "blob": (pa.binary(), [b"", b"\x00\xff\xfe"]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2026, 3, 29, 2, 30, 0, 1, UTC)]),
    "local": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2026, 3, 29, 2, 30)]),
    "numbers": (pa.list_(pa.int64()), [[], [1, None, 3]]),
    "words": (pa.list_(pa.string()), [["a", '"b",{}', ""], ["NULL"]]),
    "place": (pa.struct([("city", pa.string()), ("zip", pa.int32())]), [{"city": "x", "zip": 1}, {"city": None, "zip": 2}]),
    "lines": (pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int64())])), [[{"sku": "p", "n": 2}], []]),
    "counts": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
}  # fmt: skip


def change_of(rows: pa.Table, deletes: pa.Table | None = None, *, batch: int = 0) -> Change:
    """A batch of mode mirror with these rows, at the place of batch `batch` of the model."""
    like = model.empty_change(batch)
    gone = deletes if deletes is not None else model.DELETES.empty_table()
    return Change(like.mark, like.start, rows, gone)


def opened(sink: Sink, schema: pa.Schema, mode: Any = "mirror") -> Sink:
    sink.open()
    sink.prepare(schema, mode)
    return sink


def plain(value: Any) -> Any:
    """Maps as dictionaries, whoever read them."""
    return dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


# Columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("straight", [True, False], ids=["first batch", "later batch"])
def test_values_of_every_type_come_back_as_they_were(table: Place, straight: bool) -> None:
    names = ["full", "other", "empty"]
    columns = {name: pa.array([*values, None], kind) for name, (kind, values) in TYPES.items()}
    rows = pa.table({"_key": names, "_sequence": pa.array([1, 2, 3], pa.int64()), **columns})
    sink = opened(table.make(), rows.schema)
    batches = [rows] if straight else [rows.slice(0, 1), rows]
    for batch, part in enumerate(batches):
        sink.apply(change_of(part, batch=batch))
    sink.close()

    found = {row["key"]: row for row in table.rows()}
    assert found.keys() == set(names)
    for at, key in enumerate(names):
        for name, (_, values) in TYPES.items():
            wanted = [*values, None][at]
            read = plain(found[key][name])
            if table.kind == "postgres" and name == "counts" and wanted is not None:
                wanted = dict(wanted)
            assert read == plain(wanted), f"{name} of {key}"


def test_a_key_may_be_any_bytes(table: Place) -> None:
    keys = [b"plain", b"\x00\xff not text", b""]
    rows = pa.table({"_key": pa.array(keys, pa.binary()), "_sequence": [1, 2, 3], "v": ["a", "b", "c"]})
    sink = opened(table.make(), rows.schema)
    sink.apply(change_of(rows))
    gone = pa.table({"_key": pa.array([keys[1]], pa.binary()), "_sequence": [101]})

    sink.apply(change_of(rows.slice(0, 1), gone, batch=1))
    sink.close()
    assert {row["key"]: row["v"] for row in table.rows()} == {b"plain": "a", b"": "c"}
    again = opened(table.make(), rows.schema)
    assert again.digest().rows == 2


def test_rows_say_what_the_stream_said(table: Place) -> None:
    sink = table.ready()
    for batch in range(4):
        sink.apply(model.change(batch))
    sink.close()

    held = model.state(3)
    found = {row["key"]: row for row in table.rows()}
    assert {key: row["_sequence"] for key, row in found.items()} == held
    assert all(row["name"] == f"{key}@{held[key]}" for key, row in found.items())
    assert all(row["amount"] == held[key] * 1.5 for key, row in found.items())


def test_the_key_has_the_name_that_the_file_gives_it(table: Place) -> None:
    sink = table.ready(key_column="order_id")
    sink.apply(model.change(0))
    sink.close()
    table.options["key_column"] = "order_id"
    assert {row["order_id"] for row in table.rows()} == model.state(0).keys()


def test_a_column_called_as_the_key_column_is_refused(table: Place) -> None:
    schema = model.SCHEMA.append(pa.field("key", pa.string()))
    sink = table.make()
    sink.open()
    with pytest.raises(OptionError, match="key_column"):
        sink.prepare(schema, "mirror")


def test_a_new_column_is_added_and_is_null_in_older_rows(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    sink.close()
    more = model.change(1)
    rows = more.upserts.append_column("note", pa.array(["new"] * more.upserts.num_rows))
    sink = opened(table.make(), rows.schema)

    sink.apply(dataclasses.replace(more, upserts=rows))
    assert sink.digest() == model.digest(model.state(1))
    sink.close()
    changed = set(rows["_key"].to_pylist())
    assert all(row["note"] == ("new" if row["key"] in changed else None) for row in table.rows())


def test_a_new_column_may_come_while_the_pipeline_runs(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    more = model.change(1)
    rows = more.upserts.append_column("note", pa.array(["new"] * more.upserts.num_rows))

    sink.apply(dataclasses.replace(more, upserts=rows))
    sink.apply(model.change(2))
    assert sink.digest() == model.digest(model.state(2))


def test_a_column_that_changed_its_type_is_refused_with_both_types(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    sink.close()
    schema = model.SCHEMA.set(3, pa.field("amount", pa.string()))

    sink = table.make()
    sink.open()
    with pytest.raises(
        SchemaDrift, match=r"column 'amount' is (?i:double).* there and (?i:varchar|string|text) in the"
    ) as caught:
        sink.prepare(schema, "mirror")
    assert caught.value.column == "amount"
    more = model.change(1)
    rows = more.upserts.set_column(3, "amount", more.upserts["amount"].cast(pa.string()))
    sink.prepare(model.SCHEMA, "mirror")
    with pytest.raises(SchemaDrift):
        sink.apply(dataclasses.replace(more, upserts=rows))
    assert sink.digest() == model.digest(model.state(0))


def test_after_a_reset_with_drop_a_column_may_have_another_type(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    sink.reset(drop=True)
    rows = model.change(0).upserts
    rows = rows.set_column(3, "amount", rows["amount"].cast(pa.string()))

    sink = opened(table.make(), rows.schema)
    sink.apply(change_of(rows))
    sink.close()
    assert all(isinstance(row["amount"], str) for row in table.rows())


# Results: modes append and update ------------------------------------------------------------------


def test_results_are_appended_once_each(table: Place) -> None:
    rows = pa.table({"city": ["a", "a", None], "n": [1, 1, 2]})
    sink = opened(table.make(), rows.schema, "append")
    sink.apply(model.result(rows, "append", 0))
    sink.apply(model.result(rows.slice(0, 1), "append", 1))
    sink.apply(model.result(rows.slice(0, 1), "append", 1))
    sink.close()

    assert sorted(((row["city"], row["n"]) for row in table.rows()), key=str) == [
        ("a", 1), ("a", 1), ("a", 1), (None, 2)
    ]  # fmt: skip


def test_results_are_replaced_by_their_key_also_where_that_is_null(table: Place) -> None:
    table.options["key"] = ["city", "day"]
    day = dt.date(2026, 1, 1)
    first = pa.table({"city": ["a", "b", None], "day": pa.array([day] * 3), "n": [1, 2, 3]})
    second = pa.table({"city": ["c", None, "a"], "day": pa.array([day] * 3), "n": [7, 8, 9]})
    sink = opened(table.make(), first.schema, "update")
    sink.apply(model.result(first, "update", 0))
    sink.apply(model.result(second, "update", 1))
    sink.close()

    assert {row["city"]: row["n"] for row in table.rows()} == {"a": 9, "b": 2, "c": 7, None: 8}
    assert len(table.rows()) == 4
    again = table.make()
    with pytest.raises(SinkOfAnotherQuery):
        opened(again, first.schema, "update").apply(model.result(first, "update", 2, query="new checkpoint"))


def test_mode_update_needs_its_key_and_rows_that_differ_in_it(table: Place) -> None:
    rows = pa.table({"city": ["a", "a"], "n": [1, 2]})
    sink = table.make()
    sink.open()
    with pytest.raises(OptionError, match="columns that make a row unique"):
        sink.prepare(rows.schema, "update")
    sink = table.make(key=["town"])
    sink.open()
    with pytest.raises(OptionError, match="there is no column 'town'; the rows have city, n"):
        sink.prepare(rows.schema, "update")
    sink = opened(table.make(key="city"), rows.schema, "update")
    with pytest.raises(SinkRefused, match="several rows with city = a"):
        sink.apply(model.result(rows, "update", 0))


# Rows that do not fit ------------------------------------------------------------------------------


def constrain(place: Place) -> None:
    """Make the table before the pipeline does, with a rule that a row can break."""
    match place.kind:
        case "duckdb":
            with duckdb.connect(place.options["path"]) as db:
                db.execute(
                    f"CREATE TABLE {place.options['table']} (key VARCHAR, _sequence BIGINT, name VARCHAR, "
                    "amount DOUBLE CHECK (amount < 100000))"
                )
        case "postgres":
            schema = place.options["table"].split(".")[0]
            with psycopg.connect(place.options["url"]) as db:
                db.execute(f"CREATE SCHEMA {schema}")
                db.execute(
                    f"CREATE TABLE {place.options['table']} (key varchar(40) PRIMARY KEY, _sequence bigint, name text, "
                    "amount double precision CHECK (amount < 100000), mine text DEFAULT 'untouched')"
                )
        case "delta":
            made = DeltaTable.create(
                place.options["path"],
                pa.schema([("key", pa.string()), *((f.name, f.type) for f in list(model.SCHEMA)[1:])]),
            )
            made.alter.add_constraint({"low": "amount < 100000"})
        case "parquet":
            pytest.skip("a folder of Parquet files has no rules")


def test_a_row_that_breaks_a_rule_of_the_table_is_named_and_nothing_is_applied(table: Place) -> None:
    constrain(table)
    sink = table.ready()
    sink.apply(model.change(0))
    bad = model.change(1)
    at = 37
    key, sequence = bad.upserts["_key"][at].as_py(), bad.upserts["_sequence"][at].as_py()
    amounts = bad.upserts["amount"].to_pylist()
    amounts[at] = 1e6
    rows = bad.upserts.set_column(3, "amount", pa.array(amounts))

    with pytest.raises(RowRefused) as caught:
        sink.apply(dataclasses.replace(bad, upserts=rows))
    assert (caught.value.key, caught.value.sequence) == (key, sequence)
    assert sink.digest() == model.digest(model.state(0))
    assert table.make().open() == model.change(0).mark
    sink.apply(bad)
    assert sink.digest() == model.digest(model.state(1))


def test_a_row_without_a_key_is_refused(table: Place) -> None:
    rows = pa.table({"_key": ["a", None], "_sequence": [1, 2], "name": ["x", "y"], "amount": [1.0, 2.0]})
    sink = table.ready()
    with pytest.raises(RowRefused, match="at sequence 2: its key is NULL"):
        sink.apply(change_of(rows))


def test_a_key_that_is_in_a_batch_twice_is_refused(table: Place) -> None:
    sink = table.ready()
    with pytest.raises(SinkRefused, match="several rows with key = a"):
        sink.apply(change_of(model.rows([("a", 1), ("b", 2), ("a", 3)])))


# Tables that are gone ------------------------------------------------------------------------------


def drop(place: Place) -> None:
    match place.kind:
        case "duckdb":
            with duckdb.connect(place.options["path"]) as db:
                db.execute(f"DROP TABLE {place.options['table']}")
        case "postgres":
            with psycopg.connect(place.options["url"]) as db:
                db.execute(f"DROP TABLE {place.options['table']}")
        case "delta" | "parquet":
            shutil.rmtree(place.options["path"])


def test_a_table_that_was_dropped_is_not_made_again_in_silence(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    drop(table)

    with pytest.raises(SinkRefused, match="reset FILE --sink target --drop"):
        sink.apply(model.change(1))


def test_a_table_that_was_dropped_while_the_pipeline_stood_still_is_missed(table: Place) -> None:
    sink = table.ready()
    sink.apply(model.change(0))
    sink.close()
    drop(table)

    again = table.make()
    if again.open() is None:  # the mark went with the table: the next batch does not go on from the middle
        again.prepare(model.SCHEMA, "mirror")
        with pytest.raises(Exception, match="up to sequence 0"):
            again.apply(model.change(1))
    else:
        with pytest.raises(SinkRefused, match="reset FILE --sink target --drop"):
            again.prepare(model.SCHEMA, "mirror")
        again.reset(drop=True)
        again.prepare(model.SCHEMA, "mirror")
        again.apply(model.change(0))
        assert again.digest() == model.digest(model.state(0))


# Disks that are full -------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 12 MiB, where everybody can go."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-disk-"))
    folder.chmod(0o755)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=0777", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        folder.rmdir()
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)
    folder.rmdir()


def large_change(batch: int) -> Change:
    """Some 8 MiB that do not compress."""
    dice = random.Random(batch)
    pairs = [(f"large-{batch}-{n}", batch * model.SIZE + n % model.SIZE + 1) for n in range(4000)]
    rows = model.rows(pairs)
    names = [dice.randbytes(1024).hex() for _ in range(rows.num_rows)]
    return change_of(rows.set_column(2, "name", pa.array(names)), batch=batch)


@pytest.mark.parametrize("kind", ["duckdb", "delta", "parquet"])
def test_a_full_disk_applies_nothing_and_is_over_when_there_is_room(
    kind: str, place_of: Callable[[str], Place], small_disk: Path
) -> None:
    place = place_of(kind)
    place.options["path"] = str(small_disk / "sink")
    ballast = small_disk / "ballast"
    sink = place.ready()
    sink.apply(model.change(0))
    ballast.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 600_000))

    with pytest.raises(SinkUnavailable, match=r"disk under .* is full"):
        sink.apply(large_change(1))
    ballast.unlink()
    sink.close()
    again = place.make()
    assert again.open() == model.change(0).mark
    again.prepare(model.SCHEMA, "mirror")
    assert again.digest() == model.digest(model.state(0))
    again.apply(model.change(1))
    assert again.digest() == model.digest(model.state(1))


def test_a_full_disk_of_postgres_applies_nothing(small_disk: Path) -> None:
    server = PostgresProcess()  # its own: a server does not survive the loss of a disk
    spot = small_disk / "postgres"
    spot.mkdir()
    shutil.chown(spot, server.folder.owner())
    try:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE TABLESPACE small LOCATION '{spot}'".encode())
            db.execute("ALTER ROLE postgres SET default_tablespace = small")
        options = {"url": server.url, "table": "orders"}
        sink = opened(make_sink(model.SINK, model.PIPELINE, "postgres", options), model.SCHEMA)
        sink.apply(large_change(0))

        with pytest.raises(SinkUnavailable, match="disk of PostgreSQL is full"):
            sink.apply(large_change(1))
        assert sink.digest().rows == 4000
        assert sink.open() == large_change(0).mark
        sink.close()
    finally:
        server.close()


# DuckDB --------------------------------------------------------------------------------------------


def test_two_writers_in_one_process_meet_on_the_mark_of_duckdb(place_of: Callable[[str], Place]) -> None:
    place = place_of("duckdb")
    applied: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            sink = place.ready()
            for batch in range(20):
                if not sink.apply(model.change(batch)).skipped:
                    applied.append(batch)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(applied) == list(range(20))
    assert place.ready().digest() == model.digest(model.state(19))


def test_two_sinks_of_one_pipeline_share_a_duckdb_file(place_of: Callable[[str], Place]) -> None:
    place = place_of("duckdb")
    sinks = [
        make_sink(name, "shop", "duckdb", place.options | {"table": f"shop.{name}"}) for name in ("a", "b")
    ]
    for sink in sinks:
        opened(sink, model.SCHEMA).apply(model.change(0))
    sinks[0].apply(model.change(1))
    assert [sink.digest() for sink in sinks] == [model.digest(model.state(1)), model.digest(model.state(0))]
    for sink in sinks:
        sink.close()


# PostgreSQL ----------------------------------------------------------------------------------------


def test_columns_of_postgres_that_are_not_the_pipelines_stay_as_they_are(
    place_of: Callable[[str], Place],
) -> None:
    place = place_of("postgres")
    constrain(place)
    sink = place.ready()
    sink.apply(model.change(0))
    with psycopg.connect(place.options["url"]) as db:
        db.execute(f"UPDATE {place.options['table']} SET mine = key")
    sink.apply(model.change(1, 2))

    kept = model.state(0).keys() & model.state(2).keys()
    gone_and_back = {key for key, _, is_delete in (*model.events(1), *model.events(2)) if is_delete}
    rows = {row["key"]: row for row in place.rows()}
    assert all(rows[key]["mine"] == key for key in kept - gone_and_back)
    assert all(rows[key]["mine"] == "untouched" for key in rows.keys() - model.state(0).keys())


def test_rows_go_straight_into_postgres_until_a_key_comes_again(
    place_of: Callable[[str], Place],
) -> None:
    sink = place_of("postgres").ready()
    parts = [model.rows([(f"{part}-{n}", part * 100 + n + 1) for n in range(50)]) for part in range(4)]
    parts[3] = pa.concat_tables([parts[3], model.rows([("0-7", 399)])])
    for batch, rows in enumerate(parts):
        sink.apply(change_of(rows, batch=batch))

    held = {row["_key"]: row["_sequence"] for rows in parts for row in rows.to_pylist()}
    assert sink.digest() == model.digest(held)


def test_a_text_that_postgres_cannot_hold_is_a_refused_row(place_of: Callable[[str], Place]) -> None:
    sink = place_of("postgres").ready()
    rows = model.rows([(f"k{n}", n + 1) for n in range(50)])
    names = rows["name"].to_pylist()
    names[31] = "zero\x00byte"

    with pytest.raises(RowRefused, match="'k31' at sequence 32: invalid byte sequence"):
        sink.apply(change_of(rows.set_column(2, "name", pa.array(names))))


def test_a_row_that_does_not_go_with_another_one_is_named(place_of: Callable[[str], Place]) -> None:
    place = place_of("postgres")
    constrain(place)
    with psycopg.connect(place.options["url"]) as db:
        db.execute(f"CREATE UNIQUE INDEX ON {place.options['table']} (name)")
    rows = model.rows([(f"k{n}", n + 1) for n in range(50)])
    names = rows["name"].to_pylist()
    names[40] = names[3]

    with pytest.raises(RowRefused, match="'k40' at sequence 41: duplicate key"):
        place.ready().apply(change_of(rows.set_column(2, "name", pa.array(names))))


def test_a_table_of_postgres_without_a_unique_key_is_refused_with_the_statement(
    place_of: Callable[[str], Place],
) -> None:
    place = place_of("postgres")
    schema = place.options["table"].split(".")[0]
    with psycopg.connect(place.options["url"]) as db:
        db.execute(f"CREATE SCHEMA {schema}")
        db.execute(
            f"CREATE TABLE {place.options['table']} (key text, _sequence bigint, name text, amount double precision)"
        )
    with pytest.raises(SinkRefused, match="CREATE UNIQUE INDEX ON"):
        place.ready()


def test_a_lock_that_somebody_keeps_ends_in_an_error_that_says_so(place_of: Callable[[str], Place]) -> None:
    place = place_of("postgres")
    sink = place.ready(lock_timeout_s=1)
    sink.apply(model.change(0))
    marks = place.options["table"].split(".")[0] + ".tidemark_marks"
    with psycopg.connect(place.options["url"]) as db:
        db.execute(f"SELECT * FROM {marks} FOR UPDATE")
        with pytest.raises(SinkUnavailable, match="another writer held a lock for 1 s"):
            sink.apply(model.change(1))
    sink.apply(model.change(1))
    assert sink.digest() == model.digest(model.state(1))


def test_a_postgres_that_was_killed_is_unavailable_and_then_holds_what_its_mark_says() -> None:
    server = PostgresProcess().start()
    try:
        options = {"url": server.url, "table": "orders"}
        sink = opened(make_sink(model.SINK, model.PIPELINE, "postgres", options), model.SCHEMA)
        sink.apply(model.change(0))
        threading.Timer(0.15, server.kill).start()
        with pytest.raises(SinkUnavailable):
            apply_for_ever(sink)
        with pytest.raises(SinkUnavailable, match=r"Connection refused|starting up|server closed"):
            sink.open()
        restart(server)
        held = model.held_batch(sink.open())
        sink.prepare(model.SCHEMA, "mirror")
        assert sink.digest() == model.digest(model.state(held))
        sink.apply(model.change(held + 1))
        assert sink.digest() == model.digest(model.state(held + 1))
        sink.close()
    finally:
        server.close()


def apply_for_ever(sink: Sink) -> None:
    for batch in range(1, 100_000):
        sink.apply(model.change(batch))


def restart(server: PostgresProcess) -> None:
    for _ in range(50):
        with contextlib.suppress(AssertionError):
            server.start()
            return
        time.sleep(0.1)
    server.start()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://postgres@127.0.0.1:1/postgres", SinkUnavailable),
        ("postgresql://nobody@{host}/postgres", SinkRefused),
        ("postgresql://postgres@{host}/nothing", SinkRefused),
    ],
)
def test_a_postgres_that_is_away_is_told_from_one_that_says_no(
    url: str, error: type[Exception], postgres: PostgresProcess
) -> None:
    options = {"url": url.format(host=f"127.0.0.1:{postgres.port}"), "table": "orders"}
    with pytest.raises(error):
        make_sink("s", "p", "postgres", options).open()


# Delta ---------------------------------------------------------------------------------------------


def test_a_batch_is_one_commit_of_delta_with_its_application_transaction(
    place_of: Callable[[str], Place],
) -> None:
    place = place_of("delta")
    sink = place.ready()
    versions = []
    for batch in range(5):
        sink.apply(model.change(batch))
        table = DeltaTable(place.options["path"])
        versions.append((table.version(), table.transaction_version("tidemark/shop/target")))
    assert versions == [(n + 1, n + 1) for n in range(5)]


def test_a_batch_of_delta_that_another_driver_went_on_from_at_once_was_applied(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("delta")
    one, other = place.ready(), place.ready()
    one.apply(model.change(0))
    merge = DeltaSink._merge

    def merge_and_wait(sink: DeltaSink, *given: Any) -> int:
        deleted = merge(sink, *given)
        if sink is one:
            assert other.apply(model.change(1)).skipped
            assert not other.apply(model.change(2)).skipped
        return deleted

    monkeypatch.setattr(DeltaSink, "_merge", merge_and_wait)
    assert not one.apply(model.change(1)).skipped
    assert one.apply(model.change(2)).skipped


def test_the_mark_of_delta_is_found_behind_commits_of_others(place_of: Callable[[str], Place]) -> None:
    place = place_of("delta")
    sink = place.ready()
    sink.apply(model.change(0))
    for _ in range(30):
        DeltaTable(place.options["path"]).alter.set_table_properties({"delta.appendOnly": "false"})

    assert place.make().open() == model.change(0).mark
    sink.apply(model.change(1))
    assert sink.digest() == model.digest(model.state(1))


def test_a_mark_that_went_with_delta_log_files_is_said_to_be_gone(place_of: Callable[[str], Place]) -> None:
    place = place_of("delta")
    sink = place.ready()
    sink.apply(model.change(0))
    table = DeltaTable(place.options["path"])
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(place.options["path"]).create_checkpoint()
    for old in (0, 1):
        (Path(place.options["path"]) / "_delta_log" / f"{old:020}.json").unlink()

    with pytest.raises(SinkRefused, match="log was cleaned"):
        place.make().open()


# Parquet -------------------------------------------------------------------------------------------


def test_folders_of_parquet_are_whole_and_in_order(place_of: Callable[[str], Place]) -> None:
    place = place_of("parquet")
    sink = place.ready()
    sink.apply(model.change(0))
    sink.apply(model.empty_change(1))
    sink.apply(model.change(2))

    folder = Path(place.options["path"])
    assert sorted(path.name for path in folder.iterdir()) == ["batch=000000", "batch=000001", "batch=000002"]
    assert not (folder / "batch=000001" / "part.parquet").exists()
    rows = pa.parquet.read_table(folder / "batch=000002" / "part.parquet")
    deleted = {key for key, _, is_delete in model.events(2) if is_delete}
    assert set(rows.filter(rows["_deleted"])["key"].to_pylist()) == deleted


def test_a_folder_of_parquet_belongs_to_one_sink(place_of: Callable[[str], Place]) -> None:
    place = place_of("parquet")
    place.ready().apply(model.change(0))
    with pytest.raises(SinkRefused, match="belongs to sink 'target' of pipeline 'shop'"):
        make_sink("other", "shop", "parquet", place.options).open()


def test_an_object_store_is_refused_for_parquet() -> None:
    with pytest.raises(OptionError, match="kind delta"):
        make_sink("s", "p", "parquet", {"path": "s3://bucket/folder"})


@pytest.mark.parametrize("login", ["u:s3@cret", "u:s3/cret", "u:s3%cret"])
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(login: str) -> None:
    with pytest.raises(OptionError, match="must be escaped") as caught:
        make_sink("w", "p", "postgres", {"url": f"postgresql://{login}@h:1/db?sslmode=disable", "table": "t"})
    assert "s3" not in str(caught.value) and "cret" not in str(caught.value)
    make_sink("w", "p", "postgres", {"url": "postgresql://u:s3%40cret@h:1/db?x=a@b", "table": "t"})
    make_sink("w", "p", "postgres", {"url": "postgresql:///db", "table": "t"})
