"""`tidemark cluster` as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.cluster.cluster import wait_until

import tidemark.client

SOURCE = Path(__file__).resolve().parents[3] / "src"

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("etcd") is None, reason="etcd is not installed (Debian package etcd-server)"
    ),
]


class Shell:
    """Calls the command in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200"}

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tidemark", "cluster", *words],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in json.loads(self.run("status", "--json"))}

    def leader(self) -> str:
        found: list[str] = []

        def one_leads() -> bool:
            found[:] = [name for name, state in self.states().items() if state == "active"]
            return len(found) == 1

        wait_until("one leads", one_leads)
        return found[0]

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("status", "--json"))
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    if (tmp_path / "tidemark-cluster").exists():
        made.run("down", "--remove")


@pytest.mark.slow
def test_a_cluster_is_started_hurt_watched_and_stopped_by_hand(shell: Shell) -> None:
    """H-44, H-91: what docs/cluster.md begins with: up, load, kill, start, freeze, thaw, stop, join, status, down, up again."""
    text = shell.run("up", "--nodes", "3")
    assert text.startswith("name") and text.count("ready") >= 2 and "active" in text and "Try it" in text
    rows = shell.rows()
    assert [row["name"] for row in rows] == ["n1", "n2", "n3"]
    assert sorted(row["role"] for row in rows) == ["backup", "backup", "leader"]
    assert {row["lag"] for row in rows} == {0} and len({row["epoch"] for row in rows}) == 1

    load = subprocess.Popen(
        [sys.executable, "-m", "tidemark", "cluster", "load", "--seconds", "6", "--json"],
        cwd=shell.directory, env=shell.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(2)
    leader = shell.leader()
    shell.run("kill", leader)
    output, _ = load.communicate(timeout=60)
    result = json.loads(output)
    assert load.returncode == 0 and result["missing"] == 0 == result["wrong"] and result["confirmed"] > 50
    print(f"longest wait of the load over a kill: {result['longest_gap_ms']} ms")
    assert shell.states()[leader] == "down"
    assert "not running" in shell.run("freeze", leader, code=1)

    shell.run("start", leader)
    wait_until("it is ready", lambda: shell.states()[leader] == "ready")
    shell.run("freeze", leader)
    assert shell.states()[leader] == "frozen"
    shell.run("thaw", leader)
    assert shell.run("join").strip() == "n4"
    wait_until("all are ready", lambda: list(shell.states().values()).count("ready") == 3)
    shell.run("stop", "n4")

    shell.run("down")
    assert set(shell.states().values()) == {"down"}
    assert "n1" in shell.run("up")


@pytest.mark.slow
def test_links_can_be_cut_slowed_and_healed_by_hand(shell: Shell) -> None:
    """S-10 by hand, in a chain; H-91: what docs/cluster.md says about links."""
    shell.run("up", "--nodes", "2", "--mode", "chain", "--proxies")
    leader = shell.leader()
    [backup] = {"n1", "n2"} - {leader}
    assert shell.run("cut", backup, leader, "--one-way") == f"{backup} → {leader}  cut\n"
    wait_until("it is left out", lambda: shell.states()[backup] != "ready")
    shell.run("cut", backup, "etcd")
    assert "ms later" in shell.run("slow", leader, backup, "5")
    hurt = {row["name"]: row["links"] for row in shell.rows()}
    assert {"from": backup, "to": "etcd", "cut": True} in hurt[backup]
    assert {"from": leader, "to": backup, "later_ms": 5} in hurt[leader]
    assert f"{leader} → {backup}  5 ms later" in shell.run("status").splitlines()
    assert shell.run("heal") == "all links are whole\n"
    wait_until("it is back", lambda: shell.states()[backup] == "ready")


@pytest.mark.slow
def test_a_cluster_of_several_groups_is_started_hurt_and_watched_by_hand(shell: Shell) -> None:
    """H-44 with two groups: names of members and fronts, leaders on nodes of their own, load over a kill of each kind."""
    text = shell.run("up", "--nodes", "2", "--group", "fast=chain")
    assert text.count("active") == 2 and text.count("serving") == 2 and "the fronts' AMQP addresses" in text
    rows = {row["name"]: row for row in shell.rows()}
    assert list(rows) == ["main-n1", "main-n2", "fast-n1", "fast-n2", "n1", "n2"]
    assert [name for name, row in rows.items() if row["state"] == "active"] == ["main-n1", "fast-n2"]
    assert [rows[name]["group"] for name in ("main-n2", "fast-n1", "n1")] == ["main", "fast", None]
    assert shell.run("status").splitlines()[0].split()[:3] == ["name", "group", "state"]

    load = subprocess.Popen(
        [sys.executable, "-m", "tidemark", "cluster", "load", "--seconds", "8", "--json"],
        cwd=shell.directory, env=shell.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(2)
    shell.run("kill", "fast-n2")
    time.sleep(1)
    shell.run("kill", "n1")
    output, _ = load.communicate(timeout=90)
    results = json.loads(output)
    assert load.returncode == 0, results
    assert set(results) == {"main", "fast"}
    for result in results.values():
        assert result["missing"] == 0 == result["wrong"] and result["confirmed"] > 20

    assert shell.states()["fast-n2"] == "down" == shell.states()["n1"]
    shell.run("start", "fast-n2")
    shell.run("start", "n1")
    wait_until("it is ready", lambda: shell.states()["fast-n2"] == "ready")
    wait_until("it serves", lambda: shell.states()["n1"] == "serving")
    assert shell.run("join", "--group", "fast").split() == ["fast-n3"]
    assert "--group" in shell.run("up", "--group", "slow=chain", code=2)


@pytest.mark.slow
def test_three_chains_over_three_nodes_are_laid_out_so_that_each_node_has_every_role_once(
    shell: Shell,
) -> None:
    """K-52: s1: B → C → A, s2: C → A → B, s3: A → B → C, without anybody saying so. K-57: the topology is told to clients."""
    rows = json.loads(shell.run("up", "--nodes", "3", "--chains", "3", "--json"))
    front = next(row["amqp"] for row in rows if row["name"] == "n1")
    with tidemark.client.connect(f"tidemark://{front}/") as db:
        chains = {
            group: [(one.name, one.role) for one in db.group(group).members()] for group in ("s1", "s2", "s3")
        }
        assert chains == {
            group: [
                (f"{group}-{node}", role)
                for node, role in zip(nodes, ("head", "middle", "tail"), strict=True)
            ]
            for group, nodes in (
                ("s1", ("n2", "n3", "n1")),
                ("s2", ("n3", "n1", "n2")),
                ("s3", ("n1", "n2", "n3")),
            )
        }
        orders = db.partitioned("orders", create=3)
        assert [one.client.group_name for one in orders.partitions] == ["s1", "s2", "s3"]
        orders.put_many([(f"k{n}", b"v") for n in range(30)])
        assert sum(1 for _ in orders.snapshot()) == 30


def test_wrong_calls_say_what_to_do(shell: Shell) -> None:
    assert "'tidemark cluster up'" in shell.run("status", code=2)
    assert "--nodes" in shell.run("up", "--nodes", "0", code=2)
    assert "NAME=MODE" in shell.run("up", "--group", "fast", code=2)
    assert "do not agree" in shell.run("up", "--mode", "chain", "--group", "main=standby", code=2)
    assert "no etcd answers" in shell.run("up", "--etcd", "127.0.0.1:1", code=1)
    assert list(shell.directory.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_start_that_is_interrupted_leaves_no_process_and_no_file(
    shell: Shell, number: signal.Signals
) -> None:
    """To the process group, as a terminal does it: when etcd is up, and when brokers are."""
    directory = shell.directory / "tidemark-cluster"
    for due in ("etcd.log", "n2.log"):
        up = subprocess.Popen(
            [sys.executable, "-m", "tidemark", "cluster", "up"],
            cwd=shell.directory, env=shell.environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        wait_until(f"{due} is there", (directory / due).exists)
        os.killpg(up.pid, number)
        _, words = up.communicate(timeout=60)

        assert up.returncode == 128 + number and "interrupted; stopping what was started: etcd" in words
        assert processes_in(directory) == [] and not directory.exists()


def processes_in(directory: Path) -> list[str]:
    """Command lines that name a directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(directory) in words:
                found.append(words)
    return found


def test_without_etcd_it_says_how_to_get_one(shell: Shell) -> None:
    shell.environment = shell.environment | {"PATH": str(shell.directory)}
    assert "apt-get install etcd-server" in shell.run("up", code=1)
