"""Runs of publishes that are kept beyond the read they came with."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.model import _runs_c, _runs_py


@pytest.mark.parametrize("runs", [_runs_py, _runs_c], ids=["reference", "compiled"])
def test_a_kept_run_does_not_keep_what_lies_between_its_messages(runs: Any) -> None:
    strange = b"of another channel" * 100_000
    run = runs.PublishRun(1, b"exkeyprfirst" + strange + b"second")
    last = 12 + len(strange)
    for start, size in ((7, 5), (last, 6)):
        run.add((0, 2), (2, 3), (5, 2), (start, size), 0, 0, -1)

    copy = run.detached()
    assert [copy.part(row, 6) for row in range(2)] == [b"first", b"second"]
    assert [copy.part(row, 2) for row in range(2)] == [b"key", b"key"]
    assert len(copy.data) < 100
