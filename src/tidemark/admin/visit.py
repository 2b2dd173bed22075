"""One request: who asks, what they may see, and the broker they ask about."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from starlette.requests import Request

from tidemark.admin.answers import Refused
from tidemark.broker.broker import Broker
from tidemark.broker.session import Session
from tidemark.broker.vhost import VirtualHost
from tidemark.errors import NotFound
from tidemark.frontend.services import Login, PeerInfo
from tidemark.runtime.server import Server

LADDER = ("management", "policymaker", "monitoring", "administrator")
"""Tags that open the API. `management` sees its own virtual hosts, `monitoring` all, `administrator` changes users."""


class Visit:
    def __init__(self, server: Server, request: Request, user: str) -> None:
        self.server = server
        self.broker: Broker = server.node.broker
        self.request = request
        self.user = user
        self.tags = self.broker.access.users[user].tags

    # What was asked ------------------------------------------------------------------------

    def part(self, name: str) -> str:
        """A part of the path, as it was before it was quoted."""
        return unquote(self.request.path_params[name], errors="surrogateescape")

    def vhost(self) -> VirtualHost:
        """The virtual host in the path, which the visitor may see.

        Raises:
            NotFound: there is none, or it is not for this visitor.
        """
        name = self.part("vhost")
        if not self.sees(name):
            raise NotFound(reason=f"no vhost '{name}'")
        return self.broker.vhost(name)

    def vhosts(self) -> list[VirtualHost]:
        """The one in the path, or all that the visitor may see."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        return [host for name, host in self.broker.vhosts.items() if self.sees(name)]

    # What is allowed -----------------------------------------------------------------------

    def sees(self, vhost: str) -> bool:
        return self.sees_all or self.broker.access.may_enter(self.user, vhost)

    @property
    def sees_all(self) -> bool:
        return "monitoring" in self.tags or "administrator" in self.tags

    def must_see_all(self) -> None:
        if not self.sees_all:
            raise Refused(401, "not_authorised", "Not monitor user")

    def must_be_administrator(self) -> None:
        if "administrator" not in self.tags:
            raise Refused(401, "not_authorised", "Not administrator user")

    # What is done ----------------------------------------------------------------------------

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session of the visitor in the virtual host of the path; its permissions apply."""
        self.broker.now_ms = self.server.clock.now_ms()
        session = self.broker.open_session(self.vhost().name, self.user, None, "management")
        try:
            yield session
        finally:
            session.close()
            self.server.due()

    async def safe(self, seq: int) -> None:
        """Wait until this change of the catalog is on the disk."""
        await self.server.until_durable(seq)


def credentials(request: Request) -> tuple[str, str]:
    """User and password of a request, as they were sent.

    Raises:
        Refused: it has none.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise Refused(401, "not_authorised", "Login failed")
    return user, password


async def authenticated(server: Server, request: Request) -> Visit:
    """The visit of whoever the request says it comes from.

    Raises:
        Refused: no or wrong credentials, or a user without a tag that opens the API.
    """
    user, password = credentials(request)
    host, port = request.client or ("", 0)
    verdict = await server.authenticator.login(Login("PLAIN", user, password, PeerInfo(host, port)))
    if verdict.user is None:
        server.log.warning("management login refused", peer=f"{host}:{port}", reason=verdict.reason)
        raise Refused(401, "not_authorised", "Login failed")
    visit = Visit(server, request, verdict.user)
    if not set(visit.tags) & set(LADDER):
        raise Refused(401, "not_authorised", "Not management user")
    return visit
