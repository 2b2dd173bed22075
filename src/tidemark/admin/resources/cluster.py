"""/api/tidemark/cluster: what this member is and what it knows of the others; …/promote and the like: what it shall do.

A member that has nothing yet has no users either, so nobody could log in to see why it waits. To anyone it tells its
state, its reason and whether it may be promoted, and nothing else. It may be promoted then, which founds a cluster, from this machine only and by whoever
knows the user and the password that a new data directory gets.
"""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import Response

from tidemark.admin.answers import Refused, body, field, refusal, shown
from tidemark.admin.visit import Visit, authenticated, credentials
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.server import Server

PATH = "/tidemark/cluster"
OPEN_FACTS = ("name", "state", "why", "provider", "score")
COMMANDS = ("promote", "demote", "drop", "shutdown")
"""What an administrator may have a member do."""


async def status(visit: Visit) -> Response:
    visit.must_see_all()
    return shown(found(visit.server))


async def seen(server: Server, request: Request) -> Response:
    """For whoever may see it; what anyone may see when nobody can log in."""
    if server.node.broker.access.users:
        return await status(await authenticated(server, request))
    facts = found(server)
    return shown({name: facts[name] for name in OPEN_FACTS if name in facts})


def found(server: Server) -> dict[str, object]:
    connections = {"connections": len(server.node.front_ends)}
    if server.member is None:
        return {"name": server.config.node.name, "state": "alone", **connections}
    # It is imported only where it is used.
    from tidemark.runtime.member_server import MemberServer

    assert isinstance(server, MemberServer)
    return {**server.member.status(), **server.standing(), **connections}


async def commanded(server: Server, request: Request) -> Response:
    """Have this member do something. 200: it will, or it is so already; 409: it does not, for this reason."""
    command = request.path_params["command"]
    if command not in COMMANDS:
        words = f"there is no command '{command}'; there are {', '.join(COMMANDS)}"
        raise Refused(404, "Object Not Found", words)
    user = await _administrator(server, request)
    member = field(await body(request), "member", str, "")
    if server.member is None:
        raise Refused(409, "refused", "this broker stands alone: see cluster.name")
    from tidemark.runtime.member_server import MemberServer

    assert isinstance(server, MemberServer)
    host, port = request.client or ("", 0)
    answer = await server.ask(command, member)
    server.log.info(
        "command of an administrator",
        command=command,
        member=member or server.config.node.name,
        user=user,
        peer=f"{host}:{port}",
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
    user, password = credentials(request)
    first = server.config.broker
    wanted = f"{first.default_user}:{first.default_password}"
    known = hmac.compare_digest(f"{user}:{password}".encode(), wanted.encode())
    here = request.client is not None and is_loopback(request.client.host)
    if not (known and here and request.path_params["command"] == "promote"):
        raise Refused(401, "not_authorised", "Login failed")
    return user


def must_lead(server: Server) -> None:
    """Changes are made where they are confirmed.

    Raises:
        Refused: another member leads, or nobody does.
    """
    member = server.member
    if member is None or member.serving:
        return
    where = (
        f"ask {member.leader}"
        if member.leader not in (None, member.name)
        else "no member leads now; try again"
    )
    raise Refused(503, "not_leading", f"{member.name} is {member.mode.state}: {where}")
