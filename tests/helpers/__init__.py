"""What the tests share: broker processes, a raw AMQP socket, small AMQP conveniences."""
