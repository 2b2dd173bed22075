"""A file that is read whole, early and by several threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.runtime import wholefile
from tidemark.runtime.disk import FileDisk
from tidemark.runtime.wholefile import HUGE_BYTES, PIECE_BYTES, PROBES, WholeFile, newest

SIZES = (0, 1, HUGE_BYTES - 1, HUGE_BYTES, PROBES * HUGE_BYTES + 1, PROBES * HUGE_BYTES + PIECE_BYTES + 4097)


def some_bytes(size: int) -> bytes:
    pattern = bytes(range(251)) * 4099
    return (pattern * (size // len(pattern) + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("early", [True, False], ids=["early", "now"])
@pytest.mark.parametrize("dear", [True, False], ids=["dear pages", "cheap pages"])
def test_every_byte_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, early: bool, dear: bool
) -> None:
    if dear:
        monkeypatch.setattr(wholefile, "S_PER_HUGE_MAX", 0.0)
    (tmp_path / "a").write_bytes(some_bytes(size))
    whole = WholeFile(tmp_path / "a")
    if early:
        whole.begin()
    assert bytes(whole.read()) == some_bytes(size)


def test_a_child_that_was_forked_keeps_its_picture(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(some_bytes(HUGE_BYTES + 1))
    data = WholeFile(tmp_path / "a").read()
    go, went = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(go[0], 1)
        os.write(went[1], bytes(data[:1]))
        os._exit(0)
    data[0] = 77
    os.write(go[1], b"x")
    assert os.read(went[0], 1) == some_bytes(1)
    os.waitpid(child, 0)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(some_bytes(PROBES * HUGE_BYTES))
    whole = WholeFile(path)
    os.truncate(path, HUGE_BYTES)
    with pytest.raises(OSError, match="shorter"):
        whole.read()


def test_the_newest_is_the_last_by_name_and_nothing_is_no_error(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing", "ckpt-") is None
    assert newest(tmp_path, "ckpt-") is None
    for name in ("ckpt-1", "ckpt-2", "other-3"):
        (tmp_path / name).write_text(name)
    found = newest(tmp_path, "ckpt-")
    assert found is not None and found.is_of(tmp_path / "ckpt-2")
    assert bytes(found.read()) == b"ckpt-2"


def test_what_was_read_early_is_given_once_and_only_for_the_file_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ckpt-1"
    path.write_bytes(b"old")
    early = newest(tmp_path, "ckpt-")
    disk = FileDisk(tmp_path, early=early)
    try:
        path.rename(tmp_path / "away")
        path.write_bytes(b"new")
        assert bytes(disk.mapped("ckpt-1")) == b"new"
    finally:
        disk.close()

    disk = FileDisk(tmp_path, early=newest(tmp_path, "ckpt-"))
    try:
        first = disk.mapped("ckpt-1")
        first[0:1] = b"N"
        assert bytes(first) == b"New"
        assert bytes(disk.mapped("ckpt-1")) == b"new"
    finally:
        disk.close()
