"""Streams of AMQP 0-9-1 frames for tests, and what a scanner makes of them as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from tidemark.model.rows import Row, RowBatch
from tidemark.model.runs import BODY, EXCHANGE, FLAGS, KEY, PRIORITY, PROPERTIES, TTL
from tidemark.model.values import Decimal, Float32, Int8, Timestamp, UInt32
from tidemark.wire.amqp091 import methods as m
from tidemark.wire.amqp091.events import (
    AckRun,
    Event,
    Fault,
    Heartbeat,
    MethodFrame,
    Oversized,
)
from tidemark.wire.amqp091.frames import HEARTBEAT_FRAME, encode_content
from tidemark.wire.amqp091.properties import NO_PROPERTIES, Properties, encode_properties
from tidemark.wire.stream.frames import Kind, encode_frame
from tidemark.wire.stream.rows import encode_rows

FRAME_MAX = 4096


def publish_frames(
    channel: int = 1,
    exchange: str = "",
    key: str = "q",
    body: bytes = b"",
    properties: bytes = NO_PROPERTIES,
    frame_max: int = FRAME_MAX,
    mandatory: bool = False,
    immediate: bool = False,
) -> list[bytes]:
    """The frames of one publish: method, header, bodies."""
    method = m.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
    content = encode_content(channel, properties, body, frame_max)
    return [m.encode_method(channel, method), *split_frames(content)]


def publish(channel: int = 1, **facts: Any) -> bytes:
    return b"".join(publish_frames(channel, **facts))


def split_frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 8 + int.from_bytes(data[3:7], "big")
        found.append(data[:size])
        data = data[size:]
    return found


# What came out, as plain values --------------------------------------------------------------


def told(event: Event) -> Any:
    """An event of either scanner as a value that can be compared."""
    match event:
        case AckRun() | MethodFrame() | Heartbeat() | Oversized():
            return event
        case Fault(error, channel, class_id, method_id):
            return ("fault", type(error), str(error), channel, class_id, method_id)
    return ("publishes", event.channel, [message(event, i) for i in range(len(event))])


def message(run: Any, index: int) -> tuple[Any, ...]:
    parts = [run.part(index, column) for column in (EXCHANGE, KEY, PROPERTIES, BODY)]
    return (*parts, *(run.number(index, column) for column in (FLAGS, PRIORITY, TTL)))


def scan(scanner: Any, stream: bytes, cuts: Iterable[int], discards: Iterable[int] = ()) -> list[Any]:
    """Feed the stream in pieces, as a connection does; all answers, feed by feed.

    `cuts` are the lengths of the reads; `discards` the channel closed after each of them, 0 none.
    """
    answers: list[Any] = []
    waiting = b""
    closed = iter(discards)
    for piece in pieces(stream, cuts):
        waiting += piece
        # A buffer of its own for each read, wiped afterwards: a run must not depend on it longer.
        buffer = bytearray(waiting)
        events, used = scanner.feed(memoryview(buffer))
        answers.append(([told(event) for event in events], used, scanner.assembling_bytes))
        assert 0 <= used <= len(waiting)
        waiting = waiting[used:]
        if channel := next(closed, 0):
            scanner.discard(channel)
    return answers


def pieces(stream: bytes, cuts: Iterable[int]) -> Iterable[bytes]:
    position = 0
    for cut in cuts:
        yield stream[position : position + cut]
        position += cut
    yield stream[position:]


# Streams made by dice --------------------------------------------------------------------------

_NAMES = ["", "amq.topic", "a-rather-long-name-for-a-queue" * 4, "\udcff\udc80x"]
_METHODS: list[m.Method] = [
    m.ChannelOpen(),
    m.ChannelCloseOk(),
    m.QueueDeclare(queue="q", durable=True, arguments={"x-max-priority": 9, "t": Timestamp(7)}),
    m.BasicNack(delivery_tag=3, multiple=True),
    m.BasicAck(delivery_tag=0, multiple=False),
    m.TxCommit(),
    m.ConnectionClose(200, "bye", 60, 40),
]


def some_properties(dice: Random) -> bytes:
    """Raw properties, all well formed."""
    if dice.random() < 0.3:
        return NO_PROPERTIES
    chosen = {
        "content_type": "text/plain",
        "content_encoding": "",
        "headers": dice.choice(
            [
                {},
                {"CC": ["a", "b"]},
                {"BCC": [], "x": None},
                {"inner": {"CC": 1}, "list": [1, [2, {"a": b"\x00"}]], "n": Int8(-3)},
                {"CCC": 1 << 40, "d": Decimal(2, 314), "f": Float32(0.5), "u": UInt32(1)},
            ]
        ),
        "delivery_mode": dice.choice([0, 1, 2, 255]),
        "priority": dice.choice([0, 1, 9, 255]),
        "correlation_id": "c" * dice.choice([0, 36, 255]),
        "reply_to": "amq.rabbitmq.reply-to",
        "expiration": dice.choice(["", "0", "60000", "-1", "1.5", "9" * 18, "9" * 19, " 1", "x", "٣"]),
        "message_id": "m",
        "timestamp": dice.choice([0, 2**64 - 1]),
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "",
    }
    names = [name for name in chosen if dice.random() < 0.4]
    raw = encode_properties(Properties(**{name: chosen[name] for name in names}))  # type: ignore[arg-type]
    if dice.random() < 0.05:  # one more word of flags, with nothing in it
        raw = bytes([raw[0], raw[1] | 1]) + b"\x00\x00" + raw[2:]
    return raw


def some_stream(dice: Random, length: int = 12) -> bytes:
    """Frames of several channels, interleaved at frame borders, mostly within the rules."""
    queues: list[list[bytes]] = []
    for channel in dice.sample([1, 2, 3, 65535], dice.randint(1, 3)):
        frames: list[bytes] = []
        tag = dice.choice([1, 1000, 2**64 - 3])
        for _ in range(dice.randint(0, length)):
            kind = dice.random()
            if kind < 0.5:
                frames += publish_frames(
                    channel,
                    exchange=dice.choice(_NAMES),
                    key=dice.choice(_NAMES),
                    body=bytes([dice.randrange(256)]) * dice.choice([0, 0, 1, 100, 4088, 9000]),
                    properties=some_properties(dice),
                    frame_max=dice.choice([FRAME_MAX, FRAME_MAX, 48]),
                    mandatory=dice.random() < 0.2,
                    immediate=dice.random() < 0.1,
                )
            elif kind < 0.85:
                tag += dice.choice([1, 1, 1, 2])
                ack = m.BasicAck(delivery_tag=tag % 2**64, multiple=dice.random() < 0.2)
                frames.append(m.encode_method(channel, ack))
            else:
                frames.append(m.encode_method(channel, dice.choice(_METHODS)))
        queues.append(frames)
    queues.append([HEARTBEAT_FRAME] * dice.randint(0, 2))
    stream = []
    while queues := [frames for frames in queues if frames]:
        frames = dice.choice(queues)
        for _ in range(min(len(frames), dice.choice([1, 3, 20]))):
            stream.append(frames.pop(0))
    return b"".join(stream)


def spoiled(dice: Random, stream: bytes) -> bytes:
    """The stream with a few bytes changed, taken out, put in or repeated."""
    data = bytearray(stream)
    for _ in range(dice.randint(0, 3)):
        at = dice.randint(0, len(data))
        match dice.randrange(4):
            case 0 if at < len(data):
                data[at] = dice.choice([0, 1, 2, 3, 8, 0xCE, 0xFF, dice.randrange(256)])
            case 1:
                del data[at : at + dice.choice([1, 2, 8, 40])]
            case 2:
                data[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice([1, 4, 12])))
            case _:
                data[at:at] = data[at : at + dice.choice([1, 8, 60])]
    return bytes(data)


def some_frames(dice: Random) -> bytes:
    """Frames of the stream protocol that put rows, in both encodings."""
    out: list[Any] = []
    for number in range(dice.randint(1, 3)):
        header, payload = some_arrow(dice) if dice.random() < 0.5 else encode_rows(some_rows(dice))
        out += encode_frame(Kind.REQUEST, number + 1, {"op": "put", "stream": "s", **header}, payload)
    return b"".join(out)


def some_rows(dice: Random) -> RowBatch:
    rows = []
    for _ in range(dice.randint(0, 5)):
        deleted = dice.random() < 0.2
        key = dice.randbytes(dice.randint(0, 9)) if deleted or dice.random() < 0.8 else None
        value = b"" if deleted else dice.randbytes(dice.randint(0, 30))
        properties = some_properties(dice) if dice.random() < 0.3 else b""
        rows.append(Row(key, value, properties, deleted, dice.choice([-1, 0, 7])))
    return RowBatch.build(rows)


def some_arrow(dice: Random) -> tuple[dict[str, Any], list[bytes]]:
    import pyarrow as pa

    rows = list(some_rows(dice))
    kind = dice.choice([pa.binary(), pa.binary(), pa.large_binary(), pa.binary_view()])
    columns: dict[str, Any] = {
        "key": pa.array([row.key for row in rows], kind),
        "value": pa.array([None if row.tombstone else row.value for row in rows], kind),
        "deleted": pa.array([row.tombstone for row in rows], pa.bool_()),
    }
    if dice.random() < 0.3:
        columns["headers"] = pa.array(
            [[{"key": "a", "value": row.value}] for row in rows],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        )
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    codec = dice.choice([None, None, None, "lz4"])
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return {"encoding": "arrow"}, [sink.getvalue().to_pybytes()]


def some_cuts(dice: Random, length: int) -> list[int]:
    step = dice.choice([1, 7, 100, 3000, 100_000])
    cuts: list[int] = []
    while sum(cuts) < length and len(cuts) < 200:
        cuts.append(dice.randint(1, step))
    return cuts
