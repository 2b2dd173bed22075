"""What is special about OpenSearch: external versions instead of transactions, bulk answers item by item, the mark last.

All of this runs against `helpers.opensearch`, a small server with the documented rules of the bulk API, not against OpenSearch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from helpers.changes import COLUMNS, PIPELINE, a_change, a_result, the_digest
from helpers.opensearch import OpenSearchServer

from tidemark_spark.errors import OptionError, RowRefused, SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.opensearch import MARKS, OpenSearchSink

Make = Callable[..., OpenSearchSink]


@pytest.fixture
def server() -> Iterator[OpenSearchServer]:
    server = OpenSearchServer()
    yield server
    server.close()


@pytest.fixture
def make(server: OpenSearchServer) -> Iterator[Make]:
    made: list[OpenSearchSink] = []

    def make(
        schema: pa.Schema = COLUMNS,
        mode: Any = "mirror",
        kind: type[OpenSearchSink] = OpenSearchSink,
        **options: Any,
    ) -> OpenSearchSink:
        sink = kind("s", PIPELINE, {"url": server.url, "index": "orders", "timeout_s": 2, **options})
        made.append(sink)
        sink.open()
        sink.prepare(schema, mode)
        return sink

    yield make
    for sink in made:
        sink.close()


FIRST = a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 2)}, end=6)
SECOND = a_change({"a": (8, "Anna", 3)}, {"b": 7}, start=6, end=8, batch=1)


def test_rows_are_documents_that_a_search_sees_when_apply_returns(
    make: Make, server: OpenSearchServer
) -> None:
    sink = make()
    sink.apply(FIRST)
    assert server.sources("orders") == {
        "a": {"key": "a", "_sequence": 5, "name": "Ann", "amount": 1},
        "b": {"key": "b", "_sequence": 6, "name": "Bob", "amount": 2},
    }

    sink.apply(SECOND)
    assert server.sources("orders") == {"a": {"key": "a", "_sequence": 8, "name": "Anna", "amount": 3}}
    assert sink.digest() == the_digest({"a": 8})


def test_the_mark_is_written_last_after_a_refresh(make: Make, server: OpenSearchServer) -> None:
    sink = make()
    del server.requests[:]
    sink.apply(FIRST)
    wrote = [path for method, path in server.requests if method in ("PUT", "POST") and path != f"/{MARKS}"]
    assert wrote[:2] == ["/orders/_bulk", "/orders/_refresh"]
    assert wrote[2].startswith(f"/{MARKS}/_doc/")
    assert len(wrote) == 3


def test_a_batch_whose_answer_was_lost_is_repeated_without_harm(make: Make, server: OpenSearchServer) -> None:
    sink = make()
    server.fail_after_bulk = 1
    with pytest.raises(SinkUnavailable):
        sink.apply(FIRST)
    assert sink.open() is None

    assert not sink.apply(FIRST).skipped
    assert sink.digest() == the_digest({"a": 5, "b": 6})


def test_a_mark_whose_answer_was_lost_is_found_again(make: Make, server: OpenSearchServer) -> None:
    class Deaf(OpenSearchSink):
        def _store(self, *arguments: Any) -> bool:
            super()._store(*arguments)
            return False

    sink = make(kind=Deaf)
    assert sink.apply(FIRST).skipped
    assert make().open() == FIRST.mark


class Overtaken(OpenSearchSink):
    """A sink that sleeps between looking at the mark and sending, while another is at work."""

    meanwhile: Callable[[], object]

    def _send(self, actions: Any) -> str | None:
        self.meanwhile()
        return super()._send(actions)


def test_a_zombie_brings_back_neither_old_versions_nor_deleted_documents(make: Make) -> None:
    rival, zombie = make(), make(kind=Overtaken)
    assert isinstance(zombie, Overtaken)
    zombie.meanwhile = lambda: (rival.apply(FIRST), rival.apply(SECOND))

    assert zombie.apply(FIRST).skipped

    assert rival.digest() == the_digest({"a": 8})
    assert rival.open() == SECOND.mark


def test_a_document_that_is_newer_than_its_row_is_an_error_not_a_skip(
    make: Make, server: OpenSearchServer
) -> None:
    class NoMark(OpenSearchSink):
        def _store(self, *arguments: Any) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(kind=NoMark).apply(a_change({"a": (900, "of a life before", 1)}, end=900))
    with pytest.raises(SinkRefused, match="'a' is newer than its row"):
        make().apply(FIRST)


def test_two_that_write_the_mark_at_once_do_not_overwrite_each_other(make: Make) -> None:
    class Late(OpenSearchSink):
        meanwhile: Callable[[], object]

        def _store(self, *arguments: Any) -> bool:
            self.meanwhile()
            return super()._store(*arguments)

    rival, late = make(), make(kind=Late)
    assert isinstance(late, Late)
    late.meanwhile = lambda: (rival.apply(FIRST), rival.apply(SECOND))
    assert late.apply(FIRST).skipped
    assert rival.open() == SECOND.mark


def test_a_busy_server_is_asked_again_for_what_it_did_not_take(make: Make, server: OpenSearchServer) -> None:
    sink = make()
    server.busy_requests = 1
    server.busy_items = 3
    sink.apply(FIRST)
    assert sink.digest() == the_digest({"a": 5, "b": 6})


def test_a_server_that_stays_busy_is_unavailable(make: Make, server: OpenSearchServer) -> None:
    sink = make(timeout_s=1)
    server.busy_items = 1_000_000
    with pytest.raises(SinkUnavailable, match="the queue is full"):
        sink.apply(FIRST)
    assert sink.open() is None


def test_a_document_that_does_not_fit_is_refused_with_its_key_and_sequence(make: Make) -> None:
    sink = make(COLUMNS.set(3, pa.field("amount", pa.int32())))
    wide = a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 1 << 40)}, end=6)
    with pytest.raises(
        RowRefused, match=r"key 'b' at sequence 6: failed to parse field \[amount\]: .*out of range"
    ):
        sink.apply(wide)
    assert sink.open() is None


def test_a_key_that_cannot_be_an_id_is_refused(make: Make) -> None:
    with pytest.raises(RowRefused, match="512 bytes"):
        make().apply(a_change({"k" * 513: (5, "Ann", 1)}, end=5))


def test_large_batches_go_in_parts(make: Make, server: OpenSearchServer) -> None:
    sink = make(bulk_bytes=4096)
    sink.apply(a_change({f"k{n}": (n + 1, "x" * 50, n) for n in range(300)}, end=300))
    assert sink.digest() == the_digest({f"k{n}": n + 1 for n in range(300)})
    assert [path for _, path in server.requests].count("/orders/_bulk") > 10


def test_columns_have_types_new_ones_are_added_and_others_refused(
    make: Make, server: OpenSearchServer
) -> None:
    schema = pa.schema(
        [
            *COLUMNS,
            ("note", pa.string()),
            ("money", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("who", pa.struct([("age", pa.int16())])),
            ("raw", pa.binary()),
        ]
    )
    sink = make(schema, exact=["name", "tags"])
    kinds = {name: one.get("type") for name, one in server.indices["orders"].mappings["properties"].items()}
    assert kinds == {
        "key": "keyword", "_sequence": "long", "name": "keyword", "amount": "long", "note": "text", "money": "scaled_float",
        "at": "date", "tags": "keyword", "who": None, "raw": "binary",
    }  # fmt: skip
    rows = pa.table(
        [
            ["a"],
            [1],
            ["Ann"],
            [1],
            ["n"],
            [Decimal("1.10")],
            [datetime(2024, 1, 1, tzinfo=UTC)],
            [["x"]],
            [{"age": 3}],
            [b"\xff"],
        ],
        schema=schema,
    )
    sink.apply(a_change(rows, end=1))
    assert server.sources("orders")["a"]["at"] == "2024-01-01T00:00:00.000000Z"

    make(schema.append(pa.field("extra", pa.int8())), exact=["name", "tags"])
    assert server.indices["orders"].mappings["properties"]["extra"] == {"type": "byte"}
    with pytest.raises(SchemaDrift, match="'amount' is long there and keyword"):
        make(schema.set(3, pa.field("amount", pa.string())), exact=["name", "tags", "amount"])


def test_keys_may_be_any_bytes(make: Make) -> None:
    schema = COLUMNS.set(0, pa.field("_key", pa.binary()))
    rows = pa.table([[b"\xff/", b"?"], [1, 2], ["x", "y"], [1, 2]], schema=schema)
    sink = make(schema)
    sink.apply(a_change(rows, end=2))
    assert sink.digest() == the_digest({b"\xff/": 1, b"?": 2})  # type: ignore[dict-item]


def test_an_index_of_somebody_else_is_left_alone(make: Make, server: OpenSearchServer) -> None:
    server.answer("PUT", "/orders", b'{"mappings": {}}')
    with pytest.raises(SinkRefused, match="not this sink's"):
        make()


def test_an_index_that_was_deleted_under_its_mark_is_noticed(make: Make, server: OpenSearchServer) -> None:
    make().apply(FIRST)
    del server.indices["orders"]
    with pytest.raises(SinkRefused, match="was deleted, but its mark"):
        make()


def test_a_drop_that_was_interrupted_is_finished_by_the_next_open(
    make: Make, server: OpenSearchServer
) -> None:
    class Interrupted(OpenSearchSink):
        def _finish_drop(self) -> None:
            raise KeyboardInterrupt

    sink = make(kind=Interrupted)
    sink.apply(FIRST)
    with pytest.raises(KeyboardInterrupt):
        sink.reset(drop=True)
    assert "orders" in server.indices

    fresh = make()
    assert fresh.digest() == the_digest({})
    assert not fresh.apply(FIRST).skipped


def test_results_of_repeated_batches_are_written_once(make: Make, server: OpenSearchServer) -> None:
    rows = pa.table({"country": ["de", "fr"], "n": [1, 2]})
    sink = make(rows.schema, "append", index="added")
    server.fail_after_bulk = 1
    with pytest.raises(SinkUnavailable):
        sink.apply(a_result(rows, mode="append", batch=0))
    sink.apply(a_result(rows.take([1, 0]), mode="append", batch=0))
    sink.apply(a_result(rows, mode="append", batch=1))
    assert sorted(row["n"] for row in server.sources("added").values()) == [1, 1, 2, 2]

    sink = make(rows.schema, "update", index="replaced", key=["country"])
    sink.apply(a_result(rows, mode="update", batch=0))
    sink.apply(a_result(rows.set_column(1, "n", pa.array([7, 8])), mode="update", batch=1))
    assert server.sources("replaced") == {"de": {"country": "de", "n": 7}, "fr": {"country": "fr", "n": 8}}


def test_logins_and_addresses_that_are_wrong_are_told_apart(make: Make, server: OpenSearchServer) -> None:
    server.password = "secret"
    with pytest.raises(SinkRefused, match="refuses the login"):
        make()
    make(url=server.url.replace("//", "//admin:secret@")).apply(FIRST)
    with pytest.raises(SinkUnavailable, match=r"127.0.0.1:9: .*refused"):
        make(url="http://127.0.0.1:9")


def test_bad_options_are_refused_before_anything_starts() -> None:
    for options, word in [
        ({}, "index.*missing"),
        ({"index": "Orders"}, "small letters"),
        ({"index": "o", "url": "redis://x"}, "https://"),
        ({"index": "o", "indx": "p"}, "did you mean 'index'"),
    ]:
        with pytest.raises(OptionError, match=word):
            OpenSearchSink("s", PIPELINE, options)
