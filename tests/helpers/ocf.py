"""The OCF resource agent in contrib/, called as a resource manager calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tidemark

AGENT = Path(__file__).resolve().parents[2] / "contrib" / "ocf" / "tidemark"
OK, FAILED, UNIMPLEMENTED, NOT_INSTALLED, NOT_CONFIGURED, NOT_RUNNING, PROMOTED = 0, 1, 3, 5, 6, 7, 8


class Agent:
    """Calls it with `tidemark` and the manager's own tool on its path; remembers the scores that it tells."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        tools = directory / "bin"
        tools.mkdir(parents=True)
        self._script(tools / "tidemark", f'exec "{sys.executable}" -m tidemark "$@"')
        # The manager's own tool, by which agents tell it scores.
        self._script(tools / "crm_master", f'echo "$@" >"{directory}/$OCF_RESKEY_name.score"')

    @staticmethod
    def _script(file: Path, words: str) -> None:
        file.write_text(f"#!/bin/sh\n{words}\n")
        file.chmod(0o755)

    def call(self, name: str, action: str, **parameters: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(tidemark.__file__).parents[1]),
            "OCF_ROOT": str(self.directory / "no-such-ocf"),
            "OCF_RESOURCE_INSTANCE": "broker",
            "OCF_RESKEY_CRM_meta_timeout": "40000",
            "OCF_RESKEY_name": name,
            **{f"OCF_RESKEY_{key}": value for key, value in parameters.items()},
        }
        # The broker that is started keeps the pipes if it is given any.
        with (self.directory / "agent.out").open("w+") as out:
            done = subprocess.run(
                ["sh", str(AGENT), action], env=environment, stdout=out, stderr=out, timeout=60, check=False
            )
            out.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, out.read(), "")

    def score(self, name: str) -> int:
        words = (self.directory / f"{name}.score").read_text().split()
        return int(words[-1]) if "-v" in words else 0
