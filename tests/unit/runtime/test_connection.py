"""The shell around a client's socket: how much is read of one before the others, and a turn, come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidemark.runtime.connection import FULL_MAX, ConnectionShell

BUFFER_BYTES = 1024


class Socket:
    """A client that has always more to say, as the loop would read it."""

    def __init__(self) -> None:
        self.reads = True
        self.seen = 0
        self.front_end = SimpleNamespace(
            closed=False, output=list, wants_read=lambda: self.wants, writable=lambda _: None
        )
        self.wants = True
        self.server = SimpleNamespace(
            read_buffer=memoryview(bytearray(BUFFER_BYTES)),
            config=SimpleNamespace(limits=SimpleNamespace(write_buffer_bytes=1)),
            connected=lambda *_: self.front_end,
            received=self._received,
            paused={},
        )
        shell: Any = ConnectionShell(self.server)  # type: ignore[arg-type]
        self.shell: ConnectionShell = shell
        self.shell.connection_made(self)  # type: ignore[arg-type]

    def _received(self, _: ConnectionShell, data: memoryview) -> int:
        self.seen += len(data)
        return len(data)

    def come(self, count: int, size: int = BUFFER_BYTES) -> int:
        """So many reads, if it is read from; how many there were."""
        for number in range(count):
            if not self.reads:
                return number
            assert len(self.shell.get_buffer(-1)) >= size
            self.shell.buffer_updated(size)
        return count

    def turn(self) -> None:
        """What the server does in the end of one."""
        for shell in [self.shell, *self.server.paused]:
            shell.check_reading()

    # The transport
    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def set_write_buffer_limits(self, _: int) -> None:
        pass

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


def test_a_client_that_has_always_more_is_read_on_after_a_turn() -> None:
    """P-59: what limits publishers is looked at in turns, so one of them must not be read for long without one."""
    socket = Socket()
    for _ in range(3):
        assert socket.come(100) == FULL_MAX
        socket.turn()
    assert socket.seen == 3 * FULL_MAX * BUFFER_BYTES
    assert not socket.server.paused


def test_what_does_not_fill_the_buffer_holds_nobody_up() -> None:
    socket = Socket()
    assert socket.come(100, BUFFER_BYTES - 1) == 100


def test_one_that_is_to_wait_in_the_turn_is_read_when_it_may_go_on() -> None:
    socket = Socket()
    socket.come(100)
    socket.wants = False
    socket.turn()
    assert socket.come(1) == 0
    socket.wants = True
    socket.turn()
    assert socket.come(100) == FULL_MAX


def test_one_that_stands_still_is_not_read_by_a_turn() -> None:
    """Clients of a member that cannot prove that it leads."""
    socket = Socket()
    socket.shell.freeze(True)
    socket.turn()
    assert socket.come(1) == 0
    socket.shell.freeze(False)
    assert socket.come(100) == FULL_MAX
