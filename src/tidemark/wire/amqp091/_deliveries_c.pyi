from tidemark.wire.amqp091._deliveries_py import encode_deliveries as encode_deliveries
