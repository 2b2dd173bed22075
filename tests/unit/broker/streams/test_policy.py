"""What the arguments of a stream mean."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit.broker.streams.world import StreamWorld

from tidemark.broker.streams.policy import SLOTS, check_stream_arguments, shard_slots
from tidemark.errors import NotAStream, NotFound, PreconditionFailed
from tidemark.model import keys

WHERE = "for queue 'q' in vhost '/'"


def refusal(arguments: dict[str, object], **kind: bool) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        check_stream_arguments("q", "/", arguments, **kind)
    return str(caught.value)


def test_without_arguments_a_stream_keeps_everything_in_one_shard_for_ever() -> None:
    policy = check_stream_arguments("q", "/", {})
    assert (policy.kind, policy.key_kind, policy.shards) == ("stream", keys.NO_KEY, 1)
    assert policy.age_ms_max is None and policy.length_bytes_max is None and policy.pin_bytes_max is None
    assert policy.tombstone_lease_ms == 7 * 86_400_000 and policy.history_ms == 0


@pytest.mark.parametrize(
    ("rule", "kind", "name"),
    [
        ("none", keys.NO_KEY, b""),
        ("routing-key", keys.ROUTING_KEY, b""),
        ("message-id", keys.MESSAGE_ID, b""),
        ("header:order", keys.HEADER, b"order"),
    ],
)
def test_the_key_rule_is_read_and_can_be_written_again(rule: str, kind: int, name: bytes) -> None:
    policy = check_stream_arguments("q", "/", {"x-stream-key": rule})
    assert (policy.key_kind, policy.key_name, policy.key_rule) == (kind, name, rule)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
def test_a_stream_cannot_be_what_ends_by_itself(kind: dict[str, bool], what: str) -> None:
    assert refusal({}, **kind) == f"invalid property '{what}' {WHERE}"


@pytest.mark.parametrize(
    "argument", ["x-message-ttl", "x-expires", "x-max-priority", "x-overflow", "x-max-length"]
)
def test_arguments_of_other_queues_are_refused(argument: str) -> None:
    assert refusal({argument: 1}) == f"invalid arg '{argument}' {WHERE} of queue type rabbit_stream_queue"


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("x-max-age", "7X", "invalid_max_age; write a number and Y, M, D, h, m or s: '7D', '12h'"),
        ("x-max-age", "0s", "invalid_max_age; write a number and Y, M, D, h, m or s: '7D', '12h'"),
        ("x-max-age", "", "invalid_max_age; write a number and Y, M, D, h, m or s: '7D', '12h'"),
        ("x-max-age", 7, "{unacceptable_type,signedint}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-max-length-bytes", True, '"expected integer, got bool"'),
        ("x-initial-cluster-size", 0, "{value_zero,0}"),
        ("x-queue-leader-locator", "foo", "invalid_queue_locator_arg"),
        ("x-stream-shards", 0, '"expected 1 to 1024, got 0"'),
        ("x-stream-shards", 1025, '"expected 1 to 1024, got 1025"'),
        (
            "x-stream-key",
            "header:",
            "\"expected 'none', 'log', 'routing-key', 'message-id' or 'header:<name>'\"",
        ),
        (
            "x-stream-key",
            "body",
            "\"expected 'none', 'log', 'routing-key', 'message-id' or 'header:<name>'\"",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_problem(argument: str, value: object, problem: str) -> None:
    assert refusal({argument: value}) == f"invalid arg '{argument}' {WHERE}: {problem}"


def test_spans_are_written_as_in_rabbitmq() -> None:
    spans = {"10s": 10_000, "30m": 1_800_000, "12h": 43_200_000, "7D": 604_800_000, "1M": 2_592_000_000}
    for text, ms in spans.items():
        assert check_stream_arguments("q", "/", {"x-max-age": text}).age_ms_max == ms


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 1024])
def test_shards_are_ranges_that_cover_every_slot_once(count: int) -> None:
    ranges = [shard_slots(shard, count) for shard in range(count)]
    assert ranges[0][0] == 0 and ranges[-1][1] == SLOTS
    assert all(before[1] == after[0] for before, after in pairwise(ranges))


def test_a_stream_grows_by_declaring_it_with_more_shards_and_keeps_them_over_a_restart() -> None:
    world = StreamWorld()
    world.declare(shards=2)

    world.session.declare("s", {"x-stream-shards": 5})
    world.turn()

    assert world.stream().policy.shards == 5
    assert world.crash().stream().policy.shards == 5


def test_a_stream_does_not_shrink() -> None:
    world = StreamWorld()
    stream = world.declare(shards=4)
    with pytest.raises(PreconditionFailed, match="received 3 but current is 4; a stream can only get more"):
        world.session.declare("s", {"x-stream-shards": 3})
    assert stream.policy.shards == 4


def test_declaring_again_compares_what_is_said_and_nothing_else() -> None:
    world = StreamWorld()
    world.declare(history=1000)
    world.session.declare("s", {})
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-stream-history'"):
        world.session.declare("s", {"x-stream-history": 2000})


def test_a_queue_is_not_a_stream_and_a_name_without_either_is_not_found() -> None:
    world = StreamWorld()
    world.session.session.declare_queue("q", durable=True)
    with pytest.raises(NotAStream, match="'q' is not a stream; declare one with x-queue-type"):
        world.session.describe("q")
    with pytest.raises(NotFound):
        world.session.describe("nothing")
    assert world.session.names() == []
