"""A broker in memory and clients that talk to it in bytes, for tests of the front end.

`World` is the node without a disk: everything that the front end asks of `Services` is here, over a
real `Broker`. The two logs only count; `sync` says that they are on the disk. With `syncing` (the
default) every turn ends with a sync, as with a disk that takes no time.

`Client` writes frames with the wire's encoder and reads the answers back with its decoder.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

from tidemark.broker.broker import Broker
from tidemark.broker.config import BrokerConfig
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import ALONE, FrontEnd, Login, PeerInfo, Verdict
from tidemark.model.arena import JOURNAL, MEMORY, Arena, Writer
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.frames import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    encode_content,
)
from tidemark.wire.amqp091.methods import BasicPublish, Method, decode_method, encode_method
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties

START_MS = 1_700_000_000_000
PERSISTENT = encode_properties(Properties(delivery_mode=2))
PLAIN = encode_properties(Properties())


class CountingJournal(Writer):
    """Takes what the broker journals, remembers the settlements, and is durable when told so."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena, JOURNAL)
        self.durable_seq = 0
        self.histories = [(bytes(16), 1)]
        self.settlements: list[tuple[int, int]] = []

    @property
    def last_seq(self) -> int:
        return self.arena.next_seq - 1

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        self.settlements.append((queue, reason))
        return self._next()

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        return self._next()

    def _next(self) -> int:
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        return seq

    def ensure(self, need: int) -> None:
        pass

    def flush(self, now_ms: int) -> None:
        pass


class CountingCatalog:
    def __init__(self) -> None:
        self.durable_seq = 0
        self.last_seq = 0
        self.changes: list[bytes] = []

    def append(self, change: bytes, now_ms: int) -> int:
        self.changes.append(change)
        self.last_seq += 1
        return self.last_seq


class World:
    """Fits `Services`."""

    topology = staticmethod(lambda: ALONE)
    tails_only = False
    name = "tidemark"

    def __init__(self, *, syncing: bool = True, **settings: Any) -> None:
        self.config = Amqp091Config(**settings)
        self.syncing = syncing
        self.now_ms = START_MS
        self.arena = Arena()
        self.journal = CountingJournal(self.arena)
        self.catalog = CountingCatalog()
        self._dice = 0
        self.broker = Broker(
            arena=self.arena,
            memory=Writer(self.arena, MEMORY),
            journal=self.journal,
            catalog=self.catalog,
            content=Amqp091Content(),
            config=BrokerConfig(scrypt_log2_n=10),
            entropy=self._entropy,
        )
        self.broker.now_ms = self.now_ms
        self.broker.create_defaults()
        self.clients: dict[FrontEnd, Client] = {}
        self.notes: list[tuple[str, str, dict[str, object]]] = []
        self.logins: list[tuple[FrontEnd, Login]] = []
        self._touched: dict[FrontEnd, None] = {}
        self._waiting: dict[FrontEnd, None] = {}

    def _entropy(self, size: int) -> bytes:
        self._dice += 1
        return self._dice.to_bytes(size, "big")

    def journal_durable(self) -> int:
        return self.journal.durable_seq

    def catalog_durable(self) -> int:
        return self.catalog.durable_seq

    def journal_settlements(self) -> int:
        self.broker.look(self.now_ms)
        return self.journal.last_seq

    def authenticate(self, front_end: FrontEnd, login: Login) -> None:
        self.logins.append((front_end, login))

    def touched(self, front_end: FrontEnd) -> None:
        self._touched[front_end] = None

    def waiting(self, front_end: FrontEnd) -> None:
        self._waiting[front_end] = None

    def note(self, level: str, event: str, **facts: object) -> None:
        self.notes.append((level, event, facts))

    # What a shell does ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Answer logins, let the broker work, carry the output to the clients; until nothing moves."""
        for _ in range(1000):
            logins, self.logins = self.logins, []
            for front_end, login in logins:
                good = (login.user, login.password) == ("guest", "guest")
                front_end.verdict(Verdict("guest" if good else None, "wrong password"))
            self.broker.now_ms = self.now_ms
            self.broker.turn(self.now_ms)
            touched, self._touched = self._touched, {}
            for front_end in touched:
                self.clients[front_end].hear(b"".join(front_end.output()))
            if self.syncing and self._waiting:
                self.sync(turn=False)
            unfinished = self.broker.next_wake_ms() <= self.now_ms
            if not (self._touched or self.logins or self.broker.dirty or unfinished):
                return
        raise AssertionError("the world does not come to rest")

    def sync(self, *, turn: bool = True) -> None:
        """Everything written so far is on the disk."""
        self.journal.durable_seq = self.journal.last_seq
        self.catalog.durable_seq = self.catalog.last_seq
        waiting, self._waiting = self._waiting, {}
        for front_end in waiting:
            front_end.durable()
        if turn:
            self.turn()

    def pass_ms(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        for front_end in list(self.clients):
            front_end.tick(self.now_ms)
        self.turn()

    def connect(self, *, certificate_name: str | None = None, front: str = "") -> Client:
        """A client before its handshake; `front`: it comes over the link of that front."""
        port = 40_000 + len(self.clients)
        peer = PeerInfo("127.0.0.1", port, "127.0.0.1", 5672, False, certificate_name, front=front)
        front_end = Amqp091(self, peer)
        client = self.clients[front_end] = Client(self, front_end)
        return client

    def open(self, *, channels: int = 1, vhost: str = "/", front: str = "", **tune: int) -> Client:
        """A client after its handshake, with channels 1 to `channels` open."""
        client = self.connect(front=front)
        client.shake_hands(vhost=vhost, **tune)
        for number in range(1, channels + 1):
            client.ask(number, methods.ChannelOpen())
        return client

    def ready(self, queue: str) -> int:
        return self.broker.vhosts["/"].queues[queue].ready


@dataclass(frozen=True, slots=True)
class Content:
    """A method with a message: Deliver, GetOk or Return."""

    method: Any
    properties: Properties
    body: bytes


class Client:
    """The other end of one connection."""

    def __init__(self, world: World, front_end: Amqp091) -> None:
        self.world = world
        self.front_end = front_end
        self.inbox: deque[tuple[int, Any]] = deque()
        """(channel, method or content) as they came; heartbeats are None."""
        self.raw = b""
        self._pending = b""
        self._unsent = b""
        self._partial: tuple[Any, Properties, int, bytes] | None = None

    # Out -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes from the client, and a turn."""
        self._unsent += data
        used = self.front_end.receive(memoryview(self._unsent))
        self._unsent = self._unsent[used:]
        self.world.turn()

    def send(self, channel: int, *sent: Method) -> None:
        self.write(b"".join(encode_method(channel, method) for method in sent))

    def publish(
        self,
        channel: int,
        key: str,
        *bodies: bytes,
        exchange: str = "",
        properties: bytes = PLAIN,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        self.write(
            b"".join(
                publish_frames(channel, key, body, exchange, properties, mandatory, immediate)
                for body in bodies
            )
        )

    # In ------------------------------------------------------------------------------------------

    def hear(self, data: bytes) -> None:
        self.raw += data
        self._pending += data
        while len(self._pending) >= 8:
            if self._pending.startswith(b"AMQP"):
                self.inbox.append((0, self._pending[:8]))
                self._pending = self._pending[8:]
                continue
            kind, channel, size = struct.unpack_from(">BHI", self._pending)
            if len(self._pending) < size + 8:
                return
            payload, self._pending = self._pending[7 : 7 + size], self._pending[8 + size :]
            self._frame(kind, channel, payload)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == HEARTBEAT:
            self.inbox.append((channel, None))
            return
        if kind == METHOD:
            method = decode_method(payload)
            if isinstance(method, methods.BasicDeliver | methods.BasicGetOk | methods.BasicReturn):
                self._partial = method, Properties(), 0, b""
            else:
                self.inbox.append((channel, method))
            return
        assert self._partial is not None
        method, properties, size, body = self._partial
        if kind == HEADER:
            (size,) = struct.unpack_from(">Q", payload, 4)
            properties = decode_properties(payload[12:])
        else:
            assert kind == BODY
            body += payload
        self._partial = method, properties, size, body
        if len(body) == size:
            self._partial = None
            self.inbox.append((channel, Content(method, properties, body)))

    def read(self) -> Any:
        """The next thing that came, whatever its channel."""
        return self.inbox.popleft()[1]

    def read_all(self) -> list[Any]:
        everything = [each for _, each in self.inbox]
        self.inbox.clear()
        return everything

    def ask(self, channel: int, method: Method) -> Any:
        """Send, and take the one answer."""
        self.send(channel, method)
        assert len(self.inbox) == 1, self.inbox
        assert self.inbox[0][0] == channel
        return self.read()

    def ask_connection(self, channel: int, method: Method) -> Any:
        """Send, and take the one answer, which is about the whole connection."""
        self.send(channel, method)
        [(number, answer)] = self.inbox
        self.inbox.clear()
        assert number == 0
        return answer

    def bodies(self) -> list[bytes]:
        """The bodies of the deliveries that came; nothing else may have."""
        return [content.body for content in self.read_all()]

    # Usual openings ----------------------------------------------------------------------------------

    def shake_hands(
        self,
        *,
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        capabilities: tuple[str, ...] = (
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
        ),
    ) -> None:
        self.write(PROTOCOL_HEADER)
        assert isinstance(self.read(), methods.ConnectionStart)
        properties = {"capabilities": dict.fromkeys(capabilities, True)}
        start_ok = methods.ConnectionStartOk(
            client_properties=properties, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
        )
        assert isinstance(self.ask(0, start_ok), methods.ConnectionTune)
        tune_ok = methods.ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.send(0, tune_ok)
        answer = self.ask(0, methods.ConnectionOpen(virtual_host=vhost))
        assert isinstance(answer, methods.ConnectionOpenOk), answer

    def declare(self, queue: str, channel: int = 1, **options: Any) -> methods.QueueDeclareOk:
        answer = self.ask(channel, methods.QueueDeclare(queue=queue, **options))
        assert isinstance(answer, methods.QueueDeclareOk), answer
        return answer


def publish_frames(
    channel: int,
    key: str,
    body: bytes,
    exchange: str = "",
    properties: bytes = PLAIN,
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    method = BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
    return encode_method(channel, method) + encode_content(channel, properties, body, 131072)
