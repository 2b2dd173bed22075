"""/api/health/checks/… and /api/aliveness-test: for whoever watches the broker.

A check that fails answers 503, with the reason and what it is about.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

from starlette.responses import JSONResponse, Response

from tidemark.admin.answers import Refused, plain, shown
from tidemark.admin.resources.messages import Nowhere
from tidemark.admin.resources.overview import listeners
from tidemark.admin.routing import TEXT, Entry, Schema, an_object
from tidemark.admin.visit import Call, Visit

OK = {"status": "ok"}
DAY_S = 86_400
UNITS = {"days": DAY_S, "weeks": 7 * DAY_S, "months": 30 * DAY_S, "years": 365 * DAY_S}
SPELLINGS = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl", "amqp091/ssl": "amqp/ssl"}
"""Other words for protocols."""


def failed(reason: str, **facts: Any) -> Response:
    return JSONResponse(plain({"status": "failed", "error": "failed", "reason": reason, **facts}), 503)


async def alarms(visit: Visit) -> Response:
    """Nothing keeps publishers waiting."""
    found, name = visit.server.node.alarms, visit.server.config.node.name
    if found.reason is None:
        return shown(OK)
    resources = [word for word, on in (("memory", found.memory), ("disk", found.disk)) if on]
    listed = [{"node": name, "resource": word} for word in resources]
    listed += [{"node": member, "resource": "replication"} for member in found.behind]
    if found.missing:
        listed.append({"node": name, "resource": "copies"})
    return failed(f"There are alarms in effect: publishers are blocked, {found.reason}", alarms=listed)


async def alive(visit: Visit) -> Response:
    """The journal takes what it is given."""
    problem = visit.server.node.failed
    return shown(OK) if problem is None else failed(str(problem))


async def in_service(visit: Visit) -> Response:
    """Clients are served here: the journal takes what it is given, and in a cluster this member leads."""
    node = visit.server.node
    if node.failed is not None:
        return failed(str(node.failed))
    if not node.serving or node.paused:
        return failed(
            f"{visit.server.config.node.name} does not lead its cluster: clients are served elsewhere"
        )
    return shown(OK)


async def live(call: Call) -> Response:
    """For whoever restarts processes: this one works."""
    return shown(OK) if call.server.node.failed is None else failed("the store has failed")


async def ready(call: Call) -> Response:
    """For whoever sends clients: they are served here, or passed on to the member that leads."""
    server, node, member = call.server, call.server.node, call.server.member
    if node.failed is not None:
        return failed("the store has failed")
    if node.serving and not node.paused:
        return shown(OK)
    passes_on = member is not None and member.leader not in (None, member.name)
    if passes_on and server.config.cluster.client_access == "relay":
        return shown(OK)
    return failed("not ready", state="starting" if member is None else str(member.mode.state))


async def certificates(visit: Visit) -> Response:
    """No certificate of this broker ends within that time."""
    within, unit = visit.part("within"), visit.part("unit")
    if unit not in UNITS:
        words = f"Time unit not recognised. Supported units: {', '.join(UNITS)}."
        raise Refused(400, "bad_request", words)
    if not (within.isascii() and within.isdecimal() and len(within) < 10):
        raise Refused(400, "bad_request", "Invalid expiration value.")
    config, expiring = visit.server.config, []
    for path in (config.tls.certificate, config.cluster.peer_certificate):
        if path is None:
            continue
        # Python has no public name for what its own context does when it reads a certificate.
        facts = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        ends_s = ssl.cert_time_to_seconds(facts["notAfter"])
        if ends_s - time.time() <= int(within) * UNITS[unit]:
            expiring.append(
                {
                    "node": config.node.name,
                    "cert_file": str(path),
                    "certfile_expires_on": [facts["notAfter"]],
                }
            )
    return failed("Certificates expiring", expired=expiring) if expiring else shown(OK)


async def port_listener(visit: Visit) -> Response:
    asked = visit.part("port")
    if not (asked.isascii() and asked.isdecimal() and len(asked) < 6):
        raise Refused(400, "bad_request", "Invalid port")
    ports = sorted(one["port"] for one in listeners(visit))
    if int(asked) in ports:
        return shown({**OK, "port": int(asked)})
    return failed("No active listener", missing=int(asked), ports=ports)


async def protocol_listener(visit: Visit) -> Response:
    asked = visit.part("protocol")
    protocol = SPELLINGS.get(asked, asked)
    protocols = sorted({one["protocol"] for one in listeners(visit)})
    if protocol in protocols:
        return shown({**OK, "protocol": protocol})
    return failed("No active listener", missing=asked, protocols=protocols)


async def virtual_hosts(visit: Visit) -> Response:
    """All virtual hosts run: they do while the journal does."""
    problem = visit.server.node.failed
    if problem is None:
        return shown(OK)
    return failed(str(problem), **{"virtual-hosts": list(visit.broker.vhosts)})


async def not_critical(visit: Visit) -> Response:
    """Another member could go on if this one stopped now."""
    members = visit.server.node.topology().members
    if not members:
        return shown({**OK, "reason": "single node cluster"})
    ready = [member.name for member in members if member.state != "away" and member.role != "joining"]
    name = visit.server.config.node.name
    if ready == [name]:
        return failed(f"no other member could take over from {name}", members=[one.name for one in members])
    return shown(OK)


async def aliveness(visit: Visit) -> Response:
    """A message goes through a queue of its own, made for this and deleted after it."""
    visit.vhost()
    node = visit.server.node
    if node.failed is not None:
        return failed(str(node.failed))
    if not node.serving:
        return await in_service(visit)
    node.at(visit.server.clock.now_ms())
    with visit.session() as session:
        name = visit.broker.generated_name("aliveness-test-")
        session.declare_queue(name, exclusive=True, auto_delete=True)
        sent = session.publishing(Nowhere()).publish_one("", name, b"\x00\x00", b"test_message")
        if sent.error is not None:
            raise sent.error
        queue, taken, _ = session.get(name)
        if taken is None:
            return failed("a message that was published did not arrive")
        queue.settle_taken(taken)
    return shown(OK)


STATUS: Schema = an_object(status=TEXT)
CHECKS = "/health/checks"
TAG = "health"


def _check(path: str, resource: Any, words: str) -> Entry:
    return Entry("GET", path, resource, words, TAG, answer=STATUS)


routes = [
    Entry(
        "GET", "/health/live", live, "The process works", TAG, answer=STATUS, needs="nothing", anywhere=True
    ),
    Entry(
        "GET",
        "/health/ready",
        ready,
        "Clients can come here",
        TAG,
        answer=STATUS,
        needs="nothing",
        anywhere=True,
    ),
    _check(f"{CHECKS}/alarms", alarms, "No alarm in the cluster"),
    _check(f"{CHECKS}/local-alarms", alarms, "No alarm here"),
    _check(f"{CHECKS}/node-is-running", alive, "The journal takes what it is given"),
    _check(f"{CHECKS}/is-in-service", in_service, "Clients are served here"),
    _check(f"{CHECKS}/ready-to-serve-clients", in_service, "Clients are served here"),
    _check(
        f"{CHECKS}/certificate-expiration/{{within}}/{{unit}}", certificates, "Certificates last that long"
    ),
    _check(f"{CHECKS}/port-listener/{{port}}", port_listener, "Something listens on a port"),
    _check(f"{CHECKS}/protocol-listener/{{protocol}}", protocol_listener, "A protocol is served"),
    _check(f"{CHECKS}/virtual-hosts", virtual_hosts, "All virtual hosts run"),
    _check(f"{CHECKS}/node-is-mirror-sync-critical", not_critical, "Another member could go on"),
    _check(f"{CHECKS}/node-is-quorum-critical", not_critical, "Another member could go on"),
    _check("/healthchecks/node", alive, "The journal takes what it is given"),
    _check("/aliveness-test/{vhost}", aliveness, "A message goes through a queue"),
]
