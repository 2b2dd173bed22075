"""The conformance tests of the broker, with a front between it and the clients.

All of them pass that way (`TIDEMARK_TEST_FRONT=1 pytest tests/interop`); here is a part that takes seconds. The front
passes channels on as they are, or looks at each (`channels`), as one does that has several groups behind it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PART = (
    "test_channel.py",
    "test_confirms_and_tx.py",
    "test_consume.py",
    "test_publish.py",
    "test_settlement.py",
    "test_client_aio_pika.py",
    "test_client_py_amqp.py",
)


@pytest.mark.parametrize("how", ["1", "channels"])
def test_clients_notice_no_front(how: str) -> None:
    files = [f"tests/interop/{name}" for name in PART]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TIDEMARK_TEST_FRONT": how},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
