"""Tidemark: a durable message broker. Start at ARCHITECTURE.md."""

__version__ = "0.1.0"
