"""What a router asks about exchanges, bindings and queues, and the answer where all of them are in one group.

A front holds a copy of the wiring that main keeps. Questions are answered from the copy, at once; whether the
copy is new enough is a question of its own, `fresh`, whose answer may take a round trip to main.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from tidemark.broker.wiring_copy import Admission
from tidemark.model.wiring import MAIN, QueueSpec

Permission: TypeAlias = Literal["configure", "write", "read"]

__all__ = ["MAIN", "OneGroup", "Permission", "Wiring"]


class Wiring(Protocol):
    @property
    def groups(self) -> Collection[str]:
        """All groups; main is one of them."""

    def fresh(self, then: Callable[[], None]) -> None:
        """Call `then`, at once or later, when the copy has every change that was confirmed before this call."""

    def group_of(self, vhost: str, queue: str) -> str | None:
        """The group that a queue lives in; None if there is no such queue."""

    def spec_of(self, vhost: str, queue: str) -> QueueSpec | None:
        """What a queue was declared as; None if there is no such queue."""

    def check(self, vhost: str, user: str, permission: Permission, queue: str) -> None:
        """Whether main lets this user do that with a queue.

        Raises:
            AccessRefused: it does not.
        """

    def admission(self, vhost: str, user: str) -> Admission | None:
        """What main lets this user do in the virtual host; None: not even enter."""

    def place(
        self,
        vhost: str,
        queue: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
    ) -> str:
        """The group that a queue with these properties lives in, or would if it were declared.

        Raises:
            ChannelError: it asks for what no group has.
        """

    def routes(
        self,
        vhost: str,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        *,
        user: str,
        seen: tuple[int, int] | None = None,
    ) -> Mapping[str, Sequence[str]]:
        """The queues that a message of this user goes to, by group; nothing if there is none.

        Exchange, key and properties are as they came over the wire; `seen` are the flags and the time to live of its row,
        if it has one. Messages that go the same way are often given the same answer, the very same object.

        Raises:
            ChannelError: there is no such exchange, or this user may not publish there.
        """

    def letter_routes(
        self, vhost: str, exchange: str, key: str, properties: bytes
    ) -> Mapping[str, Sequence[str]]:
        """The queues that a dead letter goes to, by group. Nobody is asked for permission."""


class OneGroup:
    """Everything is in main, and main routes what is published: its router passes everything on as it is."""

    groups = (MAIN,)

    def fresh(self, then: Callable[[], None]) -> None:
        then()

    def group_of(self, vhost: str, queue: str) -> str | None:  # noqa: ARG002
        return MAIN

    def spec_of(self, vhost: str, queue: str) -> QueueSpec | None:  # noqa: ARG002
        return None

    def check(self, vhost: str, user: str, permission: Permission, queue: str) -> None:
        """Main is asked itself."""

    def admission(self, vhost: str, user: str) -> Admission | None:  # noqa: ARG002
        return None

    def place(self, *_: Any) -> str:
        return MAIN

    def routes(
        self,
        *_: Any,
        user: str,  # noqa: ARG002
        seen: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> Mapping[str, Sequence[str]]:
        return {}

    def letter_routes(self, *_: Any) -> Mapping[str, Sequence[str]]:
        return {}
