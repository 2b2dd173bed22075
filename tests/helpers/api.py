"""The management API of a broker under test, with as many visitors as a test likes."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import httpx

from helpers.broker import Address

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
_numbers = itertools.count()


class Api:
    """Asks as one user; `anonymous` asks as nobody."""

    def __init__(
        self, address: Address, login: tuple[str, str] | None = ("guest", "guest"), **options: Any
    ) -> None:
        self.address = address
        self.base = f"http://{address.host}:{address.port}"
        self.login = login
        options.setdefault(
            "verify", False
        )  # there is nothing to verify, and reading the authorities takes a while
        self.client = httpx.Client(base_url=self.base, timeout=20, auth=login, **options)

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self.client.request(method, f"/api{path}", **options)

    def get(self, path: str, **options: Any) -> Any:
        answer = self("GET", path, **options)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def cookie(self, token: str) -> dict[str, str]:
        """The header by which a browser shows it."""
        return {"Cookie": f"tidemark-{self.address.port}={token}"}

    def as_(self, login: tuple[str, str] | None, **options: Any) -> Api:
        return Api(self.address, login, **options)

    @property
    def anonymous(self) -> Api:
        return self.as_(None)

    def user(
        self, tags: str = "", vhost: str | None = "%2F", permissions: dict[str, str] = EVERYTHING
    ) -> Api:
        """A new user with these tags, and permissions in a virtual host; asks as that one."""
        name = f"user-{next(_numbers)}"
        made = self("PUT", f"/users/{name}", {"password": "secret", "tags": tags})
        assert made.status_code in (201, 204), made.text
        if vhost is not None:
            assert self("PUT", f"/permissions/{vhost}/{name}", permissions).status_code in (201, 204)
        return self.as_((name, "secret"))

    def token(self) -> str:
        assert self.login is not None
        answer = self.anonymous("POST", "/login", {"username": self.login[0], "password": self.login[1]})
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["token"]
        return token


@contextmanager
def live(api: Api, *paths: str, **options: Any) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of /api/live as (name, data), heartbeats left out."""
    query = urlencode([("path", path) for path in paths])
    with api.client.stream("GET", f"/api/live?{query}", **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name, data = "", ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line and name:
            yield name, json.loads(data)
            name, data = "", ""


def raw(address: Address, request: bytes, timeout_s: float = 10.0) -> bytes:
    """What the server answers to these bytes until it closes the connection or says nothing more."""
    with socket.create_connection((address.host, address.port), timeout_s) as link:
        link.sendall(request)
        answer = b""
        try:
            while part := link.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
        return answer
