"""An address that is not a broker's own: connections to it are carried to where it points."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading

from helpers.broker import Address

HOST = "127.0.0.1"


class VirtualAddress:
    """Points at one broker, and may be moved to another; or at several, which get connections in turn."""

    def __init__(self, *targets: Address) -> None:
        self._targets = itertools.cycle(targets)
        self._listener = socket.create_server((HOST, 0))
        self._open: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(HOST, self._listener.getsockname()[1])

    def move(self, *targets: Address) -> None:
        """Point elsewhere; connections that there are end."""
        self._targets = itertools.cycle(targets)
        self._hang_up()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()

    def _hang_up(self) -> None:
        while self._open:
            _shut(self._open.pop())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                target = next(self._targets)
                try:
                    far = socket.create_connection((target.host, target.port), 1)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=ends, daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
