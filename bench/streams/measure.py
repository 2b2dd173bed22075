"""Runs one stream case once for one contestant and returns its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.cases import BATCH, Case
from bench.measure import Figures, RunFailedError, Scale
from bench.streams import nats, redis, tidemark
from bench.tidemark_server import environment

_TIMEOUT_S = 1200


def run_stream_case(case: Case, broker: str, folder: Path, scale: Scale) -> Figures:
    """The figures of one run.

    Raises:
        RunFailedError: something was refused or is not there; figures of such a run mean nothing.
        ServerFailedError: the server did not start, or ended.
    """
    keys = min(case.keys, scale.keys_max)
    match broker:
        case "tidemark":
            return tidemark.figures(case, folder, keys, scale)
        case "core":
            return _core(case, keys, scale)
        case "nats":
            return nats.figures(folder, keys, BATCH, scale)
        case "redis":
            return redis.figures(folder, keys, BATCH, scale)
        case _:
            raise RunFailedError(f"{broker} has no streams")


def _core(case: Case, keys: int, scale: Scale) -> Figures:
    """In a process of its own, so that memory is that of this run alone."""
    command = [sys.executable, "-m", "bench.streams.core", case.kind.name, str(keys), str(scale.stream_s)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=environment(),
            cwd=Path(__file__).parents[2],
        )
    except subprocess.TimeoutExpired as late:
        raise RunFailedError(f"the inner loops did not end in {_TIMEOUT_S} s") from late
    if done.returncode:
        raise RunFailedError(done.stderr.strip()[-400:])
    figures: Figures = json.loads(done.stdout)
    return figures
