"""Lists as RabbitMQ's clients ask for them: a page, a part of the name, an order, a choice of fields.

Any list may have ten thousand items, and all of this runs in the broker's loop. So an item is described in full only
when it is on the page that was asked for; what the others are filtered and sorted by comes from `keys`, small functions
of the item itself. Work is done in slices of a few milliseconds at most, with a turn of the loop between them. What is
deleted meanwhile may still be in the answer.

Invariant: no slice is longer than `SLICE_S` by more than a few items take.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemark.admin.answers import Refused, plain
from tidemark.admin.pace import Pace
from tidemark.admin.patterns import Search
from tidemark.admin.visit import Call
from tidemark.broker.patterns import BadPattern

PAGE_SIZE = 100
PAGE_SIZE_MAX = 500
PAGE_MAX = 1 << 31
SLICE_ITEMS = 32
SORTED_AT_ONCE = 1000
SENT_BYTES = 256 << 10
COLUMNS_MAX = 100

Item = TypeVar("Item")
Key = Callable[[Any], Any]
Keys = Mapping[str, Key]
NO_KEYS: Keys = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the query says about a list."""

    page: int | None = None
    """From 1; None: all of it."""
    page_size: int = PAGE_SIZE
    wanted: Callable[[str], bool] | None = None
    """Whether a name is asked for; None: all are."""
    sort: str = ""
    reverse: bool = False
    columns: tuple[str, ...] = ()


def asked(request: Request) -> Asked:
    """Raises Refused for what cannot be."""
    query = request.query_params
    page = _number(query.get("page"), "page", PAGE_MAX)
    size = _number(query.get("page_size"), "page_size", PAGE_SIZE_MAX)
    return Asked(
        page=page,
        page_size=size or PAGE_SIZE,
        wanted=_wanted(query.get("name", ""), _flag(query.get("use_regex"), "use_regex")),
        sort=query.get("sort", ""),
        reverse=_flag(query.get("sort_reverse"), "sort_reverse"),
        columns=columns(request),
    )


def columns(request: Request) -> tuple[str, ...]:
    """The fields that are asked for; none: all."""
    found = [column for column in request.query_params.get("columns", "").split(",") if column]
    if len(found) > COLUMNS_MAX:
        raise Refused(400, "bad_request", f"'columns' names {len(found)} fields; at most {COLUMNS_MAX}")
    return tuple(found)


def _number(text: str | None, name: str, most: int) -> int | None:
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= most):
        words = f"Invalid pagination parameters: '{name}' must be a number of 1 to {most}"
        raise Refused(400, "invalid_pagination_parameters", words)
    return int(text)


def _flag(text: str | None, name: str) -> bool:
    if text in (None, "", "false"):
        return False
    if text == "true":
        return True
    raise Refused(400, "bad_request", f"'{name}' must be true or false")


def _wanted(name: str, use_regex: bool) -> Callable[[str], bool] | None:
    if not name:
        return None
    if use_regex:
        try:
            search = Search(name)
        except BadPattern as problem:
            raise _no_pattern(problem) from None

        def finds(found: str) -> bool:
            try:
                return search.finds(found)
            except BadPattern as problem:
                raise _no_pattern(problem) from None

        return finds
    lowered = name.lower()
    return lambda found: lowered in found.lower()


def _no_pattern(problem: BadPattern) -> Refused:
    return Refused(400, "bad_request", f"'name' is no regular expression that can be used: {problem}")


# Slices -----------------------------------------------------------------------------------------


async def sliced(items: Iterable[Item], count: int = SLICE_ITEMS) -> AsyncIterator[list[Item]]:
    """The items in lists of so many, with a turn of the loop now and then."""
    pace, part = Pace(), []
    for item in items:
        part.append(item)
        if len(part) >= count:
            yield part
            part = []
            if pace.is_over():
                await pace.rest()
    if part:
        yield part


class Pieces(Response):
    """An answer in JSON that is sent as it is, piece by piece: only to join a long one would take too long."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self.status_code = 200
        self.background = None
        size = sum(map(len, pieces))
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(size).encode()),
        ]

    def __getattr__(self, name: str) -> Any:
        if name != "body":
            raise AttributeError(name)
        return b"".join(self._pieces)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        part, size = [], 0
        for piece in self._pieces:
            part.append(piece)
            size += len(piece)
            if size >= SENT_BYTES:
                await send({"type": "http.response.body", "body": b"".join(part), "more_body": True})
                await asyncio.sleep(0)
                part, size = [], 0
        await send({"type": "http.response.body", "body": b"".join(part), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def with_commas(texts: Sequence[bytes]) -> list[bytes]:
    return [piece for text in texts for piece in (b",", text)][1:]


# The list -----------------------------------------------------------------------------------------


async def listed(
    call: Call,
    items: Sequence[Item],
    describe: Callable[[Item], dict[str, Any]],
    *,
    keys: Keys = NO_KEYS,
    order: Sequence[str] = ("name",),
) -> Response:
    """The answer to a request for a list.

    `keys` are fields that an item has at hand, without being described; `order` those to sort by where nothing
    is said, which are text in every item.

    Raises:
        Refused: the query asks for what cannot be.
    """
    wish = asked(call.request)
    total = len(items)
    name_of = _key("name", describe, keys)
    chosen: Sequence[Item] = items
    if wish.wanted is not None:
        found: list[Item] = []
        # One at a time: a pattern may take as long for one name as a slice should.
        async for part in sliced(items, 1):
            found += [item for item in part if wish.wanted(_text(name_of(item)))]
        chosen = found
    by = [_key(name, describe, keys) for name in order]
    if wish.sort:
        by.insert(0, _any_order(_key(wish.sort, describe, keys)))
    first, last = _bounds(wish, len(chosen))
    shown = await _sorted(chosen, by, wish.reverse, first, last)
    made = await texts(shown, _shape(wish.columns, describe, keys))
    head, tail = b"[", b"]"
    if wish.page is not None:
        counts = {
            "filtered_count": len(chosen),
            "item_count": len(shown),
            "page": wish.page,
            "page_count": max(1, -(-len(chosen) // wish.page_size)),
            "page_size": wish.page_size,
            "total_count": total,
        }
        head, tail = json.dumps(counts).encode()[:-1] + b', "items": [', b"]}"
    return Pieces([head, *with_commas(made), tail])


def shown(call: Call, item: dict[str, Any], status: int = 200) -> Response:
    """The answer to a request for one thing; `columns` may choose its fields."""
    chosen = columns(call.request)
    return Response(encoded(picked(item, chosen) if chosen else item), status, media_type="application/json")


def _bounds(wish: Asked, count: int) -> tuple[int, int]:
    if wish.page is None:
        return 0, count
    first = (wish.page - 1) * wish.page_size
    if first > count:
        raise Refused(
            400,
            "page_out_of_range",
            f"Page out of range, page: {wish.page} page size: {wish.page_size}, len: {count}",
        )
    return first, min(first + wish.page_size, count)


def _key(name: str, describe: Callable[[Any], dict[str, Any]], keys: Keys) -> Key:
    if name in keys:
        return keys[name]
    path = name.split(".")
    return lambda item: _dotted(describe(item), path)


def _dotted(value: Any, path: list[str]) -> Any:
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


async def _sorted(
    items: Sequence[Item], keys: Sequence[Key], reverse: bool, first: int, last: int
) -> list[Item]:
    """Those from `first` to `last` of the sorted items."""
    runs: list[list[tuple[Any, ...]]] = [[]]
    at = 0
    # The position makes every key another one, so that items themselves are never compared; what is equal keeps its order.
    async for part in sliced(items):
        for item in part:
            runs[-1].append((*[key(item) for key in keys], -at if reverse else at))
            at += 1
        if len(runs[-1]) >= SORTED_AT_ONCE:
            runs[-1].sort(reverse=reverse)
            runs.append([])
    runs[-1].sort(reverse=reverse)
    merged: Iterator[tuple[Any, ...]] = (
        heapq.merge(*runs, reverse=reverse) if len(runs) > 1 else iter(runs[0])
    )
    found: list[Item] = []
    at = 0
    async for entries in sliced(merged):
        for entry in entries:
            if first <= at < last:
                found.append(items[abs(entry[-1])])
            at += 1
        if at >= last:
            break
    return found


def _any_order(key: Key) -> Key:
    """Any field can be sorted by, whatever values it has; those of `order` are text."""
    return lambda item: _ranked(key(item))


def _ranked(value: Any) -> tuple[int, Any]:
    """Whatever a field holds, in an order with everything else: nothing, numbers, text, the rest."""
    if isinstance(value, str):
        return 2, value
    if isinstance(value, int | float):
        return (1, value) if value == value else (0, 0)
    if value is None:
        return 0, 0
    return 3, json.dumps(plain(value), sort_keys=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


# Items ----------------------------------------------------------------------------------------------


def _shape(
    chosen: tuple[str, ...], describe: Callable[[Any], dict[str, Any]], keys: Keys
) -> Callable[[Any], dict[str, Any]]:
    """What an item is described by."""
    if not chosen:
        return describe
    if all(name in keys and "." not in name for name in chosen):
        at_hand = {name: keys[name] for name in chosen}
        return lambda item: {name: key(item) for name, key in at_hand.items()}
    return lambda item: picked(describe(item), chosen)


def picked(item: dict[str, Any], chosen: Iterable[str]) -> dict[str, Any]:
    """Only these fields; `a.b` is the field `b` of the object `a`, or of each object in the list `a`."""
    tree: dict[str, Any] = {}
    for name in chosen:
        at = tree
        for part in name.split("."):
            at = at.setdefault(part, {})
    picked_item: dict[str, Any] = _pick(item, tree)
    return picked_item


def _pick(value: Any, tree: dict[str, Any]) -> Any:
    if not tree:
        return value
    if isinstance(value, dict):
        return {name: _pick(value[name], inner) for name, inner in tree.items() if name in value}
    if isinstance(value, list | tuple):
        return [_pick(one, tree) for one in value]
    return value


def encoded(item: Any) -> bytes:
    if isinstance(item, dict) and not any(item.get(name) for name in FOREIGN):
        # What we made ourselves is nearly always as JSON can hold it: a page of queues costs a third this way.
        with suppress(TypeError, ValueError, RecursionError):
            return _JSON.encode(item).encode()
    return json.dumps(plain(item), ensure_ascii=False, separators=(",", ":")).encode()


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
FOREIGN = ("arguments", "headers", "client_properties", "properties", "value", "definition")
"""Fields that hold what clients gave, with anything in them and nested as deeply as they like."""


async def texts(items: Sequence[Item], describe: Callable[[Item], dict[str, Any]]) -> list[bytes]:
    """Each item as JSON."""
    made: list[bytes] = []
    async for part in sliced(items):
        made += [encoded(describe(item)) for item in part]
    return made
