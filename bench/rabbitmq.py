"""A private RabbitMQ from the system's package, for comparison.

It runs beside any other RabbitMQ of the machine: own folders under the given path, free ports for
AMQP, distribution and epmd, everything on loopback, no plugins, default settings otherwise. The
package's server script is called directly rather than through its wrapper in /usr/sbin, which
would change to the user `rabbitmq` when started by root.

Invariant: when the context ends, no process that it started is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import proc

_SCRIPTS = Path("/usr/lib/rabbitmq/lib")
_START_TIMEOUT_S = 90.0


class RabbitMQUnavailableError(RuntimeError):
    """RabbitMQ is not installed and cannot be installed here."""


def server_script() -> Path | None:
    """The newest installed server script, or None."""
    found = sorted(_SCRIPTS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found and shutil.which("erl") and shutil.which("epmd") else None


def version() -> str | None:
    script = server_script()
    return script.parent.parent.name.removeprefix("rabbitmq_server-") if script else None


def ensure_installed() -> Path:
    """The server script; installs Debian's package first when that is possible.

    Raises:
        RabbitMQUnavailableError: it is not there, and this user may not install it.
    """
    script = server_script()
    if script is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "rabbitmq-server"]):
            subprocess.run(["apt-get", "-q", *arguments], env=environment, check=False, capture_output=True)
        script = server_script()
    if script is None:
        raise RabbitMQUnavailableError(
            "RabbitMQ is skipped: rabbitmq-server is not installed and cannot be installed here"
        )
    return script


class RabbitMQ:
    """One private broker: `with RabbitMQ(tmp_path) as rabbit: connect(rabbit.port)`."""

    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "rabbitmq.log"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.pid = 0

    def __enter__(self) -> Self:
        script = ensure_installed()
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port, distribution_port, epmd_port = proc.free_ports(3)
        environment = self._environment(distribution_port, epmd_port)
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {proc.HOST}:{self.port}\nlog.file.level = warning\n"
        )
        (self._folder / "enabled_plugins").write_text("[].\n")
        try:
            with self._log.open("wb") as log:
                # Our own epmd: the one that erl would start on its own outlives it as a daemon.
                self._epmd = subprocess.Popen(
                    ["epmd", "-address", proc.HOST, "-port", str(epmd_port)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                self._server = subprocess.Popen(
                    [str(script)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                )
            proc.wait_until(lambda: proc.speaks_amqp(self.port), self._server, self._log, _START_TIMEOUT_S)
            self.pid = self._beam_pid()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def pids(self) -> list[int]:
        """The Erlang machine and its helper processes."""
        return proc.family(self.pid)

    def cpu_seconds(self) -> float:
        return proc.cpu_seconds(self.pids())

    def rss_bytes(self) -> int:
        return proc.rss_bytes(self.pids())

    def _environment(self, distribution_port: int, epmd_port: int) -> dict[str, str]:
        inherited = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        folder = self._folder
        return inherited | {
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_ADDRESS": proc.HOST,
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": proc.HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
            ),
        }

    def _beam_pid(self) -> int:
        """The server script stays alive as a parent that passes signals on."""
        assert self._server is not None
        for pid in proc.family(self._server.pid):
            if Path(f"/proc/{pid}/comm").read_text().startswith("beam"):
                return pid
        raise proc.ServerFailedError("no Erlang machine runs under the RabbitMQ server script")

    def _stop(self) -> None:
        if self._server is not None:
            members = proc.family(self._server.pid) if self._server.poll() is None else []
            helpers = proc.start_times(pid for pid in members if pid != self._server.pid)
            proc.stop(self._server, timeout_s=30)
            proc.wait_gone(helpers)
        if self._epmd is not None:
            proc.stop(self._epmd)
        self._server = self._epmd = None
