"""Results on standard output: a table for people or JSON for programs.

In a terminal a table is drawn by rich, within its width; into a file or a pipe it is plain text, a line a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

GOOD = {"running", "active", "ready", "ok", "alone"}
BAD = {"failed", "fenced", "down", "crashed", "stopped", "blocked"}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Columns by name, text to the left, numbers to the right, two blanks between."""
    cells = [[cell(found(row, column)) for column in columns] for row in rows]
    right = numeric(rows, columns)
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    lines = []
    for line in [list(columns), *cells]:
        parts = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print a list, whole as JSON or the named columns as a table."""
    if as_json:
        print(json.dumps(list(rows), indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _draw(rows, columns)
    else:
        print(table(rows, columns))


def _draw(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, is_number in zip(columns, numeric(rows, columns), strict=True):
        drawn.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        texts = [Text(cell(found(row, column))) for column in columns]
        for text in texts:
            if text.plain in GOOD:
                text.stylize("green")
            elif text.plain in BAD:
                text.stylize("red")
        drawn.add_row(*texts)
    Console(highlight=False).print(drawn)


def details(facts: Mapping[str, Any]) -> None:
    """Print the facts of one thing, a line each."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {cell(value)}".rstrip())


def reveal(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing, whole as JSON or a line a fact."""
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        details(facts)


def found(row: Mapping[str, Any], column: str) -> Any:
    """The value in a column; `a.b` is the field b in the field a."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def numeric(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[bool]:
    """For each column whether it has nothing but numbers."""
    result = []
    for column in columns:
        values = [value for row in rows if (value := found(row, column)) is not None]
        result.append(bool(values) and all(is_number(value) for value in values))
    return result


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """One value as a table shows it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(item if isinstance(item, str) else cell(item) for item in value)
        case dict():
            return json.dumps(value, ensure_ascii=False) if value else ""
        case _:
            text = str(value)
            return text if text.isprintable() else repr(text)
