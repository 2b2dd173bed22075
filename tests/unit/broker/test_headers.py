"""Headers bindings: which messages they match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.broker.headers import RULES, headers_pattern
from tidemark.errors import PreconditionFailed
from tidemark.model.values import Decimal, Int8, Timestamp

TABLE: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    # binding arguments, headers that match, headers that do not
    (
        {"x-match": "all", "a": 1, "b": "two"},
        [{"a": 1, "b": "two", "c": 3}],
        [{"a": 1}, {"a": 2, "b": "two"}, {}],
    ),
    ({"x-match": "any", "a": 1, "b": "two"}, [{"a": 1}, {"a": 9, "b": "two"}], [{"a": 2}, {"c": 1}, {}]),
    ({"a": 1}, [{"a": 1}], [{"b": 1}]),
    ({"x-match": "all"}, [{}, {"a": 1}], []),
    ({"x-match": "any"}, [], [{}, {"a": 1}]),
    ({"a": None}, [{"a": None}, {"a": 1}, {"a": "x"}], [{"b": 1}, {}]),
    ({"a": 1}, [{"a": 1}], [{"a": "1"}, {"a": True}, {"a": 1.0}, {"a": Int8(1)}, {"a": Timestamp(1)}]),
    ({"a": Decimal(2, 125)}, [{"a": Decimal(2, 125)}], [{"a": Decimal(2, 126)}]),
    ({"x-match": "all", "x-c": "red", "a": 1}, [{"a": 1}, {"a": 1, "x-c": "blue"}], [{"x-c": "red"}]),
    ({"x-match": "any", "x-c": "red", "a": 1}, [{"a": 1}], [{"x-c": "red"}]),
    ({"x-match": "all-with-x", "x-c": "red", "a": 1}, [{"a": 1, "x-c": "red"}], [{"a": 1}, {"x-c": "red"}]),
    ({"x-match": "any-with-x", "x-c": "red", "a": 1}, [{"a": 1}, {"x-c": "red"}], [{"x-c": "blue"}, {}]),
]


@pytest.mark.parametrize(("arguments", "hits", "misses"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_a_binding_matches_by_its_rule(
    arguments: dict[str, Any], hits: list[dict[str, Any]], misses: list[dict[str, Any]]
) -> None:
    pattern = headers_pattern(arguments)
    assert [headers for headers in hits + misses if pattern.matches(headers)] == hits


@pytest.mark.parametrize("rule", ["some", "", "ALL", 1, None, True])
def test_an_unknown_rule_is_refused(rule: Any) -> None:
    with pytest.raises(PreconditionFailed, match="Invalid x-match field"):
        headers_pattern({"x-match": rule})


tables = st.dictionaries(st.sampled_from(["a", "b", "x-a", "x-b"]), st.integers(0, 2), max_size=4)


@given(st.sampled_from(RULES), tables, tables)
def test_all_and_any_are_what_they_say(rule: str, wanted: dict[str, int], headers: dict[str, int]) -> None:
    looked_at = {
        name: value for name, value in wanted.items() if rule.endswith("x") or not name.startswith("x-")
    }
    equal = [headers.get(name) == value for name, value in looked_at.items()]
    expected = all(equal) if rule.startswith("all") else any(equal)
    assert headers_pattern({"x-match": rule, **wanted}).matches(headers) is expected
