"""The proxy on a link does to it what it is told, and nothing else. Its ends here are plain sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.cluster.cluster import wait_until

from tidemark.cli.proxy import HOST, Link
from tidemark.cli.trial import LINKS, Trial


class Ends:
    """A link from n1 to n2, with a listener of ours where n2 would be."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.link: Link = next(one for one in trial.links if (one.dialler, one.target) == ("n1", "n2"))
        self.listener: socket.socket | None = None

    def listen(self) -> None:
        self.listener = socket.create_server((HOST, self.link.port))
        wait_until("the proxy listens too", lambda: not self.refused())
        while True:  # the looks of `refused`
            self.listener.settimeout(0.2)
            try:
                self.listener.accept()[0].close()
            except TimeoutError:
                return

    def refused(self) -> bool:
        try:
            socket.create_connection((HOST, self.link.listen), 1).close()
        except ConnectionRefusedError:
            return True
        return False

    def connect(self) -> tuple[socket.socket, socket.socket]:
        assert self.listener is not None
        near = socket.create_connection((HOST, self.link.listen), 5)
        self.listener.settimeout(5)
        far = self.listener.accept()[0]
        far.settimeout(5)
        return near, far

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    trial = Trial.create(tmp_path, nodes=2, etcd="127.0.0.1:1", proxies=True, detached=False)
    trial.start_links()
    made = Ends(trial)
    yield made
    made.close()
    trial.processes[LINKS].kill()


def silent(end: socket.socket) -> bool:
    """Neither a byte nor the end of the connection comes."""
    end.settimeout(0.3)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)
    return False


def test_a_whole_link_carries_both_ways(ends: Ends) -> None:
    ends.listen()
    near, far = ends.connect()
    near.sendall(b"ping" * 100_000)
    got = b""
    while len(got) < 400_000:
        got += far.recv(65536)
    far.sendall(b"pong")

    assert got == b"ping" * 100_000 and near.recv(9) == b"pong"


def test_a_link_cut_one_way_carries_the_other_and_holds_what_was_sent(ends: Ends) -> None:
    ends.listen()
    near, far = ends.connect()
    assert ends.trial.cut("n1", "n2", one_way=True)["cut"] == [["n1", "n2"]]
    near.sendall(b"held")
    far.sendall(b"back")

    assert near.recv(9) == b"back" and silent(far)
    assert ends.trial.heal() == {"cut": [], "slow": []}
    assert far.recv(9) == b"held"


def test_a_slow_link_delays(ends: Ends) -> None:
    ends.listen()
    near, far = ends.connect()
    ends.trial.slow("n1", "n2", 200)
    began = time.monotonic()
    near.sendall(b"late")

    assert far.recv(9) == b"late"
    assert time.monotonic() - began >= 0.2


def test_where_nothing_listens_the_link_refuses_unless_it_is_cut(ends: Ends) -> None:
    wait_until("it refuses", ends.refused)
    ends.listen()
    near, far = ends.connect()
    far.close()
    ends.close()
    assert near.recv(9) == b""
    wait_until("it refuses again", ends.refused)
    ends.trial.cut("n1", "n2")
    wait_until("nobody can tell", lambda: not ends.refused())
    ends.trial.heal()
    wait_until("it refuses as before", ends.refused)


def test_the_end_of_a_connection_does_not_pass_a_cut(ends: Ends) -> None:
    ends.listen()
    near, far = ends.connect()
    ends.trial.cut("n1", "n2")
    far.close()

    assert silent(near)
    ends.trial.heal()
    assert near.recv(9) == b""
