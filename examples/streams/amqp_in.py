"""An ordinary AMQP client publishes, the key is the routing key, and the stream keeps the newest of each.

Nothing about the publisher is special: any AMQP 0-9-1 library in any language will do. The stream is a queue of type
`stream` that is bound to an exchange.

    python examples/streams/amqp_in.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import sys

import pika

import tidemark.client

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"

with pika.BlockingConnection(pika.URLParameters(URL.replace("tidemark://", "amqp://") + "%2F")) as connection:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("sensors", "topic")
    channel.queue_declare(
        "sensor-state", durable=True, arguments={"x-queue-type": "stream", "x-stream-key": "routing-key"}
    )
    channel.queue_bind("sensor-state", "sensors", "room.*")
    for reading in range(100):
        channel.basic_publish("sensors", f"room.{reading % 4}", b"%d" % reading)

    with tidemark.client.connect(URL) as db:
        newest = {row.key: int(row.value) for row in db.stream("sensor-state").snapshot()}
        print(newest)
        assert newest == {b"room.%d" % (n % 4): n for n in range(96, 100)}
        db.delete_stream("sensor-state")
    channel.exchange_delete("sensors")
