"""AMQP 0-9-1 on the wire. Start at `methods.py` (the table), `scanner.py` (bytes in), `deliveries.py` (bytes out)."""
