"""A wire between a client and a broker that can lose an answer.

After `lose_next_answer()` the next bytes that the broker sends are thrown away and the connection is closed: the broker
has done what it was asked, and the client does not know. Later connections work.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from helpers.broker import Address


class LossyWire:
    def __init__(self, broker: Address) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lose = threading.Event()
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"tidemark://{self._broker.user}:{self._broker.password}@127.0.0.1:{self._listener.getsockname()[1]}/"

    def lose_next_answer(self) -> None:
        self._lose.set()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection((self._broker.host, self._broker.port))
                for source, target, answers in ((client, broker, False), (broker, client, True)):
                    threading.Thread(target=self._carry, args=(source, target, answers), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self._lose.is_set():
                    self._lose.clear()
                    self.lost += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
