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
        "--plant early-confirm --seeds 0:5",
        "--plant gap --seeds 0:4",
        "--plant unready-promotion --provider external --about promote_unready,kill --steps 120 --seeds 0:10",
        "--plant early-confirm --mode chain --nodes 2 --work queues --seeds 0:5",
        "--plant stale-wiring --mode fronts --work fresh --about slow_feed --steps 80 --seeds 0:3",
    ],
)
def test_the_command_that_is_printed_makes_that_run_again(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *options.split(), "--jobs", "1"]) == 1
    found = re.search(r"^seed \d+: (.*?)\nreplay: (.*?)$", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert found is not None
    problem, command = found.groups()

    assert main([*shlex.split(command)[1:], "--quiet", "--no-shrink"]) == 1

    assert capsys.readouterr().out == f"\nBROKEN: {problem}\nreplay: {command}\n"


def test_what_was_planted_is_gone_afterwards() -> None:
    for name in PLANTED:
        changed: list[tuple[object, str]] = []
        PLANTED[name].plant(lambda thing, what, _, changed=changed: changed.append((thing, what)))  # type: ignore[misc]
        before = [vars(thing).get(what) for thing, what in changed]

        with planted(name):
            assert [vars(thing).get(what) for thing, what in changed] != before

        assert [vars(thing).get(what) for thing, what in changed] == before
