"""What a writer is told about each write: stored, stored before, or refused and why."""

from __future__ import annotations

import pytest

from tidemark.client import Client
from tidemark.errors import Conflict, NotFound


def test_the_answer_to_a_write_says_stored_duplicate_or_refused_and_why(db: Client, name: str) -> None:
    """U-22: each has a form of its own, with the place or the reason; a duplicate is no failure and names what was stored."""
    stream = db.stream(name, create=True)
    with db.producer(f"{name}-p") as producer:
        stored = producer.put(stream, "k", b"1")
        again = producer.put(stream, "k", b"1", number=1)
        with pytest.raises(Conflict) as refused:
            producer.put(stream, "k", b"2", expected=stored.sequence + 1)
        with pytest.raises(NotFound, match="nowhere"):
            producer.put(f"{name}-nowhere", "k", b"2")
        later = producer.put(stream, "k", b"3")

    assert (stored.duplicate, again.duplicate, later.duplicate) == (False, True, False)
    assert (again.history, again.sequence) == (stored.history, stored.sequence)
    assert later.sequence > stored.sequence
    assert refused.value.current == stored.sequence
    assert "Read the key and put again" in str(refused.value)
    assert [(row.key, row.value) for row in stream.snapshot()] == [(b"k", b"3")]
