"""/metrics of a real broker: what Prometheus reads, RabbitMQ's dashboards use, and ours."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from helpers.amqp import eventually
from helpers.broker import BrokerProcess
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from system.cluster.cluster import Cluster

from tidemark import client
from tidemark.admin.prometheus.families import GROUPS
from tidemark.admin.prometheus.names import EVERY, FRONT, TOTALS

ROOT = Path(__file__).resolve().parents[2]
GUEST = ("guest", "guest")
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
ONLY_IN_A_CLUSTER = {
    f"tidemark_cluster_member_{word}" for word in ("lag_sequences", "unacked_bytes", "over_budget_ratio")
}
NOT_REPORTED = {
    f"tidemark_{prefix}pipeline_sink_{word}"
    for prefix in ("", "detailed_")
    for word in (
        "batches_total", "dead_letters_total", "restarts_total", "rows_per_second", "lag_rows", "lag_seconds",
    )
}  # fmt: skip
"""The pipeline of the fixture says only how many rows it has."""

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(broker: BrokerProcess, path: str = "/metrics", **options: Any) -> httpx.Response:
    options.setdefault("auth", GUEST)
    return httpx.get(f"http://{broker.admin.host}:{broker.admin.port}{path}", timeout=20, **options)


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in read_text(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def told(broker: BrokerProcess, path: str = "/metrics") -> Samples:
    answer = scrape(broker, path)
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


def value(found: Samples, name: str, **labels: str) -> float:
    [fitting] = [number for given, number in found[name] if labels.items() <= given.items()]
    return fitting


DETAILED = "/metrics/detailed?" + "&".join(f"family={name}" for name in GROUPS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with some traffic behind it and a client that stays."""
    process = BrokerProcess(tmp_path_factory.mktemp("metrics") / "data").start()
    with traffic(process):
        yield process
    process.stop()


def traffic(process: BrokerProcess) -> pika.BlockingConnection:
    """Every way of a message once; returns the connection, which is open."""
    where = process.address
    connection = pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare('a"b\\c <b>', durable=True)
    for number in range(20):
        body = b"x" * (number * 100)
        channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("amq.topic", "nobody", b"lost")
    channel.basic_get("orders", auto_ack=True)
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(method.delivery_tag)
    channel.basic_get('a"b\\c <b>')
    for method, _, _ in channel.consume("orders", inactivity_timeout=5):
        channel.basic_ack(method.delivery_tag)
        if method.delivery_tag >= 7:
            break
    channel.cancel()
    with client.connect(f"tidemark://guest:guest@{where.host}:{where.port}/") as db:
        prices = db.stream("prices", create=True)
        prices.put_many([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
        prices.pin("audit")
        prices.put(b"a", b"4")
        prices.register("ledger")
        report = {"name": "to-lake", "host": "h1", "state": "running", "sinks": [{"name": "lake", "rows": 5}]}
        db.stream("tidemark.pipelines", create=True).put(b"to-lake", json.dumps(report).encode())
        assert len(list(prices.snapshot())) == 2
    return connection


def test_counts_are_those_of_what_was_done(broker: BrokerProcess) -> None:
    found = told(broker)
    assert value(found, "rabbitmq_global_messages_received_total", protocol="amqp091") == 21
    assert value(found, "rabbitmq_global_messages_confirmed_total", protocol="amqp091") == 21
    assert value(found, "rabbitmq_global_messages_unroutable_dropped_total", protocol="amqp091") == 1
    assert value(found, "rabbitmq_global_messages_routed_total", protocol="amqp091") == 20
    classic = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
    assert value(found, "rabbitmq_global_messages_delivered_get_auto_ack_total", **classic) == 1
    assert value(found, "rabbitmq_global_messages_delivered_get_manual_ack_total", **classic) == 1
    assert value(found, "rabbitmq_global_messages_get_empty_total", **classic) == 1
    assert value(found, "rabbitmq_global_messages_acknowledged_total", **classic) == 6
    assert value(found, "rabbitmq_global_messages_received_total", protocol="stream") == 5
    assert value(found, "rabbitmq_global_messages_delivered_total", protocol="stream") >= 2
    assert value(found, "rabbitmq_queue_messages_ready") == 13 + 3  # a stream's messages are there, too
    assert value(found, "rabbitmq_queues") == 4
    assert value(found, "rabbitmq_connections") == 1
    assert value(found, "rabbitmq_message_size_bytes_count") == 20
    assert value(found, "rabbitmq_message_size_bytes_sum") == sum(range(20)) * 100
    assert value(found, "rabbitmq_message_size_bytes_bucket", le="100.0") == 2
    assert value(found, "tidemark_stream_messages") == 3
    assert value(found, "tidemark_stream_pins") == 1
    assert value(found, "tidemark_stream_superseded_messages") >= 1
    assert value(found, "tidemark_journal_sync_seconds_count") > 0
    assert value(found, "tidemark_journal_durable_sequence") > 20
    assert value(found, "tidemark_turn_seconds_count") > 0


def test_single_objects_are_named_in_per_object_and_detailed_and_nowhere_else(broker: BrokerProcess) -> None:
    per_object, detailed = told(broker, "/metrics/per-object"), told(broker, DETAILED)
    for found, prefix in ((per_object, "rabbitmq_"), (detailed, "rabbitmq_detailed_")):
        assert value(found, f"{prefix}queue_messages_ready", queue="orders", vhost="/") == 13
        assert value(found, f"{prefix}queue_messages_ready", queue='a"b\\c <b>') == 0
        assert value(found, f"{prefix}queue_messages_acked_total", queue="orders") == 6
        assert value(found, f"{prefix}exchange_messages_published_total", exchange="amq.topic") == 1
        assert value(found, f"{prefix}channel_messages_published_total", channel="1") == 21
    assert value(detailed, "tidemark_detailed_stream_messages", stream="prices") == 2
    assert value(detailed, "tidemark_detailed_pin_kept_bytes", stream="prices", pin="audit") > 0
    assert value(detailed, "tidemark_detailed_pipeline_sink_rows_total", pipeline="to-lake", sink="lake") == 5
    assert value(detailed, "tidemark_detailed_mark_lag_sequences", stream="prices", consumer="ledger") > 0
    named = {label for _, each in told(broker).items() for labels, _ in each for label in labels.values()}
    assert not named & {"orders", "prices", "audit"}


def test_detailed_tells_only_the_families_and_virtual_hosts_that_were_asked_for(
    broker: BrokerProcess,
) -> None:
    found = told(broker, "/metrics/detailed?family=queue_coarse_metrics&vhost=%2F")
    assert {name for name in found if name.startswith("rabbitmq_detailed")} == {
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
    }
    assert "rabbitmq_detailed_queue_messages" not in told(
        broker, "/metrics/detailed?family=queue_coarse_metrics&vhost=other"
    )
    refused = scrape(broker, "/metrics/detailed?family=nonsense")
    assert refused.status_code == 400 and "queue_coarse_metrics" in refused.json()["reason"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", DETAILED])
def test_openmetrics_is_told_to_those_who_accept_it_and_is_strictly_right(
    broker: BrokerProcess, path: str
) -> None:
    answer = scrape(broker, path, headers=OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n") and answer.text.count("# EOF") == 1
    names = [family.name for family in read_openmetrics(answer.text)]
    assert len(names) == len(set(names)) > 10


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "text/html",
        "application/openmetrics-text; version=x.y",
        "*/*;q=zz",
        "text/plain; version=1.0.0; escaping=nonsense",
        "application/openmetrics-text; version=9.9.9; escaping=<b>",
        "text/plain;version=1e9",
    ],
)
def test_whatever_is_accepted_there_is_an_answer(broker: BrokerProcess, accept: str) -> None:
    answer = scrape(broker, headers={"accept": accept})
    assert answer.status_code == 200
    assert "rabbitmq_queues" in answer.text


def test_a_family_of_many_objects_is_whole(own_broker: BrokerProcess) -> None:
    where = own_broker.address
    with pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port)) as connection:
        channel = connection.channel()
        for number in range(1234):
            channel.queue_declare(f"q{number}")
        answer = scrape(own_broker, "/metrics/per-object")
        found = samples(answer.text)
        assert len(found["rabbitmq_queue_messages_ready"]) == 1234
        assert answer.text.count("# TYPE rabbitmq_queue_messages_ready gauge") == 1
        strict = scrape(own_broker, "/metrics/per-object", headers=OPENMETRICS).text
        assert (
            sum(len(f.samples) for f in read_openmetrics(strict) if f.name == "rabbitmq_queue_messages")
            == 1234
        )
        assert value(told(own_broker), "rabbitmq_queues") == 1234


# Who may read them --------------------------------------------------------------------------------------------


def with_user(broker: BrokerProcess, name: str, tags: str) -> tuple[str, str]:
    url = f"http://{broker.admin.host}:{broker.admin.port}/api/users/{name}"
    assert httpx.put(url, json={"password": "p", "tags": tags}, auth=GUEST).status_code in (201, 204)
    return name, "p"


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed"])
def test_metrics_need_a_user_who_may_monitor_unless_the_setting_says_otherwise(
    broker: BrokerProcess, path: str
) -> None:
    assert scrape(broker, path, auth=None).status_code == 401
    assert scrape(broker, path, auth=("guest", "wrong")).status_code == 401
    assert scrape(broker, path, auth=with_user(broker, "manager", "management")).status_code in (401, 403)
    assert scrape(broker, path, auth=with_user(broker, "watcher", "monitoring")).status_code == 200


@pytest.mark.parametrize(
    ("access", "sums", "names"), [("login", 401, 401), ("totals", 200, 401), ("open", 200, 200)]
)
def test_the_setting_says_who_may_read_them(tmp_path: Path, access: str, sums: int, names: int) -> None:
    process = BrokerProcess(tmp_path / "data", "--admin.metrics", access).start()
    try:
        assert scrape(process, "/metrics", auth=None).status_code == sums
        assert scrape(process, "/metrics/per-object", auth=None).status_code == names
        assert scrape(process, "/metrics/detailed?family=queue_metrics", auth=None).status_code == names
    finally:
        process.stop()


def test_metrics_can_only_be_read(broker: BrokerProcess) -> None:
    url = f"http://{broker.admin.host}:{broker.admin.port}/metrics"
    assert httpx.post(url, auth=GUEST).status_code == 405
    assert httpx.delete(url, auth=GUEST).status_code == 405


# Dashboards -----------------------------------------------------------------------------------------------------

RABBITMQ_OVERVIEW = {
    "rabbitmq_build_info": {"rabbitmq_version", "erlang_version"},
    "rabbitmq_channels": set(),
    "rabbitmq_channels_closed_total": set(),
    "rabbitmq_channels_opened_total": set(),
    "rabbitmq_connections": set(),
    "rabbitmq_connections_closed_total": set(),
    "rabbitmq_connections_opened_total": set(),
    "rabbitmq_disk_space_available_bytes": set(),
    "rabbitmq_disk_space_available_limit_bytes": set(),
    "rabbitmq_erlang_uptime_seconds": set(),
    "rabbitmq_global_consumers": set(),
    "rabbitmq_global_messages_acknowledged_total": set(),
    "rabbitmq_global_messages_confirmed_total": set(),
    "rabbitmq_global_messages_delivered_consume_auto_ack_total": set(),
    "rabbitmq_global_messages_delivered_consume_manual_ack_total": set(),
    "rabbitmq_global_messages_delivered_get_auto_ack_total": set(),
    "rabbitmq_global_messages_delivered_get_manual_ack_total": set(),
    "rabbitmq_global_messages_delivered_total": set(),
    "rabbitmq_global_messages_get_empty_total": set(),
    "rabbitmq_global_messages_received_confirm_total": set(),
    "rabbitmq_global_messages_received_total": set(),
    "rabbitmq_global_messages_redelivered_total": set(),
    "rabbitmq_global_messages_routed_total": set(),
    "rabbitmq_global_messages_unroutable_dropped_total": set(),
    "rabbitmq_global_messages_unroutable_returned_total": set(),
    "rabbitmq_global_publishers": set(),
    "rabbitmq_identity_info": {"rabbitmq_cluster", "rabbitmq_node", "rabbitmq_endpoint"},
    "rabbitmq_message_size_bytes_bucket": {"le"},
    "rabbitmq_message_size_bytes_count": set(),
    "rabbitmq_message_size_bytes_sum": set(),
    "rabbitmq_process_max_fds": set(),
    "rabbitmq_process_open_fds": set(),
    "rabbitmq_process_resident_memory_bytes": set(),
    "rabbitmq_queue_messages_ready": set(),
    "rabbitmq_queue_messages_unacked": set(),
    "rabbitmq_queues": set(),
    "rabbitmq_queues_created_total": set(),
    "rabbitmq_queues_declared_total": set(),
    "rabbitmq_queues_deleted_total": set(),
    "rabbitmq_resident_memory_limit_bytes": set(),
}
"""Every metric that the queries of RabbitMQ's overview dashboard (grafana.com 10991) use, with the labels they name
besides those that Prometheus adds (instance, job, namespace)."""
RABBITMQ_SIZES = {"100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"}


def test_every_query_of_rabbitmqs_overview_dashboard_finds_its_metric_and_labels(
    broker: BrokerProcess,
) -> None:
    found = told(broker)
    missing = {name for name in RABBITMQ_OVERVIEW if name not in found}
    assert missing == set()
    for name, labels in RABBITMQ_OVERVIEW.items():
        assert all(
            labels <= set(given) and all(given[each] for each in labels) for given, _ in found[name]
        ), name
    assert {given["le"] for given, _ in found["rabbitmq_message_size_bytes_bucket"]} == RABBITMQ_SIZES
    [identity] = [given for given, _ in found["rabbitmq_identity_info"]]
    assert identity["rabbitmq_endpoint"] == "aggregated"


def test_metrics_that_are_joined_with_the_identity_have_it_once(broker: BrokerProcess) -> None:
    for path in ("/metrics", "/metrics/per-object", DETAILED):
        assert len(told(broker, path)["rabbitmq_identity_info"]) == 1


DASHBOARD = ROOT / "contrib" / "grafana" / "tidemark.json"
SELECTOR = re.compile(r"\b((?:rabbitmq|tidemark|process)_[a-z0-9_]+)\b(\{[^}]*\})?")
WORDS = {"topk", "sum", "max", "rate", "by", "histogram_quantile"}


def expressions() -> list[str]:
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.extend(node[key] for key in ("expr", "definition") if isinstance(node.get(key), str))
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(json.loads(DASHBOARD.read_text("utf-8")))
    return found


def test_every_metric_of_our_dashboard_exists_after_some_traffic(broker: BrokerProcess) -> None:
    everything = told(broker) | told(broker, DETAILED)
    used = {name for text in expressions() for name, _ in SELECTOR.findall(text)}
    assert len(used) > 50
    assert used - set(everything) == ONLY_IN_A_CLUSTER


def test_our_dashboard_groups_by_labels_that_its_metrics_have(broker: BrokerProcess) -> None:
    everything = told(broker) | told(broker, DETAILED)
    for text in expressions():
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}"), text
        names = [name for name, _ in SELECTOR.findall(text) if name in everything]
        for grouped in re.findall(r"by \(([^)]*)\)", text):
            wanted = {each.strip() for each in grouped.split(",")} - {"instance", "job"}
            for name in names:
                assert all(wanted <= set(given) for given, _ in everything[name]), (name, wanted)
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert {panel["title"] for panel in panels if panel["type"] == "row"} == {
        "Overview", "Queues and clients", "Streams", "Journal", "Cluster",
    }  # fmt: skip
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel.get("targets", []):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                for name, _ in SELECTOR.findall(target["expr"]):
                    if label != "instance" and name in everything:
                        assert all(label in given for given, _ in everything[name]), (name, label)


# The docs -------------------------------------------------------------------------------------------------------


def rows_of_docs() -> dict[str, tuple[str, str]]:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    return {
        name: (kind, sentence)
        for name, kind, sentence in re.findall(
            r"^\| `((?:rabbitmq|tidemark|process)_\w+)` \| (\w+) \| (.*) \|$", text, re.M
        )
    }


def test_the_docs_list_every_metric_with_its_kind_and_sentence() -> None:
    derived = ("rabbitmq_detailed_", "tidemark_detailed_")
    wanted = {
        name: (metric.kind, metric.help) for name, metric in EVERY.items() if not name.startswith(derived)
    }
    assert rows_of_docs() == wanted


def test_a_broker_tells_every_metric_of_the_table(broker: BrokerProcess) -> None:
    found = {*told(broker), *told(broker, "/metrics/per-object"), *told(broker, DETAILED)}
    suffixes = {"histogram": ("_bucket", "_count", "_sum")}
    for name, metric in EVERY.items():
        wanted = {name + suffix for suffix in suffixes.get(metric.kind, ("",))}
        if name not in ONLY_IN_A_CLUSTER | NOT_REPORTED | set(FRONT):
            assert wanted <= found, name
    assert set(TOTALS) <= set(EVERY)


# With others -----------------------------------------------------------------------------------------------------


def test_scrapes_do_not_keep_clients_waiting(own_broker: BrokerProcess) -> None:
    """A hundred thousand samples, told in pieces: a message goes through meanwhile."""
    where = own_broker.address
    with pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(3000):
            channel.queue_declare(f"q{number}")
        scrape(own_broker, "/metrics/per-object")
        over = threading.Event()

        def scrapes() -> None:
            while not over.is_set():
                scrape(own_broker, "/metrics/per-object")

        thread = threading.Thread(target=scrapes)
        thread.start()
        try:
            slowest = 0.0
            for _ in range(200):
                began = time.monotonic()
                channel.basic_publish("", "q1", b"x")
                slowest = max(slowest, time.monotonic() - began)
        finally:
            over.set()
            thread.join()
        assert slowest < 0.5


@pytest.mark.slow
def test_members_of_a_cluster_tell_who_leads_and_who_is_behind(tmp_path: Path) -> None:
    """K-55: what health is judged by is exported."""
    cluster = Cluster(tmp_path, "standby", nodes=2)
    try:
        cluster.start()
        leader = next(seen.name for seen in cluster.look().values() if seen.state == "active")
        found = {}
        for name, member in cluster.trial.members.items():
            answer = httpx.get(f"http://{member.admin}/metrics", auth=GUEST, timeout=10)
            found[name] = samples(answer.text)
        assert value(found[leader], "tidemark_cluster_serving") == 1
        assert value(found[leader], "tidemark_cluster_members_ready") == 2
        [other] = set(found) - {leader}
        assert value(found[other], "tidemark_cluster_serving") == 0
        eventually(lambda: value(found[leader], "tidemark_cluster_member_lag_sequences", member=other) >= 0)
        assert 0 <= value(found[leader], "tidemark_cluster_member_over_budget_ratio", member=other) <= 1
        assert value(found[leader], "tidemark_cluster_epoch") == value(found[other], "tidemark_cluster_epoch")
        [info] = [given for given, _ in found[leader]["tidemark_cluster_info"]]
        assert info["leader"] == leader and info["mode"] == "standby"
    finally:
        cluster.close()
