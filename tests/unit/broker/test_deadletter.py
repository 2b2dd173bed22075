"""Dead letters: where they go, and the history they carry."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker
from unit.broker.channel import Delivery, TestChannel, a_channel

from tidemark.errors import CorruptRecord, DiskFull
from tidemark.model.records import Reason, RecordType
from tidemark.model.values import Timestamp


@pytest.fixture
def channel() -> TestChannel:
    channel = a_channel(a_broker())
    channel.session.declare_queue("dead", durable=True)
    return channel


def declare(channel: TestChannel, name: str = "q", to: str = "dead", **arguments: Any) -> None:
    rules = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    rules |= {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.session.declare_queue(name, durable=True, arguments=rules)


def reject(channel: TestChannel, queue: str = "q") -> None:
    delivery = channel.get(queue)
    assert delivery is not None
    channel.nack(delivery.tag, requeue=False)


def take(channel: TestChannel, queue: str = "dead") -> Delivery:
    delivery = channel.get(queue, no_ack=True)
    assert delivery is not None
    return delivery


def test_a_rejected_message_carries_its_history(channel: TestChannel) -> None:
    """U-22: the reason of a dead letter, with the queue and the time."""
    declare(channel)
    channel.publish("q", b"bad", message_id="m1", headers={"mine": 1})
    reject(channel)

    letter = take(channel)
    assert (letter.body, letter.properties.message_id, letter.message.key) == (b"bad", "m1", "dead")
    assert letter.headers == {
        "mine": 1,
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": channel.broker.now_ms // 1000,
                "exchange": "",
                "routing-keys": ["q"],
            }
        ],
    }
    assert type(letter.headers["x-death"][0]["time"]) is Timestamp


def test_an_expired_message_loses_its_expiration_and_remembers_it(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"old", expiration="50")
    channel.turn(60)
    letter = take(channel)
    assert letter.properties.expiration is None
    [death] = letter.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "50")


def test_what_the_ttl_of_its_queue_ended_has_no_original_expiration(channel: TestChannel) -> None:
    declare(channel, x_message_ttl=50)
    channel.publish("q", b"old")
    channel.turn(60)
    [death] = take(channel).headers["x-death"]
    assert "original-expiration" not in death


@pytest.mark.parametrize(
    ("overflow", "dead", "kept"),
    [
        ("drop-head", [b"1"], [b"2", b"3"]),
        ("reject-publish", [], [b"1", b"2"]),
        ("reject-publish-dlx", [b"3"], [b"1", b"2"]),
    ],
)
def test_what_a_full_queue_drops_or_refuses_is_dead_lettered_by_its_rule(
    channel: TestChannel, overflow: str, dead: list[bytes], kept: list[bytes]
) -> None:
    declare(channel, x_max_length=2, x_overflow=overflow)
    channel.publish("q", b"1", b"2", b"3")
    channel.turn()
    if dead:
        letter = take(channel)
        assert ([letter.body], letter.headers["x-death"][0]["reason"]) == (dead, "maxlen")
    assert channel.drain("dead") == []
    assert channel.drain("q") == kept


def test_a_message_over_its_delivery_limit_says_so(channel: TestChannel) -> None:
    declare(channel, x_delivery_limit=0)
    channel.publish("q", b"poison")
    delivery = channel.get("q")
    assert delivery is not None
    channel.nack(delivery.tag)
    assert take(channel).headers["x-death"][0]["reason"] == "delivery_limit"


def test_without_a_dead_letter_key_the_message_keeps_its_own_and_its_copies(channel: TestChannel) -> None:
    session = channel.session
    session.declare_queue("other")
    session.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    session.bind_queue("dead", "amq.direct", "q")
    session.bind_queue("other", "amq.direct", "copy")
    channel.publish("q", b"x", headers={"CC": ["copy"]})
    reject(channel)
    letter = take(channel)
    assert (letter.message.exchange, letter.message.key) == ("amq.direct", "q")
    assert letter.headers["CC"] == ["copy"]
    assert letter.headers["x-death"][0]["routing-keys"] == ["q", "copy"]
    assert channel.drain("other") == [b"x"]


def test_with_a_dead_letter_key_copies_are_history(channel: TestChannel) -> None:
    declare(channel)
    channel.session.declare_queue("copy")
    channel.publish("q", b"x", headers={"CC": ["copy"]})
    channel.drain("copy")
    reject(channel)
    headers = take(channel).headers
    assert headers["x-death"][0]["routing-keys"] == ["q", "copy"]
    assert "CC" not in headers
    assert channel.drain("copy") == []


def test_a_missing_dead_letter_exchange_drops_the_message(channel: TestChannel) -> None:
    channel.session.declare_queue("q", durable=True, arguments={"x-dead-letter-exchange": "missing"})
    channel.publish("q", b"gone", delivery_mode=2)
    reject(channel)
    assert [reason for _, reason, _ in channel.settled()] == [Reason.REJECTED]
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.acquired, queue.dead_lettered) == (0, 0, 0)


# The history --------------------------------------------------------------------------------------


def test_dying_again_for_the_same_reason_counts_up(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"bad")
    for count in range(1, 4):
        reject(channel)
        letter = take(channel)
        [death] = letter.headers["x-death"]
        assert death["count"] == count
        channel.publishing.publish_one("", "q", letter.message.properties, letter.body)


def test_the_newest_death_comes_first_and_the_first_is_remembered(channel: TestChannel) -> None:
    declare(channel, "b")
    declare(channel, "a", to="b")
    channel.publish("a", b"bad")
    reject(channel, "a")
    reject(channel, "b")
    headers = take(channel).headers
    assert [death["queue"] for death in headers["x-death"]] == ["b", "a"]
    assert headers["x-first-death-queue"] == "a"


@pytest.mark.parametrize(
    "history", ["text", 5, ["junk"], [{"queue": 1}], [{"queue": "q", "reason": "rejected"}]]
)
def test_a_history_that_a_client_made_up_does_no_harm(channel: TestChannel, history: Any) -> None:
    declare(channel)
    channel.publish("q", b"x", headers={"x-death": history})
    reject(channel)
    newest = take(channel).headers["x-death"][0]
    assert (newest["queue"], newest["reason"]) == ("q", "rejected")
    assert newest["count"] >= 1


# Cycles ----------------------------------------------------------------------------------------------


def test_a_cycle_of_expiries_without_a_rejection_drops_the_message(channel: TestChannel) -> None:
    declare(channel, "a", to="b", x_message_ttl=30)
    declare(channel, "b", to="a", x_message_ttl=30)
    channel.publish("a", b"dizzy")
    for _ in range(5):
        channel.turn(40)
    queues = channel.session.vhost.queues
    assert [queues[name].statistics().expired for name in "ab"] == [1, 1]
    assert [queues[name].ready for name in "ab"] == [0, 0]


def test_a_cycle_with_a_rejection_in_it_goes_on(channel: TestChannel) -> None:
    declare(channel, "work", to="wait")
    declare(channel, "wait", to="work", x_message_ttl=30)
    channel.publish("work", b"retry me")
    for round_ in range(4):
        delivery = channel.get("work")
        assert delivery is not None
        counts = {death["queue"]: death["count"] for death in delivery.headers.get("x-death", [])}
        assert counts.get("work", 0) == round_
        channel.nack(delivery.tag, requeue=False)
        channel.turn(40)


def test_a_queue_may_be_its_own_dead_letter_target_for_rejections(channel: TestChannel) -> None:
    declare(channel, "q", to="q")
    channel.publish("q", b"again")
    reject(channel)
    assert take(channel, "q").headers["x-death"][0]["count"] == 1


def test_a_chain_of_full_queues_passes_the_message_to_its_end(channel: TestChannel) -> None:
    for number in range(50):
        to = f"full{number + 1}" if number < 49 else "dead"
        declare(channel, f"full{number}", to=to, x_max_length=0, x_overflow="reject-publish-dlx")
    assert channel.publish("full0", b"x").refused == [0]
    assert len(take(channel).headers["x-death"]) == 50


# The journal ---------------------------------------------------------------------------------------------


def test_the_dead_letter_is_in_the_journal_before_the_end_of_the_original(channel: TestChannel) -> None:
    declare(channel)
    seq = channel.publish("q", b"keep me", delivery_mode=2).last_seq
    reject(channel)
    told = channel.broker.journal.told
    assert [event[0] for event in told] == ["ensure", RecordType.SETTLED]
    letter = take(channel)
    assert letter.message.persistent
    number = channel.session.vhost.queues["q"].number
    assert channel.settled() == [(number, Reason.REJECTED, [seq])]
    settled_seq = channel.broker.journal.last_seq
    assert seq < letter.message.seq < settled_seq


def test_when_the_disk_is_full_the_messages_are_ready_again_and_none_is_lost(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(channel)
    channel.publish("q", b"1", b"2", delivery_mode=2)
    for _ in range(2):
        channel.get("q")

    def full(_need: int) -> None:
        raise DiskFull(path="journal")

    with monkeypatch.context() as patched:
        patched.setattr(channel.broker.journal, "ensure", full)
        with pytest.raises(DiskFull):
            channel.nack(0, 0, requeue=False)
    assert channel.drain("dead") == []
    assert channel.drain("q") == [b"1", b"2"]


def test_a_message_that_cannot_be_read_any_more_ends_without_a_letter_and_is_counted(
    channel: TestChannel,
) -> None:
    declare(channel)
    channel.publish("q", b"1", delivery_mode=2)
    held = channel.get("q")
    assert held is not None
    arena, journal = channel.broker.arena, channel.broker.journal

    def damaged(extent: int, _room: memoryview) -> None:
        raise CorruptRecord(path="journal", offset=extent, problem="checksum")

    arena.pager = damaged
    number = journal.number
    journal.close_extent()
    arena.drop_extent(number)
    channel.nack(held.tag, requeue=False)
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.acquired, queue.statistics().damaged) == (0, 0, 1)
    assert [reason for _, reason, _ in channel.settled()] == [Reason.REJECTED]


def test_the_room_asked_for_covers_the_letter_and_the_settlement(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"x" * 1000, delivery_mode=2, headers={"CC": ["k" * 200] * 20, "y": "z" * 5000})
    journal = channel.broker.journal
    before = journal.used
    reject(channel)
    [(_, need)] = [event for event in journal.told if event[0] == "ensure"]
    assert 0 < journal.used - before <= need


def test_many_rejections_are_dead_lettered_in_order(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", *(b"%d" % number for number in range(200)), delivery_mode=2)
    for _ in range(200):
        channel.get("q")
    channel.nack(0, 0, requeue=False)
    assert channel.drain("dead") == [b"%d" % number for number in range(200)]
    settled = [seq for _, reason, seqs in channel.settled() if reason == Reason.REJECTED for seq in seqs]
    assert len(settled) == 200


def test_a_persistent_letter_from_a_transient_queue_is_persistent_in_a_durable_one(
    channel: TestChannel,
) -> None:
    rules = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.session.declare_queue("t", arguments=rules)
    channel.publish("t", b"x", delivery_mode=2)
    reject(channel, "t")
    assert take(channel).message.persistent
