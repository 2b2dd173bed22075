"""Messages over HTTP: publish and get, with permissions, and nothing lost whatever happens."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pika
import pytest
from helpers.amqp import drain, eventually
from helpers.api import EVERYTHING, Api
from helpers.broker import BrokerProcess

TO_DEFAULT = "/exchanges/%2F/amq.default/publish"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("messages") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


@pytest.fixture
def queue(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A durable queue; its name needs no quoting."""
    name = f"q-{abs(hash(request.node.name))}"
    assert api("PUT", f"/queues/%2F/{name}", {}).status_code == 201
    yield name
    api("DELETE", f"/queues/%2F/{name}")


def publish(api: Api, key: str, payload: str = "hello", path: str = TO_DEFAULT, **more: Any) -> Any:
    body = {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": {}, **more}
    return api("POST", path, body)


def fetch(api: Api, queue: str, count: int = 1, ackmode: str = "ack_requeue_true", **more: Any) -> Any:
    answer = api("POST", f"/queues/%2F/{queue}/get", {"count": count, "ackmode": ackmode, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_was_published_is_fetched_with_its_properties(api: Api, queue: str) -> None:
    properties = {
        "delivery_mode": 2,
        "content_type": "text/plain",
        "headers": {"a": 1, "b": [True, None, 1.5, {"c": "d"}]},
        "priority": "3",
        "timestamp": 1700000000,
    }
    assert publish(api, queue, "grüße", properties=properties).json() == {"routed": True}
    [found] = fetch(api, queue)
    assert found == {
        "payload": "grüße",
        "payload_bytes": 7,
        "payload_encoding": "string",
        "exchange": "",
        "routing_key": queue,
        "redelivered": False,
        "message_count": 0,
        "properties": {**properties, "priority": 3},
    }


def test_a_message_that_nobody_wants_is_not_routed(api: Api) -> None:
    assert publish(api, "no such queue").json() == {"routed": False}


def test_a_full_queue_that_refuses_counts_as_not_routed(api: Api) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api("PUT", "/queues/%2F/full", {"arguments": arguments})
    assert publish(api, "full").json() == {"routed": True}
    assert publish(api, "full").json() == {"routed": False}


def test_bytes_that_are_no_text_come_and_go_as_base64(api: Api, queue: str) -> None:
    raw = base64.b64encode(b"\xff\x00\xfe").decode()
    assert publish(api, queue, raw, payload_encoding="base64").json() == {"routed": True}
    [found] = fetch(api, queue)
    assert (found["payload"], found["payload_encoding"], found["payload_bytes"]) == (raw, "base64", 3)
    publish(api, queue, "text")
    assert [m["payload_encoding"] for m in fetch(api, queue, 2, encoding="base64")] == ["base64", "base64"]


def test_a_long_payload_is_cut_where_a_character_ends(api: Api, queue: str) -> None:
    publish(api, queue, "aé" * 10)
    [found] = fetch(api, queue, truncate=5)
    assert (found["payload"], found["payload_bytes"], found["payload_encoding"]) == ("aéa", 30, "string")


@pytest.mark.parametrize("ackmode", ["ack_requeue_true", "reject_requeue_true"])
def test_requeued_messages_stay_and_are_marked(api: Api, queue: str, ackmode: str) -> None:
    for number in range(3):
        publish(api, queue, str(number))
    first = fetch(api, queue, 2, ackmode)
    assert [(m["payload"], m["redelivered"], m["message_count"]) for m in first] == [
        ("0", False, 2),
        ("1", False, 1),
    ]
    again = fetch(api, queue, 9, ackmode)
    assert [(m["payload"], m["redelivered"]) for m in again] == [("0", True), ("1", True), ("2", False)]


def test_acknowledged_messages_are_gone_even_after_a_crash(
    api: Api, queue: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = BrokerProcess(tmp_path_factory.mktemp("crash") / "data").start()
    try:
        own = Api(broker.admin)
        own("PUT", "/queues/%2F/kept", {})
        for number in range(4):
            publish(own, "kept", str(number), properties={"delivery_mode": 2})
        assert [m["payload"] for m in fetch(own, "kept", 2, "ack_requeue_false")] == ["0", "1"]
        broker.kill()
        broker.start()
        assert [m["payload"] for m in fetch(Api(broker.admin), "kept", 9)] == ["2", "3"]
    finally:
        broker.close()


def test_rejected_messages_go_to_the_dead_letter_exchange(api: Api) -> None:
    api("PUT", "/queues/%2F/graves", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    api("PUT", "/queues/%2F/ward", {"arguments": arguments})
    publish(api, "ward", "patient")
    assert [m["payload"] for m in fetch(api, "ward", 1, "reject_requeue_false")] == ["patient"]
    assert fetch(api, "ward") == []
    [dead] = eventually(lambda: fetch(api, "graves"))
    assert dead["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


def test_more_messages_than_a_slice_come_in_order(api: Api, broker: BrokerProcess, queue: str) -> None:
    with pika.BlockingConnection(
        pika.ConnectionParameters(broker.address.host, broker.address.port)
    ) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(300):
            channel.basic_publish("", queue, str(number).encode())
        assert [m["payload"] for m in fetch(api, queue, 250)] == [str(number) for number in range(250)]
        assert len(drain(channel, queue)) == 300


def test_through_an_exchange_its_bindings_decide(api: Api, queue: str) -> None:
    api("PUT", "/exchanges/%2F/sorter", {"type": "topic"})
    api("POST", f"/bindings/%2F/e/sorter/q/{queue}", {"routing_key": "a.*"})
    assert publish(api, "a.b", path="/exchanges/%2F/sorter/publish").json() == {"routed": True}
    assert publish(api, "b.a", path="/exchanges/%2F/sorter/publish").json() == {"routed": False}
    assert [m["routing_key"] for m in fetch(api, queue, 5)] == ["a.b"]


def test_permissions_are_those_of_amqp(api: Api, queue: str) -> None:
    reader = api.user("management", permissions={"read": "^q-", "write": "^nothing", "configure": ""})
    publish(api, queue)
    assert publish(reader, queue).status_code == 401
    assert len(fetch(reader, queue)) == 1
    writer = api.user("management", permissions=EVERYTHING | {"read": ""})
    ask = {"count": 1, "ackmode": "ack_requeue_false"}
    assert writer("POST", f"/queues/%2F/{queue}/get", ask).status_code == 401
    assert fetch(api, queue)[0]["payload"] == "hello"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ackmode": "perhaps"}, "'ackmode' must be one of"),
        ({"ackmode": None}, "'ackmode' is missing"),
        ({"count": -1}, "'count' must be a number of 0"),
        ({"count": "many"}, "'count' must be"),
        ({"count": 100_000}, "'count' must be a number of 0 to 10000; ask several times for more"),
        ({"encoding": "rot13"}, "'encoding' must be"),
        ({"truncate": -5}, "'truncate' must be"),
    ],
)
def test_a_get_that_cannot_be_is_400_with_a_reason(
    api: Api, queue: str, change: dict[str, Any], words: str
) -> None:
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", **change}
    answer = api("POST", f"/queues/%2F/{queue}/get", body)
    assert answer.status_code == 400
    assert words in answer.json()["reason"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"payload": None}, "'payload' is missing"),
        ({"payload": "%", "payload_encoding": "base64"}, "not base64"),
        ({"payload_encoding": "zip"}, "'payload_encoding' must be"),
        ({"routing_key": "x" * 256}, "at most 255 bytes"),
        ({"properties": {"colour": "red"}}, "no property 'colour'"),
        ({"properties": {"priority": 256}}, "cannot be sent"),
        ({"properties": {"priority": "high"}}, "'priority' must be a number"),
        ({"properties": {"headers": "x"}}, "'headers' must be an object"),
        ({"properties": {"app_id": "x" * 256}}, "cannot be sent"),
        ({"properties": {"headers": {"n": 10**30}}}, "cannot be sent"),
        ({"properties": {"expiration": "soon"}}, "expiration"),
        ({"properties": {"user_id": "root"}}, "user_id"),
        ({"properties": 7}, "'properties' must be an object"),
    ],
)
def test_a_publish_that_cannot_be_is_400_with_a_reason(
    api: Api, queue: str, change: dict[str, Any], words: str
) -> None:
    body = {"routing_key": queue, "payload": "x", "payload_encoding": "string", "properties": {}, **change}
    answer = api("POST", TO_DEFAULT, body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["reason"]
    assert api("GET", f"/queues/%2F/{queue}").json()["messages"] == 0


def test_what_is_not_there_is_404(api: Api) -> None:
    ask = {"count": 1, "ackmode": "ack_requeue_true"}
    assert api("POST", "/queues/%2F/none/get", ask).status_code == 404
    assert publish(api, "k", path="/exchanges/%2F/none/publish").status_code == 404


def test_a_stream_is_not_emptied_by_get(api: Api) -> None:
    api("PUT", "/queues/%2F/river", {"arguments": {"x-queue-type": "stream"}})
    answer = api("POST", "/queues/%2F/river/get", {"count": 1, "ackmode": "ack_requeue_true"})
    assert (answer.status_code, "stream" in answer.json()["reason"]) == (400, True)


def large(api: Api, queue: str, size: int, properties: dict[str, Any] | None = None) -> None:
    assert publish(api, queue, "x" * size, properties=properties or {}).status_code == 200


def test_an_answer_holds_only_so_many_bytes_and_the_rest_stays_as_it_was(api: Api, queue: str) -> None:
    for _ in range(4):
        large(api, queue, 6 << 20)

    assert len(fetch(api, queue, 9, "ack_requeue_false")) == 2
    rest = fetch(api, queue, 9, truncate=10)
    assert [(m["payload_bytes"], m["redelivered"]) for m in rest] == [(6 << 20, False)] * 2


def test_a_message_that_no_answer_can_hold_is_refused_in_words_and_stays(
    broker: BrokerProcess, api: Api, queue: str
) -> None:
    size = (16 << 20) + 1
    parameters = pika.ConnectionParameters(broker.address.host, broker.address.port)
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.basic_publish("", queue, b"x" * size)

        ask = {"count": 1, "ackmode": "ack_requeue_false"}
        answer = api("POST", f"/queues/%2F/{queue}/get", ask)
        assert answer.status_code == 400
        assert f"the next message has {size} bytes" in answer.json()["reason"]
        assert "'truncate'" in answer.json()["reason"]
        [found] = fetch(api, queue, truncate=100)
        assert (len(found["payload"]), found["payload_bytes"], found["redelivered"]) == (100, size, False)
