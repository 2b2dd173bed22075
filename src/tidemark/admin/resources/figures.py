"""Numbers about messages as RabbitMQ's clients expect them, with rates, and with samples when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.admin.routing import COUNT, NUMBER, Query, Schema, a_list, an_object
from tidemark.admin.visit import Call
from tidemark.runtime.rates import CHANNEL, EXCHANGE, MESSAGES

AGE_S_MAX = 86_400
COUNTED = {
    "overview": (*MESSAGES, "confirm", "return_unroutable", "drop_unroutable"),
    "vhost": MESSAGES,
    "queue": MESSAGES,
    "exchange": EXCHANGE,
    "channel": CHANNEL,
}

SPANS = tuple(
    Query(f"{of}_{what}", {"type": "integer", "minimum": 1, "maximum": AGE_S_MAX}, text)
    for of, text in (
        ("lengths", "Samples of queue lengths"),
        ("msg_rates", "Samples of message rates"),
        ("data_rates", "Samples of bytes"),
    )
    for what in ("age", "incr")
)
"""How far back samples shall go, in seconds, and how far apart they shall be. Both of a pair, or there are none."""

RATE: Schema = an_object({"samples": a_list(an_object(sample=NUMBER, timestamp=COUNT))}, rate=NUMBER)
LENGTHS: Schema = {
    "messages": COUNT,
    "messages_details": RATE,
    "messages_ready": COUNT,
    "messages_ready_details": RATE,
    "messages_unacknowledged": COUNT,
    "messages_unacknowledged_details": RATE,
}


def ages(call: Call) -> dict[str, Any]:
    """The samples that a request asks for. Raises Refused for what is no number."""
    found = {query.name: call.number(query.name, None, 1, AGE_S_MAX) for query in SPANS}
    return {name: value for name, value in found.items() if value is not None}


def stats(call: Call, kind: str, key: Any, spans: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The message_stats of something. When anything was counted, all that could have been is there, be it 0."""
    found = call.server.rates.details(kind, key, **(spans or {}))
    if not any(value for name, value in found.items() if not name.endswith("_details")):
        return {}
    for name in COUNTED[kind]:
        found.setdefault(name, 0)
        found.setdefault(f"{name}_details", {"rate": 0.0})
    return found


def together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers and rates of several things, added up."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                rate = total.get(name, {"rate": 0.0})["rate"] + value["rate"]
                total[name] = {"rate": round(rate, 3)}
            else:
                total[name] = total.get(name, 0) + value
    return total
