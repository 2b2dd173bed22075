"""Finding frames in what a connection reads, and cutting them into runs: the reference.

`Scanner.feed` takes all bytes that are there and finds every whole frame at their front. What a
broker does per message comes out as runs: the publishes of a channel as one `PublishRun`, its acks
as one `AckRun`; everything else is one event each. A channel has at most one open run in a feed,
placed where its first member was found; anything else on the channel closes it.

A publish whose method, header and body frames (none for an empty body, else one) follow one
another directly is described in place: its row points into the bytes that were fed. Any other
content, in several body frames or spread over feeds or between frames of other channels, is
gathered in a buffer of its own (exchange, key, properties, body in a row) and is a run of one
over that buffer. The buffer grows with the bytes that arrive, not with the size they announce.

                      publish              header             body complete
    (nothing) ──────► NEEDS_HEADER ──────► NEEDS_BODY ──────────────────────► (nothing)
                          │ size > body_max     │
                          ▼                     │ discard()
                        DROPPING ◄──────────────┘        any method ends DROPPING

Invariants: a byte is reported used exactly once, and whatever way the stream is cut into feeds,
the publishes, acks and other events of a channel are the same and in the same order. The
properties of every row decode without error. After a `Fault` nothing comes any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import RemoteProtocolError
from tidemark.model._runs_py import (
    DIRECT_REPLY,
    HAS_COPIES,
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_PRODUCER,
    HAS_USER_ID,
    IMMEDIATE,
    MANDATORY,
    PERSISTENT,
    PublishRun,
)
from tidemark.wire.amqp091 import checks
from tidemark.wire.amqp091.events import (
    AckRun,
    Event,
    Fault,
    Heartbeat,
    MethodFrame,
    Oversized,
)
from tidemark.wire.amqp091.frames import (
    BODY,
    CONTENT_START,
    ENVELOPE_BYTES,
    FRAME_END,
    FRAME_START,
    HEADER,
    HEARTBEAT,
    METHOD,
)
from tidemark.wire.amqp091.methods import BasicAck, BasicPublish, decode_method, method_ids
from tidemark.wire.amqp091.properties import PERSISTENT_MODE, decode_properties

CHANNEL_MAX = 65535
TTL_DIGITS_MAX = 18
"""An expiration of more digits than this counts as not a number."""
TTL_MAX = 0xFFFFFFFF
"""The longest time to live, in ms; more is refused, as RabbitMQ does."""

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
"""The reply-to of a requester who wants replies on its own channel, without a queue."""
PUBLISH = (60, 40)


@dataclass(slots=True)
class _Content:
    """What a channel has of a publish so far."""

    exchange_bytes: int = 0
    key_bytes: int = 0
    properties_bytes: int = 0
    body_bytes: int = -1  # as announced; -1 before the header
    flags: int = 0
    priority: int = 0
    ttl_ms: int = -1
    dropping: bool = False
    buffer: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """How many bytes of the body are still to come."""
        return self.body_bytes - (len(self.buffer) - self._head_bytes)

    @property
    def _head_bytes(self) -> int:
        return self.exchange_bytes + self.key_bytes + self.properties_bytes

    def run(self, channel: int) -> PublishRun:
        run = PublishRun(channel, self.buffer)
        key = self.exchange_bytes
        properties = key + self.key_bytes
        run.add(
            (0, self.exchange_bytes),
            (key, self.key_bytes),
            (properties, self.properties_bytes),
            (self._head_bytes, self.body_bytes),
            self.flags,
            self.priority,
            self.ttl_ms,
        )
        return run


class Scanner:
    """One per connection.

    `frame_max` (0 is no limit) and `channel_max` may be changed at any time, as the handshake goes
    on: with `channel_max` 0 nobody can send content, for content on channel 0 is refused.
    """

    def __init__(self, frame_max: int, body_max: int, channel_max: int = CHANNEL_MAX) -> None:
        self.frame_max = frame_max
        self.body_max = body_max
        self.channel_max = channel_max
        self._contents: dict[int, _Content] = {}
        self._failed = False
        # Only within one feed:
        self._events: list[Event] = []
        self._open: dict[int, PublishRun | AckRun] = {}

    @property
    def assembling_bytes(self) -> int:
        """Bytes held for content that is not complete yet."""
        return sum(len(content.buffer) for content in self._contents.values())

    def discard(self, channel: int) -> None:
        """The channel was closed on our side: forget its content, and drop what follows of it.

        Header and body frames of the channel are dropped until its next method.
        """
        if channel in self._contents:
            self._contents[channel] = _Content(dropping=True)

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[list[Event], int]:
        """Find what is whole at the front of `data`.

        Returns:
            The events, and how many bytes they used. The rest is the start of a frame and must
            come again, with what follows it. Runs point into `data`.
        """
        view = memoryview(data)
        if self._failed:
            return [], len(view)
        self._events, self._open = [], {}
        position, channel, ids = 0, 0, (0, 0)
        try:
            while len(view) - position >= FRAME_START.size:
                kind, channel, size = FRAME_START.unpack_from(view, position)
                ids = (0, 0)
                if not self._admits(kind, channel, size):
                    raise checks.refused_frame(kind, channel, size, self.frame_max, self.channel_max)
                start = position + FRAME_START.size
                end = start + size
                if end >= len(view):
                    break
                if view[end] != FRAME_END:
                    raise checks.no_end_mark(channel, view[end])
                position = end + 1
                if kind == METHOD:
                    ids = method_ids(view[start:end])
                    position = self._method(view, channel, start, end)
                elif kind == HEARTBEAT:
                    if channel or size:
                        raise checks.bad_heartbeat(channel, size)
                    self._events.append(Heartbeat())
                else:
                    ids = PUBLISH if channel in self._contents else (0, 0)
                    self._content(kind, channel, view[start:end])
        except RemoteProtocolError as error:
            self._failed = True
            self._contents.clear()
            # Its traceback would keep the read buffer alive.
            self._events.append(Fault(error.with_traceback(None), channel, *ids))
            position = len(view)
        events, self._events, self._open = self._events, [], {}
        return events, position

    def _admits(self, kind: int, channel: int, size: int) -> bool:
        return (
            kind in (METHOD, HEADER, BODY, HEARTBEAT)
            and (not self.frame_max or size + ENVELOPE_BYTES <= self.frame_max)
            and channel <= self.channel_max
        )

    # Methods -----------------------------------------------------------------------------------

    def _method(self, view: memoryview, channel: int, start: int, end: int) -> int:
        """Take the method between `start` and `end`; return where to go on."""
        if channel in self._contents:
            if not self._contents[channel].dropping:
                raise checks.method_in_content(channel)
            del self._contents[channel]
        method = decode_method(view[start:end])
        match method:
            case BasicPublish():
                if channel == 0:
                    raise checks.publish_on_channel_0()
                return self._publish(view, channel, start, end, method)
            case BasicAck(delivery_tag=tag, multiple=multiple) if tag or multiple:
                self._ack(channel, tag, multiple)
            case _:
                # A single ack of tag 0 comes here too: as a range it would mean everything.
                self._open.pop(channel, None)
                self._events.append(MethodFrame(channel, method))
        return end + 1

    def _ack(self, channel: int, tag: int, multiple: bool) -> None:
        run = self._open.get(channel)
        if not isinstance(run, AckRun):
            run = self._open[channel] = AckRun(channel, [])
            self._events.append(run)
        first, last = run.ranges[-1] if run.ranges else (0, 0)
        if multiple:
            run.ranges.append((0, tag))
        elif first and tag == last + 1:
            run.ranges[-1] = (first, tag)
        else:
            run.ranges.append((tag, tag))

    def _publish(self, view: memoryview, channel: int, start: int, end: int, method: BasicPublish) -> int:
        flags = MANDATORY * method.mandatory | IMMEDIATE * method.immediate
        exchange = (start + 7, view[start + 6])
        key_length_at = sum(exchange)
        key = (key_length_at + 1, view[key_length_at])
        found = self._content_in_place(view, channel, end + 1)
        if found is None:
            self._open.pop(channel, None)
            names = bytes(view[exchange[0] : key_length_at]) + bytes(view[key[0] : sum(key)])
            self._contents[channel] = _Content(exchange[1], key[1], flags=flags, buffer=bytearray(names))
            return end + 1
        properties, body, facts, position = found
        run = self._open.get(channel)
        if not isinstance(run, PublishRun):
            run = self._open[channel] = PublishRun(channel, view)
            self._events.append(run)
        run.add(exchange, key, properties, body, flags | facts[0], facts[1], facts[2])
        return position

    # Content -----------------------------------------------------------------------------------

    def _content_in_place(
        self, view: memoryview, channel: int, position: int
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int], int] | None:
        """Properties, body, facts and the position behind, if the content is here and flawless."""
        header = self._peek(view, position, HEADER, channel)
        if header is None:
            return None
        start, end = header
        properties = start + CONTENT_START.size
        try:
            size = checks.announced_size(view[start:end])
            facts = inspect_properties(view[properties:end])
        except RemoteProtocolError:
            return None  # reading on frame by frame says what is wrong
        if size > self.body_max:
            return None
        if size == 0:
            return (properties, end - properties), (end, 0), facts, end + 1
        body = self._peek(view, end + 1, BODY, channel)
        if body is None or body[1] - body[0] != size:
            return None
        return (properties, end - properties), (body[0], size), facts, body[1] + 1

    def _peek(self, view: memoryview, position: int, kind: int, channel: int) -> tuple[int, int] | None:
        """Start and end of the payload, if just this frame is whole at `position`."""
        start = position + FRAME_START.size
        if start > len(view):
            return None
        found_kind, found_channel, size = FRAME_START.unpack_from(view, position)
        end = start + size
        if (
            (found_kind, found_channel) == (kind, channel)
            and self._admits(kind, channel, size)
            and end < len(view)
            and view[end] == FRAME_END
        ):
            return start, end
        return None

    def _content(self, kind: int, channel: int, payload: memoryview) -> None:
        content = self._contents.get(channel)
        if content is None:
            raise checks.unexpected_content(kind, channel)
        if content.dropping:
            return
        if (kind == HEADER) != (content.body_bytes < 0):
            raise checks.unexpected_content(kind, channel)
        if kind == HEADER:
            size = checks.announced_size(payload)
            if size > self.body_max:
                self._contents[channel] = _Content(dropping=True)
                self._events.append(Oversized(channel, size))
                return
            properties = payload[CONTENT_START.size :]
            flags, content.priority, content.ttl_ms = inspect_properties(properties)
            content.flags |= flags
            content.properties_bytes = len(properties)
            content.body_bytes = size
            content.buffer += properties
        elif len(payload) > content.missing:
            raise checks.too_much_body(channel, content.body_bytes)
        else:
            content.buffer += payload
        if content.missing == 0:
            del self._contents[channel]
            self._events.append(content.run(channel))


def inspect_properties(raw: bytes | memoryview) -> tuple[int, int, int]:
    """Row flags, priority and ttl in ms of raw properties.

    Raises:
        SyntaxFault: they cannot be decoded.
    """
    properties = decode_properties(raw)
    flags, ttl_ms = 0, -1
    if properties.headers is not None:
        flags |= HAS_HEADERS
        if "CC" in properties.headers or "BCC" in properties.headers:
            flags |= HAS_COPIES
        if "x-producer" in properties.headers:
            flags |= HAS_PRODUCER
    if properties.delivery_mode == PERSISTENT_MODE:
        flags |= PERSISTENT
    if properties.reply_to == DIRECT_REPLY_TO:
        flags |= DIRECT_REPLY
    if properties.user_id is not None:
        flags |= HAS_USER_ID
    if (text := properties.expiration) is not None:
        flags |= HAS_EXPIRATION
        plain = text.isascii() and text.isdigit() and len(text) <= TTL_DIGITS_MAX
        ttl_ms = int(text) if plain and int(text) <= TTL_MAX else -2
    return flags, properties.priority or 0, ttl_ms
