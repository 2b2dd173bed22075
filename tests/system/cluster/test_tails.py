"""A real chain whose tails alone show rows (`cluster.reads`): clients find them, whoever is a tail at the moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, fresh, wait_until
from system.cluster.test_client import Following, judge, url, writing

from tidemark.client import Client, connect, connect_async
from tidemark.client.address import Address
from tidemark.client.cluster import ReadFrom
from tidemark.errors import NotATail

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    cluster = Cluster(tmp_path / "chain", "chain", settings={"cluster.reads": "tails"})
    yield cluster.start()
    cluster.close()


def refused(db: Client, cluster: Cluster, member: str, stream: str) -> NotATail:
    """What a member says to somebody who reads there and does not look elsewhere."""
    where = cluster.address(member)
    link = db._dial(Address(where.host, where.port), 5.0, reads=True)
    try:
        with pytest.raises(NotATail) as caught:
            link.result(link.start({"op": "snapshot", "stream": stream}), time.monotonic() + 5)
        return caught.value
    finally:
        link.close()


def test_rows_are_shown_by_the_tail_alone_and_clients_find_it_while_members_die(chain: Cluster) -> None:
    """K-43: consumers read only from tails: at A or B an error that names C. K-57: the client goes there by itself, also
    when B is the tail since C died, and when A is left alone."""
    name = fresh("tails")
    with connect(url(chain)) as usual, connect(url(chain), read_from="tail") as reader:
        head, middle, tail = (one.name for one in usual.members())
        usual.stream(name, create=True, shards=2)
        for member in (head, middle):
            refusal = refused(usual, chain, member, name)
            assert refusal.member == member
            assert refusal.tails == f"{tail} at 127.0.0.1:{chain.address(tail).port}"

        reading = Following(url(chain), name, "leader")
        with writing(chain, name, head) as producing:
            reading.start()
            stream = usual.stream(name)
            assert stream.get("1") is not None and usual.reading_from == reader.reading_from == tail
            with stream.pin("p") as pin:
                pinned = [row.key for row in pin]
            assert pinned and pinned == [row.key for row in reader.stream(name).snapshot()][: len(pinned)]
            in_shard = next(batch for batch in stream.follow("c", shards=[1]) if len(batch))
            assert in_shard.rows[0].value and usual.node == head
            assert asyncio.run(read_by_asyncio(url(chain), name)) == tail
            assert read_by_spark(url(chain), name, "leader") == read_by_spark(url(chain), name, "tail") > 0

            chain.kill(tail)
            assert reader.stream(name).get("1") is not None and reader.reading_from == middle
            producing.await_more(20)
            chain.kill(middle)
            assert reader.stream(name).get("1") is not None and reader.reading_from == head
            producing.await_more(20)
        reading.finish(producing.receipts[-1][1])

        judge(producing, reading.rows)
        assert reading.nodes[0] == tail and reading.nodes[-1] == head
        assert len(list(stream.snapshot())) == len(producing.confirmed)

        chain.restart(middle, tail)
        wait_until("the chain is whole", lambda: set(chain.states().values()) == {"active", "ready"})
        assert stream.get("1") is not None and usual.reading_from != usual.node == head


async def read_by_asyncio(where: str, stream: str) -> str:
    """Everything that shows rows, in the asyncio client; returns which member did."""
    async with connect_async(where) as db:
        found = await db.stream(stream)
        async with found.follow("async", shards=[0]) as batches:
            assert await anext(aiter(batches)) is not None
        async with found.snapshot() as snapshot:
            assert [row async for row in snapshot]
        async with found.pin("async") as pin:
            assert [row async for row in pin]
        assert await found.get("1") is not None
        return str((await db.reader()).welcome["node"])


def read_by_spark(where: str, stream: str, read_from: ReadFrom) -> int:
    """What a task of Spark does, without Spark around it."""
    pytest.importorskip("pyarrow")
    from tidemark_spark.broker import BrokerFeed, ReadTask, forget_clients, read
    from tidemark_spark.planning import Slice

    feed = BrokerFeed(where, stream, retry_s=10, place="the chain")
    pin = feed.pin("spark", 600)
    task = ReadTask(
        url=where, place="the chain", stream=stream, pin=pin.name, history=pin.history, read_from=read_from,
        slices=(Slice((0, 1), 0, pin.sequence),), columns=("key", "sequence"), batch_bytes=64 << 10, retry_s=10,
        lease_s=600, renews=False, fail_on_data_loss=True, verify=True,
    )  # fmt: skip
    try:
        return sum(batch.num_rows for batch in read(task))
    finally:
        forget_clients()
