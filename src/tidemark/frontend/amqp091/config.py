"""What an operator can set about AMQP 0-9-1: the `[amqp091]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemark.errors import ConfigError
from tidemark.model.settings import setting

KiB = 1024
MiB = 1024 * KiB
OWN_BYTES = 32 * KiB
"""By how much a frame on a front's own link may be larger than a client's: for what brokers and fronts add to the headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp091Config:
    frame_bytes_max: int = setting(128 * KiB, "Largest frame that a client may send or ask for.")
    channels_max: int = setting(2047, "Most channels of one connection.")
    heartbeat_s: int = setting(
        60, "Heartbeat interval offered to clients; a peer silent for two of them is dropped. 0 is off."
    )
    message_bytes_max: int = setting(128 * MiB, "Largest body of a message.")
    unfinished_bytes_max: int = setting(
        256 * MiB, "Most that the messages of one connection may hold while their bodies are still coming."
    )
    handshake_s_max: int = setting(10, "Longest a client may take from connecting to an open connection.")
    close_s_max: int = setting(10, "Longest we wait for a client to confirm a close before dropping it.")
    output_bytes_max: int = setting(
        1 * MiB, "What may wait to be sent on one connection before its consumers are given no more."
    )
    kept_bytes_max: int = setting(
        4 * MiB, "What one connection may have waiting for a reply before it is read no further."
    )
    transaction_bytes_max: int = setting(256 * MiB, "Most that the publishes of one transaction may hold.")
    channels_per_s_max: int = setting(
        0, "Most channels that one connection may open in a second; with more it is closed. 0 is no limit."
    )
    consumers_max: int = setting(10_000, "Most consumers of one channel.")
    accept: Literal["durable", "early"] = setting(
        "durable",
        "When Channel.Close-Ok and Connection.Close-Ok are sent: when the acks of the channel are safe, or at once: a crash "
        "just then may deliver again what they settled.",
    )
    cluster_name: str = setting("tidemark", "Told to clients as cluster_name in the server properties.")

    def __post_init__(self) -> None:
        if not 4096 <= self.frame_bytes_max < 1 << 31:
            raise ConfigError(key="amqp091.frame_bytes_max", problem="must be 4096 to 2147483647")
        if not 1 <= self.channels_max <= 65535:
            raise ConfigError(key="amqp091.channels_max", problem="must be 1 to 65535")
        if not 0 <= self.heartbeat_s <= 65535:
            raise ConfigError(key="amqp091.heartbeat_s", problem="must be 0 to 65535")
        if not 0 < self.message_bytes_max <= 512 * MiB:
            raise ConfigError(key="amqp091.message_bytes_max", problem="must be 1 byte to 512 MiB")
        if self.unfinished_bytes_max < self.message_bytes_max:
            raise ConfigError(
                key="amqp091.unfinished_bytes_max", problem="must be at least amqp091.message_bytes_max"
            )
        for name in (
            "handshake_s_max",
            "close_s_max",
            "output_bytes_max",
            "kept_bytes_max",
            "transaction_bytes_max",
            "consumers_max",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(key=f"amqp091.{name}", problem="must be at least 1")
        if self.channels_per_s_max < 0:
            raise ConfigError(key="amqp091.channels_per_s_max", problem="must not be negative")
