"""Compiles the C programs of the benchmark into `bench/bin`, each from one source file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
BIN = FOLDER / "bin"
PROGRAMS = ("load", "null_broker", "null_cluster", "rawdisk")
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-Wno-missing-field-initializers")


class BuildFailedError(RuntimeError):
    """gcc is missing or refused a source; its words are in the message."""


def build() -> None:
    """Compile what is older than its source or any header.

    Raises:
        BuildFailedError: there is no gcc, or it refused a source.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        raise BuildFailedError("gcc is not installed; the load generator is written in C")
    BIN.mkdir(exist_ok=True)
    headers = max(header.stat().st_mtime for header in FOLDER.glob("*.h"))
    for name in PROGRAMS:
        source, program = FOLDER / f"{name}.c", BIN / name
        newest = max(source.stat().st_mtime, headers)
        if program.exists() and program.stat().st_mtime > newest:
            continue
        # Compiled beside and moved in, so that a running program is not disturbed; under a name of
        # its own, because two test processes may both find the program missing.
        fresh = BIN / f"{name}.{os.getpid()}.new"
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", str(fresh), str(source)], capture_output=True, text=True
        )
        if done.returncode:
            raise BuildFailedError(done.stderr)
        fresh.rename(program)
