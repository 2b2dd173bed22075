"""What an operator can set about a front: the `[front]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import ConfigError
from tidemark.model.settings import setting
from tidemark.router.wiring import MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    groups: tuple[str, ...] = setting(
        (),
        "Groups behind a front, NAME=HOST:PORT: where AMQP clients connect to a member. "
        "Further members of the same group follow without the name.",
    )
    dial_s_max: int = setting(5, "How long a front looks for a member of a group that takes a client.")

    def __post_init__(self) -> None:
        if self.dial_s_max < 1:
            raise ConfigError(key="front.dial_s_max", problem="must be at least 1")
        self.members()

    def members(self) -> dict[str, tuple[str, ...]]:
        """By group: where its members are.

        Raises:
            ConfigError: a place has no group, or main is missing.
        """
        found: dict[str, tuple[str, ...]] = {}
        name = ""
        for entry in self.groups:
            given, equals, place = entry.rpartition("=")
            name = given.strip() if equals else name
            if not name or not place.strip():
                raise ConfigError(
                    key="front.groups", problem=f"must be a list of NAME=HOST:PORT, not {entry!r}"
                )
            found[name] = (*found.get(name, ()), place.strip())
        if found and MAIN not in found:
            raise ConfigError(
                key="front.groups", problem=f"must have the group '{MAIN}', which keeps the wiring"
            )
        return found
