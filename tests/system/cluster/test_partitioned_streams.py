"""A partitioned stream over three chain groups, behind fronts: main (standby) has its name, each group some of its partitions.

Everything goes through a front with the client: rows, snapshots, subscriptions, logins and what a user may do. A group's leader is
killed under load; nothing confirmed is lost or stored twice, and the other partitions go on.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator

import pytest
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, fresh, wait_until

import tidemark.client
from tidemark.cli.trial import Mode
from tidemark.client import Client, Partitioned, StreamElsewhere, Unconfirmed
from tidemark.client.partitioned import PartitionedProducer
from tidemark.errors import AccessRefused, LoginRefused, NotAllowed, NotFound
from tidemark.model.partitions import partition_of

GROUPS: dict[str, Mode] = {"main": "standby", "s1": "chain", "s2": "chain", "s3": "chain"}
COUNT = 6
KEYS = [f"k{n}".encode() for n in range(40)]
LOG_LINES = 40

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    made = Cluster(tmp_path_factory.mktemp("partitioned"), "standby", nodes=2, groups=GROUPS)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, shared: Cluster) -> Iterator[Cluster]:
    failed = request.session.testsfailed
    yield shared.whole()
    if request.session.testsfailed > failed:
        for name in (*shared.trial.members, *shared.trial.fronts):
            print(f"--- {name}", *shared.log(name).splitlines()[-LOG_LINES:], sep="\n")


def url(cluster: Cluster, login: str = "guest:guest") -> str:
    return f"tidemark://{login}@{','.join(f'{one.host}:{one.port}' for one in cluster.addresses())}/"


@pytest.fixture
def db(cluster: Cluster) -> Iterator[Client]:
    with tidemark.client.connect(url(cluster)) as client:
        yield client


@pytest.fixture
def orders(db: Client) -> Partitioned:
    return db.partitioned(fresh("orders"), create=COUNT)


def test_partitions_are_laid_round_the_groups_and_each_is_used_where_it_lives(
    cluster: Cluster, db: Client, orders: Partitioned
) -> None:
    """K-53: streams of several groups under one name; each has its own order and history, and none spans two."""
    groups = ["s1", "s2", "s3"] * 2
    found = orders.put_many([(key, b"1") for key in KEYS])
    assert [one.client.group_name for one in orders.partitions] == groups
    assert [one.group for one in orders.info()] == groups
    assert len({one.history for one in found if one is not None}) == 3
    for key in KEYS:
        row = orders.get(key)
        assert row is not None and row.value == b"1"

    orders.put(KEYS[0], b"2")
    with orders.snapshot() as snapshot:
        assert {row.key: row.value for row in snapshot} == dict.fromkeys(KEYS, b"1") | {KEYS[0]: b"2"}
        assert all(one is not None and one.verified for one in snapshot.markers)
        assert snapshot.to_arrow().num_rows == len(KEYS)
    with orders.pin("report", lease=60) as pin:
        before = list(pin.read())
        orders.delete(KEYS[1])
        assert list(pin.read()) == before

    held: dict[bytes | None, bytes] = {}
    for partition, batch in orders.follow("loader", idle=1):
        for row in batch:
            assert row.key is not None and partition_of(row.key, COUNT) == partition
            held |= {row.key: row.value}
            if row.deleted:
                del held[row.key]
    assert len(held) == len(KEYS) - 1
    assert [one.rows for one in orders.lag(orders.marks("loader"))] == [0] * COUNT

    listed = {one.name: one.group for one in db.streams() if one.name.startswith(f"{orders.name}-")}
    assert listed == {f"{orders.name}-{n}": group for n, group in enumerate(groups)}
    asyncio.run(_use_async(url(cluster), orders.name))
    db.delete_partitioned(orders.name)
    assert not [one for one in db.streams() if one.name.startswith(f"{orders.name}-")]


async def _use_async(url: str, name: str) -> None:
    async with tidemark.client.connect_async(url) as db:
        orders = await db.partitioned(name)
        assert all(await orders.put_many([(key, b"3") for key in KEYS]))
        async with orders.snapshot() as snapshot:
            assert {row.value async for row in snapshot if not row.deleted} == {b"3"}
        async with orders.follow("async-loader", idle=1) as batches:
            assert len([row async for _, batch in batches for row in batch if not row.deleted]) == len(KEYS)


def test_a_stream_with_a_group_of_its_own_is_made_used_and_deleted_there(db: Client) -> None:
    name = fresh("stock")
    stock = db.stream(name, create=True, arguments={"x-group": "s2"})
    stock.put("item", b"41")
    assert db.stream(name).get("item") == stock.get("item") and stock.info().group == "s2"

    tx = db.transaction()
    tx.put(name, "item", b"42")
    with pytest.raises(StreamElsewhere, match=r"db\.group\('s2'\)"):
        tx.commit()
    with stock.client.transaction() as there:
        there.put(stock, "item", b"42")
    db.delete_stream(name)
    with pytest.raises(NotFound):
        db.stream(name)
    with pytest.raises(NotFound):
        db.group("s2").stream(name)


def test_who_may_not_come_in_or_asks_for_what_is_not_there_is_refused(cluster: Cluster, db: Client) -> None:
    for group in (None, "s1"):
        with pytest.raises(LoginRefused):
            tidemark.client.connect(url(cluster, "guest:wrong"), timeout=10, group=group)
    with pytest.raises(NotFound, match="no group 's9'"):
        tidemark.client.connect(url(cluster), timeout=10, group="s9")
    with pytest.raises(NotFound, match="no group 's9'"):
        db.group("s9").streams()


def test_permissions_are_mains_in_every_group_and_a_change_counts_at_once(
    cluster: Cluster, orders: Partitioned
) -> None:
    def permit(**allowed: str) -> None:
        body = {"configure": "", "write": "", "read": ""} | allowed
        cluster.admin(cluster.leader, "PUT", "/api/permissions/%2F/ann", body)

    def came_of(key: bytes) -> str:
        try:
            mine.put(key, b"ann's")
        except (AccessRefused, NotAllowed):
            return "refused"
        except Unconfirmed:
            return "cut"
        return "stored"

    cluster.admin(cluster.leader, "PUT", "/api/users/ann", {"password": "secret", "tags": ""})
    permit(read=".*")
    orders.put_many([(key, b"1") for key in KEYS])
    with tidemark.client.connect(url(cluster, "ann:secret"), timeout=20) as ann:
        mine = ann.partitioned(orders.name)
        assert len(list(mine.snapshot())) == len(KEYS)
        with pytest.raises(AccessRefused, match=f"{orders.name}-{partition_of(KEYS[0], COUNT)}"):
            mine.put(KEYS[0], b"ann's")
        with pytest.raises(AccessRefused):
            ann.partitioned(fresh("hers"), create=2)

        permit(read=".*", write=".*")
        wait_until("she may write", lambda: came_of(KEYS[0]) == "stored", 20)
        assert (row := orders.get(KEYS[0])) is not None and row.value == b"ann's"

        permit(read=".*")
        for key in KEYS[:6]:
            wait_until("she may not write any more", lambda: came_of(key) == "refused", 20)  # noqa: B023
        cluster.admin(cluster.leader, "DELETE", "/api/permissions/%2F/ann")
        wait_until("she may not even enter", lambda: came_of(KEYS[0]) == "refused", 20)


class Writer(threading.Thread):
    """Puts 1, 2, 3, … into one partition under a producer's numbers, each confirmed before the next."""

    def __init__(self, producer: PartitionedProducer, partition: int) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._key = next(key for key in KEYS if partition_of(key, 3) == partition)
        self.confirmed: list[tuple[float, bytes]] = []
        self.over = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                value = b"%d" % (len(self.confirmed) + 1)
                self._producer.put(self._key, value)
                self.confirmed.append((time.monotonic(), value))
        except BaseException as problem:
            self.problem = problem

    def between(self, begin: float, end: float) -> int:
        """How many were confirmed then."""
        return sum(begin < at < end for at, _ in list(self.confirmed))

    def pause(self, since: float) -> tuple[float, float]:
        """The longest time without a confirm."""
        times = [at for at, _ in list(self.confirmed) if at > since - 1]
        return max(itertools.pairwise(times), key=lambda two: two[1] - two[0])


def test_when_a_groups_leader_is_killed_nothing_is_lost_and_other_partitions_go_on(
    cluster: Cluster, db: Client
) -> None:
    events = db.partitioned(fresh("events"), create=3, key="log")
    with events.producer("source") as source:
        writers = [Writer(source, partition) for partition in range(3)]
        for one in writers:
            one.start()
        wait_until("all write", lambda: all(len(one.confirmed) > 20 for one in writers))
        seen: list[list[bytes]] = [[] for _ in range(3)]
        reader = threading.Thread(target=_follow, args=(events, seen), daemon=True)
        reader.start()

        victim = cluster.leader_of("s2")
        killed = cluster.kill(victim)
        wait_until("the second goes on", lambda: writers[1].between(killed + 0.1, math.inf) > 20)
        pause = writers[1].pause(killed)
        for other in (writers[0], writers[2]):
            assert other.between(*pause) > 5, f"the others did not wait for it: {pause}"
        for one in writers:
            one.over.set()
        for one in writers:
            one.join(30)
            assert one.problem is None and not one.is_alive()
    reader.join(30)

    for partition, one in enumerate(writers):
        confirmed = [value for _, value in one.confirmed]
        assert [row.value for row in events.partitions[partition].snapshot()] == confirmed
        assert seen[partition] == confirmed


def _follow(events: Partitioned, seen: list[list[bytes]]) -> None:
    for partition, batch in events.follow("reader", idle=2):
        seen[partition] += [row.value for row in batch]
