"""What an operator does to a running broker: policies and limits, of Tidemark over HTTP, of RabbitMQ by its command.

Tests that are written against `Operator` can be checked against what they describe: with TIDEMARK_TEST_ADDRESS set to
`rabbitmq` they run against a private RabbitMQ.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from helpers.broker import Address, BrokerProcess


class Refused(AssertionError):
    """The broker would not have it; the text says why."""


class Operator(Protocol):
    address: Address

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        """Raises Refused."""

    def clear_policy(self, name: str, *, operator: bool = False) -> None: ...

    def add_vhost(self, name: str) -> None: ...

    def set_vhost_limits(self, vhost: str, limits: dict[str, int]) -> None: ...

    def add_user(self, name: str, password: str) -> None: ...

    def set_user_limits(self, user: str, limits: dict[str, int]) -> None: ...


class TidemarkOperator:
    def __init__(self, address: Address, admin: Address) -> None:
        self.address = address
        self._client = httpx.Client(
            base_url=f"http://{admin.host}:{admin.port}/api", auth=("guest", "guest"), timeout=20
        )

    def ask(self, method: str, *path: str, **fields: Any) -> Any:
        """The answer of the management API. Raises Refused."""
        url = "/" + "/".join(quote(part, safe="") for part in path)
        answer = self._client.request(method, url, json=fields if fields else None)
        if answer.status_code >= 400:
            raise Refused(answer.json().get("reason", answer.text))
        return answer.json() if answer.content else None

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        fields = {"pattern": pattern, "definition": definition, "apply-to": apply_to, "priority": priority}
        self.ask("PUT", "operator-policies" if operator else "policies", "/", name, **fields)

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        self.ask("DELETE", "operator-policies" if operator else "policies", "/", name)

    def add_vhost(self, name: str) -> None:
        self.ask("PUT", "vhosts", name)
        self.ask("PUT", "permissions", name, "guest", configure=".*", write=".*", read=".*")

    def set_vhost_limits(self, vhost: str, limits: dict[str, int]) -> None:
        for limit, value in limits.items():
            self.ask("PUT", "vhost-limits", vhost, limit, value=value)

    def add_user(self, name: str, password: str) -> None:
        self.ask("PUT", "users", name, password=password, tags="")
        self.ask("PUT", "permissions", "/", name, configure=".*", write=".*", read=".*")

    def set_user_limits(self, user: str, limits: dict[str, int]) -> None:
        for limit, value in limits.items():
            self.ask("PUT", "user-limits", user, limit, value=value)


class RabbitOperator:
    def __init__(self, address: Address, pid: int) -> None:
        self.address = address
        raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        known = dict(entry.decode().split("=", 1) for entry in raw if b"=" in entry)
        wanted = ("PATH", "HOME", "LC_ALL", "ERL_EPMD_PORT", "ERL_EPMD_ADDRESS", "RABBITMQ_NODENAME")
        self._environment = {name: known[name] for name in wanted} | {"RABBITMQ_CONF_ENV_FILE": "/dev/null"}
        [self._command] = Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmqctl")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._command), "-q", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise Refused(done.stderr.removeprefix("Error:\n"))

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        command = "set_operator_policy" if operator else "set_policy"
        options = ["--priority", str(priority), "--apply-to", apply_to]
        self._run(command, *options, name, pattern, json.dumps(definition))

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        self._run("clear_operator_policy" if operator else "clear_policy", name)

    def add_vhost(self, name: str) -> None:
        self._run("add_vhost", name)
        self._run("set_permissions", "-p", name, "guest", ".*", ".*", ".*")

    def set_vhost_limits(self, vhost: str, limits: dict[str, int]) -> None:
        self._run("set_vhost_limits", "-p", vhost, json.dumps(limits))

    def add_user(self, name: str, password: str) -> None:
        self._run("add_user", name, password)
        self._run("set_permissions", name, ".*", ".*", ".*")

    def set_user_limits(self, user: str, limits: dict[str, int]) -> None:
        self._run("set_user_limits", user, json.dumps(limits))


@contextmanager
def an_operator(folder: Path, *, of_rabbitmq: bool) -> Iterator[Operator]:
    """A broker of its own, and who runs it."""
    if of_rabbitmq:
        from bench.rabbitmq import RabbitMQ

        with RabbitMQ(folder) as rabbit:
            yield RabbitOperator(Address("127.0.0.1", rabbit.port), rabbit.pid)
        return
    process = BrokerProcess(folder / "data").start()
    try:
        yield TidemarkOperator(process.address, process.admin)
        process.stop()
    finally:
        process.close()
