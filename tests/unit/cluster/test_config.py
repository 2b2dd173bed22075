"""What can be set about a cluster, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from tidemark.config import load
from tidemark.errors import ConfigError


def test_a_broker_stands_alone_unless_its_cluster_has_a_name() -> None:
    assert load().cluster.name == ""


def test_lists_are_given_with_commas() -> None:
    config = load({"cluster.etcd": "x:1, y:2", "cluster.peers": "n2=h:7002,n3=h:7003"}).cluster
    assert config.etcd == ("x:1", "y:2") and config.peers == ("n2=h:7002", "n3=h:7003")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("cluster.lease_s", "0"),
        ("cluster.lease_margin", "1.5"),
        ("cluster.size", "0"),
        ("cluster.mode", "ring"),
        ("cluster.name", "a/b"),
        ("cluster.peers", "n2"),
        ("cluster.group", "a/b"),
        ("cluster.group", ""),
        ("cluster.group", "a b"),
        ("cluster.group", "x" * 65),
        ("cluster.secret_file", "there/is/no/such/file"),
        ("cluster.chain_tails", "0"),
        ("cluster.reads", "head"),
        ("cluster.copies_min", "0"),
        ("cluster.compare_s", "-1"),
        ("cluster.ack_budget_share", "0"),
        ("cluster.replicate", "all but some"),
        ("cluster.on_store_error", "go on"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({key: text})
    assert caught.value.key == key


def test_more_copies_than_there_are_members_are_refused() -> None:
    """Nothing could ever be confirmed."""
    cluster = {"cluster.name": "c", "listen.peer": "127.0.0.1:0", "cluster.size": "3"}
    assert load({**cluster, "cluster.copies_min": "3"}).cluster.copies_min == 3
    with pytest.raises(ConfigError, match=r"at most cluster\.size, which is 3") as caught:
        load({**cluster, "cluster.copies_min": "4"})
    assert caught.value.key == "cluster.copies_min"


def test_only_a_chain_that_clients_connect_to_can_have_its_tails_alone_read_from() -> None:
    """K-43. In a standby nobody is a tail; and who comes through a front is taken to the member that leads."""
    assert load().cluster.reads == "any"
    assert load(in_main(mode="chain", reads="tails")).cluster.reads == "tails"
    with pytest.raises(ConfigError, match=r"is for cluster.mode 'chain': in 'standby' no member is a tail"):
        load(in_main(reads="tails"))
    with pytest.raises(ConfigError, match=r"clients reach those of 'fast' through fronts") as caught:
        load(in_main(group="fast", mode="chain", reads="tails"))
    assert caught.value.key == "cluster.reads"


def test_a_member_needs_an_address_for_its_peers() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"cluster.name": "c"})
    assert caught.value.key == "listen.peer"


def test_a_member_does_not_start_with_a_hole_in_its_log() -> None:
    """It could lead, and what was confirmed would be gone; a member that is empty is filled by the others."""
    with pytest.raises(ConfigError, match="must be 'refuse' in a cluster") as caught:
        load({"cluster.name": "c", "listen.peer": "127.0.0.1:0", "store.on_corruption": "skip"})
    assert caught.value.key == "store.on_corruption"
    assert load({"store.on_corruption": "skip"}).store.on_corruption == "skip"


def in_main(**more: str) -> dict[str, str]:
    return {"cluster.name": "c", "listen.peer": "127.0.0.1:0"} | {f"cluster.{key}": more[key] for key in more}


def test_a_broker_is_in_the_group_main_unless_it_says_otherwise() -> None:
    assert load().cluster.group == "main" and load().cluster.mode_of == {}


def test_main_knows_the_other_groups_and_their_modes() -> None:
    cluster = load(in_main(groups="fast=chain,safe=standby")).cluster
    assert cluster.mode_of == {"fast": "chain", "safe": "standby"}


def test_two_groups_of_one_cluster_are_two_clusters_to_those_who_keep_views_and_links() -> None:
    identities = [
        load(in_main(group=group)).cluster.identity for group in ("main", "fast", "members", "view")
    ]
    assert identities == ["c", "c/groups/fast", "c/groups/members", "c/groups/view"]


@pytest.mark.parametrize(
    ("flags", "key", "words"),
    [
        (in_main(groups="fast"), "cluster.groups", "must be NAME=MODE"),
        (in_main(groups="fast=ring"), "cluster.groups", "one of standby, chain"),
        (in_main(groups="=chain"), "cluster.groups", "must be NAME=MODE"),
        (in_main(groups="a/b=chain"), "cluster.groups", "letters, digits"),
        (in_main(groups="a=chain,a=standby"), "cluster.groups", "'a' more than once"),
        (in_main(groups="main=chain"), "cluster.groups", "'main' more than once"),
        (in_main(group="fast", groups="a=chain"), "cluster.groups", "this one is in 'fast'"),
        ({"cluster.group": "fast"}, "cluster.name", "needed for cluster.group 'fast'"),
        ({"cluster.groups": "fast=chain"}, "cluster.name", "needed for cluster.groups"),
    ],
)
def test_groups_that_cannot_be_are_refused_with_a_sentence(
    flags: dict[str, str], key: str, words: str
) -> None:
    """K-52: a layout in which a group would be there twice, or in two modes."""
    with pytest.raises(ConfigError, match=words) as caught:
        load(flags)
    assert caught.value.key == key
