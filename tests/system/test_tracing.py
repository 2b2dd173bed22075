"""Traces of messages, sent by a real broker to a real receiver of OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pika
import pytest
from helpers.broker import BrokerProcess
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tidemark import client

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
PATIENCE_S = 20.0


class Receiver:
    """Keeps the spans that are sent to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def take(self, request: ExportTraceServiceRequest) -> None:
        for part in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in part.resource.attributes})
            for scope in part.scope_spans:
                self.spans.extend(scope.spans)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def wait_for(self, name: str, count: int) -> list[Any]:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.named(name)) < count:
            assert time.monotonic() < deadline, f"{len(self.named(name))} spans '{name}' of {count}"
            time.sleep(0.05)
        return self.named(name)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[BrokerProcess] = []

    def begin(*arguments: str) -> BrokerProcess:
        process = BrokerProcess(
            tmp_path / f"data{len(made)}", *arguments, environment={"OTEL_BSP_SCHEDULE_DELAY": "100"}
        )
        made.append(process)
        return process.start()

    yield begin
    for process in made:
        process.stop()


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    where = broker.address
    return pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port))


def facts(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def props(context: str | None = CONTEXT, **more: Any) -> pika.BasicProperties:
    headers = {**({} if context is None else {"traceparent": context}), **more}
    return pika.BasicProperties(delivery_mode=2, headers=headers or None)


def test_a_message_with_a_context_is_one_trace_from_its_publisher_to_its_consumer(
    receiver: Receiver, start: Start
) -> None:
    broker = start("--tracing.endpoint", receiver.url)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"hello", props(tracestate="vendor=7"))
        [publish] = receiver.wait_for("publish", 1)
        assert publish.trace_id.hex() == TRACE
        assert publish.parent_span_id.hex() == PARENT
        assert publish.trace_state == "vendor=7"
        assert facts(publish)["messaging.rabbitmq.destination.routing_key"] == "orders"
        assert facts(publish)["messaging.message.body.size"] == 5
        assert publish.end_time_unix_nano >= publish.start_time_unix_nano > 0
        method, properties, body = next(channel.consume("orders", inactivity_timeout=10))
        assert (body, properties.headers) == (b"hello", {"traceparent": CONTEXT, "tracestate": "vendor=7"})
        channel.basic_ack(method.delivery_tag)
        [deliver] = receiver.wait_for("deliver", 1)
    assert deliver.trace_id.hex() == TRACE
    assert deliver.parent_span_id == publish.span_id
    assert [link.span_id for link in deliver.links] == [publish.span_id]
    assert facts(deliver)["tidemark.queue"] == "orders"
    assert facts(deliver)["tidemark.redelivered"] is False
    assert facts(deliver)["tidemark.in_broker_ms"] > 0
    assert receiver.resources[0]["service.name"] == "tidemark"
    assert receiver.resources[0]["service.instance.id"] == "tidemark"


def test_only_sampled_contexts_are_traced_and_everything_arrives_in_order(
    receiver: Receiver, start: Start
) -> None:
    broker = start("--tracing.endpoint", receiver.url)
    contexts = [
        CONTEXT,
        None,
        f"00-{TRACE}-{PARENT}-00",  # its publisher chose not to be traced
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01-of-a-later-version",
    ]
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        for number in range(21):
            channel.basic_publish("", "q", str(number).encode(), props(contexts[number % 7]))
        got = [int(channel.basic_get("q", auto_ack=True)[2]) for _ in range(21)]
        assert got == list(range(21))
        assert len(receiver.wait_for("publish", 6)) == 6
    time.sleep(0.5)
    assert len(receiver.named("publish")) == 6


def test_a_redelivery_and_every_reader_of_a_stream_have_a_span_of_their_own(
    receiver: Receiver, start: Start
) -> None:
    broker = start("--tracing.endpoint", receiver.url)
    where = broker.address
    with client.connect(f"tidemark://guest:guest@{where.host}:{where.port}/") as db:
        db.stream("s", create=True)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        channel.queue_declare("q")
        channel.queue_bind("q", "amq.fanout")
        channel.queue_bind("s", "amq.fanout")
        channel.basic_publish("amq.fanout", "", b"x", props())
        for queue in ("q", "s", "s"):
            other = connection.channel()
            other.basic_qos(prefetch_count=10)
            arguments = {"x-stream-offset": "first"} if queue == "s" else {}
            for method, _, _ in other.consume(queue, inactivity_timeout=10, arguments=arguments):
                if queue == "q" and not method.redelivered:
                    other.basic_nack(method.delivery_tag)
                else:
                    break
        spans = receiver.wait_for("deliver", 4)
    assert sorted((facts(s)["tidemark.queue"], facts(s)["tidemark.redelivered"]) for s in spans) == [
        ("q", False),
        ("q", True),
        ("s", False),
        ("s", False),
    ]
    assert {span.trace_id.hex() for span in spans} == {TRACE}


def test_messages_without_a_context_begin_a_trace_only_when_that_is_asked_for(
    receiver: Receiver, start: Start
) -> None:
    broker = start(
        "--tracing.endpoint", receiver.url, "--tracing.roots", "true", "--tracing.messages-per-s-max", "5"
    )
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(3):
            channel.basic_publish("", "q", b"x")
        spans = receiver.wait_for("publish", 3)
        assert len({span.trace_id for span in spans}) == 3
        _, properties, _ = channel.basic_get("q")
        assert properties.headers is None  # messages are not changed
        time.sleep(1.1)
        for _ in range(200):
            channel.basic_publish("", "q", b"x")
    time.sleep(1.5)
    assert len(receiver.named("publish")) <= 3 + 15  # five a second, over three seconds at most


def test_a_receiver_that_is_away_costs_nothing_but_a_line_in_the_log(start: Start) -> None:
    broker = start("--tracing.endpoint", "http://127.0.0.1:9/v1/traces")
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        for _ in range(20):
            channel.basic_publish("", "q", b"x", props())
        deadline = time.monotonic() + PATIENCE_S
        while "TM-1017" not in broker.log_path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert "Traceback" not in broker.log_path.read_text()


def test_a_share_of_nothing_looks_at_nothing(receiver: Receiver, start: Start) -> None:
    broker = start("--tracing.endpoint", receiver.url, "--tracing.sample", "0")
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", props())
        assert channel.basic_get("q")[2] == b"x"
    time.sleep(0.6)
    assert receiver.spans == []
