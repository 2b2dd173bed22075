"""Streams that live in another group: both clients follow them there. The front and the groups behind it are scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client.peer import HISTORY, WELCOME, Asked, Peer, Script
from client.test_blocking import stored

from tidemark.client import ClientClosed, aio, blocking
from tidemark.errors import AccessRefused, NotFound, StreamElsewhere
from tidemark.wire.stream.frames import Kind

Start = Callable[[Script], Peer]
ARGUMENTS = {"x-queue-type": "stream", "x-max-age": "7D"}
"""Of every stream that lives elsewhere."""


class Front:
    """Answers for main and for the groups behind it; `asked` has who was asked what."""

    def __init__(self, elsewhere: dict[str, str], groups: tuple[str, ...] = ("main", "s1", "s2")) -> None:
        self.elsewhere = dict(elsewhere)
        self.made: set[tuple[str, str]] = {(group, stream) for stream, group in elsewhere.items()}
        self.declared: dict[tuple[str, str], dict[str, Any]] = {}
        """With which arguments streams were made in their groups."""
        self.asked: list[tuple[str, str, str]] = []
        self._groups = groups
        self._of: dict[int, str] = {}
        self.greets = True

    def __call__(self, asked: Asked) -> None:
        if asked.op == "hello":
            group = self._of[asked.connection] = asked.header.get("group", "main")
            if group in self._groups:
                # Members are not told of to who comes through a front.
                member = {"name": "n1", "state": "active", "role": "head", "address": "", "epoch": 3}
                cluster = {"epoch": 3, "leader": "n1", "members": [member]}
                asked.answer(WELCOME | cluster | {"group": group, "node": f"{group}-n1"})
            else:
                asked.say(Kind.GOODBYE, 0, {"error": NotFound.code, "message": f"no group '{group}'"})
            return
        group, stream = self._of[asked.connection], asked.header.get("stream", "")
        self.asked.append((group, asked.op, stream))
        (self._main if group == "main" else self._other)(group, stream, asked)

    def _main(self, group: str, stream: str, asked: Asked) -> None:
        home = self.elsewhere.get(stream)
        match asked.op:
            case "declare" if home:
                asked.answer({"name": stream, "group": home})
            case "delete" if home and asked.header.get("stand_in"):
                del self.elsewhere[stream]
                asked.answer()
            case "list":
                there = [
                    {"name": name, "group": home, "arguments": ARGUMENTS}
                    for name, home in self.elsewhere.items()
                ]
                asked.answer({"streams": [{"name": "here", "live": 1}, *there]})
            case "partition" | "partitions":
                found = [
                    {"stream": one, "group": at, "arguments": ARGUMENTS} for one, at in self.elsewhere.items()
                ]
                asked.answer({"name": stream, "key": "routing-key", "partitions": found})
            case "unpartition":
                asked.answer()
            case "commit":
                self._refuse(asked, asked.header["operations"][0]["put"])
            case _ if home:
                self._refuse(asked, stream)
            case _:
                self._other(group, stream, asked)

    def _refuse(self, asked: Asked, stream: str) -> None:
        error = StreamElsewhere(stream=stream, group=self.elsewhere[stream])
        asked.refuse(error.code, str(error), stream=error.stream, group=error.group)

    def _other(self, group: str, stream: str, asked: Asked) -> None:
        if asked.op == "commit":
            stream = asked.header["operations"][0]["put"]
        match asked.op:
            case "declare":
                self.made.add((group, stream))
                self.declared[group, stream] = asked.header["arguments"]
                asked.answer({"name": stream})
            case "delete" if (group, stream) in self.made:
                self.made.discard((group, stream))
                asked.answer()
            case _ if stream and group != "main" and (group, stream) not in self.made:
                asked.refuse(NotFound.code, f"no stream '{stream}'")
            case "info":
                asked.answer({"name": stream, "live": 7})
            case "list":
                mine = [name for at, name in self.made if at == group]
                asked.answer({"streams": [{"name": name, "live": 7} for name in mine]})
            case "producer":
                asked.answer({"last": 0})
            case _:
                stored(asked)


@pytest.fixture
def front() -> Front:
    return Front({"orders": "s1"})


@pytest.fixture
def db(front: Front, peer: Start, open_client: Callable[..., Any]) -> Any:
    return open_client(peer(front).url, timeout=5)


def test_a_stream_of_another_group_is_used_there(db: Any, front: Front) -> None:
    orders = db.stream("orders")
    orders.put("k", b"v")

    assert orders.client.group_name == "s1" and orders.info().group == "s1"
    assert front.asked == [
        ("main", "info", "orders"),
        ("s1", "info", "orders"),
        ("s1", "put", "orders"),
        ("s1", "info", "orders"),
    ]


def test_it_is_declared_in_main_and_then_in_its_group(db: Any, front: Front) -> None:
    assert db.stream("orders", create=True, max_age="7D").client.group_name == "s1"
    assert front.asked == [("main", "declare", "orders"), ("s1", "declare", "orders")]


def test_a_list_has_the_streams_of_all_groups(db: Any) -> None:
    assert [(one.name, one.group, one.live) for one in db.streams()] == [
        ("here", "main", 1),
        ("orders", "s1", 7),
    ]


def test_one_that_its_group_does_not_have_yet_is_listed_all_the_same(db: Any, front: Front) -> None:
    front.made.clear()
    assert [(one.name, one.group, one.live) for one in db.streams()] == [
        ("here", "main", 1),
        ("orders", "s1", 0),
    ]


def test_it_is_deleted_in_its_group_and_then_in_main_also_when_that_was_begun_before(
    db: Any, front: Front
) -> None:
    front.made.clear()
    db.delete_stream("orders")
    assert front.asked == [
        ("main", "delete", "orders"),
        ("s1", "delete", "orders"),
        ("main", "delete", "orders"),
    ]
    assert not front.elsewhere


def test_a_transaction_of_another_group_is_refused_with_the_way_to_do_it(db: Any) -> None:
    tx = db.transaction()
    tx.put("orders", "k", b"v")
    with pytest.raises(StreamElsewhere, match=r"lives in group 's1'.*db\.group\('s1'\)"):
        tx.commit()
    with db.group("s1").transaction() as tx:
        tx.put("orders", "k", b"v")
    assert tx.receipt.history == HISTORY


def test_a_group_has_one_client_which_is_closed_with_the_others(db: Any) -> None:
    s1 = db.group("s1")
    assert s1.group("main").group_name == "main" and db.group("s2").group("s1").group_name == "s1"
    assert getattr(s1.group("s1"), "_inner", s1) is getattr(s1, "_inner", s1)
    assert getattr(db.group("s2").group("s1"), "_inner", s1) is getattr(s1, "_inner", s1)
    s1.streams()

    db.close()
    with pytest.raises(ClientClosed):
        s1.streams()
    with pytest.raises(ClientClosed):
        db.group("s1")


def test_a_group_that_was_closed_by_itself_is_opened_again(db: Any) -> None:
    db.group("s1").close()
    assert db.group("s1").streams()


def test_an_unknown_group_is_refused_at_once(
    db: Any, front: Front, peer: Start, open_client: Callable[..., Any]
) -> None:
    with pytest.raises(NotFound, match="no group 's9'"):
        db.group("s9").streams()
    with pytest.raises(NotFound, match="no group 's9'"):
        open_client(peer(Front({})).url, timeout=5, group="s9")


def test_a_client_may_begin_in_a_group(front: Front, peer: Start, open_client: Callable[..., Any]) -> None:
    s1 = open_client(peer(front).url, timeout=5, group="s1")
    s1.stream("orders")
    s1.group("main").streams()
    assert [group for group, _, _ in front.asked] == ["s1", "main", "s1"]


def test_partitions_are_made_and_used_each_in_its_group(peer: Start, open_client: Callable[..., Any]) -> None:
    front = Front({"o-0": "s1", "o-1": "s2", "o-2": "s1"})
    front.made.clear()
    db = open_client(peer(front).url, timeout=5)

    orders = db.partitioned("o", create=3)
    assert front.made == {("s1", "o-0"), ("s2", "o-1"), ("s1", "o-2")}
    assert [one.client.group_name for one in orders.partitions] == ["s1", "s2", "s1"]
    orders.put_many([(f"k{n}", b"v") for n in range(20)])
    with orders.producer("shop") as shop:
        shop.put_many([(f"k{n}", b"v") for n in range(20)])
    puts = sorted((group, stream) for group, op, stream in front.asked if op == "put")
    assert puts == sorted([("s1", "o-0"), ("s2", "o-1"), ("s1", "o-2")] * 2)


def test_the_stream_and_the_name_of_a_partition_go_before_the_next_one_is_touched(
    peer: Start, open_client: Callable[..., Any]
) -> None:
    """A name without its stream is not left behind for longer than needed: a message for it would make the stream again."""
    front = Front({"o-0": "s1", "o-1": "s2", "o-2": "s1"})
    db = open_client(peer(front).url, timeout=5)
    front.made.discard(("s2", "o-1"))  # that was begun before

    db.delete_partitioned("o")

    assert front.asked == [
        ("main", "partitions", "o"),
        *((group, "delete", "o-0") for group in ("s1", "main")),
        *((group, "delete", "o-1") for group in ("s2", "main")),
        *((group, "delete", "o-2") for group in ("s1", "main")),
        ("main", "unpartition", "o"),
    ]
    assert not front.made and not front.elsewhere


# What main names and its group lacks, because whoever made it died in between ---------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for client in (blocking, aio):
        monkeypatch.setattr(client, "MAKE_AFTER_S", 0.0)


def put(orders: Any) -> None:
    orders.put("k", b"v")


def put_under_a_number(orders: Any) -> None:
    with orders.producer("shop") as shop:
        assert not shop.put("k", b"v").duplicate


def commit(orders: Any) -> None:
    stream = orders.of("k")
    with stream.client.transaction() as tx:
        tx.put(stream, "k", b"v")


def ask(orders: Any) -> None:
    orders.info()


def register(orders: Any) -> None:
    orders.partitions[0].register("loader")


def follow(orders: Any) -> None:
    assert list(orders.follow(idle=0.1)) == []


@pytest.mark.parametrize("use", [put, put_under_a_number, commit, ask, register, follow])
@pytest.mark.usefixtures("at_once")
def test_a_partition_that_its_group_lacks_is_made_by_who_first_uses_it(
    peer: Start, open_client: Callable[..., Any], use: Callable[[Any], None]
) -> None:
    front = Front({"o-0": "s1"})
    front.made.clear()
    db = open_client(peer(front).url, timeout=5)

    use(db.partitioned("o"))

    assert front.declared == {("s1", "o-0"): ARGUMENTS}


def test_a_partition_is_looked_for_only_when_it_is_used(peer: Start, open_client: Callable[..., Any]) -> None:
    """A group that is out of reach keeps nobody from the others."""
    front = Front({"o-0": "s1", "o-1": "s9"})
    db = open_client(peer(front).url, timeout=5)

    db.partitioned("o").partitions[0].put("k", b"v")

    assert front.asked == [("main", "partitions", "o"), ("s1", "put", "o-0")]


@pytest.mark.parametrize("group", ["main", "s1"])
@pytest.mark.usefixtures("at_once")
def test_a_stream_that_its_group_lacks_is_made_by_who_opens_it(
    front: Front, peer: Start, open_client: Callable[..., Any], group: str
) -> None:
    front.made.clear()

    orders = open_client(peer(front).url, timeout=5, group=group).stream("orders")

    assert orders.client.group_name == "s1" and front.declared == {("s1", "orders"): ARGUMENTS}
    orders.put("k", b"v")


@pytest.mark.usefixtures("at_once")
def test_a_stream_that_main_does_not_name_is_not_made(
    front: Front, peer: Start, open_client: Callable[..., Any]
) -> None:
    s2 = open_client(peer(front).url, timeout=5, group="s2")
    with pytest.raises(NotFound, match="no stream 'orders'"):
        s2.stream("orders")  # it lives in s1
    assert not front.declared


@pytest.mark.usefixtures("at_once")
def test_a_partition_that_was_seen_and_deleted_is_not_made_again(
    peer: Start, open_client: Callable[..., Any]
) -> None:
    front = Front({"o-0": "s1"})
    orders = open_client(peer(front).url, timeout=5).partitioned("o")
    orders.put("k", b"v")
    front.made.clear()  # and main is about to forget it, too

    with pytest.raises(NotFound, match="no stream 'o-0'"):
        orders.put("k", b"v")

    assert not front.declared


def test_a_partition_that_main_forgets_meanwhile_is_not_made_again(
    peer: Start, open_client: Callable[..., Any]
) -> None:
    """One that is being deleted is gone from its group first."""

    class Deletes(Front):
        def _main(self, group: str, stream: str, asked: Asked) -> None:
            super()._main(group, stream, asked)
            if self.asked.count(("main", "partitions", "o")) == 2:
                self.elsewhere.clear()

    front = Deletes({"o-0": "s1"})
    front.made.clear()
    orders = open_client(peer(front).url, timeout=5).partitioned("o")

    with pytest.raises(NotFound, match="no stream 'o-0'"):
        orders.put("k", b"v")

    assert not front.declared and front.asked[-1] == ("main", "partitions", "o")


@pytest.mark.usefixtures("at_once")
def test_who_may_not_make_a_partition_is_told_that_it_is_missing(
    peer: Start, open_client: Callable[..., Any]
) -> None:
    class Strict(Front):
        def _other(self, group: str, stream: str, asked: Asked) -> None:
            if asked.op == "declare":
                asked.refuse(AccessRefused.code, "no")
            else:
                super()._other(group, stream, asked)

    front = Strict({"o-0": "s1"})
    front.made.clear()
    orders = open_client(peer(front).url, timeout=5).partitioned("o")

    with pytest.raises(NotFound, match="no stream 'o-0'"):
        orders.put("k", b"v")
