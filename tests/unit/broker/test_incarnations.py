"""Lives of queues that main has the name of: what their group remembers, and what main counts."""

from __future__ import annotations

import json

import pytest
from builders import RecordingCatalog, RecordingSink, a_broker
from hypothesis import given
from hypothesis import strategies as st

from tidemark.broker import incarnations
from tidemark.broker.broker import Broker
from tidemark.broker.incarnations import Gone
from tidemark.broker.session import Made, Session
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import QueueSpec

ELSEWHERE = {"x-group": "fast"}


def by_front(broker: Broker) -> Session:
    return broker.open_session("/", "guest", None, "front", by_front=True)


def a_group(broker: Broker | None = None) -> Session:
    """What a front says to the group `fast`."""
    broker = broker or a_broker()
    broker.group = "fast"
    return by_front(broker)


def a_main() -> Session:
    """What a front says to main, which has the name `q` of a queue of `fast`."""
    broker = a_broker()
    broker.other_groups = {"fast": "chain"}
    session = by_front(broker)
    session.declare_queue("q", durable=True, arguments=ELSEWHERE)
    return session


def made(session: Session, life: int, name: str = "q") -> Made:
    return session.make_queue(name, life, durable=True, arguments=ELSEWHERE)


def life_of(session: Session, name: str = "q") -> int:
    return session.vhost.queues[name].spec.life


def catalog_of(session: Session) -> list[bytes]:
    log = session.broker.catalog
    assert isinstance(log, RecordingCatalog)
    return log.changes


# In the group -----------------------------------------------------------------------------------------------------


def test_a_queue_is_in_the_life_that_it_was_made_in() -> None:
    group = a_group()
    assert made(group, 17).gone == 0
    assert made(group, 17).gone == 0, "it is there"
    assert group.vhost.queues["q"].spec.incarnation == 17


def test_a_life_that_was_ended_does_not_begin_again_and_a_later_one_does() -> None:
    group = a_group()
    made(group, 17)
    assert group.end_queue("q", 17).other == 0
    assert (made(group, 17).gone, made(group, 16).gone) == (17, 17)
    assert "q" not in group.vhost.queues
    assert made(group, 18).gone == 0


def test_what_comes_late_for_an_earlier_life_changes_nothing() -> None:
    group = a_group()
    made(group, 17)
    group.end_queue("q", 17)
    made(group, 30)
    assert made(group, 17).gone == 30
    assert group.end_queue("q", 17).other == 30
    assert group.vhost.queues["q"].spec.incarnation == 30


def test_the_end_of_a_queue_that_was_not_there_is_remembered() -> None:
    group = a_group()
    assert group.end_queue("q", 17).other == 0
    assert made(group, 17).gone == 17
    logged = len(catalog_of(group))
    group.end_queue("q", 17)
    assert len(catalog_of(group)) == logged, "once is enough"


def test_whoever_deletes_a_queue_its_life_is_over() -> None:
    group = a_group()
    made(group, 17)
    group.delete_queue("q")
    assert made(group, 17).gone == 17


def test_a_queue_of_which_nobody_said_the_life_is_taken_with_its_messages() -> None:
    group = a_group()
    group.declare_queue("q", durable=True, arguments=ELSEWHERE)
    number = group.vhost.queues["q"].number
    assert made(group, 17).gone == 0
    assert (group.vhost.queues["q"].number, group.vhost.queues["q"].spec.incarnation) == (number, 17)


def test_a_stream_has_lives_too() -> None:
    group = a_group()
    stream = {"x-queue-type": "stream", "x-group": "fast"}
    group.declare_queue("s", durable=True, arguments=stream)
    group.make_queue("s", 17, durable=True, arguments=stream)
    assert group.vhost.queues["s"].spec.incarnation == 17
    group.end_queue("s", 17)
    assert group.make_queue("s", 17, durable=True, arguments=stream).gone == 17


def test_a_queue_that_is_in_no_catalog_is_over_for_good_when_it_was_ended() -> None:
    group = a_group()
    group.broker.mode = "chain"
    alone = {"x-replicate": "none"}
    group.make_queue("q", 17, durable=True, arguments=alone)
    group.end_queue("q", 17)
    again = a_group(a_broker(replaying=catalog_of(group)))
    assert again.make_queue("q", 17, durable=True, arguments=alone).gone == 17


def test_conditions_are_asked_before_a_life_ends() -> None:
    group = a_group()
    made(group, 17)
    group.consume(RecordingSink(), "q", "c")  # type: ignore[arg-type]
    with pytest.raises(PreconditionFailed, match="in use"):
        group.end_queue("q", 17, if_unused=True)
    assert made(group, 17).gone == 0


def test_every_reader_of_the_catalog_knows_which_lives_are_over() -> None:
    group = a_group()
    for name in ("q", "other"):
        made(group, 17, name)
        group.end_queue(name, 17)
    made(group, 30, "other")
    made(group, 40, "third")
    for changes in (catalog_of(group), group.broker.image()):
        again = a_broker(replaying=changes)
        assert again.gone.last("/", "q") == 17
        assert again.image() == group.broker.image()
        assert again.image_length() == len(again.image())


def test_a_catalog_without_lives_is_read_as_it_was_meant_and_an_older_version_reads_ours() -> None:
    group = a_group()
    made(group, 17)
    group.end_queue("q", 17)
    made(group, 18, "other")
    known = [json.loads(change) for change in group.broker.image()]
    for change in known:
        change.pop("incarnation", None)  # what it does not know it passes over
    older = a_group(a_broker(replaying=[json.dumps(change).encode() for change in known]))
    assert set(older.vhost.queues) == {"other"}
    assert made(older, 17).gone == 0


def test_as_many_are_remembered_as_may_be_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incarnations, "GONE_MAX", 3)
    gone = Gone()
    for life, name in enumerate("abcad", start=1):
        gone.ended(QueueSpec("/", name, incarnation=life))
    assert [(spec.name, spec.incarnation) for spec in gone.specs()] == [("c", 3), ("a", 4), ("d", 5)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["make", "end", "plain", "delete"]), st.integers(1, 5)),
        max_size=12,
    )
)
def test_whatever_is_said_no_life_that_was_ended_is_there(said: list[tuple[str, int]]) -> None:
    group, ended = a_group(), 0
    for what, life in said:
        if what == "make":
            made(group, life)
        elif what == "end" and group.end_queue("q", life).other == 0:
            ended = max(ended, life)
        elif what == "plain":
            group.declare_queue("q", durable=True, arguments=ELSEWHERE)
        elif what == "delete":
            group.delete_queue("q")
        queue = group.vhost.queues.get("q")
        assert queue is None or queue.spec.incarnation == 0 or queue.spec.incarnation > ended
    assert a_broker(replaying=group.broker.image()).image() == group.broker.image()


# In main ----------------------------------------------------------------------------------------------------------


def test_main_ends_a_name_only_in_the_life_that_it_is_in() -> None:
    main = a_main()
    life = life_of(main)
    main.renew_queue("q", life, 0)
    assert main.end_queue("q", life).other == life_of(main) > life
    assert main.end_queue("q", life_of(main)).other == 0
    assert "q" not in main.vhost.queues
    assert main.end_queue("q", life).other == 0, "it is gone"


def test_a_life_is_renewed_once_and_behind_all_that_its_group_knows() -> None:
    main = a_main()
    first = life_of(main)
    main.renew_queue("q", first, 100)
    assert life_of(main) == 101
    main.renew_queue("q", first, 0)
    assert life_of(main) == 101, "somebody was earlier"
    assert main.vhost.queues["q"].number == first, "it is the same queue"


def test_a_life_is_never_counted_twice() -> None:
    main = a_main()
    main.renew_queue("q", life_of(main), 0)
    last = life_of(main)
    main.end_queue("q", last)
    for changes in (catalog_of(main), main.broker.image()):
        again = a_broker(replaying=changes)
        again.other_groups = {"fast": "chain"}
        session = by_front(again)
        session.declare_queue("q", durable=True, arguments=ELSEWHERE)
        assert life_of(session) > last
        assert len(again.gone) == 0, "main has no need to remember"


def test_main_keeps_a_name_that_lives_elsewhere_from_who_thinks_that_it_is_mains() -> None:
    main = a_main()
    assert main.end_queue("q", 0).other == life_of(main)
    main.declare_queue("here", durable=True)
    assert main.end_queue("here", 17).other, "it was another that lived elsewhere"
    assert main.end_queue("here", 0).other == 0
    assert set(main.vhost.queues) == {"q"}
