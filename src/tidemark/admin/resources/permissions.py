"""/api/permissions and /api/topic-permissions: what each user may do in each virtual host."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done, field
from tidemark.admin.routing import PAGING, TEXT, Entry, Query, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.broker.access import compile_pattern
from tidemark.errors import NotFound
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec

KEYS: paging.Keys = {
    "name": lambda spec: spec.user,
    "user": lambda spec: spec.user,
    "vhost": lambda spec: spec.vhost,
    "exchange": lambda spec: spec.exchange,
}
PATTERN_CHARACTERS_MAX = 2000


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
    found = [spec for spec in visit.broker.access.permissions.values() if _asked(visit, spec)]
    return await paging.listed(visit, found, describe, keys=KEYS, order=("vhost", "user"))


async def one(visit: Visit) -> Response:
    return paging.shown(visit, describe(_found(visit)))


async def put(visit: Visit) -> Response:
    given = await body(visit.request)
    user, vhost = _known(visit)
    patterns = [_pattern(given, name) for name in ("configure", "write", "read")]
    new = (user, vhost) not in visit.broker.access.permissions
    await visit.safe(visit.broker.put(PermissionSpec(user, vhost, *patterns)))
    return created(new)


async def delete(visit: Visit) -> Response:
    await visit.safe(visit.broker.delete(_found(visit)))
    return done()


async def every_topic(visit: Visit) -> Response:
    found = [spec for spec in visit.broker.access.topic_permissions.values() if _asked(visit, spec)]
    return await paging.listed(visit, found, describe_topic, keys=KEYS, order=("vhost", "user", "exchange"))


async def put_topic(visit: Visit) -> Response:
    given = await body(visit.request)
    user, vhost = _known(visit)
    exchange = field(given, "exchange", str)
    if len(exchange.encode()) > 255:
        raise Refused(400, "bad_request", "the field 'exchange' has at most 255 bytes")
    patterns = [_pattern(given, name) for name in ("write", "read")]
    new = (user, vhost, exchange) not in visit.broker.access.topic_permissions
    await visit.safe(visit.broker.put(TopicPermissionSpec(user, vhost, exchange, *patterns)))
    return created(new)


async def delete_topic(visit: Visit) -> Response:
    """All of the user in the virtual host, or with ?exchange=… that one."""
    user, vhost = _known(visit)
    only = visit.request.query_params.get("exchange")
    seq = 0
    for spec in list(visit.broker.access.topic_permissions.values()):
        if (spec.user, spec.vhost) == (user, vhost) and only in (None, spec.exchange):
            seq = visit.broker.delete(spec)
    await visit.safe(seq)
    return done()


def _pattern(given: dict[str, Any], name: str) -> str:
    """Raises Refused, PreconditionFailed."""
    pattern: str = field(given, name, str)
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise Refused(
            400, "bad_request", f"the field '{name}' has at most {PATTERN_CHARACTERS_MAX} characters"
        )
    compile_pattern(pattern)
    return pattern


def _asked(visit: Visit, spec: PermissionSpec | TopicPermissionSpec) -> bool:
    """Whether a list should have it: the path may name a user, a virtual host, or both."""
    asked = visit.request.path_params
    if "vhost" in asked:
        visit.vhost()
    return ("user" not in asked or visit.part("user") == spec.user) and (
        "vhost" not in asked or visit.part("vhost") == spec.vhost
    )


def _known(visit: Visit) -> tuple[str, str]:
    user, vhost = visit.part("user"), visit.vhost().name
    if user not in visit.broker.access.users:
        raise Refused(400, "bad_request", f"no user '{user}'")
    return user, vhost


def _found(visit: Visit) -> PermissionSpec:
    user, vhost = visit.part("user"), visit.part("vhost")
    spec = visit.broker.access.permissions.get((user, vhost))
    if spec is None:
        raise NotFound(reason=f"user '{user}' has no permissions in vhost '{vhost}'")
    return spec


PERMISSION: Schema = an_object(user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT)
TOPIC: Schema = an_object(user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT)
PATTERNS: Schema = an_object(configure=TEXT, write=TEXT, read=TEXT)
TOPIC_PATTERNS: Schema = an_object(exchange=TEXT, write=TEXT, read=TEXT)
ONE, ONE_TOPIC = "/permissions/{vhost}/{user}", "/topic-permissions/{vhost}/{user}"


def _list(path: str, resource: Any, words: str, item: Schema) -> Entry:
    return Entry(
        "GET", path, resource, words, "permissions", PAGING, answer=paged(item), needs="administrator"
    )


def _change(method: str, path: str, resource: Any, words: str, **more: Any) -> Entry:
    return Entry(method, path, resource, words, "permissions", needs="administrator", **more)


routes = [
    _list("/permissions", every, "All permissions", PERMISSION),
    _list("/users/{user}/permissions", every, "Permissions of a user", PERMISSION),
    _list("/vhosts/{vhost}/permissions", every, "Permissions in a virtual host", PERMISSION),
    Entry("GET", ONE, one, "A permission", "permissions", answer=PERMISSION, needs="administrator"),
    _change("PUT", ONE, put, "Set a permission", body=PATTERNS),
    _change("DELETE", ONE, delete, "Clear a permission"),
    _list("/topic-permissions", every_topic, "All topic permissions", TOPIC),
    _list("/users/{user}/topic-permissions", every_topic, "Topic permissions of a user", TOPIC),
    _list("/vhosts/{vhost}/topic-permissions", every_topic, "Topic permissions in a virtual host", TOPIC),
    _list(ONE_TOPIC, every_topic, "Topic permissions of a user in a virtual host", TOPIC),
    _change("PUT", ONE_TOPIC, put_topic, "Set a topic permission", body=TOPIC_PATTERNS),
    _change(
        "DELETE",
        ONE_TOPIC,
        delete_topic,
        "Clear topic permissions",
        query=(Query("exchange", TEXT, "Only that of this exchange."),),
    ),
]
