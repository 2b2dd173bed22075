"""What can go wrong on the client's side of a connection.

An error that the broker sends is raised as the class of `tidemark.errors` with the same code, its facts as
fields; the classes here are for what only a client can know: that nobody answers, that an answer never came,
that what came is not what the broker says it sent.

Invariant: every sentence ends with the next step.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tidemark import errors
from tidemark.errors import TidemarkError


@dataclass(eq=False, kw_only=True)
class ClientError(TidemarkError):
    """Base of what a client finds out by itself."""

    code: ClassVar[str] = "client"


@dataclass(eq=False, kw_only=True)
class NotConnected(ClientError):
    """No address of the list let us in within the time allowed. Nothing was sent."""

    code: ClassVar[str] = "client.not-connected"

    addresses: tuple[str, ...]
    problem: str
    """What came of it, address by address if they differ."""
    seconds: float | None = None
    """For how long it was tried."""

    def __str__(self) -> str:
        tried = "" if self.seconds is None or self.seconds < 1 else f" within {self.seconds:g} s"
        return (
            f"no broker answers at {', '.join(self.addresses)} ({self.problem}){tried}; "
            "is it running, and is that its AMQP address?"
        )


@dataclass(eq=False, kw_only=True)
class Unconfirmed(ClientError):
    """A write was sent and its answer never came: it may or may not be stored."""

    code: ClassVar[str] = "client.unconfirmed"

    operation: str
    problem: str
    producer: str | None = None

    def __str__(self) -> str:
        if self.producer is not None:
            return (
                f"{self.operation} has no answer ({self.problem}): it may or may not be stored. Producer "
                f"{self.producer!r} sends it again, under the same number, before its next write or when settle() is called"
            )
        return (
            f"{self.operation} was sent but not answered ({self.problem}): it may or may not be stored. "
            "Read the key to see, write it again if that does no harm, or write through "
            "client.producer(name), which resends without storing twice"
        )


@dataclass(eq=False, kw_only=True)
class TimedOut(ClientError):
    """A request that changes nothing had no answer in time."""

    code: ClassVar[str] = "client.timed-out"

    operation: str
    timeout_s: float

    def __str__(self) -> str:
        return (
            f"{self.operation} had no answer in {self.timeout_s:g} s; try again, or give it a longer timeout"
        )


@dataclass(eq=False, kw_only=True)
class Interrupted(ClientError):
    """The connection broke in the middle of a read. What was read up to `position` is good."""

    code: ClassVar[str] = "client.interrupted"

    stream: str
    position: int
    problem: str

    def __str__(self) -> str:
        return (
            f"the connection broke while {self.stream!r} was read ({self.problem}); all up to sequence "
            f"{self.position} came. A pin can be read on with after={self.position}; a snapshot without a pin is gone"
        )


@dataclass(eq=False, kw_only=True)
class MarkerMismatch(ClientError):
    """What arrived is not what the marker says was sent: never use it."""

    code: ClassVar[str] = "client.marker-mismatch"

    stream: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"the marker of {self.stream!r} says {self.expected}, but what came was {self.found}; "
            "throw it away and read again, and report it: this must not happen"
        )


@dataclass(eq=False, kw_only=True)
class ProducerClash(ClientError):
    """The broker knows a number as stored that this producer sends for the first time."""

    code: ClassVar[str] = "client.producer-clash"

    producer: str
    number: int

    def __str__(self) -> str:
        return (
            f"number {self.number} of producer {self.producer!r} is stored already, though it was never sent from "
            "here: somebody else uses this name. Nothing was stored; give each writer a name of its own"
        )


@dataclass(eq=False, kw_only=True)
class RequestTooLarge(ClientError, ValueError):
    """More in one request than the broker takes. Nothing was sent."""

    code: ClassVar[str] = "client.request-too-large"

    operation: str
    size: int
    size_max: int

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.size} bytes is over the {self.size_max} that the broker takes at once "
            "(stream.frame_bytes_max); put it in parts, or stage it and copy it in one transaction (tx.copy)"
        )


@dataclass(eq=False, kw_only=True)
class PackageMissing(ClientError, ImportError):
    """What was asked for needs a package that is not installed."""

    code: ClassVar[str] = "client.package-missing"

    what: str
    package: str

    def __str__(self) -> str:
        return f"{self.what} needs {self.package}, which is not installed: pip install {self.package}"


@dataclass(eq=False, kw_only=True)
class ClientClosed(ClientError):
    """The client was closed, by `close()` or the end of its `with` block."""

    code: ClassVar[str] = "client.closed"

    def __str__(self) -> str:
        return "this client is closed; open another with connect()"


@dataclass(eq=False, kw_only=True)
class ServerError(ClientError):
    """The broker refused with a code that this version of the client does not know."""

    code: ClassVar[str] = "client.server-error"

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} ({self.error})"


def _kinds(kind: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)


_BY_CODE: dict[str, type[TidemarkError]] = {
    kind.code: kind
    for kind in _kinds(TidemarkError)
    if kind.__module__ == errors.__name__ and "code" in kind.__dict__
}


def from_header(header: Mapping[str, Any]) -> TidemarkError:
    """The error that an ERROR frame describes: the same class, with the same facts, where both are known here."""
    code, message = str(header.get("error", "")), str(header.get("message", "no reason was given"))
    kind = _BY_CODE.get(code)
    if kind is None:
        return ServerError(error=code, message=message)
    facts: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in header:
            value = header[one.name]
            facts[one.name] = _bytes(value) if "bytes" in str(one.type) else value
        elif one.name == "reason":
            facts[one.name] = message
    try:
        return kind(**facts)
    except TypeError:  # a fact of a newer or older version is missing
        return ServerError(error=code, message=message)


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            return value.encode()
    return value
