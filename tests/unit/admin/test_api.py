"""The management API: RabbitMQ's paths, fields and refusals, over a real broker."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pika
import pytest
from helpers.amqp import drain, eventually, put
from helpers.broker import BrokerProcess
from pika.exceptions import ConnectionClosedByBroker

from tidemark.admin import answers
from tidemark.wire.stream.frames import PREAMBLE, Kind, encode_frame

Api = Callable[..., httpx.Response]
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("admin") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    base = f"http://{broker.admin.host}:{broker.admin.port}/api"

    def call(
        method: str, path: str, body: Any = None, login: tuple[str, str] = ("guest", "guest")
    ) -> httpx.Response:
        return httpx.request(method, base + path, json=body, auth=login, timeout=10)

    return call


def connect(broker: BrokerProcess, **options: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.address.host, broker.address.port, **options)
    )


def user(api: Api, name: str, tags: str = "", vhost: str | None = "%2F") -> tuple[str, str]:
    """A user with all permissions in a virtual host; its login."""
    assert api("PUT", f"/users/{name}", {"password": "secret", "tags": tags}).status_code in (201, 204)
    if vhost:
        assert api("PUT", f"/permissions/{vhost}/{name}", EVERYTHING).status_code in (201, 204)
    return name, "secret"


# Who is let in ------------------------------------------------------------------------------


@pytest.mark.parametrize("login", [("guest", "wrong"), ("nobody", "guest"), ("guest", "")])
def test_wrong_credentials_are_401_with_a_challenge(api: Api, login: tuple[str, str]) -> None:
    answer = api("GET", "/overview", login=login)
    assert answer.status_code == 401
    assert answer.json() == {"error": "not_authorised", "reason": "Login failed"}
    assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!!", "Basic bm9jb2xvbg==", "Bearer abc"])
def test_a_header_that_is_no_login_is_401(broker: BrokerProcess, header: str) -> None:
    url = f"http://{broker.admin.host}:{broker.admin.port}/api/whoami"
    assert httpx.get(url, headers={"Authorization": header}).status_code == 401


def test_a_user_without_a_tag_is_not_let_in(api: Api) -> None:
    login = user(api, "plain")
    assert api("GET", "/whoami", login=login).json()["reason"] == "Not management user"


def test_management_sees_only_its_virtual_hosts_and_changes_no_users(api: Api) -> None:
    assert api("PUT", "/vhosts/hidden", {}).status_code == 201
    login = user(api, "manager", "management")

    assert [vhost["name"] for vhost in api("GET", "/vhosts", login=login).json()] == ["/"]
    assert api("GET", "/vhosts/hidden", login=login).status_code == 404
    assert api("GET", "/queues/hidden", login=login).status_code == 404
    assert api("GET", "/users", login=login).json()["reason"] == "Not administrator user"
    assert api("PUT", "/users/eve", {"password": "x", "tags": ""}, login=login).status_code == 401
    assert api("PUT", "/permissions/hidden/manager", EVERYTHING, login=login).status_code == 401


def test_monitoring_sees_everything_and_changes_nothing(api: Api) -> None:
    api("PUT", "/vhosts/seen", {})
    login = user(api, "watcher", "monitoring", vhost=None)

    assert "seen" in [vhost["name"] for vhost in api("GET", "/vhosts", login=login).json()]
    assert api("DELETE", "/vhosts/seen", login=login).status_code == 401
    assert api("PUT", "/queues/seen/q", {}, login=login).status_code == 400


# Users, virtual hosts, permissions -------------------------------------------------------------


def test_a_user_is_made_changed_and_deleted(api: Api, broker: BrokerProcess) -> None:
    assert api("PUT", "/users/ada", {"password": "one", "tags": "administrator"}).status_code == 201
    assert api("GET", "/users/ada").json()["tags"] == ["administrator"]
    assert api("GET", "/whoami", login=("ada", "one")).json() == {"name": "ada", "tags": ["administrator"]}

    assert api("PUT", "/users/ada", {"password": "two", "tags": ["management"]}).status_code == 204
    assert api("GET", "/whoami", login=("ada", "one")).status_code == 401
    assert api("GET", "/whoami", login=("ada", "two")).status_code == 200

    assert api("DELETE", "/users/ada").status_code == 204
    assert api("GET", "/whoami", login=("ada", "two")).status_code == 401
    assert api("GET", "/users/ada").status_code == 404


def test_no_password_is_ever_shown_or_stored_in_the_clear(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/users/shy", {"password": "correct-horse", "tags": ""})
    assert "correct-horse" not in api("GET", "/users").text
    assert "correct-horse" not in broker.log_path.read_text()
    assert all(b"correct-horse" not in path.read_bytes() for path in broker.data.glob("catalog-*"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tags": ""}, "needs a password"),
        ({"password": "", "tags": ""}, "an empty password"),
        ({"password": "x"}, "'tags'"),
        ({"password": 5, "tags": ""}, "'password' must be text"),
        ({"password_hash": "nonsense", "tags": ""}, "password hash"),
    ],
)
def test_a_user_that_cannot_be_is_400_with_a_reason(api: Api, body: dict[str, Any], words: str) -> None:
    answer = api("PUT", "/users/nova", body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"
    assert words in answer.json()["reason"]
    assert api("GET", "/users/nova").status_code == 404


def test_an_imported_hash_opens_and_is_replaced_by_a_memory_hard_one(api: Api, broker: BrokerProcess) -> None:
    salt = b"\x01\x02\x03\x04"
    stored = base64.b64encode(salt + hashlib.sha256(salt + b"secret").digest()).decode()
    body = {"password_hash": stored, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
    assert api("PUT", "/users/imported", body).status_code == 201
    assert api("PUT", "/permissions/%2F/imported", EVERYTHING).status_code == 201

    connect(broker, credentials=pika.PlainCredentials("imported", "secret")).close()

    assert eventually(lambda: api("GET", "/users/imported").json()["hashing_algorithm"] == "scrypt")
    connect(broker, credentials=pika.PlainCredentials("imported", "secret")).close()


def test_a_user_cannot_delete_itself(api: Api) -> None:
    assert api("DELETE", "/users/guest").status_code == 400


def test_deleting_a_virtual_host_closes_its_connections(api: Api, broker: BrokerProcess) -> None:
    assert api("PUT", "/vhosts/short%2Flived", {"description": "soon gone"}).status_code == 201
    assert api("GET", "/vhosts/short%2Flived").json()["description"] == "soon gone"
    connection = connect(broker, virtual_host="short/lived")

    assert api("DELETE", "/vhosts/short%2Flived").status_code == 204

    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(10)
    assert api("GET", "/vhosts/short%2Flived").status_code == 404


def test_permissions_are_set_shown_and_cleared(api: Api) -> None:
    user(api, "bob", vhost=None)
    body = {"configure": "^bob", "write": ".*", "read": ""}

    assert api("PUT", "/permissions/%2F/bob", body).status_code == 201
    assert api("GET", "/permissions/%2F/bob").json() == {"user": "bob", "vhost": "/", **body}
    assert api("GET", "/users/bob/permissions").json() == [{"user": "bob", "vhost": "/", **body}]
    assert api("DELETE", "/permissions/%2F/bob").status_code == 204
    assert api("GET", "/permissions/%2F/bob").status_code == 404


def test_topic_permissions_are_set_shown_and_cleared(api: Api) -> None:
    user(api, "tom")
    body = {"exchange": "amq.topic", "write": "^a", "read": "^b"}

    assert api("PUT", "/topic-permissions/%2F/tom", body).status_code == 201
    assert api("GET", "/topic-permissions/%2F/tom").json() == [{"user": "tom", "vhost": "/", **body}]
    assert api("DELETE", "/topic-permissions/%2F/tom").status_code == 204
    assert api("GET", "/topic-permissions/%2F/tom").json() == []


def test_a_pattern_that_is_none_is_refused(api: Api) -> None:
    user(api, "pat", vhost=None)
    answer = api("PUT", "/permissions/%2F/pat", {"configure": "(", "write": "", "read": ""})
    assert answer.status_code == 400
    assert "regular expression" in answer.json()["reason"]


# Queues, exchanges, bindings -------------------------------------------------------------------


def test_a_queue_is_made_filled_purged_and_deleted(api: Api, broker: BrokerProcess) -> None:
    assert (
        api("PUT", "/queues/%2F/a%2Fb", {"durable": True, "arguments": {"x-max-length": 5}}).status_code
        == 201
    )
    assert (
        api("PUT", "/queues/%2F/a%2Fb", {"durable": True, "arguments": {"x-max-length": 5}}).status_code
        == 204
    )
    with connect(broker) as connection:
        put(connection.channel(), "a/b", b"1", b"22", b"333")
        found = eventually(lambda: (q := api("GET", "/queues/%2F/a%2Fb").json())["messages"] == 3 and q)
    assert found["name"] == "a/b"
    assert found["arguments"] == {"x-max-length": 5}
    assert found["message_bytes_ready"] == 6

    assert api("DELETE", "/queues/%2F/a%2Fb/contents").status_code == 204
    assert api("GET", "/queues/%2F/a%2Fb").json()["messages"] == 0
    assert api("DELETE", "/queues/%2F/a%2Fb").status_code == 204
    assert api("DELETE", "/queues/%2F/a%2Fb").status_code == 404


def test_a_locked_queue_takes_messages_and_gives_none_until_it_is_unlocked(
    api: Api, broker: BrokerProcess
) -> None:
    """A-40: adm lock q: consumers idle, publishes accepted; unlock: flow resumes."""
    api("PUT", "/queues/%2F/gate", {"durable": False})
    assert api("PUT", "/queues/%2F/gate/lock", {}).status_code == 204
    with connect(broker) as connection:
        channel = connection.channel()
        put(channel, "gate", b"1")
        eventually(lambda: api("GET", "/queues/%2F/gate").json()["messages"] == 1)
        assert api("GET", "/queues/%2F/gate").json()["state"] == "locked"
        assert channel.basic_get("gate")[0] is None

        assert api("DELETE", "/queues/%2F/gate/lock").status_code == 204
        assert channel.basic_get("gate", auto_ack=True)[2] == b"1"
    assert api("PUT", "/queues/%2F/nowhere/lock", {}).status_code == 404


def test_a_queue_that_is_there_differently_is_400_in_rabbitmqs_words(api: Api) -> None:
    api("PUT", "/queues/%2F/same", {"durable": True})
    answer = api("PUT", "/queues/%2F/same", {"durable": False})
    assert answer.status_code == 400
    assert "inequivalent arg 'durable'" in answer.json()["reason"]


def test_a_delete_with_conditions_keeps_what_is_in_use_or_full(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/queues/%2F/kept", {"durable": True})
    with connect(broker) as connection:
        channel = connection.channel()
        put(channel, "kept", b"x")
        assert eventually(lambda: api("GET", "/queues/%2F/kept").json()["messages"])
        assert api("DELETE", "/queues/%2F/kept?if-empty=true").status_code == 400
        assert drain(channel, "kept") == [b"x"]
        channel.basic_consume("kept", lambda *_: None)
        assert api("DELETE", "/queues/%2F/kept?if-unused=true").status_code == 400
    assert eventually(lambda: api("DELETE", "/queues/%2F/kept?if-unused=true").status_code == 204)


def test_exchanges_and_bindings_are_made_shown_and_deleted(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/queues/%2F/orders", {})
    assert api("PUT", "/exchanges/%2F/events", {"type": "topic"}).status_code == 201
    made = api("POST", "/bindings/%2F/e/events/q/orders", {"routing_key": "order.*"})
    assert made.status_code == 201

    [binding] = api("GET", "/exchanges/%2F/events/bindings/source").json()
    assert (binding["destination"], binding["routing_key"]) == ("orders", "order.*")
    with connect(broker) as connection:
        connection.channel().basic_publish("events", "order.new", b"routed")
    assert eventually(lambda: api("GET", "/queues/%2F/orders").json()["messages"] == 1)

    assert made.headers["location"] == "orders/order.%252A"
    assert api("DELETE", f"/bindings/%2F/e/events/q/{made.headers['location']}").status_code == 204
    assert api("GET", "/exchanges/%2F/events/bindings/source").json() == []
    assert api("DELETE", "/exchanges/%2F/events").status_code == 204
    assert api("GET", "/exchanges/%2F/events").status_code == 404


# Connections ----------------------------------------------------------------------------------


def test_connections_channels_and_consumers_are_shown_and_can_be_closed(
    api: Api, broker: BrokerProcess
) -> None:
    connection = connect(broker, client_properties={"connection_name": "reporter"})
    channel = connection.channel()
    channel.queue_declare("watched", exclusive=True)
    tag = channel.basic_consume("watched", lambda *_: None)

    [found] = [c for c in api("GET", "/connections").json() if c["channels"] == 1]
    assert (found["user"], found["vhost"], found["protocol"]) == ("guest", "/", "AMQP 0-9-1")
    assert [c["consumer_tag"] for c in api("GET", "/consumers/%2F").json()] == [tag]
    assert [c["number"] for c in api("GET", "/channels").json()] == [1]

    name = httpx.URL("/").copy_with(path="/" + found["name"]).raw_path.decode().removeprefix("/")
    assert api("DELETE", "/connections/" + name.replace(" ", "%20").replace(">", "%3E")).status_code == 204
    with pytest.raises(ConnectionClosedByBroker) as told:
        connection.process_data_events(10)
    assert told.value.reply_code == 320


# The whole ------------------------------------------------------------------------------------


def test_the_overview_counts_what_is_there(api: Api) -> None:
    found = api("GET", "/overview").json()
    assert found["product_name"] == "Tidemark"
    assert found["object_totals"]["exchanges"] >= 6
    assert {listener["protocol"] for listener in found["listeners"]} == {"amqp", "http"}
    assert api("GET", "/nodes").json()[0]["mem_used"] > 0


def test_health_checks_say_ok(api: Api) -> None:
    for path in ("/health/checks/alarms", "/healthchecks/node", "/aliveness-test/%2F"):
        assert api("GET", path).json() == {"status": "ok"}


def test_definitions_go_out_and_in_again(api: Api) -> None:
    api("PUT", "/queues/%2F/exported", {"durable": True, "arguments": {"x-message-ttl": 60000}})
    document = api("GET", "/definitions").json()
    api("DELETE", "/queues/%2F/exported")

    assert api("POST", "/definitions", document).status_code == 200

    assert api("GET", "/queues/%2F/exported").json()["arguments"] == {"x-message-ttl": 60000}
    assert api("GET", "/definitions").json() == document


def test_definitions_with_a_mistake_change_nothing(api: Api) -> None:
    before = api("GET", "/definitions").json()
    bad = {"vhosts": [{"name": "new"}], "queues": [{"name": "q", "vhost": "nowhere"}]}
    assert api("POST", "/definitions", bad).status_code == 400
    assert api("GET", "/definitions").json() == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nonsense", 404),
        ("GET", "/queues/%2F/none", 404),
        ("GET", "/queues/none", 404),
        ("POST", "/overview", 405),
        ("GET", "/queues/%2F/%FF%FE", 404),
        ("GET", "/" + "x" * 5000, 404),
    ],
)
def test_what_is_not_there_is_refused_as_json(api: Api, method: str, path: str, status: int) -> None:
    answer = api(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "reason"}


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"[" * 100_000])
def test_a_body_that_is_no_object_is_400(broker: BrokerProcess, body: bytes) -> None:
    url = f"http://{broker.admin.host}:{broker.admin.port}/api/vhosts/x"
    answer = httpx.put(url, content=body, auth=("guest", "guest"))
    assert answer.status_code == 400


# Bodies that nothing can be made of -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"queues": [{"name": "\\ud800", "vhost": "/"}]}', "surrogate"),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", "nested"),
    ],
)
def test_a_body_that_is_no_text_or_too_deep_is_refused(
    broker: BrokerProcess, content: bytes, words: str
) -> None:
    url = f"http://{broker.admin.host}:{broker.admin.port}/api/definitions"
    answer = httpx.post(url, content=content, auth=("guest", "guest"), timeout=10)
    assert (answer.status_code, words in answer.json()["reason"]) == (400, True)
    assert httpx.get(url, auth=("guest", "guest"), timeout=10).status_code == 200


def test_a_stream_client_that_says_odd_things_about_itself_breaks_no_list(
    broker: BrokerProcess, api: Api
) -> None:
    deep: Any = "x"
    for _ in range(800):
        deep = [deep]
    hello = {
        "op": "hello",
        "user": "guest",
        "password": "guest",
        "vhost": "/",
        "client": {"a": deep, "name": "odd"},
    }
    with socket.create_connection((broker.address.host, broker.address.port), 5) as peer:
        peer.sendall(PREAMBLE + b"".join(encode_frame(Kind.REQUEST, 1, hello)))
        assert peer.recv(4096)
        answer = api("GET", "/connections")
    assert answer.status_code == 200
    assert [
        one["client_properties"] for one in answer.json() if one["client_properties"].get("name") == "odd"
    ] == [{"name": "odd"}]


def test_what_is_in_the_broker_already_is_shown_however_odd_it_is() -> None:
    deep: Any = "x"
    for _ in range(2000):
        deep = [deep]
    shown = answers.plain({"\ud800": "\ud800", "deep": deep})
    assert shown["?"] == "?"
    assert json.dumps(shown)
