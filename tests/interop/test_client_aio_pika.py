"""aio-pika, used as its users use it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aio_pika
import pytest
from aio_pika.patterns import RPC, Master
from helpers.broker import Address, BrokerProcess

PATIENCE_S = 20.0


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def test_publish_get_and_consume(broker: Address, name: str) -> None:
    async def story() -> None:
        async with await aio_pika.connect_robust(broker.url()) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(name, "topic", auto_delete=True)
            queue = await channel.declare_queue(name, exclusive=True)
            await queue.bind(exchange, "a.*")
            for number in range(20):
                message = aio_pika.Message(b"%d" % number, headers={"n": number}, delivery_mode=2)
                await exchange.publish(message, f"a.{number}")

            first = await queue.get(timeout=5)
            assert (first.body, first.headers["n"]) == (b"0", 0)
            await first.ack()
            taken = []
            async with queue.iterator() as messages:
                async for each in messages:
                    async with each.process():
                        taken.append(each.body)
                    if len(taken) == 19:
                        break
            assert taken == [b"%d" % number for number in range(1, 20)]

    run(story())


def test_an_unroutable_message_raises_with_confirms(broker: Address, name: str) -> None:
    async def story() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), name)

    run(story())


def test_rejecting_and_requeueing_in_process(broker: Address, name: str) -> None:
    async def story() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
            message = await queue.get(timeout=5)
            with pytest.raises(ZeroDivisionError):
                async with message.process(requeue=True):
                    _ = 1 / 0
            again = await queue.get(timeout=5)
            assert again.redelivered
            await again.ack()
            assert await queue.get(timeout=5, fail=False) is None

    run(story())


def test_transactions(broker: Address, name: str) -> None:
    async def story() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name, exclusive=True)
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"kept"), name)
            undone = channel.transaction()
            await undone.select()
            await channel.default_exchange.publish(aio_pika.Message(b"undone"), name)
            await undone.rollback()
            message = await queue.get(timeout=5, no_ack=True)
            assert message.body == b"kept"
            assert await queue.get(timeout=5, fail=False) is None

    run(story())


def test_the_rpc_pattern_calls_and_raises(broker: Address, name: str) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def fail() -> None:
        raise ValueError("on purpose")

    async def story() -> None:
        async with await aio_pika.connect_robust(broker.url()) as connection:
            rpc = await RPC.create(await connection.channel())
            await rpc.register(f"{name}.multiply", multiply, auto_delete=True)
            await rpc.register(f"{name}.fail", fail, auto_delete=True)
            calls: list[Awaitable[int]] = [
                rpc.call(f"{name}.multiply", kwargs={"x": n, "y": n}) for n in range(50)
            ]
            assert await asyncio.gather(*calls) == [n * n for n in range(50)]
            with pytest.raises(ValueError, match="on purpose"):
                await rpc.call(f"{name}.fail")

    run(story())


def test_the_master_and_worker_pattern(broker: Address, name: str) -> None:
    done: list[int] = []

    async def work(*, task_id: int) -> None:
        done.append(task_id)

    async def story() -> None:
        async with await aio_pika.connect(broker.url()) as connection:
            master = Master(await connection.channel())
            worker = await master.create_worker(name, work, auto_delete=True)
            for task_id in range(30):
                await master.create_task(name, {"task_id": task_id})
            while len(done) < 30:
                await asyncio.sleep(0.02)
            await worker.close()
            assert sorted(done) == list(range(30))

    run(story())


def test_a_robust_connection_comes_back_after_the_broker_was_killed(
    own_broker: BrokerProcess, name: str
) -> None:
    async def story() -> None:
        url = own_broker.address.url() + "?reconnect_interval=0.2&fail_fast=no"
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True)
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await message.ack()
                await received.put(message.body)

            await queue.consume(take)
            await channel.default_exchange.publish(aio_pika.Message(b"1", delivery_mode=2), name)
            assert await asyncio.wait_for(received.get(), 5) == b"1"

            own_broker.kill()
            await asyncio.to_thread(own_broker.start)
            body = b"1"
            attempt: Callable[[], Awaitable[Any]] = lambda: channel.default_exchange.publish(  # noqa: E731
                aio_pika.Message(b"2", delivery_mode=2), name
            )
            while True:
                try:
                    await asyncio.wait_for(attempt(), 2)
                    break
                except (aio_pika.exceptions.AMQPError, ConnectionError, TimeoutError, RuntimeError):
                    await asyncio.sleep(0.1)
            while body != b"2":
                body = await asyncio.wait_for(received.get(), 5)

    run(story())
