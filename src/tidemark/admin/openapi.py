"""The OpenAPI 3.1 document of the API, made from its entries.

Every refusal has the same form, so it is one component; which refusals an endpoint can give follows from what it needs
and takes. Names in a path are any text, quoted.

Invariant: an endpoint that is routed is in the document, and nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tidemark import __version__
from tidemark.admin.routing import Entry, Query, Schema, an_object

NAMES = re.compile(r"{(\w+)}")
REASONS = {
    400: "What was sent cannot be.",
    401: "No login, a wrong one, or one that may not do this.",
    403: "A changing request with the cookie of a login needs the header X-Tidemark.",
    404: "There is no such thing, or it is not for this visitor.",
    405: "This path does not have that method.",
    409: "It cannot be done now; the reason says why.",
    413: "The body is too large.",
    429: "Too many failed logins from this address; Retry-After says when to try again.",
    503: "Another member leads, or the store has failed.",
}
SECURITY: list[dict[str, list[str]]] = [{"basic": []}, {"token": []}, {"cookie": []}]


def document(entries: Sequence[Entry]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for entry in entries:
        paths.setdefault(entry.full_path, {})[entry.method.lower()] = _operation(entry)
    tags = sorted({entry.tag for entry in entries if entry.tag})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": __version__,
            "description": "The management API. Paths and fields that RabbitMQ has too are as it has them.",
        },
        "tags": [{"name": tag} for tag in tags],
        "security": SECURITY,
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {
                "Refusal": an_object(error={"type": "string"}, reason={"type": "string"}),
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "tidemark-PORT"},
            },
        },
    }


def _operation(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _identifier(entry),
        "summary": entry.summary,
        "x-needs": entry.needs,
        "responses": _responses(entry),
    }
    if entry.tag:
        made["tags"] = [entry.tag]
    if entry.needs == "nothing":
        made["security"] = []
    parameters = [_in_path(name) for name in NAMES.findall(entry.path)] + [
        _in_query(one) for one in entry.query
    ]
    if parameters:
        made["parameters"] = parameters
    if entry.body is not None:
        made["requestBody"] = {
            "required": bool(entry.body.get("required")),
            "content": {"application/json": {"schema": entry.body}},
        }
    return made


def _identifier(entry: Entry) -> str:
    words = NAMES.sub(r"by_\1", entry.full_path).strip("/")
    return entry.method.lower() + "_" + re.sub(r"\W+", "_", words)


def _in_path(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(query: Query) -> dict[str, Any]:
    schema: Schema = {"type": "array", "items": query.schema} if query.many else query.schema
    made: dict[str, Any] = {"name": query.name, "in": "query", "required": query.required, "schema": schema}
    if query.many:
        made |= {"style": "form", "explode": True}
    if query.text:
        made["description"] = query.text
    return made


def _responses(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status in entry.successes:
        if status == 200 and entry.media != "application/json":
            content = {"content": {entry.media: {"schema": {"type": "string"}}}}
        elif status == 200 and entry.answer is not None:
            content = {"content": {"application/json": {"schema": entry.answer}}}
        else:
            content = {}
        made[str(status)] = {
            "description": {200: "OK", 201: "Made.", 204: "Done."}.get(status, "OK"),
            **content,
        }
    for status in _refusals(entry):
        made[str(status)] = {
            "description": REASONS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
        }
    return made


def _refusals(entry: Entry) -> list[int]:
    found = {400}
    if entry.needs != "nothing" or entry.changes:
        found |= {401, 429}
    if NAMES.search(entry.path):
        found.add(404)
    if entry.changes:
        found |= {403, 409, 503}
    if entry.body is not None:
        found.add(413)
    # What it says of itself comes first.
    return sorted((found | {404, 409, 503}) - set(entry.successes))
