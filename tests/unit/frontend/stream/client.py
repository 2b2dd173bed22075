"""A client of the stream protocol over the codec alone, for a `NodeWorld`: what it says and hears are frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unit.node.world import NodeWorld

from tidemark.frontend.services import FrontEnd, PeerInfo
from tidemark.model.rows import Row, RowBatch
from tidemark.wire.stream.frames import PREAMBLE, Frame, FrameReader, Kind, encode_frame
from tidemark.wire.stream.rows import decode_rows, encode_rows


class Refused(Exception):
    """An ERROR frame."""

    def __init__(self, header: dict[str, Any]) -> None:
        super().__init__(f"{header['error']}: {header['message']}")
        self.header = header
        self.code: str = header["error"]


class StreamClient:
    def __init__(self, world: NodeWorld, front: str = "") -> None:
        """`front`: the front that it came through."""
        self.world = world
        peer = PeerInfo("127.0.0.1", 50_000 + len(world.clients), front=front)
        self.front_end: FrontEnd = world.node.connect(peer)
        world.clients[self.front_end] = self  # type: ignore[assignment]
        self.inbox: list[Frame] = []
        self._reader = FrameReader(1 << 28)
        self._next = 0

    # Bytes ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes from the client, and turns until nothing moves."""
        self.push(data)
        self.world.turn()

    def push(self, data: bytes) -> None:
        """Bytes from the client, in a buffer that is used again, and no turn."""
        buffer = bytearray(data)
        self.world.node.at(self.world.now_ms)
        assert self.front_end.receive(memoryview(buffer)) == len(data)
        buffer[:] = b"\xee" * len(buffer)

    def hear(self, data: bytes) -> None:
        self.inbox += self._reader.feed(data)

    # Frames -----------------------------------------------------------------------------------------

    def send(self, op: str, payload: bytes = b"", **fields: Any) -> int:
        """A request, and turns. Returns its number."""
        number, data = self.request(op, payload, **fields)
        self.write(data)
        return number

    def request(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[int, bytes]:
        self._next += 1
        return self._next, b"".join(encode_frame(Kind.REQUEST, self._next, {"op": op, **fields}, [payload]))

    def grant(self, request: int, credit: int) -> None:
        self.write(b"".join(encode_frame(Kind.CREDIT, request, {"bytes": credit})))

    def say(self, kind: Kind, request: int = 0, **fields: Any) -> None:
        self.write(b"".join(encode_frame(kind, request, fields)))

    def about(self, request: int) -> list[Frame]:
        """The frames about one request; they leave the inbox."""
        found = [frame for frame in self.inbox if frame.request == request]
        self.inbox = [frame for frame in self.inbox if frame.request != request]
        return found

    def heard(self, kind: Kind) -> list[dict[str, Any]]:
        return [frame.header for frame in self.inbox if frame.kind is kind]

    def answer(self, request: int) -> Frame:
        """The one frame that answers a request."""
        [frame] = self.about(request)
        if frame.kind is Kind.ERROR:
            assert frame.last
            raise Refused(frame.header)
        assert frame.kind is Kind.ANSWER and frame.last
        return frame

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
        return self.answer(self.send(op, payload, **fields)).header

    # Operations -------------------------------------------------------------------------------------

    def hello(self, user: str = "guest", **fields: Any) -> dict[str, Any]:
        self.push(PREAMBLE)
        return self.ask("hello", user=user, password="guest", vhost="/", **fields)

    def put(self, stream: str, rows: Iterable[Row], **fields: Any) -> dict[str, Any]:
        header, payload = a_put(rows)
        return self.ask("put", payload, stream=stream, **header, **fields)

    def read(self, **fields: Any) -> tuple[list[Row], dict[str, Any]]:
        """All rows and the marker."""
        *batches, end = self.about(self.send("read", **fields))
        if end.kind is Kind.ERROR:
            raise Refused(end.header)
        return rows_of(batches), end.header["marker"]

    def snapshot(self, stream: str, **fields: Any) -> int:
        number: int = self.ask("snapshot", stream=stream, **fields)["snapshot"]
        return number

    def rows(self, stream: str, **fields: Any) -> list[Row]:
        """What is there now."""
        number = self.snapshot(stream)
        found, _ = self.read(snapshot=number, **fields)
        self.ask("close", snapshot=number)
        return found


def a_put(rows: Iterable[Row]) -> tuple[dict[str, Any], bytes]:
    header, parts = encode_rows(RowBatch.build(rows))
    return header, b"".join(parts)


def rows_of(frames: Iterable[Frame]) -> list[Row]:
    found: list[Row] = []
    for frame in frames:
        if "columns" in frame.header:
            assert frame.kind is Kind.DATA
            found += decode_rows(frame.header, frame.payload, values_needed=False)
    return found


def connected(world: NodeWorld, **fields: Any) -> StreamClient:
    client = StreamClient(world)
    client.hello(**fields)
    return client
