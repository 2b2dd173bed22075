"""A front that looks at every channel as if there were several groups, though all that clients use is in main.

So the conformance tests can be run through the machine that joins groups. `run` is the command `tidemark`, with such a front.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemark.cli import main
from tidemark.router.wiring import MAIN, OneGroup
from tidemark.runtime import front_server


class Watchful(OneGroup):
    groups = (MAIN, "nobody")  # type: ignore[assignment]

    def fresh(self, then: Callable[[], None]) -> None:
        # Later, as it is with a copy that must ask.
        front_server.asyncio.get_running_loop().call_soon(then)

    def routes(self, *_: Any, user: str, seen: tuple[int, int] | None = None) -> Mapping[str, Sequence[str]]:
        return {MAIN: ()}


class Looking(front_server.FrontServer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.through = False
        self.wiring = Watchful()


def run() -> None:
    front_server.FrontServer = Looking  # type: ignore[misc]
    sys.exit(main())
