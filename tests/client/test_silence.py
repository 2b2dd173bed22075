"""Both clients while a member says nothing: when they ask others about it, when they leave it, and when they do not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client.peer import WELCOME, Asked, Peer
from client.test_blocking import stored

from tidemark.client import Unconfirmed, connect, waiting
from tidemark.client import operations as ops
from tidemark.wire.stream.frames import Kind

Connect = Callable[..., Any]
Answer = Callable[[Asked], None]
BIG = bytes(32 << 20)
"""More than the sockets between two processes hold."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given up for silence alone here, so whoever is left was left because others said so."""
    monkeypatch.setattr(waiting, "PING_S", 0.2)
    monkeypatch.setattr(waiting, "ASK_S", 0.05)
    monkeypatch.setattr(waiting, "SILENT_S_MAX", 60.0)


def info(asked: Asked) -> None:
    asked.answer({"name": "s"})


def nothing(_asked: Asked) -> None:
    """As a process that was stopped by a signal."""


def later(seconds: float, *, pongs: bool, then: Answer = info) -> Answer:
    """A slow answer of a broker that does, or does not, answer pings meanwhile."""

    def answer(asked: Asked) -> None:
        def run() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.02)
                if pongs:
                    asked.say(Kind.PONG, 0, {})
            then(asked)

        threading.Thread(target=run, daemon=True).start()

    return answer


class Group:
    """Members `a`, `b` …, of which `a` leads at first. `a` answers as it is told, all others at once."""

    def __init__(self, size: int, answer: Answer) -> None:
        self.epoch, self.leader = 1, "a"
        self.states: dict[str, str] = {}
        self.answers: dict[str, Answer] = {"a": answer}
        self.peers: dict[str, Peer] = {}
        self.reads = threading.Event()
        """Until it is set, `a` reads nothing more once it was asked about the stream `deaf`."""
        for name in "abc"[:size]:
            self.peers[name] = Peer(self._script(name))
        self.ports = {name: peer.port for name, peer in self.peers.items()}

    @property
    def url(self) -> str:
        return self.peers["a"].url

    def take_over(self, name: str) -> None:
        self.epoch, self.leader = self.epoch + 1, name

    def asked(self, name: str, *besides: str) -> list[str]:
        """What a member was asked, but for who is there, and `besides`."""
        left_out = ("hello", "members", *besides)
        return [one.op for one in self.peers[name].asked if one.op not in left_out]

    def _script(self, name: str) -> Answer:
        def script(asked: Asked) -> None:
            if asked.op in ("hello", "members"):
                asked.answer({**WELCOME, "frame_max": 64 << 20, "node": name, **self._told()})
            elif asked.op == "producer":
                asked.answer({"last": 0})
            elif asked.header.get("stream") == "deaf":
                info(asked)
                self.reads.wait(20)
            else:
                self.answers.get(name, stored if asked.op == "put" else info)(asked)

        script.greets = True  # type: ignore[attr-defined]
        return script

    def _told(self) -> dict[str, Any]:
        members = [
            {
                "name": name,
                "state": self.states.get(name, "active" if name == self.leader else "ready"),
                "role": "leader" if name == self.leader else "backup",
                "address": f"127.0.0.1:{port}",
            }
            for name, port in self.ports.items()
        ]
        return {"mode": "standby", "epoch": self.epoch, "leader": self.leader, "members": members}


@contextmanager
def a_group(answer: Answer, size: int = 3) -> Iterator[Group]:
    group = Group(size, answer)
    try:
        yield group
    finally:
        for peer in group.peers.values():
            peer.close()


def test_a_silent_leader_is_left_as_soon_as_another_leads(open_client: Connect) -> None:
    with a_group(nothing) as group:
        db = open_client(group.url)
        threading.Timer(0.6, group.take_over, "b").start()
        began = time.monotonic()

        assert db.call(ops.info("s")).name == "s"

        assert 0.6 <= time.monotonic() - began < 3
        assert (group.asked("a"), group.asked("b"), group.asked("c")) == (["info"], ["info"], [])


def test_an_address_where_nobody_says_anything_costs_a_new_connection_little(open_client: Connect) -> None:
    """A process that was stopped by a signal: its port takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as silent, a_group(info) as group:
        began = time.monotonic()

        db = open_client(group.url.replace("@", f"@127.0.0.1:{silent.getsockname()[1]},"))

        assert db.call(ops.info("s")).name == "s"
        assert time.monotonic() - began < 3


def test_a_leader_that_fell_silent_long_ago_is_left_at_once(open_client: Connect) -> None:
    with a_group(nothing) as group:
        db = open_client(group.url)
        group.take_over("c")
        began = time.monotonic()

        assert db.call(ops.info("s")).name == "s"

        assert time.monotonic() - began < 2
        assert db.link().address.port == group.ports["c"]


def test_a_numbered_write_is_sent_again_and_any_other_is_unconfirmed(open_client: Connect) -> None:
    with a_group(nothing) as group:
        db = open_client(group.url)
        with db.producer("p") as producer:
            group.take_over("b")
            assert producer.put("s", "k", b"v").sequence
        assert [one.header["sequence"] for one in group.peers["b"].asked if one.op == "put"] == [1]

    with a_group(nothing) as group:
        db = open_client(group.url)
        group.take_over("b")
        with pytest.raises(Unconfirmed, match=r"says nothing, and b leads now.*may or may not be stored"):
            db.call(ops.put("s", ops.one_put("k", b"v", None, None)))
        assert group.asked("b") == []


def test_a_slow_leader_is_kept_while_the_others_still_go_by_it(open_client: Connect) -> None:
    with a_group(later(1.2, pongs=False)) as group:
        assert open_client(group.url).call(ops.info("s")).name == "s"

        assert group.peers["a"].connections == 1
        assert group.asked("b", "close") == group.asked("c", "close") == []
        assert group.peers["b"].connections + group.peers["c"].connections == 1, (
            "one is asked, over one connection"
        )


def test_nobody_is_asked_about_a_leader_that_answers_pings(open_client: Connect) -> None:
    with a_group(later(1.0, pongs=True)) as group:
        assert open_client(group.url).call(ops.info("s")).name == "s"

        assert group.peers["b"].connections == group.peers["c"].connections == 0


def test_another_is_asked_when_the_first_does_not_answer(open_client: Connect) -> None:
    with a_group(nothing) as group:
        db = open_client(group.url)
        group.peers["b"].close()
        group.take_over("c")

        assert db.call(ops.info("s")).name == "s"
        assert group.asked("c") == ["info"]


def test_an_older_epoch_is_no_reason_to_leave(open_client: Connect) -> None:
    with a_group(later(0.8, pongs=False), size=2) as group:
        group.epoch = 5
        db = open_client(group.url)
        group.epoch, group.leader = 4, "b"
        assert db.call(ops.info("s")).name == "s"
        assert group.peers["a"].connections == 1


def test_a_silent_member_is_read_from_no_more_when_it_is_not_ready(open_client: Connect) -> None:
    with a_group(info, size=2) as group:
        group.answers["b"] = nothing
        db = open_client(group.url, read_from="tail")
        threading.Timer(0.6, group.states.update, [{"b": "joining"}]).start()

        assert db.call(ops.info("s")).name == "s"
        assert group.asked("b") == ["info"] and group.asked("a") == ["info"]


def test_a_large_write_is_not_stuck_at_a_leader_that_has_been_replaced(open_client: Connect) -> None:
    with a_group(nothing, size=2) as group:
        db = open_client(group.url)
        with db.producer("p") as producer:
            db.call(ops.info("deaf"))
            group.take_over("b")
            began = time.monotonic()
            assert producer.put("s", "k", BIG).sequence
        assert time.monotonic() - began < 8
        group.reads.set()
        assert group.asked("b", "info", "producer") == ["put"]


def test_a_leader_that_takes_a_large_write_after_a_while_is_heard_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "SILENT_S_MAX", 0.6)
    slow = later(0.4, pongs=False, then=stored)
    with a_group(slow, size=2) as group, connect(group.url) as db, db.producer("p") as producer:
        db.call(ops.info("deaf"))
        threading.Timer(1.2, group.reads.set).start()

        assert producer.put("s", "k", BIG).sequence
        assert group.peers["a"].connections == 1
