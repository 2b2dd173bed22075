"""/api/health/checks/… and /api/aliveness-test: for whoever watches the broker."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from tidemark.admin.answers import refusal, shown
from tidemark.admin.visit import Visit


async def alarms(visit: Visit) -> Response:
    reason = visit.server.node.alarms.reason
    if reason is None:
        return shown({"status": "ok"})
    return JSONResponse({"status": "failed", "reason": f"publishers are blocked: {reason}"}, 503)


async def alive(visit: Visit) -> Response:
    """The journal takes what it is given."""
    failed = visit.server.node.failed
    return shown({"status": "ok"}) if failed is None else refusal(503, "store_failed", str(failed))


async def aliveness(visit: Visit) -> Response:
    visit.vhost()
    return await alive(visit)


routes = [
    ("GET", "/health/checks/alarms", alarms),
    ("GET", "/health/checks/local-alarms", alarms),
    ("GET", "/health/checks/node-is-running", alive),
    ("GET", "/healthchecks/node", alive),
    ("GET", "/aliveness-test/{vhost}", aliveness),
]
