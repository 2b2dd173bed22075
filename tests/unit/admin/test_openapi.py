"""The OpenAPI document: whole, true to the routes, and good for the tools that read such documents."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.responses import Response

from tidemark.admin.app import all_entries
from tidemark.admin.openapi import document
from tidemark.admin.routing import (
    COUNT,
    PAGING,
    TEXT,
    Entry,
    Query,
    a_list,
    an_object,
    entries_of,
    maybe,
    one_of,
    paged,
)
from tidemark.admin.visit import reaches

ENTRIES = all_entries()
DOCUMENT = document(ENTRIES)


async def nothing(_: Any) -> Response:
    """Does nothing.

    At all."""
    return Response()


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, made)
        for path, methods in DOCUMENT["paths"].items()
        for method, made in methods.items()
    ]


def test_every_endpoint_has_a_summary_a_tag_and_an_identifier_of_its_own() -> None:
    identifiers = [made["operationId"] for _, _, made in operations()]
    assert len(set(identifiers)) == len(identifiers) == len(ENTRIES)
    bare = [
        (method, path) for method, path, made in operations() if not made["summary"] or not made.get("tags")
    ]
    assert not bare


def test_every_name_in_a_path_is_a_parameter_that_is_needed() -> None:
    for _, path, made in operations():
        named = [one["name"] for one in made.get("parameters", []) if one["in"] == "path"]
        assert named == re.findall(r"{(\w+)}", path)
        assert all(one["required"] for one in made.get("parameters", []) if one["in"] == "path")


def test_what_needs_a_login_says_so_and_what_needs_none_too() -> None:
    open_ones = {(method, path) for method, path, made in operations() if made.get("security") == []}
    assert open_ones == {
        ("post", "/api/login"),
        ("delete", "/api/login"),
        ("get", "/api/openapi.json"),
        # How to log in, and whether it is alive: for whoever has no login yet.
        ("get", "/api/auth"),
        ("get", "/api/health/live"),
        ("get", "/api/health/ready"),
    }
    assert DOCUMENT["security"]


def test_every_success_says_what_it_gives() -> None:
    for method, path, made in operations():
        successes = [status for status in made["responses"] if status.startswith("2")]
        assert successes, (method, path)
        if "200" in successes:
            assert made["responses"]["200"]["content"], (method, path)


def test_the_document_is_json_and_its_references_lead_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]


def test_a_tuple_is_an_entry_of_which_nothing_is_said() -> None:
    [entry] = entries_of([("GET", "/x", nothing)], "module")
    assert (entry.method, entry.full_path, entry.tag, entry.needs) == (
        "GET",
        "/api/x",
        "module",
        "management",
    )
    assert entry.summary == "Does nothing."


def test_an_endpoint_that_is_there_twice_is_a_mistake() -> None:
    class Module:
        __name__ = "module"
        routes = [Entry("GET", "/x", nothing), Entry("GET", "/x", nothing)]  # noqa: RUF012

    with pytest.raises(AssertionError, match="GET /api/x twice"):
        all_entries((Module(),))  # type: ignore[arg-type]


def test_what_an_entry_says_is_in_the_document() -> None:
    entry = Entry(
        "PUT", "/things/{thing}", nothing, "Put a thing", "things", (Query("many", TEXT, "Words", many=True),),
        body=an_object({"size": COUNT}, name=TEXT), statuses=(201,),
    )  # fmt: skip
    made = document([entry])["paths"]["/api/things/{thing}"]["put"]
    assert (made["summary"], made["tags"]) == ("Put a thing", ["things"])
    assert [one["name"] for one in made["parameters"]] == ["thing", "many"]
    assert made["parameters"][1]["schema"] == {"type": "array", "items": TEXT}
    assert made["requestBody"]["required"]
    assert {"201", "401", "403", "404", "413"} <= set(made["responses"])


def test_words_for_schemas() -> None:
    assert maybe(TEXT) == {"type": ["string", "null"]}
    assert maybe(one_of("a")) == {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}
    assert an_object({"b": TEXT}, a=COUNT)["required"] == ["a"]
    assert paged(TEXT)["anyOf"][0] == a_list(TEXT)
    assert paged(an_object(a=COUNT))["anyOf"][0]["items"]["x-always"] == ["a"]
    assert {one.name for one in PAGING} >= {
        "page",
        "page_size",
        "name",
        "use_regex",
        "sort",
        "sort_reverse",
        "columns",
    }


@pytest.mark.parametrize(
    ("tags", "enough"),
    [
        ((), {"nothing"}),
        (("nobody",), {"nothing"}),
        (("management",), {"nothing", "management"}),
        (("policymaker",), {"nothing", "management", "policymaker"}),
        (("monitoring",), {"nothing", "management", "monitoring"}),
        (("administrator",), {"nothing", "management", "policymaker", "monitoring", "administrator"}),
        (("monitoring", "policymaker"), {"nothing", "management", "policymaker", "monitoring"}),
    ],
)
def test_tags_reach_what_they_reach_in_rabbitmq(tags: tuple[str, ...], enough: set[str]) -> None:
    every = ("nothing", "management", "policymaker", "monitoring", "administrator")
    assert {needs for needs in every if reaches(tags, needs)} == enough  # type: ignore[arg-type]
