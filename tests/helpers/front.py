"""Starts real fronts, and brokers that clients reach through one.

A front keeps no data: where a broker has its data directory, a front has only its log beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

from helpers.broker import READY_S, Address, BrokerProcess

CHANNEL_FRONT = f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from helpers.channel_front import run; run()"
COUNTED = ("--limits.address-connections", "--limits.connections-per")
"""Settings about connections of clients: a front has those."""


class FrontProcess(BrokerProcess):
    """One front, with the members that it may ask of each group."""

    def __init__(self, place: Path, *arguments: str, **groups: str) -> None:
        super().__init__(place, *arguments)
        self._groups = groups

    def _program(self) -> list[str]:
        looks = os.environ.get("TIDEMARK_TEST_FRONT") == "channels"
        # Not by its path: modules beside it have names of the standard library.
        return ["-P", "-c", CHANNEL_FRONT] if looks else super()._program()

    def _command(self) -> list[str]:
        flags = [word for name, places in self._groups.items() for word in ("--group", f"{name}={places}")]
        return ["front", "--amqp", self._amqp, *flags, *self._arguments]


class FrontedBroker(BrokerProcess):
    """A broker whose clients connect to a front. The front stays up while the broker is killed and started again."""

    def __init__(self, data: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        super().__init__(data, *arguments, environment=environment)
        self.front: FrontProcess | None = None

    @property
    def address(self) -> Address:
        return self.behind if self.front is None else self.front.address

    @property
    def behind(self) -> Address:
        """Where the broker itself is."""
        return super().address

    def start(self, timeout_s: float = READY_S) -> FrontedBroker:
        super().start(timeout_s)
        if self.front is None:
            place = self.data.with_name(self.data.name + "-front")
            words = list(self._arguments)
            counted = [at for at, word in enumerate(words) if word.startswith(COUNTED)]
            arguments = [word for at in counted for word in words[at : at + 2]]
            behind = f"{self.behind.host}:{self.behind.port}"
            self.front = FrontProcess(place, *arguments, main=behind).start()
        return self

    def close(self) -> None:
        super().close()
        if self.front is not None:
            self.front.close()
            self.front = None
