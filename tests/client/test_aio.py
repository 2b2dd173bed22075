"""The asyncio client against a peer that misbehaves on purpose. What both clients share is in `test_blocking`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from client.frames import data, marker
from client.peer import HISTORY, Asked, Hangup, Peer, Script, silent
from client.test_blocking import ROWS, followed, snapshots, stored

from tidemark.client import (
    ClientClosed,
    Interrupted,
    MarkerMismatch,
    NotConnected,
    RequestTooLarge,
    StreamReset,
    TimedOut,
    Unconfirmed,
    connect_async,
)
from tidemark.client.aio import AsyncStream
from tidemark.errors import LoginRefused
from tidemark.wire.stream.frames import Kind

Start = Callable[[Script], Peer]


def test_a_put_whose_answer_is_lost_is_unconfirmed_and_a_read_is_asked_again(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.connection < 3:
            raise Hangup
        asked.answer({"name": "s", "live": 4})

    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db:
            with pytest.raises(Unconfirmed, match="may or may not be stored"):
                await AsyncStream(db, "s").put("k", b"v")
            assert (await AsyncStream(db, "s").info()).live == 4

    broker = peer(script)
    asyncio.run(story())
    assert broker.ops() == ["put", "info", "info"]


def test_puts_of_many_tasks_share_the_connection_in_the_order_sent(peer: Start) -> None:
    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db:
            stream = AsyncStream(db, "s")
            receipts = await asyncio.gather(*(stream.put(str(n), b"v") for n in range(50)))
            assert len(receipts) == 50

    broker = peer(stored)
    asyncio.run(story())
    assert broker.connections == 1
    assert [one.payload[8:10].rstrip(b"\0") for one in broker.asked if one.op == "put"] == [
        str(n).encode() for n in range(50)
    ]


def test_a_producer_sends_again_under_its_number_also_after_a_cancelled_wait(peer: Start) -> None:
    def script(asked: Asked) -> None:
        match asked.op, asked.header.get("sequence"), asked.connection:
            case "producer", _, _:
                asked.answer({"last": 4})
            case "put", 5, 1:
                raise Hangup
            case "put", 6, _ if len([one for one in broker.asked if one.header.get("sequence") == 6]) == 1:
                pass  # no answer: the caller gives up
            case _:
                stored(asked)

    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db, db.producer("p") as producer:
            await producer.put("s", "a", b"1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await producer.put("s", "b", b"2")
            await producer.put("s", "c", b"3")

    broker = peer(script)
    asyncio.run(story())
    assert [one.header["sequence"] for one in broker.asked if one.op == "put"] == [5, 5, 6, 6, 7]


def test_a_transaction_is_sent_when_its_block_ends_well(peer: Start) -> None:
    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db:
            async with db.transaction() as tx:
                tx.put("a", "k", b"v")
            assert tx.receipt is not None and tx.receipt.sequence == 1
            unfinished = db.transaction()
            unfinished.put("a", "k", b"never sent")
            await unfinished.__aexit__(RuntimeError, RuntimeError(), None)

    broker = peer(stored)
    asyncio.run(story())
    assert broker.ops() == ["commit"]


def test_logins_time_and_absence_are_told_apart(peer: Start) -> None:
    def refusing(asked: Asked) -> None:
        asked.say(Kind.GOODBYE, 0, {"error": LoginRefused.code, "message": "the login was refused"})
        raise Hangup

    refusing.greets = True  # type: ignore[attr-defined]

    async def story() -> None:
        with pytest.raises(LoginRefused):
            await connect_async(peer(refusing).url, timeout=5)
        with pytest.raises(NotConnected, match="is it running"):
            await connect_async("tidemark://127.0.0.1:1", timeout=0.3)
        async with connect_async(peer(silent).url, timeout=0.2) as db:
            with pytest.raises(TimedOut):
                await AsyncStream(db, "s").info()
            with pytest.raises(Unconfirmed, match="no answer"):
                await AsyncStream(db, "s").put("k", b"v")
        with pytest.raises(ClientClosed):
            await db.streams()

    asyncio.run(story())


def test_a_snapshot_is_read_verified_and_closed(peer: Start) -> None:
    def read(asked: Asked) -> None:
        asked.data(*data(ROWS[:2]))
        asked.data(*data(ROWS[2:]))
        asked.answer({"marker": marker(ROWS)})

    async def story() -> None:
        async with (
            connect_async(broker.url, timeout=5) as db,
            AsyncStream(db, "s").snapshot() as snapshot,
        ):
            assert [row.sequence async for row in snapshot] == [3, 5, 6]
            assert snapshot.marker is not None and snapshot.marker.verified

    broker = peer(snapshots(read))
    asyncio.run(story())
    assert broker.asked[-1].header == {"op": "close", "snapshot": 1}


def test_snapshots_of_tasks_that_were_cancelled_are_closed(peer: Start) -> None:
    """Whether the answer comes before the task is cancelled, or after, or before it runs again."""
    opened: list[int] = []

    def script(asked: Asked) -> None:
        if asked.op == "snapshot":
            opened.append(len(opened) + 1)
            asked.answer({"snapshot": opened[-1], "history": HISTORY, "to": 6})
        elif asked.op == "info":
            asked.answer({"name": "s"})
        else:
            asked.answer()

    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db:
            stream = AsyncStream(db, "s")
            for turn in range(30):
                task = asyncio.ensure_future(stream.snapshot().__aenter__())
                for _ in range(1 + turn % 4):
                    await asyncio.sleep(0.001)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                del task
            gc.collect()
            for _ in range(3):
                await stream.info()

    broker = peer(script)
    asyncio.run(story())
    closed = [one.header["snapshot"] for one in broker.asked if one.op == "close"]
    assert opened and sorted(closed) == opened


def test_a_producer_goes_on_after_a_write_that_cannot_be_sent_at_all(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "producer":
            asked.answer({"last": 0})
        else:
            stored(asked)

    async def story() -> None:
        async with connect_async(broker.url, timeout=5) as db, db.producer("p") as producer:
            with pytest.raises(RequestTooLarge, match="put it in parts"):
                await producer.put("s", "k", bytes(2 << 20))
            await producer.put("s", "k", b"v")

    broker = peer(script)
    asyncio.run(story())
    assert [one.header["sequence"] for one in broker.asked if one.op == "put"] == [2]


def test_a_wrong_marker_and_a_broken_read_are_errors(peer: Start) -> None:
    def wrong(asked: Asked) -> None:
        asked.data(*data(ROWS))
        asked.answer({"marker": marker(ROWS, hash="1" * 32)})

    def broken(asked: Asked) -> None:
        asked.data(*data(ROWS[:2]))
        raise Hangup

    async def read(read: Callable[[Asked], None]) -> list[Any]:
        async with connect_async(peer(snapshots(read)).url, timeout=5) as db:
            return [row async for row in await AsyncStream(db, "s").snapshot()]

    with pytest.raises(MarkerMismatch):
        asyncio.run(read(wrong))
    with pytest.raises(Interrupted, match="all up to sequence 5 came"):
        asyncio.run(read(broken))


@pytest.mark.parametrize(("commit", "marks"), [("boundary", [5]), ("each", [5, 6]), (None, [])])
def test_the_mark_moves_as_the_consumer_chose(peer: Start, commit: Any, marks: list[int]) -> None:
    rest: list[Asked] = []

    async def story() -> None:
        async with (
            connect_async(peer(followed(rest)).url, timeout=5) as db,
            AsyncStream(db, "s").follow("loader", commit=commit, idle=0.3) as batches,
        ):
            async for _ in batches:
                await asyncio.sleep(0.02)

    asyncio.run(story())
    assert sorted({one.header["sequence"] for one in rest if one.op == "mark"}) == marks


def test_leaving_the_loop_stores_what_was_finished(peer: Start) -> None:
    rest: list[Asked] = []

    async def story() -> None:
        async with (
            connect_async(peer(followed(rest)).url, timeout=5) as db,
            AsyncStream(db, "s").follow("loader") as batches,
        ):
            async for batch in batches:
                if batch.position == 6:
                    break

    asyncio.run(story())
    assert [one.header["sequence"] for one in rest if one.op == "mark"] == [5]


def test_a_subscription_survives_a_broken_connection_and_a_reset(peer: Start) -> None:
    def script(asked: Asked) -> None:
        match asked.op, asked.connection:
            case "follow", 1:
                asked.data({"history": HISTORY, "after": 0})
                asked.data(*data(ROWS[:2]))
                raise Hangup
            case "follow", _ if asked.header["from"] != "first":
                asked.refuse(StreamReset.code, stream="s", seq=5, purged=9, reason="")
            case "follow", _:
                asked.data(*data(ROWS))
            case _:
                asked.answer()

    async def story() -> list[tuple[bool, int]]:
        async with connect_async(peer(script).url, timeout=5) as db:
            follower = AsyncStream(db, "s").follow(idle=0.3, on_reset="restart")
            return [(batch.reset, len(batch)) async for batch in follower]

    assert asyncio.run(story()) == [(False, 2), (True, 0), (False, 3)]


def test_a_waiting_task_does_not_stop_the_loop(peer: Start) -> None:
    async def story() -> None:
        async with connect_async(peer(silent).url, timeout=0.3) as db:
            began, turns = time.monotonic(), 0
            waiting = asyncio.create_task(AsyncStream(db, "s").info())
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert turns > 5 and time.monotonic() - began < 3
            with pytest.raises(TimedOut):
                await waiting

    asyncio.run(story())
