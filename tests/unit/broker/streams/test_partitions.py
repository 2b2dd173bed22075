"""Streams of other groups, seen from main, and partitioned streams: what is declared, where it lives, who finds it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from builders import RecordingSink, a_broker, a_session

from tidemark.broker.broker import Broker
from tidemark.broker.queue import Queue
from tidemark.broker.streams import partitions
from tidemark.broker.streams.commit import Batch, Take
from tidemark.broker.streams.session import StreamSession
from tidemark.errors import (
    AccessRefused,
    NotAllowed,
    NotAStream,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    StreamElsewhere,
)
from tidemark.model.partitions import partition_of
from tidemark.model.wiring import FRONT_USER, PermissionSpec, PolicySpec, UserSpec

GROUPS = {"s1": "chain", "s2": "chain", "s3": "chain"}


def a_main(groups: dict[str, str] | None = None) -> Broker:
    broker = a_broker()
    broker.mode, broker.other_groups = "standby", GROUPS if groups is None else groups
    return broker


def streams_of(broker: Broker, user: str = "guest") -> StreamSession:
    return StreamSession(a_session(broker, user=user) if user != "guest" else a_session(broker))


# A stream in another group -----------------------------------------------------------------------------------------


def test_a_stream_of_another_group_has_a_stand_in_here_that_keeps_nothing() -> None:
    broker = a_main()
    streams = streams_of(broker)
    streams.declare("s", {"x-group": "s2", "x-stream-key": "routing-key", "x-max-age": "1h"})
    stand_in = broker.vhosts["/"].queues["s"]
    assert type(stand_in) is Queue and stand_in.passing and stand_in.spec.group == "s2"
    assert streams.elsewhere("s") == "s2" and streams.names() == ["s"]
    streams.declare("s", {"x-stream-key": "routing-key"})
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-stream-key'"):
        streams.declare("s", {"x-stream-key": "none"})


def test_whoever_uses_it_here_is_told_where_it_lives() -> None:
    streams = streams_of(a_main())
    streams.declare("s", {"x-group": "s2"})
    for use in (streams.describe, streams.snapshot, streams.purge, streams.delete):
        with pytest.raises(StreamElsewhere, match="lives in group 's2'") as caught:
            use("s")
        assert caught.value.group == "s2"


def test_what_waits_in_the_stand_in_is_taken_by_fronts_only() -> None:
    """It is confirmed and has not got to the stream yet, where it would stay when it is read."""
    broker = a_main()
    streams = streams_of(broker)
    streams.declare("s", {"x-group": "s2"})
    session = streams.session
    for take in (
        session.get,
        session.purge_queue,
        lambda name: session.consume(RecordingSink(1), name, "tag"),
    ):
        with pytest.raises(StreamElsewhere):
            take("s")
    own = broker.open_session("/", FRONT_USER, None, "front", by_front=True, own=True)
    assert own.get("s")[1] is None
    own.consume(RecordingSink(1), "s", "tag")


def test_nothing_is_taken_from_queues_that_live_elsewhere() -> None:
    broker = a_main()
    streams = streams_of(broker)
    streams.declare("into")
    streams.declare("s", {"x-group": "s2"})
    streams.session.declare_queue("q", durable=True, arguments={"x-group": "s2"})
    for queue, error in (("s", StreamElsewhere), ("q", NotAllowed)):
        with pytest.raises(error, match="lives in group 's2'"):
            streams.copier(Batch([Take(queue, "into", 10)]))


def test_its_name_here_goes_only_when_that_is_meant() -> None:
    broker = a_main()
    streams = streams_of(broker)
    streams.declare("s", {"x-group": "s2"})
    with pytest.raises(PreconditionFailed, match="lives in group 's2': delete it through a front"):
        streams.delete("s", stand_in=True)
    StreamSession(a_session(broker), by_front=True).delete("s", stand_in=True)
    assert "s" not in broker.vhosts["/"].queues


def test_the_name_of_one_that_was_declared_again_meanwhile_stays() -> None:
    broker = a_main()
    streams = StreamSession(a_session(broker), by_front=True)
    streams.declare("s", {"x-group": "s2"})
    with pytest.raises(StreamElsewhere) as caught:
        streams.delete("s")
    broker.delete_queue(broker.vhosts["/"].queues["s"])
    streams.declare("s", {"x-group": "s2"})
    with pytest.raises(PreconditionFailed, match="was deleted and made again"):
        streams.delete("s", stand_in=True, number=caught.value.number)
    streams.delete("s", stand_in=True, number=broker.vhosts["/"].queues["s"].number)
    assert "s" not in broker.vhosts["/"].queues


def test_the_name_of_one_whose_group_is_gone_can_be_deleted_anywhere() -> None:
    broker = a_main()
    streams = streams_of(broker)
    streams.declare("s", {"x-group": "s2"})
    broker.other_groups = {"s1": "chain"}
    streams.delete("s", stand_in=True)
    assert "s" not in broker.vhosts["/"].queues


def test_a_stand_in_of_a_queue_is_no_stream_at_all() -> None:
    broker = a_main()
    streams = streams_of(broker)
    a_session(broker).declare_queue("q", durable=True, arguments={"x-group": "s2"})
    with pytest.raises(NotAStream):
        streams.describe("q")
    with pytest.raises(NotAStream):
        streams.declare("q")
    assert streams.elsewhere("q") == "" and streams.names() == []


def test_limits_of_a_stream_are_not_those_of_its_stand_in() -> None:
    """What waits there is on its way: nothing of it may be dropped."""
    broker = a_main()
    broker.put_policy(PolicySpec("/", "p", ".*", "all", 0, {"max-length": 1, "message-ttl": 1}))
    streams_of(broker).declare("s", {"x-group": "s2", "x-max-length-bytes": 1})
    stand_in = broker.vhosts["/"].queues["s"]
    assert stand_in.policy.length_max is None and stand_in.policy.length_bytes_max is None
    assert stand_in.policy.message_ttl_ms is None


def test_a_policy_sends_streams_to_a_group() -> None:
    broker = a_main()
    broker.put_policy(PolicySpec("/", "p", ".*", "all", 0, {"group": "s3"}))
    streams = streams_of(broker)
    streams.declare("s")
    assert streams.elsewhere("s") == "s3"


# Partitioned streams -------------------------------------------------------------------------------------------------


def test_partitions_go_round_the_groups_other_than_main() -> None:
    """K-52: one role a partition; with groups whose leaders are on different nodes each node leads as many."""
    broker = a_main()
    streams = streams_of(broker)
    partitions.declare(streams, "orders", 6, None, {"x-stream-key": "routing-key"})
    found = partitions.find(streams, "orders")
    assert [(one.stream, one.group) for one in found.partitions] == [
        (f"orders-{n}", f"s{n % 3 + 1}") for n in range(6)
    ]
    assert found.key == "routing-key"


def test_partitions_live_where_they_are_wanted() -> None:
    streams = streams_of(a_main())
    partitions.declare(streams, "orders", 3, ["s3", "main"])
    assert [one.group for one in partitions.find(streams, "orders").partitions] == ["s3", "main", "s3"]
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-group' for queue 'orders-0'"):
        partitions.declare(streams, "orders", 3, ["s1"])
    with pytest.raises(PreconditionFailed, match="no group 's9'"):
        partitions.declare(streams, "others", 2, ["s1", "s9"])
    assert "others" not in streams.session.vhost.exchanges


def test_a_broker_without_other_groups_has_all_of_them() -> None:
    broker = a_broker()
    streams = streams_of(broker)
    partitions.declare(streams, "orders", 3)
    assert [one.group for one in partitions.find(streams, "orders").partitions] == ["main"] * 3
    assert all(broker.vhosts["/"].queues[f"orders-{n}"].keeps for n in range(3))


def test_declaring_again_finishes_what_was_cut_short_and_changes_nothing_else() -> None:
    broker = a_main()
    streams = streams_of(broker)
    partitions.declare(streams, "orders", 4)
    before = partitions.find(streams, "orders")
    session = streams.session
    session.unbind_queue("orders-1", "orders", "1")
    broker.delete_queue(broker.vhosts["/"].queues["orders-2"])
    with pytest.raises(
        NotFound, match=r"partition 1 of stream 'orders'.*declare the partitioned stream again"
    ):
        partitions.find(streams, "orders")
    left = partitions.find(streams, "orders", partial=True)
    assert [one.stream for one in left.partitions] == ["orders-0", "orders-3"]
    broker.other_groups = {**GROUPS, "s4": "chain"}
    partitions.declare(streams, "orders", 4)
    again = partitions.find(streams, "orders")
    assert [one.group for one in again.partitions] == [one.group for one in before.partitions]
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-partitions'"):
        partitions.declare(streams, "orders", 5)


@pytest.mark.parametrize("what", ["limit", "permission", "a queue in the way"])
def test_a_declaration_that_is_refused_in_the_middle_leaves_nothing(what: str) -> None:
    """Half of it would confirm messages and drop them."""
    broker = a_broker()
    broker.put(UserSpec("alice", "", ()))
    broker.put(PermissionSpec("alice", "/", "^orders(-[012])?$", ".*", ".*"))
    match what:
        case "limit":
            broker.set_vhost_limit("/", "max-queues", 2)
        case "a queue in the way":
            a_session(broker).declare_queue("orders-3", durable=True)
    before = set(broker.vhosts["/"].queues)
    user = "alice" if what == "permission" else "guest"
    with pytest.raises((AccessRefused, PreconditionFailed, NotAStream)):
        partitions.declare(streams_of(broker, user), "orders", 4)
    assert "orders" not in broker.vhosts["/"].exchanges and set(broker.vhosts["/"].queues) == before


def test_another_group_has_no_partitioned_streams() -> None:
    broker = a_broker()
    broker.group = "s1"
    session = broker.open_session(
        "/", "alice", None, "front", patterns=PermissionSpec("alice", "/", ".*", ".*", ".*")
    )
    streams = StreamSession(session)
    for ask in (partitions.find, partitions.delete, lambda one, name: partitions.declare(one, name, 2)):
        with pytest.raises(NotImplementedHere, match="declared in the group 'main'"):
            ask(streams, "orders")


def test_whoever_finds_a_partition_missing_in_its_group_is_told_what_it_was_declared_with() -> None:
    streams = streams_of(a_main())
    partitions.declare(streams, "orders", 1, None, {"x-stream-key": "routing-key", "x-stream-shards": 4})
    [found] = partitions.find(streams, "orders").partitions
    assert found.arguments == {
        "x-queue-type": "stream", "x-stream-key": "routing-key", "x-stream-shards": 4, "x-group": "s1"
    }  # fmt: skip


def test_a_stream_that_lives_there_already_may_be_asked_for_by_its_group() -> None:
    """A broker that stood alone and has got groups since: what it has stays in main."""
    broker = a_broker()
    streams = streams_of(broker)
    partitions.declare(streams, "orders", 2)
    partitions.declare(streams, "orders", 2, ["main"])
    broker.mode, broker.other_groups = "standby", GROUPS
    partitions.declare(streams, "orders", 2)
    assert [one.group for one in partitions.find(streams, "orders").partitions] == ["main", "main"]


def test_a_name_is_that_of_a_stream_or_of_a_partitioned_one() -> None:
    streams = streams_of(a_broker())
    partitions.declare(streams, "orders", 2)
    with pytest.raises(PreconditionFailed, match="is a partitioned stream"):
        streams.declare("orders")
    streams.declare("plain")
    with pytest.raises(PreconditionFailed, match="is a queue or stream"):
        partitions.declare(streams, "plain", 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-stream-key": "message-id"}, "cannot be partitioned by message-id"),
        ({"x-group": "s1"}, "as 'groups'"),
        ({"x-stream-key": "colour"}, "x-stream-key"),
        ({"x-max-age": "long"}, "x-max-age"),
    ],
)
def test_what_cannot_be_partitioned_leaves_nothing(arguments: dict[str, Any], words: str) -> None:
    broker = a_main()
    with pytest.raises(PreconditionFailed, match=words):
        partitions.declare(streams_of(broker), "orders", 2, None, arguments)
    assert "orders" not in broker.vhosts["/"].exchanges and not broker.vhosts["/"].queues


@pytest.mark.parametrize(("size", "count", "fits"), [(253, 10, True), (253, 11, False), (254, 2, False)])
def test_the_names_of_all_partitions_must_be_such_as_protocols_can_say(
    size: int, count: int, fits: bool
) -> None:
    broker = a_main()
    name = "ü" + "o" * (size - 2)
    if fits:
        partitions.declare(streams_of(broker), name, count)
        assert max(len(queue.encode()) for queue in broker.vhosts["/"].queues) == 255
        return
    with pytest.raises(PreconditionFailed, match=r"256 bytes, at most 255 .* shorter by 1$"):
        partitions.declare(streams_of(broker), name, count)
    assert name not in broker.vhosts["/"].exchanges and not broker.vhosts["/"].queues


def test_who_publishes_to_the_name_reaches_the_partition_of_the_key() -> None:
    """K-53: messages of one key are in one partition, so their order holds; there is none between partitions."""
    broker = a_broker()
    partitions.declare(streams_of(broker), "orders", 3, None, {"x-stream-key": "routing-key"})
    vhost, counts = broker.vhosts["/"], Counter[str]()
    for number in range(300):
        key = f"k{number}"
        [reached] = vhost.route_message("orders", key, {})
        assert reached.name == f"orders-{partition_of(key.encode(), 3)}"
        counts[reached.name] += 1
    assert len(counts) == 3


def test_an_exchange_of_another_kind_is_no_partitioned_stream() -> None:
    streams = streams_of(a_broker())
    for name in ("nothing", "amq.direct"):
        with pytest.raises(NotFound, match="no partitioned stream"):
            partitions.find(streams, name)
        with pytest.raises(NotFound, match="no partitioned stream"):
            partitions.delete(streams, name)


def test_the_name_is_forgotten_and_streams_stay() -> None:
    broker = a_broker()
    streams = streams_of(broker)
    partitions.declare(streams, "orders", 2)
    partitions.delete(streams, "orders")
    assert "orders" not in broker.vhosts["/"].exchanges and "orders-0" in broker.vhosts["/"].queues


def test_who_may_neither_read_nor_write_does_not_see_it() -> None:
    broker = a_broker()
    partitions.declare(streams_of(broker), "orders", 2)
    for user, write, read in (("writer", "^orders$", ""), ("reader", "", "^orders$"), ("nobody", "", "")):
        broker.put(UserSpec(user, "", ()))
        broker.put(PermissionSpec(user, "/", "", write, read))
    for user in ("writer", "reader"):
        assert len(partitions.find(streams_of(broker, user), "orders").partitions) == 2
    with pytest.raises(AccessRefused):
        partitions.find(streams_of(broker, "nobody"), "orders")
    with pytest.raises(AccessRefused):
        partitions.delete(streams_of(broker, "writer"), "orders")
