"""What can be wrong with a frame, for both scanners: they find the same faults in the same words.

Everything here is off the fast path: a broken frame, or the header of content that comes in pieces.
"""

from __future__ import annotations

from tidemark.errors import (
    ChannelFault,
    CommandInvalid,
    FrameError,
    RemoteProtocolError,
    SyntaxFault,
    UnexpectedFrame,
)
from tidemark.wire.amqp091.frames import (
    BASIC,
    BODY,
    CONTENT_START,
    ENVELOPE_BYTES,
    HEADER,
    HEARTBEAT,
    METHOD,
)


def refused_frame(
    kind: int, channel: int, size: int, frame_max: int, channel_max: int
) -> RemoteProtocolError:
    """Why a frame that starts like this is not waited for."""
    if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
        return FrameError(reason=f"there is no frame of type {kind}")
    if frame_max and size + ENVELOPE_BYTES > frame_max:
        return FrameError(
            reason=f"a frame of {size + ENVELOPE_BYTES} bytes is over the negotiated {frame_max}"
        )
    assert channel > channel_max
    return ChannelFault(reason=f"channel {channel} is over the negotiated {channel_max}")


def no_end_mark(channel: int, end_mark: int) -> RemoteProtocolError:
    return FrameError(
        reason=f"a frame on channel {channel} ends with {end_mark:#04x} instead of its end mark"
    )


def bad_heartbeat(channel: int, size: int) -> RemoteProtocolError:
    if channel:
        return CommandInvalid(reason=f"a heartbeat belongs on channel 0, not {channel}")
    return FrameError(reason=f"a heartbeat has no payload, but this one has {size} bytes")


def publish_on_channel_0() -> RemoteProtocolError:
    return CommandInvalid(reason="a publish on channel 0, which is the connection's own")


def method_in_content(channel: int) -> RemoteProtocolError:
    return UnexpectedFrame(reason=f"a method on channel {channel} in the middle of content")


def unexpected_content(kind: int, channel: int) -> RemoteProtocolError:
    name = "header" if kind == HEADER else "body"
    return UnexpectedFrame(reason=f"a content {name} on channel {channel} where none belongs")


def short_delivery(channel: int) -> RemoteProtocolError:
    return SyntaxFault(reason=f"a delivery on channel {channel} is truncated")


def too_much_body(channel: int, announced: int) -> RemoteProtocolError:
    return FrameError(reason=f"the body on channel {channel} is longer than the {announced} bytes announced")


def announced_size(payload: bytes | memoryview) -> int:
    """The body size in a content header.

    Raises:
        SyntaxFault: it is too short.
        UnexpectedFrame: it is of a class whose methods have no content, or has a weight.
    """
    if len(payload) < CONTENT_START.size:
        raise SyntaxFault(reason=f"a content header of {len(payload)} bytes is truncated")
    class_id, weight, size = CONTENT_START.unpack_from(payload)
    if class_id != BASIC:
        raise UnexpectedFrame(reason=f"a content header for class {class_id} instead of {BASIC}")
    if weight:
        raise UnexpectedFrame(reason=f"a content header with weight {weight} instead of 0")
    return int(size)
