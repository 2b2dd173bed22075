"""Membership in a real etcd: leases that end, races for the view, an etcd that is killed, frozen or forgetful."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import uvloop
from helpers.etcd import Etcd, free_port

from tidemark.member.facts import MemberFacts, decode_view, encode_view
from tidemark.model.peers import Ends, View
from tidemark.runtime.clock import ticks_ms
from tidemark.runtime.log import Log
from tidemark.runtime.membership.etcd import EtcdMembership

KEY = "/tidemark/shop/view"
FIRST = View("c" * 32, 1, "a", ("a",), "1" * 32)


def in_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test in the loop that brokers use."""

    @wraps(story)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(story(*arguments, **named), 60))

    return run


async def eventually(true: Callable[[], object], within_s: float = 8.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)


class Seat:
    """One member's place in the membership, and what it was told."""

    def __init__(self, name: str, *endpoints: str, lease_s: int = 1) -> None:
        self.name = name
        self.story: list[tuple[Any, ...]] = []
        self.leases: list[int] = []
        self.lines = io.StringIO()
        self.facts = MemberFacts(name, f"127.0.0.1:7{ord(name)}", "127.0.0.1:5672", "", "", Ends(3, 4))
        self.etcd = EtcdMembership(
            "shop", endpoints, lambda: self.facts, self, Log("debug", stream=self.lines), lease_s
        )

    def told(self, kind: str) -> list[Any]:
        return [one[1] for one in self.story if one[0] == kind]

    @property
    def view(self) -> View | None:
        views = self.told("view")
        return views[-1] if views else None

    @property
    def leased(self) -> bool:
        return bool(self.leases) and self.leases[-1] > ticks_ms()

    # What `EtcdMembership` tells
    def view_changed(self, view: View | None) -> None:
        self.story.append(("view", view))

    def proposal_failed(self, view: View) -> None:
        self.story.append(("failed", view))

    def member_here(self, facts: MemberFacts) -> None:
        self.story.append(("here", facts))

    def member_gone(self, name: str) -> None:
        self.story.append(("gone", name))

    def lease(self, until_ticks_ms: int) -> None:
        self.story.append(("lease", until_ticks_ms))
        self.leases.append(until_ticks_ms)


@asynccontextmanager
async def seats(names: str, *endpoints: str, lease_s: int = 1) -> AsyncIterator[list[Seat]]:
    made = [Seat(name, *endpoints, lease_s=lease_s) for name in names]
    for seat in made:
        seat.etcd.start()
    yield made
    for seat in made:
        await seat.etcd.close()


def names_here(seat: Seat) -> set[str]:
    here: set[str] = set()
    for kind, fact, *_ in seat.story:
        if kind == "here":
            here.add(fact.name)
        elif kind == "gone":
            here.discard(fact)
    return here


# Members and leases ----------------------------------------------------------------------------------------------------


@in_loop
async def test_members_find_each_other_with_all_that_they_say_about_themselves(etcd: Etcd) -> None:
    async with seats("ab", etcd.endpoint) as (a, b):
        await eventually(lambda: names_here(a) == names_here(b) == {"a", "b"})

        assert b.facts in a.told("here")
        assert a.facts in b.told("here")
        assert a.told("view") == b.told("view") == [None]


@in_loop
async def test_a_lease_ends_before_etcd_says_so_and_is_renewed_in_time(etcd: Etcd) -> None:
    began_ms = ticks_ms()
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: len(a.leases) >= 4)

        assert a.leases[0] <= ticks_ms() + 750
        assert a.leases[0] >= began_ms + 750
        assert a.leases == sorted(set(a.leases))
        assert all(later - earlier < 700 for earlier, later in zip(a.leases, a.leases[1:], strict=False))
        kinds = [one[0] for one in a.story]
        assert kinds.index("view") < kinds.index("lease")


@in_loop
async def test_a_member_that_leaves_is_gone_at_once_and_one_that_dies_when_its_lease_ends(etcd: Etcd) -> None:
    async with seats("ab", etcd.endpoint) as (a, b):
        await eventually(lambda: names_here(a) == {"a", "b"})
        began_s = time.monotonic()
        await b.etcd.close()
        await eventually(lambda: names_here(a) == {"a"})
        assert time.monotonic() - began_s < 0.5

        c = Seat("c", etcd.endpoint)
        c.etcd.start()
        await eventually(lambda: names_here(a) == {"a", "c"} and c.leases)
        for task in c.etcd._tasks:
            task.cancel()  # as if its process had ended
        died_s = time.monotonic()
        await eventually(lambda: names_here(a) == {"a"})
        assert time.monotonic() - died_s > 0.3
        assert c.leases[-1] < ticks_ms(), "it still held its lease when others saw it go"
        await c.etcd.close()


@in_loop
async def test_where_a_member_listened_is_known_when_it_is_gone(etcd: Etcd) -> None:
    """Whether its process is still there can be asked by somebody who starts afterwards."""
    async with seats("a", etcd.endpoint) as [a]:
        await eventually(lambda: a.leased)
    async with seats("bc", etcd.endpoint) as [b, c]:
        await eventually(lambda: names_here(b) == {"b", "c"})
        await eventually(lambda: b.etcd.addresses == {one.name: one.facts.peer for one in (a, b, c)})


@in_loop
async def test_a_member_whose_lease_was_taken_away_registers_anew(etcd: Etcd) -> None:
    async with seats("ab", etcd.endpoint) as (a, b):
        await eventually(lambda: names_here(a) == {"a", "b"} and b.leases)
        etcd.call("lease/revoke", {"ID": b.etcd._lease_id})
        await eventually(lambda: a.told("gone") == ["b"] and names_here(a) == {"a", "b"})

        assert "lease lost" in b.lines.getvalue()
        await eventually(lambda: b.leased)
        assert b.told("gone") == []


# The view ----------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_view_that_is_written_reaches_everybody_with_its_revision(etcd: Etcd) -> None:
    """X-9: as from the other provider of membership."""
    async with seats("ab", etcd.endpoint) as (a, b):
        await eventually(lambda: a.told("view") and b.told("view"))
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == b.view == FIRST)
        assert a.view is not None and b.view is not None
        assert a.view.revision == b.view.revision > 0
        a.etcd.propose(a.view.with_ready("b"))
        await eventually(lambda: a.view == b.view == FIRST.with_ready("b"))

        assert a.told("view") == b.told("view") == [None, FIRST, FIRST.with_ready("b")]
        assert a.told("failed") == b.told("failed") == []


@in_loop
async def test_of_several_that_propose_one_wins_and_the_others_are_told(etcd: Etcd) -> None:
    """K-56: whoever would manage the group, one of them does."""
    async with seats("abc", etcd.endpoint) as everybody:
        await eventually(lambda: all(one.told("view") for one in everybody))
        for one in everybody:
            one.etcd.propose(replace(FIRST, leader=one.name, ready=(one.name,)))
        await eventually(lambda: all(one.view for one in everybody))
        await eventually(lambda: sum(len(one.told("failed")) for one in everybody) == 2)

        [winner] = {one.view.leader for one in everybody if one.view is not None}
        for one in everybody:
            assert [view.leader for view in one.told("failed")] == ([] if one.name == winner else [one.name])
            assert len(one.told("view")) == 2


@in_loop
async def test_a_proposal_on_an_old_view_fails(etcd: Etcd) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.told("view"))
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == FIRST)
        a.etcd.propose(replace(FIRST, epoch=2, revision=0))
        await eventually(lambda: a.told("failed"))

        assert a.view == FIRST
        assert decode_view(etcd.get(KEY) or "", 0) == FIRST


@in_loop
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"epoch": 1}', json.dumps({"epoch": 1, "leader": "a", "ready": ["b"]})]
)
async def test_a_view_that_cannot_be_is_reported_and_not_followed(etcd: Etcd, text: str) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.told("view"))
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == FIRST)
        etcd.put(KEY, text)
        await eventually(lambda: "view not understood" in a.lines.getvalue())
        etcd.put(KEY, encode_view(FIRST.with_ready("b")))
        await eventually(lambda: a.view == FIRST.with_ready("b"))

        assert a.told("view") == [None, FIRST, FIRST.with_ready("b")]


# An etcd in trouble ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_watch_goes_on_after_a_restart_of_etcd_and_misses_nothing(etcd: Etcd) -> None:
    async with seats("ab", etcd.endpoint, lease_s=5) as (a, b):
        await eventually(lambda: names_here(a) == names_here(b) == {"a", "b"})
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == b.view == FIRST)
        etcd.kill()
        await eventually(lambda: "etcd away" in a.lines.getvalue())
        etcd.start()
        etcd.put(KEY, encode_view(FIRST.with_ready("b")))
        await eventually(lambda: a.view == b.view == FIRST.with_ready("b"))
        await eventually(lambda: a.leased and b.leased)

        assert a.told("view") == b.told("view") == [None, FIRST, FIRST.with_ready("b")]
        assert a.told("gone") == [], "the leases outlived the restart"


@in_loop
async def test_a_watch_from_behind_a_compaction_makes_the_member_read_everything_anew(etcd: Etcd) -> None:
    for _ in range(5):
        etcd.put(KEY, encode_view(FIRST))
    etcd.compact()
    a = Seat("a", etcd.endpoint)
    join, revisions = a.etcd._join, []

    async def slow_join(endpoint: str) -> int:
        """The first time so much time passes that etcd has forgotten where the watch begins."""
        revisions.append(await join(endpoint))
        return 0 if len(revisions) == 1 else revisions[-1]

    a.etcd._join = slow_join  # type: ignore[method-assign]
    a.etcd.start()
    await eventually(lambda: len(revisions) == 2)
    etcd.put(KEY, encode_view(FIRST.with_ready("b")))
    await eventually(lambda: a.view == FIRST.with_ready("b"))

    assert "watch behind compaction" in a.lines.getvalue()
    assert a.told("view") == [FIRST, FIRST.with_ready("b")]
    await a.etcd.close()


@in_loop
async def test_a_frozen_etcd_ends_the_lease_and_a_thawed_one_brings_it_back(etcd: Etcd) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        etcd.pause()
        await eventually(lambda: not a.leased)
        await eventually(lambda: "etcd away" in a.lines.getvalue())
        assert "no answer in 0.3 s" in a.lines.getvalue()
        etcd.resume()
        await eventually(lambda: a.leased)

        assert a.told("gone") == []


@in_loop
async def test_a_proposal_to_a_frozen_etcd_is_read_back_before_anything_is_said(etcd: Etcd) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        etcd.pause()
        a.etcd.propose(FIRST)
        await asyncio.sleep(1)
        assert a.told("failed") == [] and a.view is None
        etcd.resume()
        # Whether the frozen one still made the change or not, everybody ends up with what is kept.
        await eventually(lambda: a.told("failed") or a.view == FIRST)
        await asyncio.sleep(0.5)
        kept = etcd.get(KEY)

        assert a.view == (decode_view(kept, 0) if kept else None)


@in_loop
async def test_a_proposal_that_cannot_be_sent_has_failed(etcd: Etcd) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        etcd.kill()
        a.etcd.propose(FIRST)
        await eventually(lambda: a.told("failed") == [FIRST])
        etcd.start()
        await eventually(lambda: a.leased)

        assert etcd.get(KEY) is None


@in_loop
async def test_an_endpoint_that_is_away_is_passed_over(etcd: Etcd) -> None:
    async with seats("a", f"127.0.0.1:{free_port()}", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == FIRST)
        assert "etcd away" in a.lines.getvalue()


@in_loop
async def test_an_etcd_that_lost_its_data_is_noticed_and_the_view_is_none_again(etcd: Etcd) -> None:
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        for _ in range(5):
            etcd.put("/something", "else")
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == FIRST)
        etcd.kill()
        (etcd.folder / "data").rename(etcd.folder / "lost")
        etcd.start()
        await eventually(lambda: a.told("view") == [None, FIRST, None])
        await eventually(lambda: a.leased)

        assert "etcd lost its data" in a.lines.getvalue()


@in_loop
async def test_a_proposal_that_is_answered_while_a_member_registers_is_no_loss_of_data(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads when it registers is older then than what it knows."""
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        post = a.etcd._post

        async def slow_to_register(endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = await post(endpoint, path, body)
            if path == "kv/txn" and "compare" not in body:
                monkeypatch.setattr(a.etcd, "_post", post)
                for _ in range(3):
                    etcd.put("/something", "else")
                a.etcd.propose(FIRST)
                await eventually(lambda: a.view == FIRST)
            return answer

        monkeypatch.setattr(a.etcd, "_post", slow_to_register)
        await a.etcd._join(a.etcd._endpoint())
        assert a.told("view") == [None, FIRST]
        assert "etcd lost its data" not in a.lines.getvalue()


@in_loop
async def test_an_older_view_in_an_etcd_that_was_brought_back_is_told(etcd: Etcd) -> None:
    """Its revisions have passed those that the member knows by the time that it is asked."""
    async with seats("a", etcd.endpoint) as (a,):
        await eventually(lambda: a.leased)
        a.etcd.propose(FIRST)
        await eventually(lambda: a.view == FIRST)
        etcd.kill()
        shutil.copytree(etcd.folder / "data", etcd.folder / "copy")
        etcd.start()
        assert a.view is not None
        second = replace(a.view, epoch=2, leader="b", ready=("b", "a"))
        a.etcd.propose(second)
        await eventually(lambda: a.view == second)
        etcd.kill()
        shutil.rmtree(etcd.folder / "data")
        (etcd.folder / "copy").rename(etcd.folder / "data")
        etcd.start()
        for number in range(30):
            etcd.put("/something", str(number))
        await eventually(lambda: a.view == FIRST)
        assert a.view is not None
        third = replace(a.view, epoch=3)
        a.etcd.propose(third)
        await eventually(lambda: a.view == third)

        assert "etcd lost its data" in a.lines.getvalue()


@in_loop
async def test_two_members_of_one_name_are_found_out(etcd: Etcd) -> None:
    """K-52: one node has one role in a group: a second member of the same name is reported."""
    async with seats("aa", etcd.endpoint) as (one, other):
        other.facts = replace(other.facts, peer="127.0.0.1:7999")
        await eventually(lambda: one.leased and other.leased)
        await eventually(lambda: "name used twice" in one.lines.getvalue() + other.lines.getvalue())
