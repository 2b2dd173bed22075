"""Limits of virtual hosts and users: who is refused, in which words, and that they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker, a_session

from tidemark.broker.broker import Broker
from tidemark.broker.definitions import export, import_definitions
from tidemark.broker.session import Session
from tidemark.errors import NotAllowed, NotFound, PreconditionFailed
from tidemark.model.wiring import ParameterSpec


class Connection:
    def shutdown(self, code: int, text: str) -> None:
        pass


def connect(broker: Broker, user: str = "guest", vhost: str = "/") -> Session:
    return broker.open_session(vhost, user, Connection(), "test")


def test_a_virtual_host_takes_so_many_connections_and_another_when_one_has_gone() -> None:
    broker = a_broker(vhosts=("/", "other"), users=("guest", "ada"))
    broker.set_vhost_limit("/", "max-connections", 2)
    first, _ = connect(broker), connect(broker, "ada")
    words = r"^access to vhost '/' refused for user 'guest': connection limit \(2\) is reached$"
    with pytest.raises(NotAllowed, match=words):
        connect(broker)
    connect(broker, vhost="other")
    first.close()
    first.close()  # counted once
    connect(broker)
    with pytest.raises(NotAllowed):
        connect(broker)


def test_a_user_takes_so_many_connections_in_all_virtual_hosts() -> None:
    broker = a_broker(vhosts=("/", "other"), users=("guest", "ada"))
    broker.set_user_limit("guest", "max-connections", 1)
    session = connect(broker)
    words = r"^connection refused for user 'guest': user connection limit \(1\) is reached$"
    with pytest.raises(NotAllowed, match=words):
        connect(broker, vhost="other")
    connect(broker, "ada")
    session.close()
    connect(broker, vhost="other")


def test_zero_allows_nothing_and_a_negative_number_everything() -> None:
    broker = a_broker()
    broker.set_vhost_limit("/", "max-connections", 0)
    with pytest.raises(NotAllowed, match=r"connection limit \(0\) is reached"):
        connect(broker)
    broker.set_vhost_limit("/", "max-connections", -1)
    connect(broker)
    broker.set_vhost_limit("/", "max-connections", None)
    assert broker.vhost_limits == {}


def test_what_the_management_does_is_no_connection() -> None:
    broker = a_broker()
    broker.set_vhost_limit("/", "max-connections", 0)
    a_session(broker).close()
    assert not broker.usage.connections_of_vhost


def test_a_virtual_host_takes_so_many_queues_and_streams() -> None:
    broker = a_broker()
    session = a_session(broker)
    broker.set_vhost_limit("/", "max-queues", 2)
    session.declare_queue("a")
    session.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
    session.declare_queue("a")  # it is there
    words = r"^cannot declare queue 'b': queue limit in vhost '/' \(2\) is reached$"
    for arguments in ({}, {"x-queue-type": "stream"}):
        with pytest.raises(PreconditionFailed, match=words):
            session.declare_queue("b", durable=True, arguments=arguments)
    session.delete_queue("a")
    session.declare_queue("b")


def test_lowering_a_limit_ends_nothing() -> None:
    broker = a_broker()
    session = connect(broker)
    for name in "abc":
        session.declare_queue(name)
    broker.put_vhost_limits("/", {"max-queues": 1, "max-connections": 0})
    assert (len(broker.queues), len(broker.sessions)) == (3, 1)


def test_a_user_takes_so_many_channels() -> None:
    broker = a_broker()
    broker.set_user_limit("guest", "max-channels", 1)
    broker.usage.check_channel("guest")
    broker.usage.channels("guest", 1)
    words = (
        r"^number of channels opened for user 'guest' has reached the maximum allowed user limit of \(1\)$"
    )
    with pytest.raises(NotAllowed, match=words):
        broker.usage.check_channel("guest")
    broker.usage.channels("guest", -1)
    broker.usage.check_channel("guest")
    assert not broker.usage.channels_of_user


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max-queues": "x"}, 'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n'),
        ({"max-queues": True}, "Validation failed\n\nmax-queues should be a number, actually was true\n"),
        ({"max-channels": 1}, 'Validation failed\n\nUnrecognised terms [{<<"max-channels">>,1}] in limits\n'),
        ([], "Validation failed\n\nlimits not a list []\n"),
    ],
)
def test_limits_that_cannot_be_are_refused_in_rabbitmqs_words(limits: Any, words: str) -> None:
    broker = a_broker()
    with pytest.raises(PreconditionFailed) as refused:
        broker.put_vhost_limits("/", limits)
    assert str(refused.value) == words
    assert broker.vhost_limits == {}


def test_limits_of_nobody_are_not_found() -> None:
    broker = a_broker()
    with pytest.raises(NotFound, match="no vhost 'x'"):
        broker.set_vhost_limit("x", "max-queues", 1)
    with pytest.raises(NotFound, match="no user 'x'"):
        broker.set_user_limit("x", "max-channels", 1)


def test_limits_are_kept_and_go_with_whom_they_bind() -> None:
    broker = a_broker(vhosts=("/", "other"), users=("guest", "ada"))
    broker.put_vhost_limits("other", {"max-queues": 3})
    broker.put_user_limits("ada", {"max-channels": 4, "max-connections": 5})
    for replayed in (broker.catalog.changes, broker.image()):
        again = a_broker(replaying=replayed)
        assert again.vhost_limits == {"other": {"max-queues": 3}}
        assert again.user_limits == {"ada": {"max-channels": 4, "max-connections": 5}}
        again.delete_vhost("other")
        again.delete_user("ada")
        assert (again.vhost_limits, again.user_limits) == ({}, {})
        assert a_broker(replaying=again.image()).image() == again.image()


def test_definitions_carry_limits_as_rabbitmq_writes_them() -> None:
    broker = a_broker(users=("guest", "ada"))
    broker.put_vhost_limits("/", {"max-queues": 3})
    broker.put_user_limits("ada", {"max-channels": 4})
    document = export(broker)
    assert {user["name"]: user["limits"] for user in document["users"]} == {
        "guest": {},
        "ada": {"max-channels": 4},
    }
    assert document["parameters"] == [
        {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 3}}
    ]
    other = a_broker()
    other.set_user_limit("guest", "max-connections", 1)
    import_definitions(other, document)
    assert other.vhost_limits == {"/": {"max-queues": 3}}
    assert other.user_limits == {"ada": {"max-channels": 4}}
    assert import_definitions(other, document).made == {}


def test_a_parameter_of_an_older_catalog_that_was_never_checked_does_no_harm() -> None:
    broker = a_broker()
    broker.put(ParameterSpec("/", "vhost-limits", "limits", {"max-queues": "many"}))
    a_session(broker).declare_queue("q")
    assert broker.vhost_limits == {}
