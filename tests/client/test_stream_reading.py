"""Streams through the client, against a real broker: snapshots, pins, following, and places to go on from."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain

import duckdb
import pytest
from client.pairs import pairs
from helpers.broker import Address, BrokerProcess

import tidemark.client
from tidemark.client import Client, LostBranch, PackageMissing, StreamReset, connect_async
from tidemark.errors import HistoryGone, NotFound, TidemarkError

# Reading --------------------------------------------------------------------------------------------------


def test_a_snapshot_is_frozen_repeatable_and_verified(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many((f"k{n:04}", b"old") for n in range(3000))
    seen: list[tuple[int, int]] = []

    with stream.snapshot(progress=lambda done, all_: seen.append((done, all_))) as snapshot:
        before = snapshot.sequence
        stream.put_many((f"k{n:04}", b"new") for n in range(0, 3000, 2))
        stream.delete("k0001")
        rows = pairs(snapshot.rows())
        first = snapshot.marker
        assert len(rows) == 3000 and {value for _, value in rows} == {b"old"}
        assert pairs(snapshot.rows()) == rows
        assert first is not None and first.verified and (first.count, first.tombstones) == (3000, 0)
        assert (first.start, first.end) == (0, before)
        assert snapshot.marker == first
    assert seen[-1] == (3000, 3000)
    with stream.snapshot() as snapshot:
        list(snapshot)
        assert snapshot.marker is not None
        assert (snapshot.marker.count, snapshot.marker.tombstones) == (2999, 1)


def test_a_snapshot_as_arrow_has_the_same_rows_and_marker(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many((f"k{n}", b"v%d" % n, {"n": n}) for n in range(500))
    stream.delete("k7")
    with stream.snapshot() as snapshot:
        rows = list(snapshot.rows())
        marker = snapshot.marker
        table = snapshot.to_arrow()
        assert snapshot.marker == marker
        projected = snapshot.to_arrow(columns=["sequence", "shard", "headers"])
        assert snapshot.marker is not None and not snapshot.marker.verified

    assert table.column_names == ["key", "value", "deleted", "sequence", "timestamp"]
    assert table.column("key").to_pylist() == [row.key for row in rows]
    assert table.column("value").to_pylist() == [row.value for row in rows]
    assert table.column("deleted").to_pylist() == [row.deleted for row in rows]
    assert projected.column("sequence").to_pylist() == [row.sequence for row in rows]
    assert set(projected.column("shard").to_pylist()) == {0, 1, 2, 3}
    assert projected.column("headers").to_pylist()[0] == [{"key": "n", "value": b"0"}]


def test_an_empty_snapshot_as_arrow_has_its_columns(db: Client, name: str) -> None:
    table = db.stream(name, create=True).snapshot().to_arrow()
    assert table.num_rows == 0 and "key" in table.column_names


def test_parts_of_a_snapshot_by_sequence_key_shard_and_column(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many((f"k{n:03}", b"v") for n in range(100))
    with stream.snapshot() as snapshot:
        rows = list(snapshot.rows())
        middle = rows[49].sequence
        assert list(snapshot.rows(until=middle)) + list(snapshot.rows(after=middle)) == rows
        assert pairs(snapshot.rows(key_from="k010", key_to="k020")) == [
            (b"k%03d" % n, b"v") for n in range(10, 20)
        ]
        assert snapshot.marker is not None and snapshot.marker.verified and snapshot.marker.count == 10
        by_shard = [list(snapshot.rows(shards=[shard])) for shard in range(4)]
        assert all(by_shard) and sorted(chain(*by_shard), key=lambda row: row.sequence) == rows
        keys = list(snapshot.rows(columns=["key"]))
        assert [row.key for row in keys] == [row.key for row in rows]
        assert all(row.value == b"" and row.sequence == 0 for row in keys)


def test_only_what_changed_since_can_be_read(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("a", b"1"), ("b", b"1")])
    with stream.snapshot() as snapshot:
        position = snapshot.position
    stream.put("b", b"2")
    stream.delete("a")
    with stream.snapshot(after=position) as changes:
        assert [(row.key, row.deleted) for row in changes] == [(b"b", False), (b"a", True)]


def test_a_difference_names_what_changed_and_what_was_deleted(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("same", b"1"), ("changed", b"1"), ("gone", b"1")])
    a = stream.put("last", b"1")
    stream.put("changed", b"2")
    stream.put("changed", b"3")
    stream.put("new", b"1")
    b = stream.delete("gone")

    difference = stream.diff(a, b)

    assert [(row.key, row.value, row.deleted) for row in difference] == [
        (b"changed", b"3", False), (b"new", b"1", False), (b"gone", b"", True),
    ]  # fmt: skip
    assert difference.summary == (2, 1)


def test_the_past_can_be_read_as_long_as_it_is_kept(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    first = stream.put("k", b"1")
    stream.put("k", b"2")
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    stream.put("k", b"3")

    assert pairs(stream.as_of(sequence=first)) == [(b"k", b"1")]
    assert pairs(stream.as_of(time=between)) == [(b"k", b"2")]
    assert pairs(stream.as_of(time=time.time() + 5)) == [(b"k", b"3")]
    with pytest.raises(TypeError, match="either a sequence or a time"):
        stream.as_of()


def test_a_past_that_is_not_kept_is_an_error(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put("k", b"1")
    stream.put("k", b"2")
    stream.put("k", b"3")

    def gone() -> bool:
        try:
            list(stream.as_of(sequence=first))
        except HistoryGone:
            return True
        return False

    from helpers.amqp import eventually

    eventually(gone)


def test_a_pin_stays_the_same_while_its_keys_are_rewritten(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many((f"k{n}", b"old") for n in range(100))
    pin = stream.pin("nightly", lease=60)
    before, marker = list(pin.read()), pin.marker
    stream.put_many((f"k{n}", b"new") for n in range(100))
    stream.delete("k3")

    assert list(pin.read()) == before and pin.marker == marker
    assert (
        list(stream.pinned("nightly").read(after=before[9].sequence, until=before[19].sequence))
        == before[10:20]
    )
    [info] = stream.pins()
    assert (info.name, info.sequence) == ("nightly", pin.sequence) and info.bytes_kept > 0
    assert info.lease_until_ms > time.time() * 1000 + 30_000
    assert stream.pin("nightly", lease=120).sequence == pin.sequence, "the same name is the same snapshot"
    pin.renew(lease=600)

    pin.release()
    assert stream.pins() == []
    with pytest.raises(TidemarkError):
        list(pin.read())
    with pytest.raises(NotFound):
        stream.pinned("nightly")


# Following ------------------------------------------------------------------------------------------------


def test_following_gives_rows_and_boundaries_and_keeps_the_mark(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("a", b"1"), ("b", b"1")])

    batches = list(stream.follow("loader", idle=0.3))
    assert [pairs(batch) for batch in batches if len(batch)] == [[(b"a", b"1"), (b"b", b"1")]]
    assert batches[-1].marker is not None and batches[-1].marker.verified
    mark = stream.mark("loader")
    assert mark is not None and mark.sequence == batches[-1].position and mark.history == batches[-1].history

    stream.put("b", b"2")
    stream.put("b", b"3")
    assert [pairs(batch) for batch in stream.follow("loader", idle=0.3) if len(batch)] == [[(b"b", b"3")]]
    assert [one.consumer for one in stream.marks()] == ["loader"]


def test_a_follower_hears_of_what_is_put_while_it_waits(db: Client, name: str, url: str) -> None:
    stream = db.stream(name, create=True)
    seen: list[bytes] = []

    def follow() -> None:
        with tidemark.client.connect(url) as other:
            for batch in other.stream(name).follow(start="next", idle=10):
                seen.extend(row.value for row in batch)
                if b"end" in seen:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    for n in range(5):
        stream.put(f"k{n}", b"%d" % n)
    stream.put("end", b"end")
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"end"]


def test_marks_are_moved_and_reset_by_hand(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    receipts = [stream.put(f"k{n}", b"v") for n in range(4)]
    stream.register("c", lease=60)
    stream.move_mark("c", receipts[2])
    mark = stream.mark("c")
    assert mark is not None and mark.sequence == receipts[2].sequence
    assert mark.lease_until_ms is not None and mark.lease_until_ms > time.time() * 1000
    assert [row.key for batch in stream.follow("c", commit=None, idle=0.3) for row in batch] == [b"k3"]

    stream.reset_mark("c")
    assert len([row for batch in stream.follow("c", commit=None, idle=0.3) for row in batch]) == 4
    stream.unregister("c")
    assert stream.mark("c") is None


def test_a_follower_starts_where_it_is_told(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="none")
    receipts = [stream.put(None, b"%d" % n) for n in range(4)]

    def read(start: object) -> list[bytes]:
        return [row.value for batch in stream.follow(start=start, idle=0.3) for row in batch]  # type: ignore[arg-type]

    assert read(None) == read("first") == [b"0", b"1", b"2", b"3"]
    assert read("last") == [b"3"]
    assert read("next") == []
    assert read(receipts[1]) == read(receipts[1].sequence) == [b"2", b"3"]
    assert read(datetime(2000, 1, 1, tzinfo=UTC)) == [b"0", b"1", b"2", b"3"]
    [rows, boundary] = stream.follow(columns=["sequence"], idle=0.3)
    assert [row.sequence for row in rows] == [one.sequence for one in receipts]
    assert boundary.marker is not None and not boundary.marker.verified


def test_a_consumer_that_missed_deletes_starts_over(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with tidemark.client.connect(f"tidemark://127.0.0.1:{broker.address.port}/") as db:
        stream = db.stream("s", create=True, tombstone_lease=0.2)
        stream.put_many([("a", b"1"), ("b", b"1")])
        assert [len(batch) for batch in stream.follow("c", lease=0.2, idle=0.3) if len(batch)] == [2]
        stream.delete("a")
        deadline = time.monotonic() + 20
        while True:
            time.sleep(0.3)
            stream.put("b", b"2")  # something must go on for the stream to be looked at
            try:
                list(stream.follow("c", commit=None, idle=0.1))
            except tidemark.client.StreamReset:
                break
            assert time.monotonic() < deadline

        batches = list(stream.follow("c", idle=0.3, on_reset="restart"))
        assert batches[0].reset
        assert [row.key for batch in batches for row in batch] == [b"b"]


def test_heads_answer_as_soon_as_there_is_more(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    head = db.heads([name])[name]
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(db.heads([name], after={name: head.sequence}, wait=10)[name].sequence)
    )
    began = time.monotonic()
    waiting.start()
    time.sleep(0.2)
    receipt = stream.put("k", b"v")
    waiting.join(10)
    assert found == [receipt.sequence] and time.monotonic() - began < 5


# Pieces, and how far behind -----------------------------------------------------------------------------


def test_a_pin_and_a_snapshot_are_cut_into_pieces_that_together_are_all_of_it(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many([(f"k{n}", b"v" * (n % 10)) for n in range(1000)])
    stream.delete("k7")
    with stream.pin("p") as pin:
        stream.put_many([(f"k{n}", b"rewritten") for n in range(500)])
        whole = list(pin.read())

        pieces = pin.cut(rows=64)
        assert [piece.rows for piece in pieces] == [64] * 15 + [40]
        found, after = [], 0
        for piece in pieces:
            part = list(pin.read(after=after, until=piece.until))
            assert (piece.rows, piece.bytes) == (len(part), sum(len(row.value) for row in part))
            found += part
            after = piece.until
        assert found == whole and after == pin.sequence
        assert [piece.rows for piece in pin.cut(parts=4)] == [250] * 4
        assert pin.cut(bytes=1000, limit=2) == pin.cut(bytes=1000)[:2]
        assert sum(pin.cut(shards=[shard])[0].rows for shard in range(pin.shards)) == 1000
        assert pin.cut(after=pin.sequence) == []
        assert stream.pinned("p").cut(rows=64) == pieces and stream.pinned("p").history == pin.history
    with stream.snapshot() as snapshot:
        assert snapshot.cut() == [(snapshot.sequence, 1000, snapshot.cut()[0].bytes)]
        assert len(snapshot.cut(rows=1)) == 1000


def test_a_cut_that_cannot_be_is_refused_in_words(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("k", b"v")
    with stream.pin("p") as pin:
        with pytest.raises(TidemarkError, match="at most 100000 pieces"):
            pin.cut(rows=1, limit=10**9)
        with pytest.raises(TidemarkError, match="both were given"):
            pin.cut(rows=1, parts=2)
    with pytest.raises(TidemarkError, match="pin"):
        pin.cut(rows=1)


def test_the_lag_of_a_place_is_what_changed_since_each_key_once(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    stream.put_many([(f"k{n}", b"12345") for n in range(100)])
    middle = stream.put("k0", b"1")
    assert stream.lag(0) == (100, 99 * 5 + 1)
    assert stream.lag(middle) == (0, 0)

    for value in (b"a", b"ab", b"abc"):
        stream.put("k1", value)
    stream.delete("k2")

    assert stream.lag(middle) == (2, 3)
    assert stream.lag(0) == (100, 97 * 5 + 1 + 3)
    assert sum(stream.lag(middle, shards=[shard]).rows for shard in range(2)) == 2
    with pytest.raises(TidemarkError, match="shards of this stream"):
        stream.lag(0, shards=[7])


def test_pieces_and_lag_are_told_to_asyncio_too(url: str, db: Client, name: str) -> None:
    db.stream(name, create=True).put_many([(f"k{n}", b"v") for n in range(10)])

    async def story() -> None:
        async with connect_async(url, timeout=20) as client:
            stream = await client.stream(name)
            assert await stream.lag(0) == (10, 10)
            async with stream.snapshot() as snapshot:
                assert [piece.rows for piece in await snapshot.cut(rows=4)] == [4, 4, 2]
            async with stream.pin("p") as pin:
                assert [piece.rows for piece in await pin.cut(parts=2)] == [5, 5]

    asyncio.run(story())


# Places and their histories -------------------------------------------------------------------------------


def test_a_place_of_another_history_is_refused_wherever_it_is_given(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    old, new = stream.put("k", b"1"), stream.put("k", b"2")
    foreign = old._replace(history="00" * 16)
    for ask in (
        lambda: stream.as_of(sequence=foreign),
        lambda: list(stream.diff(foreign, new)),
        lambda: list(stream.diff(old, foreign)),
        lambda: stream.truncate(foreign),
        lambda: stream.lag(foreign),
        lambda: stream.pin("p", at=foreign),
    ):
        with pytest.raises((StreamReset, LostBranch)):
            ask()
    tx = db.transaction()
    tx.copy(stream, old.first, old.sequence, into=stream, history=foreign.history)
    with pytest.raises((StreamReset, LostBranch)):
        tx.commit()

    assert [row.value for row in stream.as_of(sequence=old)] == [b"1"]
    assert [row.value for row in stream.diff(old, new)] == [b"2"]
    assert [row.value for row in stream.pin("then", at=old).read()] == [b"1"]
    assert [row.value for row in stream.pin("now", at=datetime.now(UTC)).read()] == [b"2"]
    assert {pin.name: pin.shards for pin in stream.pins()} == {"then": 1, "now": 1}


def test_a_mark_in_one_shard_says_of_how_many(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    receipt = stream.put("k", b"v")
    with pytest.raises(ValueError, match=r"of=snapshot\.shards"):
        stream.move_mark("c", receipt, shard=1)
    with pytest.raises(ValueError, match="say of how many"):
        db.transaction().mark(stream, "c", receipt.sequence, shard=1)
    stream.move_mark("c", receipt, shard=1, of=2)
    with db.transaction() as tx:
        tx.mark(stream, "d", receipt.sequence, shard=0, of=2)
    assert [mark.shards for mark in stream.marks()] == [(0, receipt.sequence), (receipt.sequence, 0)]


def test_a_stream_that_was_made_again_has_another_number(db: Client, name: str) -> None:
    db.stream(name, create=True)
    before = db.heads([name])[name].number
    db.delete_stream(name)
    db.stream(name, create=True)
    assert db.heads([name])[name].number > before > 0


def test_who_does_not_want_the_hash_still_gets_the_count_checked(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{n}", b"v") for n in range(10)])
    with stream.snapshot() as snapshot:
        assert sum(batch.num_rows for batch in snapshot.batches(verify=False)) == 10
        assert snapshot.marker is not None and snapshot.marker.hash is None and snapshot.marker.count == 10


def test_pandas_polars_and_duckdb_read_a_snapshot(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{n:03}", str(n).encode()) for n in range(100)])
    stream.put_many([(f"k{n:03}", b"7") for n in range(50)])
    total = 50 * 7 + sum(range(50, 100))

    with stream.snapshot() as snapshot:
        pandas, polars, found = snapshot.to_pandas(), snapshot.to_polars(), snapshot.to_arrow()

    assert sum(int(value) for value in pandas["value"]) == total
    assert sum(int(value) for value in polars["value"].to_list()) == total
    sums = duckdb.sql(
        "select sum(cast(cast(value as varchar) as int)), count(distinct key) from found"
    ).fetchall()
    assert found.num_rows == 100
    assert sums == [(total, 100)]


def test_a_missing_package_is_named(db: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = db.stream(name, create=True)
    for package, method in (("pandas", "to_pandas"), ("polars", "to_polars")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(PackageMissing, match=f"pip install {package}"):
            getattr(stream.snapshot(), method)()


def test_an_unknown_vhost_and_a_wrong_age_say_what_to_do(db: Client, broker: Address, name: str) -> None:
    with pytest.raises(TidemarkError, match="tidemark ctl vhosts add nowhere"):
        tidemark.client.connect(f"tidemark://guest:guest@{broker.host}:{broker.port}/nowhere", timeout=10)
    with pytest.raises(TidemarkError, match="'7D', '12h'"):
        db.stream(name, create=True, max_age="soon")
