"""What an operator can set about a front: the `[front]` table of the config file."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import ConfigError
from tidemark.model.settings import setting
from tidemark.router.wiring import MAIN


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member of a group is."""

    address: str
    """HOST:PORT."""
    member: str = ""
    """Its name, if the address is where it listens for its peers; empty: it is where clients connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    groups: tuple[str, ...] = setting(
        (),
        "Groups behind a front: NAME=MEMBER@HOST:PORT, a member and where it listens for peers; or NAME=HOST:PORT, where it "
        "takes AMQP clients, if main is the only group. Further members of the same group follow without the name.",
    )
    dial_s_max: int = setting(5, "How long a front looks for a member of a group that takes a client.")

    def __post_init__(self) -> None:
        if self.dial_s_max < 1:
            raise ConfigError(key="front.dial_s_max", problem="must be at least 1")
        self.places()

    def places(self) -> dict[str, tuple[Place, ...]]:
        """By group: where its members are.

        Raises:
            ConfigError: a place has no group, main is missing, or some members have names and others not.
        """
        found: dict[str, tuple[Place, ...]] = {}
        name = ""
        for entry in self.groups:
            given, equals, place = entry.rpartition("=")
            name = given.strip() if equals else name
            member, _, address = place.strip().rpartition("@")
            if not name or not address:
                raise ConfigError(
                    key="front.groups", problem=f"must be a list of NAME=MEMBER@HOST:PORT, not {entry!r}"
                )
            found[name] = (*found.get(name, ()), Place(address, member))
        every = [place for places in found.values() for place in places]
        if found and MAIN not in found:
            raise ConfigError(
                key="front.groups", problem=f"must have the group '{MAIN}', which keeps the wiring"
            )
        if len({bool(place.member) for place in every}) > 1:
            raise ConfigError(
                key="front.groups", problem="must name all members, as MEMBER@HOST:PORT, or none"
            )
        if len(found) > 1 and not every[0].member:
            raise ConfigError(
                key="front.groups", problem="must name the members, as MEMBER@HOST:PORT, of several groups"
            )
        return found
