"""What an operator can set about the broker itself: the `[broker]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemark.errors import ConfigError
from tidemark.model.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    default_user: str = setting("guest", "User that is created in a new data directory, with all rights.")
    default_password: str = setting("guest", "Its password.")
    default_vhost: str = setting("/", "Virtual host that is created in a new data directory.")
    loopback_users: tuple[str, ...] = setting(("guest",), "Users that may only log in from this machine.")
    show: Literal["durable", "at-once"] = setting(
        "durable",
        "When consumers see a persistent message: when it is on the disk, or at once, though a crash may take it back.",
    )
    routes_max: int = setting(
        65_536, "How many (exchange, key) pairs of one virtual host have their queues remembered."
    )
    scrypt_log2_n: int = setting(
        14, "Cost of a new password hash: 2 to this power rounds of scrypt, 1 KiB of memory each."
    )
    producers_max: int = setting(
        100_000,
        "How many producers have their last batch remembered; of more, the least recently used are forgotten.",
    )
    batch_bytes_max: int = setting(
        128 * 1024 * 1024, "Most that one all-or-nothing batch of a stream client may take in the journal."
    )
    snapshot_idle_s: int = setting(
        3600, "A snapshot of a stream that nobody reads from for so long is closed; a pin has its own lease."
    )

    consumer_timeout_ms: int = setting(
        30 * 60 * 1000,
        "How long a consumer may hold a message without acknowledging it before its channel is closed; "
        "queues and policies may say otherwise. 0 is for ever.",
    )

    def __post_init__(self) -> None:
        if not self.default_user or not self.default_vhost:
            raise ConfigError(key="broker.default_user", problem="the user and the virtual host need a name")
        if self.routes_max < 1:
            raise ConfigError(key="broker.routes_max", problem="must be at least 1")
        if not 10 <= self.scrypt_log2_n <= 20:
            raise ConfigError(key="broker.scrypt_log2_n", problem="must be 10 to 20")
        if self.producers_max < 1:
            raise ConfigError(key="broker.producers_max", problem="must be at least 1")
        if not 1 << 16 <= self.batch_bytes_max <= 1 << 31:
            raise ConfigError(key="broker.batch_bytes_max", problem="must be 64 KiB to 2 GiB")
        if self.snapshot_idle_s < 1:
            raise ConfigError(key="broker.snapshot_idle_s", problem="must be at least 1")
        if self.consumer_timeout_ms < 0:
            raise ConfigError(key="broker.consumer_timeout_ms", problem="must not be negative")
