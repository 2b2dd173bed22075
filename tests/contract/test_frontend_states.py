"""Every state of a connection and of a channel against every method there is.

The tables in `frontend/amqp091` say what is taken, kept, ignored or refused. Here each pair is
played on a real connection over a real broker, and what happens is compared with the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from unit.frontend.harness import Client, World

from tidemark.frontend.amqp091 import channel as channels
from tidemark.frontend.amqp091 import connection as connections
from tidemark.frontend.amqp091.channel import Answer
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import FORMS, BasicPublish, Method

METHODS = [form.kind for form in FORMS.values() if form.kind is not BasicPublish]
"""A publish is a run, not a method: `test_publishes_…` below has it."""

QUEUE = "q"
GOOD: dict[type[Method], Method] = {
    methods.ExchangeDeclare: methods.ExchangeDeclare(exchange="x", type="fanout"),
    methods.ExchangeDelete: methods.ExchangeDelete(exchange="x"),
    methods.ExchangeBind: methods.ExchangeBind(
        destination="amq.fanout", source="amq.direct", routing_key="k"
    ),
    methods.ExchangeUnbind: methods.ExchangeUnbind(destination="amq.fanout", source="amq.direct"),
    methods.QueueDeclare: methods.QueueDeclare(queue=QUEUE),
    methods.QueueBind: methods.QueueBind(queue=QUEUE, exchange="amq.direct", routing_key="k"),
    methods.QueueUnbind: methods.QueueUnbind(queue=QUEUE, exchange="amq.direct", routing_key="k"),
    methods.QueuePurge: methods.QueuePurge(queue=QUEUE),
    methods.QueueDelete: methods.QueueDelete(queue=QUEUE),
    methods.BasicConsume: methods.BasicConsume(queue=QUEUE, consumer_tag="t"),
    methods.BasicCancel: methods.BasicCancel(consumer_tag="nobody"),
    methods.BasicGet: methods.BasicGet(queue=QUEUE),
    methods.BasicAck: methods.BasicAck(delivery_tag=0, multiple=True),
    methods.BasicNack: methods.BasicNack(delivery_tag=0, multiple=True),
    methods.BasicReject: methods.BasicReject(delivery_tag=1),
    methods.BasicRecover: methods.BasicRecover(requeue=True),
    methods.BasicRecoverAsync: methods.BasicRecoverAsync(requeue=True),
    methods.ChannelFlow: methods.ChannelFlow(active=True),
}
"""One of each that is right in an open channel; the others are right as they are by default."""

ANSWERS: dict[type[Method], type[Method] | None] = {
    methods.ChannelClose: methods.ChannelCloseOk,
    methods.ChannelFlow: methods.ChannelFlowOk,
    methods.AccessRequest: methods.AccessRequestOk,
    methods.ExchangeDeclare: methods.ExchangeDeclareOk,
    methods.ExchangeDelete: methods.ExchangeDeleteOk,
    methods.ExchangeBind: methods.ExchangeBindOk,
    methods.ExchangeUnbind: methods.ExchangeUnbindOk,
    methods.QueueDeclare: methods.QueueDeclareOk,
    methods.QueueBind: methods.QueueBindOk,
    methods.QueueUnbind: methods.QueueUnbindOk,
    methods.QueuePurge: methods.QueuePurgeOk,
    methods.QueueDelete: methods.QueueDeleteOk,
    methods.QueueMake: methods.ConnectionClose,  # only fronts say so
    methods.QueueEnd: methods.ConnectionClose,
    methods.QueueRenew: methods.ConnectionClose,
    methods.BasicQos: methods.BasicQosOk,
    methods.BasicConsume: methods.BasicConsumeOk,
    methods.BasicCancel: methods.BasicCancelOk,
    methods.BasicGet: methods.BasicGetEmpty,
    methods.BasicAck: None,
    methods.BasicNack: None,
    methods.BasicReject: methods.ChannelClose,  # there is no delivery to reject
    methods.BasicRecover: methods.BasicRecoverOk,
    methods.BasicRecoverAsync: None,
    methods.ConfirmSelect: methods.ConfirmSelectOk,
    methods.TxSelect: methods.TxSelectOk,
    methods.TxCommit: methods.ChannelClose,  # there is no transaction
    methods.TxRollback: methods.ChannelClose,
}
"""What an open channel says to each method of `GOOD`."""


def client_with_channel_in(state: channels.State) -> Client:
    client = World().open(channels=2)
    client.declare(QUEUE, channel=2)
    if state is channels.State.CLOSED:
        client.ask(1, methods.ChannelClose())
    elif state is channels.State.CLOSING:
        client.ask(1, methods.QueueDeclare(queue="missing", passive=True))
    elif state is channels.State.WAITING:
        client.world.syncing = False
        client.send(1, methods.QueueDeclare(queue="durable", durable=True))
    return client


def channel_state(client: Client) -> channels.State:
    found = client.front_end._channels.get(1)
    return found.state if found else channels.State.CLOSED


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", channels.State, ids=lambda state: state.name)
def test_a_channel_does_with_every_method_what_the_table_says(
    state: channels.State, kind: type[Method]
) -> None:
    client = client_with_channel_in(state)
    assert channel_state(client) is state
    client.send(1, GOOD.get(kind, kind()))

    said = client.read_all()
    match channels.answer_to(state, kind):
        case Answer.IGNORE:
            assert said == []
            assert channel_state(client) is state
        case Answer.KEEP:
            assert said == []
            assert channel_state(client) is state
            assert len(client.front_end._channels[1].kept) == 1
        case Answer.REFUSE:
            [close] = said
            assert isinstance(close, methods.ConnectionClose)
            is_open = state is channels.State.OPEN and kind is not methods.ChannelOpen
            assert close.reply_code == (503 if is_open else 504)
            assert (close.class_id, close.method_id) == methods.ids_of(kind)
        case Answer.TAKE if state is channels.State.OPEN:
            assert [type(each) for each in said] == [ANSWERS[kind]] * (ANSWERS[kind] is not None)
        case Answer.TAKE:
            expected = {
                methods.ChannelOpen: (methods.ChannelOpenOk, channels.State.OPEN),
                methods.ChannelClose: (methods.ChannelCloseOk, channels.State.CLOSING),
                methods.ChannelCloseOk: (None, channels.State.CLOSED),
            }
            answer, after = expected[kind]
            assert [type(each) for each in said] == [answer] * (answer is not None)
            assert channel_state(client) is after


@pytest.mark.parametrize("state", channels.State, ids=lambda state: state.name)
def test_publishes_are_taken_when_open_kept_when_waiting_ignored_when_closing_and_refused_when_closed(
    state: channels.State,
) -> None:
    client = client_with_channel_in(state)
    client.publish(1, QUEUE, b"1", b"2")

    said = client.read_all()
    if state is channels.State.CLOSED:
        [close] = said
        assert close.reply_code == 504
        assert (close.class_id, close.method_id) == (60, 40)
    else:
        assert said == []
        assert client.world.ready(QUEUE) == (2 if state is channels.State.OPEN else 0)
    if state is channels.State.WAITING:
        client.world.sync()
        assert client.world.ready(QUEUE) == 2


STREAM = "s"
STREAM_ARGUMENTS = {"x-queue-type": "stream"}

OF_STREAMS: list[tuple[Method, type[Method], int]] = [
    (
        methods.QueueDeclare(queue=STREAM, durable=True, arguments=STREAM_ARGUMENTS),
        methods.QueueDeclareOk,
        0,
    ),
    (methods.QueueDeclare(queue=STREAM, passive=True), methods.QueueDeclareOk, 0),
    (methods.QueueDeclare(queue=STREAM, durable=True), methods.ChannelClose, 406),
    (methods.QueueDeclare(arguments=STREAM_ARGUMENTS, durable=True), methods.ChannelClose, 406),
    (methods.QueueBind(queue=STREAM, exchange="amq.direct", routing_key="k"), methods.QueueBindOk, 0),
    (methods.QueuePurge(queue=STREAM), methods.QueuePurgeOk, 0),
    (methods.QueueDelete(queue=STREAM), methods.QueueDeleteOk, 0),
    (methods.QueueDelete(queue=STREAM, if_empty=True), methods.ChannelClose, 406),
    (methods.BasicConsume(queue=STREAM, consumer_tag="t"), methods.ChannelClose, 406),
    (methods.BasicGet(queue=STREAM), methods.ConnectionClose, 540),
]
"""What an open channel says to a method about a stream with a message in it: the answer and its reply code."""


@pytest.mark.parametrize(("method", "answer", "code"), OF_STREAMS, ids=lambda value: str(value)[:40])
def test_a_channel_answers_methods_about_a_stream(method: Method, answer: type[Method], code: int) -> None:
    client = World().open(channels=2)
    client.declare(STREAM, channel=2, durable=True, arguments=STREAM_ARGUMENTS)
    client.publish(2, STREAM, b"1")
    client.send(1, method)
    [said] = client.read_all()
    assert type(said) is answer
    assert getattr(said, "reply_code", 0) == code


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (methods.BasicAck(delivery_tag=1), 0),
        (methods.BasicAck(delivery_tag=0, multiple=True), 0),
        (methods.BasicAck(delivery_tag=2), 406),
        (methods.BasicNack(delivery_tag=1), 540),
        (methods.BasicReject(delivery_tag=1), 540),
        (methods.BasicRecover(requeue=True), 540),
        (methods.BasicCancel(consumer_tag="t", no_wait=True), 0),
    ],
    ids=lambda value: str(value)[:40],
)
def test_deliveries_of_a_stream_are_acked_and_not_given_back(method: Method, code: int) -> None:
    client = World().open()
    client.declare(STREAM, durable=True, arguments=STREAM_ARGUMENTS)
    client.publish(1, STREAM, b"1")
    client.ask(1, methods.BasicQos(prefetch_count=10))
    client.send(
        1,
        methods.BasicConsume(queue=STREAM, consumer_tag="t", arguments={"x-stream-offset": "first"}),
    )
    assert len(client.read_all()) == 2
    client.send(1, method)
    assert [said.reply_code for said in client.read_all()] == ([code] if code else [])


# Channel 0 -------------------------------------------------------------------------------------


def opening() -> Client:
    client = World().connect()
    client.write(b"AMQP\x00\x00\x09\x01")
    client.read()
    return client


def closing() -> Client:
    client = World().open()
    client.front_end.shutdown(320, "maintenance")
    client.world.turn()
    client.read()
    return client


def finishing() -> Client:
    world = World(syncing=False)
    client = world.open()
    client.send(1, methods.QueueDeclare(queue="durable", durable=True))
    client.send(0, methods.ConnectionClose())
    return client


def leaving() -> Client:
    client = World().open()
    client.ask(0, methods.ConnectionClose())
    return client


def closed() -> Client:
    client = World().open()
    client.front_end.receive_eof()
    return client


IN: dict[connections.State, Callable[[], Client]] = {
    connections.State.OPENING: opening,
    connections.State.OPEN: lambda: World().open(),
    connections.State.FINISHING: finishing,
    connections.State.LEAVING: leaving,
    connections.State.CLOSING: closing,
    connections.State.CLOSED: closed,
}


@pytest.mark.parametrize(
    ("state", "kind"),
    list(itertools.product(connections.State, METHODS)),
    ids=lambda value: value.name if isinstance(value, connections.State) else value.__name__,
)
def test_a_connection_does_with_every_method_on_channel_0_what_the_table_says(
    state: connections.State, kind: type[Method]
) -> None:
    client = IN[state]()
    assert client.front_end.state is state
    client.send(0, kind())

    said = client.read_all()
    match connections.answer_to(state, kind):
        case Answer.IGNORE:
            assert said == []
            assert client.front_end.state is state
        case Answer.REFUSE:
            [close] = said
            assert close.reply_code == 503
            assert (close.class_id, close.method_id) == methods.ids_of(kind)
            assert client.front_end.closed is (state is connections.State.OPENING)
        case Answer.TAKE if kind is methods.ConnectionClose:
            assert said == [methods.ConnectionCloseOk()]
            assert client.front_end.state is connections.State.LEAVING
        case Answer.TAKE if kind is methods.ConnectionCloseOk:
            assert said == []
            assert client.front_end.closed
        case Answer.TAKE if kind is methods.ConnectionUpdateSecret:
            assert said == [methods.ConnectionUpdateSecretOk()]
            assert client.front_end.state is state
        case Answer.TAKE:
            # A step of the handshake; its order is walked in the tests of `wire/amqp091/handshake.py`.
            assert state is connections.State.OPENING
            assert [type(each) for each in said] == [methods.ConnectionClose]
            assert client.front_end.closed
