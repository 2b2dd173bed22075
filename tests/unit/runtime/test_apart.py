"""Work that a forked child does: on the memory of the fork, with nothing of its parent's in its hands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tidemark.ports import Scratch
from tidemark.runtime.apart import Child, Forked
from tidemark.runtime.disk import FileDisk


def ended(child: Child, timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while (went_well := child.poll()) is None:
        assert time.monotonic() < deadline, "the child did not end"
        time.sleep(0.001)
    return went_well


def test_a_child_writes_what_the_memory_was_when_it_began(tmp_path: Path) -> None:
    words = [b"as it was"]

    def job(scratch: Scratch) -> None:
        time.sleep(0.05)
        scratch.write("tmp-file", 0, words[0])
        scratch.write("tmp-file", 9, b" then")
        scratch.sync("tmp-file")

    child = Forked(tmp_path).run(job)
    words[0] = b"otherwise"
    assert ended(child)
    assert child.poll() is True
    assert (tmp_path / "tmp-file").read_bytes() == b"as it was then"


def test_a_child_that_raises_did_not_go_well(tmp_path: Path) -> None:
    def job(scratch: Scratch) -> None:
        raise ValueError("on purpose")

    assert not ended(Forked(tmp_path).run(job))


def test_a_child_can_be_stopped(tmp_path: Path) -> None:
    child = Forked(tmp_path).run(lambda _: time.sleep(60))
    assert child.poll() is None
    child.stop()
    assert child.poll() is False


def test_a_child_holds_neither_the_lock_nor_a_socket_of_its_parent(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "data")
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    child = Forked(tmp_path).run(lambda _: time.sleep(60))
    try:
        time.sleep(0.1)
        listener.close()
        disk.close()
        FileDisk(tmp_path / "data").close()
        with socket.socket() as probe:
            assert probe.connect_ex(address) != 0
    finally:
        child.stop()


PARENT = """
import sys, time
from pathlib import Path
from tidemark.runtime.apart import Forked
child = Forked(Path(sys.argv[1])).run(lambda scratch: (scratch.write("tmp-here", 0, b"x"), time.sleep(60)))
print(child._pid, flush=True)
time.sleep(60)
"""


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    while not (tmp_path / "tmp-here").exists():
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether it is there and not just waiting to be buried."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
