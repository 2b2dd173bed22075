"""A private Tidemark, run from the source tree as a user would run it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from bench.proc import ServerFailedError
from bench.servers import ChildServer

_SOURCE = Path(__file__).parent.parent / "src"


class TidemarkUnavailableError(RuntimeError):
    """`tidemark serve` does not run from this tree; the reason is in the message."""


def environment() -> dict[str, str]:
    """Ours, with the source tree on the path and none of the broker's settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMARK_")}
    return inherited | {"PYTHONPATH": str(_SOURCE)}


class TidemarkServer(ChildServer):
    """One private broker: `with TidemarkServer(tmp_path) as broker: connect(broker.port)`.

    Extra arguments of `tidemark serve` can be given, for example `("--set", "key=value")`.
    """

    name = "tidemark"

    def __init__(self, folder: Path, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self._arguments = arguments

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "tidemark", "serve"),
            *("--data", str(self._folder / "data")),
            *("--amqp", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *self._arguments,
        ]

    def _environment(self) -> dict[str, str]:
        return environment()

    @property
    def admin_port(self) -> int:
        """Where the management API listens, as the ready line says."""
        found = re.search(rb"admin=127\.0\.0\.1:(\d+)", (self._folder / "stdout").read_bytes())
        assert found is not None
        return int(found[1])


def ensure_available(folder: Path) -> None:
    """Start and stop a broker once, to see whether this tree has one that runs.

    Raises:
        TidemarkUnavailableError: it has not.
    """
    try:
        with TidemarkServer(folder):
            pass
    except ServerFailedError as failure:
        why = str(failure).strip().splitlines()[-1]
        raise TidemarkUnavailableError(
            f"Tidemark is skipped: `python -m tidemark serve` does not run here ({why})"
        ) from failure
