"""A peer for tests of the client: it speaks the protocol, and does what a script tells it, also what no broker does.

A script is a function of one request that answers with frames. `Peer` runs it on a free port; each connection is a
thread. The hello is answered by itself unless the script has its own answer to it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.wire.stream.frames import PREAMBLE, READER_PREAMBLE, Frame, FrameReader, Kind, encode_frame

HISTORY = "ab" * 16
WELCOME = {"node": "peer", "version": "0", "cluster": [], "history": HISTORY, "frame_max": 1 << 20}


class Hangup(Exception):
    """The script ends the connection here and now."""


@dataclass
class Asked:
    """One request, and the connection that it came over."""

    op: str
    header: dict[str, Any]
    payload: bytes
    request: int
    connection: int
    say: Callable[..., None] = field(repr=False)

    def answer(self, header: dict[str, Any] | None = None, payload: Sequence[bytes] = ()) -> None:
        self.say(Kind.ANSWER, self.request, header or {}, payload, last=True)

    def data(self, header: dict[str, Any], payload: Sequence[bytes] = ()) -> None:
        self.say(Kind.DATA, self.request, header, payload)

    def refuse(self, code: str, message: str = "no", **facts: Any) -> None:
        self.say(Kind.ERROR, self.request, {"error": code, "message": message, **facts}, last=True)


Script = Callable[[Asked], None]


def silent(_asked: Asked) -> None:
    """The script of a peer that never answers."""


class Peer:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.asked: list[Asked] = []
        self.others: list[Frame] = []
        """Frames that are no requests: credit, pongs, goodbyes."""
        self.connections = 0
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def url(self) -> str:
        return f"tidemark://guest:guest@127.0.0.1:{self.port}/"

    def ops(self, count: int = 0) -> list[str]:
        """What was asked. Waits for so many: a client does not wait for the answer to everything."""
        deadline = time.monotonic() + 5
        while True:
            ops = [one.op for one in self.asked if one.op != "hello"]
            if len(ops) >= count or time.monotonic() > deadline:
                return ops
            time.sleep(0.01)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in [self._acceptor, *self._threads]:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        sending = threading.Lock()

        def say(
            kind: Kind,
            request: int,
            header: dict[str, Any],
            payload: Sequence[bytes] = (),
            last: bool = False,
        ) -> None:
            with sending:
                sock.sendall(b"".join(encode_frame(kind, request, header, payload, last)))

        reader = FrameReader(64 << 20)
        with sock, contextlib.suppress(OSError, Hangup):
            head = b""
            while len(head) < 8:
                piece = sock.recv(8 - len(head))
                if not piece:
                    return
                head += piece
            assert head in (PREAMBLE, READER_PREAMBLE)
            while data := sock.recv(65536):
                for frame in reader.feed(data):
                    if frame.kind is not Kind.REQUEST:
                        frame.payload = memoryview(bytes(frame.payload))
                        self.others.append(frame)
                        continue
                    asked = Asked(
                        frame.header["op"], frame.header, bytes(frame.payload), frame.request, connection, say
                    )
                    self.asked.append(asked)
                    if asked.op == "hello" and not getattr(self._script, "greets", False):
                        asked.answer(WELCOME)
                    else:
                        self._script(asked)
