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

            chain.kill(tail)
            assert reader.stream(name).get("1") is not None and reader.reading_from == middle
            producing.await_more(20)
            chain.kill(middle)
            assert reader.stream(name).get("1") is not None and reader.reading_from == head
            producing.await_more(20)
        reading.finish(producing.receipts[-1][1])

        judge(producing, reading.rows)
        assert reading.nodes[0] == tail and reading.nodes[-1] == head
        assert asyncio.run(all_rows(url(chain), name)) == len(producing.confirmed)

        chain.restart(middle, tail)
        wait_until("the chain is whole", lambda: set(chain.states().values()) == {"active", "ready"})
        assert stream.get("1") is not None and usual.reading_from != usual.node == head


async def all_rows(where: str, stream: str) -> int:
    async with connect_async(where) as db, (await db.stream(stream)).snapshot() as snapshot:
        return len([row async for row in snapshot])
