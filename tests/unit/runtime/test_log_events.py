"""Every event that the source can log has an id, and every id an entry in the docs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidemark.runtime.events import EVENTS, UNKNOWN

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "tidemark"
DOCS = ROOT / "docs" / "log-events.md"
LEVELS = ("debug", "info", "warning", "error")
FORWARDING = {
    (name, "event")
    for name in (
        "node.py",
        "runtime/server.py",
        "runtime/door.py",
        "runtime/front_server.py",
        "runtime/membership/external.py",
        "sim/cluster/external.py",
    )
}
"""Functions that hand on what somebody else said."""


def of_log(call: ast.Call) -> ast.expr | None:
    """The expression of the event, when this call writes to the log."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name, owner = call.func.attr, ast.unparse(call.func.value).rpartition(".")[2]
    if name in LEVELS and owner in ("log", "_log") and call.args:
        return call.args[0]
    writes = name == "write" and owner in ("log", "_log")
    notes = name in ("note", "_note") and call.args and _is_level(call.args[0])
    return call.args[1] if (writes or notes) and len(call.args) > 1 else None


def _is_level(given: ast.expr) -> bool:
    if isinstance(given, ast.Constant):
        return given.value in LEVELS
    return ast.unparse(given) == "level" or isinstance(given, ast.IfExp)


def events_in(path: Path) -> tuple[set[str], set[str]]:
    """The events that a file names, and the expressions that are no names."""
    tree = ast.parse(path.read_text("utf-8"))
    named: set[str] = set()
    other: set[str] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        event = of_log(call)
        if isinstance(event, ast.Constant) and isinstance(event.value, str):
            named.add(event.value)
        elif event is not None:
            other.add(ast.unparse(event))
    # `level, event = ("info", "made") if … else ("warning", "failed")`
    for pair in (node for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 2):
        level, event = pair.elts
        if isinstance(level, ast.Constant) and level.value in LEVELS and isinstance(event, ast.Constant):
            named.add(str(event.value))
    return named, other


FOUND = {path: events_in(path) for path in sorted(SOURCE.rglob("*.py"))}


def test_the_search_finds_the_events_that_are_known_to_be_there() -> None:
    named = set().union(*(found for found, _ in FOUND.values()))
    assert {"listening", "publishers blocked", "checkpoint made", "state of the member"} <= named


@pytest.mark.parametrize("path", [p for p, (named, _) in FOUND.items() if named], ids=lambda p: p.name)
def test_every_event_of_a_file_has_an_id(path: Path) -> None:
    missing = FOUND[path][0] - set(EVENTS)
    assert not missing, f"add to runtime/events.py and docs/log-events.md: {sorted(missing)}"


def test_no_event_is_made_of_words_that_the_search_cannot_see() -> None:
    odd = {
        (path.relative_to(SOURCE).as_posix(), words) for path, (_, other) in FOUND.items() for words in other
    }
    assert odd - FORWARDING == set()


def test_no_two_events_share_an_id_and_no_id_is_out_of_shape() -> None:
    ids = list(EVENTS.values())
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"TM-[12349]\d{3}", each) for each in ids)
    assert UNKNOWN not in ids


def test_the_docs_have_exactly_these_events_each_with_a_meaning_and_what_to_do() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in DOCS.read_text("utf-8").splitlines()
        if line.startswith("| TM-")
    ]
    assert {row[1]: row[0] for row in rows} == EVENTS
    assert len(rows) == len(EVENTS)
    for row in rows:
        assert len(row) == 5, row
        assert set(row[2].split(", ")) <= set(LEVELS), row
        assert row[3].endswith(".") and row[4].endswith("."), row
