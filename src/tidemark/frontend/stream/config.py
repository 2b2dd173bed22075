"""What an operator can set about the stream protocol: the `[stream]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import ConfigError
from tidemark.model.settings import setting

KiB = 1024
MiB = 1024 * KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    frame_bytes_max: int = setting(64 * MiB, "Largest frame that a client may send.")
    batch_bytes: int = setting(
        1 * MiB, "About how much a reader gets in one frame, unless it asks otherwise."
    )
    batch_rows_max: int = setting(65_536, "Most rows in one frame.")
    requests_max: int = setting(1024, "Most requests of one connection that are not answered yet.")
    snapshots_max: int = setting(256, "Most snapshots that one connection has open.")
    heartbeat_s: int = setting(60, "A PING goes out when nothing was sent for so long. 0 is off.")
    silent_s_max: int = setting(0, "A client that has sent nothing for so long is dropped. 0 is never.")
    handshake_s_max: int = setting(10, "Longest a client may take from connecting to its login.")
    close_s_max: int = setting(10, "Longest a goodbye may wait for what is on its way to the disk.")
    wait_s_max: int = setting(60, "Longest that a request may ask to wait for news.")
    behind_s_max: int = setting(
        5, "Longest that a reader waits at a member that has not got yet what the reader has seen elsewhere."
    )
    blocked_s_max: int = setting(
        30, "Longest that a put waits while publishers must wait; then it is refused."
    )
    output_bytes_max: int = setting(
        1 * MiB, "What may wait to be sent on one connection before its readers are given no more."
    )
    kept_bytes_max: int = setting(
        4 * MiB, "What puts that wait may hold before their connection is read no further."
    )

    put_rows_max: int = setting(524_288, "Most rows in one put or commit.")
    put_slow_rows_max: int = setting(
        32_768,
        "Most rows in one put or commit that have headers or conditions, which take longer. Of Arrow views and "
        "nulls, which must be turned, four count as one.",
    )
    put_parts_max: int = setting(
        1024, "Most operations of one commit, and Arrow record batches in one put or commit."
    )

    def __post_init__(self) -> None:
        if not 64 * KiB <= self.frame_bytes_max <= 1024 * MiB:
            raise ConfigError(key="stream.frame_bytes_max", problem="must be 64 KiB to 1 GiB")
        if not 4 * KiB <= self.batch_bytes <= self.frame_bytes_max:
            raise ConfigError(key="stream.batch_bytes", problem="must be 4 KiB to stream.frame_bytes_max")
        for name in ("heartbeat_s", "silent_s_max"):
            if getattr(self, name) < 0:
                raise ConfigError(key=f"stream.{name}", problem="must not be negative")
        for name in (
            "batch_rows_max",
            "requests_max",
            "snapshots_max",
            "handshake_s_max",
            "close_s_max",
            "wait_s_max",
            "behind_s_max",
            "blocked_s_max",
            "output_bytes_max",
            "kept_bytes_max",
            "put_rows_max",
            "put_slow_rows_max",
            "put_parts_max",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(key=f"stream.{name}", problem="must be at least 1")
