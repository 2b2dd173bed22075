"""What a store says of itself, to this version and to others."""

from __future__ import annotations

from dataclasses import replace

from tidemark.sim.disk import SimDisk
from tidemark.store.status import (
    STATUS,
    Status,
    read_facts,
    read_status,
    write_facts,
    write_meta,
    write_status,
)

SAID = Status(state="clean", store="ab", cluster="c0", epoch=7, role="leader", end=40)


def a_disk(status: Status) -> SimDisk:
    disk = SimDisk()
    write_meta(disk, "ab")
    write_status(disk, status)
    return disk


def test_what_is_written_is_read() -> None:
    for status in (SAID, replace(SAID, founding="h1 h2")):
        assert read_status(a_disk(status)) == status


def test_what_older_versions_do_not_know_is_written_only_while_it_says_something() -> None:
    """They take a status that they do not understand for that of a store without a cluster."""
    facts = read_facts(a_disk(SAID), STATUS)
    assert facts is not None and "founding" not in facts


def test_what_a_later_version_says_besides_is_passed_over() -> None:
    disk = a_disk(SAID)
    facts = read_facts(disk, STATUS)
    assert facts is not None
    write_facts(disk, STATUS, facts | {"mood": "good"})
    assert read_status(disk) == SAID
