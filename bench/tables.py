"""Figures in words, and tables of them: on the terminal, and as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.results import Spread

Words = Callable[[float], str]


def in_full(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def figure(value: float) -> str:
    """In millions from ten of them on."""
    return f"{value / 1e6:,.1f} M" if value >= 1e7 else in_full(value)


def spread_text(found: Spread | None, words: Words = figure) -> str:
    """The median with the lowest and the highest run, where these read differently."""
    if found is None:
        return "–"
    median, low, high = words(found.median), words(found.low), words(found.high)
    return median if low == high else f"{median} [{low}–{high}]"


@dataclass(slots=True)
class Grid:
    """One table: what each row is called, then a column a heading."""

    title: str
    headings: list[str]
    rows: list[list[str]] = field(default_factory=list)
    corner: str = ""
    """What the first column is about, on the terminal."""

    def print(self, console: Console) -> None:
        table = Table(title=Text(self.title), title_justify="left")
        table.add_column(Text(self.corner))
        for heading in self.headings:
            table.add_column(Text(heading), justify="right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        console.print(table)

    def markdown(self) -> list[str]:
        """Its lines, without the title."""
        return markdown_table(self.headings, self.rows)


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, words_last: bool = False
) -> list[str]:
    """A line a row. The headings are those behind the first column; figures go to the right."""
    rules = ["--:"] * len(headings)
    if words_last:
        rules[-1] = "---"
    return [
        f"| | {' | '.join(headings)} |",
        f"|---|{'|'.join(rules)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def print_verdict(console: Console, met: bool, sentence: str) -> None:
    console.print(Text(sentence, style="green" if met else "red"))


def print_failures(console: Console, failures: Iterable[str]) -> None:
    for failure in failures:
        console.print(Text(f"no figures: {failure}", style="red"))
