"""AMQP 0-9-1: `connection.py` has the connection's states, `channel.py` a channel's, each with its table."""
