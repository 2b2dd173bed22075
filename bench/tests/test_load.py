"""The load generator notices what a broker does wrong, and says what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.build import BIN, build
from bench.servers import NullBroker, NullDurable
from bench.tests.faulty_broker import Script, confirm, faulty_broker, method


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    build()


@pytest.fixture
def null_port(tmp_path: Path) -> Iterator[int]:
    with NullBroker(tmp_path) as broker:
        yield broker.port


def load(port: int, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(BIN / "load"), "--port", str(port), "--timeout", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (not said["errors"])
    return said


def errors_under(script: Script, *arguments: str) -> str:
    with faulty_broker(script) as port:
        return "; ".join(load(port, "--count", "10", *arguments)["errors"])


def test_a_broker_without_faults_gives_no_errors() -> None:
    with faulty_broker(Script()) as port:
        said = load(port, "--count", "50", "--confirm", "10", "--ack", "manual", "--ack-every", "7")

    assert said["errors"] == []
    assert (said["published"], said["confirmed"], said["consumed"]) == (50, 50, 50)
    assert said["confirm_us"]["count"] == 50


def test_a_lost_message_is_noticed() -> None:
    class Loses(Script):
        def deliveries(self, number: int, content: bytes) -> list[bytes]:
            return [] if number == 10 else super().deliveries(number, content)

    assert "not everything came home: 10 published, 0 confirmed, 9 consumed" in errors_under(Loses())


def test_a_message_out_of_order_is_noticed() -> None:
    class Swaps(Script):
        held = b""

        def deliveries(self, number: int, content: bytes) -> list[bytes]:
            if number == 4:
                self.held = content
                return []
            swapped = [self.deliver(number, self.held)] if number == 5 else []
            return [self.deliver(number, content), *swapped]

    assert "order: sequence 4 of producer 0 came where 3 was due" in errors_under(Swaps())


def test_a_message_that_comes_twice_is_noticed() -> None:
    class Repeats(Script):
        def deliveries(self, number: int, content: bytes) -> list[bytes]:
            return super().deliveries(number, content) * (2 if number == 3 else 1)

    assert "order: sequence 2 of producer 0 came where 3 was due" in errors_under(Repeats())


def test_a_redelivered_flag_is_noticed() -> None:
    class Flags(Script):
        def deliveries(self, number: int, content: bytes) -> list[bytes]:
            return [self.deliver(number, content, redelivered=number == 3)]

    assert "1 messages came with the redelivered flag" in errors_under(Flags())


def test_a_cut_body_is_noticed() -> None:
    class Cuts(Script):
        def deliveries(self, number: int, content: bytes) -> list[bytes]:
            return [self.deliver(number, content.replace(b"\0\0\0\x64", b"\0\0\0\x63", 1))]

    assert "a message of 99 bytes came; all were 100 long" in errors_under(Cuts())


def test_a_confirm_of_a_tag_that_was_never_sent_is_noticed() -> None:
    class Invents(Script):
        def confirms(self, number: int) -> list[bytes]:
            return [confirm(number + 100)]

    assert "the broker confirmed tag" in errors_under(Invents(), "--confirm", "1")


def test_a_confirm_that_comes_twice_is_noticed() -> None:
    class Repeats(Script):
        def confirms(self, number: int) -> list[bytes]:
            return [confirm(number), confirm(number)]

    assert "confirmed tag 1, which is not open" in errors_under(Repeats(), "--confirm", "5")


def test_a_missing_confirm_is_noticed() -> None:
    class Forgets(Script):
        def confirms(self, number: int) -> list[bytes]:
            return [] if number == 4 else [confirm(number)]

    assert "not everything came home: 10 published, 9 confirmed, 10 consumed" in errors_under(
        Forgets(), "--confirm", "20"
    )


def test_confirms_may_come_late_out_of_order_and_for_many() -> None:
    class Shuffles(Script):
        def confirms(self, number: int) -> list[bytes]:
            if number % 5:
                return []
            return [confirm(number - 1), confirm(number - 3), confirm(number, multiple=True)]

    assert errors_under(Shuffles(), "--confirm", "5") == ""


def test_a_nack_is_reported() -> None:
    class Refuses(Script):
        def confirms(self, number: int) -> list[bytes]:
            return [confirm(number, ack=number != 7)]

    assert "1 messages were refused (nack)" in errors_under(Refuses(), "--confirm", "5")


def test_what_the_broker_says_on_closing_is_passed_on() -> None:
    class Closes(Script):
        def deliver(self, *_: object, **__: object) -> bytes:
            text = b"NOT_ALLOWED - no"
            return method(0, 10, 50, b"\x02\x12" + bytes([len(text)]) + text + bytes(4))

    assert "the broker closed the connection: 530 NOT_ALLOWED - no" in errors_under(Closes())


def test_bytes_that_are_not_amqp_are_noticed() -> None:
    class Babbles(Script):
        def deliver(self, *_: object, **__: object) -> bytes:
            return b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5

    assert "not an AMQP frame" in errors_under(Babbles())


class Recording(Script):
    """Remembers what it is told; there is no consumer."""

    def __init__(self) -> None:
        self.heard: list[tuple[tuple[int, ...], bytes]] = []

    def hears(self, which: tuple[int, ...], arguments: bytes) -> None:
        self.heard.append((which, arguments))

    def deliveries(self, number: int, content: bytes) -> list[bytes]:  # noqa: ARG002
        return []

    def arguments(self, *which: int) -> list[bytes]:
        return [arguments for method, arguments in self.heard if method == which]


PUBLISH, DECLARE, DELETE = (60, 40), (50, 10), (50, 40)


EXISTING = ("--publish-only", "--existing", "--confirm", "10")


def test_messages_to_an_exchange_have_keys_that_differ() -> None:
    script = Recording()

    errors_under(script, *EXISTING, "--keyed", "--producers", "2", "--prefix", "x")

    published = script.arguments(*PUBLISH)
    assert len(published) == len({*published}) == 10
    assert all(each.startswith(b"\x00\x00\x01x\x08") for each in published)


def test_queues_that_exist_are_asked_for_their_lengths_and_neither_made_nor_deleted() -> None:
    script = Recording()

    assert errors_under(script, *EXISTING) == "0 messages are queued where 10 were due"

    passive = {arguments[-5] for arguments in script.arguments(*DECLARE)}
    assert passive == {1}
    assert script.arguments(*DELETE) == []


def test_producers_of_a_queue_are_spread_over_the_ports() -> None:
    one, other = Recording(), Recording()
    with faulty_broker(one) as first, faulty_broker(other) as second:
        words = (*EXISTING, "--count", "40", "--producers", "4", "--queues", "2")
        subprocess.run([str(BIN / "load"), "--port", f"{first},{second}", *words], capture_output=True)

    for script in (one, other):
        assert {key[3:-1] for key in script.arguments(*PUBLISH)} == {b"\x07bench-0", b"\x07bench-1"}


def test_cpu_is_told_for_each_process_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with NullBroker(tmp_path) as broker:
        pids = f"{os.getpid()},{broker.pid}"
        said = load(broker.port, "--pids", pids, "--count", "500000")

    own, others = said["cpu_s_by_process"]
    assert own < others
    assert own + others == pytest.approx(said["broker_cpu_s"], abs=0.011)


def test_a_paced_run_keeps_its_rate_and_measures_every_message(null_port: int) -> None:
    said = load(null_port, "--rate", "2000", "--seconds", "1", "--warmup", "0.2")

    assert said["errors"] == []
    assert said["published"] == pytest.approx(2400, abs=60)
    latency = said["end_to_end_us"]
    assert latency["count"] == pytest.approx(2000, abs=60)
    assert 0 < latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"]


@pytest.mark.parametrize("size", [16, 1024, 300_000])
def test_every_size_comes_through_the_null_broker(null_port: int, size: int) -> None:
    said = load(null_port, "--size", str(size), "--count", "500")

    assert said["errors"] == []
    assert said["consumed"] == 500


@pytest.mark.parametrize("window", [1, 100])
def test_the_null_broker_with_a_disk_confirms_what_it_has_delivered_and_written(
    tmp_path: Path, window: int
) -> None:
    with NullDurable(tmp_path) as broker:
        said = load(
            broker.port, "--count", "300", "--confirm", str(window), "--ack", "manual", "--ack-every", "1"
        )
        written = (tmp_path / "null.bin").read_bytes().rstrip(b"\0")

    assert said["errors"] == []
    assert (said["confirmed"], said["consumed"]) == (300, 300)
    assert len(written) > 300 * 100


def test_the_null_broker_without_a_disk_promises_nothing(null_port: int) -> None:
    assert load(null_port, "--count", "1", "--confirm", "1")["errors"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--size", "15"], "--size must be a number from 16"),
        (["--count", "1", "--seconds", "1"], "exclude each other"),
        (["--ack", "manual", "--prefetch", "10", "--ack-every", "11"], "would wait for ever"),
        (["--queues", "2", "--consumers", "2"], "every queue needs a producer"),
        (["--ack", "perhaps"], "--ack is manual or auto"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], sentence: str) -> None:
    done = subprocess.run([str(BIN / "load"), *arguments], capture_output=True, text=True)

    assert done.returncode == 2
    assert sentence in done.stderr
