"""/api/permissions and /api/topic-permissions: what each user may do in each virtual host."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import body, created, done, field, listed, shown
from tidemark.admin.visit import Visit
from tidemark.broker.access import compile_pattern
from tidemark.errors import NotFound
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec


def describe(spec: PermissionSpec) -> dict[str, Any]:
    return {
        "user": spec.user,
        "vhost": spec.vhost,
        "configure": spec.configure,
        "write": spec.write,
        "read": spec.read,
    }


def describe_topic(spec: TopicPermissionSpec) -> dict[str, Any]:
    return {
        "user": spec.user,
        "vhost": spec.vhost,
        "exchange": spec.exchange,
        "write": spec.write,
        "read": spec.read,
    }


async def every(visit: Visit) -> Response:
    visit.must_be_administrator()
    found = [spec for spec in visit.broker.access.permissions.values() if _asked(visit, spec)]
    return listed([describe(spec) for spec in found])


async def one(visit: Visit) -> Response:
    visit.must_be_administrator()
    return shown(describe(_found(visit)))


async def put(visit: Visit) -> Response:
    visit.must_be_administrator()
    given = await body(visit.request)
    user, vhost = _known(visit)
    patterns = [field(given, name, str) for name in ("configure", "write", "read")]
    for pattern in patterns:
        compile_pattern(pattern)
    new = (user, vhost) not in visit.broker.access.permissions
    await visit.safe(visit.broker.put(PermissionSpec(user, vhost, *patterns)))
    return created(new)


async def delete(visit: Visit) -> Response:
    visit.must_be_administrator()
    await visit.safe(visit.broker.delete(_found(visit)))
    return done()


async def every_topic(visit: Visit) -> Response:
    visit.must_be_administrator()
    found = [spec for spec in visit.broker.access.topic_permissions.values() if _asked(visit, spec)]
    return listed([describe_topic(spec) for spec in found])


async def put_topic(visit: Visit) -> Response:
    visit.must_be_administrator()
    given = await body(visit.request)
    user, vhost = _known(visit)
    exchange = field(given, "exchange", str)
    patterns = [field(given, name, str) for name in ("write", "read")]
    for pattern in patterns:
        compile_pattern(pattern)
    new = (user, vhost, exchange) not in visit.broker.access.topic_permissions
    await visit.safe(visit.broker.put(TopicPermissionSpec(user, vhost, exchange, *patterns)))
    return created(new)


async def delete_topic(visit: Visit) -> Response:
    """All of the user in the virtual host, or with ?exchange=… that one."""
    visit.must_be_administrator()
    user, vhost = _known(visit)
    only = visit.request.query_params.get("exchange")
    seq = 0
    for spec in list(visit.broker.access.topic_permissions.values()):
        if (spec.user, spec.vhost) == (user, vhost) and only in (None, spec.exchange):
            seq = visit.broker.delete(spec)
    await visit.safe(seq)
    return done()


def _asked(visit: Visit, spec: PermissionSpec | TopicPermissionSpec) -> bool:
    """Whether a list should have it: the path may name a user, a virtual host, or both."""
    asked = visit.request.path_params
    return ("user" not in asked or visit.part("user") == spec.user) and (
        "vhost" not in asked or visit.part("vhost") == spec.vhost
    )


def _known(visit: Visit) -> tuple[str, str]:
    user, vhost = visit.part("user"), visit.vhost().name
    if user not in visit.broker.access.users:
        raise NotFound(reason=f"no user '{user}'")
    return user, vhost


def _found(visit: Visit) -> PermissionSpec:
    user, vhost = visit.part("user"), visit.part("vhost")
    spec = visit.broker.access.permissions.get((user, vhost))
    if spec is None:
        raise NotFound(reason=f"user '{user}' has no permissions in vhost '{vhost}'")
    return spec


routes = [
    ("GET", "/permissions", every),
    ("GET", "/users/{user}/permissions", every),
    ("GET", "/vhosts/{vhost}/permissions", every),
    ("GET", "/permissions/{vhost}/{user}", one),
    ("PUT", "/permissions/{vhost}/{user}", put),
    ("DELETE", "/permissions/{vhost}/{user}", delete),
    ("GET", "/topic-permissions", every_topic),
    ("GET", "/users/{user}/topic-permissions", every_topic),
    ("GET", "/vhosts/{vhost}/topic-permissions", every_topic),
    ("GET", "/topic-permissions/{vhost}/{user}", every_topic),
    ("PUT", "/topic-permissions/{vhost}/{user}", put_topic),
    ("DELETE", "/topic-permissions/{vhost}/{user}", delete_topic),
]
