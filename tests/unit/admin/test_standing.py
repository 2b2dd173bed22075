"""Who answers and who leads, in the headers of every answer and as a path of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.api import Api, live
from helpers.broker import BrokerProcess

from tidemark.admin.standing import Standing


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    process = BrokerProcess(tmp_path_factory.mktemp("standing") / "data").start()
    yield Api(process.admin)
    process.stop()


def test_a_broker_that_stands_alone_says_so_to_whoever_is_logged_in(api: Api) -> None:
    name = api.get("/overview")["node"]
    found = api.user("management").get("/tidemark/standing")
    assert found == {"name": name, "state": "alone", "leads": True, "leader": name, "leader_admin": ""}
    for path, status in (("/whoami", 200), ("/queues/%2F/absent", 404), ("/queues?page_size=0", 400)):
        answer = api("GET", path)
        assert answer.status_code == status
        assert answer.headers["x-tidemark-state"] == "alone", path
        assert answer.headers["x-tidemark-leader"] == answer.headers["x-tidemark-member"] == name
    with live(api, "/tidemark/standing") as events:
        assert next(events)[1]["body"]["leads"]


def test_a_stranger_is_told_nothing_of_the_members(api: Api) -> None:
    for visitor in (api.anonymous, api.as_(("guest", "wrong")), api.user("")):
        for path in ("/whoami", "/tidemark/standing", "/health/checks/alarms", "/openapi.json"):
            answer = visitor("GET", path)
            assert not [name for name in answer.headers if name.startswith("x-tidemark")], path


def test_a_refusal_names_who_leads_and_where() -> None:
    follows = Standing("c", "ready", False, "a", "10.0.0.1:15672")
    assert follows.refusal() == "this is c, which is ready: a leads; ask it at 10.0.0.1:15672"
    assert Standing("c", "ready", False, "a", "").refusal() == "this is c, which is ready: a leads; ask it"
    assert "no member leads now" in Standing("c", "joining", False, None, "").refusal()


def test_a_name_of_any_alphabet_fits_into_a_header() -> None:
    headers = Standing("книга", "ready", False, "鍵", "").headers()
    assert all(value.isascii() for value in headers.values())
    assert "X-Tidemark-Leader" not in Standing("c", "joining", False, None, "").headers()
