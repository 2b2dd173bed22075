"""What members of a view are for, as clients are told."""

from __future__ import annotations

import pytest
from unit.member.world import Group

from tidemark.cluster.chain.mode import Line
from tidemark.cluster.config import ClusterConfig
from tidemark.model.peers import View
from tidemark.runtime.member_server import role_of


def roles(ready: str, mode: str, tails: int = 1) -> list[str]:
    cluster = ClusterConfig(mode=mode, chain_tails=tails)  # type: ignore[arg-type]
    return [role_of(name, tuple(ready), cluster) for name in ready]


def test_a_leader_has_backups_and_a_chain_has_a_head_a_tail_and_what_lies_between() -> None:
    """K-40: roles: write master, intermediates, read master."""
    assert roles("abc", "standby") == ["leader", "backup", "backup"]
    assert roles("abcd", "chain") == ["head", "middle", "middle", "tail"]
    assert roles("a", "chain") == ["head"]
    assert role_of("d", ("a", "b", "c"), ClusterConfig()) == "joining"


@pytest.mark.parametrize("tails", [1, 2, 3])
@pytest.mark.parametrize("ready", ["ab", "abc", "abcd", "abcde"])
def test_every_member_of_a_chain_that_feeds_nobody_is_a_tail(ready: str, tails: int) -> None:
    """K-45: several tails, and readers are sent to each of them."""
    view = View("c" * 32, 1, "a", tuple(ready), "h" * 32, 1)
    feeding = {Line(tails).source(view, member) for member in ready[1:]}
    found = dict(zip(ready, roles(ready, "chain", tails), strict=True))

    assert {name for name, role in found.items() if role == "tail"} == set(ready[1:]) - feeding
    assert {name for name, role in found.items() if role == "middle"} == feeding - {"a"}
    assert found["a"] == "head"


def test_a_node_has_another_role_in_each_of_three_groups_and_one_in_each() -> None:
    """K-52: three chains over three nodes, each turned by one."""
    chain = ClusterConfig(mode="chain")
    found: dict[str, list[str]] = {name: [] for name in "abc"}
    for turned in range(3):
        group = Group("abc", mode="chain")
        group.until_ready()
        for name in "abcabc"[turned + 1 : turned + 3] + "abc"[turned]:
            # Whoever leads is the first; the others stay in the order in which they were.
            if group.leader.name != name:
                assert group.leader.member.ask("demote", name).done
                group.pass_ms(100, 20)
                group.until_ready()
        assert group.view is not None and group.view.leader == "abc"[turned]
        for name in group.view.ready:
            found[name].append(role_of(name, group.view.ready, chain))

    assert {tuple(sorted(roles)) for roles in found.values()} == {("head", "middle", "tail")}
