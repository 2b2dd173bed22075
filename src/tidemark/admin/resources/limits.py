"""/api/vhost-limits and /api/user-limits: how much a virtual host or a user may have at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, done
from tidemark.admin.routing import OBJECT, PAGING, TEXT, WHOLE, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound

OF_VHOST = ("max-connections", "max-queues")
OF_USER = ("max-connections", "max-channels")
Limits = tuple[str, Mapping[str, int]]
"""Whose, and what they are."""
KEYS: paging.Keys = {
    "name": lambda found: found[0],
    "vhost": lambda found: found[0],
    "user": lambda found: found[0],
}


def _value(given: dict[str, Any]) -> int:
    value = given.get("value")
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, "bad_request", "the field 'value' must be a number")
    return value


def _name(visit: Visit, known: tuple[str, ...]) -> str:
    name = visit.part("name")
    if name not in known:
        raise Refused(400, "bad_request", f"there is no limit '{name}'; there are {', '.join(known)}")
    return name


# Of virtual hosts -------------------------------------------------------------------------------------


def describe(found: Limits) -> dict[str, Any]:
    return {"vhost": found[0], "value": found[1]}


async def every(visit: Visit) -> Response:
    names = {host.name for host in visit.vhosts()}
    found = [(name, limits) for name, limits in visit.broker.vhost_limits.items() if name in names and limits]
    return await paging.listed(visit, found, describe, keys=KEYS, order=("vhost",))


async def put(visit: Visit) -> Response:
    value = _value(await body(visit.request))
    vhost, name = visit.vhost().name, _name(visit, OF_VHOST)
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.set_vhost_limit(vhost, name, value))
    return done()


async def delete(visit: Visit) -> Response:
    vhost, name = visit.vhost().name, _name(visit, OF_VHOST)
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.set_vhost_limit(vhost, name, None))
    return done()


# Of users -----------------------------------------------------------------------------------------------


def describe_user(found: Limits) -> dict[str, Any]:
    return {"user": found[0], "value": found[1]}


def _user(visit: Visit) -> str:
    name = visit.part("user")
    if name not in visit.broker.access.users:
        raise NotFound(reason=f"no user '{name}'")
    return name


async def every_user(visit: Visit) -> Response:
    only = _user(visit) if "user" in visit.request.path_params else None
    found = [(n, limits) for n, limits in visit.broker.user_limits.items() if only in (None, n) and limits]
    return await paging.listed(visit, found, describe_user, keys=KEYS, order=("user",))


async def put_user(visit: Visit) -> Response:
    value = _value(await body(visit.request))
    user, name = _user(visit), _name(visit, OF_USER)
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.set_user_limit(user, name, value))
    return done()


async def delete_user(visit: Visit) -> Response:
    user, name = _user(visit), _name(visit, OF_USER)
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.set_user_limit(user, name, None))
    return done()


VHOST: Schema = an_object(vhost=TEXT, value=OBJECT)
USER: Schema = an_object(user=TEXT, value=OBJECT)
GIVEN: Schema = an_object(value=WHOLE)


def _list(path: str, resource: Any, words: str, item: Schema, needs: Any) -> Entry:
    return Entry("GET", path, resource, words, "limits", PAGING, answer=paged(item), needs=needs)


def _change(method: str, path: str, resource: Any, words: str, given: Schema | None = None) -> Entry:
    return Entry(method, path, resource, words, "limits", body=given, needs="administrator", statuses=(204,))


routes = [
    _list("/vhost-limits", every, "Limits of all virtual hosts", VHOST, "management"),
    _list("/vhost-limits/{vhost}", every, "Limits of a virtual host", VHOST, "management"),
    _change("PUT", "/vhost-limits/{vhost}/{name}", put, "Limit a virtual host", GIVEN),
    _change("DELETE", "/vhost-limits/{vhost}/{name}", delete, "Clear a limit of a virtual host"),
    _list("/user-limits", every_user, "Limits of all users", USER, "administrator"),
    _list("/user-limits/{user}", every_user, "Limits of a user", USER, "administrator"),
    _change("PUT", "/user-limits/{user}/{name}", put_user, "Limit a user", GIVEN),
    _change("DELETE", "/user-limits/{user}/{name}", delete_user, "Clear a limit of a user"),
]
