"""Runs of publishes and of deliveries. This module only picks the implementation."""

from tidemark.model._runs_py import (
    BODY,
    DIRECT_REPLY,
    EXCHANGE,
    FLAGS,
    HAS_COPIES,
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_PRODUCER,
    HAS_USER_ID,
    IMMEDIATE,
    KEY,
    MANDATORY,
    PERSISTENT,
    PRIORITY,
    PROPERTIES,
    REDELIVERED,
    ROW,
    TTL,
)
from tidemark.speed import PURE

if PURE:
    from tidemark.model._runs_py import PublishRun, Taken
else:
    from tidemark.model._runs_c import PublishRun, Taken

__all__ = [
    "BODY",
    "DIRECT_REPLY",
    "EXCHANGE",
    "FLAGS",
    "HAS_COPIES",
    "HAS_EXPIRATION",
    "HAS_HEADERS",
    "HAS_PRODUCER",
    "HAS_USER_ID",
    "IMMEDIATE",
    "KEY",
    "MANDATORY",
    "PERSISTENT",
    "PRIORITY",
    "PROPERTIES",
    "REDELIVERED",
    "ROW",
    "TTL",
    "PublishRun",
    "Taken",
]
