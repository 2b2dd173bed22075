"""The memory of the stream index (`heap.h`), by a program in C that gets and gives blocks at random."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_blocks_never_meet_and_all_memory_comes_back(tmp_path: Path) -> None:
    program = tmp_path / "heap_check"
    include = ROOT / "src/tidemark/broker/streams"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    source = str(HERE / "heap_check.c")
    subprocess.run(["gcc", "-O1", "-g", *warnings, f"-I{include}", source, "-o", str(program)], check=True)
    done = subprocess.run([program, "60000"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
