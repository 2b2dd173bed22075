"""Looking into a message's properties. The broker keeps them as the bytes that came in and asks only when a
feature needs to know; the front end's protocol knows how they are written."""

from __future__ import annotations

from typing import Any, Protocol


class Content(Protocol):
    def headers(self, properties: bytes) -> dict[str, Any]:
        """The headers table, {} if there is none. Raises SyntaxFault when it cannot be read."""

    def with_headers(
        self, properties: bytes, headers: dict[str, Any], *, keep_expiration: bool = True
    ) -> bytes:
        """The same properties with other headers (an empty dict removes them), without expiration if so asked."""

    def headers_table(self, properties: bytes) -> bytes:
        """The headers as they are written, with their length; empty if there are none."""

    def with_headers_table(self, properties: bytes, table: bytes) -> bytes:
        """The same properties with other headers, as `headers_table` gives them; without headers none can be added."""

    def user_id(self, properties: bytes) -> str | None: ...

    def expiration(self, properties: bytes) -> str | None: ...

    def reply_to(self, properties: bytes) -> str | None: ...

    def with_reply_to(self, properties: bytes, reply_to: str) -> bytes: ...

    def describe(self, properties: bytes) -> tuple[int, int, int]:
        """(flags, priority, ttl in ms) of a message with these properties, as in a row of a `PublishRun`."""
