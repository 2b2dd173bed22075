"""How a connection of AMQP 0-9-1 is opened here: what brokers and fronts alike tell a client of themselves, and when they
believe it enough to wait for it."""

from __future__ import annotations

from tidemark import __version__
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.amqp091.replies import NAMES
from tidemark.wire.amqp091.handshake import Handshake, State
from tidemark.wire.amqp091.methods import ConnectionTune

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
TRUSTED = (State.AWAIT_OPEN, State.AWAIT_ADMISSION, State.OPEN)
"""Steps of the handshake from which on a peer may be waited for when it is told that it failed."""
UNREAD_FACTOR = 4
"""How many times `output_bytes_max` may wait for a peer that does not read before we read no more from it."""


def server_handshake(
    config: Amqp091Config, frame_max: int, mechanisms: tuple[str, ...], more: tuple[str, ...] = ()
) -> Handshake:
    """The handshake with a client that has just connected; `more` are capabilities that not everybody is told."""
    return Handshake(
        ConnectionTune(config.channels_max, frame_max, config.heartbeat_s),
        {
            "product": "Tidemark",
            "version": __version__,
            "platform": "Python",
            "cluster_name": config.cluster_name,
            "capabilities": dict.fromkeys((*CAPABILITIES, *more), True),
        },
        mechanisms,
    )


def login_refused(mechanism: str) -> str:
    """What a client is told whose login failed. Why it did is for the log only."""
    return (
        f"{NAMES[403]} - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )
