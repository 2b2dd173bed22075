"""/api/tidemark/cluster: what this member is and what it knows of the others; …/promote and the like: what it shall do.

/api/tidemark/standing says to every visitor who leads, /api/members has the members as a list, for whoever draws it, /api/takeovers who led when, and /api/histories the takeover table.

A member that has nothing yet has no users either, so nobody could log in to see why it waits. To anyone it tells its
state, its reason and whether it may be promoted, and nothing else but that it takes no other command. It may be promoted then, which founds a cluster, from this machine only and by whoever
knows the user and the password that a new data directory gets.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemark.admin.answers import Refused, body, field, listed, refusal, shown
from tidemark.admin.routing import COUNT, FLAG, TEXT, Entry, a_list, an_object, maybe
from tidemark.admin.standing import as_member, standing
from tidemark.admin.takeovers import Takeovers
from tidemark.admin.visit import Call, Visit, authenticated, credentials
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.server import Server

PATH = "/tidemark/cluster"
OPEN_FACTS = ("name", "state", "why", "provider", "score")
COMMANDS = ("promote", "demote", "drop", "refill", "shutdown")
"""What an administrator may have a member do."""


async def status(visit: Visit) -> Response:
    visit.must_see_all()
    return shown(found(visit.server))


async def seen(call: Call) -> Response:
    """For whoever may see it; what anyone may see when nobody can log in."""
    server, request = call.server, call.request
    if server.node.broker.access.users:
        return await status(await authenticated(server, request))
    facts = found(server)
    return shown({name: facts[name] for name in OPEN_FACTS if name in facts})


def found(server: Server) -> dict[str, object]:
    connections = {"connections": len(server.node.front_ends)}
    if server.member is None:
        return {"name": server.config.node.name, "state": "alone", **connections}
    member = as_member(server)
    member.fresh()  # one that was frozen must not say that it leads
    return {**member.member.status(), **member.standing(), "why": member.why, **connections}


async def stands(visit: Visit) -> Response:
    """Whether this member leads, and who does: for every visitor, because every one may want to change something."""
    return shown(asdict(standing(visit.server)))


async def members(visit: Visit) -> Response:
    """Who is in the cluster, as this member knows it, those that are ready first and in the order of the chain."""
    return listed(described(visit.server))


def described(server: Server) -> list[dict[str, Any]]:
    if server.member is None:
        return [_alone(server)]
    here, status = as_member(server), server.member.status()
    topology = server.node.topology()
    told: Any = status["peers"]
    peers = {peer["name"]: peer for peer in told}
    rows = []
    for place, one in enumerate(topology.members):
        facts, peer = here.facts_of(one.name), peers.get(one.name)
        me = one.name == server.config.node.name
        ends = status["ends"] if me else (peer["acked"] if peer is not None else None)
        rows.append(
            {
                "name": one.name,
                "state": one.state,
                "role": one.role,
                "leader": one.name == topology.leader,
                "here": me,
                "position": place if one.role != "joining" else None,
                "amqp": one.amqp,
                "amqps": one.amqps,
                "peer": facts.peer if facts is not None else "",
                "admin": facts.admin if facts is not None else "",
                "ends": ends,
                "lag": peer["lag"] if peer is not None else None,
                "lag_bytes": peer["unacked_bytes"] if peer is not None else None,
                "why": here.why if me else None,
                "mode": topology.mode,
                "epoch": topology.epoch,
            }
        )
    return rows


def _alone(server: Server) -> dict[str, Any]:
    addresses = {name: str(address) for name, address in server.addresses.items()}
    return {
        "name": server.config.node.name,
        "state": "alone",
        "role": "leader",
        "leader": True,
        "here": True,
        "position": 0,
        **{name: addresses.get(name, "") for name in ("amqp", "amqps", "peer", "admin")},
        "ends": {
            "catalog": server.node.broker.catalog.last_seq,
            "journal": server.node.broker.journal.last_seq,
        },
        "lag": None,
        "lag_bytes": None,
        "why": None,
        "mode": "alone",
        "epoch": 0,
    }


async def takeovers(visit: Visit) -> Response:
    """Who led when, the newest first, as this member saw it."""
    seen: Takeovers = visit.request.app.state.takeovers
    return listed(list(reversed(seen.rows)))


async def histories(visit: Visit) -> Response:
    """The takeover table: every history that this store holds and where it began, the newest first."""
    table = visit.broker.streams.histories
    return listed([{"history": history.hex(), "first": first} for history, first in table])


async def commanded(call: Call) -> Response:
    """Have this member do something. 200: it will, or it is so already; 409: it does not, for this reason."""
    server, request = call.server, call.request
    command = request.path_params["command"]
    if command not in COMMANDS:
        words = f"there is no command '{command}'; there are {', '.join(COMMANDS)}"
        raise Refused(404, "Object Not Found", words)
    user = await _administrator(server, request)
    given = await body(request)
    member, accept_loss = field(given, "member", str, ""), field(given, "accept_loss", bool, False)
    if server.member is None:
        raise Refused(409, "refused", "this broker stands alone: see cluster.name")
    host, port = request.client or ("", 0)
    answer = await as_member(server).ask(command, member, accept_loss=accept_loss)
    server.log.info(
        "command of an administrator",
        command=command,
        member=member or server.config.node.name,
        user=user,
        peer=f"{host}:{port}",
        accept_loss=accept_loss,
        done=answer.done,
        answer=answer.text,
    )
    if not answer.done:
        return refusal(409, "refused", answer.text)
    return shown({"done": True, "text": answer.text})


async def _administrator(server: Server, request: Request) -> str:
    """The name of the administrator who asks.

    Raises:
        Refused: it is none.
    """
    if server.node.broker.access.users:
        visit = await authenticated(server, request)
        visit.must_be_administrator()
        return visit.user
    if request.path_params["command"] != "promote":
        name = server.config.node.name
        words = f"{name} is empty and has no users yet: all that it takes is 'promote', from its own machine"
        raise Refused(409, "refused", words)
    user, password = credentials(request)
    first = server.config.broker
    wanted = f"{first.default_user}:{first.default_password}"
    known = hmac.compare_digest(f"{user}:{password}".encode(), wanted.encode())
    here = request.client is not None and is_loopback(request.client.host)
    if not (known and here):
        raise Refused(401, "not_authorised", "Login failed")
    request.state.user, request.state.by = user, "password"
    return user


ENDS = an_object(catalog=COUNT, journal=COUNT)
MEMBER = an_object(
    name=TEXT,
    state=TEXT,
    role=TEXT,
    leader=FLAG,
    here=FLAG,
    position=maybe(COUNT),
    amqp=TEXT,
    amqps=TEXT,
    peer=TEXT,
    admin=TEXT,
    ends=maybe(ENDS),
    lag=maybe(COUNT),
    lag_bytes=maybe(COUNT),
    why=maybe(TEXT),
    mode=TEXT,
    epoch=COUNT,
)
TAKEOVER = an_object(
    {"from": maybe(TEXT), "took_ms": maybe(COUNT), "history": TEXT},
    at_ms=COUNT,
    epoch=COUNT,
    to=TEXT,
    why=TEXT,
)
ROW = an_object(history=TEXT, first=COUNT)
STATUS = an_object(
    {"leader": maybe(TEXT), "epoch": COUNT, "peers": a_list(an_object(name=TEXT)), "ready": a_list(TEXT)},
    name=TEXT,
    state=TEXT,
)
STANDING = an_object(name=TEXT, state=TEXT, leads=FLAG, leader=maybe(TEXT), leader_admin=TEXT)
DONE = an_object(done=FLAG, text=TEXT)

routes = [
    Entry("GET", PATH, seen, "What this member is and what it knows", "cluster", answer=STATUS,
          needs="monitoring", asks_itself=True),
    Entry("POST", PATH + "/{command}", commanded, "Have this member do something: promote, demote, drop, shutdown",
          "cluster", body=an_object({"member": TEXT, "accept_loss": FLAG}), answer=DONE, needs="administrator", anywhere=True, asks_itself=True),
    Entry("GET", "/tidemark/standing", stands, "Whether this member leads, and who does", "cluster", answer=STANDING),
    Entry("GET", "/members", members, "The members of the cluster", "cluster", answer=a_list(MEMBER), needs="monitoring"),
    Entry("GET", "/takeovers", takeovers, "Who led when", "cluster", answer=a_list(TAKEOVER), needs="monitoring"),
    Entry("GET", "/histories", histories, "The takeover table", "cluster", answer=a_list(ROW), needs="monitoring"),
]  # fmt: skip
