"""Nobody gets further than their login allows, on any endpoint that the API has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.api import Api
from helpers.broker import BrokerProcess
from security.routes import (
    CHANGING,
    CLOSED,
    ENTRIES,
    READING,
    example,
    identity,
    least,
    path_of,
    query_of,
)

from tidemark.admin.routing import Entry

LEVELS = ("management", "policymaker", "monitoring", "administrator")
ENOUGH = {
    "management": set(LEVELS),
    "policymaker": {"policymaker", "administrator"},
    "monitoring": {"monitoring", "administrator"},
    "administrator": {"administrator"},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("security") / "data").start()
    api = Api(process.admin)
    assert api("PUT", "/queues/%2F/a-queue", {}).status_code == 201
    assert api("PUT", "/streams/%2F/a-stream", {}).status_code == 201
    assert api("PUT", "/users/somebody", {"password": "x", "tags": ""}).status_code == 201
    yield process
    process.stop()


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


@pytest.fixture(scope="module")
def visitors(api: Api) -> dict[str, Api]:
    """One with each tag, who may do nothing in any virtual host but see the first one."""
    nothing = {"configure": "^$", "write": "^$", "read": "^$"}
    return {tag: api.user(tag, permissions=nothing) for tag in ("", *LEVELS)}


def ask(api: Api, entry: Entry, **options: Any) -> Any:
    body = example(entry.body)
    if body is not None:
        options["json"] = body
    return api.client.request(entry.method, path_of(entry) + query_of(entry), **options)


def declared(api: Api) -> str:
    found = api.get("/definitions")
    return json.dumps(found, sort_keys=True)


def test_there_is_something_to_look_at() -> None:
    assert len(ENTRIES) > 80 and len(CHANGING) > 30 and len(READING) > 40


def test_every_endpoint_is_in_the_document_and_nothing_else(api: Api) -> None:
    paths = api.anonymous.get("/openapi.json")["paths"]
    found = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert found == {identity(entry) for entry in ENTRIES}


@pytest.mark.parametrize("entry", CLOSED, ids=identity)
def test_without_credentials_every_endpoint_is_401(api: Api, entry: Entry) -> None:
    answer = ask(api.anonymous, entry)
    assert answer.status_code == 401
    assert answer.json() == {"error": "not_authorised", "reason": "Login failed"}
    assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("entry", CLOSED, ids=identity)
def test_with_a_token_that_is_none_every_endpoint_is_401(api: Api, entry: Entry) -> None:
    for headers in (
        {"Authorization": "Bearer " + "x" * 43},
        {**api.cookie("x" * 43), "X-Tidemark": "1"},
    ):
        assert ask(api.anonymous, entry, headers=headers).status_code == 401


@pytest.mark.parametrize("entry", CLOSED, ids=identity)
def test_a_user_without_a_tag_is_let_in_nowhere(visitors: dict[str, Api], entry: Entry) -> None:
    answer = ask(visitors[""], entry)
    assert answer.status_code == 401
    assert answer.json()["reason"] == "Not management user"


@pytest.mark.parametrize("entry", [one for one in CLOSED if least(one) != "management"], ids=identity)
def test_a_tag_that_is_too_little_is_refused(visitors: dict[str, Api], entry: Entry) -> None:
    for tag in LEVELS:
        if tag not in ENOUGH[least(entry)]:
            answer = ask(visitors[tag], entry)
            assert answer.status_code in (401, 403), (tag, answer.status_code, answer.text[:200])


@pytest.mark.parametrize("entry", READING, ids=identity)
def test_a_tag_that_is_enough_is_not_refused_for_its_tag(visitors: dict[str, Api], entry: Entry) -> None:
    """Else the tests above would be green for an API that is shut."""
    answer = ask(visitors["administrator"], entry)
    assert answer.status_code != 500
    assert not (answer.status_code == 401 and "Not " in answer.text), answer.text


def test_nothing_that_users_without_permissions_ask_for_changes_anything(
    api: Api, visitors: dict[str, Api]
) -> None:
    before = declared(api)
    for tag in ("", "management", "monitoring"):
        for entry in CHANGING:
            answer = ask(visitors[tag], entry)
            assert 400 <= answer.status_code < 500 or declared(api) == before, (tag, identity(entry))
    assert declared(api) == before


def test_an_administrator_can_change_what_the_others_could_not(api: Api) -> None:
    """Else the test above would be green for requests that mean nothing."""
    done = [
        entry
        for entry in CHANGING
        if entry.method != "DELETE" and ask(api, entry).status_code in (200, 201, 204)
    ]
    assert len(done) > len([entry for entry in CHANGING if entry.method != "DELETE"]) / 2, done


@pytest.mark.parametrize("entry", CHANGING, ids=identity)
def test_no_change_is_made_with_the_cookie_alone(api: Api, entry: Entry) -> None:
    headers = api.cookie(token(api))
    before = declared(api)
    answer = ask(api.anonymous, entry, headers=headers)
    assert answer.status_code == 403, answer.text
    assert declared(api) == before


@pytest.mark.parametrize("entry", CHANGING, ids=identity)
def test_no_change_is_made_for_another_site(api: Api, entry: Entry) -> None:
    cookie = {**api.cookie(token(api)), "X-Tidemark": "1"}
    elsewhere = {"Origin": "https://evil.example"}
    assert ask(api, entry, headers=elsewhere).status_code == 403
    assert ask(api.anonymous, entry, headers=cookie | elsewhere).status_code == 403
    assert ask(api, entry, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


IN_A_VIRTUAL_HOST = [one for one in READING if "{vhost}" in one.path and least(one) == "management"]


@pytest.mark.parametrize("entry", IN_A_VIRTUAL_HOST, ids=identity)
def test_another_virtual_host_is_not_there_for_who_may_not_see_it(
    api: Api, visitors: dict[str, Api], entry: Entry
) -> None:
    api("PUT", "/vhosts/hidden", {})
    api("PUT", "/queues/hidden/a-queue", {})
    api("PUT", "/streams/hidden/a-stream", {})
    path = path_of(entry, vhost="hidden") + query_of(entry)
    answer = visitors["management"].client.get(path)
    assert answer.status_code in (401, 404), (answer.status_code, answer.text[:200])


def token(api: Api, kept: dict[str, str] = {}) -> str:  # noqa: B006
    if api.base not in kept:
        kept[api.base] = api.token()
    return kept[api.base]
