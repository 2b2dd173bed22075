"""A long body is read in slices, and says the same as one that is read in one go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.admin import reading

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def read(text: str, depth_max: int = 64) -> Any:
    """As a long one, or the kind of error."""
    reading_at_once, reading.AT_ONCE_CHARS = reading.AT_ONCE_CHARS, 0
    try:
        return asyncio.run(reading.read(text, depth_max))
    except (ValueError, RecursionError) as problem:
        return type(problem)
    finally:
        reading.AT_ONCE_CHARS = reading_at_once


def read_at_once(text: str) -> Any:
    try:
        return reading.read_json(text)
    except (ValueError, RecursionError) as problem:
        return type(problem)


@given(st.dictionaries(st.text(), values | st.lists(values)), st.sampled_from([None, 0, 2]))
def test_a_document_says_the_same_in_slices(document: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    if "\\ud" not in text:
        assert read(text) == document


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        " { } ",
        "{} {}",
        '{"a"}',
        '{"a" 1}',
        '{"a": }',
        '{"a": 1,}',
        '{"a": 1 "b": 2}',
        "{a: 1}",
        "{1: 1}",
        '{"a": [}',
        '{"a": [1,]}',
        '{"a": [1 2]}',
        '{"a": [1, 2',
        '{"a": [NaN]}',
        '{"a": [1e999]}',
        '{"a": 1, "a": [2]}',
        '{"a": [ ] , "b" : [ 1 , {"c": [2]} ]}',
        '{"a": []}\n',
        '{"a": [' + "[" * 100_000 + "]" * 100_000 + "]}",
    ],
)
def test_whatever_is_no_json_is_none_in_slices(text: str) -> None:
    assert read(text) == read_at_once(text)


@pytest.mark.parametrize("inner", ["[{}]", "{}", "[1, [2]]"])
def test_what_is_nested_too_deeply_is_refused(inner: str) -> None:
    text = f'{{"a": {inner}}}'
    depth = 2 if inner != "{}" else 1

    assert read(text, depth) == json.loads(text)
    assert read(text, depth - 1) is reading.TooDeep


def test_half_of_a_character_is_no_text() -> None:
    assert read('{"a": ["\\ud800"]}') is reading.NoText
    assert read('{"\\uD800": 1}') is reading.NoText
    assert read('{"a": ["\\ud83d\\ude00"]}') == {"a": ["\U0001f600"]}
