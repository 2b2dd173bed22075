"""/api/users: who may log in."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import Refused, body, created, done, field, listed, shown
from tidemark.admin.visit import Visit
from tidemark.broker.access import check_stored_hash
from tidemark.errors import NotFound
from tidemark.model.wiring import UserSpec


def describe(user: UserSpec) -> dict[str, Any]:
    algorithm, _, rest = user.password_hash.partition("$")
    return {"name": user.name, "hashing_algorithm": algorithm, "password_hash": rest, "tags": list(user.tags)}


async def every(visit: Visit) -> Response:
    visit.must_be_administrator()
    return listed([describe(user) for user in visit.broker.access.users.values()])


async def one(visit: Visit) -> Response:
    visit.must_be_administrator()
    return shown(describe(_found(visit)))


async def put(visit: Visit) -> Response:
    visit.must_be_administrator()
    given, name = await body(visit.request), visit.part("user")
    if not name:
        raise Refused(400, "bad_request", "a user needs a name")
    stored = await _stored_hash(visit, given)
    new = name not in visit.broker.access.users
    await visit.safe(visit.broker.put(UserSpec(name, stored, _tags(given))))
    return created(new)


async def delete(visit: Visit) -> Response:
    visit.must_be_administrator()
    name = visit.part("user")
    if name == visit.user:
        raise Refused(400, "bad_request", "a user cannot delete itself")
    await visit.safe(visit.broker.delete_user(name))
    return done()


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


def _tags(given: dict[str, Any]) -> tuple[str, ...]:
    tags = given.get("tags")
    if isinstance(tags, str):
        tags = tags.split(",")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Refused(400, "bad_request", "the field 'tags' must be a list of words, or words with commas")
    return tuple(tag.strip() for tag in tags if tag.strip())


routes = [
    ("GET", "/users", every),
    ("GET", "/users/{user}", one),
    ("PUT", "/users/{user}", put),
    ("DELETE", "/users/{user}", delete),
]
