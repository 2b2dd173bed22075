"""The Tidemark client and a cluster: it finds the leader, follows it, and reads where it is told to."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client.twins import opened
from system.cluster.cluster import Cluster, fresh, wait_until

from tidemark.client import NotConnected, Unconfirmed, connect, connect_async
from tidemark.client.cluster import ReadFrom

pytestmark = pytest.mark.timeout(180)


def url(cluster: Cluster, *names: str) -> str:
    """Of these members, or of all."""
    addresses = [cluster.address(name) for name in names] if names else cluster.addresses()
    return f"tidemark://guest:guest@{','.join(f'{one.host}:{one.port}' for one in addresses)}/"


def tail_of(cluster: Cluster) -> str:
    """The member that readers of a tail are sent to, if there is only one; of a standby, one of them."""
    with connect(url(cluster)) as db:
        return next(one.name for one in reversed(db.members()) if one.role in ("tail", "backup"))


class Producing(threading.Thread):
    """Puts 1, 2, 3, … into a stream through a producer, each confirmed before the next."""

    def __init__(self, where: str, stream: str) -> None:
        super().__init__(daemon=True, name=f"producer of {stream}")
        self._url, self._stream = where, stream
        self._over = threading.Event()
        self.confirmed: list[int] = []
        self.receipts: list[tuple[str, int]] = []
        self.duplicates = 0
        self.times: list[float] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with connect(self._url) as db, db.producer(fresh("p")) as producer:
                for number in itertools.count(1):
                    if self._over.is_set():
                        return
                    receipt = producer.put(self._stream, f"{number}", f"{number}")
                    self.duplicates += receipt.duplicate
                    self.receipts.append((receipt.history, receipt.sequence))
                    self.times.append(time.monotonic())
                    self.confirmed.append(number)
        except BaseException as problem:
            self.problem = problem

    def await_more(self, count: int) -> None:
        wanted = len(self.confirmed) + count
        wait_until(f"{count} more", lambda: self.problem or len(self.confirmed) >= wanted)
        assert self.problem is None, self.problem

    def finish(self) -> None:
        self._over.set()
        self.join(40)
        assert self.problem is None, self.problem


class Following(threading.Thread):
    """Reads a stream as it comes, and remembers every row and every boundary."""

    def __init__(self, where: str, stream: str, read_from: ReadFrom) -> None:
        super().__init__(daemon=True, name=f"reader of {stream}")
        self._url, self._stream, self._read_from = where, stream, read_from
        self.rows: list[tuple[bytes | None, int]] = []
        self.boundaries: list[int] = []
        self.nodes: list[str] = []
        self.until: int | None = None
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with connect(self._url, read_from=self._read_from) as db:
                for batch in db.stream(self._stream).follow():
                    self.rows += [(row.key, row.sequence) for row in batch]
                    if (node := db.reading_from) not in self.nodes[-1:]:
                        self.nodes.append(node)
                    if batch.marker is not None:
                        self.boundaries.append(batch.marker.end)
                        if self.until is not None and batch.position >= self.until:
                            return
        except BaseException as problem:
            self.problem = problem

    def finish(self, until: int) -> None:
        """Wait until it has read so far."""
        self.until = until
        wait_until(
            f"the reader has come to {until}",
            lambda: self.problem or not self.is_alive() or (self.boundaries and self.boundaries[-1] >= until),
        )
        assert self.problem is None, self.problem


@contextmanager
def writing(cluster: Cluster, stream: str, *names: str) -> Iterator[Producing]:
    producing = Producing(url(cluster, *names), stream)
    producing.start()
    producing.await_more(5)
    yield producing
    producing.finish()


def judge(producing: Producing, rows: list[tuple[bytes | None, int]]) -> None:
    """Everything that was confirmed is there, once, in its order, under the sequence of its receipt."""
    keys = [int(key or 0) for key, _ in rows]
    assert keys == sorted(keys) and len(set(keys)) == len(keys), "twice, or out of order"
    assert keys[: len(producing.confirmed)] == producing.confirmed
    assert [seq for _, seq in rows][: len(producing.receipts)] == [seq for _, seq in producing.receipts]


# Failover ----------------------------------------------------------------------------------------------------------


def test_a_killed_leader_costs_a_producer_and_a_reader_at_the_tail_nothing(cluster: Cluster) -> None:
    """S-20, H-89, M6: kill -9 of the leader; nothing lost, nothing twice, offsets never go back.

    H-87: a producer that numbers what it writes and connects again is stored exactly once. H-17: its URL is a list.
    """
    name = fresh("followed")
    with connect(url(cluster)) as db:
        db.stream(name, create=True)
    reading = Following(url(cluster), name, "tail")
    with writing(cluster, name) as producing:
        reading.start()
        producing.await_more(50)
        leader = cluster.leader
        when = cluster.kill(leader)
        producing.await_more(50)
        gap = min(at for at in producing.times if at > when + 0.001) - when
    reading.finish(producing.receipts[-1][1])

    print(f"{cluster.mode}: kill -9 to the next confirm of a Tidemark producer: {gap * 1000:.0f} ms; "
          f"{len(producing.confirmed)} puts, {producing.duplicates} duplicates; read at {reading.nodes}")  # fmt: skip
    judge(producing, reading.rows)
    assert reading.boundaries == sorted(reading.boundaries)
    assert len({history for history, _ in producing.receipts}) == 2
    assert leader not in reading.nodes
    with connect(url(cluster)) as db:
        rows = [(row.key, row.sequence) for row in db.stream(name).snapshot()]
    judge(producing, rows)


def test_a_killed_tail_sends_its_reader_elsewhere_and_nothing_goes_back(cluster: Cluster) -> None:
    """K-58: the client refreshes and tries again; nothing is read that goes back."""
    name = fresh("tail-killed")
    with connect(url(cluster)) as db:
        db.stream(name, create=True)
    reading = Following(url(cluster), name, "tail")
    with writing(cluster, name) as producing:
        reading.start()
        wait_until("the reader reads", lambda: reading.problem or len(reading.nodes) > 0)
        producing.await_more(30)
        [first] = reading.nodes
        assert first != cluster.leader
        cluster.kill(first)
        producing.await_more(50)
        wait_until("the reader reads elsewhere", lambda: reading.problem or len(reading.nodes) > 1)
    reading.finish(producing.receipts[-1][1])

    judge(producing, reading.rows)
    assert reading.boundaries == sorted(reading.boundaries)


def test_a_pin_shows_the_same_bytes_before_and_after_a_failover(cluster: Cluster) -> None:
    name = fresh("pinned")
    with connect(url(cluster), read_from="tail") as db:
        stream = db.stream(name, create=True, shards=4)
        stream.put_many((f"k{number}", f"v{number}") for number in range(2000))
        pin = stream.pin("batch")
        stream.put_many((f"k{number}", "newer") for number in range(0, 2000, 2))
        before = list(pin.rows())
        marker = pin.marker
        assert db.reading_from != cluster.leader

        cluster.kill(cluster.leader)
        after = list(pin.rows())

        assert after == before and len(before) == 2000
        assert marker is not None and pin.marker is not None and marker.verified and pin.marker.verified
        assert (pin.marker.hash, pin.marker.end, pin.marker.count) == (marker.hash, marker.end, marker.count)
    for member in cluster.names:
        if cluster.states()[member] not in ("active", "ready"):
            continue
        with connect(url(cluster, member), read_from="any") as db:
            again = db.stream(name).pinned("batch")
            assert list(again.rows()) == before
            assert again.marker is not None and again.marker.hash == marker.hash


def test_a_write_without_a_number_that_had_no_answer_says_that_it_may_be_repeated(cluster: Cluster) -> None:
    name = fresh("unnumbered")
    with connect(url(cluster)) as db:
        stream = db.stream(name, create=True)
        stop, problems = threading.Event(), []

        def put() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                try:
                    stream.put("k", str(number))
                except Unconfirmed as problem:
                    problems.append(str(problem))

        threads = [threading.Thread(target=put, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        cluster.kill(cluster.leader)
        cluster.leader  # noqa: B018
        wait_until("a put is stored again", lambda: stream.put("after", "1"))
        stop.set()
        for thread in threads:
            thread.join(40)

    assert problems
    assert all("may or may not be stored" in problem and "write it again" in problem for problem in problems)


@pytest.mark.parametrize("client", ["blocking", "asyncio"])
def test_a_frozen_leader_is_left_as_soon_as_another_leads(cluster: Cluster, client: str) -> None:
    """A SIGSTOP is noticed in less than 3 s: on a quiet machine 1.7 to 2.3 s pass from it to the next confirm.

    A machine that does much else is given half a second more, and one round of three. A client that waits until it gives a
    member up for its silence alone takes 4 s in every round.
    """
    name, took = fresh("frozen"), []
    loop = asyncio.new_event_loop()
    for round_ in range(3):
        cluster.whole()
        where = url(cluster)
        db: Any = connect(where) if client == "blocking" else opened(loop, connect_async(where))
        with db:
            stream = db.stream(name, create=True)
            with db.producer(fresh("p")) as producer:
                producer.put(name, f"before-{round_}", "1")
                leader = db.link().welcome["node"]
                frozen = cluster.freeze(leader)
                receipt = producer.put(name, f"after-{round_}", "2")
                took.append(time.monotonic() - frozen)
                assert db.link().welcome["node"] != leader
            assert not receipt.duplicate and stream.get(f"after-{round_}").sequence == receipt.sequence
    loop.close()

    print(f"{cluster.mode}: SIGSTOP of the leader to the next confirm of a {client} client at it: "
          f"{', '.join(f'{one:.1f}' for one in took)} s")  # fmt: skip
    assert sorted(took)[1] < 3.5


# Finding -----------------------------------------------------------------------------------------------------------


def test_one_address_is_enough_to_find_the_leader_and_all_others(cluster: Cluster) -> None:
    """K-40: the topology with its roles. K-57: given any address, a client ends at the right node, also after a failover."""
    backup = cluster.backups[0]
    with connect(url(cluster, backup)) as db:
        members = {one.name: one for one in db.members()}

        assert db.node == cluster.leader
        assert db.link().address == db.link().address.__class__(*_host(members[cluster.leader].address))
        assert set(members) == set(cluster.names)
        assert [one.name for one in members.values() if one.leads] == [cluster.leader]
        roles = {"standby": {"leader", "backup"}, "chain": {"head", "middle", "tail"}}[cluster.mode]
        assert {one.role for one in members.values()} == roles

        cluster.kill(backup)
        cluster.kill(cluster.leader)
        wait_until("another leads", lambda: db.streams() is not None)
        assert db.node not in (backup,)


def _host(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_every_member_answers_who_is_there(cluster: Cluster) -> None:
    told = []
    for member in cluster.names:
        with connect(url(cluster, member), read_from="any") as db:
            told.append({(one.name, one.role, one.address) for one in db.members()})
    assert told[0] == told[1] == told[2]


def test_a_client_gives_up_after_its_limit_and_says_what_it_tried(cluster: Cluster) -> None:
    """H-37: nobody leads for longer than the limit."""
    with connect(url(cluster), timeout=3) as db:
        name = fresh("limit")
        stream = db.stream(name, create=True)
        cluster.kill(*cluster.names)
        began = time.monotonic()
        with pytest.raises(NotConnected) as refused:
            stream.info()
        assert 1 < time.monotonic() - began < 8
        assert all(f"{one.host}:{one.port}" in str(refused.value) for one in cluster.addresses())
        cluster.whole()
        assert stream.info().name == name


# Reading -----------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_at_the_tail_at_once(cluster: Cluster) -> None:
    """M6, K-46, read your writes: every put is seen by the read that follows it, at another member."""
    name = fresh("own")
    with connect(url(cluster), read_from="tail") as db:
        stream = db.stream(name, create=True)
        assert db.reading_from != db.node
        for number in range(200):
            receipt = stream.put("k", str(number))
            row = stream.get("k")
            assert row is not None and (row.sequence, row.value) == (receipt.sequence, str(number).encode())


def test_heads_never_go_back_whichever_member_is_asked(cluster: Cluster) -> None:
    name = fresh("heads")
    with connect(url(cluster)) as db:
        db.stream(name, create=True)
    with writing(cluster, name) as producing, connect(url(cluster), read_from="any") as db:
        heads, nodes = [], set()
        for _ in range(60):
            heads.append(db.heads([name])[name].sequence)
            nodes.add(db.reading_from)
            db.reader().close()  # the next one is asked over another connection, anywhere
        producing.await_more(1)
    assert heads == sorted(heads)
    assert len(nodes) > 1


def test_a_receipt_is_judged_by_what_all_members_have(cluster: Cluster) -> None:
    """K-47, X-11: the sequence of a write is asked for at the leader or at a tail until so many members have it."""
    name = fresh("receipt")
    for read_from in ("leader", "tail"):
        with connect(url(cluster), read_from=read_from) as db:
            receipt = db.stream(name, create=True).put("k", "v")
            assert db.await_safe(receipt, replicas=3, disks=3) == "yes"


def test_a_consumer_reads_at_the_tail_and_keeps_its_mark_at_the_leader(cluster: Cluster) -> None:
    name = fresh("marked")
    with connect(url(cluster), read_from="tail") as db:
        stream = db.stream(name, create=True)
        first = stream.put_many((f"{number}", "1") for number in range(10))
        found = [len(batch) for batch in stream.follow("c", idle=1)]
        mark = stream.mark("c")
        stream.put_many((f"{number}", "2") for number in range(3))
        more = [row.value for batch in stream.follow("c", idle=1) for row in batch]

    assert sum(found) == 10
    assert mark is not None and mark.sequence == first.sequence
    assert more == [b"2"] * 3


def test_whoever_follows_a_stream_by_the_documented_protocol_has_a_replica_of_it(cluster: Cluster) -> None:
    """H-9, K-20: a replica is a consumer. One that knows the stream protocol and nothing else, and reads at a tail, holds at
    a boundary exactly what a snapshot of it at the leader shows."""
    name, dice = fresh("replica"), random.Random(1)
    replica: dict[bytes | None, bytes] = {}
    with connect(url(cluster), read_from="tail") as reader, connect(url(cluster)) as db:
        stream = db.stream(name, create=True)
        for _ in range(20):
            keys = dice.sample(range(50), 10)
            stream.put_many((f"{key}", f"{dice.random()}") for key in keys[:7])
            for key in keys[7:]:
                stream.delete(f"{key}")
        compared = 0
        for batch in reader.stream(name).follow(idle=1):
            for row in batch:
                if row.deleted:
                    replica.pop(row.key, None)
                else:
                    replica[row.key] = bytes(row.value)
            if batch.marker is not None:
                with stream.snapshot() as snapshot:
                    if snapshot.sequence == batch.marker.end:
                        shown = {row.key: bytes(row.value) for row in snapshot if not row.deleted}
                        assert shown == replica
                        compared += 1
        assert compared, "the last boundary is that of the snapshot"


def test_the_asyncio_client_follows_the_leader_too(cluster: Cluster) -> None:
    name = fresh("async")

    async def story() -> tuple[list[int], list[tuple[bytes | None, int]], int]:
        confirmed: list[int] = []
        async with connect_async(url(cluster), read_from="tail") as db:
            stream = await db.stream(name, create=True)

            async def produce() -> int:
                async with db.producer(fresh("p")) as producer:
                    last = 0
                    for number in range(1, 301):
                        last = (await producer.put(name, f"{number}", "x")).sequence
                        confirmed.append(number)
                        if number == 100:
                            await asyncio.to_thread(cluster.kill, cluster.leader)
                    return last

            async def read(rows: list[tuple[bytes | None, int]]) -> None:
                async with stream.follow() as batches:
                    async for batch in batches:
                        rows.extend((row.key, row.sequence) for row in batch)
                        if batch.marker is not None and len(rows) >= 300:
                            return

            rows: list[tuple[bytes | None, int]] = []
            reading = asyncio.create_task(read(rows))
            last = await produce()
            await asyncio.wait_for(reading, 30)
        return confirmed, rows, last

    confirmed, rows, last = asyncio.run(story())
    assert [int(key or 0) for key, _ in rows] == confirmed == list(range(1, 301))
    assert rows[-1][1] == last


@pytest.mark.parametrize("read_from", ["leader", "tail"])
def test_a_task_of_spark_reads_the_same_bytes_again_after_a_failover(
    cluster: Cluster, read_from: ReadFrom
) -> None:
    """What `tidemark_spark` does for a micro-batch in flight, without Spark around it."""
    pytest.importorskip("pyarrow")
    from tidemark_spark.broker import BrokerFeed, ReadTask, forget_clients, read
    from tidemark_spark.planning import Slice

    name, where = fresh("spark"), url(cluster)
    with connect(where) as db:
        stream = db.stream(name, create=True, shards=3)
        stream.put_many((f"k{number}", f"v{number}" * 10) for number in range(20_000))
    pin = BrokerFeed(where, name, retry_s=30, place="the cluster").pin("batch-1", 600)
    with connect(where) as db:
        db.stream(name).put_many((f"k{number}", "newer") for number in range(0, 20_000, 3))
    middle = pin.sequence // 2
    task = ReadTask(
        url=where, place="the cluster", stream=name, pin=pin.name, history=pin.history, read_from=read_from,
        slices=(Slice((0, 1), 0, pin.sequence), Slice((2,), 0, middle), Slice((2,), middle, pin.sequence)),
        columns=("key", "value", "sequence"), batch_bytes=64 << 10, retry_s=30, lease_s=600, renews=False,
        fail_on_data_loss=True, verify=True,
    )  # fmt: skip

    def rows(kill: bool) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for batch in read(task):
            found += batch.to_pylist()
            if kill and len(found) > 1000:
                cluster.kill(cluster.leader)
                kill = False
        return found

    try:
        before = rows(kill=False)
        during = rows(kill=True)
        after = rows(kill=False)
    finally:
        forget_clients()

    assert len(before) == 20_000
    assert before == during == after


# Members -----------------------------------------------------------------------------------------------------------


def table(cluster: Cluster, name: str) -> dict[str, tuple[Any, ...]]:
    """Member → what this member shows of it."""
    words = ("state", "role", "leader", "amqp", "peer", "admin", "epoch")
    rows = cluster.admin(name, "GET", "/api/members")
    return {row["name"]: tuple(row[word] for word in words) for row in rows}


def test_all_members_show_the_same_table_when_one_has_gone_and_come_back(cluster: Cluster) -> None:
    """Q-11: names, addresses and states of all, pushed to all."""
    gone = cluster.backups[-1]
    rest = [name for name in cluster.names if name != gone]

    def alike(names: list[str], state: str) -> bool:
        tables = [table(cluster, name) for name in names]
        return tables == [tables[0]] * len(names) and tables[0][gone][0] == state

    wait_until("all show the same", lambda: alike(cluster.names, "ready"))
    cluster.kill(gone)
    wait_until("those that are left show that it is away", lambda: alike(rest, "away"))
    cluster.restart(gone)
    cluster.await_state(gone, "ready")
    wait_until("all show the same again", lambda: alike(cluster.names, "ready"))
    assert set(table(cluster, gone)) == set(cluster.names)
