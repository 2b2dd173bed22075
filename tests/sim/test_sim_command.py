"""`tidemark sim`, as a function."""

from __future__ import annotations

import re
import shlex

import pytest

from tidemark.cli import main
from tidemark.sim.planted import PLANTED, planted
from tidemark.speed import PURE


@pytest.mark.skipif(PURE, reason="the compiled run has done it")
@pytest.mark.parametrize(
    "options",
    [
        "--plant early-confirm",
        "--plant gap --mode chain --steps 120",
        "--plant unready-promotion --about promote_unready,kill",
        "--plant memory-slip --nodes 4 --work queues --about kill",
        "--plant lost-tombstone --work any",
        "--plant stale-wiring --steps 80",
    ],
)
def test_the_command_that_is_printed_makes_that_run_again(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *options.split(), "--jobs", "1", "--first"]) == 1
    found = re.search(r"^seed \d+: (.*?)\nreplay: (.*?)$", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert found is not None
    problem, command = found.groups()

    assert main([*shlex.split(command)[1:], "--quiet", "--no-shrink"]) == 1

    assert capsys.readouterr().out == f"\nBROKEN: {problem}\nreplay: {command}\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--seed 1 --seeds 1:3", "--seed tells one run and --seeds makes many: give one of them"),
        ("--plant nothing", "--plant 'nothing' is not known; 'list' shows what is"),
        (
            "--plant unasked --provider etcd",
            "--plant unasked is looked for with --mode standby --provider external or --mode chain --provider external",
        ),
        (
            "--plant no-return --mode chain",
            "--plant no-return is looked for with --mode fronts --provider etcd",
        ),
        ("--plant early-confirm --nodes 2", "--plant early-confirm is looked for in a cluster of at least 3"),
        ("--plant early-confirm --about hand_over", "--about: 'hand_over' is none of any, "),
        ("--mode alone --about isolate", "--about: 'isolate' is none of any, "),
        ("--mode chain --work spread", "--work: 'spread' is none of any, "),
        ("--mode fronts --provider external", "--provider is for clusters: there is none in mode fronts"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *options.split()]) == 2
    assert capsys.readouterr().err.startswith(f"tidemark: {problem}")


def test_the_list_of_plants_shows_in_which_runs_each_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--plant", "list"]) == 0

    shown = capsys.readouterr().out

    for name, plant in PLANTED.items():
        assert re.search(rf"^{name} +{re.escape(plant.about)}$", shown, re.MULTILINE)
    assert "within 60 runs: --mode standby --work keyed --about isolate,freeze" in shown
    assert "--mode standby --provider external --about promote_left_out,kill" in shown


def test_many_runs_end_at_the_first_that_breaks_a_promise_if_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "--plant", "early-confirm", "--jobs", "2", "--first"]) == 1

    assert capsys.readouterr().out.count("replay:") == 1


def test_what_was_planted_is_gone_afterwards() -> None:
    for name in PLANTED:
        changed: list[tuple[object, str]] = []
        PLANTED[name].plant(lambda thing, what, _, changed=changed: changed.append((thing, what)))  # type: ignore[misc]
        before = [vars(thing).get(what) for thing, what in changed]

        with planted(name):
            assert [vars(thing).get(what) for thing, what in changed] != before

        assert [vars(thing).get(what) for thing, what in changed] == before
