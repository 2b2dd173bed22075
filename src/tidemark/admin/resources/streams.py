"""/api/streams: streams with what they hold now and held before, the marks of their consumers, and the pins that keep their past.

A stream is also in /api/queues, as a queue of type `stream`; here is what only a stream has. Whoever reads messages needs
the permission to read the stream; whoever only sees its virtual host sees its numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from starlette.responses import JSONResponse, Response

from tidemark.admin import browsing, paging
from tidemark.admin.answers import Refused, body, created, done, field, plain, shown
from tidemark.admin.browsing import As, Form, Keys, Views
from tidemark.admin.counting import Counts, Paces, left
from tidemark.admin.resources import journal
from tidemark.admin.routing import (
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    PAGING,
    TEXT,
    Entry,
    Query,
    a_list,
    an_object,
    maybe,
    one_of,
    paged,
)
from tidemark.admin.visit import Visit
from tidemark.broker.streams.marks import Mark
from tidemark.broker.streams.pins import Pin
from tidemark.broker.streams.session import At, StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.errors import NotAStream, NotFound, StreamReset
from tidemark.model.rows import Row

COUNT_S = 0.3
"""How long an answer waits for counts; what is not counted by then is null, and known the next time."""
LIMIT = 50
LIMIT_MAX = 500
VALUE_BYTES = 4096
VALUE_BYTES_MAX = 1 << 20
LEASE_MS = 3_600_000

Held = TypeVar("Held", Mark, Pin)


# Streams ----------------------------------------------------------------------------------------------------


def describe(visit: Visit, stream: Stream) -> dict[str, Any]:
    policy = stream.policy
    return {
        **asdict(stream.stream()),
        "arguments": stream.spec.arguments,
        "group": stream.spec.group or visit.broker.group,
        "node": visit.server.config.node.name,
        "history": visit.broker.streams.history.hex(),
        "state": "locked" if stream.locked else "running",
        "policy": getattr(stream, "applied_policy", None),
        "history_ms": policy.history_ms,
        "pin_bytes_max": policy.pin_bytes_max,
        "length_bytes_max": policy.length_bytes_max,
        "age_ms_max": policy.age_ms_max,
    }


def streams(visit: Visit) -> Iterator[Stream]:
    """Those of the virtual host in the path, or all that the visitor may see."""
    for host in visit.vhosts():
        for queue in host.queues.values():
            if isinstance(queue, Stream):
                yield queue


def the_stream(visit: Visit) -> Stream:
    """The stream in the path. Raises NotFound, NotAStream."""
    found = visit.vhost().queue(visit.part("stream"))
    if not isinstance(found, Stream):
        raise NotAStream(stream=visit.part("stream"))
    return found


async def every(visit: Visit) -> Response:
    keys = {"name": lambda stream: stream.name, "vhost": lambda stream: stream.spec.vhost}
    return await paging.listed(
        visit,
        list(streams(visit)),
        lambda stream: describe(visit, stream),
        keys=keys,
        order=("vhost", "name"),
    )


async def one(visit: Visit) -> Response:
    return shown(describe(visit, the_stream(visit)))


async def put(visit: Visit) -> Response:
    """Make a stream, or see that it is there; with more shards than it has it grows."""
    given, name = await body(visit.request), visit.part("stream")
    new = name not in visit.vhost().queues
    with visit.session() as session:
        safe_at = StreamSession(session).declare(name, field(given, "arguments", dict, {}))
    await visit.safe(safe_at)
    return created(new)


async def delete(visit: Visit) -> Response:
    the_stream(visit)
    with visit.session() as session:
        safe_at = StreamSession(session).delete(visit.part("stream"))
    await visit.safe(safe_at)
    return done()


# Messages ---------------------------------------------------------------------------------------------------


async def messages(visit: Visit) -> Response:
    """A page of what the stream holds, or held at a moment that is kept."""
    limit = cast(int, visit.number("limit", LIMIT, 1, LIMIT_MAX))
    after, before = visit.number("after", None), visit.number("before", None, 1)
    if after is not None and before is not None:
        raise Refused(400, "bad_request", "'after' and 'before' go in opposite directions; give one")
    form, keys, exact = _form(visit), _keys(visit), _bytes(visit, "key")
    name, stream = visit.part("stream"), the_stream(visit)
    following: int | None = None
    earlier: int | None = None
    with visit.session() as session, StreamSession(session).snapshot(name, at=_at(visit, "at")) as snapshot:
        if exact is not None and _has_index(stream):
            row = browsing.one(stream, exact, snapshot.seq)
            rows = [] if row is None else [row]
        elif before is not None:
            rows, earlier = await browsing.backwards(snapshot, before, limit, keys)
            following = rows[-1].seq if rows and rows[-1].seq < snapshot.seq else None
        else:
            rows, following = await browsing.forwards(snapshot, after or 0, limit, keys)
            earlier = rows[0].seq if rows and after else None
        if following is not None or earlier is not None:
            keep(visit, stream, snapshot.seq)
        at_ms = await browsing.newest_ms(snapshot)
        facts = {
            "history": snapshot.history.hex(),
            "at": snapshot.seq,
            "at_ms": at_ms,
            "boundary": stream.boundary,
            "first_seq": stream.first_seq,
            "last_seq": stream.last_seq,
            "oldest_snapshot": stream.oldest_snapshot,
        }
    return await _with_items(
        {**facts, "next": following, "previous": earlier}, rows, lambda row: browsing.item(row, form)
    )


async def key_history(visit: Visit) -> Response:
    """What a key was and is, the newest first, as far as snapshots, pins or the history of the stream keep it."""
    form, stream = _form(visit), the_stream(visit)
    key = visit.part("key").encode("utf-8", "surrogateescape")
    with visit.session() as session:
        StreamSession(session).stream(stream.name, "read")
        if not _has_index(stream):
            words = f"'{stream.name}' keeps every message and knows no keys; look for them in its messages"
            raise Refused(400, "bad_request", words)
        rows = list(browsing.revisions(stream, key))
    if not rows:
        raise NotFound(
            reason=f"nothing is kept under the key '{visit.part('key')}' of stream '{stream.name}'"
        )
    found = [{**browsing.item(row, form), "superseded_by": newer, "current": not at} for at, (row, newer) in
             enumerate(rows)]  # fmt: skip
    found[0]["current"] = stream.current(key) is not None
    return _plainly({"key": found[0]["key"], "key_encoding": found[0]["key_encoding"], "revisions": found})


async def difference(visit: Visit) -> Response:
    """What changed between two moments: every key once, as it is at the second one, and as it was at the first if that is kept."""
    limit = cast(int, visit.number("limit", LIMIT, 1, LIMIT_MAX))
    form, name, stream = _form(visit), visit.part("stream"), the_stream(visit)
    with visit.session() as session:
        reader = StreamSession(session)
        start = await _moment(reader, name, visit, "from")
        try:
            opened = reader.diff(name, start, _at(visit, "to"))
        except StreamReset as gone:
            words = (
                f"what was deleted from '{name}' up to sequence {gone.purged} is no longer known: "
                f"compare from there or from later, not from {start}"
            )
            raise Refused(400, "bad_request", words) from gone
        with opened as snapshot:
            if start > snapshot.seq:
                raise Refused(400, "bad_request", f"'from' is {start}, behind 'to', which is {snapshot.seq}")
            exact = _has_index(stream) and stream.can_show(start)
            after = max(start, cast(int, visit.number("after", 0)))
            rows, following = await browsing.forwards(snapshot, after, limit, None)
            if following is not None:
                keep(visit, stream, snapshot.seq)
            if following is not None and exact:
                keep(visit, stream, start)

            def compared(row: Row) -> dict[str, Any]:
                was = browsing.one(stream, row.key, start) if exact and row.key is not None else None
                was = None if was is None or was.tombstone else was
                change = "deleted" if row.tombstone else "changed" if was else "added" if exact else "put"
                before = None if was is None else browsing.item(was, form)
                return {**browsing.item(row, form), "change": change, "before": before}

            facts = {
                "history": snapshot.history.hex(),
                "from": start,
                "to": snapshot.seq,
                "exact": exact,
                "boundary": stream.boundary,
                "oldest_snapshot": stream.oldest_snapshot,
            }
            with Snapshot(stream, start if exact else snapshot.seq):
                return await _with_items({**facts, "next": following}, rows, compared)


async def snapshots(visit: Visit) -> Response:
    """Moments that can be looked at: open snapshots, pins, and where the kept past begins."""
    stream = the_stream(visit)
    found = [
        {"kind": "open", "name": None, "sequence": one.seq, "used_ms": one.used_ms}
        for one in stream.every_snapshot()
        if one.pin is None
    ]
    found += [
        {"kind": "pin", "name": pin.name, "sequence": pin.seq, "used_ms": None}
        for pin in stream.pins.by_name.values()
    ]
    stream.caught_up()
    found.append({"kind": "history", "name": None, "sequence": stream.oldest_snapshot, "used_ms": None})
    found.append({"kind": "now", "name": None, "sequence": stream.boundary, "used_ms": None})
    return _plainly(sorted(found, key=lambda each: cast(int, each["sequence"])))


def keep(visit: Visit, stream: Stream, seq: int) -> None:
    """Let this moment be there for the next page. Who is pushed answers again and again turns none."""
    views: Views = visit.request.app.state.views
    if not getattr(visit.request.state, "pushed", False):
        views.keep(stream, seq)


def _has_index(stream: Stream) -> bool:
    return not stream.policy.is_log


def _at(visit: Visit, name: str) -> At:
    seq, ms = visit.number(name, None), visit.number(f"{name}_ms", None)
    if seq is not None and ms is not None:
        raise Refused(400, "bad_request", f"'{name}' and '{name}_ms' are two moments; give one")
    return f"time:{ms}" if ms is not None else seq


async def _moment(reader: StreamSession, name: str, visit: Visit, which: str) -> int:
    """A moment as a sequence."""
    at = _at(visit, which)
    if at is None:
        raise Refused(400, "bad_request", f"'{which}' or '{which}_ms' is needed")
    if isinstance(at, int):
        return at
    with reader.snapshot(name, at=at) as then:
        return then.seq


def _bytes(visit: Visit, name: str) -> bytes | None:
    """A word of the query as it was sent; an empty one is none."""
    query: str = visit.request.scope["query_string"].decode("ascii", "replace")
    for key, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if key == name and value:
            return value.encode("utf-8", "surrogateescape")
    return None


def _keys(visit: Visit) -> Keys | None:
    key, prefix = _bytes(visit, "key"), _bytes(visit, "prefix")
    if key is not None and prefix is not None:
        raise Refused(400, "bad_request", "give 'key' or 'prefix', not both")
    if key is not None:
        return Keys.exactly(key)
    return Keys.beginning(prefix) if prefix is not None else None


def _form(visit: Visit) -> Form:
    as_ = visit.request.query_params.get("as", "auto")
    if as_ not in ("auto", "json", "base64"):
        raise Refused(400, "bad_request", "'as' must be auto, json or base64")
    size = cast(int, visit.number("value_bytes_max", VALUE_BYTES, 0, VALUE_BYTES_MAX))
    return Form(size, cast(As, as_))


def _plainly(found: Any) -> Response:
    return JSONResponse(plain(found))


async def _with_items(
    facts: dict[str, Any], rows: list[Row], describe: Callable[[Row], dict[str, Any]]
) -> Response:
    """An answer with many messages, made a few at a time."""
    texts: list[bytes] = []
    async for part in paging.sliced(rows, 1):
        texts += [json.dumps(describe(row)).encode() for row in part]
    head = json.dumps(facts)[:-1].encode() + b', "items": ['
    return paging.Pieces([head, *paging.with_commas(texts), b"]}"])


# What streams hold by name, marks and pins ------------------------------------------------------------------


async def _held(
    visit: Visit,
    every: Iterable[tuple[Stream, Held]],
    describe: Callable[[Visit, Stream, Held, float], Awaitable[dict[str, Any]]],
    named: str,
) -> Response:
    """A list of them, each with its counts as far as there is time to count; `named` is the field of its name."""
    until = time.monotonic() + COUNT_S
    found: list[dict[str, Any]] = []
    async for part in paging.sliced(every):
        found += [await describe(visit, stream, one, until) for stream, one in part]
    return await paging.listed(visit, found, lambda one: one, order=("vhost", "stream", named))


async def _changed(visit: Visit, change: Callable[[StreamSession], int]) -> Response:
    """Change what the stream in the path holds; the answer comes when that is stored."""
    the_stream(visit)
    with visit.session() as session:
        safe_at = change(StreamSession(session))
    await journal.stored(visit, safe_at)
    return done()


# Marks ------------------------------------------------------------------------------------------------------


async def mark_of(visit: Visit, stream: Stream, mark: Mark, until: float) -> dict[str, Any]:
    counts: Counts = visit.request.app.state.counts
    paces: Paces = visit.request.app.state.paces
    behind = await counts.behind(stream, mark, until)
    keys, size = behind if behind is not None else (None, None)
    return {
        "vhost": stream.spec.vhost,
        "stream": stream.name,
        "name": mark.consumer,
        "consumer": mark.consumer,
        "history": mark.history.hex(),
        "sequence": mark.seq,
        "snapshot_end": mark.snapshot_end,
        "behind": max(0, stream.boundary - mark.seq),
        "keys_behind": keys,
        "bytes_behind": size,
        **left(stream, mark, keys, paces.of(stream, mark)),
        "registered": bool(mark.lease_ms),
        "lease_until_ms": mark.until_ms if mark.lease_ms else None,
        "expired": mark.expired,
        "shards": [point.seq for point in mark.points],
    }


async def _marks(visit: Visit, chosen: list[Stream]) -> Response:
    every = [(stream, mark) for stream in chosen for mark in stream.marks.by_name.values()]
    return await _held(visit, every, mark_of, "consumer")


async def every_mark(visit: Visit) -> Response:
    return await _marks(visit, list(streams(visit)))


async def marks(visit: Visit) -> Response:
    return await _marks(visit, [the_stream(visit)])


async def reset_mark(visit: Visit) -> Response:
    """Send a consumer to another place: `{"sequence": n}`, 0 is the beginning."""
    sequence = field(await body(visit.request), "sequence", int, 0)
    name, consumer = visit.part("stream"), visit.part("consumer")
    return await _changed(visit, lambda session: session.reset_mark(name, consumer, sequence))


async def forget_mark(visit: Visit) -> Response:
    name, consumer = visit.part("stream"), visit.part("consumer")
    return await _changed(visit, lambda session: session.unregister(name, consumer))


# Pins -------------------------------------------------------------------------------------------------------


async def pin_of(visit: Visit, stream: Stream, pin: Pin, until: float) -> dict[str, Any]:
    counts: Counts = visit.request.app.state.counts
    kept = await counts.kept(stream, pin, until)
    messages_kept, bytes_kept = kept if kept is not None else (None, None)
    return {
        "vhost": stream.spec.vhost,
        "stream": stream.name,
        "name": pin.name,
        "history": pin.history.hex(),
        "sequence": pin.seq,
        "lease_until_ms": pin.until_ms,
        "messages_kept": messages_kept,
        "bytes_kept": bytes_kept,
    }


async def _pins(visit: Visit, chosen: list[Stream]) -> Response:
    every = [(stream, pin) for stream in chosen for pin in stream.pins.by_name.values()]
    return await _held(visit, every, pin_of, "name")


async def every_pin(visit: Visit) -> Response:
    return await _pins(visit, list(streams(visit)))


async def pins(visit: Visit) -> Response:
    return await _pins(visit, [the_stream(visit)])


async def make_pin(visit: Visit) -> Response:
    """Keep a moment under a name: now, or `at` a sequence or `at_ms`; a name that is there has its lease renewed."""
    given, stream = await body(visit.request), the_stream(visit)
    name, lease_ms = field(given, "name", str), field(given, "lease_ms", int, LEASE_MS)
    at: At = None
    if given.get("at") is not None:
        at = field(given, "at", int)
    elif given.get("at_ms") is not None:
        at = f"time:{field(given, 'at_ms', int)}"
    new = name not in stream.pins.by_name
    with visit.session() as session:
        snapshot, safe_at = StreamSession(session).pin(stream.name, name, lease_ms, at=at)
        snapshot.close()
    await journal.stored(visit, safe_at)
    pin = stream.pins.by_name.get(name)
    if pin is None:
        raise NotFound(reason=f"the pin '{name}' is gone already")
    made = await pin_of(visit, stream, pin, time.monotonic() + COUNT_S)
    return JSONResponse(plain(made), 201 if new else 200)


async def release_pin(visit: Visit) -> Response:
    name, pin = visit.part("stream"), visit.part("pin")
    return await _changed(visit, lambda session: session.release(name, pin))


# What is given ----------------------------------------------------------------------------------------------

STREAM = an_object(
    dict.fromkeys(("floor", "purged", "memory_bytes", "published", "number", "history_ms"), COUNT),
    vhost=TEXT, name=TEXT, key=TEXT, shards=COUNT, live=COUNT, live_bytes=COUNT, tombstones=COUNT, held=COUNT,
    held_bytes=COUNT, first_seq=COUNT, last_seq=COUNT, boundary=COUNT, oldest_snapshot=COUNT, pins=COUNT,
    snapshots=COUNT, marks=COUNT, registered=COUNT, consumers=COUNT, arguments=OBJECT, group=TEXT, node=TEXT,
    history=TEXT,
)  # fmt: skip
MESSAGE_FIELDS = {
    "sequence": COUNT, "timestamp": {"type": "integer"}, "key": maybe(TEXT), "key_encoding": one_of("string", "base64"),
    "tombstone": FLAG, "bytes": COUNT, "encoding": one_of("string", "json", "base64"), "value": ANYTHING, "cut": FLAG,
    "properties": OBJECT, "headers": OBJECT,
}  # fmt: skip
MESSAGE = an_object(**MESSAGE_FIELDS)
MESSAGES = an_object(
    {"previous": maybe(COUNT), "at_ms": maybe({"type": "integer"})},
    history=TEXT, at=COUNT, boundary=COUNT, first_seq=COUNT, last_seq=COUNT, oldest_snapshot=COUNT,
    items=a_list(MESSAGE), next=maybe(COUNT),
)  # fmt: skip
REVISIONS = an_object(
    key=maybe(TEXT),
    key_encoding=TEXT,
    revisions=a_list(an_object(**MESSAGE_FIELDS, superseded_by=maybe(COUNT), current=FLAG)),
)
CHANGE = an_object(
    {"before": {"anyOf": [MESSAGE, {"type": "null"}]}},
    **MESSAGE_FIELDS,
    change=one_of("added", "changed", "deleted", "put"),
)
DIFFERENCE = an_object(
    {"from": COUNT, "history": TEXT, "boundary": COUNT, "oldest_snapshot": COUNT},
    to=COUNT,
    exact=FLAG,
    items=a_list(CHANGE),
    next=maybe(COUNT),
)
SNAPSHOT = an_object(
    {"used_ms": maybe(COUNT)},
    kind=one_of("open", "pin", "history", "now"),
    name=maybe(TEXT),
    sequence=COUNT,
)
MARK = an_object(
    vhost=TEXT, stream=TEXT, consumer=TEXT, history=TEXT, sequence=COUNT, snapshot_end=COUNT, behind=COUNT,
    keys_behind=maybe(COUNT), bytes_behind=maybe(COUNT), eta_s=maybe(NUMBER), rate=maybe(NUMBER), registered=FLAG,
    lease_until_ms=maybe(COUNT), expired=FLAG, shards=a_list(COUNT),
)  # fmt: skip
PIN = an_object(
    vhost=TEXT, stream=TEXT, name=TEXT, history=TEXT, sequence=COUNT, lease_until_ms=COUNT,
    messages_kept=maybe(COUNT), bytes_kept=maybe(COUNT),
)  # fmt: skip
DECLARED = an_object({"arguments": OBJECT})
PLACE = an_object({"sequence": COUNT})
WANTED_PIN = an_object({"lease_ms": COUNT, "at": maybe(COUNT), "at_ms": maybe(COUNT)}, name=TEXT)

SHAPE = (
    Query(
        "as",
        one_of("auto", "json", "base64"),
        "How values are given; auto: text, or base64 if they are none.",
    ),
    Query("value_bytes_max", {**COUNT, "maximum": VALUE_BYTES_MAX}, "What is longer is cut."),
)
LIMITED = Query("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}, "Messages on a page.")
BROWSING = (
    Query("at", COUNT, "As of this sequence; without it: now."),
    Query("at_ms", COUNT, "As of this time, in milliseconds since 1970."),
    Query("after", COUNT, "Behind this sequence."),
    Query("before", {"type": "integer", "minimum": 1}, "Before this sequence, the page that ends there."),
    Query("key", TEXT, "Only this key."),
    Query("prefix", TEXT, "Only keys that begin with this."),
    LIMITED,
    *SHAPE,
)
COMPARING = (
    Query("from", COUNT, "The first moment, as a sequence."),
    Query("from_ms", COUNT, "The first moment, as a time."),
    Query("to", COUNT, "The second moment, as a sequence; without it: now."),
    Query("to_ms", COUNT, "The second moment, as a time."),
    Query("after", COUNT, "Where the page before ended (its `next`)."),
    LIMITED,
    *SHAPE,
)
OF = "/streams/{vhost}/{stream}"

routes = [
    Entry("GET", "/streams", every, "All streams", "streams", PAGING, answer=paged(STREAM)),
    Entry("GET", "/streams/{vhost}", every, "The streams of a virtual host", "streams", PAGING, answer=paged(STREAM)),
    Entry("GET", OF, one, "A stream", "streams", answer=STREAM),
    Entry("PUT", OF, put, "Make a stream, or let it have more shards", "streams", body=DECLARED),
    Entry("DELETE", OF, delete, "Delete a stream and all that is in it", "streams"),
    Entry("GET", OF + "/messages", messages, "Messages, now or at a moment that is kept", "streams", BROWSING,
          answer=MESSAGES),
    Entry("GET", OF + "/keys/{key}", key_history, "The versions of a key that are kept", "streams", SHAPE,
          answer=REVISIONS),
    Entry("GET", OF + "/diff", difference, "What changed between two moments", "streams", COMPARING,
          answer=DIFFERENCE),
    Entry("GET", OF + "/snapshots", snapshots, "Moments that can be looked at", "streams", answer=a_list(SNAPSHOT)),
    Entry("GET", OF + "/marks", marks, "How far consumers have come", "streams", PAGING, answer=paged(MARK)),
    Entry("PUT", OF + "/marks/{consumer}", reset_mark, "Send a consumer to another place", "streams", body=PLACE,
          statuses=(204,)),
    Entry("DELETE", OF + "/marks/{consumer}", forget_mark, "Forget a consumer", "streams"),
    Entry("GET", OF + "/pins", pins, "What is pinned and what it costs", "streams", PAGING, answer=paged(PIN)),
    Entry("POST", OF + "/pins", make_pin, "Keep a moment under a name, or renew its lease", "streams",
          body=WANTED_PIN, answer=PIN, statuses=(200, 201)),
    Entry("DELETE", OF + "/pins/{pin}", release_pin, "Let go of a pin", "streams"),
    Entry("GET", "/marks", every_mark, "How far the consumers of all streams have come", "streams", PAGING,
          answer=paged(MARK)),
    Entry("GET", "/marks/{vhost}", every_mark, "The same, of a virtual host", "streams", PAGING, answer=paged(MARK)),
    Entry("GET", "/pins", every_pin, "What is pinned in all streams", "streams", PAGING, answer=paged(PIN)),
    Entry("GET", "/pins/{vhost}", every_pin, "The same, of a virtual host", "streams", PAGING, answer=paged(PIN)),
]  # fmt: skip
