"""RabbitMQ's resources one by one, over a real broker: what each shows, takes and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from helpers.amqp import eventually, put
from helpers.api import EVERYTHING, Api
from helpers.broker import BrokerProcess
from helpers.certificates import Authority
from pika.exceptions import ConnectionClosedByBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("resources") / "data").start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


def connect(broker: BrokerProcess, **options: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.address.host, broker.address.port, **options)
    )


# Bindings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "arguments", "spelled"),
    [
        ("", {}, "~"),
        ("order.new", {}, "order.new"),
        ("order.*", {}, "order.%2A"),
        ("a b/c~", {}, "a+b%2Fc%7E"),
        ("é", {}, "%C3%A9"),
        ("k", {"x": 1}, "k~"),
        ("", {"x": 1, "y": "z"}, "~"),
    ],
)
def test_a_binding_is_found_and_ended_by_the_key_of_its_properties(
    api: Api, key: str, arguments: dict[str, Any], spelled: str
) -> None:
    api("PUT", "/exchanges/%2F/props", {"type": "topic"})
    api("PUT", "/queues/%2F/props", {})
    between = "/bindings/%2F/e/props/q/props"
    made = api("POST", between, {"routing_key": key, "arguments": arguments})
    assert made.status_code == 201

    [found] = api.get(between)
    properties_key = found["properties_key"]
    if arguments:
        assert properties_key.startswith(spelled)
        assert len(properties_key) > len(spelled)
    else:
        assert properties_key == spelled
    assert found["arguments"] == arguments
    one = f"{between}/{quote(properties_key, safe='')}"
    assert api.get(one) == found
    assert api.get(f"/bindings/%2F/e/props/q/{made.headers['location']}") == found

    assert api("DELETE", one).status_code == 204
    assert api("DELETE", one).status_code == 404
    assert api.get(between) == []


def test_a_key_in_the_path_need_not_be_quoted_twice(api: Api) -> None:
    api("PUT", "/exchanges/%2F/once", {"type": "topic"})
    api("PUT", "/queues/%2F/once", {})
    api("POST", "/bindings/%2F/e/once/q/once", {"routing_key": "order.*"})
    assert api("DELETE", "/bindings/%2F/e/once/q/once/order.%2A").status_code == 204


def test_bindings_are_listed_from_every_side(api: Api) -> None:
    for name in ("from", "to"):
        api("PUT", f"/exchanges/%2F/{name}", {"type": "fanout"})
    api("PUT", "/queues/%2F/sided", {})
    api("POST", "/bindings/%2F/e/from/e/to", {})
    api("POST", "/bindings/%2F/e/to/q/sided", {"routing_key": "k"})

    def ends(path: str) -> list[tuple[str, str, str]]:
        return [(b["source"], b["destination"], b["destination_type"]) for b in api.get(path)]

    assert ends("/exchanges/%2F/from/bindings/source") == [("from", "to", "exchange")]
    assert ends("/exchanges/%2F/to/bindings/destination") == [("from", "to", "exchange")]
    assert ends("/queues/%2F/sided/bindings") == [("", "sided", "queue"), ("to", "sided", "queue")]
    assert ends("/bindings/%2F/e/from/e/to") == [("from", "to", "exchange")]
    assert ends("/bindings/%2F/e/amq.default/q/sided") == [("", "sided", "queue")]
    assert ("", "sided", "queue") in ends("/exchanges/%2F/amq.default/bindings/source")
    assert ("to", "sided", "queue") in ends("/bindings")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/bindings/%2F/e/none/q/sided", 404),
        ("/bindings/%2F/e/amq.direct/q/none", 404),
        ("/bindings/%2F/e/amq.direct/x/sided", 404),
        ("/bindings/%2F/e/amq.direct/e/none", 404),
    ],
)
def test_a_binding_between_what_is_not_there_is_404(api: Api, path: str, status: int) -> None:
    assert api("POST", path, {"routing_key": "k"}).status_code == status
    assert api("GET", path).status_code == status


# Queues and exchanges -----------------------------------------------------------------------------------


def test_queues_are_paged_sorted_and_searched(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/vhosts/pages", {})
    for number in range(12):
        api("PUT", f"/queues/pages/n{number:02}", {"durable": False})
    with connect(broker, virtual_host="pages") as connection:
        put(connection.channel(), "n07", b"x", b"y")
        eventually(lambda: api.get("/queues/pages/n07")["messages"] == 2)
    page = api.get("/queues/pages?page=2&page_size=5")
    assert [queue["name"] for queue in page["items"]] == [f"n{number:02}" for number in range(5, 10)]
    assert (page["total_count"], page["page_count"]) == (12, 3)
    first = api.get("/queues/pages?page=1&page_size=1&sort=messages&sort_reverse=true")["items"][0]
    assert (first["name"], first["messages_ready"]) == ("n07", 2)
    found = api.get("/queues/pages?page=1&name=n1.%24&use_regex=true&columns=name")
    assert found["items"] == [{"name": "n10"}, {"name": "n11"}]
    assert (found["filtered_count"], found["total_count"]) == (2, 12)
    rates = api.get("/queues/pages?sort=message_stats.publish_details.rate&sort_reverse=true&columns=name")
    assert len(rates) == 12
    assert api("GET", "/queues/pages?page=7").status_code == 400
    assert api("GET", "/queues/none?page=1").status_code == 404


def test_a_queue_shows_its_consumers_with_their_channels(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/queues/%2F/seen", {})
    with connect(broker, client_properties={"connection_name": "watcher"}) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=3)
        tag = channel.basic_consume("seen", lambda *_: None)
        [found] = api.get("/queues/%2F/seen")["consumer_details"]
        assert (found["consumer_tag"], found["prefetch_count"], found["ack_required"]) == (tag, 3, True)
        details = found["channel_details"]
        assert details["name"] == f"{details['connection_name']} (1)"
        assert found in api.get("/consumers/%2F")
        one = api.get(f"/channels/{quote(details['name'], safe='')}")
        assert (one["consumer_count"], one["consumer_details"]) == (1, [found])
        listed = api.get(f"/connections/{quote(details['connection_name'], safe='')}/channels")
        assert [c["name"] for c in listed] == [details["name"]]
        assert api.get("/vhosts/%2F/channels")[0]["name"] == details["name"]
        assert [c["user_provided_name"] for c in api.get("/vhosts/%2F/connections")] == ["watcher"]
        assert [c["user_provided_name"] for c in api.get("/connections/username/guest")] == ["watcher"]
        assert api.get("/connections/username/nobody") == []


def test_an_exclusive_queue_names_its_owner(api: Api, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare("mine", exclusive=True)
        shown = api.get("/queues/%2F/mine")
        [connection_name] = [c["name"] for c in api.get("/connections")]
        assert (shown["exclusive"], shown["owner_pid_details"]["name"]) == (True, connection_name)


def test_connections_are_closed_with_the_reason_that_was_given(api: Api, broker: BrokerProcess) -> None:
    first, second = connect(broker), connect(broker)
    names = eventually(lambda: len(found := api.get("/connections?columns=name")) == 2 and found)
    path = f"/connections/{quote(names[0]['name'], safe='')}"
    assert api("DELETE", path, headers={"X-Reason": "l" * 5000}).status_code == 204
    assert api("DELETE", "/connections/username/guest", headers={"X-Reason": "dinner"}).status_code == 204
    told = []
    for connection in (first, second):
        with pytest.raises(ConnectionClosedByBroker) as closed:
            connection.process_data_events(10)
        told.append(closed.value.reply_text)
    assert sorted(told) == ["CONNECTION_FORCED - dinner", "CONNECTION_FORCED - " + "l" * 200]
    assert eventually(lambda: api("DELETE", path).status_code == 404)


def test_a_visitor_sees_the_connections_of_their_own_user_only(api: Api, broker: BrokerProcess) -> None:
    guest = connect(broker)
    visitor = api.user("management")
    assert visitor.login is not None
    own = connect(broker, credentials=pika.PlainCredentials(*visitor.login))
    assert [c["user"] for c in visitor.get("/connections")] == [visitor.login[0]]
    assert visitor("DELETE", "/connections/username/guest").status_code == 204
    guest.process_data_events(0.2)
    assert guest.is_open
    assert len(api.get("/connections")) == 2
    own.close()
    guest.close()


def test_who_sees_the_connections_of_others_does_not_close_them(api: Api, broker: BrokerProcess) -> None:
    guest = connect(broker)
    watcher = api.user("monitoring")
    [shown] = watcher.get("/connections")
    assert watcher("DELETE", f"/connections/{quote(shown['name'], safe='')}").status_code == 401
    assert watcher("DELETE", "/connections/username/guest").status_code == 401
    guest.process_data_events(0.2)
    assert guest.is_open
    guest.close()


def test_actions_of_mirrored_queues_are_taken_and_others_refused(api: Api) -> None:
    api("PUT", "/queues/%2F/acted", {"arguments": []})
    assert api("POST", "/queues/%2F/acted/actions", {"action": "sync"}).status_code == 204
    assert api("POST", "/queues/%2F/acted/actions", {"action": "fly"}).status_code == 400


def test_names_that_amqp_cannot_say_are_refused_and_odd_ones_are_kept(api: Api) -> None:
    long = "n" * 256
    for path in (f"/queues/%2F/{long}", f"/exchanges/%2F/{long}"):
        answer = api("PUT", path, {})
        assert (answer.status_code, "255 bytes" in answer.json()["reason"]) == (400, True)
    odd = "%FF%3Cb%3E%0C%C3%A9"
    assert api("PUT", f"/queues/%2F/{odd}", {}).status_code == 201
    made = api("POST", f"/bindings/%2F/e/amq.direct/q/{odd}", {"routing_key": "<k>"})
    assert made.status_code == 201
    assert api.get(f"/bindings/%2F/e/amq.direct/q/{made.headers['location']}")["routing_key"] == "<k>"
    assert api.get(f"/queues/%2F/{odd}")["name"] == "?<b>\fé"
    assert "?<b>\fé" in [queue["name"] for queue in api.get("/queues")]
    assert api("DELETE", f"/queues/%2F/{odd}").status_code == 204


# Users, permissions, virtual hosts ------------------------------------------------------------------------


def test_users_are_deleted_together_or_not_at_all(api: Api) -> None:
    for name in ("bulk1", "bulk2"):
        api("PUT", f"/users/{name}", {"password": "x", "tags": ""})
    without = [user["name"] for user in api.get("/users/without-permissions")]
    assert {"bulk1", "bulk2"} <= set(without)
    assert "guest" not in without
    assert api("POST", "/users/bulk-delete", {"users": ["bulk1", "none"]}).status_code == 400
    assert api("GET", "/users/bulk1").status_code == 200
    assert api("POST", "/users/bulk-delete", {"users": ["guest"]}).status_code == 400
    assert api("POST", "/users/bulk-delete", {"users": [7]}).status_code == 400
    assert api("POST", "/users/bulk-delete", {"users": ["bulk1", "bulk2"]}).status_code == 204
    assert api("GET", "/users/bulk2").status_code == 404


def test_permissions_of_a_user_that_is_not_there_are_400(api: Api) -> None:
    assert api("PUT", "/permissions/%2F/nobody", EVERYTHING).status_code == 400


def test_a_virtual_host_keeps_what_a_change_does_not_name(api: Api) -> None:
    api("PUT", "/vhosts/described", {"description": "first", "tags": "a, b"})
    assert api("PUT", "/vhosts/described", {"description": "second"}).status_code == 204
    found = api.get("/vhosts/described")
    assert (found["description"], found["tags"]) == ("second", ["a", "b"])
    assert found["metadata"] == {"description": "second", "tags": ["a", "b"]}
    node = api.get("/overview")["node"]
    assert api("POST", f"/vhosts/described/start/{node}").status_code == 204
    assert api("POST", "/vhosts/described/start/other").status_code == 400
    assert api("PUT", "/vhosts/described", {"tracing": True}).status_code == 400
    assert api("PUT", f"/vhosts/{'x' * 256}", {}).status_code == 400


# Policies, limits, parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["policies", "operator-policies"])
def test_a_policy_is_set_applied_shown_and_cleared(api: Api, path: str) -> None:
    queue = f"ruled-by-{path}"
    api("PUT", f"/queues/%2F/{queue}", {})
    body = {"pattern": f"^{queue}$", "definition": {"max-length": 5}, "priority": "2", "apply-to": "queues"}
    one = f"/{path}/%2F/short"
    assert api("PUT", one, body).status_code == 201
    assert api("PUT", one, body).status_code == 204
    expected = {**body, "priority": 2, "vhost": "/", "name": "short"}
    assert api.get(one) == expected
    assert api.get(f"/{path}") == [expected]
    assert api.get(f"/{path}/%2F?page=1")["items"] == [expected]
    shown = api.get(f"/queues/%2F/{queue}")
    assert shown["policy" if path == "policies" else "operator_policy"] == "short"
    assert shown["effective_policy_definition"] == {"max-length": 5}

    assert api("DELETE", one).status_code == 204
    assert api("DELETE", one).status_code == 404
    assert api.get(f"/queues/%2F/{queue}")["effective_policy_definition"] == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pattern": "("}, "regular expression"),
        ({"pattern": None}, "'pattern' is missing"),
        ({"definition": {"nonsense": 1}}, "not recognised"),
        ({"definition": {"max-length": "x"}}, "not a valid"),
        ({"priority": "high"}, "'priority' must be a number"),
        ({"apply-to": "nobody"}, "apply-to"),
    ],
)
def test_a_policy_that_cannot_be_is_400_with_a_reason(api: Api, change: dict[str, Any], words: str) -> None:
    body = {"pattern": "a", "definition": {"max-length": 1}, "priority": 0, **change}
    answer = api("PUT", "/policies/%2F/bad", body)
    assert answer.status_code == 400
    assert words in answer.json()["reason"]
    assert api("GET", "/policies/%2F/bad").status_code == 404


def test_policies_need_a_policymaker_and_operator_policies_an_administrator(api: Api) -> None:
    body = {"pattern": "a", "definition": {"max-length": 1}}
    assert api.user("management")("PUT", "/policies/%2F/may", body).status_code == 401
    maker = api.user("policymaker")
    assert maker("PUT", "/policies/%2F/may", body).status_code == 201
    assert maker("PUT", "/operator-policies/%2F/may", body).status_code == 401
    value = {"value": {"pattern": "a", "definition": {"max-length": 1}, "priority": 0}}
    assert maker("PUT", "/parameters/operator_policy/%2F/may", value).status_code == 401
    assert maker("DELETE", "/policies/%2F/may").status_code == 204


def test_who_only_sees_a_virtual_host_sets_no_policies_or_parameters_there(api: Api) -> None:
    api("PUT", "/vhosts/seen", {})
    body = {"pattern": ".*", "definition": {"max-length": 0}}
    api("PUT", "/policies/seen/own", body)
    api("PUT", "/parameters/any/seen/own", {"value": 1})
    maker = api.user("policymaker,monitoring")
    assert [one["name"] for one in maker.get("/policies/seen")] == ["own"]
    assert maker("PUT", "/policies/seen/foreign", body).status_code == 401
    assert maker("DELETE", "/policies/seen/own").status_code == 401
    assert maker("PUT", "/parameters/any/seen/foreign", {"value": 1}).status_code == 401
    assert maker("DELETE", "/parameters/any/seen/own").status_code == 401
    assert maker("PUT", "/policies/%2F/mine", body).status_code == 201
    assert maker("DELETE", "/policies/%2F/mine").status_code == 204
    assert [one["name"] for one in api.get("/policies/seen")] == ["own"]
    assert api("DELETE", "/vhosts/seen").status_code == 204


def test_limits_are_set_shown_and_cleared(api: Api) -> None:
    api("PUT", "/vhosts/limited", {})
    assert api("PUT", "/vhost-limits/limited/max-queues", {"value": 2}).status_code == 204
    assert api("PUT", "/vhost-limits/limited/max-connections", {"value": "7"}).status_code == 204
    expected = {"vhost": "limited", "value": {"max-queues": 2, "max-connections": 7}}
    assert api.get("/vhost-limits/limited") == [expected]
    assert expected in api.get("/vhost-limits")
    for name in ("a", "b"):
        assert api("PUT", f"/queues/limited/{name}", {}).status_code == 201
    over = api("PUT", "/queues/limited/c", {})
    assert (over.status_code, "limit" in over.json()["reason"]) == (400, True)
    for name in ("max-queues", "max-connections", "max-connections"):
        assert api("DELETE", f"/vhost-limits/limited/{name}").status_code == 204
    assert api.get("/vhost-limits/limited") == []
    assert api("PUT", "/vhost-limits/limited/max-hats", {"value": 1}).status_code == 400
    assert api("PUT", "/vhost-limits/limited/max-queues", {"value": "some"}).status_code == 400
    assert api("PUT", "/vhost-limits/none/max-queues", {"value": 1}).status_code == 404


def test_limits_of_users_are_shown_with_them(api: Api) -> None:
    api("PUT", "/users/slim", {"password": "x", "tags": ""})
    assert api("PUT", "/user-limits/slim/max-channels", {"value": 3}).status_code == 204
    assert api.get("/user-limits/slim") == [{"user": "slim", "value": {"max-channels": 3}}]
    assert api.get("/users/slim")["limits"] == {"max-channels": 3}
    assert api("DELETE", "/user-limits/slim/max-channels").status_code == 204
    assert api.get("/user-limits") == []
    assert api("PUT", "/user-limits/nobody/max-channels", {"value": 3}).status_code == 404


def test_parameters_are_kept_and_some_are_more_than_that(api: Api) -> None:
    one = "/parameters/federation-upstream/%2F/far"
    assert api("PUT", one, {"value": {"uri": "amqp://far"}}).status_code == 201
    assert api.get(one)["value"] == {"uri": "amqp://far"}
    assert api("PUT", one, {"value": 7}).status_code == 204
    assert [p["name"] for p in api.get("/parameters/federation-upstream/%2F")] == ["far"]

    limits = "/parameters/vhost-limits/%2F/limits"
    assert api("PUT", limits, {"value": {"max-queues": 5000}}).status_code == 201
    assert api.get("/vhost-limits/%2F")[0]["value"] == {"max-queues": 5000}
    policy = {"pattern": "^zz", "definition": {"max-length": 1}, "priority": 0, "apply-to": "queues"}
    assert api("PUT", "/parameters/operator_policy/%2F/op", {"value": policy}).status_code == 201
    assert api.get("/operator-policies/%2F/op")["pattern"] == "^zz"
    assert {p["component"] for p in api.get("/parameters")} >= {"vhost-limits", "operator_policy"}
    for path in (one, limits, "/parameters/operator_policy/%2F/op"):
        assert api("DELETE", path).status_code == 204
        assert api("DELETE", path).status_code == 404
    assert api.get("/operator-policies") == []
    assert api("PUT", "/parameters/policy/%2F/p", {"value": policy}).status_code == 400
    assert api("PUT", one, {}).status_code == 400


def test_global_parameters_and_the_name_of_the_cluster(api: Api) -> None:
    assert api("PUT", "/global-parameters/motto", {"value": {"de": "Alles fließt"}}).status_code == 201
    assert api.get("/global-parameters/motto") == {"name": "motto", "value": {"de": "Alles fließt"}}
    assert api("DELETE", "/global-parameters/motto").status_code == 204
    assert api("GET", "/global-parameters/motto").status_code == 404
    assert api("PUT", "/cluster-name", {"name": "harbour"}).status_code == 204
    assert api.get("/cluster-name") == {"name": "harbour"}
    assert api.get("/overview")["cluster_name"] == "harbour"
    assert api("PUT", "/cluster-name", {"name": ""}).status_code == 400
    assert api.user("management")("PUT", "/cluster-name", {"name": "pirate"}).status_code == 401


# The broker as a whole ---------------------------------------------------------------------------------------


def test_the_overview_of_a_visitor_counts_only_what_they_see(api: Api) -> None:
    api("PUT", "/vhosts/narrow", {})
    api("PUT", "/queues/narrow/only", {})
    visitor = api.user("management", vhost="narrow")
    assert visitor.get("/overview")["object_totals"]["queues"] == 1
    assert visitor.get("/overview")["object_totals"]["connections"] == 0
    assert api.get("/overview")["object_totals"]["queues"] > 1


def test_rates_and_samples_are_there_when_asked_for(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/queues/%2F/fast", {"durable": False})
    with connect(broker) as connection:
        put(connection.channel(), "fast", *[b"x"] * 50)
    eventually(lambda: api.get("/queues/%2F/fast")["message_stats"].get("publish") == 50)
    spans = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"

    def newest() -> Any:
        found = api.get(f"/queues/%2F/fast?{spans}")
        samples = found["messages_details"].get("samples")
        return found if samples and samples[0]["sample"] == 50 else None

    found = eventually(newest, 15)
    assert found["message_stats"]["publish_details"]["samples"]
    assert found["message_stats"]["ack"] == 0
    assert "samples" in api.get(f"/overview?{spans}")["queue_totals"]["messages_details"]
    assert api("GET", "/queues/%2F/fast?lengths_age=x&lengths_incr=5").status_code == 400


def test_nodes_are_shown_to_those_who_watch(api: Api) -> None:
    [node] = api.get("/nodes")
    assert api.get(f"/nodes/{node['name']}")["os_pid"] == node["os_pid"]
    assert node["running"] is True
    assert node["fd_used"] > 3
    assert node["disk_free"] > 0
    assert api("GET", "/nodes/none").status_code == 404
    assert api.user("management")("GET", "/nodes").status_code == 401
    assert api.user("monitoring")("GET", "/nodes").status_code == 200


def test_health_checks_answer_ok_or_503_with_a_reason(api: Api, broker: BrokerProcess) -> None:
    checks = "/health/checks"
    for name in (
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "node-is-mirror-sync-critical",
        "node-is-quorum-critical",
        "node-is-running",
        "is-in-service",
        "ready-to-serve-clients",
        "certificate-expiration/1/months",
        f"port-listener/{broker.address.port}",
        "protocol-listener/amqp091",
        "protocol-listener/http",
    ):
        assert api.get(f"{checks}/{name}")["status"] == "ok", name
    for name, missing in (("port-listener/1", 1), ("protocol-listener/mqtt", "mqtt")):
        answer = api("GET", f"{checks}/{name}")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert answer.json()["missing"] == missing
    for name in ("port-listener/x", "certificate-expiration/1/eons", "certificate-expiration/soon/days"):
        assert api("GET", f"{checks}/{name}").status_code == 400
    assert api("GET", f"{checks}/nonsense").status_code == 404
    for path in ("/health/live", "/health/ready"):
        assert api.anonymous.get(path) == {"status": "ok"}


def test_certificates_for_clients_and_for_members_that_end_soon_are_told(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    for_clients, for_members = authority.issue("server", days=20), authority.issue("member", days=3)
    words = ("--tls.certificate", str(for_clients), "--cluster.peer-certificate", str(for_members))
    process = BrokerProcess(tmp_path / "data", *words).start()
    try:
        api = Api(process.admin)
        checks = "/health/checks/certificate-expiration"
        assert api.get(f"{checks}/2/days")["status"] == "ok"
        for within, files in (("1/weeks", [for_members]), ("1/months", [for_clients, for_members])):
            answer = api("GET", f"{checks}/{within}")
            assert answer.status_code == 503
            assert [one["cert_file"] for one in answer.json()["expired"]] == [str(file) for file in files]
    finally:
        process.close()


def test_the_aliveness_test_leaves_nothing_behind(api: Api) -> None:
    before = api.get("/queues?columns=name")
    assert api.get("/aliveness-test/%2F") == {"status": "ok"}
    assert api.get("/queues?columns=name") == before
    assert api("GET", "/aliveness-test/none").status_code == 404


def test_flags_extensions_and_what_is_not_offered(api: Api) -> None:
    assert api.get("/extensions") == []
    assert api.get("/deprecated-features") == []
    assert api.get("/deprecated-features/used") == []
    assert "stream_queue" in [flag["name"] for flag in api.get("/feature-flags")]
    assert api("PUT", "/feature-flags/stream_queue/enable").status_code == 204
    assert api("PUT", "/feature-flags/time_travel/enable").status_code == 400
    assert api.anonymous.get("/auth")["oauth_enabled"] is False
    answer = api("POST", "/rebalance/queues")
    assert (answer.status_code, "rebalanced" in answer.json()["reason"]) == (400, True)
