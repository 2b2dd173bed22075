"""The directory of a trial: who may use it, and whether one can be made there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tidemark.cli import CommandError

STATE_FILE = "cluster.json"
NEW_STATE_FILE = STATE_FILE + ".new"
ALONE_S = 5.0
"""How long a call waits for another one that starts or stops things."""


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While no other call starts or stops anything in this directory.

    Raises:
        CommandError: another one is at it, or there is no such directory.
    """
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise no_room(directory, problem) from None
    try:
        deadline = time.monotonic() + ALONE_S
        while True:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"another 'tidemark cluster' starts or stops something in {directory}; wait until it has ended"
                    ) from None
            time.sleep(0.05)
        yield
    finally:
        os.close(place)


def holds_cluster(directory: Path) -> bool:
    """Raises CommandError: nobody can look."""
    try:
        return (directory / STATE_FILE).exists()
    except OSError as problem:
        raise no_room(directory, problem) from None


def check_room(directory: Path) -> None:
    """Raises CommandError: a cluster cannot be made there, because something else is."""
    try:
        if directory.is_dir():
            held = sorted(one.name for one in directory.iterdir())
            if held:
                raise CommandError(
                    f"{directory} is not empty and holds no cluster ({held[0]}{', …' if held[1:] else ''}); "
                    "choose a new or empty directory with --dir",
                    2,
                )
        elif directory.exists():
            raise CommandError(f"{directory} is no directory; choose another --dir", 2)
    except OSError as problem:
        raise no_room(directory, problem) from None


def no_room(directory: Path, problem: OSError) -> CommandError:
    return CommandError(f"cannot use {directory}: {reason(problem)}; choose another --dir", 2)


def cannot_delete(problem: OSError) -> CommandError:
    return CommandError(f"cannot delete {problem.filename}: {reason(problem)}")


def reason(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()
