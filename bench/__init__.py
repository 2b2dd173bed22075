"""Tidemark measured against RabbitMQ, a null broker and the bare disk on the same machine."""
