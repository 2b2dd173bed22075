"""The shell completes commands, options and names of the running broker; without a broker it is silent and quick."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess

Ctl = Callable[..., str]

SOURCE = Path(__file__).resolve().parents[3] / "src"
PROGRAM = [sys.executable, "-m", "tidemark"]


def asked(shell: str, line: str, url: str) -> list[str]:
    """What a shell is told when the user presses tab behind `line`."""
    words = line.split(" ")
    environment = os.environ | {
        "PYTHONPATH": str(SOURCE),
        "TIDEMARK_URL": url,
        "_TIDEMARK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.stderr == ""
    return [word for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_names_of_the_running_broker_complete(shell: str, ctl: Ctl, admin_url: str) -> None:
    ctl("queues", "declare", "complete-me")
    ctl("queues", "declare", "other")

    told = " ".join(asked(shell, "tidemark ctl queues show comp", admin_url))
    assert "complete-me" in told
    assert "other" not in told
    assert "guest" in " ".join(asked(shell, "tidemark ctl permissions set gu", admin_url))
    assert "queues" in " ".join(asked(shell, "tidemark ctl que", admin_url))
    assert "--columns" in " ".join(asked(shell, "tidemark ctl queues list --col", admin_url))
    ctl("queues", "delete", "complete-me")
    ctl("queues", "delete", "other")


def test_a_name_is_completed_in_the_virtual_host_and_at_the_broker_that_the_line_names(
    ctl: Ctl, admin_url: str
) -> None:
    ctl("vhosts", "add", "elsewhere")
    ctl("queues", "declare", "far", "--vhost", "elsewhere")

    nowhere = "http://127.0.0.1:1"
    assert "far" in asked(
        "bash", f"tidemark ctl --url {admin_url} queues delete --vhost elsewhere f", nowhere
    )
    assert "far" not in asked("bash", f"tidemark ctl --url {admin_url} queues delete f", nowhere)
    ctl("vhosts", "delete", "elsewhere")


def test_a_broker_that_is_away_hangs_or_refuses_completes_to_nothing(broker: BrokerProcess) -> None:
    url = f"http://{broker.admin.host}:{broker.admin.port}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        for place in ("http://127.0.0.1:1", hanging, "nonsense"):
            began = time.monotonic()
            assert asked("bash", "tidemark ctl queues show x", place) == []
            assert time.monotonic() - began < 10
        assert held, "nobody asked the broker that hangs"
    assert asked("bash", "tidemark ctl --user nobody queues show x", url) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell: str) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(SOURCE),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command = [*PROGRAM, "--show-completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"complete_{shell}" in done.stdout
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run(
            [program, "-n"], input=done.stdout, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_itself_completes_with_the_script_that_was_installed(
    ctl: Ctl, admin_url: str, tmp_path: Path
) -> None:
    ctl("queues", "declare", "really")
    program = tmp_path / "tidemark"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidemark "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "TIDEMARK_URL": admin_url,
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script = """
        tidemark --install-completion bash > /dev/null || exit 9
        . ~/.bashrc
        COMP_WORDS=(tidemark ctl queues purge rea) COMP_CWORD=4
        $(complete -p tidemark | sed 's/.*-F \\([^ ]*\\).*/\\1/') tidemark
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "really", done.stderr
    ctl("queues", "delete", "really")
