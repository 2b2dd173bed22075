"""The load of a cluster of groups, on one broker: what it counts is what happened."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess

from tidemark.cli import CommandError, load, queue_load
from tidemark.cli.load import Result
from tidemark.cli.queue_load import GroupLoad, QueueLoad


def test_numbers_are_all_found_again_though_the_broker_is_killed_meanwhile(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    where = f"{broker.address.host}:{broker.address.port}"

    async def killed() -> dict[str, Result]:
        queues = QueueLoad([where, "127.0.0.1:1"], ["main"])
        running = asyncio.create_task(queues.run(0))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        before = queues.loads[0].confirmed
        while queues.loads[0].confirmed < before + 20:
            await asyncio.sleep(0.02)
        queues.over.set()
        return await running

    try:
        [result] = asyncio.run(asyncio.wait_for(killed(), 60)).values()
    finally:
        broker.close()

    assert result.confirmed > 20 and result.good


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
    assert (result.missing, result.wrong) == (missing, wrong)


@pytest.mark.parametrize("hopeless", [False, True])
def test_a_load_that_is_to_end_while_nobody_answers_ends_without_reading_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hopeless: bool
) -> None:
    """At once if nothing runs; else after the time of a takeover, or when it is asked again."""
    broker = BrokerProcess(tmp_path / "data").start()
    monkeypatch.setattr(load, "GRACE_S", 0.2)
    where = f"{broker.address.host}:{broker.address.port}"

    async def ended() -> dict[str, Result]:
        queues = QueueLoad([where], ["main"], hopeless=lambda: hopeless)
        running = asyncio.create_task(queues.run(0))
        while not queues.loads[0].confirmed:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(broker.kill)
        queues.ending.ask()
        return await asyncio.wait_for(running, 5)

    try:
        [result] = asyncio.run(ended()).values()
    finally:
        broker.close()

    assert result.confirmed and result.missing is None is result.wrong and not result.good


def test_each_second_has_a_line_that_says_which_wait_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(queue_load, "PATIENCE_S", 2.5)

    with pytest.raises(CommandError):
        asyncio.run(QueueLoad(["127.0.0.1:1"], ["main"], quiet=False).run(5))

    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert [line[2:6] for line in words] == [["main:", "confirmed", "0", "waiting"]] * 2
    assert [int(float(line[6])) for line in words] == [1, 2]
