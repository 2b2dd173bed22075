"""Clients of the simulated cluster: they know all addresses, find the member that serves, and come back when it is gone.

`Client` keeps one connection. It goes round its addresses until one takes it, waits a little longer after every
failure, and gives up a connection that has not answered for a while. `AmqpClient` speaks AMQP 0-9-1 in bytes, with the
encoder and decoder of `wire/`; `StreamClient` sends calls (`direct.py`). What a client was told goes into the books
(`books.py`); what it was not told it does again.

Invariant: a client believes nothing that it was not told over a connection that it still had.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tidemark.errors import TidemarkError
from tidemark.sim.cluster.direct import Call, Reply
from tidemark.sim.cluster.machine import DIRECT
from tidemark.sim.cluster.network import CLIENT, End
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, encode_content
from tidemark.wire.amqp091.methods import BasicPublish, Method, decode_method, encode_method
from tidemark.wire.amqp091.properties import Properties, encode_properties

if TYPE_CHECKING:
    from tidemark.broker.streams.session import StreamSession
    from tidemark.sim.cluster.world import World

PERSISTENT = encode_properties(Properties(delivery_mode=2))
BACK_OFF_US = (20_000, 400_000)
SILENCE_US = 700_000
"""A connection that owes an answer for so long is given up."""
FRAME = struct.Struct(">BHI")


class Client:
    """One connection at a time to whichever member serves."""

    kind = CLIENT

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dice = Random(f"{world.seed} {name}")
        self.end: End | None = None
        self.open = False
        """Everything is set up."""
        self.attempt = 0
        """Counts the connections."""
        self.leaving = False
        self._at = 0
        self._back_off_us = BACK_OFF_US[0]
        self._heard_us = 0
        world.clients.append(self)

    # To be filled in by kinds of clients --------------------------------------------------------------------

    def owed(self) -> bool:
        """An answer is being waited for."""
        return not self.open

    def connected(self) -> None:
        """The link is there: say hello."""

    def received(self, items: list[Any]) -> None: ...

    def lost(self) -> None:
        """The connection is gone; another one is coming."""

    # The connection ------------------------------------------------------------------------------------------

    def connect(self) -> None:
        if self.end is None and not self.leaving:
            addresses = self.world.addresses_for(self.name)
            self.end = self.world.network.dial(
                self.kind, self.name, self, addresses[self._at % len(addresses)]
            )

    def link_up(self, end: End) -> None:
        if end is not self.end:
            return
        self.attempt += 1
        self._heard_us = self.world.timeline.now_us
        self.connected()
        self._watch(end)

    def link_data(self, end: End, items: list[Any]) -> None:
        if end is self.end:
            self._heard_us = self.world.timeline.now_us
            self.received(items)

    def link_lost(self, end: End, gone: bool) -> None:  # noqa: ARG002
        if end is self.end:
            self._gone()

    def _watch(self, end: End) -> None:
        """Give the connection up when it owes us something for too long."""

        def look() -> None:
            if end is not self.end:
                return
            if self.owed() and self.world.timeline.now_us - self._heard_us > SILENCE_US:
                self.abandon()
            else:
                self.world.timeline.after(SILENCE_US // 3, look)

        self.world.timeline.after(SILENCE_US // 3, look)

    def abandon(self) -> None:
        """Close the connection from our side and try another."""
        if self.end is not None:
            self.end.close(abruptly=self.dice.random() < 0.5)
            self._gone()

    def _gone(self) -> None:
        was_open, self.open = self.open, False
        self.end = None
        self._at = self._at if was_open and self.dice.random() < 0.5 else self._at + 1
        self.lost()
        if was_open:
            self._back_off_us = BACK_OFF_US[0]
        wait_us = self.dice.randrange(5000, self._back_off_us + 5000)
        self._back_off_us = min(BACK_OFF_US[1], 2 * self._back_off_us)
        if not self.leaving:
            self.world.timeline.after(wait_us, self.connect)

    def leave(self) -> None:
        """It goes, and does not come back."""
        self.leaving = True
        if self.end is not None:
            self.end.close()
            self.end = None
            self.open = False
            self.lost()


class AmqpClient(Client):
    """Handshake, one channel, frames in and out."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._unread = b""
        self._content: tuple[Any, int, list[bytes], int] | None = None
        self._answers: list[type[Method]] = []
        """What the set-up is still waiting for."""

    def set_up(self) -> list[Method]:
        """What to say on channel 1 at the beginning; every method here has an answer."""
        return []

    def ready(self) -> None:
        """The set-up is done."""

    def on(self, method: Any) -> None:
        """A method came that the set-up was not waiting for."""

    def on_content(self, method: Any, body: bytes) -> None:
        """A message came."""

    # Out ---------------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._unread = b""
        self._content = None
        self.end.send(PROTOCOL_HEADER)  # type: ignore[union-attr]

    def say(self, *sent: Method, channel: int = 1) -> None:
        if self.end is not None:
            self.end.send(b"".join([encode_method(channel, method) for method in sent]))

    def publish(self, messages: list[tuple[str, str, bytes]]) -> None:
        """(exchange, routing key, body) of each; persistent."""
        if self.end is not None:
            self.end.send(
                b"".join(
                    encode_method(1, BasicPublish(exchange=exchange, routing_key=key))
                    + encode_content(1, PERSISTENT, body, 131072)
                    for exchange, key, body in messages
                )
            )

    # In ----------------------------------------------------------------------------------------------------------

    def received(self, items: list[Any]) -> None:
        data = self._unread + b"".join(items)
        at, size_all, end = 0, len(data), self.end
        while size_all - at >= 8:
            kind, channel, size = FRAME.unpack_from(data, at)
            if size_all - at < size + 8:
                break
            payload = data[at + 7 : at + 7 + size]
            at += size + 8
            self._frame(kind, channel, payload)
            if self.end is not end:
                return
        self._unread = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            method = decode_method(payload)
            if isinstance(method, methods.BasicDeliver | methods.BasicGetOk | methods.BasicReturn):
                self._content = method, 0, [], 0
            else:
                self._method(channel, method)
        elif kind == HEADER:
            assert self._content is not None
            (size,) = struct.unpack_from(">Q", payload, 4)
            self._content = self._content[0], size, [], 0
            self._whole()
        elif kind != HEARTBEAT:
            assert self._content is not None
            method, size, parts, got = self._content
            self._content = method, size, [*parts, payload], got + len(payload)
            self._whole()

    def _whole(self) -> None:
        assert self._content is not None
        method, size, parts, got = self._content
        if got == size:
            self._content = None
            self.on_content(method, b"".join(parts))

    def _method(self, channel: int, method: Any) -> None:
        match method:
            case methods.ConnectionStart():
                self.say(
                    methods.ConnectionStartOk(
                        client_properties={}, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
                    ),
                    channel=0,
                )
            case methods.ConnectionTune():
                self.say(
                    methods.ConnectionTuneOk(channel_max=10, frame_max=131072, heartbeat=0),
                    methods.ConnectionOpen(virtual_host="/"),
                    channel=0,
                )
            case methods.ConnectionOpenOk():
                wanted = [methods.ChannelOpen(), *self.set_up()]
                self._answers = [ANSWERS[type(one)] for one in wanted]
                self.say(*wanted)
            case methods.ConnectionClose():
                self.abandon()
            case methods.ChannelClose():
                self.refused(method)
            case _ if not self.open and self._answers and isinstance(method, self._answers[0]):
                self._answers.pop(0)
                self.on(method)
                if not self._answers:
                    self.open = True
                    self._back_off_us = BACK_OFF_US[0]
                    self.ready()
            case _ if channel == 0:
                pass
            case _:
                self.on(method)

    def refused(self, close: methods.ChannelClose) -> None:
        """The broker closed our channel: something that we asked for cannot be."""
        self.world.say(self.name, "is refused: %s", close.reply_text)
        self.abandon()


ANSWERS: dict[type[Method], type[Method]] = {
    methods.ChannelOpen: methods.ChannelOpenOk,
    methods.ConfirmSelect: methods.ConfirmSelectOk,
    methods.TxSelect: methods.TxSelectOk,
    methods.BasicQos: methods.BasicQosOk,
    methods.BasicConsume: methods.BasicConsumeOk,
    methods.QueueDeclare: methods.QueueDeclareOk,
    methods.ExchangeDeclare: methods.ExchangeDeclareOk,
    methods.QueueBind: methods.QueueBindOk,
}


class StreamClient(Client):
    """Calls, one at a time or several; those without an answer are lost with the connection."""

    kind = DIRECT

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._number = 0
        self._calls: dict[int, tuple[Callable[[Any], None], Callable[[TidemarkError | None], None]]] = {}

    def owed(self) -> bool:
        return bool(self._calls)

    def connected(self) -> None:
        self.open = True
        self._back_off_us = BACK_OFF_US[0]
        self.ready()

    def ready(self) -> None:
        """It can be used."""

    def call(
        self,
        work: Callable[[StreamSession], tuple[Any, int, int]],
        done: Callable[[Any], None],
        failed: Callable[[TidemarkError | None], None],
    ) -> None:
        """`failed` gets the error, or None when the answer will never come."""
        if self.end is None or not self.open:
            failed(None)
            return
        self._number += 1
        self._calls[self._number] = done, failed
        self.end.send(Call(self._number, work))

    def received(self, items: list[Any]) -> None:
        for replies in items:
            for reply in replies:
                assert isinstance(reply, Reply)
                done, failed = self._calls.pop(reply.number)
                if reply.error is None:
                    done(reply.value)
                else:
                    failed(reply.error)

    def lost(self) -> None:
        calls, self._calls = self._calls, {}
        for _, failed in calls.values():
            failed(None)
