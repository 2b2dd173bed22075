"""The endpoints of the API, and requests to them that could be meant, made from what their entries say.

A new endpoint is in these tests as soon as it is in the API. What is expected of it is not read from the code that
enforces it: `LEAST` says which paths are for whom, and a path that it does not know may do no harm to anybody's things.
"""

from __future__ import annotations

import re
from typing import Any

from tidemark.admin.app import all_entries
from tidemark.admin.routing import Entry

ENTRIES: list[Entry] = sorted(all_entries(), key=lambda entry: (entry.path, entry.method))
CLOSED = [entry for entry in ENTRIES if entry.needs != "nothing"]
CHANGING = [entry for entry in CLOSED if entry.changes]
READING = [entry for entry in CLOSED if entry.method == "GET" and entry.media == "application/json"]
NAMES = re.compile(r"{(\w+)}")

KNOWN = {
    "vhost": "%2F",
    "queue": "a-queue",
    "exchange": "amq.direct",
    "source": "amq.direct",
    "destination": "a-queue",
    "kind": "q",
    "user": "somebody",
    "stream": "a-stream",
    "node": "tidemark",
    "consumer": "a-consumer",
    "pin": "a-pin",
    "key": "k",
    "command": "promote",
    "props": "~",
    "component": "operator_policy",
    "name": "a-name",
    "limit": "max-connections",
    "mode": "standalone",
}
"""Things that are there, so that a request gets as far as it can."""

LEAST: list[tuple[str, str, str]] = [
    # Methods, path, the least tag that may.
    (r"GET|PUT|POST|DELETE", r"/users(/.*)?", "administrator"),
    (r"GET", r"/(topic-)?permissions(/.*)?", "administrator"),
    (r"PUT|DELETE", r"/(topic-)?permissions/.*", "administrator"),
    (r"GET|POST", r"/definitions", "administrator"),
    (r"POST", r"/definitions/.*", "administrator"),
    (r"PUT|DELETE|POST", r"/vhosts/{vhost}.*", "administrator"),
    (r"GET", r"/nodes(/.*)?", "monitoring"),
    (r"PUT|DELETE", r"/operator-policies/.*", "administrator"),
    (r"PUT|DELETE", r"/policies/.*", "policymaker"),
    (r"GET|PUT|DELETE", r"/parameters.*", "policymaker"),
    (r"GET", r"/global-parameters.*", "policymaker"),
    (r"PUT|DELETE", r"/global-parameters/.*", "administrator"),
    (r"PUT|DELETE", r"/(vhost|user)-limits/.*", "administrator"),
    (r"PUT", r"/cluster-name", "administrator"),
    (r"POST", r"/tidemark/cluster/.*", "administrator"),
    (r"GET", r"/(tidemark/cluster|members|takeovers|histories)", "monitoring"),
]


def identity(entry: Entry) -> str:
    return f"{entry.method} {entry.full_path}"


def path_of(entry: Entry, **names: str) -> str:
    """The path with names of things that are there, or those that are given."""
    return NAMES.sub(lambda found: names.get(found[1], KNOWN.get(found[1], "x")), entry.full_path)


def query_of(entry: Entry) -> str:
    return "?path=/whoami" if entry.path == "/live" else ""


def example(schema: dict[str, Any] | None) -> Any:
    """Something that a schema allows."""
    if schema is None:
        return None
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: example(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            return "x"
    return {}


def least(entry: Entry) -> str:
    """The least tag that this endpoint is meant for."""
    for methods, path, tag in LEAST:
        if re.fullmatch(methods, entry.method) and re.fullmatch(path, entry.path):
            return tag
    return "management"
