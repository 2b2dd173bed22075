"""`tidemark cluster kill`, `start`, `freeze`, `cut` and the rest: each says what happened, or what to do instead."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from unit.cli.toys import Toys

from tidemark.cli import CommandError
from tidemark.cli.trial import Trial


def test_each_says_what_happened(here: Toys) -> None:
    here.run("up", "--nodes", "2")

    assert here.run("kill", "n2") == "n2 killed\n"
    assert here.run("start", "n2") == "n2 is ready\n"
    assert here.run("freeze", "n2") == "n2 frozen\n"
    assert here.run("freeze", "n2") == "n2 is frozen already\n"
    assert here.run("thaw", "n2") == "n2 thawed\n"
    assert here.run("thaw", "n2") == "n2 is not frozen\n"
    assert here.run("stop", "n2") == "n2 stopped\n"
    assert (
        here.run("down")
        == "stopped: etcd, n1; what they hold is kept. Start them again: tidemark cluster up\n"
    )
    assert here.run("down", "--remove") == "nothing ran; tidemark-cluster is removed\n"


# Start -------------------------------------------------------------------------------------------------------------


def test_one_that_ends_as_it_starts_is_told_with_its_last_words_and_not_those_before(here: Toys) -> None:
    here.run("up", "--nodes", "2")
    here.run("kill", "n2")
    here.trial.log("n2").write_text("long ago\n")
    here.commands["n2"] = ["sh", "-c", "echo the disk is full"]

    words = here.run("start", "n2", code=1)

    assert words.startswith("tidemark: n2 has ended; see ") and words.endswith("n2.log:\nthe disk is full\n")


def test_one_that_needs_more_time_is_not_waited_for_but_says_why(here: Toys) -> None:
    here.run("up", "--nodes", "2")
    here.run("kill", "n2")
    here.says["n2"] = {"state": "joining", "why": "nobody leads"}

    assert here.run("start", "n2") == "n2 runs and is joining: nobody leads; see tidemark cluster status\n"


def test_a_port_that_is_taken_is_told_before_anything_starts(here: Toys) -> None:
    here.run("up", "--nodes", "2")
    here.run("kill", "n2")
    host, _, port = here.trial.members["n2"].amqp.rpartition(":")
    launched = len(here.launched)
    with socket.create_server((host, int(port))):
        for words in (["start", "n2"], ["up"]):
            told = here.run(*words, code=1)
            assert f"n2 cannot listen on {host}:{port}, which is in use by process" in told
            assert "stop that first" in told
    assert len(here.launched) == launched
    here.run("start", "n2")


def test_a_member_does_not_start_without_the_etcd_that_belongs_to_it(here: Toys) -> None:
    here.run("up", "--nodes", "2")
    here.run("kill", "n2")
    here.run("kill", "etcd")

    assert "start everything: tidemark cluster up" in here.run("start", "n2", code=1)
    assert "start everything: tidemark cluster up" in here.run("join", code=1)
    assert "tidemark cluster up" in here.run("start", "etcd", code=2)
    here.run("up")
    assert here.trial.serves


@pytest.mark.parametrize(
    "words", [["start", "n1"], ["kill", "n1"], ["freeze", "n1"], ["stop", "n1"], ["join"]]
)
def test_when_all_is_down_the_advice_is_to_start_everything(here: Toys, words: list[str]) -> None:
    here.run("up", "--nodes", "1")
    here.run("down")

    told = here.run(*words, code=1)

    assert "nothing of this cluster runs; start everything: tidemark cluster up" in told


def test_when_others_run_the_advice_is_to_start_this_one(here: Toys) -> None:
    here.run("up", "--nodes", "2")
    here.run("kill", "n2")

    assert "n2 is not running; start it: tidemark cluster start n2" in here.run("freeze", "n2", code=1)


def test_who_is_frozen_must_be_thawed_and_is_not_waited_for(here: Toys) -> None:
    here.run("up", "--nodes", "3")
    here.run("freeze", "n2")

    assert "n2 is frozen: tidemark cluster thaw n2" in here.run("up", code=1)
    assert "n2 is frozen: tidemark cluster thaw n2" in here.run("start", "n2", code=1)
    here.run("freeze", "n3")
    assert "n3 and n2 are frozen: tidemark cluster thaw n2" in here.run("up", code=1)


def test_states_and_reasons_are_kept_apart_when_not_all_become_ready(
    here: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.run("up", "--nodes", "2")
    here.says["n2"] = {"state": "joining", "why": "no link"}

    with pytest.raises(CommandError, match=r"n1 is active; n2 is joining: no link\. see /.*\.log"):
        here.trial.wait_whole(0.1)


def test_one_that_joins_does_not_take_a_directory_of_somebody_else(here: Toys) -> None:
    here.run("up", "--nodes", "1")
    (here.trial.directory / "n2").mkdir()

    assert "n2 is there already" in here.run("join", code=2)
    assert list(here.trial.members) == ["n1"]


def test_a_cluster_with_proxies_does_not_grow_and_says_what_else_to_do(here: Toys) -> None:
    here.run("up", "--nodes", "1", "--proxies")

    assert "in another --dir, with more --nodes, or without --proxies" in here.run("join", code=2)


# Links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cut", "n1", "n1"], "n1 has no link to itself"),
        (["cut", "etcd", "etcd"], "etcd has no link to itself"),
        (["slow", "n1", "n1", "5"], "n1 has no link to itself"),
        (["cut", "n1", "n9"], "there is no member 'n9'; there are n1, n2, and etcd"),
        (["slow", "n1", "n2", "-5"], "MS must be 0 to 60000, not -5"),
    ],
)
def test_links_that_there_are_not_are_refused(here: Toys, words: list[str], sentence: str) -> None:
    here.run("up", "--nodes", "2", "--proxies")

    assert sentence in here.run(*words, code=2)


def test_members_of_different_groups_have_no_link(tmp_path: Path) -> None:
    trial = Trial.create(tmp_path, nodes=1, proxies=True, groups={"main": "standby", "fast": "chain"})

    with pytest.raises(CommandError, match="no link between main-n1 and fast-n1"):
        trial.cut("main-n1", "fast-n1")


def test_proxies_that_do_not_run_are_told(here: Toys) -> None:
    here.run("up", "--nodes", "2", "--proxies")
    here.run("down")

    assert "the proxies do not run; start everything: tidemark cluster up" in here.run(
        "cut", "n1", "n2", code=1
    )
