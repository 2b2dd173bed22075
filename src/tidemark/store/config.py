"""What an operator can set about the store: the `[store]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemark.errors import ConfigError
from tidemark.model.settings import setting

KiB = 1024
MiB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    segment_bytes: int = setting(64 * MiB, "Size of a segment file of the journal.")
    extent_bytes: int = setting(MiB, "Size of the pieces in which messages are kept in memory and paged.")
    cache_bytes: int = setting(512 * MiB, "Messages kept in memory; more than that are read back from disk.")
    pool_files_max: int = setting(4, "Segment files that are kept for reuse instead of being removed.")
    compact_garbage_percent: int = setting(50, "Share of dead bytes at which a segment is rewritten.")
    compact_bytes_per_s: int = setting(64 * MiB, "Most that compaction reads in a second.")
    compact_quiet_ms: int = setting(
        5000, "How long a segment's messages must have been left alone before it is rewritten."
    )
    ack_patience_ms: int = setting(
        5, "How long the record of an acknowledgement may wait for others to share its sync."
    )
    catalog_bytes: int = setting(MiB, "Size of a file of the catalog log.")
    checkpoint_bytes: int = setting(
        256 * MiB, "Journal after which a checkpoint is written, so that a start reads less; 0 for none."
    )
    checkpoint_wait_ms: int = setting(5000, "At least so long from one checkpoint to the next.")
    on_corruption: Literal["refuse", "skip"] = setting(
        "refuse",
        "Damaged records at start: refuse to start, or (not in a cluster) report them and serve the rest.",
    )

    def __post_init__(self) -> None:
        for name, least in (
            ("segment_bytes", 64 * KiB),
            ("catalog_bytes", 16 * KiB),
            ("extent_bytes", 4 * KiB),
        ):
            value = getattr(self, name)
            if value < least or value % 4096:
                raise ConfigError(
                    key=f"store.{name}", problem=f"must be a multiple of 4096, at least {least // KiB} KiB"
                )
        if self.extent_bytes > self.segment_bytes // 2:
            raise ConfigError(key="store.extent_bytes", problem="must be at most half of store.segment_bytes")
        if self.cache_bytes < 2 * self.extent_bytes:
            raise ConfigError(key="store.cache_bytes", problem="must be at least two extents")
        if not 0 <= self.pool_files_max <= 1000:
            raise ConfigError(key="store.pool_files_max", problem="must be 0 to 1000")
        if not 10 <= self.compact_garbage_percent <= 95:
            raise ConfigError(key="store.compact_garbage_percent", problem="must be 10 to 95")
        if self.compact_quiet_ms < 0:
            raise ConfigError(key="store.compact_quiet_ms", problem="must not be negative")
        if not 0 <= self.ack_patience_ms <= 1000:
            raise ConfigError(key="store.ack_patience_ms", problem="must be 0 to 1000")
        if self.checkpoint_bytes < 0:
            raise ConfigError(key="store.checkpoint_bytes", problem="must not be negative")
        if self.checkpoint_wait_ms < 0:
            raise ConfigError(key="store.checkpoint_wait_ms", problem="must not be negative")
        if self.compact_bytes_per_s < 1:
            raise ConfigError(key="store.compact_bytes_per_s", problem="must be above 0")
