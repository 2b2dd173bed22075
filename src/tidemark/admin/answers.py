"""Answers and refusals in the form that RabbitMQ's management API gives them.

A refusal is `{"error": …, "reason": …}` with a status. Errors of the broker are translated here and nowhere else.
"""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.admin import reading
from tidemark.errors import (
    AccessRefused,
    LoginRefused,
    NotAllowed,
    NotFound,
    NotLeading,
    PreconditionFailed,
    ResourceLocked,
    StoreError,
    TidemarkError,
)

BODY_BYTES_MAX = 1 << 20
"""Of a body, unless its entry allows for more."""
DEPTH_MAX = 64
"""How deeply a body may be nested; in answers, what is nested more deeply is left out."""


class Refused(Exception):
    """Ends a request with a status and a reason, and perhaps the time after which to try again."""

    def __init__(self, status: int, error: str, reason: str, retry_s: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.error, self.reason, self.retry_s = status, error, reason, retry_s


def refusal(status: int, error: str, reason: str, **headers: str) -> Response:
    return JSONResponse({"error": error, "reason": _text(reason)}, status, headers=headers)


def translated(error: TidemarkError) -> Response:
    match error:
        case NotFound():
            return refusal(404, "Object Not Found", str(error))
        case AccessRefused() | LoginRefused():
            return refusal(401, "not_authorised", str(error))
        case PreconditionFailed() | NotAllowed() | ResourceLocked():
            return refusal(400, "bad_request", str(error))
        case NotLeading():
            # It is not known whether what was asked for was done: the member stopped leading while it waited for that.
            return refusal(503, "not_leading", str(error))
        case StoreError():
            return refusal(503, "store_failed", str(error))
        case _:
            return refusal(400, "bad_request", str(error))


def listed(items: list[dict[str, Any]]) -> Response:
    return JSONResponse(plain(items))


def shown(item: dict[str, Any]) -> Response:
    return JSONResponse(plain(item))


def created(new: bool) -> Response:
    return Response(status_code=201 if new else 204)


def done() -> Response:
    return Response(status_code=204)


def plain(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Arguments and headers as JSON can hold them: bytes become text, or base64 when they are none."""
    match value:
        case dict() | list() | tuple() if not depth:
            return "..."
        case dict():
            return {_text(str(key)): plain(item, depth - 1) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, depth - 1) for item in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case str():
            return _text(value)
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


def _text(value: str) -> str:
    """Names may hold bytes that are no UTF-8; in an answer they are question marks."""
    return value.encode("utf-8", "replace").decode()


async def body(request: Request) -> dict[str, Any]:
    """The JSON object that came with the request; an empty body is an empty object. It is read once.

    Raises:
        Refused: it is too large, no object, nested too deeply, or has text that is not Unicode.
    """
    read: dict[str, Any] | None = getattr(request.state, "asked", None)
    if read is not None:
        return read
    size, parts = 0, []
    most = getattr(request.state, "body_bytes_max", BODY_BYTES_MAX)
    too_large = Refused(413, "bad_request", f"the body is over {most} bytes")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:20]) > most:
        raise too_large
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    if not size:
        request.state.asked = {}
        return {}
    try:
        found = await reading.read(b"".join(parts).decode("utf-8-sig"), DEPTH_MAX)
    except reading.TooDeep:
        raise Refused(400, "bad_request", f"the body is nested more than {DEPTH_MAX} deep") from None
    except reading.NoText:
        words = "the body has half of a surrogate pair, which is no text"
        raise Refused(400, "bad_request", words) from None
    except (ValueError, RecursionError):
        raise Refused(400, "bad_request", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "bad_request", "the body must be a JSON object")
    request.state.asked = found
    return found


def field(given: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """One field of a body.

    Raises:
        Refused: it is of another type, or missing and without a default.
    """
    value = given.get(name, default)
    if value is None:
        raise Refused(400, "bad_request", f"the field '{name}' is missing")
    if kind is bool and isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {str: "text", bool: "true or false", int: "a number", dict: "an object", list: "a list"}
        raise Refused(400, "bad_request", f"the field '{name}' must be {words[kind]}")
    return value
