"""Sends traces to an OpenTelemetry receiver, when `tracing.endpoint` says where.

The spans are made and sent by OpenTelemetry's SDK: OTLP over HTTP, in batches, by a thread of its own. When the receiver is
away or slow, spans are dropped and the log says so at most once a minute; messages never wait for it.

    application's span ──► publish (broker) ──► deliver (broker)
            └────────────── traceparent in the message ──────────────► consumer's span

Invariant: at most `messages_per_s_max` messages are traced in a second, whatever clients send.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from tidemark import __version__
from tidemark.broker.tracing import Facts, Trace, Traces
from tidemark.config import Config
from tidemark.errors import ConfigError
from tidemark.runtime.log import Log

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

CONTEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
"""W3C: version, trace, parent, flags; a later version may have more behind it."""
SAMPLED = 1
STATE_MAX = 512
CLOSE_S = 3.0
COMPLAIN_S = 60.0


class OtelTrace:
    """One message's span. Fits `broker.tracing.Trace`."""

    __slots__ = ("_span", "context", "published_ns")

    def __init__(self, span: Span, published_ns: int) -> None:
        self._span = span
        self.context: SpanContext = span.get_span_context()
        self.published_ns = published_ns

    def end(self, failed: str = "") -> None:
        if failed:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, failed)
        self._span.end()


class Tracing:
    """Fits `broker.tracing.Tracer`."""

    def __init__(self, config: Config, log: Log) -> None:
        """Raises ConfigError when OpenTelemetry is not installed or the address is none."""
        settings = config.tracing
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(
                key="tracing.endpoint", problem="needs OpenTelemetry: pip install 'tidemark[tracing]'"
            ) from None
        _Complaints.install(log)
        about = {
            "service.name": settings.service,
            "service.version": __version__,
            "service.instance.id": config.node.name,
        }
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidemark", __version__)
        self._left = 0
        self._second = 0
        self._most = settings.messages_per_s_max
        share = settings.sample
        self.traces = Traces(self, lambda: random.random() < share, settings.roots)

    def publish(self, parent: str, state: str, facts: Facts) -> Trace | None:
        from opentelemetry.trace import SpanKind

        context: Any = None
        if parent:
            found = remote(parent, state)
            if found is None:
                return None
            context = found
        if not self._may():
            return None
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "publish", context, SpanKind.CONSUMER, _attributes("publish", facts), start_time=now_ns
        )
        return OtelTrace(span, now_ns)

    def deliver(self, trace: Trace, facts: Facts) -> None:
        from opentelemetry import trace as api

        assert isinstance(trace, OtelTrace)
        now_ns = time.time_ns()
        context = api.set_span_in_context(api.NonRecordingSpan(trace.context))
        attributes = _attributes("deliver", facts)
        attributes["tidemark.in_broker_ms"] = (now_ns - trace.published_ns) / 1e6
        span = self._tracer.start_span(
            "deliver",
            context,
            api.SpanKind.PRODUCER,
            attributes,
            links=[api.Link(trace.context)],
            start_time=now_ns,
        )
        span.end()

    def _may(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, self._most
        self._left -= 1
        return self._left >= 0

    def close(self) -> None:
        """Send what is waiting, for a moment; then leave it."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def remote(parent: str, state: str) -> Any:
    """The context that a message carries, when it is one and says that it is sampled; else None."""
    from opentelemetry import trace as api

    found = CONTEXT.fullmatch(parent)
    if found is None or found[1] == "ff" or (found[1] == "00" and len(parent) != 55):
        return None
    trace_id, span_id, flags = int(found[2], 16), int(found[3], 16), int(found[4], 16)
    if not trace_id or not span_id or not flags & SAMPLED:
        return None
    context = api.SpanContext(
        trace_id,
        span_id,
        is_remote=True,
        trace_flags=api.TraceFlags(flags & SAMPLED),
        trace_state=api.TraceState.from_header([state]) if 0 < len(state) <= STATE_MAX else None,
    )
    return api.set_span_in_context(api.NonRecordingSpan(context))


def _attributes(operation: str, facts: Facts) -> dict[str, Any]:
    """OpenTelemetry's names for what is said about a message."""
    found: dict[str, Any] = {
        "messaging.system": "tidemark",
        "messaging.operation.name": operation,
        "messaging.destination.name": facts.exchange or facts.key,
        "messaging.rabbitmq.destination.routing_key": facts.key,
        "messaging.message.body.size": facts.size,
        "tidemark.vhost": facts.vhost,
        "tidemark.connection": facts.connection,
    }
    if facts.queue:
        found["tidemark.queue"] = facts.queue
        found["tidemark.consumer_tag"] = facts.tag
        found["tidemark.redelivered"] = facts.redelivered
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class _Complaints(logging.Handler):
    """What the SDK says goes to our log, now and then."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._said_s = -COMPLAIN_S

    @classmethod
    def install(cls, log: Log) -> None:
        for name in ("opentelemetry", "urllib3"):
            logger = logging.getLogger(name)
            logger.handlers = [cls(log)]
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= COMPLAIN_S:
            self._said_s = now_s
            self._log.warning("traces not sent", problem=record.getMessage()[:300])
