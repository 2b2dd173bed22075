"""`rabbitmqadmin`, RabbitMQ's own command line over HTTP, as it is in Debian's package: every subcommand, every format."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from helpers.amqp import eventually
from helpers.broker import BrokerProcess
from pika.exceptions import ConnectionClosedByBroker

PLACES = (
    Path("/usr/bin/rabbitmqadmin"),
    *Path("/usr/lib/rabbitmq/lib").glob(
        "rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"
    ),
)
SCRIPT = next((path for path in PLACES if path.is_file()), None)
pytestmark = pytest.mark.skipif(SCRIPT is None, reason="rabbitmqadmin is not installed")

FORMATS = ("table", "tsv", "kvp", "long", "bash", "raw_json", "pretty_json")
LISTED = (
    "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions",
    "nodes", "parameters", "policies", "operator_policies", "vhost_limits",
)  # fmt: skip

Admin = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("rabbitmqadmin") / "data").start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def admin(own: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Admin:
    home = tmp_path_factory.mktemp("home")

    def run(*words: str, fails: bool = False, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "-H", own.admin.host, "-P", str(own.admin.port), *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            input=stdin,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"},
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def furnished(own: BrokerProcess, admin: Admin) -> Iterator[pika.BlockingConnection]:
    """At least one of everything that can be listed, with a living connection that consumes."""
    admin("declare", "queue", "name=furniture", "durable=true")
    admin(
        "declare", "policy", "name=p", "pattern=^furn", 'definition={"max-length": 1000}', "apply-to=queues"
    )
    admin("declare", "operator_policy", "name=op", "pattern=^furn", 'definition={"max-length": 500}')
    admin("declare", "vhost_limit", "vhost=/", "name=max-queues", "value=1000")
    admin("declare", "parameter", "component=shovel", "name=s", 'value={"src-uri": "amqp://"}')
    with pika.BlockingConnection(pika.ConnectionParameters(own.address.host, own.address.port)) as connection:
        channel = connection.channel()
        channel.basic_consume("furniture", lambda *_: None)
        channel.basic_publish("", "furniture", b"chair")
        yield connection


def rows(admin: Admin, *words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(admin("-f", "raw_json", *words).stdout)
    return found


@pytest.mark.parametrize("kind", LISTED)
@pytest.mark.parametrize("format", FORMATS)
def test_everything_is_listed_in_every_format(
    admin: Admin, furnished: pika.BlockingConnection, kind: str, format: str
) -> None:
    furnished.process_data_events(0)
    said = admin("-f", format, "list", kind).stdout
    if format.endswith("json"):
        assert json.loads(said)
    elif format != "bash" or kind in ("exchanges", "queues", "vhosts", "users", "nodes"):
        assert said.strip()
        assert "No items" not in said


def test_columns_sorting_and_depth(admin: Admin, furnished: pika.BlockingConnection) -> None:
    furnished.process_data_events(0)
    for name in ("sort-b", "sort-a"):
        admin("declare", "queue", f"name={name}")
    shown = admin("-f", "tsv", "-S", "name", "-R", "list", "queues", "name", "durable").stdout.splitlines()
    assert shown[0] == "name\tdurable"
    assert shown.index("sort-b\tTrue") < shown.index("sort-a\tTrue")
    assert rows(admin, "list", "queues", "name")[0].keys() == {"name"}
    assert "client_properties.product" in admin("-f", "long", "-d", "3", "list", "connections").stdout
    assert "message_stats.publish_details.rate" in admin("-f", "long", "-d", "3", "list", "queues").stdout


def test_the_overview_is_shown(admin: Admin) -> None:
    table = admin("show", "overview").stdout
    assert "rabbitmq_version" in table
    assert "queue_totals.messages" in table
    [found] = rows(admin, "show", "overview")
    assert found["product_name"] == "Tidemark"
    assert "node" in admin("-f", "long", "-d", "2", "show", "overview").stdout


def test_things_are_declared_and_deleted(admin: Admin) -> None:
    admin("declare", "vhost", "name=v/1")
    admin("declare", "user", "name=ada", "password=secret", "tags=management,monitoring")
    admin("declare", "permission", "vhost=v/1", "user=ada", "configure=.*", "write=.*", "read=^a")
    here = ("-V", "v/1")
    admin(*here, "declare", "exchange", "name=x y", "type=topic", "auto_delete=false", 'arguments={"a": 1}')
    admin(*here, "declare", "exchange", "name=inner", "type=fanout", "internal=true")
    admin(*here, "declare", "queue", "name=q#1", "durable=true", 'arguments={"x-max-length": 7}')
    admin(*here, "declare", "queue", "name=quorate", "queue_type=quorum")
    admin(*here, "declare", "binding", "source=x y", "destination=q#1", "routing_key=order.*")
    admin(*here, "declare", "binding", "source=x y", "destination=inner", "destination_type=exchange")
    made = {queue["name"]: queue for queue in rows(admin, *here, "list", "queues")}
    assert made["q#1"]["arguments"] == {"x-max-length": 7}
    assert made["quorate"]["type"] == "quorum"
    assert [u["tags"] for u in rows(admin, "list", "users") if u["name"] == "ada"] == [
        ["management", "monitoring"]
    ]
    bound = [b for b in rows(admin, *here, "list", "bindings") if b["source"]]
    assert {(b["source"], b["destination"], b["properties_key"]) for b in bound} == {
        ("x y", "q#1", "order.%2A"),
        ("x y", "inner", "~"),
    }
    admin(*here, "delete", "binding", "source=x y", "destination_type=queue", "destination=q#1",
          "properties_key=order.%2A")  # fmt: skip
    admin(*here, "delete", "binding", "source=x y", "destination_type=exchange", "destination=inner")
    assert [b for b in rows(admin, *here, "list", "bindings") if b["source"]] == []
    admin(*here, "delete", "queue", "name=q#1")
    admin(*here, "delete", "exchange", "name=x y")
    admin("delete", "permission", "vhost=v/1", "user=ada")
    admin("delete", "user", "name=ada")
    admin("delete", "vhost", "name=v/1")
    assert "v/1" not in [vhost["name"] for vhost in rows(admin, "list", "vhosts")]


def test_policies_parameters_and_limits_are_declared_and_deleted(admin: Admin) -> None:
    admin("declare", "policy", "name=ttl", "pattern=^t", 'definition={"message-ttl": 5}', "priority=3")
    admin("declare", "operator_policy", "name=cap", "pattern=^t", 'definition={"max-length": 9}')
    admin("declare", "vhost_limit", "vhost=/", "name=max-connections", "value=99")
    admin("declare", "parameter", "component=federation", "name=f", 'value={"x": [1]}')
    assert [p["priority"] for p in rows(admin, "list", "policies") if p["name"] == "ttl"] == [3]
    assert "cap" in [p["name"] for p in rows(admin, "list", "operator_policies")]
    [limits] = rows(admin, "list", "vhost_limits")
    assert isinstance(limits["value"], dict)
    assert limits["value"]["max-connections"] == 99
    assert {"x": [1]} in [p["value"] for p in rows(admin, "list", "parameters")]
    admin("delete", "policy", "name=ttl")
    admin("delete", "operator_policy", "name=cap")
    admin("delete", "vhost_limit", "vhost=/", "name=max-connections")
    admin("delete", "parameter", "component=federation", "name=f")
    assert "ttl" not in [p["name"] for p in rows(admin, "list", "policies")]


def test_messages_are_published_fetched_and_purged(admin: Admin, tmp_path: Path) -> None:
    admin("declare", "queue", "name=box")
    said = admin("publish", "routing_key=box", "payload=first", 'properties={"delivery_mode": 2}').stdout
    assert said == "Message published\n"
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=x").stdout
    admin("publish", "exchange=amq.default", "routing_key=box", stdin="from stdin")
    table = admin("get", "queue=box", "count=2").stdout
    assert "first" in table
    assert "from stdin" in table
    file = tmp_path / "payload"
    admin("get", "queue=box", f"payload_file={file}", "ackmode=ack_requeue_false")
    assert file.read_bytes() == b"first"
    [left] = rows(admin, "get", "queue=box", "count=5", "encoding=base64")
    assert (left["payload_encoding"], left["redelivered"]) == ("base64", True)
    assert admin("purge", "queue", "name=box").stdout == "queue purged\n"
    assert "No items" in admin("get", "queue=box").stdout


def test_a_connection_is_closed(own: BrokerProcess, admin: Admin) -> None:
    with_name = pika.ConnectionParameters(
        own.address.host, own.address.port, client_properties={"connection_name": "victim"}
    )
    connection = pika.BlockingConnection(with_name)

    def name() -> object:
        found = rows(admin, "list", "connections")
        return next((c["name"] for c in found if c.get("user_provided_name") == "victim"), None)

    assert admin("close", "connection", f"name={eventually(name)}").stdout == "connection closed\n"
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(10)


def test_definitions_are_exported_and_imported(admin: Admin, tmp_path: Path) -> None:
    admin("declare", "vhost", "name=copied")
    admin("-V", "copied", "declare", "queue", "name=inside", 'arguments={"x-message-ttl": 1000}')
    everything, one = tmp_path / "all.json", tmp_path / "one.json"
    admin("export", str(everything))
    admin("-V", "copied", "export", str(one))
    assert "copied" in [vhost["name"] for vhost in json.loads(everything.read_text())["vhosts"]]
    assert [queue["name"] for queue in json.loads(one.read_text())["queues"]] == ["inside"]
    admin("delete", "vhost", "name=copied")

    admin("import", str(everything))
    assert [q["name"] for q in rows(admin, "-V", "copied", "list", "queues")] == ["inside"]
    admin("declare", "vhost", "name=second")
    admin("-V", "second", "import", str(one))
    [found] = rows(admin, "-V", "second", "list", "queues")
    assert (found["name"], found["arguments"]) == ("inside", {"x-message-ttl": 1000})


def test_mistakes_are_reported_in_words(admin: Admin) -> None:
    admin("declare", "queue", "name=strict")
    answer = admin("declare", "queue", "name=strict", "durable=false", fails=True)
    assert "inequivalent arg 'durable'" in answer.stderr
    assert "Not found: " in admin("delete", "queue", "name=never", fails=True).stderr
    assert "Access refused: " in admin("-p", "wrong", "list", "queues", fails=True).stderr
    bad = admin("declare", "policy", "name=b", "pattern=(", 'definition={"max-length": 1}', fails=True)
    assert "regular expression" in bad.stderr
