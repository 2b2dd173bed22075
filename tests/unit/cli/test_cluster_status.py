"""What `tidemark cluster status` shows of what members say: roles, links, and what a terminal has room for."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from unit.cli.toys import Toys

from tidemark.cli import cluster
from tidemark.cli.cluster_status import drawn, facts, fitting, reasons, roles
from tidemark.cli.trial import Seen, Trial

WHY = "it waits for n1, which leads in epoch 1: it may lack what was confirmed and cannot lead"
LINKS = {"cut": [["n1", "n2"]], "slow": [["etcd", "n1", 5]]}


def seen(trial: Trial, **states: str) -> list[Seen]:
    """Members in these states; all that lead say the same order, the last first."""
    order = list(states)[::-1]
    return [
        Seen(name, trial.place(name), 1, "running", {"state": state, "ready": order, "why": WHY})
        for name, state in states.items()
    ]


# Roles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "settings", "wanted"),
    [
        ("standby", {}, {"n3": "leader", "n2": "backup", "n1": "backup"}),
        ("chain", {}, {"n3": "head", "n2": "middle", "n1": "tail"}),
        ("chain", {"cluster.chain_tails": "2"}, {"n3": "head", "n2": "tail", "n1": "tail"}),
    ],
)
def test_roles_are_by_the_order_of_the_leader(
    tmp_path: Path, mode: Any, settings: dict[str, str], wanted: dict[str, str]
) -> None:
    trial = Trial.plan(tmp_path, mode=mode, settings=settings)

    assert roles(trial, seen(trial, n1="ready", n2="ready", n3="active")) == wanted


def test_who_is_not_ready_has_no_role_and_the_others_keep_theirs(tmp_path: Path) -> None:
    trial = Trial.plan(tmp_path, mode="chain")

    assert roles(trial, seen(trial, n1="ready", n2="joining", n3="active")) == {"n3": "head", "n1": "tail"}


@pytest.mark.parametrize("states", [{"n1": "ready", "n2": "ready"}, {"n1": "active", "n2": "active"}])
def test_without_one_leader_nobody_has_a_role(tmp_path: Path, states: dict[str, str]) -> None:
    trial = Trial.plan(tmp_path, nodes=2)

    assert roles(trial, seen(trial, **states)) == {}


def test_each_group_has_its_own_roles_and_fronts_have_none(here: Toys) -> None:
    here.run("up", "--nodes", "2", "--group", "main=standby", "--group", "fast=chain")

    found = {row["name"]: row["role"] for row in json.loads(here.run("status", "--json"))}

    assert found == {
        "main-n1": "leader", "main-n2": "backup", "fast-n1": "head", "fast-n2": "tail", "n1": None, "n2": None,
    }  # fmt: skip
    lines = here.run("status").splitlines()
    assert lines[0].split()[:4] == ["name", "group", "state", "role"]
    assert lines[3].split()[:4] == ["fast-n1", "fast", "active", "head"] and "—" in lines[5]


def test_members_of_a_group_stay_together_when_one_joins(here: Toys) -> None:
    here.run("up", "--nodes", "1", "--group", "fast=chain")
    assert here.run("join").split() == ["main-n2", "fast-n2", "n2"]

    names = [row["name"] for row in json.loads(here.run("status", "--json"))]

    assert names == ["main-n1", "main-n2", "fast-n1", "fast-n2", "n1", "n2"]


# Links -------------------------------------------------------------------------------------------------------------


def test_links_that_are_cut_or_slow_are_shown(here: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "_answer", lambda *_: LINKS)
    here.run("up", "--nodes", "2", "--proxies")

    assert here.run("status").splitlines()[-2:] == ["n1 → n2  cut", "etcd → n1  5 ms later"]
    rows = {row["name"]: row["links"] for row in json.loads(here.run("status", "--json"))}
    cut, slow = {"from": "n1", "to": "n2", "cut": True}, {"from": "etcd", "to": "n1", "later_ms": 5}
    assert rows == {"n1": [cut, slow], "n2": [cut]}


def test_of_direct_links_nothing_is_said_and_of_proxies_that_do_not_run_that(here: Toys) -> None:
    here.run("up", "--nodes", "1")
    assert [row["links"] for row in json.loads(here.run("status", "--json"))] == [None]
    assert "proxies" not in here.run("status")
    here.run("down", "--remove")

    here.run("up", "--nodes", "1", "--proxies")
    here.trial.processes["links"].kill()

    assert here.run("status").splitlines()[-1].startswith("the proxies do not answer")


# In a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
def test_a_row_is_one_line_within_the_width_however_long_the_reason(tmp_path: Path, width: int) -> None:
    from rich.console import Console

    trial = Trial.plan(tmp_path, nodes=3, proxies=True)
    rows = facts(trial, seen(trial, n1="ready", n2="joining", n3="active"), LINKS)
    out = StringIO()

    Console(file=out, width=width).print(drawn(trial, rows, LINKS, width))

    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["n1", "ready", "backup"],
        ["n2", "joining", "—"],
        ["n3", "active", "leader"],
    ]
    assert lines[-2:] == ["n1 → n2  cut", "etcd → n1  5 ms later"]
    below = [line for line in lines if line.startswith("n1, n2, n3: it waits for n1, which leads in")]
    assert len(below) == (0 if "why" in lines[0].split() else 1)
    assert "…" not in "".join(lines[:4])


def test_the_reason_goes_first_and_then_what_tells_the_least() -> None:
    columns = ["name", "state", "pid", "connections", "why"]
    rows = [{"name": "n1", "state": "ready", "pid": 12345, "connections": 0, "why": WHY}]

    assert fitting(rows, columns, 200) == columns
    assert fitting(rows, columns, 80) == ["name", "state", "pid", "connections"]
    assert fitting(rows, columns, 28) == ["name", "state", "connections"]
    assert fitting(rows, columns, 20) == ["name", "state"]


def test_members_with_the_same_reason_share_a_line() -> None:
    rows = [{"name": f"n{number}", "why": "a" if number < 5 else "b"} for number in range(1, 7)]

    assert reasons([*rows, {"name": "n7", "why": None}]) == ["n1 and 3 more: a", "n5, n6: b"]


# Again and again ---------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_is_shown_at_once_and_each_time(
    here: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.run("up", "--nodes", "1")
    times: list[float] = []

    def sleep(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster.time, "sleep", sleep)

    lines = here.run("status", "--watch").splitlines()

    assert [line.split()[0] for line in lines if line] == ["name", "n1", "name", "n1"]
    assert lines[2] == ""
