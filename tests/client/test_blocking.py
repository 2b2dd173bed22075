"""The blocking client against a peer that misbehaves on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from client.frames import data, marker
from client.peer import HISTORY, Asked, Hangup, Peer, Script, silent
from helpers.amqp import eventually

import tidemark.client
from tidemark.client import (
    ClientClosed,
    Conflict,
    Interrupted,
    MarkerMismatch,
    NotConnected,
    ProducerClash,
    Receipt,
    RequestTooLarge,
    StreamReset,
    TimedOut,
    Unconfirmed,
)
from tidemark.client.blocking import Stream
from tidemark.errors import LoginRefused, NotFound
from tidemark.wire.stream.frames import Kind

Start = Callable[[Script], Peer]
ROWS = [(3, b"a", b"1"), (5, b"b", b"2"), (6, b"c", None)]


def stored(asked: Asked, first: int = 1, last: int = 1, duplicate: bool = False) -> None:
    asked.answer({"history": HISTORY, "first": first, "last": last, "duplicate": duplicate})


# Writes and broken connections ----------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_unconfirmed_and_not_sent_again(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "put" and asked.connection == 1:
            raise Hangup
        stored(asked)

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        with pytest.raises(Unconfirmed, match=r"may or may not be stored.*client\.producer"):
            Stream(db, "s").put("k", b"v")
        assert broker.ops() == ["put"]

        assert Stream(db, "s").put("k", b"v") == Receipt(HISTORY, 1, first=1)
        assert broker.connections == 2


def test_what_changes_nothing_is_asked_again_over_a_new_connection(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.connection == 1:
            raise Hangup
        asked.answer({"name": "s", "live": 4})

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        assert Stream(db, "s").info().live == 4
    assert broker.ops() == ["info", "info"]


def test_a_producers_put_is_sent_again_under_its_number_and_confirmed_once(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "producer":
            asked.answer({"last": 41})
        elif asked.connection == 1:
            raise Hangup
        else:
            stored(asked, duplicate=True)

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db, db.producer("loader") as producer:
        assert producer.put("s", "k", b"v").duplicate
        assert producer.last == 42
    puts = [one.header for one in broker.asked if one.op == "put"]
    assert [(one["producer"], one["sequence"]) for one in puts] == [("loader", 42), ("loader", 42)]


def test_a_producer_that_finds_its_first_send_stored_already_has_a_rival(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "producer":
            asked.answer({"last": 0})
        else:
            stored(asked, duplicate=True)

    with tidemark.client.connect(peer(script).url, timeout=5) as db:
        producer = db.producer("shared")
        with pytest.raises(ProducerClash, match="a name of its own"):
            producer.put("s", "k", b"v")
        assert producer.put("s", "k", b"v", number=7).duplicate, (
            "with the caller's own numbers it is no surprise"
        )


def test_a_producers_write_without_an_answer_is_sent_again_before_the_next(peer: Start) -> None:
    silent = threading.Event()
    silent.set()

    def script(asked: Asked) -> None:
        if asked.op == "producer":
            asked.answer({"last": 0})
        elif not silent.is_set():
            stored(asked)

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=0.3) as db:
        producer = db.producer("p")
        with pytest.raises(Unconfirmed, match=r"sends it again, under the same number"):
            producer.put("s", "k1", b"v")
        silent.clear()

        producer.put("s", "k2", b"v")

    assert [one.header["sequence"] for one in broker.asked if one.op == "put"] == [1, 1, 2]


def test_a_refused_write_of_a_producer_is_answered_and_not_sent_again(peer: Start) -> None:
    def script(asked: Asked) -> None:
        match asked.op, asked.header.get("sequence"):
            case "producer", _:
                asked.answer({"last": 0})
            case "put", 1:
                asked.refuse(Conflict.code, stream="s", key="aw==", expected=0, current=9, reason="")
            case _:
                stored(asked)

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db, db.producer("p") as producer:
        with pytest.raises(Conflict) as refused:
            producer.put("s", "k", b"v", expected=0)
        assert refused.value.current == 9
        producer.put("s", "k", b"v")
    assert [one.header["sequence"] for one in broker.asked if one.op == "put"] == [1, 2]


def test_a_producer_goes_on_after_a_write_that_cannot_be_sent_at_all(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "producer":
            asked.answer({"last": 0})
        else:
            stored(asked)

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db, db.producer("p") as producer:
        with pytest.raises(RequestTooLarge, match="put it in parts"):
            producer.put("s", "k", bytes(2 << 20))
        producer.settle()
        producer.put("s", "k", b"v")
    assert [one.header["sequence"] for one in broker.asked if one.op == "put"] == [2]


def test_what_was_taken_away_by_a_call_whose_answer_was_lost_is_not_missed(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.connection % 2:
            raise Hangup
        asked.refuse("not-found")

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        db.delete_stream("s")
        assert broker.ops() == ["delete", "delete"]
        with pytest.raises(NotFound):
            db.delete_stream("s")


def test_no_answer_in_time_is_told_apart_for_reads_and_writes(peer: Start) -> None:
    with tidemark.client.connect(peer(silent).url, timeout=0.2) as db:
        with pytest.raises(TimedOut, match=r"info of 's' had no answer in 0\.2 s"):
            Stream(db, "s").info()
        with pytest.raises(Unconfirmed, match=r"no answer in 0\.2 s"):
            Stream(db, "s").put("k", b"v")


def test_a_transaction_is_one_commit_with_all_its_payloads(peer: Start) -> None:
    broker = peer(lambda asked: stored(asked, 4, 8))
    with tidemark.client.connect(broker.url, timeout=5) as db:
        with db.transaction() as tx:
            tx.put("a", "k", b"v1")
            tx.put("a", "l", b"v2")
            tx.delete("b", "gone")
            tx.publish("ex", "rk", b"body", headers={"n": 1})
            tx.mark("a", "loader", 3)
        assert tx.receipt == Receipt(HISTORY, 8, False, 4)
        unfinished = db.transaction()
        unfinished.put("a", "k", b"never sent")
        unfinished.__exit__(RuntimeError, RuntimeError(), None)
        with db.transaction() as empty:
            pass
        assert empty.receipt is None

    [commit] = [one for one in broker.asked if one.op == "commit"]
    put_a, put_b, publish, mark = commit.header["operations"]
    assert (put_a["put"], put_a["count"], put_b["put"], put_b["count"]) == ("a", 2, "b", 1)
    assert (publish["publish"], publish["key"], publish["length"]) == ("ex", "rk", 4)
    assert mark == {"mark": "a", "consumer": "loader", "sequence": 3}
    assert sum(one.get("length", 0) for one in commit.header["operations"]) == len(commit.payload)
    assert commit.payload.endswith(b"body")


# Connecting -----------------------------------------------------------------------------------------


def test_a_refused_login_is_not_tried_again(peer: Start) -> None:
    def script(asked: Asked) -> None:
        asked.say(Kind.GOODBYE, 0, {"error": LoginRefused.code, "message": "the login was refused"})
        raise Hangup

    script.greets = True  # type: ignore[attr-defined]
    broker = peer(script)
    with pytest.raises(LoginRefused, match="the login was refused"):
        tidemark.client.connect(broker.url, timeout=5)
    assert broker.connections == 1


def test_nobody_there_is_one_sentence_within_the_time_allowed() -> None:
    began = time.monotonic()
    with pytest.raises(NotConnected, match=r"no broker answers at 127\.0\.0\.1:1 \(Connection refused\)"):
        tidemark.client.connect("tidemark://127.0.0.1:1", timeout=0.5)
    assert time.monotonic() - began < 2


def test_the_next_address_is_used_when_one_is_down(peer: Start) -> None:
    broker = peer(lambda asked: asked.answer({"name": "s"}))
    with tidemark.client.connect(f"tidemark://127.0.0.1:1,127.0.0.1:{broker.port}/", timeout=5) as db:
        assert db.node == "peer"


def test_a_broker_that_comes_back_is_found_again(peer: Start) -> None:
    first = peer(lambda asked: asked.answer({"name": "s"}))
    second = peer(lambda asked: asked.answer({"name": "s"}))
    url = f"tidemark://127.0.0.1:{first.port},127.0.0.1:{second.port}/"
    with tidemark.client.connect(url, timeout=5) as db:
        Stream(db, "s").info()
        first.close()
        Stream(db, "s").info()
    assert second.ops() == ["info"]


# Sharing --------------------------------------------------------------------------------------------


def test_threads_share_a_connection_and_each_gets_its_own_answer(peer: Start) -> None:
    held: list[Asked] = []

    def script(asked: Asked) -> None:
        held.append(asked)
        if len(held) == 8:  # the last asked is answered first
            for one in reversed(held):
                one.answer({"name": one.header["stream"], "live": int(one.header["stream"])})

    broker = peer(script)
    found: dict[int, int] = {}
    with tidemark.client.connect(broker.url, timeout=5) as db:
        threads = [
            threading.Thread(target=lambda n=n: found.update({n: Stream(db, str(n)).info().live}))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    assert found == {n: n for n in range(8)}
    assert broker.connections == 1


def test_a_ping_is_answered_while_a_call_waits(peer: Start) -> None:
    def script(asked: Asked) -> None:
        asked.say(Kind.PING, 0, {})
        eventually(lambda: any(one.kind is Kind.PONG for one in broker.others) or None)
        asked.answer({"name": "s"})

    # The peer's thread of this connection is busy in the script, so the pong is read by nobody but us.
    def script_in_background(asked: Asked) -> None:
        threading.Thread(target=script, args=(asked,), daemon=True).start()

    broker = peer(script_in_background)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        Stream(db, "s").info()
    assert any(one.kind is Kind.PONG for one in broker.others)


def test_closing_wakes_a_thread_that_waits(peer: Start) -> None:
    broker = peer(silent)
    db = tidemark.client.connect(broker.url, timeout=30)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            Stream(db, "s").info()
        except ClientClosed as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: broker.ops() == ["info"] or None)

    db.close()

    thread.join(5)
    assert not thread.is_alive() and len(failures) == 1
    with pytest.raises(ClientClosed):
        db.streams()


# Reading --------------------------------------------------------------------------------------------


def snapshots(read: Callable[[Asked], None]) -> Script:
    def script(asked: Asked) -> None:
        match asked.op:
            case "snapshot":
                asked.answer(
                    {"snapshot": 1, "history": HISTORY, "to": 6, "after": 0, "live": 2, "tombstones": 1}
                )
            case "read":
                read(asked)
            case "put":
                stored(asked)
            case _:
                asked.answer()

    return script


def test_a_snapshot_is_rows_and_then_a_marker_that_is_checked(peer: Start) -> None:
    def read(asked: Asked) -> None:
        asked.data(*data(ROWS[:2]))
        asked.data(*data(ROWS[2:]))
        asked.answer({"marker": marker(ROWS)})

    seen: list[tuple[int, int]] = []
    broker = peer(snapshots(read))
    with (
        tidemark.client.connect(broker.url, timeout=5) as db,
        Stream(db, "s").snapshot(progress=lambda done, all_: seen.append((done, all_))) as snapshot,
    ):
        assert snapshot.marker is None
        rows = list(snapshot.rows())
        assert snapshot.marker is not None and snapshot.marker.verified
    assert [(row.key, row.value, row.sequence, row.deleted) for row in rows] == [
        (b"a", b"1", 3, False), (b"b", b"2", 5, False), (b"c", b"", 6, True),
    ]  # fmt: skip
    assert seen == [(2, 3), (3, 3)]
    assert broker.ops(3)[-1] == "close" and broker.asked[-1].header == {"op": "close", "snapshot": 1}


def test_a_snapshot_that_is_forgotten_is_closed_before_the_next_is_opened(peer: Start) -> None:
    broker = peer(snapshots(lambda asked: asked.answer({"marker": marker([])})))
    with tidemark.client.connect(broker.url, timeout=5) as db:
        for _ in range(3):
            assert list(Stream(db, "s").snapshot()) == []
    assert broker.ops(9) == ["snapshot", "read", "close"] * 3


def test_a_snapshot_whose_answer_comes_too_late_is_closed(peer: Start) -> None:
    late: list[Asked] = []

    def script(asked: Asked) -> None:
        if asked.op == "snapshot":
            late.append(asked)
        elif asked.op == "info":
            while late:
                late.pop().answer({"snapshot": 7, "history": HISTORY, "to": 6})
            asked.answer({"name": "s"})
        else:
            asked.answer()

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=0.3) as db:
        with pytest.raises(TimedOut):
            Stream(db, "s").snapshot()
        Stream(db, "s").info()
        Stream(db, "s").info()
    eventually(lambda: "close" in broker.ops() or None)
    assert {"op": "close", "snapshot": 7} in [one.header for one in broker.asked]


@pytest.mark.parametrize(
    "wrong", [{"count": 3}, {"tombstones": 0}, {"hash": "0" * 32}], ids=["count", "tombstones", "hash"]
)
def test_a_marker_that_is_not_true_of_what_came_is_an_error(peer: Start, wrong: dict[str, Any]) -> None:
    def read(asked: Asked) -> None:
        asked.data(*data(ROWS))
        asked.answer({"marker": marker(ROWS, **wrong)})

    with tidemark.client.connect(peer(snapshots(read)).url, timeout=5) as db:
        rows = Stream(db, "s").snapshot().rows()
        with pytest.raises(MarkerMismatch, match="throw it away"):
            list(rows)


def test_a_read_that_breaks_says_how_far_it_came(peer: Start) -> None:
    def read(asked: Asked) -> None:
        asked.data(*data(ROWS[:2]))
        raise Hangup

    with tidemark.client.connect(peer(snapshots(read)).url, timeout=5) as db:
        rows = Stream(db, "s").snapshot().rows()
        assert [next(rows).sequence, next(rows).sequence] == [3, 5]
        with pytest.raises(Interrupted) as broken:
            next(rows)
    assert broken.value.position == 5


def test_a_loop_over_rows_may_write_and_grants_more_only_as_it_reads(peer: Start) -> None:
    big = [(n, b"k%d" % n, b"v" * (1 << 20)) for n in range(1, 13)]

    def credit() -> int:
        return (8 << 20) + sum(one.header["bytes"] for one in broker.others if one.kind is Kind.CREDIT)

    def feed(asked: Asked) -> None:
        used = 0
        for row in big:
            eventually(lambda: used < credit())  # noqa: B023
            header, parts = data([row])
            asked.data(header, parts)
            used += sum(map(len, parts))
        asked.answer({"marker": marker(big)})

    def read(asked: Asked) -> None:
        assert asked.header["credit"] == 8 << 20
        threading.Thread(target=feed, args=(asked,), daemon=True).start()

    broker = peer(snapshots(read))
    with tidemark.client.connect(broker.url, timeout=5) as db:
        stream, copied = Stream(db, "s"), 0
        for row in stream.snapshot().rows():
            stream.put("copy", row.value[:3])
            copied += 1
            assert credit() <= (8 << 20) + copied * len(row.value) * 2
    assert broker.ops().count("put") == copied == 12
    assert credit() > 12 << 20


def test_a_loop_that_is_left_tells_the_broker_to_stop(peer: Start) -> None:
    def read(asked: Asked) -> None:
        asked.data(*data(ROWS[:1]))

    broker = peer(snapshots(read))
    with tidemark.client.connect(broker.url, timeout=5) as db:
        for _ in Stream(db, "s").snapshot().rows():
            break
        [asked] = [one for one in broker.asked if one.op == "read"]
        closed = {"op": "close", "request": asked.request}
        eventually(lambda: any(one.header == closed for one in broker.asked) or None)


def test_a_column_that_does_not_exist_is_refused_before_anything_is_sent(peer: Start) -> None:
    broker = peer(snapshots(silent))
    with tidemark.client.connect(broker.url, timeout=5) as db:
        snapshot = Stream(db, "s").snapshot()
        with pytest.raises(ValueError, match="there is no column 'body'; there are key, value"):
            list(snapshot.rows(columns=["body"]))
    assert "read" not in broker.ops()


# Following ------------------------------------------------------------------------------------------


def test_a_subscription_goes_on_where_a_broken_connection_left_it(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op != "follow":
            asked.answer()
        elif asked.connection == 1:
            asked.data(*data(ROWS[:2]))
            raise Hangup
        else:
            asked.data(*data(ROWS[2:]))
            asked.data({"marker": marker(ROWS[2:], start=5)})

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        batches = list(Stream(db, "s").follow(idle=0.3))
    assert [row.sequence for batch in batches for row in batch] == [3, 5, 6]
    assert batches[-1].marker is not None and batches[-1].marker.verified
    starts = [one.header["from"] for one in broker.asked if one.op == "follow"]
    assert starts == ["first", {"history": HISTORY, "sequence": 5}]


def followed(rest: list[Asked]) -> Script:
    def script(asked: Asked) -> None:
        if asked.op == "follow":
            asked.data(*data(ROWS[:2]))
            asked.data({"marker": marker(ROWS[:2])})
            asked.data(*data(ROWS[2:]))
        else:
            rest.append(asked)
            asked.answer()

    return script


@pytest.mark.parametrize(("commit", "marks"), [("boundary", [5]), ("each", [5, 6]), (None, [])])
def test_the_mark_moves_as_the_consumer_chose(peer: Start, commit: Any, marks: list[int]) -> None:
    rest: list[Asked] = []
    with tidemark.client.connect(peer(followed(rest)).url, timeout=5) as db:
        for _ in Stream(db, "s").follow("loader", commit=commit, idle=0.3):
            time.sleep(0.02)  # so that each move is stored before the next is wanted
    moved = [one.header["sequence"] for one in rest if one.op == "mark"]
    assert sorted(set(moved)) == marks
    assert rest[0].op == "register" and rest[0].header["consumer"] == "loader"


def test_what_the_loop_did_not_finish_is_not_marked(peer: Start) -> None:
    rest: list[Asked] = []
    with tidemark.client.connect(peer(followed(rest)).url, timeout=5) as db:
        for batch in Stream(db, "s").follow("loader", idle=5):
            if batch.marker is not None:
                break
    assert [one.op for one in rest if one.op == "mark"] == []


def test_a_consumer_that_was_away_too_long_is_told_or_starts_over(peer: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.op == "follow" and asked.header["from"] != "first":
            asked.refuse(StreamReset.code, stream="s", seq=3, purged=9, reason="")
        elif asked.op == "follow":
            asked.data(*data(ROWS))
        else:
            asked.answer()

    broker = peer(script)
    with tidemark.client.connect(broker.url, timeout=5) as db:
        with pytest.raises(StreamReset, match="read from the first message"):
            list(Stream(db, "s").follow("loader", idle=0.3))

        batches = list(Stream(db, "s").follow("loader", idle=0.3, on_reset="restart"))

    assert [batch.reset for batch in batches] == [True, False]
    assert len(batches[1]) == 3
    assert any(one.op == "reset" and one.header["sequence"] == 0 for one in broker.asked)


def test_safety_is_asked_again_until_it_is_known_or_the_time_is_over(peer: Start) -> None:
    answers = iter(["not yet", "yes"])

    def script(asked: Asked) -> None:
        asked.answer({"safe": next(answers)})

    with tidemark.client.connect(peer(script).url, timeout=5) as db:
        assert db.await_safe(Receipt(HISTORY, 3), timeout=0) == "not yet"
        assert db.await_safe(Receipt(HISTORY, 3), timeout=40) == "yes"
