"""Units for several readers: encoded once for those that are given the same together, and never kept for later."""

from __future__ import annotations

from typing import Any

import pytest
from unit.runtime.test_external import in_loop
from unit.runtime.test_telling import peers_of

from tidemark.cluster.config import ClusterConfig
from tidemark.member.shipping import Shipping
from tidemark.model.peers import Ends, Log, Unit
from tidemark.runtime import peers as shell
from tidemark.runtime.peers import Peers
from tidemark.wire.peer.codec import Decoder


class Reader:
    """Stands for the socket of a reader."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.transport = self

    def write(self, data: bytes) -> None:
        self.taken.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    @property
    def payloads(self) -> list[bytes]:
        units: list[Any] = Decoder().feed(b"".join(self.taken))
        return [bytes(unit.payload) for _, unit in units]


class Source:
    """A log of one frame, under which compaction may put something else."""

    ends = Ends(0, 5)

    def __init__(self) -> None:
        self.payload = b"as it was"

    def units_after(self, log: Log, after: int, _: int) -> list[Unit]:
        return [Unit(log, after, 5, 5, memoryview(self.payload))]


def readers_of(peers: Peers, *names: str) -> list[Reader]:
    readers = [Reader() for _ in names]
    peers._links.update({(name, False): reader for name, reader in zip(names, readers, strict=True)})  # type: ignore[misc]
    return readers


@in_loop
async def test_a_unit_is_encoded_once_for_readers_that_are_equally_far_and_again_for_whoever_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers, store, encoded = peers_of("a"), Source(), []
    honest = shell.encode_unit
    monkeypatch.setattr(shell, "encode_unit", lambda *unit: encoded.append(unit) or honest(*unit))
    shipping = Shipping(ClusterConfig(name="shop"), Shell(peers))
    b, c, d = readers_of(peers, "b", "c", "d")
    for name in ("b", "c"):
        shipping.begin(name, Ends())
    shipping.pump(store, 3, ("b", "c", "d"))  # type: ignore[arg-type]
    assert b.payloads == c.payloads == [b"as it was"]
    assert len(encoded) == 1

    store.payload = b"compacted"
    shipping.begin("d", Ends())
    shipping.pump(store, 3, ("b", "c", "d"))  # type: ignore[arg-type]
    assert d.payloads == [b"compacted"]
    peers._links.clear()
    await peers.close()


class Shell:
    """As much of a member's shell as shipping sees."""

    def __init__(self, peers: Peers) -> None:
        self.ship, self.shipped, self.backlog, self.drop = (
            peers.ship,
            peers.shipped,
            peers.backlog,
            peers.drop,
        )

    def note(self, level: str, event: str, **facts: object) -> None:
        raise AssertionError((level, event, facts))
