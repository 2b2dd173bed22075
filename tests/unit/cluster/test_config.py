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
        ("cluster.secret_file", "there/is/no/such/file"),
        ("cluster.chain_tails", "0"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({key: text})
    assert caught.value.key == key


def test_a_member_needs_an_address_for_its_peers() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"cluster.name": "c"})
    assert caught.value.key == "listen.peer"
