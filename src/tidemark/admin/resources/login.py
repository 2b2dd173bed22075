"""/api/login: a token in place of a password, as text for programs and as a cookie for browsers."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from tidemark.admin.answers import Refused, body, field
from tidemark.admin.routing import COUNT, TAGS, TEXT, Entry, an_object
from tidemark.admin.visit import (
    REASONS,
    Call,
    check_origin,
    checked_password,
    cookie_name,
    presented,
    reaches,
)


async def login(call: Call) -> Response:
    given = await body(call.request)
    user, password = field(given, "username", str), field(given, "password", str)
    call.request.state.user, call.request.state.by = user, "password"
    check_origin(call.request, "password")
    spec = await checked_password(call, user, password)
    if not reaches(spec.tags, "management"):
        raise Refused(401, "not_authorised", REASONS["management"])
    now_ms = call.server.clock.now_ms()
    token, made = call.tokens.issue(spec, now_ms)
    answer = JSONResponse(
        {"name": spec.name, "tags": list(spec.tags), "token": token, "expires_ms": made.until_ms}
    )
    answer.set_cookie(
        cookie_name(call.request),
        token,
        max_age=(made.until_ms - now_ms) // 1000,
        path="/",
        secure=call.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


async def logout(call: Call) -> Response:
    """End the token that the request comes with. That one which is not there has ended is no error."""
    found = presented(call.request)
    if found.by in ("token", "cookie"):
        check_origin(call.request, found.by)
        owner = call.tokens.user(found.token, call.broker.access, call.server.clock.now_ms())
        if owner is not None:
            call.request.state.user, call.request.state.by = owner.name, found.by
        call.tokens.end(found.token)
    answer = Response(status_code=204)
    answer.delete_cookie(
        cookie_name(call.request),
        path="/",
        secure=call.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


TAKEN = an_object(username=TEXT, password=TEXT)
GIVEN = an_object(name=TEXT, tags=TAGS, token=TEXT, expires_ms=COUNT)

routes = [
    Entry(
        "POST", "/login", login, "Log in: a token for programs and a cookie for browsers", "login",
        body=TAKEN, answer=GIVEN, needs="nothing", anywhere=True, body_bytes_max=16 << 10,
    ),
    Entry("DELETE", "/login", logout, "Log out", "login", needs="nothing", anywhere=True),
]  # fmt: skip
