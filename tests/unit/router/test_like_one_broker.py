"""Whatever a client does, two groups behind a front answer as one broker does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend.harness import Client, Content, World, publish_frames
from unit.router.harness import Front

from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import Method, encode_method
from tidemark.wire.amqp091.properties import Properties, encode_properties

QUEUES = {"a": {}, "b": {}, "c": {"x-group": "fast"}, "d": {"x-group": "fast"}}
EXCHANGES = {"f": "fanout", "t": "topic", "h": "headers"}


class Script:
    """Steps of one client, drawn from dice: the bytes of each, so that two clients say just the same."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._number = 0

    def steps(self, count: int) -> list[bytes]:
        first = [
            encode_method(1, methods.ExchangeDeclare(exchange=each, type=kind))
            for each, kind in EXCHANGES.items()
        ]
        first += [encode_method(1, self._declare(queue)) for queue in QUEUES]
        if self._dice.random() < 0.5:
            first.append(encode_method(1, methods.ConfirmSelect()))
        return [*first, *(self._step() for _ in range(count))]

    def _step(self) -> bytes:
        draw = self._dice.random()
        if draw < 0.35:
            return b"".join(self._publish() for _ in range(self._dice.randrange(1, 5)))
        if draw < 0.6:
            return encode_method(1, methods.BasicGet(queue=self._queue(), no_ack=self._dice.random() < 0.2))
        if draw < 0.8:
            return encode_method(1, self._settle())
        return encode_method(1, self._change())

    def _queue(self) -> str:
        return self._dice.choice(
            [*QUEUES, *QUEUES, "", "nowhere"] if self._dice.random() < 0.1 else list(QUEUES)
        )

    def _declare(self, queue: str) -> methods.QueueDeclare:
        return methods.QueueDeclare(queue=queue, durable=True, arguments=QUEUES[queue])

    def _publish(self) -> bytes:
        dice = self._dice
        self._number += 1
        exchange = dice.choice(["", "", *EXCHANGES])
        if dice.random() < 0.01:
            exchange = "nowhere"
        headers: dict[str, Any] = {"x": dice.choice(["1", "2"])}
        if dice.random() < 0.2:
            headers["CC"] = [dice.choice(list(QUEUES))]
        key = dice.choice([*QUEUES, "k", ""])
        properties = encode_properties(Properties(headers=headers if dice.random() < 0.5 else None))
        return publish_frames(1, key, b"%d" % self._number, exchange, properties, dice.random() < 0.5)

    def _settle(self) -> Method:
        dice = self._dice
        tag, multiple = dice.randrange(0, 12), dice.random() < 0.4
        return dice.choice(
            [
                methods.BasicAck(tag, multiple),
                methods.BasicNack(tag, multiple, dice.random() < 0.7),
                methods.BasicReject(tag, dice.random() < 0.7),
                methods.BasicRecover(True),
            ]
        )

    def _change(self) -> Method:
        dice, queue = self._dice, self._queue()
        exchange = dice.choice([*EXCHANGES])
        match_any = {"x-match": "any", "x": dice.choice(["1", "2"])}
        arguments = match_any if exchange == "h" else {}
        key = dice.choice(["#", "a", "*"])
        return dice.choice(
            [
                methods.QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments),
                methods.QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments),
                methods.QueueUnbind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments),
                methods.QueuePurge(queue=queue),
                methods.QueueDelete(queue=queue, if_empty=dice.random() < 0.3),
                methods.QueueDeclare(queue=queue, passive=True)
                if queue
                else methods.BasicQos(prefetch_count=3),
                self._declare(dice.choice(list(QUEUES))),
                methods.ExchangeBind(destination="t", source="f", routing_key="a"),
            ]
        )


def said(client: Client) -> list[Any]:
    """What a client has heard, without what a front need not say alike."""
    heard = []
    for each in client.read_all():
        if isinstance(each, methods.BasicAck | methods.BasicNack):
            continue  # how many of them one answer covers is free
        if isinstance(each, methods.ChannelClose | methods.ConnectionClose):
            heard.append((type(each), each.reply_code, each.reply_text, each.class_id, each.method_id))
        elif isinstance(each, Content):
            heard.append((type(each.method), each.method, each.properties, each.body))
        else:
            heard.append(each)
    return heard


def answered(client: Client, step: bytes) -> list[Any]:
    client.write(step)
    heard = said(client)
    if any(isinstance(each, tuple) and each[0] is methods.ChannelClose for each in heard):
        client.send(1, methods.ChannelCloseOk())
        client.send(1, methods.ChannelOpen())
        heard += said(client)
    return heard


@pytest.mark.parametrize("slow", [False, True])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_two_groups_answer_as_one_broker_does(slow: bool, seed: int) -> None:
    one = World()
    one.broker.other_groups = {"fast": "chain"}
    one.broker.lives_elsewhere = lambda _: ""  # type: ignore[method-assign]  # here they do live, all of them
    front = Front("fast")
    alone, routed = one.open(), front.open()
    for number, step in enumerate(Script(Random(seed)).steps(60)):
        expected = answered(alone, step)
        if slow:
            front.copy.slow = True
            routed.write(step)
            front.copy.slow = False
            while front.copy.asked:
                front.copy.freshen()
            front.turn()
        heard = answered(routed, b"" if slow else step)
        assert heard == expected, (seed, number)
        if any(isinstance(each, tuple) and each[0] is methods.ConnectionClose for each in expected):
            return
    for queue in QUEUES:
        while True:
            ask = encode_method(1, methods.BasicGet(queue=queue, no_ack=True))
            expected, heard = answered(alone, ask), answered(routed, ask)
            assert heard == expected, (seed, queue)
            if not isinstance(heard[0], tuple) or heard[0][0] is not methods.BasicGetOk:
                break
