"""What both kinds of `tidemark cluster load` have in common: the line a second, the end, the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

STILL_S = 1.0
"""Without a confirm for so long a load says that it waits."""
GRACE_S = 3.0
"""How long a load that is to end waits for a number that is on its way: a takeover may be going on."""
LOOK_S = 0.05


def progress(confirmed: int, longest_s: float, still_s: float) -> str:
    """What a line says: the longest wait since the last one, or the wait that goes on."""
    if still_s >= STILL_S:
        return f"confirmed {confirmed:>10,}  waiting {still_s:>12,.1f} s"
    return f"confirmed {confirmed:>10,}  longest wait {max(longest_s, still_s) * 1000:>6,.0f} ms"


@dataclass(slots=True)
class Result:
    """What came of the numbers for one stream or queue."""

    confirmed: int
    missing: int | None
    """None: nobody has read them back."""
    wrong: int | None
    longest_gap_ms: int

    @property
    def good(self) -> bool:
        return self.missing == 0 == self.wrong

    def __str__(self) -> str:
        if self.missing is None or self.wrong is None:
            words = "not read back"
        else:
            words = f"missing {self.missing:,}, twice or out of order {self.wrong:,}"
        return f"confirmed {self.confirmed:,}, {words}; longest time without a confirm {self.longest_gap_ms:,} ms"


class Ending:
    """Ctrl-C: once lets what is on its way be confirmed and read back, twice ends at once."""

    def __init__(self, hopeless: Callable[[], bool]) -> None:
        self.count = 0
        self._hopeless = hopeless
        self._since_s = 0.0

    def ask(self) -> None:
        """From a signal handler: it takes no lock and prints nothing."""
        if not self.count:
            self._since_s = time.monotonic()
        self.count += 1

    def gives_up(self, *, writing: bool, heard_s: float = 0.0) -> bool:
        """Whether nothing more is waited for: somebody insists, or nobody will answer. `heard_s`: when the last row was read
        back, if they are read back by one who waits as for a confirm."""
        if self.count != 1:
            return self.count > 1
        waited_s = time.monotonic() - max(self._since_s, heard_s)
        return (writing and waited_s > GRACE_S) or self._hopeless()
