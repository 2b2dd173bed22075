"""A process that sits on the links between members and obeys: cut, cut one way, slow, heal.

Every member dials each peer, and etcd, at a port of this process, so it knows who talks to whom. A link that is cut
loses nothing: what was sent waits here, as it would in a network that drops packets and a sender that repeats them,
and goes on when the link is healed. The end of a connection waits with it. While nothing listens at a link's target
its port here refuses too, as the target itself would: members tell a dead process by that.

Commands come as a line of JSON each over a connection to the control port; each is answered with what is cut and
slowed now.

    {"do": "cut", "from": "n1", "to": "n2"}    {"do": "slow", "from": "n1", "to": "n2", "ms": 50}    {"do": "heal"}

Invariant: bytes of a direction are passed on in the order in which they came, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
CHUNKS = 64
"""What may wait in one direction of a connection; then the sender has to."""
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Link:
    """`dialler` reaches `target`, which listens at `port`, by way of `listen`."""

    dialler: str
    target: str
    listen: int
    port: int


class Direction:
    """From one member to another, over all their connections."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0


class Proxy:
    def __init__(self, links: list[Link]) -> None:
        self._links = links
        self._directions: dict[tuple[str, str], Direction] = {}
        self._listeners: dict[Link, asyncio.Server] = {}

    async def serve(self, control: int) -> None:
        async with await asyncio.start_server(self._obey, HOST, control):
            while True:
                alive = {port: _listens(port) for port in {link.port for link in self._links}}
                for link in self._links:
                    await self._open_or_close(link, alive[link.port])
                await asyncio.sleep(LOOK_S)

    def direction(self, sender: str, receiver: str) -> Direction:
        return self._directions.setdefault((sender, receiver), Direction())

    # Commands --------------------------------------------------------------------------------

    async def _obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._do(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "heal":
            for direction in self._directions.values():
                direction.open.set()
                direction.delay_s = 0.0
        elif command["do"] in ("cut", "slow"):
            direction = self.direction(command["from"], command["to"])
            if command["do"] == "cut":
                direction.open.clear()
            else:
                direction.delay_s = command["ms"] / 1000
        pairs = self._directions.items()
        return {
            "cut": [list(pair) for pair, direction in pairs if not direction.open.is_set()],
            "slow": [
                [*pair, round(direction.delay_s * 1000)] for pair, direction in pairs if direction.delay_s
            ],
        }

    # Connections -----------------------------------------------------------------------------

    async def _open_or_close(self, link: Link, alive: bool) -> None:
        there, back = self.direction(link.dialler, link.target), self.direction(link.target, link.dialler)
        # Of a target that cannot be reached nobody can know that it is dead.
        wanted = alive or not there.open.is_set() or not back.open.is_set()
        listener = self._listeners.get(link)
        if wanted and listener is None:
            with contextlib.suppress(OSError):  # taken for a moment; the next look tries again
                accepted = self._acceptor(link, there, back)
                self._listeners[link] = await asyncio.start_server(accepted, HOST, link.listen)
        elif not wanted and listener is not None:
            del self._listeners[link]
            listener.close()

    def _acceptor(
        self, link: Link, there: Direction, back: Direction
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await there.open.wait()
            await back.open.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(HOST, link.port)
            except OSError:
                writer.close()
                return
            pumps = [
                asyncio.ensure_future(_pump(there, reader, far_writer)),
                asyncio.ensure_future(_pump(back, far_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                for each in (writer, far_writer):
                    each.close()

        return accepted


async def _pump(direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction of one connection until it ends."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS)
    now = asyncio.get_running_loop().time

    async def take() -> None:
        while True:
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except OSError:
                chunk = b""
            await waiting.put((now() + direction.delay_s, chunk))
            if not chunk:
                return

    taking = asyncio.ensure_future(take())
    try:
        while True:
            due, chunk = await waiting.get()
            if (left := due - now()) > 0:
                await asyncio.sleep(left)
            await direction.open.wait()
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()
    except OSError:
        return
    finally:
        taking.cancel()


def _listens(port: int) -> bool:
    """Whether somebody listens there. Nobody else can then take the port, and trying to is no connection to anyone."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
        return False


def arguments(control: int, links: list[Link]) -> list[str]:
    """What `python -m tidemark.cli.proxy` is called with."""
    return [str(control), json.dumps([asdict(link) for link in links])]


def main() -> None:
    control, links = int(sys.argv[1]), json.loads(sys.argv[2])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Proxy([Link(**link) for link in links]).serve(control))


if __name__ == "__main__":
    main()
