"""/api/live: answers pushed when they change, to those who may see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from helpers.amqp import eventually
from helpers.api import Api, live
from helpers.broker import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("live") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


def test_what_is_true_now_comes_first_and_then_every_change(api: Api) -> None:
    with live(api, "/vhosts/%2F", "/users") as events:
        first = [next(events), next(events)]
        assert {data["path"] for _, data in first} == {"/vhosts/%2F", "/users"}
        assert all(name == "change" and data["status"] == 200 for name, data in first)
        users = next(data["body"] for _, data in first if data["path"] == "/users")
        assert [one["name"] for one in users] == ["guest"]

        api("PUT", "/users/newcomer", {"password": "x", "tags": ""})
        name, data = next(events)
        assert (name, data["path"]) == ("change", "/users")
        assert "newcomer" in [one["name"] for one in data["body"]]


def test_what_is_pushed_is_what_a_request_is_given(api: Api) -> None:
    with live(api, "/permissions?page=1&page_size=5") as events:
        _, data = next(events)
    assert data["body"] == api.get("/permissions?page=1&page_size=5")


def test_a_path_that_fails_is_told_with_its_status_and_goes_on(api: Api) -> None:
    with live(api, "/queues/%2F/later?columns=name") as events:
        assert next(events)[1]["status"] == 404
        api("PUT", "/queues/%2F/later", {})
        _, data = next(events)
        assert (data["status"], data["body"]) == (200, {"name": "later"})


def test_a_visitor_is_pushed_only_what_they_may_see(api: Api) -> None:
    visitor = api.user("management")
    with live(visitor, "/users", "/whoami") as events:
        found = {data["path"]: data["status"] for _, data in (next(events), next(events))}
    assert found == {"/users": 401, "/whoami": 200}


@pytest.mark.parametrize("by", ["password", "token"])
def test_a_visitor_whose_rights_end_is_told_and_closed(api: Api, by: str) -> None:
    visitor = api.user("monitoring")
    assert visitor.login is not None
    reader, options = visitor, {}
    if by == "token":
        reader, options = api.anonymous, {"headers": {"Authorization": f"Bearer {visitor.token()}"}}
    with live(reader, "/whoami", **options) as events:
        next(events)
        api("DELETE", f"/users/{visitor.login[0]}")
        assert [name for name, _ in events] == ["end"]


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["/whoami"] * 13,
        ["whoami"],
        ["/no/such/thing"],
        ["/live?path=/whoami"],
        ["//evil.example/x"],
        ["/../whoami"],
        ["/whoami\r\nX: y"],
        ["/" + "x" * 5000],
        ["/é"],
    ],
)
def test_what_cannot_be_watched_is_400(api: Api, paths: list[str]) -> None:
    query = urlencode([("path", path) for path in paths])
    assert api("GET", f"/live?{query}").status_code == 400


def test_nobody_watches_without_a_login(api: Api) -> None:
    assert api.anonymous("GET", "/live?path=/whoami").status_code == 401


def test_a_broker_stops_while_somebody_watches(tmp_path_factory: pytest.TempPathFactory) -> None:
    process = BrokerProcess(tmp_path_factory.mktemp("stop") / "data").start()
    with live(Api(process.admin), "/whoami") as events:
        next(events)
        began = time.monotonic()
        process.stop()
        assert time.monotonic() - began < 6
        with pytest.raises((StopIteration, httpx.HTTPError)):
            next(events)


def test_readers_that_leave_are_forgotten(api: Api) -> None:
    def many(count: int) -> list[Any]:
        found = []
        for _ in range(count):
            context = live(api, "/whoami")
            next(context.__enter__())
            found.append(context)
        return found

    for context in many(5):
        context.__exit__(None, None, None)
    # More than may be at the same time, one after the other.
    for _ in range(4):
        for context in many(30):
            context.__exit__(None, None, None)
        eventually(lambda: api("GET", "/whoami").status_code == 200)
