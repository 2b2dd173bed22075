"""Which binding patterns and headers match which messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from helpers.amqp import channel_refused, drain
from pika.adapters.blocking_connection import BlockingChannel

TOPICS = [
    # pattern, keys that match, keys that do not
    ("a.b.c", ["a.b.c"], ["a.b", "a.b.c.d", "A.b.c", "", "a.b.c."]),
    ("*", ["a"], ["", "a.b", ".", "a."]),
    ("*.b", ["a.b", ".b"], ["b", "a.a.b", "a.b.c"]),
    ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
    ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
    ("*.*", ["a.b", "."], ["a", "a.b.c", ".."]),
    ("#", ["", "a", "a.b.c", ".", "..."], []),
    ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b.a", "ab"]),
    ("#.z", ["z", "a.z", "a.b.z", ".z"], ["", "z.a", "az"]),
    ("a.#.z", ["a.z", "a.b.z", "a.b.c.z", "a..z"], ["a", "z", "a.b", "b.z"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "a.a.b.c.c"], ["", "a", "ab", "a.c"]),
    ("#.#", ["", "a", "a.b", "a.b.c"], []),
    ("#.*", ["a", "a.b"], [""]),
    ("*.#", ["a", "a.b", "a.b.c"], [""]),
    ("*.#.*", ["a.b", "a.b.c", "."], ["a"]),
    ("a.#.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b"]),
    ("a*", ["a*"], ["ab", "a"]),
    ("a#.b", ["a#.b"], ["a.b", "ax.b"]),
    ("", [""], ["a", "."]),
    ("a..b", ["a..b"], ["a.b", "a.x.b"]),
]


@pytest.fixture
def exchange(channel: BlockingChannel, name: str, request: pytest.FixtureRequest) -> Iterator[str]:
    channel.exchange_declare(f"{name}-x", request.param, auto_delete=False)
    yield f"{name}-x"
    if channel.is_open:
        channel.exchange_delete(f"{name}-x")


@pytest.mark.parametrize("exchange", ["topic"], indirect=True)
@pytest.mark.parametrize(("pattern", "hits", "misses"), TOPICS, ids=[row[0] for row in TOPICS])
def test_a_topic_pattern_matches_word_by_word(
    channel: BlockingChannel,
    exchange: str,
    queue: str,
    pattern: str,
    hits: list[str],
    misses: list[str],
) -> None:
    channel.queue_bind(queue, exchange, pattern)
    for key in hits + misses:
        channel.basic_publish(exchange, key, b"<" + key.encode() + b">")
    assert drain(channel, queue) == [b"<" + key.encode() + b">" for key in hits]


@pytest.mark.parametrize("exchange", ["topic"], indirect=True)
def test_removing_one_of_two_overlapping_patterns_leaves_the_other(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    for pattern in ("a.#", "a.*"):
        channel.queue_bind(queue, exchange, pattern)
    channel.queue_unbind(queue, exchange, "a.#")
    for key in ("a.b", "a.b.c"):
        channel.basic_publish(exchange, key, key.encode())
    assert drain(channel, queue) == [b"a.b"]


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

HEADERS: list[tuple[str, dict[str, Any], list[dict[str, Any] | None], list[dict[str, Any] | None]]] = [
    # what, binding, headers that match, headers that do not
    (
        "all",
        {"x-match": "all", "a": 1, "b": "two"},
        [{"a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}],
        [{"a": 1}, {"b": "two"}, {"a": 2, "b": "two"}, {"a": "1", "b": "two"}, {}, None],
    ),
    (
        "any",
        {"x-match": "any", "a": 1, "b": "two"},
        [{"a": 1}, {"b": "two"}, {"a": 1, "b": "three"}],
        [{"a": 2}, {"c": 1}, {}, None],
    ),
    ("all-is-the-default", {"a": 1, "b": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ("all-of-nothing", {"x-match": "all"}, [{}, {"a": 1}, None], []),
    ("any-of-nothing", {"x-match": "any"}, [], [{}, {"a": 1}, None]),
    (
        "presence",
        {"x-match": "all", "a": None},
        [{"a": None}, {"a": 1}, {"a": "x"}],
        [{"b": 1}, {}],
    ),
    (
        "all-ignores-x",
        {"x-match": "all", "x-color": "red", "a": 1},
        [{"a": 1}, {"a": 1, "x-color": "blue"}],
        [{"x-color": "red"}],
    ),
    (
        "any-ignores-x",
        {"x-match": "any", "x-color": "red", "a": 1},
        [{"a": 1}],
        [{"x-color": "red"}],
    ),
    (
        "all-with-x",
        {"x-match": "all-with-x", "x-color": "red", "a": 1},
        [{"a": 1, "x-color": "red"}],
        [{"a": 1}, {"a": 1, "x-color": "blue"}, {"x-color": "red"}],
    ),
    (
        "any-with-x",
        {"x-match": "any-with-x", "x-color": "red", "a": 1},
        [{"a": 1}, {"x-color": "red"}],
        [{"x-color": "blue"}, {}],
    ),
    (
        "kinds",
        {"x-match": "all", "yes": True, "when": NOW, "price": Decimal("1.25")},
        [{"yes": True, "when": NOW, "price": Decimal("1.25")}],
        [
            {"yes": False, "when": NOW, "price": Decimal("1.25")},
            {"yes": True, "when": NOW, "price": Decimal("1.26")},
        ],
    ),
]


@pytest.mark.parametrize("exchange", ["headers"], indirect=True)
@pytest.mark.parametrize(
    ("binding", "hits", "misses"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS]
)
def test_a_headers_binding_matches_by_its_rule(
    channel: BlockingChannel,
    exchange: str,
    queue: str,
    binding: dict[str, Any],
    hits: list[dict[str, Any] | None],
    misses: list[dict[str, Any] | None],
) -> None:
    channel.queue_bind(queue, exchange, "ignored", binding)
    for headers in hits + misses:
        channel.basic_publish(exchange, "", repr(headers).encode(), pika.BasicProperties(headers=headers))
    assert drain(channel, queue) == [repr(headers).encode() for headers in hits]


@pytest.mark.parametrize("exchange", ["headers"], indirect=True)
@pytest.mark.parametrize("rule", ["some", 1, ""])
def test_an_unknown_match_rule_is_406(channel: BlockingChannel, exchange: str, queue: str, rule: Any) -> None:
    with channel_refused(406):
        channel.queue_bind(queue, exchange, "", {"x-match": rule, "a": 1})
