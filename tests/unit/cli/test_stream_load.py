"""The load of a cluster of one group, on one broker: what it counts is what happened, and it ends when it is asked."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess

from tidemark.cli import CommandError, load, stream_load
from tidemark.cli.load import Result, progress
from tidemark.cli.stream_load import StreamLoad


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    process.close()


class Running(threading.Thread):
    """A load that is to end when it is asked."""

    def __init__(self, made: StreamLoad, seconds: float = 0) -> None:
        super().__init__(daemon=True)
        self._made = made
        self._seconds = seconds
        self.start()

    def run(self) -> None:
        self.result = self._made.run(self._seconds)

    def end(self, within_s: float) -> Result:
        began = time.monotonic()
        self._made.ending.ask()
        self.join(within_s)
        assert not self.is_alive(), f"it goes on after {time.monotonic() - began:.1f} s"
        return self.result


def url(broker: BrokerProcess) -> str:
    return broker.address.url().replace("amqp://", "tidemark://")


def eventually(true: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_numbers_are_all_found_again(own: BrokerProcess) -> None:
    made = StreamLoad(url(own), "numbers")
    running = Running(made)
    eventually(lambda: made.confirmed > 20)

    result = running.end(10)

    assert result.good and result.confirmed > 20


def test_a_load_has_a_line_a_second_also_while_it_stands_still(
    own: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    made = StreamLoad(url(own), "numbers", quiet=False)
    running = Running(made)
    eventually(lambda: made.confirmed > 20)
    own.kill()
    stood = time.monotonic()
    eventually(lambda: time.monotonic() - stood > 2.3)
    own.start()
    before = made.confirmed
    eventually(lambda: made.confirmed > before + 20)
    result = running.end(10)

    assert result.good and result.longest_gap_ms > 2000
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3 and all(" s  confirmed " in line for line in lines), lines
    assert any(" waiting " in line for line in lines), lines


def test_a_load_that_waits_for_a_first_answer_says_so_and_ends_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = StreamLoad(f"tidemark://127.0.0.1:{silent.getsockname()[1]}/", "numbers")
        running = Running(made)
        time.sleep(1.5)
        result = running.end(1)

    assert result.confirmed == 0 and result.missing is None
    assert re.search(r"waiting 1\.\d s for a member that takes a connection", capsys.readouterr().err)


@pytest.mark.parametrize("times", [1, 2])
def test_a_load_that_is_to_end_while_nobody_answers_ends_without_reading_back(
    own: BrokerProcess, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Asked once it waits for as long as a takeover takes, asked twice it does not."""
    monkeypatch.setattr(load, "GRACE_S", 0.5 if times == 1 else 60)
    made = StreamLoad(url(own), "numbers")
    running = Running(made)
    eventually(lambda: made.confirmed > 0)
    own.kill()
    for _ in range(times - 1):
        made.ending.ask()

    result = running.end(5)

    assert result.confirmed and result.missing is None is result.wrong


def test_a_load_that_is_to_end_and_cannot_read_back_what_is_confirmed_ends(
    own: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last number is confirmed, and then the broker is gone."""
    monkeypatch.setattr(load, "GRACE_S", 0.5)
    made = StreamLoad(url(own), "numbers")
    running = Running(made)
    eventually(lambda: made.confirmed > 0)
    own.pause()
    try:
        made._doing, made._heard_s = "reading", time.monotonic()
        result = running.end(5)
    finally:
        own.resume()

    assert result.confirmed and result.missing is None


def test_a_load_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_load, "PATIENCE_S", 0.2)
    with pytest.raises(CommandError, match=r"no broker answers .* 0 numbers are confirmed"):
        StreamLoad("tidemark://127.0.0.1:1/", "numbers").run(5)


def test_a_wait_that_goes_on_is_told_and_not_the_longest_before_it() -> None:
    assert progress(12, 0.5, 0.1).split() == ["confirmed", "12", "longest", "wait", "500", "ms"]
    assert progress(12, 0.1, 0.5).split() == ["confirmed", "12", "longest", "wait", "500", "ms"]
    assert progress(12, 0.5, 1.34).split() == ["confirmed", "12", "waiting", "1.3", "s"]
    assert len(progress(12, 0.5, 0.1)) == len(progress(12, 0.5, 1.34))
