"""A running broker's management API, as `tidemark ctl`, `top` and `doctor` call it.

One connection, kept open between calls, on the standard library: `ctl` is done before a larger client would be imported.

Invariant: whatever goes wrong is a `CommandError` of one sentence; `NoAnswer` exactly when nobody answered.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tidemark.cli import CommandError

KEPT_S = 2.0
"""A connection that was idle for longer is not used again: the broker may be closing it."""
AWAY = 3
"""Exit code: the broker cannot be reached, or did not answer in time."""


def path(*parts: str) -> str:
    """`/api/…` with every part quoted, so that a name may contain a slash."""
    return "/api/" + "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)


class NoAnswer(CommandError):
    """The broker cannot be reached, or did not answer in time."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, AWAY)


class Refusal(CommandError):
    """The broker answered, and the answer is no."""

    def __init__(self, sentence: str, status: int, document: Any = None, *, unknown: bool = False) -> None:
        """`unknown`: it was not asked at all, because it does not know us; that is a wrong call."""
        super().__init__(sentence, 2 if unknown else 1)
        self.status, self.document = status, document


class Api:
    def __init__(self, url: str, user: str, password: str, ca_file: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.user = user
        self.timeout_s = 60.0
        """Longest that an answer is waited for."""
        self.date = ""
        """What the broker's clock said in its last answer, to the second."""
        words = f"{user}:{password}".encode("utf-8", "surrogateescape")
        self._login = "Basic " + base64.b64encode(words).decode()
        self.ca_file = ca_file
        self._open: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def get(self, where: str, **query: str) -> Any:
        return self.call("GET", where, query)

    def put(self, where: str, body: dict[str, Any] | None = None) -> Any:
        return self.call("PUT", where, {}, body or {})

    def post(self, where: str, body: dict[str, Any] | None = None) -> Any:
        return self.call("POST", where, {}, body or {})

    def delete(self, where: str, **query: str) -> Any:
        return self.call("DELETE", where, query)

    def call(
        self,
        method: str,
        where: str,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One request, and the document that came back.

        Raises:
            NoAnswer: nobody answered.
            Refusal: the broker said no.
        """
        sent = {"Authorization": self._login, "Accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        target = where + ("?" + urlencode(query, errors="surrogateescape") if query else "")
        status, reason, content = self._exchange(method, target, data, sent)
        try:
            document = json.loads(content) if content else None
        except ValueError:
            document = content.decode("utf-8", "replace")
        if 200 <= status < 300:
            return document
        unknown = status == 429 or _is_failed_login(status, document)
        raise Refusal(_sentence(status, reason, document), status, document, unknown=unknown)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str, bytes]:
        if time.monotonic() - self._used_s > KEPT_S:
            self.close()
        kept = self._open is not None
        try:
            if self._open is None:
                self._open = self._connection()
            if self._open.sock is not None:
                self._open.sock.settimeout(self.timeout_s)
            self._open.timeout = self.timeout_s
            self._open.request(method, target, data, headers)
            answer = self._open.getresponse()
            content = answer.read()
            self._used_s = time.monotonic()
            self.date = answer.getheader("Date") or ""
            if answer.will_close:
                self.close()
            return answer.status, answer.reason, content
        except ssl.SSLCertVerificationError as problem:
            self.close()
            raise NoAnswer(
                f"the certificate of {self.url} is not trusted: {problem.verify_message}; give --ca-file, the file "
                "with the authority that signed it"
            ) from None
        except ssl.SSLError as problem:
            self.close()
            raise NoAnswer(
                f"no answer from {self.url}: {problem.reason or problem}; is it an https address?"
            ) from None
        except ValueError as problem:
            self.close()
            raise CommandError(f"this cannot be sent: {problem}", 2) from None
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            # A connection that was kept may have been closed meanwhile; reading again changes nothing.
            if kept and method == "GET" and not isinstance(problem, TimeoutError):
                return self._exchange(method, target, data, headers)
            why = (
                "it took too long"
                if isinstance(problem, TimeoutError)
                else str(problem) or type(problem).__name__
            )
            raise NoAnswer(
                f"no answer from {self.url}: {why}; is the broker running, and is --url its admin address?"
            ) from None

    def _connection(self) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            raise CommandError(f"--url {self.url!r} is not a URL such as http://127.0.0.1:15672", 2)
        if parts.scheme == "http":
            return _Plain(host, port, timeout=self.timeout_s)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as problem:
            raise CommandError(
                f"--ca-file {self.ca_file} cannot be used: {problem.strerror or problem}", 2
            ) from None
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)


class _Plain(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_failed_login(status: int, document: Any) -> bool:
    return status == 401 and isinstance(document, dict) and document.get("reason") == "Login failed"


def _sentence(status: int, phrase: str, document: Any) -> str:
    if _is_failed_login(status, document):
        return "login refused; give --user and --password-file (or --ask-password), or TIDEMARK_USER and TIDEMARK_PASSWORD"
    reason = document.get("reason") if isinstance(document, dict) else None
    if reason is None:
        reason = (document[:200] if isinstance(document, str) else "") or phrase
    reason = str(reason)
    # What a command was refused for is a sentence of its own.
    return reason if status == 409 else f"refused ({status}): {reason}"
