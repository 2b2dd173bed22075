"""Partitioned streams through both clients, against a real broker that has no other groups."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pyarrow as pa
import pytest
from client.pairs import pairs
from helpers.broker import Address

from tidemark.client import Conflict
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.model.partitions import partition_of

COUNT = 3
KEYS = [f"k{n}" for n in range(20)]


@pytest.fixture
def orders(either: Any, name: str) -> Any:
    return either.partitioned(name, create=COUNT)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [one.name for one in threading.enumerate() if one.name.startswith("tidemark-")]


def key_of(partition: int) -> str:
    return next(key for key in KEYS if partition_of(key.encode(), COUNT) == partition)


# The streams ------------------------------------------------------------------------------------------


def test_it_is_made_found_described_and_deleted(either: Any, name: str) -> None:
    made = either.partitioned(name, create=COUNT, max_age="7D")
    assert made.name == name and len(made) == COUNT
    assert [one.name for one in made.partitions] == [f"{name}-{n}" for n in range(COUNT)]
    assert [one.group for one in made.info()] == ["main"] * COUNT

    assert len(either.partitioned(name)) == COUNT
    assert len(either.partitioned(name, create=COUNT)) == COUNT
    assert {one.name for one in made.partitions} <= {one.name for one in either.streams()}

    either.delete_partitioned(name)
    with pytest.raises(NotFound, match="no partitioned stream"):
        either.partitioned(name)
    with pytest.raises(NotFound):
        either.stream(f"{name}-0")


def test_the_number_of_partitions_is_for_ever(either: Any, orders: Any) -> None:
    with pytest.raises(PreconditionFailed, match="x-partitions"):
        either.partitioned(orders.name, create=COUNT + 1)


def test_a_group_that_is_not_there_is_refused_in_words(either: Any, name: str) -> None:
    assert either.group("main") is either or either.group("main")._inner is either._inner
    with pytest.raises(PreconditionFailed, match="there is no group 's9'"):
        either.partitioned(name, create=2, groups=["s9"])


# Writing ----------------------------------------------------------------------------------------------


def test_a_key_is_put_got_and_deleted_in_its_partition(orders: Any) -> None:
    for key in KEYS:
        orders.put(key, key.encode(), headers={"by": "me"})
    for key in KEYS:
        row = orders.get(key)
        assert row.value == key.encode() and row.headers == {"by": "me"}
        assert orders.of(key).name == f"{orders.name}-{partition_of(key.encode(), COUNT)}"
        assert orders.of(key).get(key) == row
    orders.delete("k0", expected=orders.get("k0").sequence)
    assert orders.get("k0") is None


@pytest.mark.parametrize("form", ["pairs", "arrow"])
def test_many_rows_are_stored_each_in_its_partition(orders: Any, form: str) -> None:
    """K-53: each partition has the rows of its keys, in the order in which they were put."""
    rows = [(key.encode(), b"%d" % turn) for turn in range(3) for key in KEYS]
    given: Any = rows
    if form == "arrow":
        given = pa.table({"key": [key for key, _ in rows], "value": [value for _, value in rows]})

    found = orders.put_many(given)

    assert [one is not None for one in found] == [True] * COUNT
    for number, stream in enumerate(orders.partitions):
        mine = [(key, value) for key, value in rows if partition_of(key, COUNT) == number]
        assert found[number].sequence - found[number].first == len(mine) - 1
        assert pairs(stream.snapshot()) == mine[-len(dict(mine)) :]


def test_a_partition_without_rows_has_no_receipt(orders: Any) -> None:
    found = orders.put_many([(key_of(1), b"v")])
    assert [one is not None for one in found] == [False, True, False]
    assert orders.put_many([]) == [None] * COUNT


def test_a_partition_that_refuses_its_part_does_not_keep_others_from_storing_theirs(orders: Any) -> None:
    here, there = key_of(0), key_of(2)
    orders.put(there, b"old")
    table = pa.table({"key": [here, there], "value": [b"new", b"new"], "expected": [0, 0]})

    with pytest.raises(Conflict) as raised:
        orders.put_many(table)

    assert raised.value.key == there.encode()
    assert "stored their part: 0; that did not: 2" in raised.value.__notes__[0]
    assert (orders.get(here).value, orders.get(there).value) == (b"new", b"old")


def test_rows_without_a_key_go_round(either: Any, name: str) -> None:
    events = either.partitioned(name, create=COUNT, key="none")
    for n in range(COUNT):
        events.put(None, b"%d" % n)
    events.put_many([(None, b"x")] * 2 * COUNT)
    assert [one.live for one in events.info()] == [3] * COUNT


def test_a_producer_counts_its_numbers_by_partition(orders: Any) -> None:
    rows = [(key, b"v") for key in KEYS]
    with orders.producer("shop") as shop:
        assert [one.name for one in shop.producers] == [f"shop/{one.name}" for one in orders.partitions]
        shop.put(key_of(1), b"new")
        assert [one.last for one in shop.producers] == [0, 1, 0]
        assert not any(one.duplicate for one in shop.put_many(rows, number=7))
        shop.delete(key_of(1), number=8)

    with orders.producer("shop") as shop:
        assert [one.last for one in shop.producers] == [7, 8, 7]
        assert all(one.duplicate for one in shop.put_many(rows, number=7))
        assert shop.put(None, b"", number=7).duplicate, "the number says where it is: 7 of 3 is 1"
    assert orders.get(key_of(1)) is None


def test_what_amqp_publishes_is_where_the_client_looks_for_it(
    either: Any, name: str, broker: Address
) -> None:
    orders = either.partitioned(name, create=COUNT, key="routing-key")
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for key in KEYS:
            channel.basic_publish(name, key, b"by AMQP", pika.BasicProperties(delivery_mode=2))
    assert {orders.get(key).value for key in KEYS} == {b"by AMQP"}
    orders.put_many([(key, b"by the client") for key in KEYS])
    assert {row.value for row in orders.snapshot()} == {b"by the client"}


def test_partitions_of_one_group_share_a_transaction(orders: Any) -> None:
    first, last = orders.partitions[0], orders.partitions[-1]
    with first.client.transaction() as tx:
        tx.put(first, key_of(0), b"1")
        tx.put(last, key_of(2), b"1")
    assert orders.get(key_of(0)).value == orders.get(key_of(2)).value == b"1"


# Reading ----------------------------------------------------------------------------------------------


def test_a_snapshot_is_one_of_each_partition(orders: Any) -> None:
    orders.put_many([(key, b"old") for key in KEYS])
    with orders.snapshot() as snapshot:
        orders.put_many([(key, b"new") for key in KEYS])
        assert sorted(pairs(snapshot)) == sorted((key.encode(), b"old") for key in KEYS)
        assert all(one.verified for one in snapshot.markers) and len(snapshot) == len(KEYS)
        assert [one.count for one in snapshot.markers] == [
            sum(partition_of(key.encode(), COUNT) == number for key in KEYS) for number in range(COUNT)
        ]
        assert sorted(snapshot.to_arrow()["key"].to_pylist()) == sorted(key.encode() for key in KEYS)
        assert pairs(snapshot.rows(key_from="k3", key_to="k4")) == [(b"k3", b"old")]
        positions = snapshot.positions

    orders.delete("k3")
    with orders.snapshot(after=positions) as since:
        assert len(pairs(since)) == len(KEYS)
    assert list(orders.snapshot(after=[part.position for part in since.parts])) == []


def test_progress_is_that_of_all_partitions(orders: Any) -> None:
    orders.put_many([(key, b"1") for key in KEYS])
    told: list[tuple[int, int]] = []
    with orders.snapshot(progress=lambda done, total: told.append((done, total))) as snapshot:
        list(snapshot)
    assert told[-1] == (len(KEYS), len(KEYS)) and {total for _, total in told} == {len(KEYS)}
    assert told == sorted(told)


def test_an_empty_snapshot_has_the_columns_of_a_full_one(orders: Any) -> None:
    with orders.snapshot() as snapshot:
        assert snapshot.to_arrow().column_names[:2] == ["key", "value"]


def test_a_pin_is_one_in_each_partition(orders: Any) -> None:
    orders.put_many([(key, b"old") for key in KEYS])
    with orders.pin("report", lease=60) as pin:
        before = list(pin.read())
        orders.put_many([(key, b"new") for key in KEYS])
        assert list(orders.pinned("report").read()) == before and len(before) == len(KEYS)
        pin.renew(120)
    assert [one.pins() for one in orders.partitions] == [[]] * COUNT
    with pytest.raises(NotFound):
        orders.pinned("report")


# Following --------------------------------------------------------------------------------------------


def test_all_partitions_are_followed_and_each_has_its_mark(orders: Any) -> None:
    """K-53: each partition comes in its own order, with its own boundaries; there is no order between them."""
    found = orders.put_many([(key, b"1") for key in KEYS])
    seen: Counter[bytes] = Counter()
    last = [0] * COUNT
    for partition, batch in orders.follow("loader", idle=0.3):
        for row in batch:
            assert partition_of(row.key, COUNT) == partition and row.sequence > last[partition]
            seen[row.key], last[partition] = seen[row.key] + 1, row.sequence
    assert seen == Counter(key.encode() for key in KEYS)

    marks = orders.marks("loader")
    assert [one.sequence for one in marks] == [one.sequence for one in found]
    assert [one.rows for one in orders.lag(marks)] == [0] * COUNT
    assert sum(one.rows for one in orders.lag([None] * COUNT)) == len(KEYS)
    orders.put("k0", b"2")
    assert [pairs(batch) for _, batch in orders.follow("loader", idle=0.3) if len(batch)] == [[(b"k0", b"2")]]


def test_what_the_loop_did_not_finish_comes_again(orders: Any) -> None:
    orders.put_many([(key, b"1") for key in KEYS])
    for _ in orders.follow("loader", commit="each"):
        break
    assert [one.sequence for one in orders.marks("loader")] == [0] * COUNT

    def fail_at_the_second() -> None:
        for number, _ in enumerate(orders.follow("loader", commit="each", idle=5)):
            if number == 1:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail_at_the_second()
    assert len([one for one in orders.marks("loader") if one.sequence]) == 1, "one batch was finished"

    rows = [row for _, batch in orders.follow("loader", idle=0.3) for row in batch]
    assert 0 < len(rows) < len(KEYS)


def test_marks_can_be_moved_by_hand(orders: Any) -> None:
    orders.put_many([(key, b"1") for key in KEYS])
    follower = orders.follow("loader", commit=None, idle=0.3)
    for partition, batch in follower:
        if partition == 1:
            follower.commit(partition, batch)
    assert [bool(one.sequence) for one in orders.marks("loader")] == [False, True, False]


def test_a_subscription_begins_where_it_is_told_to_in_each_partition(orders: Any) -> None:
    before = orders.put_many([(key, b"1") for key in KEYS])
    orders.put("k7", b"2")
    found = [row for _, batch in orders.follow(start=before, idle=0.3) for row in batch]
    assert pairs(found) == [(b"k7", b"2")]
    with pytest.raises(TypeError, match="a list of places"):
        orders.follow(start=before[0])


def test_an_error_of_one_partition_ends_the_subscription(either: Any, orders: Any) -> None:
    orders.put("k1", b"1")
    either.delete_stream(orders.partitions[2].name)
    with pytest.raises(NotFound, match="-2"):
        for _ in orders.follow("loader"):
            pass


def test_rows_that_come_later_come_too(orders: Any, open_client: Callable[..., Any], url: str) -> None:
    writer = open_client(url).partitioned(orders.name)
    seen: list[bytes] = []
    for _, batch in orders.follow("loader", idle=5):
        seen += [row.key for row in batch]
        if len(seen) == len(KEYS):
            break
        if batch.marker is not None or not seen:
            writer.put_many([(key, b"1") for key in KEYS if key.encode() not in seen])
    assert sorted(seen) == sorted(key.encode() for key in KEYS)
