"""Which publishes are confirmed when, and how few frames that takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.frontend.amqp091.confirms import Confirms
from tidemark.wire.amqp091.methods import BasicAck, BasicNack


def test_what_needs_no_disk_is_acked_at_once_in_one_frame() -> None:
    confirms = Confirms()
    confirms.add(3, 0, [])
    confirms.add(2, 0, [])

    assert confirms.take(0) == [BasicAck(delivery_tag=5, multiple=True)]
    assert len(confirms) == 0


def test_a_single_publish_is_acked_alone() -> None:
    confirms = Confirms()
    confirms.add(1, 0, [])
    assert confirms.take(0) == [BasicAck(delivery_tag=1, multiple=False)]


def test_an_ack_waits_until_the_disk_has_its_sequence() -> None:
    confirms = Confirms()
    confirms.add(10, 100, [])
    confirms.add(10, 200, [])

    assert confirms.take(99) == []
    assert confirms.take(150) == [BasicAck(delivery_tag=10, multiple=True)]
    assert confirms.take(200) == [BasicAck(delivery_tag=20, multiple=True)]


def test_a_transient_publish_waits_for_the_persistent_one_before_it() -> None:
    confirms = Confirms()
    confirms.add(1, 50, [])
    confirms.add(1, 0, [])

    assert confirms.take(0) == []
    assert confirms.take(50) == [BasicAck(delivery_tag=2, multiple=True)]


def test_refused_publishes_are_nacked_in_their_place() -> None:
    confirms = Confirms()
    confirms.add(5, 0, [1, 2, 4])

    assert confirms.take(0) == [
        BasicAck(delivery_tag=1, multiple=False),
        BasicNack(delivery_tag=3, multiple=True, requeue=False),
        BasicAck(delivery_tag=4, multiple=False),
        BasicNack(delivery_tag=5, multiple=False, requeue=False),
    ]


def test_a_failed_journal_nacks_all_that_waits() -> None:
    """U-10: what was on its way to a store that is gone is not confirmed."""
    confirms = Confirms()
    confirms.add(2, 0, [])
    confirms.take(0)
    confirms.add(3, 100, [])

    assert confirms.fail() == [BasicNack(delivery_tag=5, multiple=True, requeue=False)]
    assert confirms.fail() == []


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 3),
            st.sets(st.integers(0, 4)),
            st.booleans(),
        )
    )
)
def test_whatever_happens_every_publish_is_answered_once_in_order_and_none_too_early(
    runs: list[tuple[int, int, set[int], bool]],
) -> None:
    confirms = Confirms()
    needs: dict[int, tuple[int, bool]] = {}
    answered: list[tuple[int, bool]] = []
    sequence = durable = done = 0

    def collect() -> None:
        nonlocal done
        for answer in confirms.take(durable):
            accepted = isinstance(answer, BasicAck)
            assert answer.multiple or answer.delivery_tag == done + 1
            answered.extend((tag, accepted) for tag in range(done + 1, answer.delivery_tag + 1))
            done = answer.delivery_tag

    for count, step, refused_at, syncs in runs:
        sequence += step
        refused = sorted(position for position in refused_at if position < count)
        for position in range(count):
            tag = confirms.published + position + 1
            needs[tag] = (0, False) if position in refused else (sequence if step else 0, True)
        confirms.add(count, sequence if step else 0, refused)
        if syncs:
            durable = sequence
        collect()
        assert all(needs[tag][0] <= durable for tag, _ in answered)
    durable = sequence
    collect()

    assert answered == [(tag, accepted) for tag, (_, accepted) in needs.items()]
