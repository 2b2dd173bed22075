"""`tidemark top`: printed once without a terminal, live in one, sorted by keys."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.amqp import eventually
from rich.console import Console

from tidemark.cli.top import Order, View, draw, ordered, plain

Run = Callable[..., str]
SOURCE = Path(__file__).resolve().parents[3] / "src"


def a_queue(name: str, **facts: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": name, "in/s": 0.0, "out/s": 0.0, **facts}


def a_view(*queues: dict[str, Any], **overview: Any) -> View:
    rates = dict.fromkeys(("publish", "confirm", "deliver_get", "ack", "redeliver"), 0.0)
    return View(0.0, {"node": "n", "product_version": "1", **overview}, {}, list(queues), [], [], rates)


def test_queues_are_sorted_by_what_is_asked_for_the_largest_first() -> None:
    busy = a_queue("busy", **{"in/s": 5.0}, messages=1, messages_unacknowledged=0, consumers=0)
    long = a_queue("long", messages=9, messages_unacknowledged=0, consumers=1)
    held = a_queue("held", messages=2, messages_unacknowledged=2, consumers=0)

    def first(order: Order) -> str:
        return str(ordered([busy, long, held], order)[0]["name"])

    assert {order: first(order) for order in Order} == {
        Order.rate: "busy",
        Order.messages: "long",
        Order.unacked: "held",
        Order.consumers: "long",
        Order.name: "busy",
    }


def test_an_alarm_is_told_in_the_first_line() -> None:
    view = a_view(a_queue("q"))
    assert "ALARM" not in plain(view, Order.rate, 5)
    view.node = {"mem_alarm": True, "uptime": 90_000}
    assert "ALARM: mem" in plain(view, Order.rate, 5).splitlines()[0]
    assert "up 0:01:30" in plain(view, Order.rate, 5).splitlines()[0]


def test_a_hostile_name_cannot_move_the_cursor_or_be_taken_for_markup() -> None:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(draw(a_view(a_queue("\x1b[2J[red]x[/red]")), Order.rate, 5))
    text = console.export_text()
    assert "\x1b[2J" not in text
    assert "[red]x[/red]" in text


def test_without_a_terminal_it_is_printed_once(tidemark: Run) -> None:
    tidemark("ctl", "queues", "declare", "seen-by-top")
    tidemark("ctl", "publish", "seen-by-top", "x")

    text = tidemark("top", "--once")
    assert re.search(r"^/ +seen-by-top +1 +0 +0 ", text, re.MULTILINE)
    found = json.loads(tidemark("top", "--json"))
    assert "seen-by-top" in {one["name"] for one in found["queues"]}
    assert found["rates"].keys() >= {"publish", "ack"}
    tidemark("ctl", "queues", "delete", "seen-by-top")
    assert "is the broker running" in tidemark("top", "--url", "http://127.0.0.1:1", code=3)


@pytest.mark.timeout(60)
def test_in_a_terminal_it_goes_on_until_q_and_puts_the_terminal_back(tidemark: Run, admin_url: str) -> None:
    tidemark("ctl", "queues", "declare", "live-in-top")
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemark", "top", "--url", admin_url, "--interval", "0.2"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    )  # fmt: skip
    shown = bytearray()

    def seen(words: str) -> bool:
        while select.select([ours], [], [], 0.05)[0]:
            shown.extend(os.read(ours, 65536))
        return words.encode() in shown

    try:
        eventually(lambda: seen("live-in-top"), 20)
        os.write(ours, b"n")
        eventually(lambda: seen("(now: name)"), 20)
        os.write(ours, b"q")
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            seen("")
        assert process.poll() == 0
        assert seen("\x1b[?1049l")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    tidemark("ctl", "queues", "delete", "live-in-top")
