"""A trial whose processes do nothing: what `tidemark cluster` starts is `sleep`, and says of itself what a test wants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli import main
from tidemark.cli.trial import Etcd, Process, Trial, asking, cluster, etcd, processes

GONE = ["true"]
IDLE = ["sleep", "600"]


def everywhere(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """In every part of a trial that uses it."""
    for part in (asking, cluster, etcd, processes):
        if hasattr(part, name):
            monkeypatch.setattr(part, name, value)


class Toys:
    """Commands in a directory of their own, and the processes that they started."""

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.launched: list[Process] = []
        self.says: dict[str, dict[str, Any]] = {}
        """What members say of themselves, by name; who is not here leads if it is the first, else it is ready."""
        self.commands: dict[str, list[str]] = {}
        """What runs in place of a member; `IDLE` if nothing is said."""
        self._capture = capture

    def run(self, *words: str, code: int = 0) -> str:
        """`tidemark cluster …`; what it printed, or how it complained."""
        self._capture.readouterr()
        ended = main(["cluster", *words])
        self.printed = self._capture.readouterr()
        assert ended == code, self.printed.out + self.printed.err
        return self.printed.err if code and self.printed.err else self.printed.out

    @property
    def trial(self) -> Trial:
        [file] = self.directory.glob("*/cluster.json")
        return Trial.load(file.parent)

    def alive(self) -> list[Process]:
        return [process for process in self.launched if not process.wait_gone(0)]


@contextlib.contextmanager
def toys(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Toys]:
    made = Toys(directory, capsys)
    launch = processes.launch

    def launch_toy(command: list[str], log: Path, *, detached: bool) -> Process:
        process = launch(made.commands.get(log.stem, IDLE), log, detached=detached)
        made.launched.append(process)
        return process

    def ask(admin: str) -> dict[str, Any]:
        members = made.trial.members
        [name] = [name for name, place in members.items() if place.admin == admin]
        mine = made.trial.of(members[name].group)
        usual = {"state": "active" if name == mine[0] else "ready", "leader": mine[0], "ready": mine}
        return made.says.get(name, usual)

    monkeypatch.chdir(directory)
    monkeypatch.delenv("TIDEMARK_TRIAL_DIR", raising=False)
    everywhere(monkeypatch, "launch", launch_toy)
    everywhere(monkeypatch, "ask", ask)
    everywhere(monkeypatch, "ask_front", lambda _: {"state": "serving"})
    everywhere(monkeypatch, "etcd_program", lambda: "etcd")
    monkeypatch.setattr(Etcd, "healthy", lambda _: True)
    monkeypatch.setattr(Trial, "spread", lambda _: None)
    everywhere(monkeypatch, "START_S", 0.2)
    everywhere(monkeypatch, "FREE_S", 0.1)
    try:
        yield made
    finally:
        for process in made.launched:
            process.kill()
