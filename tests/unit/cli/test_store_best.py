"""`tidemark store best` over directories that are there, that are not, and that a broker has open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemark.cli import main
from tidemark.runtime.disk import FileDisk
from tidemark.store.status import Status, write_meta, write_status

US = "aa" * 16


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    """Of two members that led and followed in one epoch."""
    paths = []
    for number, role in enumerate(("leader", "backup")):
        disk = FileDisk(tmp_path / f"n{number + 1}")
        write_meta(disk, f"{number}" * 32)
        write_status(disk, Status(state="dirty", store=f"{number}" * 32, cluster=US, epoch=3, role=role))
        disk.close()
        paths.append(str(disk.root))
    return paths


def best(
    capsys: pytest.CaptureFixture[str], *words: str, code: int
) -> tuple[str, dict[str, tuple[str, str]]]:
    """The directory that it names, and by directory what it says of its state."""
    assert main(["store", "best", "--json", *words]) == code
    told = json.loads(capsys.readouterr().out)
    found = {Path(one["directory"]).name: (one["state"], one["note"]) for one in told["stores"]}
    return Path(told["best"] or "").name, found


def test_the_best_of_stores_that_are_all_there_is_named(
    stores: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert best(capsys, *stores, code=0) == ("n1", {"n1": ("dirty", ""), "n2": ("dirty", "")})


def test_a_directory_that_is_not_there_is_said_and_none_is_named(
    stores: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    named, found = best(capsys, *stores, "/nowhere", code=1)
    assert named == "" and found["nowhere"] == ("unknown", "there is no such directory")

    assert main(["store", "best", *stores, "/nowhere"]) == 1
    assert "give --missing-ok" in capsys.readouterr().out
    assert best(capsys, "--missing-ok", *stores, "/nowhere", code=0)[0] == "n1"


def test_a_store_of_a_broker_that_runs_is_in_use(
    stores: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = FileDisk(Path(stores[0]))
    named, found = best(capsys, *stores, code=1)
    running.close()

    state, note = found["n1"]
    assert (named, state) == ("", "unknown") and note.startswith("in use by process ")


def test_what_is_no_store_may_have_been_one(
    stores: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "n2" / "META").write_text("rotten")
    assert best(capsys, *stores, code=1)[1]["n2"][1].startswith("META cannot be read")
