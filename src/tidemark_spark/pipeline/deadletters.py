"""Where rejected rows go: a stream with the bytes that came, and in the headers why they were rejected.

A dead letter's key is `<view>/<key>`, where the view is the source or transform whose expectation it failed. So
several sinks that reject the same row make one dead letter, and a row that is rejected again in a newer version replaces
the older one. The rows of a batch are written before the batch is applied, under numbers of a producer that is named
after the query and what rejects rows in it: a batch that is done again stores nothing twice, but one that is done again
after the expectations were changed stores what they reject now.

Invariant: when a batch is applied to a sink, its dead letters are on the broker's disk, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tidemark.client

if TYPE_CHECKING:
    from tidemark.client import Client
    from tidemark_spark.pipeline.expectations import Rejected

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20
PARTS_MAX = 100_000
"""Transactions of one batch; what tells the numbers of one batch from those of the next."""


class DeadLetterWriter:
    """Writes the dead letters of one sink's query."""

    def __init__(self, client: Client, stream: str, pipeline: str, sink: str) -> None:
        self._client = client
        self._stream = stream
        self._pipeline = pipeline
        self._sink = sink
        self._home: Client | None = None
        """Of the group that the stream lives in; None: it was not yet looked for."""

    def write(self, query: str, batch: int, source: str, rows: Sequence[Rejected]) -> None:
        """Store the rejected rows of a batch, all of them once; `query` names what rejected them, and its batches.

        Raises:
            NotConnected, Unconfirmed, TidemarkError: nothing may be applied; do the batch again.
        """
        if not rows:
            return
        if self._home is None:
            self._home = self._client.stream(self._stream, create=True).client
        with self._home.producer(f"{self._pipeline}.{self._sink}.dead.{query}") as producer:
            for part, some in enumerate(parts(rows)):
                letters = [self._letter(one, source) for one in some]
                producer.put_many(self._stream, letters, number=batch * PARTS_MAX + part + 1)

    def close(self) -> None:
        self._client.close()

    def _letter(self, row: Rejected, source: str) -> tuple[bytes, bytes, dict[str, Any]]:
        own = row.key if row.key is not None else str(row.sequence).encode()
        headers: dict[str, Any] = {
            "pipeline": self._pipeline,
            "sink": self._sink,
            "on": row.on,
            "failed": ", ".join(row.failed),
            "stream": source,
            "key": row.shown,
            "sequence": row.sequence,
        }
        return f"{row.on}/".encode() + own, row.value, headers


def parts(rows: Sequence[Rejected]) -> Iterator[list[Rejected]]:
    """The rows in the order of their sequence, cut so that each part is one transaction; always cut alike."""
    some: list[Rejected] = []
    size = 0
    for row in sorted(rows, key=lambda one: (one.sequence, one.on)):
        if some and (len(some) == ROWS_MAX or size + len(row.value) > BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row.value)
    if some:
        yield some


def open_writer(url: str, stream: str, pipeline: str, sink: str) -> DeadLetterWriter:
    client = tidemark.client.connect(url, name=f"pipeline {pipeline}.{sink} dead letters")
    return DeadLetterWriter(client, stream, pipeline, sink)
