"""Readers take turns: a few of them each turn of the loop, nobody twice before everybody once."""

from __future__ import annotations

from unit.frontend.stream.client import connected
from unit.node.world import NodeWorld

from tidemark.frontend.stream.pace import (
    BUSY_TURNS,
    FULL_BYTES,
    PATIENCE_TURNS,
    SMALL_BYTES,
    WRITES_A_BATCH,
    Pace,
)
from tidemark.model.rows import Row

QUIET = 1000
"""A turn long after the last write."""


def in_line(readers: str) -> Pace:
    pace = Pace()
    for reader in readers:
        pace.join(reader)
    pace.share("nobody", 1, 7)
    return pace


def served(pace: Pace, turn: int, seq: int = 7) -> str:
    return "".join(reader for reader in "abcde" if pace.share(reader, turn, seq))


def test_the_first_in_line_are_served_and_go_to_its_end() -> None:
    pace = in_line("abcde")
    assert [served(pace, QUIET + turn) for turn in range(5)] == ["ab", "cd", "ae", "bc", "de"]


def test_who_leaves_the_line_holds_up_nobody() -> None:
    pace = in_line("abcd")
    pace.leave("a")
    assert [served(pace, QUIET + turn) for turn in (1, 2, 3)] == ["bc", "bd", "cd"]


def test_after_a_write_readers_get_less_until_its_sync_is_over() -> None:
    pace = in_line("a")
    assert pace.share("a", QUIET, 7) == FULL_BYTES
    assert pace.share("a", QUIET + 1, 8) == 0  # something is written
    assert pace.share("a", QUIET + 2, 8) == SMALL_BYTES
    assert pace.share("a", QUIET + BUSY_TURNS, 8) == SMALL_BYTES
    assert pace.share("a", QUIET + 1 + BUSY_TURNS, 8) == FULL_BYTES


def test_when_every_turn_writes_readers_get_a_share_of_it() -> None:
    pace, seq, got = in_line("a"), 7, []
    pace.share("a", QUIET, seq)
    for turn in range(1, 9):
        seq += WRITES_A_BATCH // 2
        got.append(pace.share("a", QUIET + turn, seq))
    assert got == [0, SMALL_BYTES] * 4
    assert pace.share("a", QUIET + 9, seq + 3 * WRITES_A_BATCH) == 3 * SMALL_BYTES
    assert pace.share("a", QUIET + 10, seq + 300 * WRITES_A_BATCH) == FULL_BYTES


def test_a_trickle_of_writes_does_not_starve_readers() -> None:
    pace = in_line("a")
    pace.share("a", QUIET, 7)
    got = [pace.share("a", QUIET + turn, 7 + turn) for turn in range(1, 1 + 2 * PATIENCE_TURNS)]
    assert got == ([0] * (PATIENCE_TURNS - 1) + [SMALL_BYTES]) * 2


def test_many_readers_get_the_same_share_and_a_turn_serves_only_a_few() -> None:
    world = NodeWorld()
    clients = [connected(world) for _ in range(6)]
    clients[0].ask("declare", stream="s")
    clients[0].put("s", [Row(b"%04d" % i, b"x" * 100) for i in range(300)])
    for client in clients:
        client.snapshot("s")
        client.push(client.request("read", snapshot=1, batch_bytes=1000)[1])

    counts = []
    for _ in range(30):
        world.node.turn(world.now_ms)
        before = sum(len(client.inbox) for client in clients)
        world.carry()
        counts.append([len(client.inbox) for client in clients])
        assert sum(counts[-1]) - before <= 2
    assert max(counts[-1]) - min(counts[-1]) <= 2
    assert min(counts[-1]) >= 8
