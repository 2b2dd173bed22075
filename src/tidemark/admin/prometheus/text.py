"""How metrics are told: in the text of Prometheus or as OpenMetrics, by what the scraper accepts, a slice at a time.

The texts are made by prometheus_client. It makes them whole; a family of ten thousand queues would keep the loop busy for
longer than a client should wait. So a family is given to it in pieces, and other work is done between two pieces.

Invariant: the pieces together are what prometheus_client would have made of the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from prometheus_client import Metric as ClientMetric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.utils import floatToGoString

from tidemark.admin.prometheus.names import EVERY

PIECE = 400
"""Samples that are told at once."""
END = b"# EOF\n"
TYPES = {"gauge": "gauge", "counter": "counter", "histogram": "histogram", "info": "unknown"}

Labels = dict[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Buckets:
    """One histogram."""

    labels: Labels
    upto: list[tuple[float, int]]
    """(upper bound, how many values are not above it)."""
    total: float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its values."""

    name: str
    samples: Iterable[Sample | Buckets]


Encoder = Callable[..., bytes]


def encoder(accept: str) -> tuple[Encoder, str]:
    """The function that makes the text, and its content type, for what a scraper says that it accepts."""
    try:
        return choose_encoder(accept)
    except (ValueError, TypeError):  # a version that is no number
        return generate_latest, CONTENT_TYPE_PLAIN_0_0_4


async def told(families: AsyncIterator[Family], encode: Encoder, openmetrics: bool) -> AsyncIterator[bytes]:
    """The text of these families, piece by piece."""
    waiting: list[ClientMetric] = []
    count = 0
    async for family in families:
        samples = iter(family.samples)
        first = True
        while (piece := list(islice(samples, PIECE))) or first:
            metric = _client_metric(family.name, piece)
            if first:
                waiting.append(metric)
                count += len(piece)
            else:
                yield _text(encode, [metric], with_head=False)
                await asyncio.sleep(0)
            if count >= PIECE:
                yield _text(encode, waiting)
                waiting, count = [], 0
                await asyncio.sleep(0)
            first = False
    yield _text(encode, waiting)
    if openmetrics:
        yield END


def _client_metric(name: str, samples: Iterable[Sample | Buckets]) -> ClientMetric:
    known = EVERY[name]
    base = name.removesuffix("_total") if known.kind == "counter" else name
    metric = ClientMetric(base, known.help, TYPES[known.kind])
    for sample in samples:
        if isinstance(sample, Buckets):
            for bound, count in sample.upto:
                le = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
                metric.add_sample(f"{name}_bucket", {**sample.labels, "le": le}, count)
            metric.add_sample(f"{name}_count", sample.labels, sample.upto[-1][1])
            metric.add_sample(f"{name}_sum", sample.labels, sample.total)
        else:
            metric.add_sample(name, sample[0], sample[1])
    return metric


class _Registry:
    """What prometheus_client asks for the metrics."""

    def __init__(self, metrics: list[ClientMetric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[ClientMetric]:
        return iter(self._metrics)


def _text(encode: Encoder, metrics: list[ClientMetric], *, with_head: bool = True) -> bytes:
    made = encode(_Registry(metrics)).removesuffix(END)
    if with_head:
        return made
    return b"".join(line for line in made.splitlines(keepends=True) if not line.startswith(b"#"))


def label(name: str) -> str:
    """A name of an object as a label can hold it."""
    return name.encode("utf-8", "replace").decode()
