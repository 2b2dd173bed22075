"""What is known about this machine's processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tidemark.runtime import machine


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_process_that_listens_on_a_port_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen()
        assert machine.listening_pid(listener.getsockname()[1]) == os.getpid()


def test_nobody_listens_on_a_port_that_is_only_connected_from() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as client:
        assert machine.listening_pid(client.getsockname()[1]) is None


def test_a_process_is_known_by_its_first_words_in_one_line() -> None:
    code = "print(flush=True); input()"
    words = [sys.executable, "-c", f"{code}\n# second line", "third", "fourth"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = machine.command_of(process.pid)
        process.stdin.write(b"\n")
    assert found == f"{sys.executable} -c {code}?# second line third"


def test_a_process_that_is_gone_is_unknown() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert machine.command_of(process.pid) == "unknown"
