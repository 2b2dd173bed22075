"""What sinks hold, read by means of our own and not by the product's.

Each reader shows the mark and the rows of one moment: in one transaction, in one script, or by looking at the mark
before and after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import redis
from spark.crash.model import Held, Seen

from tidemark.client import Client

ALL_AT_ONCE = """
local names = redis.call('KEYS', ARGV[1])
local found = {redis.call('GET', KEYS[1])}
for _, name in ipairs(names) do
  table.insert(found, name)
  table.insert(found, redis.call('GET', name))
end
return found
"""


def seen(sink: str, mark: str | bytes | None, rows: dict[str, Held]) -> Seen:
    if mark is None:
        assert not rows, f"sink {sink} holds rows and no mark"
        return Seen(sink, 0, True, rows)
    facts = json.loads(mark)
    [shards] = facts["position"].values()
    [sequence] = {sequence for _, sequence in shards.values()}
    return Seen(sink, sequence, facts["boundary"], rows)


def postgres(url: str, sink: str) -> Seen:
    with psycopg.connect(url, connect_timeout=10) as db, db.cursor() as ask:
        ask.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ask.execute("SELECT to_regclass('tidemark_marks') IS NOT NULL")
        found = ask.fetchone()
        mark = None
        if found and found[0]:
            ask.execute("SELECT mark FROM tidemark_marks WHERE sink = %s", (sink,))
            row = ask.fetchone()
            mark = row[0] if row else None
        ask.execute("SELECT key, _sequence, customer, number FROM orders")
        return seen(sink, mark, {key: Held(*rest) for key, *rest in ask.fetchall()})


def postgres_puts(url: str) -> list[tuple[str, int]]:
    """Every row that was ever put, by a trigger of the table."""
    with psycopg.connect(url, connect_timeout=10) as db, db.cursor() as ask:
        ask.execute("SELECT key, sequence FROM audit")
        return [(key, sequence) for key, sequence in ask.fetchall()]


POSTGRES_SETUP = """
CREATE TABLE orders (key text COLLATE "C" PRIMARY KEY, _sequence bigint, customer text, number bigint);
CREATE TABLE audit (key text, sequence bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN INSERT INTO audit VALUES (NEW.key, NEW._sequence); RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note();
"""


def redis_cache(url: str, sink: str, mark: str, prefix: str) -> Seen:
    with redis.Redis.from_url(url, socket_timeout=20) as db:
        found: Any = db.eval(ALL_AT_ONCE, 1, mark, f"{prefix}*")
    rows = {}
    for name, value in zip(found[1::2], found[2::2], strict=True):
        facts = json.loads(value)
        rows[name.decode().removeprefix(prefix)] = Held(
            facts["_sequence"], facts["customer"], facts["number"]
        )
    return seen(sink, found[0] or None, rows)


def redis_puts(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Every row that was ever put: Redis keeps all commands in its append-only file."""
    for file in sorted(folder.glob("appendonlydir/*.incr.aof")):
        for words in commands(file.read_bytes()):
            if words[0].upper() == b"MSET":
                for name, value in zip(words[1::2], words[2::2], strict=True):
                    yield name.decode().removeprefix(prefix), json.loads(value)["_sequence"]


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file, as far as they are whole."""
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"#":  # a remark, such as the time
            at = data.index(b"\r\n", at) + 2
            continue
        end = data.index(b"\r\n", at)
        count, at = int(data[at + 1 : end]), end + 2
        words = []
        for _ in range(count):
            end = data.index(b"\r\n", at)
            size = int(data[at + 1 : end])
            words.append(data[end + 2 : end + 2 + size])
            at = end + 4 + size
        yield words


def warehouse(path: Path, sink: str) -> Seen:
    """A DuckDB file; nobody may have it open."""
    if not path.exists():
        return Seen(sink, 0, True, {})
    with duckdb.connect(str(path), read_only=True) as db:
        tables = {name for (name,) in db.sql("SELECT table_name FROM duckdb_tables()").fetchall()}
        if "tidemark_marks" not in tables:
            return Seen(sink, 0, True, {})
        marks = db.execute("SELECT mark FROM tidemark_marks WHERE sink = ?", [sink]).fetchall()
        rows = (
            db.sql("SELECT key, _sequence, customer, number FROM orders").fetchall()
            if "orders" in tables
            else []
        )
    assert len({row[0] for row in rows}) == len(rows), "DuckDB holds a key twice"
    return seen(sink, marks[0][0] if marks else None, {key: Held(*rest) for key, *rest in rows})


def copied(db: Client, sink: str, stream: str, mark: str) -> Seen:
    """Another stream; its mark is a row of a stream beside it."""
    names = {one.name for one in db.streams()}
    if stream not in names or "tidemark.pipeline.marks" not in names:
        return Seen(sink, 0, True, {})
    marks = db.stream("tidemark.pipeline.marks")
    while True:
        before = marks.get(mark)
        rows = {}
        for row in db.stream(stream).snapshot():
            if not row.deleted:
                assert row.key is not None
                facts = json.loads(row.value)
                rows[row.key.decode()] = Held(facts["_sequence"], facts["customer"], facts["number"])
        if marks.get(mark) == before:
            return seen(sink, before.value if before else None, rows)
