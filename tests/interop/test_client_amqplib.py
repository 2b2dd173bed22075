"""amqplib for Node, installed by npm into a copy of interop/node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.broker import Address

HERE = Path(__file__).parent / "node"
STORIES = [
    "publish-and-consume",
    "confirms",
    "properties",
    "exchanges",
    "channel-error",
    "returns",
    "reply-to",
    "large-body",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stories and amqplib in it."""

    def unavailable(reason: str) -> None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    if not (shutil.which("npm") and shutil.which("node")):
        unavailable("npm and node are needed for the amqplib tests")
    folder = tmp_path_factory.mktemp("node") / "interop"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        unavailable(f"npm could not install amqplib: {done.stderr[-500:]}")
    return folder


def test_every_story_is_in_this_list(node: Path) -> None:
    done = subprocess.run(
        ["node", "stories.js", "", "--list"], cwd=node, capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.split() == STORIES


@pytest.mark.parametrize("story", STORIES)
def test_amqplib(node: Path, broker: Address, story: str) -> None:
    done = subprocess.run(
        ["node", "stories.js", broker.url(), story], cwd=node, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
