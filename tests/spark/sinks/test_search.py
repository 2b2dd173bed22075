"""What is special about the full-text index: what is found by which words, one writer, one commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.broker import SOURCE
from helpers.changes import COLUMNS, PIPELINE, a_change, a_result, the_digest

from tidemark_spark.errors import OptionError, RowRefused, SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.search import SearchSink

BOOKS = pa.schema(
    [
        ("_key", pa.string()),
        ("_sequence", pa.int64()),
        ("title", pa.string()),
        ("author", pa.string()),
        ("year", pa.int32()),
    ]
)
Make = Callable[..., SearchSink]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SearchSink] = []

    def make(schema: pa.Schema = BOOKS, mode: Any = "mirror", **options: Any) -> SearchSink:
        sink = SearchSink("s", PIPELINE, {"path": str(tmp_path / "index"), **options})
        made.append(sink)
        sink.open()
        sink.prepare(schema, mode)
        return sink

    yield make
    for sink in made:
        sink.close()


def books(**rows: tuple[Any, ...]) -> Any:
    return a_change(rows, end=max(row[0] for row in rows.values()), columns=BOOKS)


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in found]


def test_words_phrases_and_ranges_find_their_rows(make: Make) -> None:
    sink = make(exact=["author"])
    sink.apply(
        books(
            a=(1, "The old man and the sea", "Ernest Hemingway", 1952),
            b=(2, "A man called Ove", "Fredrik Backman", 2012),
            c=(3, "The sea, the sea", "Iris Murdoch", 1978),
        )
    )

    assert keys(sink.search("man")) == ["b", "a"]
    assert keys(sink.search("sea -man")) == ["c"]
    assert keys(sink.search('"old man"')) == ["a"]
    assert keys(sink.search('author:"Iris Murdoch"')) == ["c"]
    assert keys(sink.search("author:Iris")) == []
    assert sorted(keys(sink.search("year:[1950 TO 1980]"))) == ["a", "c"]
    assert len(sink.search("*")) == 3
    assert len(sink.search("*", limit=2)) == 2
    [best] = sink.search("ove")
    assert best.pop("_score") > 0
    assert best == {
        "key": "b",
        "_sequence": 2,
        "title": "A man called Ove",
        "author": "Fredrik Backman",
        "year": 2012,
    }


def test_a_row_that_changed_is_found_by_its_new_words_only(make: Make) -> None:
    sink = make()
    sink.apply(books(a=(1, "draft", "x", 1), b=(2, "draft", "y", 2)))
    sink.apply(a_change({"a": (3, "final", "x", 1)}, {"b": 4}, start=2, end=4, batch=1, columns=BOOKS))

    assert sink.search("draft") == []
    assert keys(sink.search("final")) == ["a"]
    assert sink.digest() == the_digest({"a": 3})


def test_english_stems_are_an_option(make: Make) -> None:
    sink = make(tokenizer="en_stem")
    sink.apply(books(a=(1, "running dogs", "x", 1)))
    assert keys(sink.search("run dog")) == ["a"]


def test_every_kind_of_column_is_found_and_given_back(make: Make) -> None:
    moment = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
    rows = pa.table(
        {
            "_key": ["a", "b"],
            "_sequence": [1, 2],
            "flag": [True, None],
            "small": pa.array([-5, None], pa.int8()),
            "float": pa.array([1.5, None], pa.float32()),
            "money": pa.array([Decimal("12.30"), None], pa.decimal128(10, 2)),
            "at": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "day": pa.array([date(2024, 2, 29), None]),
            "raw": pa.array([b"\x00\xff", None]),
            "tags": pa.array([["red", None, "blue"], None]),
            "who": pa.array([{"name": "Ann", "age": 7}, None]),
            "parts": pa.array([[{"n": 1}], None]),
        }
    )
    sink = make(rows.schema)
    sink.apply(a_change(rows, end=2))

    for query in (
        "flag:true",
        'small:"-5"',
        "float:[1.4 TO 1.6]",
        "money:[12 TO 13]",
        "at:[2024-02-29T00:00:00Z TO 2024-03-01T00:00:00Z]",
        "local:[2024-02-29T00:00:00Z TO 2024-03-01T00:00:00Z]",
        "day:[2024-02-28T00:00:00Z TO 2024-03-01T00:00:00Z]",
        'raw:"AP8="',
        "tags:blue",
        "who.name:ann",
    ):
        assert keys(sink.search(query)) == ["a"], query
    by_key = {row["key"]: row for row in sink.search("*")}
    assert by_key["a"]["tags"] == ["red", "blue"]
    assert by_key["a"]["who"] == {"name": "Ann", "age": 7}
    assert by_key["a"]["at"] == moment
    assert by_key["a"]["parts"] == '[{"n":1}]'
    assert {by_key["b"][name] for name in rows.column_names[2:]} == {None}


def test_keys_may_be_any_bytes(make: Make) -> None:
    schema = pa.schema([("_key", pa.binary()), ("_sequence", pa.int64()), ("title", pa.string())])
    rows = pa.table(
        {"_key": [b"\xff\x00", b"plain"], "_sequence": [1, 2], "title": ["x", "y"]}, schema=schema
    )
    sink = make(schema)
    change = a_change(rows, end=2)
    sink.apply(change)
    assert sink.digest() == the_digest({b"\xff\x00": 1, b"plain": 2})  # type: ignore[dict-item]

    deletes = pa.table({"_key": pa.array([b"\xff\x00"], pa.binary()), "_sequence": [3]})
    later = a_change(schema.empty_table(), start=2, end=3, batch=1)
    sink.apply(type(later)(later.mark, later.start, later.upserts, deletes))
    assert sink.digest() == the_digest({b"plain": 2})  # type: ignore[dict-item]


def test_a_text_that_could_never_be_found_is_refused_with_its_key(make: Make) -> None:
    sink = make(exact=["author"])
    sink.apply(books(a=(1, "x", "y", 1)))
    bad = a_change(
        {"b": (2, "x", "y", 1), "c": (3, "x", "z" * 70_000, 1)}, start=1, end=3, batch=1, columns=BOOKS
    )
    with pytest.raises(RowRefused, match=r"key 'c' at sequence 3.*65,530"):
        sink.apply(bad)

    assert sink.digest() == the_digest({"a": 1})
    assert sink.open() is not None


def test_a_column_that_is_new_or_of_another_kind_is_refused(make: Make) -> None:
    make().close()
    with pytest.raises(SchemaDrift, match="'isbn' is not there there and full text"):
        make(BOOKS.append(pa.field("isbn", pa.string())))
    with pytest.raises(SchemaDrift, match="'year' is integer there and full text"):
        make(BOOKS.set(4, pa.field("year", pa.string())))
    with pytest.raises(SchemaDrift, match="'author' is full text there and exact text"):
        make(exact=["author"])
    make(BOOKS.remove(4))


def test_another_process_that_writes_is_named(make: Make, tmp_path: Path) -> None:
    make().close()
    program = (
        "import sys, tantivy\n"
        "writer = tantivy.Index.open(sys.argv[1]).writer(20_000_000, 1)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "index")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        sink = make()
        change = books(a=(1, "x", "y", 1))
        with pytest.raises(SinkUnavailable, match=f"process {other.pid} is writing the index"):
            sink.apply(change)
        assert sink.search("*") == []  # looking is free
    finally:
        other.kill()
        other.communicate()
    assert sink.apply(change).upserted == 1


def test_an_index_of_another_sink_and_a_folder_with_files_are_left_alone(make: Make, tmp_path: Path) -> None:
    make().close()
    other = SearchSink("t", PIPELINE, {"path": str(tmp_path / "index")})
    with pytest.raises(SinkRefused, match="is of sink 's' of pipeline 'shop'"):
        other.open()

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    third = SearchSink("t", PIPELINE, {"path": str(tmp_path / "files")})
    assert third.open() is None
    with pytest.raises(SinkRefused, match="has files in it"):
        third.prepare(BOOKS, "mirror")


def test_an_index_that_vanishes_under_a_running_sink_is_not_taken_for_a_new_one(
    make: Make, tmp_path: Path
) -> None:
    sink = make()
    sink.apply(books(a=(1, "x", "y", 1)))
    (tmp_path / "index").rename(tmp_path / "elsewhere")
    with pytest.raises(SinkRefused, match="was it deleted"):
        sink.apply(a_change({"b": (2, "x", "y", 1)}, start=1, end=2, batch=1, columns=BOOKS))


def test_queries_that_cannot_be_understood_name_the_columns(make: Make, tmp_path: Path) -> None:
    sink = make()
    with pytest.raises(SinkRefused, match=r"publisher.*Columns are .*author"):
        sink.search("publisher:x")
    with pytest.raises(SinkRefused, match="cannot be understood"):
        sink.search("a AND (")
    with pytest.raises(SinkRefused, match="run the pipeline first"):
        SearchSink("s", PIPELINE, {"path": str(tmp_path / "none")}).search("x")


def test_results_are_added_in_mode_append_and_replaced_in_mode_update(make: Make, tmp_path: Path) -> None:
    rows = pa.table({"country": ["de", "fr"], "status": ["open", None], "n": [1, 2]})
    added = make(rows.schema, "append")
    added.apply(a_result(rows, mode="append", batch=0))
    added.apply(a_result(rows, mode="append", batch=1))
    assert len(added.search("*")) == 4

    replaced = make(rows.schema, "update", key=["country", "status"], path=str(tmp_path / "other"))
    replaced.apply(a_result(rows, mode="update", batch=0))
    replaced.apply(a_result(rows.set_column(2, "n", pa.array([7, 8])), mode="update", batch=1))
    assert sorted(row["n"] for row in replaced.search("*")) == [7, 8]


def test_bad_options_are_refused_before_anything_starts(make: Make) -> None:
    for options, word in [
        ({}, "path.*is missing"),
        ({"path": "x", "tokenizer": "klingon"}, "en_stem"),
        ({"path": "x", "text": ["a"], "exact": ["a"]}, "one of them"),
        ({"path": "x", "txt": ["a"]}, "did you mean 'text'"),
    ]:
        with pytest.raises(OptionError, match=word):
            SearchSink("s", PIPELINE, options)
    with pytest.raises(SinkRefused, match="names a column 'titel'"):
        make(text=["titel"])


def test_a_search_while_the_pipeline_writes_sees_whole_batches(make: Make, tmp_path: Path) -> None:
    writing = make(COLUMNS)
    looking = SearchSink("s", PIPELINE, {"path": str(tmp_path / "index")})
    for batch in range(10):
        rows = {f"k{n}": (batch * 50 + n + 1, f"batch{batch}", n) for n in range(50)}
        writing.apply(a_change(rows, start=batch * 50, end=batch * 50 + 50, batch=batch))
        assert len(looking.search(f"batch{batch}", 1000)) == 50
        assert len(looking.search("*", 1000)) == 50
