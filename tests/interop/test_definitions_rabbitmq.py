"""Beside a real RabbitMQ: its definitions are taken and have their effect, and both answer the same questions alike.

One RabbitMQ with its management plugin is started for this file, on loopback and free ports, and furnished with what
operators configure; Tidemark gets the definitions that it exports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pika
import pytest
from helpers.amqp import eventually
from helpers.api import EVERYTHING, Api
from helpers.broker import Address, BrokerProcess
from helpers.rabbitmq import ManagedRabbitMQ, require_rabbitmq
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

SHOP = "sh%2Fop"


class Both(NamedTuple):
    rabbit: Api
    ours: Api
    rabbit_address: Address
    our_address: Address
    imported: dict[str, Any]
    document: dict[str, Any]


def login(address: Address, user: str = "guest", password: str = "guest", vhost: str = "/") -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            address.host, address.port, vhost, pika.PlainCredentials(user, password), socket_timeout=10
        )
    )


def furnish(api: Api) -> None:
    """What somebody who runs RabbitMQ has configured."""
    made = [
        ("/vhosts/sh%2Fop", {"description": "The shop", "tags": "prod,eu"}),
        ("/users/ada", {"password": "Ada's secret", "tags": "management,monitoring"}),
        ("/users/bob", {"password": "bob", "tags": ""}),
        (f"/permissions/{SHOP}/ada", EVERYTHING),
        (f"/permissions/{SHOP}/bob", {"configure": "", "write": "^events$", "read": "^orders$"}),
        (f"/topic-permissions/{SHOP}/bob", {"exchange": "events", "write": "^order\\.", "read": ".*"}),
        (f"/exchanges/{SHOP}/events", {"type": "topic", "durable": True}),
        (f"/exchanges/{SHOP}/unrouted", {"type": "fanout", "durable": True}),
        (
            f"/exchanges/{SHOP}/tagged",
            {"type": "headers", "durable": True, "arguments": {"alternate-exchange": "unrouted"}},
        ),
        (f"/queues/{SHOP}/orders", {"durable": True, "arguments": {"x-message-ttl": 3_600_000}}),
        (f"/queues/{SHOP}/dead", {"durable": True}),
        (f"/queues/{SHOP}/quorate", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        (
            f"/queues/{SHOP}/log",
            {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "7D"}},
        ),
        (
            f"/policies/{SHOP}/short",
            {
                "pattern": "^orders$",
                "definition": {"max-length": 3, "dead-letter-exchange": "unrouted"},
                "priority": 5,
                "apply-to": "queues",
            },
        ),
        (f"/policies/{SHOP}/weaker", {"pattern": ".*", "definition": {"max-length": 99}, "priority": 1}),
        (
            f"/operator-policies/{SHOP}/cap",
            {"pattern": "^orders$", "definition": {"max-length": 2}, "apply-to": "queues"},
        ),
        (f"/vhost-limits/{SHOP}/max-queues", {"value": 6}),
        ("/user-limits/bob/max-channels", {"value": 2}),
        ("/global-parameters/motto", {"value": {"text": "panta rhei"}}),
        ("/cluster-name", {"name": "harbour"}),
    ]
    for path, body in made:
        answer = api("PUT", path, body)
        assert answer.status_code in (201, 204), (path, answer.status_code, answer.text)
    for path, body in [
        (f"/bindings/{SHOP}/e/events/q/orders", {"routing_key": "order.*"}),
        (f"/bindings/{SHOP}/e/events/e/tagged", {"routing_key": "#"}),
        (f"/bindings/{SHOP}/e/unrouted/q/dead", {"routing_key": ""}),
        (
            f"/bindings/{SHOP}/e/tagged/q/quorate",
            {"routing_key": "", "arguments": {"x-match": "all", "colour": "red"}},
        ),
    ]:
        assert api("POST", path, body).status_code == 201


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    require_rabbitmq()
    process = BrokerProcess(tmp_path_factory.mktemp("ours") / "data")
    with ManagedRabbitMQ(tmp_path_factory.mktemp("theirs") / "rabbitmq") as rabbit:
        try:
            process.start()
            # It closes a connection that is idle for 5 s, which may be the moment in which the next request is sent.
            anew = httpx.Limits(max_keepalive_connections=0)
            theirs = Api(Address("127.0.0.1", rabbit.admin_port), limits=anew)
            furnish(theirs)
            document = theirs.get("/definitions")
            ours = Api(process.admin)
            answer = ours("POST", "/definitions", document)
            assert answer.status_code == 200, answer.text
            where = Address("127.0.0.1", rabbit.port)
            yield Both(theirs, ours, where, process.address, answer.json(), document)
        finally:
            process.close()


# Definitions --------------------------------------------------------------------------------------------


def test_everything_in_the_document_is_taken(both: Both) -> None:
    assert both.imported["left_out"] == []
    assert both.imported["made"]["queues"] == 4
    again = both.ours("POST", "/definitions", both.document).json()
    assert again["made"] == {}


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("vhosts", ("name",)),
        ("users", ("name", "tags", "password_hash", "hashing_algorithm", "limits")),
        ("permissions", ("user", "vhost", "configure", "write", "read")),
        ("topic_permissions", ("user", "vhost", "exchange", "write", "read")),
        ("policies", ("vhost", "name", "pattern", "apply-to", "definition", "priority")),
        ("parameters", ("vhost", "component", "name", "value")),
        ("exchanges", ("vhost", "name", "type", "durable", "auto_delete", "internal", "arguments")),
        ("queues", ("vhost", "name", "durable", "auto_delete", "arguments")),
        ("bindings", ("vhost", "source", "destination", "destination_type", "routing_key", "arguments")),
        ("global_parameters", ("name", "value")),
    ],
)
def test_what_was_imported_is_exported_as_it_came(both: Both, section: str, fields: tuple[str, ...]) -> None:
    def items(document: dict[str, Any]) -> list[str]:
        found = [{field: plain(item.get(field)) for field in fields} for item in document[section]]
        # Whoever logs in gets a new hash, and guest was here before.
        found = [item for item in found if item.get("name") != "guest" and item.get("user") != "guest"]
        return [json.dumps(item, sort_keys=True) for item in found]

    def plain(value: Any) -> Any:
        return {} if value == [] else value  # RabbitMQ writes an empty object as an empty list, now and then

    theirs, ours = items(both.document), items(both.ours.get("/definitions"))
    assert theirs
    assert set(theirs) <= set(ours)


def test_users_log_in_with_the_passwords_that_they_had(both: Both) -> None:
    login(both.our_address, "ada", "Ada's secret", "sh/op").close()
    with pytest.raises(ProbableAuthenticationError):
        login(both.our_address, "ada", "guess", "sh/op")
    assert both.ours.as_(("ada", "Ada's secret")).get("/whoami")["tags"] == ["management", "monitoring"]


def test_permissions_hold(both: Both) -> None:
    with login(both.our_address, "bob", "bob", "sh/op") as connection:
        for exchange, key in (("tagged", "x"), ("events", "refund.new")):
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker) as refused:
                channel.basic_publish(exchange, key, b"x")
            assert refused.value.reply_code == 403
        with pytest.raises(ChannelClosedByBroker) as refused:
            connection.channel().queue_declare("new")
        assert refused.value.reply_code == 403


def test_messages_go_where_the_bindings_lead_and_policies_apply(both: Both) -> None:
    for api, address in ((both.rabbit, both.rabbit_address), (both.ours, both.our_address)):
        with login(address, "ada", "Ada's secret", "sh/op") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(4):
                channel.basic_publish("events", "order.new", str(number).encode())
            red = pika.BasicProperties(headers={"colour": "red"})
            channel.basic_publish("tagged", "", b"red", red)
            channel.basic_publish("tagged", "", b"blue")

            def bodies(queue: str, channel: Any = channel) -> list[bytes]:
                found = []
                while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    found.append(got[2])
                return found

            # The operator policy leaves two; what was too much is dead; so are all that no header wanted.
            eventually(lambda api=api: api.get(f"/queues/{SHOP}/dead").get("messages") == 7)
            assert bodies("orders") == [b"2", b"3"]
            assert bodies("quorate") == [b"red"]
            assert sorted(bodies("dead")) == [b"0", b"0", b"1", b"1", b"2", b"3", b"blue"]
        shown = api.get(f"/queues/{SHOP}/orders")
        assert (shown["policy"], shown["operator_policy"]) == ("short", "cap")
        assert shown["effective_policy_definition"] == {"max-length": 2, "dead-letter-exchange": "unrouted"}


def test_limits_hold(both: Both) -> None:
    for api in (both.rabbit, both.ours):
        for name in ("five", "six"):
            assert api("PUT", f"/queues/{SHOP}/{name}", {}).status_code == 201
        assert api("PUT", f"/queues/{SHOP}/seven", {}).status_code == 400
        for name in ("five", "six"):
            assert api("DELETE", f"/queues/{SHOP}/{name}").status_code == 204
        assert api.get("/user-limits/bob")[0]["value"] == {"max-channels": 2}
        assert api.get("/cluster-name") == {"name": "harbour"}


def test_a_virtual_host_that_we_export_is_taken_by_rabbitmq(both: Both) -> None:
    document = both.ours.get(f"/definitions/{SHOP}")
    document["queues"] = [queue for queue in document["queues"] if queue["type"] == "classic"]
    document["bindings"] = [b for b in document["bindings"] if b["destination"] != "quorate"]
    assert both.rabbit("PUT", "/vhosts/back", {}).status_code == 201
    answer = both.rabbit("POST", "/definitions/back", document)
    assert answer.status_code == 204, answer.text
    assert sorted(q["name"] for q in both.rabbit.get("/queues/back?columns=name")) == ["dead", "orders"]
    assert len(both.rabbit.get("/exchanges/back/events/bindings/source")) == 2
    assert {p["name"] for p in both.rabbit.get("/policies/back")} == {"short", "weaker"}


# The same questions -----------------------------------------------------------------------------------------

LENGTHS = (
    "messages", "messages_details.rate", "messages_ready", "messages_ready_details.rate",
    "messages_unacknowledged", "messages_unacknowledged_details.rate",
)  # fmt: skip
COUNTED = (
    "publish",
    "deliver",
    "deliver_no_ack",
    "deliver_get",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
)
STATS = tuple(f"message_stats.{name}{end}" for name in COUNTED for end in ("", "_details.rate"))
CONSUMER = (
    "consumer_tag", "queue.name", "queue.vhost", "ack_required", "exclusive", "prefetch_count", "active",
    "activity_status", "arguments", "channel_details.name", "channel_details.connection_name",
    "channel_details.number", "channel_details.node", "channel_details.user", "channel_details.peer_host",
    "channel_details.peer_port",
)  # fmt: skip
CHANNEL = (
    "name", "number", "node", "user", "vhost", "state", "confirm", "transactional", "prefetch_count",
    "global_prefetch_count", "messages_unacknowledged", "messages_unconfirmed", "consumer_count",
    "connection_details.name", "connection_details.peer_host", "connection_details.peer_port",
    "user_who_performed_action",
)  # fmt: skip
CONNECTION = (
    "name", "node", "type", "user", "vhost", "state", "protocol", "ssl", "peer_host", "peer_port", "host", "port",
    "channels", "channel_max", "frame_max", "timeout", "connected_at", "client_properties.product",
    "client_properties.capabilities", "recv_oct", "recv_oct_details.rate", "send_oct", "send_oct_details.rate",
    "peer_cert_subject", "user_provided_name", "user_who_performed_action",
)  # fmt: skip
QUEUE = (
    "name", "vhost", "durable", "auto_delete", "exclusive", "arguments", "type", "node", "state", "policy",
    "operator_policy", "effective_policy_definition", "consumers", "exclusive_consumer_tag",
    "single_active_consumer_tag", "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged",
    *LENGTHS, *STATS,
)  # fmt: skip
EXCHANGE = (
    "name", "vhost", "type", "durable", "auto_delete", "internal", "arguments", "message_stats.publish_in",
    "message_stats.publish_in_details.rate", "message_stats.publish_out",
)  # fmt: skip
BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments", "properties_key")
VHOST = (
    "name", "description", "tags", "metadata.description", "metadata.tags", "tracing", "cluster_state",
    *LENGTHS, *STATS,
)  # fmt: skip
POLICY = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
CHURN = ("connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared",
         "queue_created", "queue_deleted")  # fmt: skip
OVERVIEW = (
    "management_version", "rabbitmq_version", "erlang_version", "erlang_full_version", "product_name",
    "product_version", "cluster_name", "node", "rates_mode", "sample_retention_policies.global",
    "sample_retention_policies.basic", "sample_retention_policies.detailed", "exchange_types",
    "exchange_types.name", "exchange_types.description", "exchange_types.enabled", "disable_stats",
    "enable_queue_totals", "statistics_db_event_queue", "object_totals.channels", "object_totals.connections",
    "object_totals.consumers", "object_totals.exchanges", "object_totals.queues", "listeners.node",
    "listeners.protocol", "listeners.ip_address", "listeners.port", "contexts.node", "contexts.description",
    "contexts.path", "contexts.port", *(f"queue_totals.{name}" for name in LENGTHS), *STATS,
    "message_stats.confirm", "message_stats.return_unroutable", "message_stats.drop_unroutable",
    *(f"churn_rates.{name}{end}" for name in CHURN for end in ("", "_details.rate")),
)  # fmt: skip
NODE = (
    "name", "type", "running", "partitions", "os_pid", "uptime", "processors", "rates_mode", "fd_total", "fd_used",
    "sockets_total", "sockets_used", "mem_used", "mem_limit", "mem_alarm", "disk_free", "disk_free_limit",
    "disk_free_alarm", "exchange_types.name", "auth_mechanisms.name", "applications.name", "applications.version",
    "enabled_plugins", "config_files", "log_files", "db_dir", "contexts.port",
)  # fmt: skip
PAGE = ("filtered_count", "item_count", "items.name", "page", "page_count", "page_size", "total_count")
MESSAGE_RATES = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"

QUESTIONS = {
    "/overview": OVERVIEW,
    "/nodes": NODE,
    "/nodes/{node}": NODE,
    "/cluster-name": ("name",),
    "/whoami": ("name", "tags"),
    "/connections": CONNECTION,
    "/connections/{connection}": CONNECTION,
    "/vhosts/%2F/connections": CONNECTION,
    "/connections/username/guest": ("name", "user", "vhost", "node"),
    "/connections/{connection}/channels": CHANNEL,
    "/channels": CHANNEL,
    "/vhosts/%2F/channels": CHANNEL,
    "/consumers": CONSUMER,
    "/consumers/%2F": CONSUMER,
    "/queues?name=asked": QUEUE,
    "/queues/%2F/asked": (*QUEUE, *(f"consumer_details.{name}" for name in CONSUMER)),
    f"/queues/%2F/asked?{MESSAGE_RATES}": (
        "messages_details.samples.sample", "messages_details.samples.timestamp", "messages_details.avg",
        "messages_details.avg_rate", "message_stats.publish_details.samples.sample",
    ),
    "/queues?page=1&page_size=2&sort=name&columns=name": PAGE,
    "/queues/%2F/asked/bindings": BINDING,
    "/exchanges/%2F/amq.default": EXCHANGE,
    f"/exchanges/{SHOP}/events/bindings/source": BINDING,
    f"/bindings/{SHOP}": BINDING,
    f"/bindings/{SHOP}/e/events/q/orders/order.%252A": BINDING,
    "/vhosts/%2F": VHOST,
    "/users": ("name", "password_hash", "hashing_algorithm", "tags", "limits"),
    "/users/ada": ("name", "password_hash", "hashing_algorithm", "tags", "limits"),
    "/users/without-permissions?columns=name": (),
    "/users/ada/permissions": ("user", "vhost", "configure", "write", "read"),
    "/permissions": ("user", "vhost", "configure", "write", "read"),
    f"/permissions/{SHOP}/ada": ("user", "vhost", "configure", "write", "read"),
    "/topic-permissions": ("user", "vhost", "exchange", "write", "read"),
    "/policies": POLICY,
    f"/policies/{SHOP}/short": POLICY,
    "/operator-policies": POLICY,
    "/parameters": ("vhost", "component", "name", "value"),
    "/parameters/vhost-limits": ("vhost", "component", "name", "value.max-queues"),
    "/global-parameters": ("name", "value"),
    "/vhost-limits": ("vhost", "value.max-queues"),
    "/user-limits": ("user", "value.max-channels"),
    "/feature-flags": ("name", "desc", "doc_url", "state", "stability", "provided_by"),
    "/health/checks/alarms": ("status",),
    "/health/checks/port-listener/{port}": ("status", "port"),
    "/health/checks/protocol-listener/amqp091": ("status", "protocol"),
    "/health/checks/node-is-quorum-critical": ("status", "reason"),
    "/aliveness-test/%2F": ("status",),
}  # fmt: skip


@pytest.fixture(scope="module")
def busy(both: Both) -> Iterator[dict[int, dict[str, str]]]:
    """The same traffic on both, some seconds ago, and a consumer that holds messages; what to put into paths."""
    words: dict[int, dict[str, str]] = {}
    opened = []
    for api, address in ((both.rabbit, both.rabbit_address), (both.ours, both.our_address)):
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                address.host, address.port, client_properties={"connection_name": "asker"}, heartbeat=0
            )
        )
        opened.append(connection)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("asked", durable=True)
        for number in range(20):
            channel.basic_publish("", "asked", str(number).encode(), pika.BasicProperties(delivery_mode=2))
        channel.basic_get("asked", auto_ack=True)
        method, _, _ = channel.basic_get("asked")
        channel.basic_nack(method.delivery_tag, requeue=True)
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume(
            "asked", lambda c, m, *_: c.basic_ack(m.delivery_tag) if m.delivery_tag < 4 else None
        )
        connection.process_data_events(0.5)
        words[id(api)] = {"node": api.get("/overview")["node"], "port": str(address.port)}
    deadline = time.monotonic() + 30
    for api in (both.rabbit, both.ours):

        def seen(api: Api = api) -> str | None:
            """The statistics of RabbitMQ come seconds later."""
            queue = api.get("/queues/%2F/asked")
            found = [c for c in api.get("/connections") if c.get("user_provided_name") == "asker"]
            channels = api.get("/channels")
            known = queue["consumer_details"] and queue.get("message_stats", {}).get("ack") and channels
            settled = known and channels[0]["consumer_count"] and found[0].get("channels") == 1
            return found[0]["name"] if found and settled else None

        words[id(api)]["connection"] = eventually(seen, max(1, deadline - time.monotonic()))
    yield words
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("path", QUESTIONS)
def test_the_same_question_has_the_same_fields_of_the_same_types(
    both: Both, busy: dict[int, dict[str, str]], path: str
) -> None:
    theirs, ours = (kinds(api.get(path.format(**quoted(busy[id(api)])))) for api in (both.rabbit, both.ours))
    for field in QUESTIONS[path]:
        assert field in theirs, f"RabbitMQ has no {field}: the table is wrong"
        assert field in ours, f"{field} is missing"
        assert theirs[field] & ours[field] or "null" in theirs[field] | ours[field], (
            f"{field}: {theirs[field]} there, {ours[field]} here"
        )


def quoted(words: dict[str, str]) -> dict[str, str]:
    return {name: quote(word, safe="") for name, word in words.items()}


def kinds(value: Any, prefix: str = "") -> dict[str, set[str]]:
    """Every field at any depth, with the kinds of values that it has; lists stand for their items."""
    found: dict[str, set[str]] = {}
    if isinstance(value, list):
        if prefix:
            found[prefix] = {"list"}
        inner = [kinds(item, prefix) for item in value]
    elif isinstance(value, dict):
        if prefix:
            found[prefix] = {"object"}
        inner = [kinds(item, f"{prefix}.{name}" if prefix else name) for name, item in value.items()]
    else:
        inner = []
        if prefix:
            found[prefix] = {kind(value)}
    for part in inner:
        for name, its in part.items():
            found.setdefault(name, set()).update(its)
    return found


def kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/queues?page=0", None),
        ("GET", "/queues?page=x", None),
        ("GET", "/queues?page=1&page_size=501", None),
        ("GET", "/queues?page=900", None),
        ("GET", "/queues?page=1&name=[&use_regex=true", None),
        ("GET", "/queues/%2F/none", None),
        ("GET", "/queues/none", None),
        ("GET", "/exchanges/%2F/none", None),
        ("GET", "/nonsense", None),
        ("POST", "/overview", {}),
        ("PUT", "/queues/%2F/asked", {"durable": False}),
        ("PUT", "/queues/%2F/amq.reserved", {}),
        ("PUT", "/exchanges/%2F/bad", {"type": "nope"}),
        ("DELETE", "/exchanges/%2F/amq.direct", None),
        ("DELETE", "/queues/%2F/asked?if-unused=true", None),
        ("DELETE", "/queues/%2F/none", None),
        ("POST", "/bindings/%2F/e/amq.direct/q/none", {"routing_key": "k"}),
        ("DELETE", "/bindings/%2F/e/amq.direct/q/asked/none", None),
        ("PUT", "/users/nameless", {"password": "x"}),
        ("DELETE", "/users/none", None),
        ("POST", "/users/bulk-delete", {"users": ["none"]}),
        ("PUT", "/permissions/%2F/none", EVERYTHING),
        ("PUT", "/policies/%2F/bad", {"pattern": "(", "definition": {"max-length": 1}}),
        ("PUT", "/policies/%2F/bad", {"pattern": "a", "definition": {"nope": 1}}),
        ("DELETE", "/policies/%2F/none", None),
        ("PUT", "/vhost-limits/%2F/nope", {"value": 1}),
        ("PUT", "/vhost-limits/none/max-queues", {"value": 1}),
        ("DELETE", "/vhosts/none", None),
        ("DELETE", "/connections/none", None),
        ("POST", "/queues/%2F/asked/get", {"count": 1}),
        ("POST", "/queues/%2F/none/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
        ("POST", "/exchanges/%2F/amq.default/publish", {"routing_key": "k", "properties": {}}),
        ("POST", "/definitions", {"queues": [{"name": "q", "vhost": "none", "durable": True,
                                              "auto_delete": False, "arguments": {}}]}),
        ("GET", "/health/checks/port-listener/1", None),
        ("GET", "/health/checks/port-listener/x", None),
        ("GET", "/health/checks/protocol-listener/mqtt", None),
        ("GET", "/health/checks/certificate-expiration/1/eons", None),
    ],
)  # fmt: skip
def test_the_same_mistake_has_the_same_status(
    both: Both, busy: dict[int, dict[str, str]], method: str, path: str, body: Any
) -> None:
    assert busy
    theirs, ours = (api(method, path, body) for api in (both.rabbit, both.ours))
    assert ours.status_code == theirs.status_code, (theirs.text, ours.text)
    if ours.status_code != 405:
        assert set(theirs.json()) <= set(ours.json())
        assert isinstance(ours.json()["reason"], str)
