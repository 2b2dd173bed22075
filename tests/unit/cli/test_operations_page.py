"""What docs/operations.md tells people to type works: its commands are run as they stand, those for root apart."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess

Run = Callable[..., str]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations.md").read_text()
BLOCKS = [block.replace("\\\n", " ") for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
LINES = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
OURS = [shlex.split(line)[1:] for line in LINES if line.startswith("tidemark ")]


def test_every_command_of_the_page_works(
    tidemark: Run, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-91: the commands of the page for operators are executed."""
    monkeypatch.chdir(tmp_path)
    Path("ann.secret").write_text("correct horse\n")
    Path("tidemark.toml").write_text("[limits]\nconnections_max = 100\n")
    stopped = BrokerProcess(tmp_path / "backup").start()
    stopped.stop()
    assert len(OURS) > 20
    for words in OURS:
        if words[-3:] == ["users", "delete", "guest"]:
            continue  # the broker is shared with other tests
        if words[0] == "doctor":
            continue  # what it finds depends on the machine: tests/system/test_doctor.py
        if "--accept-loss" in words or words[-2:] == ["member", "promote"]:
            continue  # needs a cluster that is in trouble: tests/system/cluster/test_accepted_loss.py
        tidemark(*words)
    tidemark("ctl", "users", "delete", "ann")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"packaging/[\w./-]+\w", PAGE))))
def test_every_file_that_the_page_names_is_there(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\(([\w./-]+\.md)", PAGE))))
def test_every_page_that_it_links_to_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).exists()
