"""A running broker's management API, as `tidemark ctl` calls it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tidemark.cli import CommandError


def path(*parts: str) -> str:
    """`/api/…` with every part quoted, so that a name may contain a slash."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


class NoAnswer(CommandError):
    """The broker cannot be reached, or did not answer in time."""


class Api:
    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = 60.0
        """Longest that an answer is waited for."""
        self._login = (user, password)

    def get(self, where: str, **query: str) -> Any:
        return self._call("GET", where, query)

    def put(self, where: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("PUT", where, {}, body or {})

    def post(self, where: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", where, {}, body or {})

    def delete(self, where: str, **query: str) -> Any:
        return self._call("DELETE", where, query)

    def _call(
        self, method: str, where: str, query: dict[str, str], body: dict[str, Any] | None = None
    ) -> Any:
        import httpx

        try:
            answer = httpx.request(
                method,
                self.url + where,
                params=query,
                json=body,
                auth=self._login,
                timeout=self.timeout_s,
                trust_env=False,
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise CommandError(f"--url {self.url!r} is not a URL such as http://127.0.0.1:15672", 2) from None
        except httpx.HTTPError as problem:
            raise NoAnswer(
                f"no answer from {self.url}: {problem or 'it took too long'}; is the broker running, and is --url its "
                "admin address?"
            ) from None
        if answer.is_success:
            return answer.json() if answer.content else None
        raise CommandError(_reason(answer.status_code, answer.text, answer))


def _reason(status: int, text: str, answer: Any) -> str:
    try:
        reason = str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        reason = text[:200] or f"status {status}"
    if status == 401 and reason == "Login failed":
        return "login refused; give --user and --password, or TIDEMARK_USER and TIDEMARK_PASSWORD"
    # What a command was refused for is a sentence of its own.
    return reason if status == 409 else f"refused ({status}): {reason}"
