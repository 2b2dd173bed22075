"""What a client says about itself when it logs in: the responses of three SASL mechanisms.

    PLAIN      [acting as] NUL user NUL password
    AMQPLAIN   the entries of a field table with LOGIN and PASSWORD, without the table's length
    EXTERNAL   nothing, or the name to act as: the user is known otherwise, by its certificate

This module only reads. Whether a user may come in is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import SyntaxFault
from tidemark.wire.amqp091.tables import decode_entries

PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"
MECHANISMS = (PLAIN, AMQPLAIN, EXTERNAL)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who wants to come in. With EXTERNAL, `user` is the name to act as, or empty."""

    mechanism: str
    user: str
    password: bytes = field(default=b"", repr=False)


def needs_challenge(mechanism: str, response: bytes) -> bool:
    """Whether the client waits to be asked before it says who it is."""
    return mechanism != EXTERNAL and not response


def read_response(mechanism: str, response: bytes) -> Credentials:
    """The credentials in a response.

    Raises:
        SyntaxFault: the response is not of the form that the mechanism has.
    """
    if mechanism == PLAIN:
        return _plain(response)
    if mechanism == AMQPLAIN:
        return _amqplain(response)
    assert mechanism == EXTERNAL, mechanism
    return Credentials(EXTERNAL, _name(response))


def _plain(response: bytes) -> Credentials:
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise SyntaxFault(reason="a PLAIN response is not of the form NUL user NUL password")
    _, user, password = parts
    return Credentials(PLAIN, _name(user), password)


def _amqplain(response: bytes) -> Credentials:
    login = decode_entries(response)
    values = []
    for name in ("LOGIN", "PASSWORD"):
        value = login.get(name)
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise SyntaxFault(reason=f"an AMQPLAIN response has no string {name}")
        values.append(value)
    user, password = values
    return Credentials(AMQPLAIN, _name(user), password)


def _name(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SyntaxFault(reason="a user name is not UTF-8") from None
