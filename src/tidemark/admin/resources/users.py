"""/api/users: who may log in."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done, field
from tidemark.admin.routing import OBJECT, PAGING, TAGS, TEXT, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.broker.access import check_stored_hash
from tidemark.errors import NotFound
from tidemark.model.wiring import UserSpec

NAME_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 4096
TAG_CHARACTERS_MAX = 255
KEYS: paging.Keys = {"name": lambda user: user.name}


def describe(visit: Visit, user: UserSpec) -> dict[str, Any]:
    algorithm, _, rest = user.password_hash.partition("$")
    return {
        "name": user.name,
        "hashing_algorithm": algorithm,
        "password_hash": rest,
        "tags": list(user.tags),
        "limits": visit.broker.user_limits.get(user.name, {}),
    }


async def every(visit: Visit) -> Response:
    users = list(visit.broker.access.users.values())
    return await paging.listed(visit, users, lambda user: describe(visit, user), keys=KEYS)


async def without_permissions(visit: Visit) -> Response:
    access = visit.broker.access
    known = {user for user, _ in access.permissions}
    users = [user for user in access.users.values() if user.name not in known]
    return await paging.listed(visit, users, lambda user: describe(visit, user), keys=KEYS)


async def one(visit: Visit) -> Response:
    return paging.shown(visit, describe(visit, _found(visit)))


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), visit.part("user")
    if not name or len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise Refused(400, "bad_request", f"the name of a user has 1 to {NAME_BYTES_MAX} bytes")
    wanted = tags(given)
    stored = await _stored_hash(visit, given)
    visit.must_lead()  # hashing took a while
    new = name not in visit.broker.access.users
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.put(UserSpec(name, stored, wanted)))
    return created(new)


async def delete(visit: Visit) -> Response:
    await visit.safe(_delete(visit, visit.part("user")))
    return done()


async def delete_many(visit: Visit) -> Response:
    """All of them or, when one is not there, none."""
    names = field(await body(visit.request), "users", list)
    if not all(isinstance(name, str) for name in names):
        raise Refused(400, "bad_request", "the field 'users' must be a list of names")
    if visit.user in names:
        raise Refused(400, "bad_request", "a user cannot delete itself")
    missing = [name for name in names if name not in visit.broker.access.users]
    if missing:
        raise Refused(400, "bad_request", f"no user '{missing[0]}'")
    seq = 0
    for name in dict.fromkeys(names):
        seq = _delete(visit, name)
    await visit.safe(seq)
    return done()


def _delete(visit: Visit, name: str) -> int:
    if name == visit.user:
        raise Refused(400, "bad_request", "a user cannot delete itself")
    visit.broker.now_ms = visit.server.clock.now_ms()
    return visit.broker.delete_user(name)


def _found(visit: Visit) -> UserSpec:
    name = visit.part("user")
    user = visit.broker.access.users.get(name)
    if user is None:
        raise NotFound(reason=f"no user '{name}'")
    return user


async def _stored_hash(visit: Visit, given: dict[str, Any]) -> str:
    if "password" in given:
        password = field(given, "password", str)
        if not password:
            raise Refused(400, "bad_request", "an empty password opens nothing; leave the field out for none")
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            raise Refused(400, "bad_request", f"a password has at most {PASSWORD_BYTES_MAX} bytes")
        return await asyncio.to_thread(visit.broker.password_hash, password)
    if "password_hash" in given:
        algorithm = field(given, "hashing_algorithm", str, "rabbit_password_hashing_sha256")
        text = field(given, "password_hash", str)
        stored = f"{algorithm}${text}" if text else ""
        check_stored_hash(stored)
        return stored
    known = visit.broker.access.users.get(visit.part("user"))
    if known is None:
        raise Refused(400, "bad_request", "a new user needs a password or a password_hash")
    return known.password_hash


def tags(given: dict[str, Any]) -> tuple[str, ...]:
    """The field of this name: a list of words, or words with commas. Raises Refused."""
    found = given.get("tags")
    if isinstance(found, str):
        found = found.split(",")
    if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
        raise Refused(400, "bad_request", "the field 'tags' must be a list of words, or words with commas")
    if any(len(tag) > TAG_CHARACTERS_MAX for tag in found):
        raise Refused(400, "bad_request", f"a tag has at most {TAG_CHARACTERS_MAX} characters")
    return tuple(dict.fromkeys(tag.strip() for tag in found if tag.strip()))


USER: Schema = an_object(name=TEXT, hashing_algorithm=TEXT, password_hash=TEXT, tags=TAGS, limits=OBJECT)
GIVEN: Schema = an_object(
    {"password": TEXT, "password_hash": TEXT, "hashing_algorithm": TEXT}, tags={"anyOf": [TEXT, TAGS]}
)
ONE = "/users/{user}"

routes = [
    Entry("GET", "/users", every, "All users", "users", PAGING, answer=paged(USER), needs="administrator"),
    Entry(
        "GET",
        "/users/without-permissions",
        without_permissions,
        "Users who may enter no virtual host",
        "users",
        PAGING,
        answer=paged(USER),
        needs="administrator",
    ),
    Entry(
        "POST",
        "/users/bulk-delete",
        delete_many,
        "Delete users",
        "users",
        body=an_object(users=TAGS),
        needs="administrator",
        statuses=(204,),
    ),
    Entry("GET", ONE, one, "A user", "users", answer=USER, needs="administrator"),
    Entry("PUT", ONE, put, "Make or change a user", "users", body=GIVEN, needs="administrator"),
    Entry("DELETE", ONE, delete, "Delete a user", "users", needs="administrator"),
]
