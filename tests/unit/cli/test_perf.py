"""`tidemark perf` notices what a broker does wrong: each kind of mistake, made on purpose, is in its summary."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Api
from helpers.broker import BrokerProcess
from hypothesis import given
from hypothesis import strategies as st

from bench.tests.faulty_broker import Script, confirm, faulty_broker
from tidemark.cli import main
from tidemark.cli.perf.tally import Book, Latencies
from tidemark.cli.perf.wire import BATCH, STAMP, Form, Login, Publisher

COUNT = 300


def summary_of(
    script: Script, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> dict[str, Any]:
    """What it says about a run of 300 messages against this broker."""
    with faulty_broker(script) as port:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        options = ["--json", "--count", str(COUNT), "--drain", "0.5", "--url", url]
        assert main(["perf", *options, *words]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("size", ["22", "4000", "300000"])
def test_a_broker_without_faults_is_given_a_clean_bill(capsys: pytest.CaptureFixture[str], size: str) -> None:
    words = ("--size", size, "--count", "20") if size == "300000" else ("--size", size)
    found = summary_of(Script(), capsys, *words)
    assert (
        found["published"] == found["confirmed"] == found["consumed"] == (20 if size == "300000" else COUNT)
    )
    assert (found["lost"], found["duplicates"], found["unconfirmed"]) == (0, 0, 0)
    assert found["confirm_ms"]["p50"] > 0 and found["deliver_ms"]["max"] > 0


class Loses(Script):
    def deliveries(self, number: int, content: bytes) -> list[bytes]:
        return [] if number == 7 else super().deliveries(number, content)


class Repeats(Script):
    def deliveries(self, number: int, content: bytes) -> list[bytes]:
        return super().deliveries(number, content) * (2 if number == 7 else 1)


class Refuses(Script):
    def confirms(self, number: int) -> list[bytes]:
        return [confirm(number, ack=number != 7)]


class Forgets(Script):
    def confirms(self, number: int) -> list[bytes]:
        return [] if number == COUNT else super().confirms(number)


class MarksAgain(Script):
    def deliver(self, tag: int, content: bytes, *, redelivered: bool = False) -> bytes:
        return super().deliver(tag, content, redelivered=tag == 7)


@pytest.mark.parametrize(
    ("script", "name", "code"),
    [
        (Loses(), "lost", 1),
        (Repeats(), "duplicates", 1),
        (Refuses(), "refused", 1),
        (Forgets(), "unconfirmed", 1),
        (MarksAgain(), "redelivered", 0),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Script) else None,
)
def test_a_single_mistake_among_hundreds_is_counted(
    capsys: pytest.CaptureFixture[str], script: Script, name: str, code: int
) -> None:
    found = summary_of(script, capsys, code=code)
    wrong = {key for key in ("lost", "duplicates", "refused", "unconfirmed", "redelivered") if found[key]}
    assert (wrong, found[name]) == ({name}, 1)


class InAnyOrder(Script):
    """Confirms in handfuls, the last ones first."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def confirms(self, number: int) -> list[bytes]:
        self.kept.append(number)
        if len(self.kept) < 20 and number < COUNT:
            return []
        told, self.kept = [confirm(one) for one in reversed(self.kept)], []
        return told


class InBulk(Script):
    def confirms(self, number: int) -> list[bytes]:
        return [confirm(number, multiple=True)] if number % 50 == 0 else []


@pytest.mark.parametrize("script", [InAnyOrder(), InBulk()], ids=["out of order", "in bulk"])
def test_confirms_count_in_whatever_way_they_come(capsys: pytest.CaptureFixture[str], script: Script) -> None:
    found = summary_of(script, capsys)
    assert (found["confirmed"], found["unconfirmed"], found["lost"]) == (COUNT, 0, 0)


def test_nobody_there_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--url", "amqp://127.0.0.1:1/", "--json"]) == 3
    assert "is the broker running?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "http://127.0.0.1"], "is not a URL such as amqp://"),
        (["-x", "0", "-y", "0"], "nothing to do"),
        (["--type", "quorum", "--transient"], "always durable"),
        (["--type", "stream", "--no-ack"], "with acknowledgements"),
        (["--arguments", "[]"], "must be a JSON object"),
        (["--size", "3"], "--size"),
    ],
)
def test_a_call_that_makes_no_sense_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["perf", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_login_that_is_refused_is_told(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{broker.address.host}:{broker.address.port}"
    assert main(["perf", "--url", f"amqp://guest:wrong@{place}/%2F"]) == 3
    assert "the broker refused: 403" in capsys.readouterr().err
    assert main(["perf", "--url", f"amqp://{place}/nowhere"]) == 3
    assert "the broker refused: 530" in capsys.readouterr().err


# A publisher and its window ---------------------------------------------------------------------------------


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def a_publisher(window: int, count: int) -> tuple[Publisher, Wire]:
    form = Form("", "q", 64, persistent=True)
    publisher, wire = Publisher(Login("u", "p", "/"), 1, 0, form, window=window, rate=0), Wire()
    publisher.transport = wire  # type: ignore[assignment]
    publisher.count_max, publisher.active = count, True
    publisher._prepare()
    return publisher, wire


@given(st.integers(1, 40), st.integers(0, 120), st.randoms(use_true_random=False))
def test_the_window_is_never_passed_and_every_message_is_sent_once(
    window: int, count: int, dice: random.Random
) -> None:
    publisher, wire = a_publisher(window, count)
    publisher.pump()
    unconfirmed: list[int] = []
    told = 0
    while not (publisher.finished and publisher.outstanding == 0):
        unconfirmed += range(told + 1, publisher.published + 1)
        told = publisher.published
        assert publisher.outstanding <= window
        if dice.random() < 0.3:
            tag = dice.choice(unconfirmed)
            publisher.data_received(confirm(tag, multiple=True))
            unconfirmed = [one for one in unconfirmed if one > tag]
        else:
            tag = dice.choice(unconfirmed)
            publisher.data_received(confirm(tag))
            unconfirmed.remove(tag)
        assert publisher.outstanding >= len(unconfirmed)

    numbers = [STAMP.unpack_from(b"".join(wire.written), at)[2] for at in _stamps(b"".join(wire.written))]
    assert numbers == list(range(1, count + 1))
    assert list(publisher.confirmed_numbers()) == numbers
    assert publisher.latencies.count == count


def _stamps(data: bytes) -> list[int]:
    """Where the stamps are: behind the head of every body frame."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7], "big")
        if data[at] == 3:
            found.append(at + 7)
        at += 8 + size
    return found


def test_messages_are_handed_over_many_at_a_time() -> None:
    publisher, wire = a_publisher(window=1000, count=1000)
    publisher.pump()
    assert len(wire.written) == -(-1000 // BATCH)


# What is noted -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_right_to_a_few_percent(values: list[int], share: float) -> None:
    noted = Latencies()
    for value in values:
        noted.add(value)
    exact = sorted(values)[max(0, -(-int(share * len(values) * 1000) // 1000) - 1)]
    found = noted.at(share)
    assert found is not None
    assert noted.at(1) == pytest.approx(max(values) / 1000, rel=0.04, abs=0.001)
    assert found * 1000 >= exact * 0.96 - 1
    assert noted.count == len(values)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000))))
def test_a_book_knows_what_it_has_seen(notes: list[tuple[int, int]]) -> None:
    book = Book()
    for publisher, number in notes:
        book.note(publisher, number)
    assert book.count == len(set(notes))
    assert book.duplicates == len(notes) - len(set(notes))
    for publisher in range(5):
        seen = {number for one, number in notes if one == publisher}
        assert book.missing(publisher, range(1, 5001)) == 5000 - len(seen)


def test_a_broker_that_dies_in_the_middle_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = BrokerProcess(tmp_path / "data").start()

    def kill_under_load() -> None:
        api = Api(victim.admin)
        while not api.get("/overview")["message_stats"].get("publish"):
            time.sleep(0.05)
        victim.kill()

    killer = threading.Thread(target=kill_under_load)
    killer.start()
    try:
        assert main(["perf", "--url", victim.address.url(), "--seconds", "20"]) == 3
        assert "closed the connection" in capsys.readouterr().err
    finally:
        killer.join()
        victim.close()
