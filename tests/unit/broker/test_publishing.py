"""Publishing: where rows of a run go, and those that need a closer look."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.broker import Broker
from tidemark.errors import AccessRefused, NotFound, NotImplementedHere, PreconditionFailed
from tidemark.model.runs import FLAGS, IMMEDIATE, PublishRun
from tidemark.model.wiring import PermissionSpec, UserSpec


@pytest.fixture
def broker() -> Broker:
    return a_broker()


@pytest.fixture
def channel(broker: Broker) -> TestChannel:
    channel = a_channel(broker)
    for name in ("q", "a", "b"):
        channel.session.declare_queue(name, durable=True)
    return channel


def joined(channel: TestChannel, *runs: PublishRun) -> PublishRun:
    """One run of several, as one socket read would bring them."""
    data, whole = b"".join(bytes(run.data) for run in runs), []
    start = 0
    for run in runs:
        for row in range(len(run)):
            spans = [
                (start + run.number(row, column), run.number(row, column + 1)) for column in (0, 2, 4, 6)
            ]
            whole.append((*spans, *(run.number(row, column) for column in (8, 9, 10))))
        start += len(run.data)
    result = PublishRun(1, data)
    for row_ in whole:
        result.add(*row_)  # type: ignore[arg-type]
    return result


# Plain runs ------------------------------------------------------------------------------------


def test_the_sequence_to_wait_for_is_that_of_the_last_message_in_the_journal(channel: TestChannel) -> None:
    assert channel.publish("q", b"transient").last_seq == 0
    persistent = channel.publish("q", b"1", b"2", delivery_mode=2)
    assert persistent.last_seq == channel.broker.arena.next_seq - 1
    assert channel.publish("q", b"transient again").last_seq == 0
    assert (persistent.returned, persistent.refused, persistent.error) == ([], [], None)


def test_a_message_to_two_queues_takes_two_sequences(channel: TestChannel) -> None:
    channel.session.bind_queue("a", "amq.fanout", "")
    channel.session.bind_queue("b", "amq.fanout", "")
    before = channel.broker.arena.next_seq
    published = channel.publish("", b"both", exchange="amq.fanout", delivery_mode=2)
    assert published.last_seq == before + 1
    assert channel.drain("a") == channel.drain("b") == [b"both"]


def test_a_message_that_nobody_wants_is_dropped_and_a_mandatory_one_returned(channel: TestChannel) -> None:
    runs = [
        channel.a_run("q", b"0"),
        channel.a_run("nobody", b"1"),
        channel.a_run("nobody", b"2", mandatory=True),
        channel.a_run("q", b"3", mandatory=True),
    ]
    published = channel.publishing.publish(joined(channel, *runs), channel.broker.now_ms)
    assert published.returned == [(2, 312, "NO_ROUTE")]
    assert published.error is None
    assert channel.drain("q") == [b"0", b"3"]


def test_a_route_follows_the_wiring(channel: TestChannel) -> None:
    channel.publish("k", b"1", exchange="amq.direct")
    channel.session.bind_queue("q", "amq.direct", "k")
    channel.publish("k", b"2", exchange="amq.direct")
    channel.session.unbind_queue("q", "amq.direct", "k")
    channel.publish("k", b"3", exchange="amq.direct")
    assert channel.drain("q") == [b"2"]


def test_publish_one_reads_its_flags_from_the_properties(channel: TestChannel) -> None:
    properties = channel.a_run("q", b"", delivery_mode=2, priority=3, expiration="50").part(0, 4)
    assert channel.publishing.publish_one("", "q", properties, b"one").last_seq > 0
    assert channel.publishing.publish_one("", "no", properties, b"x", mandatory=True).returned
    channel.turn(60)
    assert channel.drain("q") == []


# Refused rows -------------------------------------------------------------------------------------


def refused(channel: TestChannel, bad: PublishRun) -> Any:
    """Publishes a good row, the bad one and another good one; returns the error."""
    run = joined(channel, channel.a_run("q", b"before"), bad, channel.a_run("q", b"after"))
    published = channel.publishing.publish(run, channel.broker.now_ms)
    assert published.failed_row == 1
    assert channel.drain("q") == [b"before"]
    return published.error


def test_a_missing_exchange_ends_the_run_at_its_row(channel: TestChannel) -> None:
    error = refused(channel, channel.a_run("k", b"x", exchange="no-such"))
    assert isinstance(error, NotFound)
    assert str(error) == "no exchange 'no-such' in vhost '/'"


def test_immediate_is_not_implemented(channel: TestChannel) -> None:
    run = channel.a_run("q", b"x")
    spans = [(run.number(0, column), run.number(0, column + 1)) for column in (0, 2, 4, 6)]
    marked = PublishRun(1, bytes(run.data))
    marked.add(*spans, run.number(0, FLAGS) | IMMEDIATE)  # type: ignore[arg-type]
    error = refused(channel, marked)
    assert isinstance(error, NotImplementedHere)
    assert str(error) == "immediate=true"


def test_an_internal_exchange_takes_nothing_from_clients(channel: TestChannel) -> None:
    channel.session.declare_exchange(
        "inside", "fanout", passive=False, durable=False, auto_delete=False, internal=True, arguments={}
    )
    error = refused(channel, channel.a_run("", b"x", exchange="inside"))
    assert isinstance(error, AccessRefused)
    assert str(error) == "cannot publish to internal exchange 'inside' in vhost '/'"


def test_a_user_id_that_is_not_the_users_is_refused(channel: TestChannel) -> None:
    error = refused(channel, channel.a_run("q", b"x", user_id="somebody"))
    assert isinstance(error, PreconditionFailed)
    assert str(error) == "user_id property set to 'somebody' but authenticated user was 'guest'"


def test_the_own_user_id_is_welcome(channel: TestChannel) -> None:
    assert channel.publish("q", b"mine", user_id="guest").error is None
    assert channel.drain("q") == [b"mine"]


def test_an_impersonator_may_publish_in_the_name_of_others(broker: Broker, channel: TestChannel) -> None:
    broker.put(UserSpec("relay", tags=("impersonator",)))
    broker.put(PermissionSpec("relay", "/", ".*", ".*", ".*"))
    relay = a_channel(broker, user="relay")
    assert relay.publish("q", b"from her", user_id="somebody").error is None
    assert channel.drain("q") == [b"from her"]


@pytest.mark.parametrize(
    ("expiration", "problem"),
    [
        ("soon", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("", "no_integer"),
        ("99999999999999", "{value_too_large,99999999999999}"),
    ],
)
def test_an_expiration_that_is_no_number_of_milliseconds_is_refused(
    channel: TestChannel, expiration: str, problem: str
) -> None:
    error = refused(channel, channel.a_run("q", b"x", expiration=expiration))
    assert isinstance(error, PreconditionFailed)
    assert str(error) == f"invalid expiration '{expiration}': {problem}"


# Copies ----------------------------------------------------------------------------------------------


def test_copies_go_to_all_their_queues_once(channel: TestChannel) -> None:
    channel.publish("q", b"copied", headers={"CC": ["a", "q"], "BCC": ["b", "a"]})
    assert [channel.drain(name) for name in ("q", "a", "b")] == [[b"copied"]] * 3


def test_receivers_see_cc_and_never_bcc(channel: TestChannel) -> None:
    channel.publish("q", b"x", headers={"CC": ["a"], "BCC": ["b"], "other": 1}, message_id="m")
    for name in ("q", "a", "b"):
        delivery = channel.get(name)
        assert delivery is not None
        assert delivery.headers == {"CC": ["a"], "other": 1}
        assert delivery.properties.message_id == "m"


def test_a_copy_without_a_queue_for_the_first_key_is_still_routed(channel: TestChannel) -> None:
    published = channel.publish("nobody", b"x", headers={"CC": ["a"]}, mandatory=True)
    assert published.returned == []
    assert channel.drain("a") == [b"x"]


def test_copies_that_are_no_list_are_refused(channel: TestChannel) -> None:
    error = refused(channel, channel.a_run("q", b"x", headers={"CC": "a"}))
    assert str(error) == 'invalid message: {unacceptable_type_in_header,"CC",longstr}'


# Headers exchanges --------------------------------------------------------------------------------------


def test_a_headers_exchange_looks_at_every_message(channel: TestChannel) -> None:
    channel.session.bind_queue("a", "amq.headers", "", {"x-match": "all", "color": "red"})
    channel.session.bind_queue("b", "amq.headers", "", {"x-match": "any", "color": "red", "size": 1})
    channel.publish("", b"red", exchange="amq.headers", headers={"color": "red"})
    channel.publish("", b"one", exchange="amq.headers", headers={"size": 1})
    published = channel.publish("", b"none", exchange="amq.headers", mandatory=True)
    assert published.returned == [(0, 312, "NO_ROUTE")]
    assert channel.drain("a") == [b"red"]
    assert channel.drain("b") == [b"red", b"one"]


# Queues that refuse ----------------------------------------------------------------------------------------


@pytest.fixture
def full(channel: TestChannel) -> TestChannel:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.session.declare_queue("full", durable=True, arguments=arguments)
    return channel


def test_what_does_not_fit_is_refused_row_by_row(full: TestChannel) -> None:
    assert full.publish("full", b"0", b"1", b"2", b"3").refused == [2, 3]
    assert full.drain("full") == [b"0", b"1"]
    assert full.publish("full", b"4").refused == []


def test_a_queue_that_refuses_does_not_keep_others_from_the_message(full: TestChannel) -> None:
    for name in ("full", "a"):
        full.session.bind_queue(name, "amq.fanout", "")
    published = full.publish("", b"0", b"1", b"2", exchange="amq.fanout", delivery_mode=2)
    assert published.refused == [2]
    assert len(full.drain("full")) == 2
    assert len(full.drain("a")) == 3
