"""/api/definitions: everything that was declared, in and out, in RabbitMQ's format."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, shown
from tidemark.admin.pace import Pace
from tidemark.admin.routing import OBJECT, TAGS, Entry, Schema, an_object
from tidemark.admin.visit import Visit
from tidemark.broker import access, definitions


async def export(visit: Visit) -> Response:
    return await _export(visit, None)


async def export_vhost(visit: Visit) -> Response:
    return await _export(visit, visit.vhost().name)


async def _export(visit: Visit, vhost: str | None) -> Response:
    """What is here now; writing it down takes a while when it is much, and is done in slices."""
    pieces = [paging.encoded(definitions.HEAD)[:-1]]
    for name, (specs, describe) in definitions.outline(visit.broker, vhost).items():
        pieces.append(b',"%s":[' % name.encode())
        pieces += paging.with_commas(await paging.texts(specs, describe))
        pieces.append(b"]")
    return paging.Pieces([*pieces, b"}"])


async def load(visit: Visit) -> Response:
    return await _load(visit, None)


async def load_vhost(visit: Visit) -> Response:
    return await _load(visit, visit.vhost().name)


async def _load(visit: Visit, vhost: str | None) -> Response:
    given: dict[str, Any] = await body(visit.request)
    if vhost is None and isinstance(given.get("users"), list):
        given = {**given, "users": [await _hashed(visit, user) for user in given["users"]]}
        visit.must_lead()  # hashing took a while
    made = await _imported(visit, given, vhost)
    await visit.safe(made.safe_at)
    return shown({"made": made.made, "kept": made.kept, "left_out": list(made.left_out)})


async def _imported(visit: Visit, given: dict[str, Any], vhost: str | None) -> definitions.Imported:
    """Import in slices: all is checked before anything is made."""
    server, node, pace = visit.server, visit.server.node, Pace()
    node.at(server.clock.now_ms())
    steps = definitions.import_steps(node.broker, given, vhost)
    try:
        while True:
            next(steps)
            if pace.is_over():
                await pace.rest()
                visit.must_lead()
                if server.node is not node:
                    words = "another member led meanwhile; what was made by then stays: import it again"
                    raise Refused(503, "not_leading", words)
                node.at(server.clock.now_ms())
    except StopIteration as end:
        done: definitions.Imported = end.value
        return done
    finally:
        server.due()


async def _hashed(visit: Visit, user: Any) -> Any:
    """With a hash in place of a password: hashing takes long, so it is done before the import and beside the loop."""
    password = user.get("password") if isinstance(user, dict) else None
    name = user.get("name") if isinstance(user, dict) else None
    if not isinstance(password, str) or not password or not isinstance(name, str):
        return user
    known = visit.broker.access.users.get(name)
    if known is not None and await asyncio.to_thread(access.verify, known.password_hash, password):
        stored = known.password_hash
    else:
        stored = await asyncio.to_thread(visit.broker.password_hash, password)
    rest = {key: value for key, value in user.items() if key != "password"}
    return {**rest, "password_hash": stored, "hashing_algorithm": definitions.SCRYPT}


MADE: Schema = an_object(made=OBJECT, kept=OBJECT, left_out=TAGS)
DOCUMENT_BYTES_MAX = 64 << 20
ONE = "/definitions/{vhost}"

routes = [
    Entry("GET", "/definitions", export, "Export all", "definitions", answer=OBJECT, needs="administrator"),
    Entry(
        "POST",
        "/definitions",
        load,
        "Import",
        "definitions",
        body=OBJECT,
        answer=MADE,
        needs="administrator",
        body_bytes_max=DOCUMENT_BYTES_MAX,
    ),
    Entry(
        "GET", ONE, export_vhost, "Export a virtual host", "definitions", answer=OBJECT, needs="policymaker"
    ),
    Entry(
        "POST",
        ONE,
        load_vhost,
        "Import into a virtual host",
        "definitions",
        body=OBJECT,
        answer=MADE,
        needs="administrator",
        body_bytes_max=DOCUMENT_BYTES_MAX,
    ),
]
