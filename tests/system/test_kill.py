"""The broker is killed at random moments under mixed traffic and must keep every promise.

TIDEMARK_KILL_ROUNDS says how often (50 unless told), TIDEMARK_KILL_SEED replays the dice of a
run; the seed is printed. What "every promise" means is `helpers.history.check`; the first
tests show that it finds each kind of fault when one is planted.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from helpers.broker import Address, BrokerProcess
from helpers.history import (
    Committed,
    Committing,
    Confirmed,
    Delivered,
    Event,
    Killed,
    Message,
    Sent,
    Settled,
    Undone,
    check,
    explain,
)
from helpers.traffic import Traffic

ROUNDS = int(os.environ.get("TIDEMARK_KILL_ROUNDS", "50"))
SEED = int(os.environ.get("TIDEMARK_KILL_SEED", str(random.SystemRandom().randrange(1 << 32))))

# The checker finds what is planted ------------------------------------------------------------


def m(number: int, producer: str = "p") -> Message:
    return Message(producer, number)


def kinds(history: list[Event]) -> list[str]:
    return [violation.kind for violation in check(history)]


SENT: list[Event] = [Sent(m(1), ("q",)), Confirmed(m(1)), Sent(m(2), ("q",)), Confirmed(m(2))]
FINE: list[Event] = [*SENT, Delivered(m(1), "q"), Delivered(m(2), "q"), Settled(m(1), "q")]


def test_a_history_without_faults_has_no_violation() -> None:
    assert check(FINE) == []


def test_a_confirmed_message_that_never_comes_out_is_lost() -> None:
    assert kinds([*SENT, Delivered(m(2), "q")]) == ["lost"]


def test_a_message_that_reached_one_of_its_two_queues_is_lost_in_the_other() -> None:
    sent = [Sent(m(1), ("q", "r")), Confirmed(m(1))]
    assert kinds([*sent, Delivered(m(1), "q")]) == ["lost"]


def test_an_unconfirmed_message_may_be_lost() -> None:
    assert check([Sent(m(1), ("q",))]) == []


def test_a_message_that_comes_again_before_its_ack_is_complete_is_fine() -> None:
    assert check([*FINE, Delivered(m(2), "q"), Settled(m(2), "q")]) == []


def test_a_message_that_comes_again_after_its_ack_is_complete_is_a_fault() -> None:
    assert kinds([*FINE, Delivered(m(1), "q")]) == ["returned"]


def test_first_deliveries_out_of_order_are_a_fault() -> None:
    assert kinds([*SENT, Delivered(m(2), "q"), Delivered(m(1), "q")]) == ["reordered"]


def test_redeliveries_and_other_producers_do_not_count_for_the_order() -> None:
    others: list[Event] = [Sent(m(9, "r"), ("q",)), Delivered(m(9, "r"), "q")]
    again: list[Event] = [Delivered(m(1), "q"), Delivered(m(2), "q"), Delivered(m(1), "q")]
    assert check([*others, *SENT, *again]) == []


def test_a_message_nobody_sent_is_a_fault() -> None:
    assert kinds([Delivered(m(1), "q")]) == ["unknown"]


def test_a_message_in_a_queue_it_was_not_sent_to_is_a_fault() -> None:
    assert kinds([*FINE, Delivered(m(1), "r")]) == ["unknown"]


TX: list[Event] = [Sent(m(1), ("q",)), Sent(m(2), ("r",)), Committing(7, (m(1), m(2)))]


def test_a_transaction_with_an_unknown_end_may_be_whole_or_not_there() -> None:
    assert check(TX) == []
    assert check([*TX, Delivered(m(1), "q"), Delivered(m(2), "r")]) == []


def test_half_a_transaction_is_a_fault() -> None:
    assert kinds([*TX, Delivered(m(1), "q")]) == ["torn"]


def test_a_committed_transaction_that_is_not_there_is_lost_and_torn() -> None:
    assert Counter(kinds([*TX, Committed(7)])) == {"lost": 2, "torn": 1}


MOVE: list[Event] = [
    Sent(m(1), ("in",)),
    Confirmed(m(1)),
    Delivered(m(1), "in"),
    Sent(m(1, "mover"), ("out",)),
    Committing(7, (m(1, "mover"),), ((m(1), "in"),)),
]


def test_a_move_that_did_not_happen_gives_the_message_back() -> None:
    assert check([*MOVE, Delivered(m(1), "in")]) == []


def test_a_move_that_happened_does_not_give_the_message_back() -> None:
    assert check([*MOVE, Delivered(m(1, "mover"), "out")]) == []


def test_a_move_whose_ack_happened_without_its_publish_is_a_fault() -> None:
    assert kinds(MOVE) == ["torn"]


def test_a_move_whose_publish_happened_without_its_ack_is_a_fault() -> None:
    out: list[Event] = [Delivered(m(1, "mover"), "out"), Delivered(m(1), "in")]
    assert kinds([*MOVE, *out]) == ["torn"]


def test_an_ack_in_a_committed_transaction_is_complete() -> None:
    out: list[Event] = [Committed(7), Delivered(m(1, "mover"), "out"), Delivered(m(1), "in")]
    assert Counter(kinds([*MOVE, *out])) == {"returned": 1, "torn": 1}


def test_a_message_of_a_transaction_that_was_never_committed_is_a_fault() -> None:
    sent = [Sent(m(1), ("q",)), Undone((m(1),))]
    assert check(sent) == []
    assert kinds([*sent, Delivered(m(1), "q")]) == ["undone"]


def test_an_explanation_shows_the_events_of_the_messages_and_the_kills_between() -> None:
    history = [*TX, Killed(), Sent(m(5), ("q",)), Killed(), Delivered(m(1), "q")]
    [violation] = check(history)
    lines = explain(history, violation).splitlines()
    assert [line.split()[1] for line in lines[4:]] == ["killed", "Delivered(message=Message(producer='p',"]


# Real processes --------------------------------------------------------------------------------


def assert_kept(traffic: Traffic) -> None:
    violations = check(traffic.history)
    counts = Counter(violation.kind for violation in violations)
    first = "\n".join(explain(traffic.history, violation) for violation in violations[:5])
    assert not violations, f"{dict(counts)}, seed {SEED}:\n{first}"


def test_the_traffic_keeps_every_promise_on_a_broker_that_is_left_alone(broker: Address) -> None:
    traffic = Traffic(broker, SEED, prefix=f"calm-{uuid.uuid4().hex[:8]}")
    traffic.start()
    time.sleep(1.5)
    traffic.drain()
    traffic.look_for_leftovers()
    traffic.remove()

    assert_kept(traffic)
    seen = Counter(type(event) for event in traffic.history)
    assert seen.keys() == {Sent, Confirmed, Delivered, Settled, Committing, Committed, Undone}


@pytest.mark.slow
@pytest.mark.timeout(120 + ROUNDS * 10)
def test_a_broker_killed_again_and_again_keeps_every_promise(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    print(f"TIDEMARK_KILL_SEED={SEED} TIDEMARK_KILL_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    traffic = Traffic(own_broker.address, SEED)
    traffic.start()
    for _ in range(ROUNDS):
        time.sleep(dice.choice((dice.uniform(0, 0.1), dice.uniform(0.1, 1.2))))
        own_broker.kill()
        traffic.history.append(Killed())
        traffic.check_alive()
        if dice.random() < 0.2:  # again, while it recovers
            own_broker.launch()
            time.sleep(dice.uniform(0.02, 0.8))
            own_broker.kill()
        own_broker.start()
        traffic.broker_restarted()
    traffic.drain()
    own_broker.kill()
    own_broker.start()
    traffic.look_for_leftovers()
    own_broker.stop()

    assert_kept(traffic)
    seen = Counter(type(event) for event in traffic.history)
    print({kind.__name__: count for kind, count in seen.items()}, traffic.redelivered)
    assert seen[Confirmed] > 20 * ROUNDS
    assert seen[Settled] > 20 * ROUNDS
    assert seen[Committed] > 2 * ROUNDS
    assert traffic.redelivered > ROUNDS
