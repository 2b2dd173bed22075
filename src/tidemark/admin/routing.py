"""What the API consists of: one `Entry` for each method of each path, with what it takes, gives and needs.

An entry is the only place where an endpoint is described. The application routes by it and refuses visitors whose tags
do not reach what it needs; `openapi` makes the served document from it; the security tests walk it. Schemas are JSON
Schema as plain dicts, put together with the small words below, next to the resource they belong to.

Invariant: no two entries of an application have the same method and path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response

Schema = dict[str, Any]
Needs = Literal["nothing", "management", "policymaker", "monitoring", "administrator"]
CHANGING = ("PUT", "POST", "DELETE", "PATCH")


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter behind the question mark."""

    name: str
    schema: Schema
    text: str = ""
    many: bool = False
    """It may be given several times."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    method: str
    path: str
    """Below /api, with names in braces. A name stands for one part of the path as it was sent, quoted."""
    resource: Callable[[Any], Awaitable[Response]]
    """Is given a `Visit`; where nobody needs to log in, a `Call`."""
    summary: str = ""
    tag: str = ""
    query: tuple[Query, ...] = ()
    body: Schema | None = None
    """What it takes; None: it reads none."""
    answer: Schema | None = None
    """What it gives with status 200; None: an answer without a body, or one that is not JSON (see `media`)."""
    needs: Needs = "management"
    """The least tag. That a visitor may see a virtual host, and what they may do in it, the resource looks at."""
    statuses: tuple[int, ...] = ()
    """How it may succeed; (): 200 when it has an answer, else what is usual for its method."""
    media: str = "application/json"
    body_bytes_max: int = 1 << 20
    anywhere: bool = False
    """It changes nothing that members share, so that one that does not lead does it too."""
    asks_itself: bool = False
    """The resource looks who asks, and is given a `Call`: it has an answer also where nobody can log in yet."""
    root: bool = False
    """The path is as it stands, not below /api."""

    @property
    def full_path(self) -> str:
        return self.path if self.root else f"/api{self.path}"

    @property
    def changes(self) -> bool:
        return self.method in CHANGING

    @property
    def successes(self) -> tuple[int, ...]:
        if self.statuses:
            return self.statuses
        if self.answer is not None or self.media != "application/json" or self.method == "GET":
            return (200,)
        return {"PUT": (201, 204), "POST": (201, 204), "DELETE": (204,)}.get(self.method, (200,))


def entries_of(routes: Iterable[Any], module: str = "") -> list[Entry]:
    """The routes of a module; a tuple (method, path, resource) is an entry with nothing said about it."""
    found = []
    for one in routes:
        if isinstance(one, Entry):
            found.append(one)
        else:
            method, path, resource = one
            words = (resource.__doc__ or "").strip().split("\n")[0]
            answer = ANYTHING if method == "GET" else None
            statuses = () if method == "GET" else (200, 201, 204)
            takes = OBJECT if method in ("PUT", "POST") else None
            found.append(
                Entry(method, path, resource, words, module, body=takes, answer=answer, statuses=statuses)
            )
    return found


# Words for schemas ------------------------------------------------------------------------------------------

ANYTHING: Schema = {}
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TAGS: Schema = {"type": "array", "items": {"type": "string"}}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """It, or null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def an_object(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    """An object that has these fields, and may have those of `optional` and others."""
    made: Schema = {"type": "object", "properties": {**fields, **(optional or {})}}
    if fields:
        made["required"] = list(fields)
    return made


def a_list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def paged(item: Schema) -> Schema:
    """A list; with `page` in the query one page of it. With `columns` an item has only what was chosen: what it has otherwise
    is said by `x-always`."""
    item = {("x-always" if name == "required" else name): value for name, value in item.items()}
    page = an_object(
        items=a_list(item),
        page=COUNT,
        page_size=COUNT,
        page_count=COUNT,
        item_count=COUNT,
        filtered_count=COUNT,
        total_count=COUNT,
    )
    return {"anyOf": [a_list(item), page]}


PAGING = (
    Query("page", {"type": "integer", "minimum": 1}, "Which page; without it the whole list is given."),
    Query("page_size", {"type": "integer", "minimum": 1, "maximum": 500}, "Items on a page."),
    Query("name", TEXT, "Only items whose name contains this."),
    Query("use_regex", FLAG, "`name` is a regular expression."),
    Query("sort", TEXT, "Field to sort by; dots lead into objects."),
    Query("sort_reverse", FLAG, "Largest first."),
    Query("columns", TEXT, "Fields to give, separated by commas; dots lead into objects."),
)
"""What every list takes."""
