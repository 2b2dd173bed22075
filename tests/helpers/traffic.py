"""Mixed traffic on a broker that may die at any moment, and the history of what was seen.

Every client is a thread with one raw connection: publishers with a window of unconfirmed
messages, a publisher of transient messages, a publisher that commits in transactions, a mover
that takes from one queue and publishes to another in one transaction, and one consumer for
each queue. A client whose connection breaks connects again and goes on; it never sends a
message a second time. Anything but a broken connection stops the traffic and is raised.

Invariant: an event is in `history` before the next step of the same client.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from typing import NamedTuple

from helpers import raw as amqp
from helpers.broker import Address
from helpers.history import (
    Committed,
    Committing,
    Confirmed,
    Delivered,
    Event,
    Message,
    Sent,
    Settled,
    Undone,
)
from helpers.raw import RawConnection

PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\x10\x00\x01"
DURABLE = 2
WINDOW = 64
BACKLOG = 2000  # publishers pause while this many messages have not come out
STALL_S = 20.0  # no answer for so long is a fault of the broker


class Taken(NamedTuple):
    tag: int
    message: Message


def encode_body(message: Message, dice: random.Random) -> bytes:
    """Name and number, padding of a random size, and a checksum over all of it."""
    size = dice.choices((0, 100, 1000, 20_000, 200_000), (50, 100, 20, 4, 1))[0]
    data = f"{message.producer}:{message.number}:".encode() + dice.randbytes(dice.randint(0, size))
    return data + zlib.crc32(data).to_bytes(4, "big")


def decode_body(body: bytes) -> Message:
    data, checksum = body[:-4], body[-4:]
    assert zlib.crc32(data).to_bytes(4, "big") == checksum, "a body came out damaged"
    producer, number, _ = data.split(b":", 2)
    return Message(producer.decode(), int(number))


class Traffic:
    """All the clients; `start`, then kill the broker as often as you like, then `drain`."""

    def __init__(self, address: Address, seed: int, prefix: str = "kill") -> None:
        self.history: list[Event] = []
        self.redelivered = 0
        self._address = address
        self._seed = seed
        self._queues = [f"{prefix}-{number}" for number in range(3)]
        self._tx_in, self._tx_out = f"{prefix}-tx-in", f"{prefix}-tx-out"
        self._fanout = f"{prefix}-all"
        self._publishing = True
        self._moving = True
        self._failures: list[str] = []
        self._sent = self._came_out = 0
        self._transactions = 0
        self._publishers: list[threading.Thread] = []
        self._mover = self._thread("mover", self._move)
        self._consumers = [
            self._thread(f"consumer-{queue}", self._consume, queue) for queue in (*self._queues, self._tx_out)
        ]
        for number in range(3):
            self._publishers.append(self._thread(f"p{number}", self._publish))
        self._publishers.append(self._thread("transient", self._publish_transient))
        self._publishers.append(self._thread("tx", self._publish_in_transactions))

    @property
    def all_queues(self) -> list[str]:
        return [*self._queues, self._tx_in, self._tx_out]

    def start(self) -> None:
        with RawConnection(self._address) as connection:
            connection.handshake()
            connection.declare_exchange(1, self._fanout, "fanout", bits=DURABLE)
            for queue in self.all_queues:
                connection.declare_queue(1, queue, bits=DURABLE)
            for queue in self._queues:
                connection.bind_queue(1, queue, self._fanout)
        for thread in (*self._publishers, self._mover, *self._consumers):
            thread.start()

    def broker_restarted(self) -> None:
        """Count the backlog from nothing again: what was unconfirmed may be gone."""
        self._sent = self._came_out = 0

    def check_alive(self) -> None:
        """Raise what a client has found wrong, if any has."""
        assert not self._failures, "\n".join(self._failures)

    def drain(self, timeout_s: float = 60.0) -> None:
        """Stop publishing, let everything come out, and end the clients: for as long as something does."""
        self._publishing = False
        self._join(self._publishers, timeout_s)
        self._moving = False
        self._join([self._mover], timeout_s)
        self._drained = True
        self._join(self._consumers, timeout_s)
        self.check_alive()

    def look_for_leftovers(self) -> None:
        """Take what is still in the queues; the history says whether it may be there."""
        with RawConnection(self._address) as connection:
            connection.handshake()
            for queue in self.all_queues:
                connection.get(1, queue)
                while (frame := connection.read_frame()).method == amqp.GET_OK:
                    message = decode_body(_content(connection))
                    self.history.append(Delivered(message, queue))
                    connection.get(1, queue)
                assert frame.method == amqp.GET_EMPTY

    def remove(self) -> None:
        """Delete the queues and the exchange, on a broker that others use too."""
        with RawConnection(self._address) as connection:
            connection.handshake()
            for queue in self.all_queues:
                connection.send_method(1, (50, 40), amqp.short(0) + amqp.shortstr(queue) + amqp.octet(0))
                connection.expect((50, 41))
            connection.send_method(1, (40, 20), amqp.short(0) + amqp.shortstr(self._fanout) + amqp.octet(0))
            connection.expect((40, 21))

    # Threads ----------------------------------------------------------------------------

    _drained = False

    def _thread(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        dice = random.Random(f"{self._seed}/{name}")

        def run() -> None:
            try:
                work(name, dice, *arguments)
            except BaseException:
                self._failures.append(f"client {name}:\n{traceback.format_exc()}")

        return threading.Thread(target=run, name=name, daemon=True)

    def _join(self, threads: list[threading.Thread], timeout_s: float) -> None:
        """Wait for their end. How much there is to do depends on how busy the machine was, so only standing still is a fault."""
        came_out, deadline = self._came_out, time.monotonic() + timeout_s
        for thread in threads:
            while thread.is_alive():
                self.check_alive()
                if self._came_out != came_out:
                    came_out, deadline = self._came_out, time.monotonic() + timeout_s
                assert time.monotonic() < deadline, f"client {thread.name} does not come to an end"
                thread.join(0.05)

    def _sessions(self, while_true: Callable[[], bool], session: Callable[[RawConnection], None]) -> None:
        """Run sessions, each on a new connection, until one ends without a broken connection."""
        while while_true():
            try:
                with RawConnection(self._address, STALL_S) as connection:
                    connection.handshake()
                    session(connection)
                    return
            except TimeoutError:
                raise
            except OSError:
                self.check_alive()
                time.sleep(0.02)

    def _wait_for_room(self) -> None:
        while self._publishing and self._sent - self._came_out > BACKLOG:
            time.sleep(0.005)

    # Publishers -------------------------------------------------------------------------

    def _publish(self, name: str, dice: random.Random) -> None:
        numbers = iter(range(1 << 60))

        def session(connection: RawConnection) -> None:
            connection.send_method(1, amqp.CONFIRM_SELECT, b"\0")
            connection.expect(amqp.CONFIRM_SELECT_OK)
            unconfirmed: dict[int, Message] = {}
            tag = 0
            while self._publishing:
                self._wait_for_room()
                batch = []
                for _ in range(dice.randint(1, WINDOW // 2)):
                    message = Message(name, next(numbers))
                    tag += 1
                    unconfirmed[tag] = message
                    batch.append(self._encode(message, dice, PERSISTENT))
                connection.send(b"".join(batch))
                while len(unconfirmed) > (dice.randint(0, WINDOW // 2)):
                    self._read_confirm(connection, unconfirmed)
            while unconfirmed:
                self._read_confirm(connection, unconfirmed)

        self._sessions(lambda: self._publishing, session)

    def _encode(self, message: Message, dice: random.Random, properties: bytes) -> bytes:
        body = encode_body(message, dice)
        if dice.random() < 0.2:
            exchange, key, queues = self._fanout, "", tuple(self._queues)
        else:
            key = dice.choice(self._queues)
            exchange, queues = "", (key,)
        self._sent += len(queues)
        self.history.append(Sent(message, queues))
        return amqp.encode_publish(1, exchange, key, body, properties)

    def _read_confirm(self, connection: RawConnection, unconfirmed: dict[int, Message]) -> None:
        arguments = connection.expect(amqp.ACK).arguments
        last, multiple = arguments.longlong(), arguments.octet()
        tags = [tag for tag in unconfirmed if tag <= last] if multiple else [last]
        for tag in tags:
            self.history.append(Confirmed(unconfirmed.pop(tag)))

    def _publish_transient(self, name: str, dice: random.Random) -> None:
        numbers = iter(range(1 << 60))

        def session(connection: RawConnection) -> None:
            while self._publishing:
                self._wait_for_room()
                connection.send(self._encode(Message(name, next(numbers)), dice, TRANSIENT))
                time.sleep(dice.uniform(0, 0.02))
            connection.close_channel(1)
            connection.expect(amqp.CHANNEL_CLOSE_OK)

        self._sessions(lambda: self._publishing, session)

    # Transactions -----------------------------------------------------------------------

    def _publish_in_transactions(self, name: str, dice: random.Random) -> None:
        numbers = iter(range(1 << 60))

        def session(connection: RawConnection) -> None:
            self._select(connection)
            while self._publishing:
                self._wait_for_room()
                batch = [
                    (Message(name, next(numbers)), dice.choice((self._tx_in, self._queues[1])))
                    for _ in range(dice.randint(2, 6))
                ]
                self._send_in_transaction(connection, dice, batch)
                messages = tuple(message for message, _ in batch)
                if dice.random() < 0.1:
                    self.history.append(Undone(messages))
                    connection.send_method(1, amqp.TX_ROLLBACK)
                    connection.expect(amqp.TX_ROLLBACK_OK)
                else:
                    self._commit(connection, messages, ())

        self._sessions(lambda: self._publishing, session)

    def _select(self, connection: RawConnection) -> None:
        connection.send_method(1, amqp.TX_SELECT)
        connection.expect(amqp.TX_SELECT_OK)

    def _send_in_transaction(
        self, connection: RawConnection, dice: random.Random, batch: list[tuple[Message, str]]
    ) -> None:
        """Publish without committing; when the connection breaks, the batch is undone."""
        for message, queue in batch:
            self.history.append(Sent(message, (queue,)))
        self._sent += len(batch)
        try:
            for message, queue in batch:
                body = encode_body(message, dice)
                connection.send(amqp.encode_publish(1, "", queue, body, PERSISTENT))
        except OSError:
            self.history.append(Undone(tuple(message for message, _ in batch)))
            raise

    def _commit(
        self,
        connection: RawConnection,
        publishes: tuple[Message, ...],
        acks: tuple[tuple[Message, str], ...],
    ) -> list[Taken]:
        """Commit; what was delivered before the answer."""
        with _COUNTING:
            self._transactions += 1
            transaction = self._transactions
        self.history.append(Committing(transaction, publishes, acks))
        connection.send_method(1, amqp.TX_COMMIT)
        meanwhile = []
        while (frame := connection.read_frame()).method != amqp.TX_COMMIT_OK:
            meanwhile.append(self._delivery(connection, frame, self._tx_in))
        self.history.append(Committed(transaction))
        return meanwhile

    def _move(self, name: str, dice: random.Random) -> None:
        """Take from tx-in and publish to tx-out, each batch in one transaction."""
        numbers = iter(range(1 << 60))

        def session(connection: RawConnection) -> None:
            self._select(connection)
            connection.qos(1, 20)
            connection.consume(1, self._tx_in, "mover")
            held: list[Taken] = []
            while True:
                taken = self._next_delivery(connection, self._tx_in, wait_s=0.3)
                if taken is not None:
                    held.append(taken)
                elif not held:
                    if not self._moving:
                        return
                    continue
                if taken is not None and len(held) < 10 and dice.random() < 0.8:
                    continue
                moved = [(Message(name, next(numbers)), self._tx_out) for _ in held]
                self._send_in_transaction(connection, dice, moved)
                for each in held:
                    connection.ack(1, each.tag)
                messages = tuple(message for message, _ in moved)
                acks = tuple((each.message, self._tx_in) for each in held)
                held = self._commit(connection, messages, acks)

        self._sessions(lambda: True, session)

    # Consumers --------------------------------------------------------------------------

    def _consume(self, name: str, dice: random.Random, queue: str) -> None:
        def session(connection: RawConnection) -> None:
            while self._read_for_a_while(connection, dice, queue):
                connection.open_channel(1)

        self._sessions(lambda: True, session)

    def _read_for_a_while(self, connection: RawConnection, dice: random.Random, queue: str) -> bool:
        """One life of channel 1: consume, acknowledge, close. False when the queue is drained."""
        connection.qos(1, 50)
        connection.consume(1, queue, "reader")
        held: list[Taken] = []
        acked: list[Message] = []
        life = dice.randint(20, 400)
        empty = False
        while life > 0 and not empty:
            life -= 1
            taken = self._next_delivery(connection, queue, wait_s=0.3)
            if taken is not None:
                held.append(taken)
                self._settle_some(connection, dice, held, acked)
            elif held:
                connection.ack(1, held[-1].tag, multiple=True)
                acked += [each.message for each in held]
                held.clear()
            else:
                empty = self._drained
        connection.close_channel(1)
        while (frame := connection.read_frame()).method != amqp.CHANNEL_CLOSE_OK:
            # It was delivered while the channel was closing: not acknowledged, so it comes again.
            assert frame.method == amqp.DELIVER, frame
            _content(connection)
            empty = False
        self.history.extend(Settled(message, queue) for message in acked)
        return not empty

    def _settle_some(
        self,
        connection: RawConnection,
        dice: random.Random,
        held: list[Taken],
        acked: list[Message],
    ) -> None:
        roll = dice.random()
        if roll < 0.02:
            each = held.pop(dice.randrange(len(held)))
            connection.nack(1, each.tag, requeue=True)
        elif roll < 0.35:
            each = held.pop(dice.randrange(len(held)))
            connection.ack(1, each.tag)
            acked.append(each.message)
        elif roll < 0.45 or len(held) > 40:
            count = dice.randint(1, len(held))
            connection.ack(1, held[count - 1].tag, multiple=True)
            acked += [each.message for each in held[:count]]
            del held[:count]

    def _next_delivery(self, connection: RawConnection, queue: str, wait_s: float) -> Taken | None:
        try:
            frame = connection.read_frame(wait_s)
        except TimeoutError:
            return None
        return self._delivery(connection, frame, queue)

    def _delivery(self, connection: RawConnection, frame: amqp.Frame, queue: str) -> Taken:
        assert frame.method == amqp.DELIVER, f"not a delivery: {frame}"
        arguments = frame.arguments
        arguments.shortstr()
        tag, redelivered = arguments.longlong(), arguments.octet()
        message = decode_body(_content(connection))
        self.history.append(Delivered(message, queue))
        self.redelivered += redelivered
        self._came_out += 1
        return Taken(tag, message)


_COUNTING = threading.Lock()


def _content(connection: RawConnection) -> bytes:
    """The header and body frames that follow a method."""
    header = connection.read_frame()
    assert header.kind == amqp.HEADER
    size = amqp.Reader(header.payload[4:12]).longlong()
    body = b""
    while len(body) < size:
        body += connection.read_frame().payload
    return body
