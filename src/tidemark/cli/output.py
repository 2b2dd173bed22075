"""Results on standard output: a table for people or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Columns by name, text to the left, numbers to the right, two blanks between."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    right = [bool(rows) and all(_is_number(row.get(column)) for row in rows) for column in columns]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    lines = []
    for line in [list(columns), *cells]:
        parts = [
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print a list, whole as JSON or the named columns as a table."""
    print(json.dumps(list(rows), indent=2, ensure_ascii=False) if as_json else table(rows, columns))


def details(facts: dict[str, Any]) -> None:
    """Print the facts of one thing, a line each."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {cell(value)}".rstrip())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """One value as a table shows it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(str, value))
        case dict():
            return json.dumps(value, ensure_ascii=False) if value else ""
        case _:
            text = str(value)
            return text if text.isprintable() else repr(text)
