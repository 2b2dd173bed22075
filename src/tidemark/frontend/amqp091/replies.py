"""What the peer is told when something goes wrong: the code, its name in RabbitMQ's words, and why."""

from __future__ import annotations

from tidemark.errors import TidemarkError

NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}


def reply_text(error: TidemarkError) -> str:
    """`NOT_FOUND - no queue 'x' in vhost '/'`."""
    return f"{NAMES[error.amqp091]} - {error}"
