"""The house is in order: what every module owes its reader, and what must never be in the tree."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.speed import PURE

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TWINS = sorted((ROOT / "src").rglob("*_c.pyx"))

PICKED = [
    ("tidemark.model.runs", "PublishRun"),
    ("tidemark.model.arena", "Arena"),
    ("tidemark.broker.core", "QueueCore"),
    ("tidemark.broker.core", "Publisher"),
    ("tidemark.broker.core", "Unacked"),
    ("tidemark.broker.core", "Restorer"),
    ("tidemark.wire.amqp091.scanner", "Scanner"),
    ("tidemark.wire.amqp091.deliveries", "encode_deliveries"),
    ("tidemark.wire.amqp091.cutter", "Cutter"),
    ("tidemark.wire.amqp091.publishes", "encode_publishes"),
    ("tidemark.store.frames", "seal"),
    ("tidemark.runtime.flusher", "Flusher"),
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path} has no head"


@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.stem)
def test_every_compiled_module_has_a_reference_and_types(path: Path) -> None:
    assert path.with_name(path.name.replace("_c.pyx", "_py.py")).exists()
    assert path.with_suffix(".pyi").exists()


@pytest.mark.skipif(PURE, reason="this run chose the plain twins")
@pytest.mark.parametrize(("module", "name"), PICKED)
def test_the_compiled_twins_are_the_ones_in_use(module: str, name: str) -> None:
    """A build that failed quietly must not make the tests of the compiled code vacuous."""
    picked = getattr(importlib.import_module(module), name)
    assert importlib.import_module(picked.__module__).__file__.endswith(".so")  # type: ignore[union-attr]


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    forbidden = ("/work" + "/", "/root" + "/", "/farm" + "/")
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".pyx", ".md", ".toml", ".sh", ".c", ".h", ""}:
            text = path.read_text(errors="replace")
            assert not any(place in text for place in forbidden), name


def test_pages_made_from_the_code_are_fresh() -> None:
    """`make docs` changes nothing: configuration and errors are described as they are."""
    done = subprocess.run(
        [sys.executable, "tools/make_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
