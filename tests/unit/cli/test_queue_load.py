"""The load of a cluster of groups, on one broker: what it counts is what happened."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess

from tidemark.cli import CommandError, queue_load
from tidemark.cli.queue_load import GroupLoad, QueueLoad


def test_numbers_are_all_found_again_though_the_broker_is_killed_meanwhile(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    where = f"{broker.address.host}:{broker.address.port}"

    async def killed() -> dict[str, dict[str, int]]:
        load = QueueLoad([where, "127.0.0.1:1"], ["main"])
        running = asyncio.create_task(load.run(0))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        before = load.loads[0].confirmed
        while load.loads[0].confirmed < before + 20:
            await asyncio.sleep(0.02)
        load.over.set()
        return await running

    try:
        [result] = asyncio.run(asyncio.wait_for(killed(), 60)).values()
    finally:
        broker.close()

    assert result["confirmed"] > 20 and (result["missing"], result["wrong"]) == (0, 0)


def test_a_load_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_load, "PATIENCE_S", 0.2)
    began = time.monotonic()
    with pytest.raises(CommandError, match="no front is of use"):
        asyncio.run(QueueLoad(["127.0.0.1:1"], ["main"]).run(5))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("found", "again", "missing", "wrong"),
    [
        ([1, 2, 3], set(), 0, 0),
        ([1, 3], set(), 1, 0),
        ([1, 3, 2], set(), 0, 1),
        ([1, 2, 2, 3], {2}, 0, 0),
        ([1, 2, 2, 3], set(), 0, 1),
        ([1, 2, 3, 4], {4}, 0, 0),
    ],
)
def test_what_is_missing_or_wrong_is_counted(
    found: list[int], again: set[int], missing: int, wrong: int
) -> None:
    result = GroupLoad("main", "q", confirmed=3, again=again, found=found).result()
    assert (result["missing"], result["wrong"]) == (missing, wrong)
