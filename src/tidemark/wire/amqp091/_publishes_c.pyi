from tidemark.wire.amqp091._publishes_py import encode_publishes as encode_publishes
from tidemark.wire.amqp091._publishes_py import stretch as stretch
