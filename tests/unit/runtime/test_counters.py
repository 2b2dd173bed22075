"""The counters in compiled code say what their references say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.broker import _publisher_c, _publisher_py
from tidemark.runtime import _disk_c, _disk_py
from tidemark.runtime.histogram import CLASSES

EDGES = [edge + more for edge in _publisher_py.SIZES for more in (-1, 0, 1)]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(EDGES) | st.integers(0, 1 << 31))))
def test_meters_count_messages_places_bytes_and_sizes_alike(messages: list[tuple[int, int]]) -> None:
    told = []
    for kind in (_publisher_c.Meter, _publisher_py.Meter):
        meter = kind()
        for queues, size in messages:
            meter.add(queues, size)
        told.append((meter.messages, meter.routed, meter.bytes, meter.sizes()))
    assert told[0] == told[1]
    assert sum(told[0][3]) == len(messages)


@pytest.mark.parametrize("flusher", [_disk_c.Flusher, _disk_py.Flusher], ids=["compiled", "reference"])
def test_a_flusher_says_how_long_syncs_took_and_how_many_writes_shared_one(
    tmp_path: Path, flusher: Any
) -> None:
    bell, file = os.eventfd(0), os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    try:
        made = flusher(bell)
        assert made.statistics() == (0, (0,) * CLASSES, 0, (0,) * CLASSES, 0)
        for ticket in range(1, 41):
            made.submit(ticket, file, ticket * 100, b"x" * 100)
        deadline = time.monotonic() + 20
        while made.completed() < 40:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        written, syncs, syncs_us, groups, grouped = made.statistics()
        assert written == 4000
        assert grouped == 40
        assert 1 <= sum(syncs) == sum(groups) <= 40
        assert syncs_us > 0
        made.close()
    finally:
        os.close(file)
        os.close(bell)
