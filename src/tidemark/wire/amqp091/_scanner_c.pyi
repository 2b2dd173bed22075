from tidemark.wire.amqp091._scanner_py import Scanner as Scanner
from tidemark.wire.amqp091._scanner_py import inspect_properties as inspect_properties
