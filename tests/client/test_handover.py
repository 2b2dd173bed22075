"""How a subscription of several partitions ends: with followers that are scripted, so that each order of events can be forced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidemark.client import Client, partitioned_aio
from tidemark.client.partitioned_aio import AsyncPartitionedFollower


class Scripted:
    """A follower whose frames are given; then it waits, or fails as soon as the test lets it. Moving a mark takes a while."""

    def __init__(self, *frames: str, error: Exception | None = None) -> None:
        self.marked: list[str] = []
        self.next_frame: Any = None
        self.fails = asyncio.Event()
        self.moved = asyncio.Event()
        self.moved.set()
        self._frames = list(frames)
        self._error = error
        self._iterating: Any = None

    async def next(self, _pending: object, _deadline: float | None) -> str:
        """What a connection has next."""
        if self._frames:
            return self._frames.pop(0)
        await self.fails.wait()
        assert self._error is not None
        raise self._error

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._iterating.aclose()

    def __aiter__(self) -> AsyncIterator[str]:
        self._iterating = self._run()
        return self._iterating

    async def _run(self) -> Any:
        while (frame := await self.next_frame(self, None)) is not None:
            yield frame
            await asyncio.sleep(0)
            await self.moved.wait()
            self.marked.append(frame)


async def left_after(count: int, *followers: Scripted) -> list[int]:
    """Whose batches the loop has had; it is left with the last of so many."""
    found: list[int] = []
    async with AsyncPartitionedFollower(followers, None) as batches:  # type: ignore[arg-type]
        async for number, _ in batches:
            found.append(number)
            if len(found) == count:
                break
    return found


def test_a_batch_that_is_finished_moves_its_mark_though_the_loop_is_left_with_the_next() -> None:
    async def run() -> None:
        first, second = Scripted("a", "b"), Scripted("c")
        assert await left_after(2, first, second) == [0, 1]
        assert (first.marked, second.marked) == (["a"], [])

    asyncio.run(run())


def test_a_batch_that_is_finished_moves_its_mark_though_another_partition_fails() -> None:
    async def loop(first: Scripted, second: Scripted) -> None:
        async with AsyncPartitionedFollower([first, second], None) as batches:  # type: ignore[list-item]
            async for _ in batches:
                second.fails.set()
                await asyncio.sleep(0.01)

    async def run() -> None:
        first, second = Scripted("a"), Scripted(error=RuntimeError("theirs"))
        with pytest.raises(RuntimeError, match="theirs"):
            await loop(first, second)
        assert first.marked == ["a"]

    asyncio.run(run())


def test_the_end_does_not_wait_for_ever_for_a_mark_that_does_not_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitioned_aio, "STOP_S_MAX", 0.05)

    async def run() -> None:
        first, second = Scripted("a"), Scripted("c")
        first.moved.clear()
        async with asyncio.timeout(5):
            await left_after(2, first, second)
        assert first.marked == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_threads_that_were_started_end_when_another_one_cannot_be(
    db: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = db.partitioned(name, create=3)
    start = threading.Thread.start

    def refuse_the_last(thread: threading.Thread) -> None:
        if thread.name == "tidemark-follow-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_the_last)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(iter(orders.follow("loader")))

    assert not [one.name for one in threading.enumerate() if one.name.startswith("tidemark-follow")]
