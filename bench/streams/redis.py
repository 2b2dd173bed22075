"""Redis as a peer, with the append-only file synced before every answer.

Rows are appended to a Redis Stream (XADD); keyed rows are fields of one hash (HSET), because a Redis Stream knows
no keys. A batch is a MULTI … EXEC of 1,000 commands, which is redis-py's usual pipeline: it is all or nothing and
is synced once. Single puts are commands without MULTI, many on their way. Commands are encoded by redis-py before
they are sent.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from bench import proc
from bench.measure import Figures, RunFailedError, Scale
from bench.servers import ChildServer
from bench.streams import pump
from bench.streams.peers import PREPARED, VALUE, chunks, draw, expect, reading
from bench.streams.pump import Load, Marks, Pumped

_HASH, _STREAM = b"keyed", b"appended"
_WRONG = (b"-ERR", b"-EXECABORT", b"-MISCONF", b"-OOM", b"-WRONGTYPE")
_READ_ROWS = 10_000


class RedisUnavailableError(RuntimeError):
    """The server or its client is not installed; the message says what to install."""


def version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "not installed"
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return next((word[2:] for word in said.split() if word.startswith("v=")), "unknown")


def ensure_installed() -> str:
    """The server's program.

    Raises:
        RedisUnavailableError: it or redis-py is missing.
    """
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("redis") is None:
        raise RedisUnavailableError(
            "Redis is skipped: Debian's redis-server (`make services`) or redis-py is missing"
        )
    return program


class Redis(ChildServer):
    """One private server: `with Redis(folder) as redis: connect(redis.port)`."""

    name = "redis"
    _ready = re.compile(b"Ready to accept connections")
    _ready_in_log = True
    _stop_timeout_s = 20.0

    def _command(self) -> list[str]:
        program = ensure_installed()
        [self.port] = proc.free_ports(1)
        config = self._folder / "redis.conf"
        config.write_text(
            f"bind {proc.HOST}\n"
            f"port {self.port}\n"
            f'dir "{self._folder}"\n'
            "daemonize no\n"
            "appendonly yes\n"
            "appendfsync always\n"
            'save ""\n'
        )
        return [program, str(config)]

    def pids(self) -> list[int]:
        """The server, and while it rewrites its file the child that does so."""
        return proc.family(self.pid)

    def rss_bytes(self) -> int:
        return proc.rss_bytes([self.pid])


def figures(folder: Path, keys: int, batch: int, scale: Scale) -> Figures:
    """Rates of a private server.

    Raises:
        RunFailedError: it answered an error, or does not hold what was put.
    """
    import redis as client

    with Redis(folder) as server, client.Redis(proc.HOST, server.port) as asked:
        if (policy := asked.config_get("appendfsync")["appendfsync"]) != "always":
            raise RunFailedError(f"Redis runs with appendfsync {policy}")
        pack = _packer(asked)
        for chunk in chunks(keys, batch):
            asked.execute_command("HSET", _HASH, *(part for key in chunk for part in (b"%08d" % key, VALUE)))
            with asked.pipeline() as pipeline:
                for key in chunk:
                    pipeline.xadd(_STREAM, {b"%08d" % key: VALUE})
                pipeline.execute()
        time.sleep(scale.settle_s)
        with pump.connect(server.port) as connection:
            found = reading(lambda: _read(connection, pack, keys), server.cpu_seconds, scale.stream_s)
        for name, command, answer, rows, requests, whole in (
            ("keyed", _set, b"*%d\r\n" % batch, batch, 1, True),
            ("append", _add, b"*%d\r\n" % batch, batch, 1, True),
            ("single", _set, b":0\r\n", batch // 4, batch // 4, False),
        ):
            payloads = [
                pack([command(key) for key in draw(keys, rows)], whole=whole) for _ in range(PREPARED)
            ]
            done = _pump(server, payloads, answer, requests, rows, scale)
            found |= done.figures(name)
            if name == "append":
                expect("Redis", "entries in the stream", keys + done.total_rows, asked.xlen(_STREAM))
        expect("Redis", "keys in the hash", keys, asked.hlen(_HASH))
        return found


# The load -------------------------------------------------------------------------------------------

Command = tuple[bytes, ...]


def _set(key: int) -> Command:
    return (b"HSET", _HASH, b"%08d" % key, VALUE)


def _add(key: int) -> Command:
    return (b"XADD", _STREAM, b"*", b"%08d" % key, VALUE)


def _packer(asked: Any) -> Callable[..., bytes]:
    """Encodes commands as the client library does."""
    connection = asked.connection_pool.make_connection()

    def pack(commands: list[Command], *, whole: bool = False) -> bytes:
        wrapped: list[Command] = [(b"MULTI",), *commands, (b"EXEC",)] if whole else commands
        return b"".join(connection.pack_commands(wrapped))

    return pack


def _pump(
    server: Redis, payloads: list[bytes], answer: bytes, requests: int, rows: int, scale: Scale
) -> Pumped:
    turn = cycle(payloads)
    with pump.connect(server.port) as connection:
        load = Load(lambda: next(turn), requests, rows)
        answers = Marks(answer, _WRONG)
        return pump.pump(connection, load, answers, server.cpu_seconds, scale.stream_s, scale.warmup_s)


def _read(connection: socket.socket, pack: Callable[..., bytes], rows: int) -> int:
    """The first `rows` entries of the stream, ten thousand at a time."""
    value_mark = b"$%d\r\n" % len(VALUE)
    after, got = b"-", 0
    while got < rows:
        pump.send(connection, pack([(b"XRANGE", _STREAM, after, b"+", b"COUNT", b"%d" % _READ_ROWS)]))
        wanted, heard, seen = min(_READ_ROWS, rows - got), bytearray(), 0
        counter = Marks(value_mark, _WRONG)
        while seen < wanted or not heard.endswith(VALUE + b"\r\n"):
            data = pump.receive(connection, 1 << 20)
            heard += data
            seen += counter.feed(data)
        got += seen
        after = b"(" + _last_id(heard)
    return got


def _last_id(answer: bytearray) -> bytes:
    """Each entry is `*2 $n ID *2 $8 FIELD $100 VALUE`."""
    end = answer.rindex(b"\r\n*2\r\n$8\r\n")
    return bytes(answer[answer.rindex(b"\r\n", 0, end) + 2 : end])
