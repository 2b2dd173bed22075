"""The groups behind a front, as an operator writes them."""

from __future__ import annotations

import pytest

from tidemark import config
from tidemark.errors import ConfigError
from tidemark.router.config import FrontConfig, Place


def test_members_follow_their_group() -> None:
    found = FrontConfig(groups=("main=a@h:1", "b@h:2", "fast=a@[::1]:3", "main=c@h:4")).places()
    assert found == {
        "main": (Place("h:1", "a"), Place("h:2", "b"), Place("h:4", "c")),
        "fast": (Place("[::1]:3", "a"),),
    }
    assert FrontConfig().places() == {}
    assert FrontConfig(groups=("main=h:1",)).places() == {"main": (Place("h:1"),)}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (("h:1",), "must be a list of NAME=MEMBER@HOST:PORT"),
        (("main=",), "must be a list of NAME=MEMBER@HOST:PORT"),
        (("fast=a@h:1",), "must have the group 'main'"),
        (("main=a@h:1", "h:2"), "must name all members"),
        (("main=h:1", "fast=h:2"), "must name the members"),
    ],
)
def test_what_makes_no_sense_is_refused(groups: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FrontConfig(groups=groups)


def test_members_are_named_in_a_cluster_only_and_a_front_of_one_listens_for_nobody() -> None:
    with pytest.raises(ConfigError, match=r"is needed where front\.groups names members"):
        config.load({"front.groups": "main=a@127.0.0.1:1"})
    loaded = config.load({"front.groups": "main=a@127.0.0.1:1", "cluster.name": "shop"})
    assert loaded.front.places()["main"] == (Place("127.0.0.1:1", "a"),)
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        config.load({"front.groups": "main=nowhere"})
    with pytest.raises(ConfigError, match="must be at least 1"):
        config.load({"front.dial_s_max": "0"})
