"""Both clients where only the tails of a chain show rows: whom they ask in turn, and when they give up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from client.peer import WELCOME, Asked, Peer

from tidemark.client import NotATail
from tidemark.client import operations as ops
from tidemark.errors import NotFound

Connect = Callable[..., Any]
Answer = Callable[[Asked], None]
FOUND = {"found": False}


def not_a_tail(asked: Asked) -> None:
    asked.refuse("stream.not-a-tail", "read it at the tail", stream="s", member="head", tails="", epoch=1)


def found(asked: Asked) -> None:
    asked.answer(FOUND)


class Member:
    """A peer that says who is in the chain, and answers one `get` after the other as it is told; the last one for ever."""

    greets = True

    def __init__(self, chain: Chain, name: str, *answers: Answer) -> None:
        self._chain, self._name = chain, name
        self._answers = list(answers)
        self.gets = 0
        self.peer = Peer(self)

    def __call__(self, asked: Asked) -> None:
        if asked.op != "get":
            asked.answer({**WELCOME, "node": self._name, **self._chain.told()})
            return
        self.gets += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        answer(asked)


class Chain:
    def __init__(self, **answers: tuple[Answer, ...]) -> None:
        self.named = True
        self.roles = {"head": "head", "tail": "tail"}
        self.members = {name: Member(self, name, *what) for name, what in answers.items()}

    def told(self) -> dict[str, Any]:
        members = [
            {
                "name": name,
                "state": "active" if name == "head" else "ready",
                "role": self.roles[name],
                "address": f"127.0.0.1:{self.members[name].peer.port}" if self.named else "",
            }
            for name in self.members
        ]
        return {"mode": "chain", "epoch": 1, "leader": "head", "members": members}

    def gets(self) -> tuple[int, ...]:
        return tuple(member.gets for member in self.members.values())


@contextmanager
def a_chain(**answers: tuple[Answer, ...]) -> Iterator[tuple[Chain, str]]:
    """Its members in order, each with what it answers, and where the head is."""
    chain = Chain(**answers)
    try:
        yield chain, chain.members["head"].peer.url
    finally:
        for member in chain.members.values():
            member.peer.close()


@pytest.mark.parametrize("read_from", ["leader", "any", "tail"])
def test_open_client_that_is_told_so_reads_at_the_tail_from_then_on(
    open_client: Connect, read_from: str
) -> None:
    """K-43, K-57"""
    with a_chain(head=(not_a_tail,), tail=(found,)) as (chain, url):
        db = open_client(url, read_from=read_from)
        for _ in range(3):
            assert db.call(ops.get("s", b"k")) is None
        head, tail = chain.gets()
        assert tail == 3 and head <= 1


def test_what_the_tail_does_not_have_yet_is_asked_of_the_leader_and_then_again(open_client: Connect) -> None:
    missing: Answer = lambda asked: asked.refuse("not-found", "no stream s")  # noqa: E731
    with a_chain(head=(not_a_tail,), tail=(missing, found)) as (chain, url):
        assert open_client(url, read_from="tail").call(ops.get("s", b"k")) is None
        assert chain.gets() == (1, 2)


def test_what_the_leader_does_not_have_either_is_not_looked_for_any_longer(open_client: Connect) -> None:
    missing: Answer = lambda asked: asked.refuse("not-found", "no stream s")  # noqa: E731
    with a_chain(head=(missing,), tail=(missing,)) as (chain, url):
        with pytest.raises(NotFound):
            open_client(url, read_from="tail").call(ops.get("s", b"k"))
        assert chain.gets() == (1, 1)


def test_a_tail_that_is_none_any_more_is_left_for_the_next(open_client: Connect) -> None:
    with a_chain(head=(not_a_tail,), tail=(found, not_a_tail), next=(found,)) as (chain, url):
        chain.roles["next"] = "joining"
        db = open_client(url, read_from="tail")
        db.call(ops.get("s", b"k"))
        chain.roles |= {"tail": "middle", "next": "tail"}
        assert db.call(ops.get("s", b"k")) is None
        assert chain.gets() == (0, 2, 1)


def test_a_chain_without_a_tail_that_answers_is_given_up_in_time_with_its_own_words(
    open_client: Connect,
) -> None:
    with a_chain(head=(not_a_tail,), tail=(not_a_tail,)) as (chain, url):
        began = time.monotonic()
        with pytest.raises(NotATail, match="read it at the tail"):
            open_client(url, timeout=0.5).call(ops.get("s", b"k"))
        assert time.monotonic() - began < 2
        assert 2 < sum(chain.gets()) < 10, "it asks again, with rests in between"


def test_behind_a_front_the_refusal_is_raised_at_once(open_client: Connect) -> None:
    with a_chain(head=(not_a_tail,), tail=(found,)) as (chain, url):
        chain.named = False
        with pytest.raises(NotATail):
            open_client(url).call(ops.get("s", b"k"))
        assert chain.gets() == (1, 0)
