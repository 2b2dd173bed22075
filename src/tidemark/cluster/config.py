"""What an operator can set about a cluster: the `[cluster]` table of the config file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemark.errors import ConfigError
from tidemark.model.settings import setting
from tidemark.model.wiring import MAIN

MiB = 1024 * 1024
GiB = 1024 * MiB

MODES = ("standby", "chain")
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    name: str = setting("", "Name of the cluster that this broker is a member of. Empty: it stands alone.")
    group: str = setting(
        MAIN,
        "Name of the group of the cluster that this broker is in. Members of a group hold the same queues.",
    )
    groups: tuple[str, ...] = setting(
        (),
        "The other groups of the cluster, NAME=MODE, where queues may be that ask for it. Only in the group main.",
    )
    mode: Literal["standby", "chain"] = setting(
        "standby", "How members are fed: all by the leader, or each by the one before it."
    )
    provider: Literal["etcd", "external"] = setting(
        "etcd", "Who says which member leads: an etcd, or an operator or resource manager by command."
    )
    etcd: tuple[str, ...] = setting(("127.0.0.1:2379",), "Where etcd listens, HOST:PORT, one or several.")
    size: int = setting(1, "Members that must be there before the cluster is founded.")
    copies_min: int = setting(
        1,
        "Members that must be ready, the leader counted, for anything to be confirmed or shown. While there are fewer, "
        "publishers wait.",
    )
    peers: tuple[str, ...] = setting(
        (), "Where to dial peers, NAME=HOST:PORT; stronger than the address that a peer has registered."
    )
    secret_file: Path | None = setting(None, "File with the secret by which members know one another.")
    peer_certificate: Path | None = setting(
        None, "PEM file with this member's certificate for links with peers; with it they are encrypted."
    )
    peer_key: Path | None = setting(None, "PEM file with its private key, if it is not in the same file.")
    peer_authorities: Path | None = setting(
        None, "PEM file with the authorities that sign the members' certificates."
    )
    lease_s: int = setting(2, "How long a member that is not heard of still counts as alive.")
    lease_margin: float = setting(
        0.25, "Share of the lease that a leader gives away, for clocks that do not run alike."
    )
    backup_timeout_ms: int = setting(
        5000,
        "How long publishers wait for a ready member that does not answer; then the cluster does without it.",
    )
    ack_budget_ms: int = setting(
        500,
        "A ready member that takes longer for most of two seconds (ack_budget_share), while others do not, is left out "
        "until it is twice as fast; 0: never. The last one beside the leader stays, however slow.",
    )
    ack_budget_share: float = setting(
        0.9, "For which share of the two seconds it must have been over ack_budget_ms to be left out."
    )
    link_grace_ms: int = setting(200, "The same, for a member whose link is broken.")
    takeover_stagger_ms: int = setting(
        150, "How much longer each next ready member waits before it offers itself as the leader."
    )
    window_bytes: int = setting(
        8 * MiB, "Most that is on its way to a member and not acknowledged; the last frame may go beyond it."
    )
    catch_up_bytes_per_s: int = setting(
        64 * MiB,
        "While clients write: how much of what a member lacks that catches up it is given in a second, beside what they "
        "write. While they do not it is given as much as it takes.",
    )
    lag_bytes: int = setting(
        64 * MiB, "When a ready member has so much less on its disk than the leader, publishers wait for it."
    )
    keep_bytes: int = setting(
        1 * GiB, "Log that is kept for members that are away, so that they need not start over."
    )
    chain_tails: int = setting(1, "In a chain: how many members at its end are fed by the same one.")
    reads: Literal["any", "tails"] = setting(
        "any",
        "In a chain: which members show the rows of streams to those who read: any that is ready, because each shows only "
        "what all have; or its tails alone, and others refuse with their names.",
    )
    compare_s: int = setting(
        60,
        "How often the leader has the others compare what their queues and streams hold with its own; 0: never.",
    )
    replicate: Literal["none", "configuration", "messages"] = setting(
        "messages",
        "How much of a durable queue the other members keep when neither its argument x-replicate nor a policy says so: "
        "with configuration or none its messages are lost with the leader, confirmed ones too.",
    )
    on_store_error: Literal["quit", "leave"] = setting(
        "quit",
        "What a member does that follows and whose store fails: it ends, to be started again; or it stays up as failed, "
        "passes clients on to the leader and can never lead, until somebody starts it again. A leader always ends.",
    )
    client_access: Literal["relay", "redirect", "reject"] = setting(
        "relay", "What becomes of a client that connects to a member that does not lead."
    )

    def __post_init__(self) -> None:
        for name, least, most in (
            ("size", 1, 100),
            ("copies_min", 1, 100),
            ("lease_s", 1, 600),
            ("backup_timeout_ms", 10, 600_000),
            ("ack_budget_ms", 0, 600_000),
            ("link_grace_ms", 0, 600_000),
            ("takeover_stagger_ms", 1, 60_000),
            ("window_bytes", 64 * 1024, 1 << 40),
            ("catch_up_bytes_per_s", 64 * 1024, 1 << 40),
            ("lag_bytes", 1 * MiB, 1 << 40),
            ("keep_bytes", 0, 1 << 50),
            ("chain_tails", 1, 100),
            ("compare_s", 0, 86_400),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(key=f"cluster.{name}", problem=f"must be {least} to {most}")
        if self.name and self.copies_min > self.size:
            raise ConfigError(
                key="cluster.copies_min", problem=f"must be at most cluster.size, which is {self.size}"
            )
        if not 0 <= self.lease_margin <= 0.9:
            raise ConfigError(key="cluster.lease_margin", problem="must be 0 to 0.9")
        if not 0.05 <= self.ack_budget_share <= 1:
            raise ConfigError(key="cluster.ack_budget_share", problem="must be 0.05 to 1")
        if self.name and (not self.name.isprintable() or any(c in self.name for c in " /")):
            raise ConfigError(key="cluster.name", problem=f"must be a word without '/', not {self.name!r}")
        self._check_groups()
        self._check_reads()
        for entry in self.peers:
            peer, equals, address = entry.partition("=")
            if not peer or not equals or ":" not in address:
                raise ConfigError(key="cluster.peers", problem=f"must be NAME=HOST:PORT, not {entry!r}")
        for name in ("secret_file", "peer_certificate", "peer_key", "peer_authorities"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(key=f"cluster.{name}", problem=f"there is no file {path}")

    def _check_reads(self) -> None:
        if self.reads == "any":
            return
        if self.mode != "chain":
            raise ConfigError(
                key="cluster.reads",
                problem=f"'{self.reads}' is for cluster.mode 'chain': in '{self.mode}' no member is a tail",
            )
        if self.group != MAIN:
            raise ConfigError(
                key="cluster.reads",
                problem=f"'{self.reads}' is for the group '{MAIN}': clients reach those of '{self.group}' through fronts, and "
                "fronts go to the member that leads",
            )

    def _check_groups(self) -> None:
        words = "must be 1 to 64 letters, digits, '.', '_' or '-'"
        if not _GROUP.fullmatch(self.group):
            raise ConfigError(key="cluster.group", problem=f"{words}, not {self.group!r}")
        if self.group != MAIN and not self.name:
            raise ConfigError(key="cluster.name", problem=f"is needed for cluster.group {self.group!r}")
        if self.groups and not self.name:
            raise ConfigError(key="cluster.name", problem="is needed for cluster.groups")
        if self.groups and self.group != MAIN:
            raise ConfigError(
                key="cluster.groups",
                problem=f"are told to the members of the group '{MAIN}' only; this one is in '{self.group}'",
            )
        seen = {MAIN}
        for entry in self.groups:
            name, _, mode = entry.partition("=")
            if not _GROUP.fullmatch(name) or mode not in MODES:
                raise ConfigError(
                    key="cluster.groups",
                    problem=f"must be NAME=MODE, the name {words.removeprefix('must be ')}, the mode one of "
                    f"{', '.join(MODES)}; not {entry!r}",
                )
            if name in seen:
                raise ConfigError(key="cluster.groups", problem=f"name the group '{name}' more than once")
            seen.add(name)

    @property
    def identity(self) -> str:
        """What the members of this group, and nobody else, have in common: two groups are two clusters to whoever
        keeps views and to whoever dials. No cluster's name has a '/', so none is taken for a group."""
        return self.name if self.group == MAIN else f"{self.name}/groups/{self.group}"

    @property
    def mode_of(self) -> dict[str, str]:
        """The modes of the other groups, by name."""
        return {name: mode for name, _, mode in (entry.partition("=") for entry in self.groups)}

    @property
    def lease_ms(self) -> int:
        return self.lease_s * 1000
