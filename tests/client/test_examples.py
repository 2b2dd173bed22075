"""Every example runs: the scripts of examples/streams, the Python of docs/client.md, the commands of docs/streams.md.

Pieces of one page run one after the other in one process, as somebody who reads the page would type them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.broker import SOURCE, BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "streams").glob("*.py"))
DEFAULT = "127.0.0.1:5672"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("examples") / "data").start()
    yield process
    process.stop()


def environment(broker: BrokerProcess, folder: Path) -> dict[str, str]:
    """One in which `tidemark` is this tree's, and talks to the test's broker."""
    command = folder / "bin" / "tidemark"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidemark "$@"\n')
    command.chmod(0o755)
    return os.environ | {
        "PYTHONPATH": str(SOURCE),
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "TIDEMARK_STREAM_URL": f"tidemark://127.0.0.1:{broker.address.port}/",
        "TIDEMARK_URL": f"http://127.0.0.1:{broker.admin.port}",
    }


def run(command: list[str], broker: BrokerProcess, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(broker, folder), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_runs_and_finds_what_it_expects(
    broker: BrokerProcess, script: Path, tmp_path: Path
) -> None:
    assert run(
        [sys.executable, str(script), f"tidemark://127.0.0.1:{broker.address.port}/"], broker, tmp_path
    )


def test_there_are_examples() -> None:
    assert len(SCRIPTS) >= 6 and len(blocks("client.md", "python")) >= 10


def test_the_python_of_the_clients_page_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    code = "\n".join(blocks("client.md", "python")).replace(DEFAULT, f"127.0.0.1:{broker.address.port}")
    page = tmp_path / "page.py"
    page.write_text(code)
    run([sys.executable, str(page)], broker, tmp_path)


@pytest.mark.slow
def test_the_commands_of_the_pages_run(broker: BrokerProcess, tmp_path: Path) -> None:
    for page in ("streams.md", "client.md"):
        folder = tmp_path / page
        folder.mkdir()
        lines = [line for block in blocks(page, "console") for line in block.splitlines()]
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        assert commands or page == "client.md"
        run(["bash", "-euo", "pipefail", "-c", "\n".join(commands) or "true"], broker, folder)
