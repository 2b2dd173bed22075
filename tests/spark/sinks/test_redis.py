"""What is special about Redis: one MULTI for all, the mark watched, rows found by scanning."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.changes import COLUMNS, PIPELINE, a_change, a_result, the_digest
from helpers.redis import PROGRAM, RedisProcess

from tidemark_spark.errors import OptionError, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.redis import DROPPING, Link, RedisSink, Server
from tidemark_spark.pipeline.sinks.table import SinkOptions
from tidemark_spark.pipeline.values import Change, Digest

redis = pytest.importorskip("redis")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")

Make = Callable[..., RedisSink]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis")).start()
    yield process
    process.close()


@pytest.fixture
def looking(server: RedisProcess) -> Iterator[Any]:
    """Another client, which sees what anybody sees."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def make(server: RedisProcess, looking: Any) -> Iterator[Make]:
    made: list[RedisSink] = []

    def make(kind: type[RedisSink] = RedisSink, mode: Any = "mirror", **options: Any) -> RedisSink:
        sink = kind("s", PIPELINE, {"url": server.url, "prefix": "o:", **options})
        made.append(sink)
        sink.open()
        if options.get("mode", "mirror") == "mirror":
            sink.prepare(COLUMNS, "mirror")
        return sink

    yield make
    for sink in made:
        sink.close()


def test_a_row_is_a_json_document_under_its_key(make: Make, looking: Any) -> None:
    sink = make()
    sink.apply(a_change({"a": (5, "Ann", None)}, end=5))
    assert json.loads(looking.get("o:a")) == {"_sequence": 5, "name": "Ann", "amount": None}


def test_with_a_key_column_the_document_has_its_key(make: Make, looking: Any) -> None:
    sink = make(key_column="order")
    sink.apply(a_change({"a": (5, "Ann", 1)}, end=5))
    assert json.loads(looking.get("o:a"))["order"] == "a"


def test_a_column_that_becomes_null_leaves_the_hash(make: Make, looking: Any) -> None:
    sink = make(format="hash")
    sink.apply(a_change({"a": (5, "Ann", 1)}, end=5))
    assert looking.hgetall("o:a") == {b"_sequence": b"5", b"name": b"Ann", b"amount": b"1"}

    sink.apply(a_change({"a": (6, None, 2)}, start=5, end=6, batch=1))
    assert looking.hgetall("o:a") == {b"_sequence": b"6", b"amount": b"2"}


@pytest.mark.parametrize("form", ["json", "hash"])
def test_whatever_stands_under_a_key_is_replaced(make: Make, looking: Any, form: str) -> None:
    looking.rpush("o:a", "a list")
    looking.set("o:b", "a text")
    sink = make(format=form)
    sink.apply(a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 2)}, end=6))
    assert sink.digest() == the_digest({"a": 5, "b": 6})


class Overtaken(RedisSink):
    """A sink that sleeps between looking at the mark and EXEC, while another is at work."""

    meanwhile: Callable[[], object]

    def _commands(self, *arguments: Any) -> Iterator[tuple[bytes, int]]:
        self.meanwhile()
        yield from super()._commands(*arguments)


def test_a_zombie_that_wakes_up_in_the_middle_changes_nothing(make: Make, looking: Any) -> None:
    rival, zombie = make(), make(Overtaken)
    assert isinstance(zombie, Overtaken)
    both = a_change({"a": (5, "first", 1)}, end=5)
    later = a_change({"a": (7, "newer", 2)}, start=5, end=7, batch=1)
    zombie.meanwhile = lambda: (rival.apply(both), rival.apply(later))

    assert zombie.apply(a_change({"a": (5, "zombie", 1)}, end=5)).skipped

    assert json.loads(looking.get("o:a"))["name"] == "newer"
    assert rival.digest() == the_digest({"a": 7})


def test_a_batch_that_fails_half_way_leaves_nothing(make: Make, looking: Any) -> None:
    class Crash(BaseException):
        pass

    class Crashing(RedisSink):
        def _commands(self, *arguments: Any) -> Iterator[tuple[bytes, int]]:
            parts = list(super()._commands(*arguments))
            yield parts[0]
            raise Crash

    sink = make(Crashing)
    with pytest.raises(Crash):
        sink.apply(a_change({f"k{n}": (n + 1, "x", n) for n in range(10_000)}, end=10_000))

    assert looking.keys("*") == []
    assert make().open() is None


def test_a_redis_that_is_killed_in_a_batch_has_all_of_it_or_nothing(tmp_path: Path) -> None:
    dice = random.Random(4)
    server = RedisProcess(tmp_path / "redis").start()
    sink = RedisSink("s", PIPELINE, {"url": server.url, "format": "hash", "timeout_s": 10})
    rows, batch, hits, took_s = 10_000, 0, 0, 0.0

    def all_of(batch: int) -> Digest:
        """Every batch has all keys, so that a batch that is there in part shows."""
        return the_digest({f"k{n}": batch * rows + n + 1 for n in range(rows)} if batch >= 0 else {})

    try:
        # How long a batch takes differs tenfold between machines: the first is left alone, to know.
        while hits < 3:
            assert batch < 60, f"of {batch} batches only {hits} were hit, one took {took_s} s"
            change = a_change(
                {f"k{n}": (batch * rows + n + 1, "x", n) for n in range(rows)},
                start=batch * rows,
                end=(batch + 1) * rows,
                batch=batch,
            )
            if batch == 0:
                started = time.monotonic()
                sink.apply(change)
                took_s = time.monotonic() - started
            else:
                killer = threading.Timer(dice.uniform(0, took_s), server.kill)
                killer.start()
                try:
                    sink.apply(change)
                except SinkUnavailable:
                    hits += 1
                killer.join()
                server.start()
                mark = sink.open()
                if mark is None or mark.batch < batch:
                    assert sink.digest() == all_of(batch - 1)
                    assert not sink.apply(change).skipped
                else:
                    assert sink.apply(change).skipped
            assert sink.digest() == all_of(batch)
            batch += 1
    finally:
        sink.close()
        server.close()


def test_digest_and_drop_see_only_the_rows_of_the_prefix(make: Make, looking: Any) -> None:
    looking.set("oo:x", "of another")
    looking.set("other", "of another")
    sink = make(prefix="o[*]?:")
    sink.apply(a_change({"a": (5, "Ann", 1), "b*": (6, "Bob", 2)}, end=6))
    assert sink.digest() == the_digest({"a": 5, "b*": 6})

    sink.reset(drop=True)

    assert sorted(looking.keys("*")) == [b"oo:x", b"other"]
    assert sink.open() is None


@pytest.mark.parametrize("form", ["json", "hash"])
def test_a_strange_key_under_the_prefix_is_named(make: Make, looking: Any, form: str) -> None:
    sink = make(format=form)
    looking.set("o:strange", "42")
    with pytest.raises(SinkRefused, match=r"strange|WRONGTYPE"):
        sink.digest()


def test_a_row_that_was_evicted_is_missed(make: Make, looking: Any) -> None:
    sink = make()
    sink.apply(a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 2)}, end=6))
    looking.delete("o:a")
    assert sink.digest() == the_digest({"b": 6})


def test_a_drop_that_was_interrupted_is_finished_by_the_next_open(make: Make, looking: Any) -> None:
    sink = make()
    sink.apply(a_change({"a": (5, "Ann", 1)}, end=5))
    looking.set(f"tidemark:mark:{PIPELINE}.s:o:", DROPPING)

    assert sink.open() is None
    assert looking.keys("*") == []


def test_a_redis_without_memory_takes_nothing_and_says_so(make: Make, looking: Any) -> None:
    sink = make()
    sink.apply(a_change({"a": (5, "Ann", 1)}, end=5))
    change = a_change({f"k{n}": (n + 6, "x" * 100, n) for n in range(20_000)}, start=5, end=20_005, batch=1)
    looking.config_set("maxmemory", looking.info("memory")["used_memory"] + (1 << 20))
    try:
        with pytest.raises(SinkRefused, match="OOM"):
            sink.apply(change)
        assert sink.digest() == the_digest({"a": 5})
    finally:
        looking.config_set("maxmemory", 0)

    assert sink.apply(change).upserted == 20_000


def test_mode_update_names_rows_by_their_key_columns(make: Make, looking: Any) -> None:
    sink = make(mode="update", key=["country", "status"])
    rows = pa.table({"country": ["de", "fr"], "status": ["open", None], "n": [1, 2]})
    sink.prepare(rows.schema, "update")
    sink.apply(a_result(rows, mode="update", batch=0))
    sink.apply(a_result(rows.set_column(2, "n", pa.array([7, 8])), mode="update", batch=1))
    assert json.loads(looking.get('o:["de","open"]')) == {"country": "de", "status": "open", "n": 7}
    assert json.loads(looking.get('o:["fr",null]'))["n"] == 8
    assert sink.apply(a_result(rows, mode="update", batch=1)).skipped


def test_bad_options_are_refused_before_anything_starts() -> None:
    for options, word in [
        ({"mode": "append"}, "append"),
        ({"format": "xml"}, "json"),
        ({"url": "http://x"}, "redis://"),
        ({"prefx": "o:"}, "did you mean 'prefix'"),
    ]:
        with pytest.raises(OptionError, match=word):
            RedisSink("s", PIPELINE, options)


def test_nobody_there_and_somebody_else_there_are_told_apart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                time.sleep(0.2)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SinkUnavailable, match="not Redis"):
            RedisSink("s", PIPELINE, {"url": f"redis://127.0.0.1:{port}"}).open()
        thread.join()
    with pytest.raises(SinkUnavailable, match="refused"):
        RedisSink("s", PIPELINE, {"url": f"redis://127.0.0.1:{port}"}).open()


def test_a_password_is_asked_for_and_checked(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis", "--requirepass", "secret").start()
    try:
        with pytest.raises(SinkRefused, match="NOAUTH"):
            RedisSink("s", PIPELINE, {"url": server.url}).open()
        with pytest.raises(SinkRefused, match="WRONGPASS"):
            RedisSink("s", PIPELINE, {"url": f"redis://:wrong@127.0.0.1:{server.port}/"}).open()
        sink = RedisSink("s", PIPELINE, {"url": f"redis://:secret@127.0.0.1:{server.port}/3"})
        assert sink.open() is None
        sink.apply(a_change({"a": (5, "Ann", 1)}, end=5))
        with redis.Redis(port=server.port, password="secret", db=3) as looking:
            assert looking.dbsize() == 2
        sink.close()
    finally:
        server.close()


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis", "--cluster-enabled", "yes").start()
    try:
        with pytest.raises(SinkRefused, match="Cluster"):
            RedisSink("s", PIPELINE, {"url": server.url}).open()
    finally:
        server.close()


def test_answers_are_read_whole_however_they_are_cut(server: RedisProcess, looking: Any) -> None:
    link = Link("s", Server.parse(server.url, SinkOptions("s", {})), 10)
    values = [bytes([n % 256]) * n for n in range(0, 100_000, 9_973)]
    for at, value in enumerate(values):
        link.command(b"SET", b"v%d" % at, value)
    assert link.command(b"MGET", *[b"v%d" % at for at in range(len(values))], b"none") == [*values, None]
    link.close()


def test_a_stalled_redis_is_unavailable_and_the_batch_is_applied_once(
    make: Make, server: RedisProcess
) -> None:
    sink = make(timeout_s=1)
    change: Change = a_change({"a": (5, "Ann", 1)}, end=5)
    server.pause()
    try:
        with pytest.raises(SinkUnavailable, match="timed out"):
            sink.apply(change)
    finally:
        server.resume()
    sink.apply(change)
    assert sink.digest() == the_digest({"a": 5})
    assert sink.apply(change).skipped
