"""Puts rows into Tidemark's streams, over one connection."""

from __future__ import annotations

import numpy as np

from bench.cases import BATCH
from bench.streams.peers import expect
from bench.streams.pump import Buffer, Load, Pumped, pump, receive, send
from bench.streams.wire import Batch, Client, FrameAnswers, Keys
from bench.tidemark_server import TidemarkServer

KEYED, APPENDED = "keyed", "appended"
"""The two streams; rows of the second have no keys."""
_FILL_ROWS = 10_000
_WINDOW = 4


class Putter:
    """Puts rows with keys that are chosen uniformly, on one connection."""

    def __init__(self, server: TidemarkServer, client: Client, keys: int) -> None:
        self._server = server
        self._client = client
        self._keys = keys
        self._random = np.random.default_rng()
        self._number = 1 << 20
        self.put: dict[str, int] = {}
        """Rows that were put, by stream."""

    def declare(self, *streams: str) -> None:
        for stream in streams:
            self._client.call({"op": "declare", "stream": stream, "arguments": {"x-stream-key": "none"}})

    def fill(self, first: int, end: int) -> None:
        """Every key from first to end once."""
        batch = Batch(KEYED, _FILL_ROWS, keyed=True)
        starts = iter(range(first, end, _FILL_ROWS))
        answers, open_puts = FrameAnswers(), 0
        for start in starts:
            rows = np.arange(start, start + _FILL_ROWS, dtype=np.uint64)
            # The last batch is filled up with its last key again: as many keys, a few updates more.
            send(self._client.connection, batch.aim(self._next(), np.minimum(rows, np.uint64(end - 1))))
            open_puts += 1
            while open_puts >= _WINDOW:
                open_puts -= answers.feed(receive(self._client.connection))
        while open_puts:
            open_puts -= answers.feed(receive(self._client.connection))

    def run(self, stream: str, seconds: float, warmup_s: float = 0.0) -> Pumped:
        """Batches for so long."""
        batch = Batch(stream, BATCH, keyed=stream == KEYED)

        def payload() -> Buffer:
            return batch.aim(self._next(), self._draw(BATCH))

        return self._pump(stream, Load(payload, 1, BATCH, _WINDOW), seconds, warmup_s)

    def run_singles(self, stream: str, seconds: float, warmup_s: float) -> Pumped:
        """Puts of one row each, as many on their way as a batch has rows."""
        each = BATCH // _WINDOW
        batch = Batch(stream, 1, keyed=True)

        def encoded() -> bytes:
            return b"".join(bytes(batch.aim(self._next(), self._draw(1))) for _ in range(each))

        # A request number is free again when its put was answered, long before its turn comes round.
        prepared = [encoded() for _ in range(_WINDOW * 10)]
        turn = 0

        def payload() -> Buffer:
            nonlocal turn
            turn += 1
            return prepared[turn % len(prepared)]

        return self._pump(stream, Load(payload, each, each, _WINDOW), seconds, warmup_s)

    def _pump(self, stream: str, load: Load, seconds: float, warmup_s: float) -> Pumped:
        done = pump(
            self._client.connection, load, FrameAnswers(), self._server.cpu_seconds, seconds, warmup_s
        )
        self.put[stream] = self.put.get(stream, 0) + done.total_rows
        return done

    def _draw(self, count: int) -> Keys:
        return self._random.integers(0, self._keys, count, dtype=np.uint64)

    def _next(self) -> int:
        self._number = self._number % 0x7FFF_FFFF + 1
        return self._number

    def check(self) -> None:
        """The broker has each key once, and every row without a key."""
        expect(
            "Tidemark", "keys", self._keys, int(self._client.call({"op": "info", "stream": KEYED})["live"])
        )
        if APPENDED in self.put:
            found = int(self._client.call({"op": "info", "stream": APPENDED})["live"])
            expect("Tidemark", "rows without keys", self.put[APPENDED], found)


def together(runs: list[Pumped]) -> Pumped:
    """Several measured phases as one."""
    return Pumped(
        rows=sum(run.rows for run in runs),
        seconds=sum(run.seconds for run in runs),
        cpu_s=sum(run.cpu_s for run in runs),
        busy=sum(run.busy for run in runs) / len(runs),
        p50_ms=sorted(run.p50_ms for run in runs)[len(runs) // 2],
        p99_ms=max(run.p99_ms for run in runs),
        total_rows=sum(run.total_rows for run in runs),
    )
