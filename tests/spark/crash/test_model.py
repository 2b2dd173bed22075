"""The checks of the crash test find what they are there for, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spark.crash.model import Audit, Held, Model, Seen, Version, check_once
from spark.crash.readers import commands


def a_value(number: int, status: str = "open") -> bytes:
    return json.dumps({"customer": "ann", "number": number, "status": status}).encode()


def a_model() -> Model:
    """Sequences 1 to 6: a, b and c; then b is rewritten, c deleted, a cancelled."""
    model = Model()
    model.add(1, [Version("a", a_value(1)), Version("b", a_value(2)), Version("c", a_value(3))])
    model.add(4, [Version("b", a_value(4)), Version("c", None), Version("a", a_value(6, "cancelled"))])
    return model


A, B, B4, C = Held(1, "ann", 1), Held(2, "ann", 2), Held(4, "ann", 4), Held(3, "ann", 3)


@pytest.mark.parametrize(
    ("sequence", "rows"),
    [(0, {}), (3, {"a": A, "b": B, "c": C}), (4, {"a": A, "b": B4, "c": C}), (6, {"b": B4}), (99, {"b": B4})],
)
def test_a_sink_that_equals_the_stream_at_its_mark_is_right(sequence: int, rows: dict[str, Held]) -> None:
    a_model().check(Seen("s", sequence, True, rows))


@pytest.mark.parametrize(
    "rows",
    [
        {"a": A, "b": B},
        {"a": A, "b": B4, "c": C},
        {"a": A, "b": B, "c": C, "d": A},
        {"a": A, "b": Held(2, "bob", 2), "c": C},
    ],
    ids=["missing", "ahead", "unknown", "other"],
)
def test_a_sink_that_differs_in_one_row_is_found(rows: dict[str, Held]) -> None:
    with pytest.raises(AssertionError, match="sink s at 3"):
        a_model().check(Seen("s", 3, True, rows))


def test_inside_a_snapshot_rows_are_as_they_are_now_or_older_and_never_ahead() -> None:
    """The mark is at 4 inside a snapshot at 6: b came, c and a are to come."""
    model = a_model()
    model.check(Seen("s", 4, False, {"a": A, "b": B4, "c": C}))
    model.check(Seen("s", 4, False, {"b": B4}))
    with pytest.raises(AssertionError, match="b is"):
        model.check(Seen("s", 4, False, {"b": B}))
    with pytest.raises(AssertionError, match="ahead of its mark"):
        model.check(Seen("s", 3, False, {"b": B4}))


def test_a_version_that_is_put_twice_is_found() -> None:
    assert check_once("s", [("a", 1), ("a", 2), ("b", 1)]) == 3
    with pytest.raises(AssertionError, match="put again"):
        check_once("s", [("a", 1), ("a", 2), ("a", 1)])


def a_line(batch: int, start: int, end: int, content: str = "x", **more: Any) -> dict[str, Any]:
    facts = {"pid": 1, "sink": "s", "query": "q", "batch": batch, "start": start, "end": end}
    return facts | {"boundary": True, "content": content} | more


def an_audit(folder: Path, *lines: dict[str, Any]) -> Audit:
    path = folder / "audit"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Audit(path)


def test_a_batch_that_is_done_again_with_the_same_content_is_fine(tmp_path: Path) -> None:
    first, again = a_line(0, 0, 5), a_line(0, 0, 5, applied=False)
    audit = an_audit(tmp_path, first, first, again, a_line(1, 5, 9), a_line(1, 5, 9, applied=True))
    audit.check()
    assert audit.replays() == 1
    assert audit.boundaries() == {"s": 9}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([a_line(0, 0, 5), a_line(0, 0, 5, "y")], "several contents"),
        ([a_line(0, 0, 5), a_line(0, 0, 6)], "several contents"),
        ([a_line(0, 0, 5), a_line(1, 5, 5)], "its batches end at"),
        ([a_line(0, 0, 5), a_line(1, 5, 4)], "its batches end at"),
        ([a_line(0, 0, 5, applied=True), a_line(0, 0, 5, applied=True)], "was applied though"),
        (
            [a_line(0, 0, 5, applied=True), a_line(0, 3, 9, "y", query="other", applied=True)],
            "was applied though",
        ),
    ],
)
def test_what_a_batch_must_not_do_is_found(tmp_path: Path, lines: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        an_audit(tmp_path, *lines).check()


def test_commands_are_read_from_an_append_only_file() -> None:
    data = b"#TS:1\r\n*1\r\n$5\r\nMULTI\r\n*3\r\n$4\r\nMSET\r\n$1\r\na\r\n$3\r\n\r\n1\r\n"
    assert list(commands(data)) == [[b"MULTI"], [b"MSET", b"a", b"\r\n1"]]
