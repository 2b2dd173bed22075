"""The parts of pages in docs/ that campaigns write, each between markers of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.options import ROOT

DOCS = ROOT / "docs"
IMAGES = DOCS / "img"


@dataclass(frozen=True, slots=True)
class Part:
    """A generated part of a page. The prose around its markers is written by hand and left alone."""

    name: str
    page: Path

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}:begin -->"

    @property
    def end(self) -> str:
        return f"<!-- {self.name}:end -->"

    def write(self, generated: str) -> None:
        """Replace what is between the markers.

        Raises:
            ValueError: the page has none.
        """
        text = self.page.read_text() if self.page.exists() else ""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(
                f"docs/{self.page.name} has no markers {self.begin} and {self.end}: nothing was written there"
            )
        self.page.write_text(f"{before}{begin}\n{generated}{end}{after}")


def opening(measured: str, machine: dict[str, str], images: Iterable[Path]) -> list[str]:
    """The lines that a part begins with: when and how it was measured, on what, and the plots."""
    return [
        measured,
        "",
        ", ".join(f"{name} {value}" for name, value in machine.items()) + ".",
        "",
        *(f"![{image.stem}](img/{image.name})\n" for image in images),
    ]


def closing(failures: Iterable[str]) -> list[str]:
    """The lines that it ends with, if anything failed."""
    lines = [f"- {failure}" for failure in failures]
    return ["No figures:", "", *lines] if lines else []
