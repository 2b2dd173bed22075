"""Lists: pages, names, orders and columns, and that ten thousand items do not hold up the loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from tidemark.admin import pace, paging
from tidemark.admin.answers import Refused

MANY = 10_000


def call(query: str = "") -> Any:
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": query.encode(), "headers": []}
    return SimpleNamespace(request=Request(scope))


def describe(number: int) -> dict[str, Any]:
    return {
        "name": f"q{number:05}",
        "messages": number % 7,
        "stats": {"publish": {"rate": float(-number)}},
        "consumers": [{"tag": f"c{number}", "active": True}],
    }


def listed(query: str = "", count: int = 25, **options: Any) -> Any:
    answer = asyncio.run(paging.listed(call(query), range(count), describe, **options))
    return json.loads(bytes(answer.body))


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


def test_without_a_page_the_list_is_given_whole() -> None:
    assert names(listed()) == [f"q{number:05}" for number in range(25)]


def test_a_page_has_its_items_and_all_counts() -> None:
    found = listed("page=2&page_size=10&name=q0001")
    assert names(found.pop("items")) == []
    assert found == {
        "page": 2,
        "page_size": 10,
        "page_count": 1,
        "item_count": 0,
        "filtered_count": 10,
        "total_count": 25,
    }
    found = listed("page=3&page_size=10")
    assert names(found["items"]) == [f"q{number:05}" for number in range(20, 25)]
    assert (found["page_count"], found["item_count"]) == (3, 5)


def test_an_empty_list_has_one_empty_page() -> None:
    found = listed("page=1", count=0)
    assert (found["items"], found["page_count"], found["page_size"]) == ([], 1, 100)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("page=0", "'page' must be a number of 1"),
        ("page=-1", "'page' must be"),
        ("page=x", "'page' must be"),
        ("page=1&page_size=501", "'page_size' must be a number of 1 to 500"),
        ("page=1&page_size=0", "'page_size' must be"),
        ("page=99999999999999999999", "'page' must be"),
        ("page=9", "Page out of range, page: 9 page size: 100, len: 25"),
        ("name=[&use_regex=true", "'name' is no regular expression"),
        ("use_regex=yes", "'use_regex' must be true or false"),
        ("sort_reverse=1", "'sort_reverse' must be true or false"),
        ("columns=" + ",".join(["a"] * 101), "'columns' names 101 fields"),
    ],
)
def test_what_cannot_be_a_page_is_400_with_a_sentence(query: str, words: str) -> None:
    with pytest.raises(Refused) as no:
        listed(query)
    assert no.value.status == 400
    assert words in no.value.reason


def test_names_are_found_by_a_part_or_by_a_pattern_whatever_their_case() -> None:
    assert names(listed("name=Q0000")) == [f"q{number:05}" for number in range(10)]
    assert names(listed("name=%5EQ.*[34]%24&use_regex=true")) == [f"q{n:05}" for n in (3, 4, 13, 14, 23, 24)]


def test_the_order_is_by_any_field_and_then_by_name() -> None:
    found = listed("sort=messages&sort_reverse=true&page=1&page_size=4")["items"]
    assert [(item["messages"], item["name"]) for item in found] == [
        (6, "q00020"),
        (6, "q00013"),
        (6, "q00006"),
        (5, "q00019"),
    ]
    assert names(listed("sort=stats.publish.rate&page=1&page_size=2")["items"]) == ["q00024", "q00023"]
    assert names(listed("sort=nothing.of.the.kind"))[0] == "q00000"


def test_columns_choose_fields_and_lead_into_objects_and_lists() -> None:
    found = listed("columns=name,stats.publish,consumers.tag,none", count=1)
    assert found == [{"name": "q00000", "stats": {"publish": {"rate": 0.0}}, "consumers": [{"tag": "c0"}]}]


def test_only_what_is_on_the_page_is_described() -> None:
    described: list[int] = []

    def noted(number: int) -> dict[str, Any]:
        described.append(number)
        return describe(number)

    keys = {"name": lambda number: f"q{number:05}", "messages": lambda number: number % 7}
    query = "page=2&page_size=5&sort=messages&name=q0"
    asyncio.run(paging.listed(call(query), range(MANY), noted, keys=keys))
    assert len(described) == 5


def test_columns_at_hand_need_no_description() -> None:
    keys = {"name": lambda number: f"q{number:05}", "messages": lambda number: number % 7}
    answer = asyncio.run(
        paging.listed(call("columns=name,messages"), range(3), lambda _: pytest.fail("described"), keys=keys)
    )
    assert json.loads(bytes(answer.body))[2] == {"name": "q00002", "messages": 2}


def rounds(query: str) -> Iterator[float]:
    """How much this thread worked between two turns of the loop, while a list of many was made."""

    async def run() -> list[float]:
        made = asyncio.create_task(paging.listed(call(query), range(MANY), describe))
        found = []
        while not made.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            found.append(time.thread_time() - began)
        assert (await made).status_code == 200
        return found

    yield from asyncio.run(run())


@pytest.mark.parametrize(
    "query",
    [
        "",
        "page=50&page_size=100&sort=stats.publish.rate",
        "name=9&use_regex=true&sort=messages&sort_reverse=true",
    ],
)
def test_a_list_of_ten_thousand_never_holds_the_loop_for_long(query: str) -> None:
    found = list(rounds(query))
    assert sorted(found)[-2] < 0.03  # one turn may have been that of the garbage collector
    assert sum(found) > 5 * pace.SLICE_S, "this proves nothing: it was too little work"
    assert len(found) > sum(found) / pace.SLICE_S / 4, "it was made in one go"


def test_whatever_clients_gave_is_written_as_json() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    odd = {
        "consumers": [{"arguments": {"raw": b"\xff", "deep": deep, "nan": float("nan"), "half": "\ud800"}}]
    }
    found = json.loads(paging.encoded({"name": "q\udcff", **odd}))
    assert found["name"] == "q?"
    assert found["consumers"][0]["arguments"]["raw"] == "/w=="
    assert found["consumers"][0]["arguments"]["nan"] == "nan"
