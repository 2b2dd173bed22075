"""One request: who asks, what they may see, and the broker they ask about.

A visitor logs in with a password (Basic), with the token of an earlier login (Bearer), or with the cookie that holds such a
token. A browser sends cookies, and passwords that it remembers, with requests that other sites make it send; so a
changing request with the cookie must have the header `X-Tidemark`, which no form of another site can add, and one that
says that it comes from another site is refused however it is logged in, unless by a token in its header.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from starlette.requests import Request

from tidemark.admin.answers import Refused
from tidemark.admin.logins import Tokens, same_rights
from tidemark.admin.routing import CHANGING, Needs
from tidemark.admin.standing import standing
from tidemark.broker.broker import Broker
from tidemark.broker.session import Session
from tidemark.broker.vhost import VirtualHost
from tidemark.errors import LoginRefused, NotFound
from tidemark.frontend.services import Login, PeerInfo
from tidemark.model.wiring import UserSpec
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.server import Server

LADDER = ("management", "policymaker", "monitoring", "administrator")
"""Tags that open the API. `management` sees its own virtual hosts, `monitoring` all, `administrator` changes users."""


WAIT_S_MAX = 30
"""Longest that an answer waits until what was asked for is safe."""


def cookie_name(request: Request) -> str:
    """Cookies are sent to all ports of a host, and every broker there has tokens of its own."""
    server = request.scope.get("server")
    return f"tidemark-{server[1]}" if server else "tidemark"


GUARD = "x-tidemark"
"""The header that a page of ours adds and another site cannot."""
REASONS = {
    "management": "Not management user",
    "policymaker": "Not policymaker user",
    "monitoring": "Not monitor user",
    "administrator": "Not administrator user",
}

By = Literal["nobody", "password", "token", "cookie"]


class Call:
    """A request of anybody."""

    def __init__(self, server: Server, request: Request) -> None:
        self.server = server
        self.request = request

    @property
    def broker(self) -> Broker:
        return self.server.node.broker

    @property
    def tokens(self) -> Tokens:
        found: Tokens = self.request.app.state.tokens
        return found

    @property
    def host(self) -> str:
        return self.request.client.host if self.request.client else ""

    @property
    def peer(self) -> str:
        return f"{self.host}:{self.request.client.port if self.request.client else 0}"

    def must_lead(self) -> None:
        """Changes are made where they are confirmed. To be asked again whenever the loop had a turn since: a change that a
        member which does not lead any more put into its logs would part them from those of all others.

        Raises:
            Refused: another member leads, or nobody does.
        """
        found = standing(self.server)
        if not found.leads:
            raise Refused(503, "not_leading", found.refusal())

    # What was asked ------------------------------------------------------------------------

    def part(self, name: str) -> str:
        """A part of the path, as it was before it was quoted."""
        return unquote(self.request.path_params[name], errors="surrogateescape")

    def number(self, name: str, default: int | None, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
        """A number of the query.

        Raises:
            Refused: it is none, or too small or too large.
        """
        text = self.request.query_params.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            words = f"'{name}' must be a number of {least} to {most}"
            raise Refused(400, "bad_request", words)
        return int(text)


class Visit(Call):
    """A request of somebody who has logged in."""

    def __init__(self, server: Server, request: Request, user: str) -> None:
        super().__init__(server, request)
        self.user = user
        self.spec: UserSpec = self.broker.access.users[user]
        self.tags = self.spec.tags

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

    def must_reach(self, needs: Needs) -> None:
        """Raises Refused unless one of the visitor's tags is enough."""
        if not reaches(self.tags, needs):
            raise Refused(401, "not_authorised", REASONS[needs])

    def must_see_all(self) -> None:
        self.must_reach("monitoring")

    def must_be_administrator(self) -> None:
        self.must_reach("administrator")

    def must_enter(self, vhost: str) -> None:
        """Raises Refused unless the visitor may change what is in this virtual host: who only sees all of them may not."""
        if "administrator" not in self.tags and not self.broker.access.may_enter(self.user, vhost):
            raise Refused(401, "not_authorised", f"User may not enter vhost '{vhost}'")

    def is_current(self) -> bool:
        """Whether the user still is as when this visit began."""
        user = self.broker.access.users.get(self.user)
        return user is not None and same_rights(user, self.spec)

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
        """Wait until this change of the catalog is safe: on the disk, and with the other members of a cluster.

        Raises:
            StoreError: the disk failed before.
            Refused: this took too long.
        """
        node = self.server.node
        try:
            await asyncio.wait_for(self.server.until_durable(seq), WAIT_S_MAX)
        except TimeoutError:
            raise not_stored(self, node.catalog.durable_seq >= seq) from None


def not_stored(call: Call, on_own_disk: bool, what: str = "it was done") -> Refused:
    """It takes too long until something is safe: whether it will be, nobody knows."""
    if on_own_disk and call.server.member is not None:
        why = f"other members have not stored it within {WAIT_S_MAX} s"
        what_to_do = "see which with: tidemark ctl members"
    else:
        why = f"the disk has not stored it within {WAIT_S_MAX} s"
        what_to_do = "check it with: tidemark doctor"
    words = f"{what}, but {why}, so it may be lost if the broker ends; {what_to_do}, then look whether it is there"
    return Refused(503, "not_stored", words)


def reaches(tags: tuple[str, ...], needs: Needs) -> bool:
    """Whether these tags are enough. An administrator may everything; `monitoring` and `policymaker` stand side by side."""
    match needs:
        case "nothing":
            return True
        case "management":
            return any(tag in LADDER for tag in tags)
        case _:
            return needs in tags or "administrator" in tags


# Who asks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Presented:
    """What a request says to prove who it comes from."""

    by: By
    user: str = ""
    password: str = ""
    token: str = ""


def presented(request: Request) -> Presented:
    """Raises Refused when the header is no login; without any it is `nobody`."""
    header = request.headers.get("authorization", "")
    scheme, _, rest = header.partition(" ")
    match scheme.lower():
        case "basic":
            try:
                user, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
            except ValueError:  # no base64, or no text
                colon = ""
            if not colon:
                raise Refused(401, "not_authorised", "Login failed")
            return Presented("password", user=user, password=password)
        case "bearer":
            return Presented("token", token=rest.strip())
        case "":
            pass
        case _:
            raise Refused(401, "not_authorised", "Login failed")
    if token := request.cookies.get(cookie_name(request)):
        return Presented("cookie", token=token)
    return Presented("nobody")


def credentials(request: Request) -> tuple[str, str]:
    """User and password of a request, as they were sent.

    Raises:
        Refused: it has none.
    """
    found = presented(request)
    if found.by != "password":
        raise Refused(401, "not_authorised", "Login failed")
    return found.user, found.password


def check_origin(request: Request, by: By) -> None:
    """Raises Refused for a change that another site made a browser ask for."""
    if request.method not in CHANGING or by == "token":
        return
    if by == "cookie" and not request.headers.get(GUARD):
        raise Refused(403, "forbidden", "a change with the cookie of a login needs the header X-Tidemark: 1")
    site = request.headers.get("sec-fetch-site", "none")
    if site in ("cross-site", "same-site"):
        raise Refused(403, "forbidden", "another site may not ask for changes")
    origin = request.headers.get("origin")
    if origin is None:
        return
    try:
        from_ = urlsplit(origin).netloc
    except ValueError:
        from_ = ""
    if from_.lower() != request.headers.get("host", "").lower():
        raise Refused(403, "forbidden", f"the origin '{origin[:200]}' is another site")


async def checked_password(call: Call, user: str, password: str) -> UserSpec:
    """The user whose password this is.

    Raises:
        Refused: it is not, or there were too many that were not.
    """
    server = call.server
    peer = PeerInfo(call.host, call.request.client.port if call.request.client else 0)
    verdict = await server.authenticator.login(Login("PLAIN", user, password, peer))
    spec = call.broker.access.users.get(verdict.user) if verdict.user is not None else None
    if spec is not None:
        return spec
    server.log.warning("management login refused", peer=call.peer, user=user, reason=verdict.reason)
    if verdict.retry_s:
        wait_s = math.ceil(verdict.retry_s)
        raise Refused(429, "too_many_requests", f"too many failed logins; try again in {wait_s} s", wait_s)
    raise Refused(401, "not_authorised", "Login failed")


def checked_token(call: Call, token: str) -> UserSpec:
    """The user whose token this is.

    Raises:
        Refused: nobody's, or of a user who may not come from there.
    """
    access = call.broker.access
    spec = call.tokens.user(token, access, call.server.clock.now_ms())
    try:
        if spec is not None:
            access.check_origin(spec.name, loopback=is_loopback(call.host))
            return spec
    except LoginRefused:
        pass
    raise Refused(401, "not_authorised", "Login failed")


async def authenticated(server: Server, request: Request, needs: Needs = "management") -> Visit:
    """The visit of whoever the request says it comes from.

    Raises:
        Refused: no or wrong credentials, too many wrong ones, a user without a tag that is enough, or a change
            that comes from another site.
    """
    call, found = Call(server, request), presented(request)
    state: Any = request.state
    state.by, state.user = found.by, found.user
    match found.by:
        case "nobody":
            raise Refused(401, "not_authorised", "Login failed")
        case "password":
            spec = await checked_password(call, found.user, found.password)
        case _:
            spec = checked_token(call, found.token)
    state.user = spec.name
    check_origin(request, found.by)
    visit = Visit(server, request, spec.name)
    visit.must_reach("management")
    # From here on it is no stranger who is answered, even with a refusal.
    state.visitor = spec.name
    visit.must_reach(needs)
    return visit
