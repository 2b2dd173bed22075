"""A private RabbitMQ with its management plugin, for comparing answers.

It runs as `bench.rabbitmq` runs one (own folders, free loopback ports, nothing left behind), with the management
plugin on a port of its own and no other plugin that opens one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0

sys.path.insert(0, str(ROOT))

from bench import proc  # noqa: E402
from bench.rabbitmq import RabbitMQ, server_script  # noqa: E402


class ManagedRabbitMQ(RabbitMQ):
    """`with ManagedRabbitMQ(tmp_path) as rabbit: rabbit.api("GET", "/overview")`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.admin_port = 0

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._until_managed()
        except BaseException:
            self._stop()
            raise
        return self

    def _environment(self, distribution_port: int, epmd_port: int) -> dict[str, str]:
        (self.admin_port,) = proc.free_ports(1)
        settings = [
            f"listeners.tcp.1 = {proc.HOST}:{self.port}",
            "log.file.level = warning",
            f"management.tcp.ip = {proc.HOST}",
            f"management.tcp.port = {self.admin_port}",
            "collect_statistics_interval = 1000",
        ]
        (self._folder / "managed.conf").write_text("\n".join(settings) + "\n")
        (self._folder / "managed_plugins").write_text("[rabbitmq_management].\n")
        return super()._environment(distribution_port, epmd_port) | {
            "RABBITMQ_CONFIG_FILE": str(self._folder / "managed"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "managed_plugins"),
        }

    def api(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        url = f"http://{proc.HOST}:{self.admin_port}/api{path}"
        return httpx.request(method, url, json=body, auth=("guest", "guest"), timeout=20, **more)

    def _until_managed(self) -> None:
        """The management listener opens some time after that of AMQP."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                if self.api("GET", "/overview").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, "the management plugin did not answer"
            time.sleep(0.2)


def require_rabbitmq() -> None:
    if server_script() is None:
        pytest.skip("rabbitmq-server is not installed")
