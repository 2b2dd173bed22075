"""Streams in the management API: browsing, key history, the past, differences, marks with what is left, pins with what they cost."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from helpers.amqp import eventually
from helpers.api import Api
from helpers.broker import BrokerProcess

import tidemark.client
from tidemark.client import Client

_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("streams") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


@pytest.fixture(scope="module")
def db(broker: BrokerProcess) -> Iterator[Client]:
    url = f"tidemark://guest:guest@{broker.address.host}:{broker.address.port}/"
    with tidemark.client.connect(url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"stream-{next(_names)}"


def page(api: Api, name: str, **query: object) -> dict[str, object]:
    found: dict[str, object] = api.get(f"/streams/%2F/{name}/messages?{urlencode(query)}")
    return found


def keys(found: dict[str, object]) -> list[str]:
    return [item["key"] for item in found["items"]]  # type: ignore[attr-defined]


# Browsing ---------------------------------------------------------------------------------------------


def test_messages_are_browsed_page_by_page_in_both_directions(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(b"k%03d" % n, b"v%d" % n) for n in range(120)])
    everything = [f"k{n:03d}" for n in range(120)]

    seen, after, at = [], 0, None
    while after is not None:
        query = {"after": after, "limit": 50} | ({} if at is None else {"at": at})
        found = page(api, name, **query)
        seen += keys(found)
        after, at = found["next"], found["at"]
    assert seen == everything

    last = page(api, name, before=10**15, limit=50)
    assert keys(last) == everything[-50:]
    middle = page(api, name, before=last["previous"], limit=50)
    assert keys(middle) == everything[20:70]
    first = page(api, name, before=middle["previous"], limit=50)
    assert (keys(first), first["previous"]) == (everything[:20], None)


def test_turning_pages_shows_one_state_though_messages_change_meanwhile(
    api: Api, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(b"k%d" % n, b"old") for n in range(10)])
    first = page(api, name, limit=5)
    stream.put_many([(b"k%d" % n, b"new") for n in range(10)])

    second = page(api, name, limit=5, after=first["next"], at=first["at"])

    assert {item["value"] for item in second["items"]} == {"old"}  # type: ignore[attr-defined]
    assert keys(first) + keys(second) == [f"k{n}" for n in range(10)]


def test_a_message_is_shown_with_its_key_properties_and_time(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    before_ms = time.time() * 1000
    receipt = stream.put(b"key", b'{"a": [1, 2]}', headers={"unit": "m"})
    [item] = page(api, name)["items"]  # type: ignore[misc]
    assert item["sequence"] == receipt.sequence
    assert (item["key"], item["value"], item["encoding"]) == ("key", '{"a": [1, 2]}', "string")
    assert (item["bytes"], item["cut"], item["tombstone"]) == (13, False, False)
    assert item["headers"] == {"unit": "m"}
    assert before_ms - 1000 <= item["timestamp"] <= time.time() * 1000 + 1000

    [item] = page(api, name, **{"as": "json"})["items"]  # type: ignore[misc]
    assert (item["encoding"], item["value"]) == ("json", {"a": [1, 2]})
    [item] = page(api, name, **{"as": "base64"})["items"]  # type: ignore[misc]
    assert base64.b64decode(item["value"]) == b'{"a": [1, 2]}'


def test_bytes_that_are_no_text_are_base64_and_long_values_are_cut(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put(b"\xff\x00", b"\x80\x81")
    stream.put(b"long", "ä".encode() * 3000)
    raw, long = page(api, name, value_bytes_max=1001)["items"]  # type: ignore[misc]
    assert (raw["key_encoding"], base64.b64decode(raw["key"])) == ("base64", b"\xff\x00")
    assert (raw["encoding"], base64.b64decode(raw["value"])) == ("base64", b"\x80\x81")
    assert (long["encoding"], long["value"], long["cut"]) == ("string", "ä" * 500, True)
    assert long["bytes"] == 6000


def test_a_value_that_json_cannot_hold_is_given_as_text(api: Api, db: Client, name: str) -> None:
    db.stream(name, create=True).put_many([(b"a", b"1e999"), (b"b", b"[NaN]"), (b"c", b"[1e3]")])
    answer = api("GET", f"/streams/%2F/{name}/messages?as=json")
    items = json.loads(answer.text, parse_constant=pytest.fail)["items"]
    assert [(one["encoding"], one["value"]) for one in items] == [
        ("string", "1e999"),
        ("string", "[NaN]"),
        ("json", [1000.0]),
    ]


def test_a_page_ends_when_much_was_found_and_the_next_one_goes_on(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    for number in range(12):
        stream.put(b"k%02d" % number, b"v" * (6 << 20))
    wanted = [f"k{number:02}" for number in range(12)]
    for more in ({}, {"prefix": "k"}):
        first = page(api, name, limit=500, value_bytes_max=1, **more)
        assert 0 < len(keys(first)) < 12
        rest = page(api, name, limit=500, value_bytes_max=1, after=first["next"], at=first["at"], **more)
        assert keys(first) + keys(rest) == wanted
    last = page(api, name, limit=500, value_bytes_max=1, before=1 << 40)
    assert 0 < len(keys(last)) < 12
    before = page(api, name, limit=500, value_bytes_max=1, before=last["previous"], at=last["at"])
    assert keys(before) + keys(last) == wanted


def test_messages_are_found_by_key_and_by_the_beginning_of_the_key(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"user/{n % 7}/{n}".encode(), b"%d" % n) for n in range(3000)])
    assert keys(page(api, name, key="user/3/10")) == ["user/3/10"]
    assert keys(page(api, name, key="user/3/11")) == []
    found = page(api, name, prefix="user/3/1", limit=4)
    assert keys(found) == ["user/3/10", "user/3/17", "user/3/101", "user/3/108"]
    assert keys(page(api, name, prefix="user/3/1", limit=2, after=found["next"])) == [
        "user/3/115",
        "user/3/122",
    ]
    assert page(api, name, prefix="nobody")["items"] == []
    stream.put(b"\xff\xff", b"raw")
    assert len(api.get(f"/streams/%2F/{name}/messages?prefix=%FF")["items"]) == 1


def test_a_key_with_anything_in_it_is_found(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    odd = "a/b?c&d=<script>%2F\u00e4 +"
    stream.put(odd.encode(), b"x")
    assert keys(page(api, name, key=odd)) == [odd]
    found = api.get(f"/streams/%2F/{name}/keys/{quote(odd, safe='')}")
    assert found["key"] == odd


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "after=-1", "after=1&before=5", "at=99999999", "at=1&at_ms=1",
     "key=a&prefix=b", "as=yaml", "value_bytes_max=99999999", "after=1e3", "after=9999999999999999999999",
     "before=0", "at_ms=x"],
)  # fmt: skip
def test_a_question_that_cannot_be_is_400(api: Api, db: Client, name: str, query: str) -> None:
    db.stream(name, create=True).put(b"k", b"v")
    answer = api("GET", f"/streams/%2F/{name}/messages?{query}")
    assert answer.status_code == 400, answer.text
    assert answer.json()["reason"]


def test_only_who_may_read_the_stream_sees_messages_and_others_see_its_numbers(
    api: Api, db: Client, name: str
) -> None:
    db.stream(name, create=True).put(b"k", b"v")
    visitor = api.user("monitoring", permissions={"configure": ".*", "write": ".*", "read": "^$"})
    assert visitor("GET", f"/streams/%2F/{name}").status_code == 200
    for path in ("messages", "keys/k", "diff?from=0"):
        answer = visitor("GET", f"/streams/%2F/{name}/{path}")
        assert answer.status_code == 401, path
    outsider = api.user("monitoring", vhost=None)
    assert outsider("GET", f"/streams/%2F/{name}").status_code == 200
    assert outsider("GET", f"/streams/%2F/{name}/messages").status_code in (400, 401)


# The past ---------------------------------------------------------------------------------------------


def test_a_pinned_past_is_browsed_and_a_past_that_is_gone_is_refused(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    gone = stream.put(b"k", b"first").sequence
    stream.put(b"k", b"second")
    answer = api("POST", f"/streams/%2F/{name}/pins", {"name": "p"})
    assert answer.status_code == 201
    at = answer.json()["sequence"]
    stream.put(b"k", b"third")

    assert [item["value"] for item in page(api, name, at=at)["items"]] == ["second"]  # type: ignore[attr-defined]
    assert [item["value"] for item in page(api, name)["items"]] == ["third"]  # type: ignore[attr-defined]
    refused = api("GET", f"/streams/%2F/{name}/messages?at={gone}")
    assert refused.status_code == 400
    assert "not kept" in refused.json()["reason"] or "oldest" in refused.json()["reason"]


def test_with_a_history_the_state_at_any_time_is_shown(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    for value in (b"one", b"two", b"three"):
        stream.put(b"k", value)
        time.sleep(0.05)
        if value == b"two":
            moment_ms = int(time.time() * 1000)
            time.sleep(0.05)
    [item] = page(api, name, at_ms=moment_ms)["items"]  # type: ignore[misc]
    assert item["value"] == "two"

    found = api.get(f"/streams/%2F/{name}/keys/k")["revisions"]
    assert [one["value"] for one in found] == ["three", "two", "one"]
    assert [one["current"] for one in found] == [True, False, False]
    assert [one["superseded_by"] for one in found] == [None, found[0]["sequence"], found[1]["sequence"]]


def test_a_deleted_key_has_a_tombstone_in_its_history(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    stream.put(b"k", b"alive")
    stream.delete(b"k")
    found = api.get(f"/streams/%2F/{name}/keys/k")["revisions"]
    assert [(one["tombstone"], one["value"]) for one in found] == [(True, ""), (False, "alive")]


def test_versions_that_only_pins_keep_are_in_the_history_of_a_key(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    for n in range(6):
        stream.put(b"k", b"%d" % n)
        if n in (1, 3):
            api("POST", f"/streams/%2F/{name}/pins", {"name": f"pin{n}"})
    found = eventually(lambda: len(rows := api.get(f"/streams/%2F/{name}/keys/k")["revisions"]) == 3 and rows)
    assert [one["value"] for one in found] == ["5", "3", "1"]
    assert api("GET", f"/streams/%2F/{name}/keys/nobody").status_code == 404


def test_the_difference_of_two_moments_has_every_changed_key_once(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    stream.put_many([(b"same", b"0"), (b"changed", b"0"), (b"deleted", b"0")])
    start = stream.put(b"other", b"0").sequence
    stream.put(b"changed", b"1")
    stream.put(b"changed", b"2")
    stream.delete(b"deleted")
    end = stream.put(b"added", b"1").sequence
    stream.put(b"later", b"1")

    found = api.get(f"/streams/%2F/{name}/diff?from={start}&to={end}")

    assert (found["from"], found["to"], found["exact"], found["next"]) == (start, end, True, None)
    changes = {item["key"]: (item["change"], item["value"], item["before"]) for item in found["items"]}
    assert {key: (change, value) for key, (change, value, _) in changes.items()} == {
        "changed": ("changed", "2"),
        "deleted": ("deleted", ""),
        "added": ("added", "1"),
    }
    assert changes["changed"][2]["value"] == "0"
    assert changes["added"][2] is None
    paged = api.get(f"/streams/%2F/{name}/diff?from={start}&to={end}&limit=2")
    rest = api.get(f"/streams/%2F/{name}/diff?from={start}&to={end}&limit=2&after={paged['next']}")
    assert [item["key"] for item in paged["items"] + rest["items"]] == [
        item["key"] for item in found["items"]
    ]
    for query in (f"from={end}&to={start}", "to=1", f"from={end + 10_000}"):
        assert api("GET", f"/streams/%2F/{name}/diff?{query}").status_code == 400, query


def test_a_difference_from_a_moment_that_is_gone_lacks_what_was_before_and_says_so(
    api: Api, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    start = stream.put(b"k", b"0").sequence
    stream.put(b"k", b"1")
    end = stream.put(b"k", b"2").sequence

    found = api.get(f"/streams/%2F/{name}/diff?from={start}")

    assert (found["exact"], found["to"]) == (False, end)
    assert start < found["oldest_snapshot"] <= found["boundary"]
    assert [(item["change"], item["value"], item["before"]) for item in found["items"]] == [
        ("put", "2", None)
    ]
    refused = api("GET", f"/streams/%2F/{name}/diff?from=0&to={start}")
    assert refused.status_code == 400
    assert f"the oldest exact snapshot is at {found['oldest_snapshot']}" in refused.json()["reason"]


def test_a_difference_over_deletes_that_were_forgotten_is_refused_with_where_to_begin(
    api: Api, db: Client, name: str
) -> None:
    arguments = {"x-stream-key": "routing-key", "x-stream-tombstone-lease": 1}
    assert api("PUT", f"/streams/%2F/{name}", {"arguments": arguments}).status_code == 201
    stream = db.stream(name)
    start = stream.put(b"k", b"0").sequence
    stream.delete(b"k")
    stream.put(b"other", b"0")
    purged = eventually(lambda: api.get(f"/streams/%2F/{name}")["purged"], 20)

    refused = api("GET", f"/streams/%2F/{name}/diff?from={start}")

    assert refused.status_code == 400
    assert f"compare from there or from later, not from {start}" in refused.json()["reason"]
    assert f"up to sequence {purged}" in refused.json()["reason"]
    assert api("GET", f"/streams/%2F/{name}/diff?from={purged}").status_code == 200


# Marks -------------------------------------------------------------------------------------------------


def test_a_mark_says_how_many_distinct_keys_are_left(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    start = stream.put(b"first", b"0").sequence
    # A thousand messages, ten keys: that is what a consumer still has to read.
    stream.put_many([(b"k%d" % (n % 10), b"%d" % n) for n in range(1000)])
    assert api("PUT", f"/streams/%2F/{name}/marks/reader", {"sequence": start}).status_code == 204

    [mark] = api.get(f"/streams/%2F/{name}/marks")
    assert (mark["consumer"], mark["keys_behind"]) == ("reader", 10)
    assert mark["behind"] > 900
    api("PUT", f"/streams/%2F/{name}/marks/reader", {"sequence": api.get(f"/streams/%2F/{name}")["boundary"]})
    [mark] = api.get(f"/streams/%2F/{name}/marks")
    assert (mark["keys_behind"], mark["eta_s"]) == (0, 0)


def test_a_mark_that_moves_says_how_long_it_still_takes(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put(b"k", b"v").sequence
    stream.put_many([(b"k%d" % n, b"v") for n in range(2000)])
    api("PUT", f"/streams/%2F/{name}/marks/reader", {"sequence": first})
    time.sleep(5.5)  # the pace is measured every five seconds

    deadline, at = time.monotonic() + 3, first
    while time.monotonic() < deadline:
        at += 20
        api("PUT", f"/streams/%2F/{name}/marks/reader", {"sequence": at})
        time.sleep(0.1)
    [mark] = api.get(f"/streams/%2F/{name}/marks")

    assert mark["keys_behind"] == pytest.approx(2000 - (at - first), abs=25)
    assert mark["rate"] > 0
    assert mark["eta_s"] == pytest.approx(mark["keys_behind"] / mark["rate"], rel=0.05)
    assert 1 < mark["eta_s"] < 120


def test_marks_of_all_streams_are_one_list_with_pages(api: Api, db: Client, name: str) -> None:
    db.stream(name, create=True).put(b"k", b"v")
    for n in range(3):
        api("PUT", f"/streams/%2F/{name}/marks/c{n}", {"sequence": 0})
    found = api.get("/marks?page=1&page_size=2&name=c&sort=consumer&columns=stream,consumer")
    assert found["page_size"] == 2 and len(found["items"]) == 2
    mine = [one for one in api.get("/marks") if one["stream"] == name]
    assert [one["consumer"] for one in mine] == ["c0", "c1", "c2"]


# Pins --------------------------------------------------------------------------------------------------


def test_a_pin_says_what_it_keeps_and_lets_go_when_it_is_released(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(b"k%d" % n, b"x" * 100) for n in range(50)])
    made = api("POST", f"/streams/%2F/{name}/pins", {"name": "night", "lease_ms": 60_000})
    assert made.status_code == 201
    assert (made.json()["messages_kept"], made.json()["bytes_kept"]) == (0, 0)
    stream.put_many([(b"k%d" % n, b"y") for n in range(30)])

    [pin] = eventually(
        lambda: (found := api.get(f"/streams/%2F/{name}/pins"))[0]["messages_kept"] == 30 and found
    )
    assert pin["bytes_kept"] == 3000
    assert api("POST", f"/streams/%2F/{name}/pins", {"name": "night", "lease_ms": 90_000}).status_code == 200
    moments = {(one["kind"], one["name"]) for one in api.get(f"/streams/%2F/{name}/snapshots")}
    assert {("pin", "night"), ("now", None), ("history", None)} <= moments

    assert api("DELETE", f"/streams/%2F/{name}/pins/night").status_code == 204
    assert api.get(f"/streams/%2F/{name}/pins") == []
    eventually(lambda: api.get(f"/streams/%2F/{name}")["held"] == 0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "x", "lease_ms": 0},
        {"name": "x", "at": 10**9},
        {"name": 5},
        {"name": "x" * 300},
    ],
)
def test_a_pin_that_cannot_be_is_400(api: Api, db: Client, name: str, body: dict[str, object]) -> None:
    db.stream(name, create=True).put(b"k", b"v")
    assert api("POST", f"/streams/%2F/{name}/pins", body).status_code == 400


# Lists -------------------------------------------------------------------------------------------------


def test_streams_are_listed_with_what_they_hold(api: Api, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4, history=60)
    stream.put_many([(b"k%d" % (n % 5), b"12345") for n in range(20)])
    [found] = [one for one in api.get(f"/streams/%2F?name={name}") if one["name"] == name]
    assert (found["live"], found["live_bytes"], found["shards"], found["history_ms"]) == (5, 25, 4, 60_000)
    assert (found["held"], found["held_bytes"]) == (15, 75)
    queues = api("PUT", "/queues/%2F/no-stream", {})
    assert queues.status_code in (201, 204)
    assert "no-stream" not in [one["name"] for one in api.get("/streams")]
    assert api("GET", "/streams/%2F/no-stream/messages").status_code == 400
    assert api("GET", "/streams/%2F/nobody/messages").status_code == 404
