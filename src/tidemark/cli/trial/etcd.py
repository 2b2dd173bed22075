"""A real etcd of a trial."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.cli import CommandError
from tidemark.cli.trial.asking import get
from tidemark.cli.trial.processes import HOST, Process, free_ports, launch

ETCD_READY_S = 15.0
MISSING_ETCD = (
    "there is no program 'etcd', which decides who leads; install it (Debian and Ubuntu: apt-get install etcd-server), "
    "or give --etcd HOST:PORT of one that runs"
)


@dataclass(slots=True)
class Etcd:
    """One real etcd with its data in a directory; it can be killed and started again on the same port."""

    directory: Path
    client_port: int
    peer_port: int
    process: Process | None = None

    @classmethod
    def create(cls, directory: Path) -> Self:
        client_port, peer_port = free_ports(2)
        return cls(directory, client_port, peer_port)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.client_port}"

    def start(self, *, detached: bool = False) -> Self:
        """Start it and wait until it answers.

        Raises:
            CommandError: there is no such program, or it does not start; its log says why.
        """
        self.launch(detached=detached)
        self.wait_healthy()
        return self

    def launch(self, *, detached: bool = False) -> Process:
        """Start it, without waiting.

        Raises:
            CommandError: there is no such program.
        """
        program = etcd_program()
        clients, peers = f"http://{self.address}", f"http://{HOST}:{self.peer_port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        # etcd makes its data directory itself, for nobody else to read.
        command = [program, "--name", "trial", "--data-dir", str(self.directory / "etcd")]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"trial={peers}", "--logger", "zap", "--log-level", "warn"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        self.process = launch(command, self.log, detached=detached)
        return self.process

    def wait_healthy(self) -> None:
        """Wait until it answers.

        Raises:
            CommandError: it does not; its log says why.
        """
        assert self.process is not None
        deadline = time.monotonic() + ETCD_READY_S
        while not self.healthy():
            if self.process.wait_gone(0) or time.monotonic() > deadline:
                self.process.kill()
                raise CommandError(f"etcd does not start; see {self.log}")
            time.sleep(0.02)

    @property
    def log(self) -> Path:
        return self.directory / "etcd.log"

    def healthy(self) -> bool:
        return etcd_answers(self.address)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def etcd_program() -> str:
    """Raises CommandError: there is none."""
    program = shutil.which("etcd")
    if program is None:
        raise CommandError(MISSING_ETCD)
    return program


def etcd_answers(address: str) -> bool:
    """Whether the etcd at this address can decide things now."""
    try:
        status, text = get(address, "/health", {})
    except OSError:
        return False
    return status == 200 and b'"true"' in text
