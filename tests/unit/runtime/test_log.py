"""The log: one line an event, whatever the facts are."""

from __future__ import annotations

import io
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from tidemark.runtime.log import Log


def written(style: str, level: str, event: str, **facts: object) -> str:
    stream = io.StringIO()
    Log("info", style, stream).write(level, event, **facts)
    return stream.getvalue()


def test_a_line_has_the_time_the_level_the_event_and_the_facts() -> None:
    line = written("text", "info", "publishers blocked", reason="disk", generation=7)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} info    TM-1009 publishers blocked  reason=disk generation=7\n", line
    )


def test_an_event_has_its_id_in_json_too() -> None:
    assert json.loads(written("json", "info", "stopped", code=0))["id"] == "TM-1002"


def test_what_is_below_the_level_is_not_written() -> None:
    assert written("text", "debug", "seen") == ""


def test_an_exception_says_what_and_where() -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        line = written("text", "error", "unexpected", error=error)
    assert "KeyError: 'lost' at test_an_exception_says_what_and_where:" in line


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream=stream).info("nobody reads this")


@given(st.text(), st.text())
def test_whatever_the_facts_contain_it_is_one_line(event_fact: str, other: str) -> None:
    line = written("text", "info", "seen", a=event_fact, b=other)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1


@given(st.text(), st.integers())
def test_as_json_it_is_one_object_a_line(text: str, number: int) -> None:
    line = written("json", "warning", "seen", text=text, number=number, other=object)
    found = json.loads(line)
    assert line.count("\n") == 1
    assert (found["level"], found["event"], found["text"], found["number"]) == (
        "warning",
        "seen",
        text,
        number,
    )
