"""`tidemark cluster up` and `down`: what is started is known, what fails leaves nothing, and only what is ours is deleted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from unit.cli.toys import GONE, Toys, everywhere

from tidemark.cli.trial import Process, Trial, alone, cluster, directory


def names(directory: Path) -> set[str]:
    return {one.name for one in directory.iterdir()}


# Directories -------------------------------------------------------------------------------------------------------


def test_a_directory_that_holds_something_else_is_refused_and_left_as_it_is(here: Toys) -> None:
    other = here.directory / "other"
    other.mkdir()
    (other / "precious").touch()

    assert "other is not empty and holds no cluster (precious)" in here.run("up", "--dir", "other", code=2)
    here.run("down", "--remove", "--dir", "other", code=2)

    assert names(other) == {"precious"}


def test_what_cannot_be_a_directory_is_one_sentence(here: Toys) -> None:
    (here.directory / "file").touch()

    assert "file is no directory" in here.run("up", "--dir", "file", code=2)
    assert "there is no cluster in file" in here.run("status", "--dir", "file", code=2)
    assert "cannot use" in here.run("up", "--dir", "/proc/x", code=2)
    assert here.launched == []


def test_an_empty_directory_will_do(here: Toys) -> None:
    (here.directory / "tidemark-cluster").mkdir()
    here.run("up", "--nodes", "1")
    here.run("down", "--remove")

    assert names(here.directory) == set()


def test_remove_deletes_what_was_written_for_the_cluster_and_nothing_else(here: Toys) -> None:
    directory = here.directory / "tidemark-cluster"
    here.run("up", "--nodes", "2")
    (directory / "n1").mkdir()
    (directory / "n1" / "journal").touch()
    (directory / "mine").mkdir()

    assert "holds something else and is kept" in here.run("down", "--remove")

    assert names(directory) == {"mine"}


def test_a_file_of_somebody_else_is_no_cluster(here: Toys) -> None:
    directory = here.directory / "tidemark-cluster"
    directory.mkdir()
    (directory / "cluster.json").write_text('{"name": "theirs"}')

    for words in (["up"], ["down", "--remove"], ["status"]):
        assert "is not what 'tidemark cluster up' wrote" in here.run(*words, code=2)
    assert names(directory) == {"cluster.json"}


def test_a_path_with_a_space_is_quoted_in_what_is_to_be_copied(here: Toys) -> None:
    text = here.run("up", "--nodes", "1", "--dir", "my trial")

    assert "tidemark cluster kill n1 --dir 'my trial'\n" in text
    assert here.run("down", "--dir", "my trial").endswith("tidemark cluster up --dir 'my trial'\n")


# What fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "cluster.foo=1"], "cluster.foo: unknown setting"),
        (["--set", "cluster.copies_min=9"], "cluster.copies_min"),
        (["--group", "fast=chain", "--set", "cluster.reads=tails"], "cluster.reads"),
        (["--etcd", "here"], "--etcd: must be HOST:PORT"),
    ],
)
def test_what_can_be_seen_before_is_refused_before_anything_is_written(
    here: Toys, words: list[str], sentence: str
) -> None:
    assert sentence in here.run("up", *words, code=2)
    assert names(here.directory) == set() and here.launched == []


def test_without_etcd_nothing_is_written_so_the_advice_can_be_followed(
    here: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(here.directory)
    monkeypatch.setenv("PATH", str(here.directory))

    assert "or give --etcd HOST:PORT" in here.run("up", code=1)
    assert "no etcd answers at 127.0.0.1:1" in here.run("up", "--etcd", "127.0.0.1:1", code=1)
    assert names(here.directory) == set()


def test_a_first_start_that_fails_leaves_its_logs_and_room_for_another(here: Toys) -> None:
    here.commands["n2"] = GONE
    assert "n2 has ended" in here.run("up", code=1)
    assert "stopping what was started: etcd, n1, n2, n3" in here.printed.err
    assert here.alive() == []
    assert names(here.directory / "tidemark-cluster") == {
        "cluster.json", "etcd.log", "n1.log", "n2.log", "n3.log",
    }  # fmt: skip
    assert "its first start failed" in here.run("status", code=2)

    del here.commands["n2"]
    here.run("up", "--nodes", "2", "--mode", "chain")

    assert list(here.trial.members) == ["n1", "n2"]


def test_a_later_start_that_fails_stops_only_what_it_has_started(here: Toys) -> None:
    here.run("up")
    here.run("kill", "n3")
    here.commands["n3"] = GONE

    assert "stopping what was started: n3" in here.run("up", code=1)

    assert here.trial.running == ["etcd", "n1", "n2"]


def test_up_again_takes_the_same_options_and_no_others(here: Toys) -> None:
    words = ["up", "--nodes", "1", "--set", "log.level=debug"]
    here.run(*words)

    here.run(*words)
    assert "with another --set" in here.run("up", "--set", "log.level=info", code=2)
    assert "with another --nodes" in here.run("up", "--nodes", "2", code=2)


# Interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("after", range(4))
def test_a_first_start_that_is_interrupted_stops_all_that_it_started_and_leaves_nothing(
    here: Toys, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, after: int
) -> None:
    launch = cluster.launch

    def launch_and_interrupt(command: list[str], log: Path, *, detached: bool) -> Process:
        process = launch(command, log, detached=detached)
        if len(here.launched) == after + 1:
            os.kill(os.getpid(), number)  # before anybody could write it down
        return process

    everywhere(monkeypatch, "launch", launch_and_interrupt)

    if number is signal.SIGINT:
        here.run("up", code=code)
    else:
        with pytest.raises(SystemExit) as ended:
            here.run("up")
        assert ended.value.code == code

    assert len(here.launched) == after + 1 and here.alive() == []
    assert names(here.directory) == set()


def test_each_process_is_written_down_as_it_starts(here: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[list[str]] = []
    launch = cluster.launch

    def launch_and_look(command: list[str], log: Path, *, detached: bool) -> Process:
        known.append(here.trial.running)
        return launch(command, log, detached=detached)

    everywhere(monkeypatch, "launch", launch_and_look)

    here.run("up", "--nodes", "2", "--proxies")

    assert known == [[], ["etcd"], ["etcd", "links"], ["etcd", "links", "n1"]]


def test_two_calls_at_once_lose_no_process(here: Toys) -> None:
    here.run("up")
    here.run("kill", "n1")
    here.run("kill", "n2")
    one, other = here.trial, here.trial

    one.start("n1")
    other.start("n2")

    assert set(here.trial.running) == {"etcd", "n1", "n2", "n3"}


def test_while_one_call_starts_things_another_one_waits(here: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "ALONE_S", 0.1)
    here.run("up", "--nodes", "1")
    with alone(here.trial.directory):
        assert "another 'tidemark cluster' starts or stops something" in here.run("down", code=1)
    here.run("down", "--remove")


def test_what_ends_by_itself_while_all_is_stopped_is_no_failure(
    here: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.run("up")
    trial = here.trial
    a_moment_ago = trial.running
    trial.processes["n2"].kill()
    monkeypatch.setattr(Trial, "running", a_moment_ago)

    assert trial.down() == []
    assert here.alive() == []


def test_a_trial_is_removed_only_where_it_is(tmp_path: Path) -> None:
    trial = Trial.plan(tmp_path / "trial", nodes=1)
    (tmp_path / "trial" / "n1").mkdir(parents=True)

    assert not trial.remove()
    trial.abandon()

    assert names(tmp_path / "trial") == {"n1"}


def test_names_and_links_that_there_are_not_are_told(here: Toys) -> None:
    here.run("up", "--nodes", "2")

    assert "there is no member 'n9'; there are n1, n2" in here.run("kill", "n9", code=2)
    assert "--proxies" in here.run("cut", "n1", "n2", code=2)
