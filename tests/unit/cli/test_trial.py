"""What belongs to a cluster of `tidemark cluster`, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.cli import CommandError
from tidemark.cli.trial import ETCD, Trial, free_ports, processes

GROUPS = {"main": "standby", "fast": "chain"}


def a_trial(tmp_path: Path, **options: object) -> Trial:
    return Trial.create(tmp_path, nodes=2, **options)  # type: ignore[arg-type]


def test_one_group_has_members_with_the_names_of_nodes_and_no_fronts(tmp_path: Path) -> None:
    trial = a_trial(tmp_path, mode="chain")

    assert (list(trial.members), trial.fronts, trial.nodes) == (["n1", "n2"], {}, 2)
    assert trial.addresses == [place.amqp for place in trial.members.values()]
    assert trial.of("main") == ["n1", "n2"]


def test_several_groups_have_members_on_every_node_and_clients_connect_to_fronts(tmp_path: Path) -> None:
    trial = a_trial(tmp_path, groups=GROUPS)

    assert list(trial.members) == ["main-n1", "main-n2", "fast-n1", "fast-n2"]
    assert trial.of("fast") == ["fast-n1", "fast-n2"]
    assert (list(trial.fronts), trial.nodes) == (["n1", "n2"], 2)
    assert trial.addresses == [place.amqp for place in trial.fronts.values()]
    assert trial.url == f"tidemark://guest:guest@{trial.fronts['n1'].amqp},{trial.fronts['n2'].amqp}/"
    with pytest.raises(CommandError, match="there is no group 'slow'; there are main, fast"):
        trial.of("slow")
    with pytest.raises(CommandError, match=r"there is no member 'n3'.* and the fronts n1, n2"):
        trial.place("n3")


def test_a_trial_that_is_found_again_is_the_same(tmp_path: Path) -> None:
    made = a_trial(tmp_path, groups=GROUPS, proxies=True)

    found = Trial.load(tmp_path)

    assert (found.groups, found.members, found.fronts) == (made.groups, made.members, made.fronts)
    assert found.links == made.links and found.control == made.control


def test_proxies_lie_between_members_of_a_group_and_before_all_that_a_front_dials(tmp_path: Path) -> None:
    trial = a_trial(tmp_path, groups=GROUPS, proxies=True)

    pairs = {(link.dialler, link.target) for link in trial.links}

    members = set(trial.members)
    assert {target for dialler, target in pairs if dialler == "fast-n1"} == {"fast-n2", ETCD}
    assert {target for dialler, target in pairs if dialler == "n1"} == members
    assert len({link.listen for link in trial.links}) == len(trial.links)


def test_no_port_is_given_twice_though_nobody_listens_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PORTS", range(20_000, 20_060))
    monkeypatch.setattr(processes, "_given", set())

    first, second = free_ports(20), free_ports(20)

    assert not set(first) & set(second)
