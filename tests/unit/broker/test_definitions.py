"""Definitions in RabbitMQ's format, out and in."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from builders import a_broker, a_session

from tidemark.broker.access import is_outdated, verify
from tidemark.broker.broker import Broker
from tidemark.broker.definitions import export, import_definitions
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.model.values import Decimal, Int8, RawString

RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "users": [
        {
            "name": "ann",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator", "monitoring"],
            "limits": {},
        },
        {
            "name": "old",
            "password_hash": "",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "a,b",
        },
    ],
    "vhosts": [
        {"name": "/"},
        {"name": "shop", "limits": [], "metadata": {"description": "the shop", "tags": ["prod"]}},
    ],
    "permissions": [{"user": "ann", "vhost": "shop", "configure": ".*", "write": "^o", "read": ""}],
    "topic_permissions": [
        {"user": "ann", "vhost": "shop", "exchange": "orders", "write": "^o", "read": ".*"}
    ],
    "parameters": [{"component": "shovel", "name": "s", "vhost": "shop", "value": {"src-uri": "amqp://"}}],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
    "policies": [
        {
            "vhost": "shop",
            "name": "ttl",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"message-ttl": 1000},
            "priority": 1,
        }
    ],
    "queues": [
        {
            "name": "q",
            "vhost": "shop",
            "type": "classic",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "classic", "x-max-length": 10},
        },
        {
            "name": "transient",
            "type": "classic",
            "vhost": "shop",
            "durable": False,
            "auto_delete": True,
            "arguments": {},
        },
    ],
    "exchanges": [
        {
            "name": "orders",
            "vhost": "shop",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "rest"},
        },
        {
            "name": "rest",
            "vhost": "shop",
            "type": "headers",
            "durable": True,
            "auto_delete": False,
            "internal": True,
            "arguments": {},
        },
    ],
    "bindings": [
        {
            "source": "orders",
            "vhost": "shop",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
        },
        {
            "source": "orders",
            "vhost": "shop",
            "destination": "rest",
            "destination_type": "exchange",
            "routing_key": "#",
            "arguments": {},
        },
        {
            "source": "rest",
            "vhost": "shop",
            "destination": "transient",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "any", "a": 1},
        },
    ],
}


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """RabbitMQ's document with one thing in it replaced."""
    document = copy.deepcopy(RABBITMQ)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


def empty() -> Broker:
    return a_broker(vhosts=("/",), users=())


def test_a_document_of_rabbitmq_is_imported_and_works() -> None:
    broker = empty()
    imported = import_definitions(broker, RABBITMQ)
    assert imported.safe_at == broker.catalog.last_seq
    assert imported.made["queues"] == 2
    assert imported.kept == {"vhosts": 1}

    shop = broker.vhosts["shop"]
    assert shop.spec.description == "the shop"
    assert [queue.name for queue in shop.route_message("orders", "a.b", {"a": 1})] == ["q", "transient"]
    assert shop.queues["q"].policy.length_max == 10
    assert broker.access.users["old"].tags == ("a", "b")
    assert broker.access.allows("ann", "shop", "write", "orders")
    assert not broker.access.allows("ann", "shop", "read", "q")


def test_a_user_of_rabbitmq_logs_in_with_the_old_password_and_gets_a_better_hash() -> None:
    broker = empty()
    import_definitions(broker, RABBITMQ)
    stored = broker.access.stored_hash("ann", loopback=False)
    assert verify(stored, "test12")
    assert is_outdated(stored)

    broker.passed("ann", broker.password_hash("test12"))
    better = broker.access.stored_hash("ann", loopback=False)
    assert better.startswith("scrypt$")
    assert verify(better, "test12")
    assert broker.access.users["ann"].tags == ("administrator", "monitoring")


def test_importing_twice_changes_nothing_the_second_time() -> None:
    broker = empty()
    document = changed(("users", 0), {"name": "ann", "password": "plain", "tags": []})
    import_definitions(broker, document)
    image, logged = broker.image(), broker.catalog.last_seq

    again = import_definitions(broker, document)
    assert again.made == {}
    assert broker.catalog.last_seq == logged
    assert broker.image() == image


def test_what_is_exported_is_what_was_imported() -> None:
    broker = empty()
    import_definitions(broker, RABBITMQ)
    document = export(broker)
    assert {section for section in document if isinstance(document[section], list)} == {
        section for section in RABBITMQ if isinstance(RABBITMQ[section], list)
    }
    for section in ("permissions", "topic_permissions", "parameters", "global_parameters", "policies"):
        assert document[section] == RABBITMQ[section]
    for section in ("queues", "exchanges", "bindings"):
        assert all(item in document[section] for item in RABBITMQ[section])
        assert len(document[section]) == len(RABBITMQ[section])
    assert document["users"][0] == RABBITMQ["users"][0]


def test_what_one_broker_exports_another_imports() -> None:
    broker = empty()
    import_definitions(broker, RABBITMQ)
    broker.passed("ann", broker.password_hash("test12"))
    other = empty()
    import_definitions(other, json.loads(json.dumps(export(broker))))
    assert export(other) == export(broker)
    assert verify(other.access.stored_hash("ann", loopback=False), "test12")


def test_exclusive_queues_and_predeclared_exchanges_are_not_exported() -> None:
    broker = a_broker()
    session = a_session(broker)
    session.declare_queue("mine", exclusive=True)
    session.bind_queue("mine", "amq.topic", "#")
    document = export(broker)
    assert document["queues"] == document["exchanges"] == document["bindings"] == []


def test_one_vhost_can_be_exported_and_imported_alone() -> None:
    broker = empty()
    import_definitions(broker, RABBITMQ)
    document = export(broker, "shop")
    assert "users" not in document
    for section in ("queues", "exchanges", "bindings", "policies", "parameters"):
        assert all("vhost" not in item for item in document[section])

    # The whole document, too, can be put into one virtual host: only what belongs into one is taken, whatever it says itself.
    for given in (document, RABBITMQ):
        other = a_broker(vhosts=("/", "second"))
        users = set(other.access.users)
        import_definitions(other, given, vhost="second")
        assert [q.name for q in other.vhosts["second"].route_message("orders", "a.b", {})] == ["q"]
        assert (set(other.vhosts), set(other.access.users)) == ({"/", "second"}, users)
    with pytest.raises(NotFound, match="no vhost 'nope'"):
        export(broker, "nope")


def test_arguments_that_json_cannot_say_are_exported_as_near_as_it_comes() -> None:
    broker = a_broker()
    session = a_session(broker)
    session.declare_queue(
        "q", arguments={"a": Int8(1), "b": b"raw", "c": RawString(b"\xff"), "d": Decimal(2, 125)}
    )
    [queue] = json.loads(json.dumps(export(broker)))["queues"]
    assert queue["arguments"] == {"a": 1, "b": "raw", "c": "\ufffd", "d": 1.25}


BAD: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "section": (("queues",), {"q": 1}, "queues must be a list"),
    "item": (("queues", 1), "q", r"queues\[1\] must be an object"),
    "no name": (("queues", 1), {"vhost": "shop"}, r"queues\[1\]: 'name' must be text"),
    "empty name": (("exchanges", 0, "name"), "", r"exchanges\[0\]: 'name' must be at least one character"),
    "long name": (("queues", 0, "name"), "q" * 256, r"queues\[0\]: 'name' must be at most 255 bytes"),
    "no text": (("queues", 0, "name"), "q\ud800", r"queues\[0\]: the name .* of a queue is no text"),
    "no text either": (
        ("exchanges", 0, "name"),
        "\ud800",
        r"exchanges\[0\]: the name .* of an exchange is no text",
    ),
    "flag": (("queues", 0, "durable"), "yes", r"queues\[0\]: 'durable' must be true or false"),
    "argument": (("queues", 0, "arguments", "x-max-length"), -1, r"queues\[0\]: invalid arg 'x-max-length'"),
    "arguments": (("queues", 0, "arguments"), [1], r"queues\[0\]: 'arguments' must be an object"),
    "vhost": (("queues", 0, "vhost"), "nope", r"queues\[0\]: no vhost 'nope'"),
    "type": (("exchanges", 0, "type"), "x-delayed-message", r"exchanges\[0\]: unknown exchange type"),
    "binding kind": (("bindings", 0, "destination_type"), "topic", "'queue' or 'exchange'"),
    "rule": (("bindings", 2, "arguments", "x-match"), "some", r"bindings\[2\]: Invalid x-match"),
    "pattern": (("permissions", 0, "write"), "(", r"permissions\[0\]: regular expression '\(' is invalid"),
    "user": (("permissions", 0, "user"), "nobody", r"permissions\[0\]: no user 'nobody'"),
    "hash": (("users", 0, "password_hash"), "short", r"users\[0\]: the password hash is in no known form"),
    "algorithm": (("users", 0, "hashing_algorithm"), "rot13", r"users\[0\]: the password hash"),
    "tags": (("users", 0, "tags"), [1], r"users\[0\]: 'tags' must be a list of words"),
    "apply-to": (("policies", 0, "apply-to"), "people", r"policies\[0\]: .* apply-to 'people' unrecognised"),
    "key": (
        ("policies", 0, "definition", "colour"),
        1,
        r'\[\{<<"colour">>,1\}\] are not recognised policy settings',
    ),
    "value": (("policies", 0, "definition"), {"max-length": "x"}, r'<<"x">> is not a valid maximum length'),
    "priority": (("policies", 0, "priority"), True, r"policies\[0\]: 'priority' must be a whole number"),
}


@pytest.mark.parametrize(("path", "value", "words"), BAD.values(), ids=BAD.keys())
def test_a_document_with_a_fault_is_refused_and_changes_nothing(
    path: tuple[str | int, ...], value: Any, words: str
) -> None:
    broker = empty()
    image, logged = broker.image(), broker.catalog.last_seq
    with pytest.raises(PreconditionFailed, match=words):
        import_definitions(broker, changed(path, value))
    assert broker.catalog.last_seq == logged
    assert broker.image() == image


@pytest.mark.parametrize("document", [[], None, "{}", 1])
def test_a_document_that_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(PreconditionFailed, match="must be a JSON object"):
        import_definitions(empty(), document)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("source", "bindings[0]: no exchange 'nope' in vhost 'shop'"),
        ("destination", "bindings[0]: no queue 'nope' in vhost 'shop'"),
    ],
)
def test_a_binding_that_leads_nowhere_is_left_out_and_named(end: str, words: str) -> None:
    broker = empty()
    imported = import_definitions(broker, changed(("bindings", 0, end), "nope"))
    assert imported.left_out == (words,)
    assert imported.made["bindings"] == 2


def test_an_existing_queue_is_kept_as_it_is() -> None:
    broker = a_broker(vhosts=("shop",))
    a_session(broker, vhost="shop").declare_queue("q", durable=True)
    imported = import_definitions(broker, RABBITMQ)
    assert imported.kept["queues"] == 1
    assert broker.vhosts["shop"].queues["q"].policy.length_max is None


def test_streams_come_in_as_streams_and_bad_ones_are_refused() -> None:
    broker = a_broker()
    arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-stream-key": "routing-key"}
    queue = {"vhost": "/", "name": "s", "durable": True, "auto_delete": False, "arguments": arguments}
    import_definitions(broker, {"queues": [queue]})
    assert broker.vhosts["/"].queues["s"].keeps
    [exported] = [each for each in export(broker)["queues"] if each["name"] == "s"]
    assert (exported["type"], exported["arguments"]) == ("stream", arguments)

    with pytest.raises(PreconditionFailed, match="x-max-length"):
        import_definitions(
            broker, {"queues": [queue | {"name": "t", "arguments": {**arguments, "x-max-length": 5}}]}
        )
