"""AMQP over TLS: certificates by file, clients with and without one, EXTERNAL."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import pika
import pytest
from helpers.amqp import get_one, put
from helpers.broker import BrokerProcess
from helpers.certificates import Authority
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("tls"))


Serve = Callable[..., int]


@pytest.fixture
def serve(authority: Authority, start_broker: Callable[..., BrokerProcess]) -> Serve:
    """Starts a broker with a TLS listener; its port."""

    def start(clients: str = "ignore") -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        settings = {
            "tls.certificate": authority.issue("server"),
            "tls.authorities": authority.certificate,
            "tls.clients": clients,
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        start_broker("--amqps", f"127.0.0.1:{port}", *flags)
        return port

    return start


def connect(
    authority: Authority, port: int, user: str | None = None, *, external: bool = False
) -> pika.BlockingConnection:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if user is not None:
        context.load_cert_chain(authority.issue(user))
    login = ExternalCredentials() if external else pika.PlainCredentials("guest", "guest")
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, credentials=login, socket_timeout=5,
            ssl_options=pika.SSLOptions(context, "127.0.0.1"),
        )
    )  # fmt: skip


def test_messages_of_any_size_go_through_tls(authority: Authority, serve: Serve) -> None:
    with connect(authority, serve()) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        for body in (b"", b"x", bytes(1_000_000)):
            put(channel, "q", body)
            assert get_one(channel, "q")[2] == body


def test_a_client_without_a_certificate_is_kept_out_where_one_is_required(
    authority: Authority, serve: Serve
) -> None:
    port = serve("require")
    with pytest.raises((AMQPConnectionError, OSError)):
        connect(authority, port)
    connect(authority, port, "guest").close()


def test_external_takes_the_user_from_the_certificate(authority: Authority, serve: Serve) -> None:
    port = serve("require")
    with connect(authority, port, "guest", external=True) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        put(channel, "q", b"x", user_id="guest")
        assert get_one(channel, "q")[1].user_id == "guest"


def test_external_refuses_a_certificate_of_an_unknown_user(authority: Authority, serve: Serve) -> None:
    port = serve("require")
    with pytest.raises(AMQPConnectionError):
        connect(authority, port, "nobody", external=True)


def test_plain_bytes_on_the_tls_port_harm_nobody(authority: Authority, serve: Serve) -> None:
    port = serve()
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        plain.sendall(b"AMQP\x00\x00\x09\x01" * 10)
        plain.settimeout(5)
        assert b"AMQP" not in plain.recv(100)
    connect(authority, port).close()
