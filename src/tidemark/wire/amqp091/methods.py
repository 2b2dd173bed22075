"""Every method of AMQP 0-9-1 with RabbitMQ's extensions, and their form on the wire.

The classes below are the table: a class is a method, its decorator has the class id and the
method id, its annotations are the fields in wire order with their domains. Reading, writing and
the documentation all follow these annotations; nothing else knows a field. Names are those of the
specification, with underscores (`global_` has one more, because Python wants it).

    +----------+-----------+--------------------------------------------+
    | class id | method id | fields; neighbouring bits share an octet   |
    +----------+-----------+--------------------------------------------+

Short strings are `str` with surrogate escapes, so any bytes survive; long strings are `bytes`.

Invariant: `decode_method` gives back what `encode_method` was given, and takes nothing that is
shorter or longer than the table says.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from tidemark.errors import NotImplementedHere, SyntaxFault
from tidemark.wire.amqp091.frames import METHOD, encode_frame
from tidemark.wire.amqp091.tables import Table, decode_table, encode_table

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
ShortStr = Annotated[str, "shortstr"]
ReplyText = Annotated[str, "reply-text"]
"""A short string for people: cut to 255 bytes when it is longer."""
LongStr = Annotated[bytes, "longstr"]
Bit = Annotated[bool, "bit"]
FieldTable = Annotated[Table, "table"]


class Method:
    """Base of all methods.

    `class_id` and `method_id` are its place in the protocol. The two Close methods have fields of
    these names, which say what the peer is told about: `ids_of` tells them apart.
    """

    __slots__ = ()
    class_id: ClassVar[int]
    method_id: ClassVar[int]


class Form(NamedTuple):
    """What the table says about one method: for the codec and for whoever draws the table."""

    kind: type[Method]
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]
    """(name, domain) in wire order."""


FORMS: dict[tuple[int, int], Form] = {}
_FORM_OF: dict[type[Method], Form] = {}

_M = TypeVar("_M", bound=Method)


@dataclass_transform(field_specifiers=(field,))
def _method(class_id: int, method_id: int) -> Callable[[type[_M]], type[_M]]:
    def register(cls: type[_M]) -> type[_M]:
        if "class_id" not in cls.__annotations__:
            cls.class_id, cls.method_id = class_id, method_id
        kind = dataclass(slots=True)(cls)
        domains = cls.__annotations__
        names = tuple((each.name, domains[each.name].__metadata__[0]) for each in fields(kind))  # type: ignore[arg-type]
        form = Form(kind, class_id, method_id, names)
        FORMS[class_id, method_id] = _FORM_OF[kind] = form
        return kind

    return register


def ids_of(method: Method | type[Method]) -> tuple[int, int]:
    """Class id and method id of any method, Close included."""
    form = _FORM_OF[method if isinstance(method, type) else type(method)]
    return form.class_id, form.method_id


# Connection -------------------------------------------------------------------------------------


@_method(10, 10)
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = field(default_factory=dict)
    mechanisms: LongStr = b""
    locales: LongStr = b""


@_method(10, 11)
class ConnectionStartOk(Method):
    client_properties: FieldTable = field(default_factory=dict)
    mechanism: ShortStr = ""
    response: LongStr = b""
    locale: ShortStr = ""


@_method(10, 20)
class ConnectionSecure(Method):
    challenge: LongStr = b""


@_method(10, 21)
class ConnectionSecureOk(Method):
    response: LongStr = b""


@_method(10, 30)
class ConnectionTune(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@_method(10, 31)
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@_method(10, 40)
class ConnectionOpen(Method):
    virtual_host: ShortStr = ""
    reserved_1: ShortStr = ""
    reserved_2: Bit = False


@_method(10, 41)
class ConnectionOpenOk(Method):
    reserved_1: ShortStr = ""


@_method(10, 50)
class ConnectionClose(Method):
    reply_code: Short = 0
    reply_text: ReplyText = ""
    class_id: Short = 0  # type: ignore[misc]
    method_id: Short = 0  # type: ignore[misc]


@_method(10, 51)
class ConnectionCloseOk(Method):
    pass


@_method(10, 60)
class ConnectionBlocked(Method):
    reason: ReplyText = ""


@_method(10, 61)
class ConnectionUnblocked(Method):
    pass


@_method(10, 70)
class ConnectionUpdateSecret(Method):
    new_secret: LongStr = b""
    reason: ShortStr = ""


@_method(10, 71)
class ConnectionUpdateSecretOk(Method):
    pass


# Channel ----------------------------------------------------------------------------------------


@_method(20, 10)
class ChannelOpen(Method):
    reserved_1: ShortStr = ""


@_method(20, 11)
class ChannelOpenOk(Method):
    reserved_1: LongStr = b""


@_method(20, 20)
class ChannelFlow(Method):
    active: Bit = False


@_method(20, 21)
class ChannelFlowOk(Method):
    active: Bit = False


@_method(20, 40)
class ChannelClose(Method):
    reply_code: Short = 0
    reply_text: ReplyText = ""
    class_id: Short = 0  # type: ignore[misc]
    method_id: Short = 0  # type: ignore[misc]


@_method(20, 41)
class ChannelCloseOk(Method):
    pass


# Access (of AMQP 0-9, still asked by some clients) ----------------------------------------------


@_method(30, 10)
class AccessRequest(Method):
    realm: ShortStr = ""
    exclusive: Bit = False
    passive: Bit = False
    active: Bit = False
    write: Bit = False
    read: Bit = False


@_method(30, 11)
class AccessRequestOk(Method):
    ticket: Short = 1


# Exchange ---------------------------------------------------------------------------------------


@_method(40, 10)
class ExchangeDeclare(Method):
    reserved_1: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 11)
class ExchangeDeclareOk(Method):
    pass


@_method(40, 20)
class ExchangeDelete(Method):
    reserved_1: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


@_method(40, 21)
class ExchangeDeleteOk(Method):
    pass


@_method(40, 30)
class ExchangeBind(Method):
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 31)
class ExchangeBindOk(Method):
    pass


@_method(40, 40)
class ExchangeUnbind(Method):
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(40, 51)
class ExchangeUnbindOk(Method):
    pass


# Queue ------------------------------------------------------------------------------------------


@_method(50, 10)
class QueueDeclare(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


@_method(50, 20)
class QueueBind(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 21)
class QueueBindOk(Method):
    pass


@_method(50, 30)
class QueuePurge(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


@_method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long = 0


@_method(50, 40)
class QueueDelete(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long = 0


# Of our own, between fronts and brokers: see `broker/incarnations.py`.


@_method(50, 60)
class QueueMake(Method):
    """Declare a queue in its group, in the life that main has it in."""

    queue: ShortStr = ""
    incarnation: LongLong = 0
    durable: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 61)
class QueueMakeOk(Method):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0
    gone: LongLong = 0
    """It was not made: this life of it is known, and the one that was wanted is over."""


@_method(50, 62)
class QueueEnd(Method):
    """Delete a queue that is in this life, in its group or its name in main."""

    queue: ShortStr = ""
    incarnation: LongLong = 0
    if_unused: Bit = False
    if_empty: Bit = False


@_method(50, 63)
class QueueEndOk(Method):
    message_count: Long = 0
    other: LongLong = 0
    """It was not deleted: it is in this life."""


@_method(50, 64)
class QueueRenew(Method):
    """Main: begin a new life of a queue that is in this one, behind all up to `above`."""

    queue: ShortStr = ""
    incarnation: LongLong = 0
    above: LongLong = 0


@_method(50, 65)
class QueueRenewOk(Method):
    pass


@_method(50, 50)
class QueueUnbind(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: FieldTable = field(default_factory=dict)


@_method(50, 51)
class QueueUnbindOk(Method):
    pass


# Basic ------------------------------------------------------------------------------------------


@_method(60, 10)
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@_method(60, 11)
class BasicQosOk(Method):
    pass


@_method(60, 20)
class BasicConsume(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


@_method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr = ""


@_method(60, 30)
class BasicCancel(Method):
    consumer_tag: ShortStr = ""
    no_wait: Bit = False


@_method(60, 31)
class BasicCancelOk(Method):
    consumer_tag: ShortStr = ""


@_method(60, 40)
class BasicPublish(Method):
    reserved_1: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50)
class BasicReturn(Method):
    reply_code: Short = 0
    reply_text: ReplyText = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@_method(60, 60)
class BasicDeliver(Method):
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@_method(60, 70)
class BasicGet(Method):
    reserved_1: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@_method(60, 71)
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


@_method(60, 72)
class BasicGetEmpty(Method):
    reserved_1: ShortStr = ""


@_method(60, 80)
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@_method(60, 90)
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@_method(60, 100)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@_method(60, 110)
class BasicRecover(Method):
    requeue: Bit = False


@_method(60, 111)
class BasicRecoverOk(Method):
    pass


@_method(60, 120)
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# Confirm ----------------------------------------------------------------------------------------


@_method(85, 10)
class ConfirmSelect(Method):
    no_wait: Bit = False


@_method(85, 11)
class ConfirmSelectOk(Method):
    pass


# Tx ---------------------------------------------------------------------------------------------


@_method(90, 10)
class TxSelect(Method):
    pass


@_method(90, 11)
class TxSelectOk(Method):
    pass


@_method(90, 20)
class TxCommit(Method):
    pass


@_method(90, 21)
class TxCommitOk(Method):
    pass


@_method(90, 30)
class TxRollback(Method):
    pass


@_method(90, 31)
class TxRollbackOk(Method):
    pass


# The codec --------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class UnknownMethod(NotImplementedHere):
    """A method frame with ids that the table does not have."""

    class_id: int
    method_id: int


_IDS = struct.Struct(">HH")
_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}


def method_ids(payload: bytes | memoryview) -> tuple[int, int]:
    """Class id and method id of a method frame's payload; (0, 0) when it is too short for them."""
    return _IDS.unpack_from(payload) if len(payload) >= 4 else (0, 0)


def decode_method(payload: bytes | memoryview) -> Method:
    """The method in a method frame's payload.

    Raises:
        SyntaxFault: truncated, followed by other bytes, or with a bad table.
        UnknownMethod: there is no such method; its ids are in the error.
    """
    if len(payload) < 4:
        raise SyntaxFault(reason=f"a method frame of {len(payload)} bytes has no method")
    ids = _IDS.unpack_from(payload)
    form = FORMS.get(ids)
    if form is None:
        raise UnknownMethod(
            reason=f"there is no method {ids[1]} in class {ids[0]}",
            class_id=ids[0],
            method_id=ids[1],
        )
    values: list[Any] = []
    position, bit, end = 4, 8, len(payload)
    octet = 0
    for _, domain in form.fields:
        if domain == "bit":
            if bit == 8:
                if position == end:
                    raise _wrong_size(form, "short")
                octet, bit = payload[position], 0
                position += 1
            values.append(bool(octet >> bit & 1))
            bit += 1
            continue
        bit = 8
        if domain in _INTEGERS:
            layout = _INTEGERS[domain]
            if end - position < layout.size:
                raise _wrong_size(form, "short")
            values += layout.unpack_from(payload, position)
            position += layout.size
        elif domain == "table":
            table, position = decode_table(payload, position)
            values.append(table)
        else:
            width = 4 if domain == "longstr" else 1
            start = position + width
            if start > end:
                raise _wrong_size(form, "short")
            position = start + int.from_bytes(payload[position:start], "big")
            if position > end:
                raise _wrong_size(form, "short")
            raw = bytes(payload[start:position])
            values.append(raw if width == 4 else raw.decode("utf-8", "surrogateescape"))
    if position != end:
        raise _wrong_size(form, "long")
    return form.kind(*values)


def _wrong_size(form: Form, how: str) -> SyntaxFault:
    return SyntaxFault(reason=f"the frame is too {how} for a {form.kind.__name__}")


def encode_method(channel: int, method: Method) -> bytes:
    """The whole frame.

    Raises:
        ValueError: a value that its field cannot hold.
    """
    form = _FORM_OF[type(method)]
    parts = [_IDS.pack(form.class_id, form.method_id)]
    octet, bit = 0, 0
    for name, domain in form.fields:
        value = getattr(method, name)
        if domain == "bit":
            octet |= bool(value) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes([octet]))
            octet, bit = 0, 0
        parts.append(_encode_field(form, name, domain, value))
    if bit:
        parts.append(bytes([octet]))
    return encode_frame(METHOD, channel, b"".join(parts))


def _encode_field(form: Form, name: str, domain: str, value: Any) -> bytes:
    if domain == "table":
        return encode_table(value)
    if domain == "longstr":
        return len(value).to_bytes(4, "big") + bytes(value)
    if domain in _INTEGERS:
        try:
            return _INTEGERS[domain].pack(value)
        except struct.error:
            raise ValueError(f"{form.kind.__name__}.{name} cannot be {value!r}") from None
    raw: bytes = value.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        if domain != "reply-text":
            raise ValueError(f"{form.kind.__name__}.{name} is over 255 bytes")
        raw = raw[:255].decode("utf-8", "ignore").encode()
    return bytes([len(raw)]) + raw
