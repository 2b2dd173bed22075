"""The pipeline's file: what it becomes, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark_spark.errors import PipelineFileError
from tidemark_spark.pipeline.file import Pipeline, chosen, read_file, seconds, views_in

GOOD = """
[pipeline]
name = "orders"
state = "var/orders"
trigger = "1 second"
max_rows_per_batch = 500_000

[source.orders]
url = "tidemark://guest:guest@127.0.0.1:5672/"
stream = "orders"
value = "json"
schema = "customer STRING, amount DECIMAL(10,2), status STRING, at TIMESTAMP"
key = "string"

[[transform]]
name = "open_orders"
sql = "SELECT _key, _sequence, customer, amount FROM orders WHERE status <> 'cancelled'"

[[expect]]
name = "positive amount"
on = "orders"
check = "amount >= 0"
otherwise = "dead-letter"

[dead_letter]
stream = "orders.rejected"

[[sink]]
name = "warehouse"
kind = "duckdb"
from = "open_orders"
path = "warehouse.duckdb"
table = "orders"
key_column = "order_id"
"""


def read(folder: Path, text: str) -> Pipeline:
    path = folder / "pipeline.toml"
    path.write_text(text)
    return read_file(path)


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        read(folder, text)
    return list(caught.value.mistakes)


def test_a_file_becomes_values_with_their_defaults(tmp_path: Path) -> None:
    pipeline = read(tmp_path, GOOD)

    assert pipeline.name == "orders" and pipeline.state == tmp_path / "var/orders"
    assert pipeline.stop == "batch" and pipeline.give_up_s is None
    [source] = pipeline.sources.values()
    assert (source.value, source.key, source.otherwise, source.headers) == (
        "json",
        "string",
        "dead-letter",
        False,
    )
    assert pipeline.dead_letters is not None and pipeline.dead_letters.url == source.url
    [sink] = pipeline.sinks
    assert sink.mode == "mirror" and sink.options["key_column"] == "order_id"


def test_paths_are_relative_to_the_file_and_addresses_are_left_alone(tmp_path: Path) -> None:
    [sink] = read(tmp_path, GOOD).sinks
    assert sink.options["path"] == str(tmp_path / "warehouse.duckdb")
    [sink] = read(tmp_path, GOOD.replace('"warehouse.duckdb"', '"s3://bucket/table"')).sinks
    assert sink.options["path"] == "s3://bucket/table"


def test_a_chain_has_what_a_sink_needs_each_after_what_it_reads(tmp_path: Path) -> None:
    text = GOOD.replace('from = "open_orders"', 'from = "large"')
    text += """
[[transform]]
name = "large"
sql = "SELECT * FROM middle WHERE amount > 100"
[[transform]]
name = "middle"
sql = "SELECT * FROM open_orders"
[[transform]]
name = "unused"
sql = "SELECT * FROM orders"
"""
    pipeline = read(tmp_path, text)
    chain = pipeline.chain(pipeline.sinks[0])
    assert [one.name for one in chain.transforms] == ["open_orders", "middle", "large"]
    assert [one.name for one in chain.sources] == ["orders"]
    assert [one.name for one in chain.expectations] == ["positive amount"]


def test_all_mistakes_are_told_at_once_with_place_and_what_was_meant(tmp_path: Path) -> None:
    text = GOOD.replace('trigger = "1 second"', 'triger = "1 second"')
    text = text.replace('value = "json"', 'value = "jsn"').replace('kind = "duckdb"', 'kind = "duckdbb"')
    text = text.replace('on = "orders"', 'on = "order"').replace(
        'from = "open_orders"', 'from = "open_order"'
    )
    text = text.replace('stream = "orders"\n', "")

    found = mistakes(tmp_path, text)

    assert len(found) == 6
    assert "[pipeline] triger: is not known here; did you mean 'trigger'?" in found
    assert "[source.orders] stream: is missing; it is the name of a stream" in found
    assert any(
        one.startswith("[source.orders] value: must be one of 'json'") and "mean 'json'" in one
        for one in found
    )
    assert any(one.startswith("[[sink]] 'warehouse' kind:") and "mean 'duckdb'" in one for one in found)
    assert any(one.startswith("[[expect]] 'positive amount' on:") and "mean 'orders'" in one for one in found)
    assert any(one.startswith("[[sink]] 'warehouse' from:") and "mean 'open_orders'" in one for one in found)


def test_the_sentence_of_many_mistakes_has_a_line_for_each(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError) as caught:
        read(tmp_path, "[pipeline]\n")
    lines = str(caught.value).splitlines()
    assert "has 3 mistakes" in lines[0] and len(lines) == 4


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("[[sink]]", "[sink]", "[sink]: there may be several of them, so it is written [[sink]]"),
        ("[source.orders]", "[[source]]", "[source]: each has a name, so it is written [source.NAME]"),
        (
            "[dead_letter]",
            "[dead_leter]",
            "[dead_leter]: there is no such table; did you mean 'dead_letter'?",
        ),
        ('trigger = "1 second"', 'trigger = "soon"', "[pipeline] trigger: must be an interval"),
        ("500_000", '"many"', "[pipeline] max_rows_per_batch: must be a whole number of rows, not 'many'"),
        ("500_000", "0", "[pipeline] max_rows_per_batch: must be at least 1, not 0"),
        (
            '"positive amount"',
            '""',
            "[[expect]] number 1 name: must be what is expected, in words, not empty",
        ),
        ("[source.orders]", "[source.or-ders]", "[source.or-ders] name: SQL sees it as a view"),
        ('schema = "customer', 'shema = "customer', "[source.orders] schema: is missing; it is the columns"),
        ("tidemark://guest", "amqp://guest", "[source.orders] url: must begin with tidemark://"),
        ("FROM orders", "FROM ordrs", "[[transform]] 'open_orders' sql: reads none of orders"),
        ('kind = "duckdb"', 'kind = "duckdb"\nmode = "update"', "[[sink]] 'warehouse' key: is missing"),
        ('kind = "duckdb"', 'kind = "duckdb"\nkey = ["a"]', "[[sink]] 'warehouse' key: is for mode update"),
        (
            'key = "string"',
            'key = "string"\noptions = { subscribe = "x" }',
            "options.subscribe: write stream",
        ),
        ('value = "json"', 'value = "raw"', "[source.orders] schema: is only for JSON and Avro"),
        ('value = "json"', 'value = "avro"', "[source.orders] schema: 'customer STRING"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(tmp_path: Path, before: str, after: str, says: str) -> None:
    assert before in GOOD
    found = mistakes(tmp_path, GOOD.replace(before, after, 1))
    assert any(says in one for one in found), found


def test_a_wrong_address_is_told_without_its_password(tmp_path: Path) -> None:
    for before, after in (
        ("tidemark://guest:guest@", "amqp://guest:s3cret@"),
        ('stream = "orders.rejected"', 'stream = "rejected"\nurl = "amqp://guest:s3cret@h/"'),
    ):
        [mistake] = mistakes(tmp_path, GOOD.replace(before, after))
        assert "must begin with tidemark://" in mistake and "s3cret" not in mistake


@pytest.mark.parametrize("name", ["ware.house", "lock"])
def test_a_sink_has_a_name_that_is_not_taken_for_something_else(tmp_path: Path, name: str) -> None:
    """`a.b` of pipeline `p` and `b` of pipeline `p.a` would be one consumer; the lock is a file of the state folder."""
    [mistake] = mistakes(tmp_path, GOOD.replace('"warehouse"', f'"{name}"'))
    assert f"not '{name}'" in mistake


def test_an_expectation_that_makes_dead_letters_needs_a_stream_for_them(tmp_path: Path) -> None:
    text = GOOD.replace('[dead_letter]\nstream = "orders.rejected"\n', "")
    assert mistakes(tmp_path, text) == [
        "[[expect]] 'positive amount' otherwise: dead letters need a table [dead_letter] with the stream that takes them"
    ]
    [source] = read(tmp_path, text.replace('otherwise = "dead-letter"', "")).sources.values()
    assert source.otherwise == "fail"


def test_a_mirror_of_two_sources_is_refused_and_an_update_is_not(tmp_path: Path) -> None:
    text = GOOD.replace("FROM orders WHERE", "FROM orders JOIN customers USING (customer) WHERE")
    text += '\n[source.customers]\nstream = "customers"\nschema = "customer STRING"\n'

    [mistake] = mistakes(tmp_path, text)
    assert "is made of several sources (orders, customers); mode mirror follows one" in mistake
    update = text.replace('kind = "duckdb"', 'kind = "duckdb"\nmode = "update"\nkey = "customer"')
    assert read(tmp_path, update).sinks[0].options["key"] == ["customer"]


def test_a_circle_of_transforms_is_shown(tmp_path: Path) -> None:
    text = (
        GOOD
        + '\n[[transform]]\nname = "a"\nsql = "SELECT * FROM b"\n[[transform]]\nname = "b"\nsql = "SELECT * FROM a"\n'
    )
    [mistake] = mistakes(tmp_path, text)
    assert mistake == "[[transform]] 'a' reads itself: a → b → a"


def test_variables_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM", "shop")
    text = GOOD.replace('stream = "orders"\n', 'stream = "${STREAM}.${PART:-orders}$$1"\n')
    assert read(tmp_path, text).sources["orders"].stream == "shop.orders$1"

    monkeypatch.delenv("STREAM")
    [mistake] = mistakes(tmp_path, text)
    assert (
        mistake
        == "[source.orders] stream: the environment has no variable STREAM; set it, or write ${STREAM:-default}"
    )


def test_what_is_no_toml_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert "is not TOML" in mistakes(tmp_path, "[pipeline\n")[0]
    with pytest.raises(PipelineFileError, match="No such file"):
        read_file(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("select * from a", "a"),
        ("SELECT x FROM a, b AS y JOIN c ON a.x = c.d WHERE e > 1", "abc"),
        ("WITH q AS (SELECT * FROM a) SELECT * FROM q LEFT JOIN b USING (k)", "ab"),
        ("SELECT 'from d' AS x, extract(YEAR FROM e) FROM a -- from b\n /* from c */", "a"),
        ("SELECT (SELECT max(x) FROM b) FROM `a`", "ba"),
        ("SELECT * FROM a.b", ""),
        ("SELECT a FROM range(10)", ""),
    ],
)
def test_the_views_that_a_query_reads_are_found(sql: str, views: str) -> None:
    found = set(views_in(sql, list("abcde")))
    assert found - {"e"} == set(views)


@pytest.mark.parametrize(
    ("text", "value"), [("500 ms", 0.5), ("1 second", 1), ("2 minutes", 120), ("soon", None)]
)
def test_intervals_are_read(text: str, value: float | None) -> None:
    assert seconds(text) == value


def test_sinks_are_chosen_by_name_with_a_hint_for_a_wrong_one(tmp_path: Path) -> None:
    pipeline = read(tmp_path, GOOD)
    assert chosen(pipeline, ["warehouse"]) == pipeline.sinks == chosen(pipeline, [])
    with pytest.raises(ValueError, match="no sink 'warehose'; did you mean 'warehouse'"):
        chosen(pipeline, ["warehose"])
