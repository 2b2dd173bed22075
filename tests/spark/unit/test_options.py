"""Options: what is allowed, and the sentence for what is not."""

from __future__ import annotations

import pytest

from tidemark_spark.errors import OptionError
from tidemark_spark.options import READ, ByShard, Mode, Moment, Option, count, parse_options, read_options

BASE = {"tidemark.url": "tidemark://guest:secret@h:5672,h2/", "subscribe": "orders"}


def refused(mode: Mode | None = "stream", base: dict[str, str] = BASE, **given: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_options({**base, **given}, mode)
    return str(caught.value)


def test_what_was_not_given_has_its_default() -> None:
    options = read_options(BASE, "stream")
    assert (options.stream, options.start, options.lease_s, options.retry_s) == (
        "orders",
        "earliest",
        3600,
        120,
    )
    assert options.fail_on_data_loss and not options.headers
    assert read_options(BASE, "batch").lease_s == 3600
    assert options.batch_bytes == 1 << 20


def test_case_does_not_matter_because_spark_forgets_it() -> None:
    options = read_options({**BASE, "MAXOFFSETSPERTRIGGER": "1_000", "failondataloss": "FALSE"}, "stream")
    assert options.rows_max == 1000 and not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("500ms", 0.5), ("90s", 90), ("15m", 900), ("2 hours", None), ("1h", 3600)],
)
def test_a_time_has_a_unit(text: str, seconds: float | None) -> None:
    if seconds is None:
        assert "must be a time such as 500ms, 90s, 15m or 1h" in refused(retryTimeout=text)
    else:
        assert read_options({**BASE, "retryTimeout": text}, "stream").retry_s == seconds


def test_a_misspelt_option_is_named_with_the_one_that_was_meant() -> None:
    assert refused(maxOffsetPerTriger="5") == (
        "option 'maxOffsetPerTriger': there is no such option; did you mean maxOffsetsPerTrigger?"
    )
    assert "did you mean startingOffsets?" in refused(startingoffset="earliest")


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    sentence = refused(color="blue")
    assert "option 'color': there is no such option; there are arrowBatchBytes" in sentence
    assert "name the stream with option subscribe" in refused(path="orders")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("maxOffsetsPerTrigger", "0", "must be a whole number, 1 or more, not '0'"),
        ("maxOffsetsPerTrigger", "many", "must be a whole number"),
        ("maxBytesPerTrigger", "5 apples", "must be a size such as 1048576, 512k, 2m or 1g"),
        ("failOnDataLoss", "yes", "must be true or false, not 'yes'"),
        ("startingOffsets", "begin", 'must be earliest, latest, group, or JSON such as {"0": 900'),
        ("startingOffsets", '{"0": "x"}', "is not a shard with a sequence"),
        ("startingOffsets", '{"x": 1, "y": 2}', "is not a shard with a sequence"),
        ("startingOffsets", "[]", "must be earliest, latest, group, or JSON"),
        ("startingOffsets", '{"bills": {"0": 1}}', "speaks of stream 'bills', but 'orders' is read"),
        ("startingTimestamp", "yesterday", "must be milliseconds since 1970 or an ISO time"),
        ("tidemark.url", "kafka://h", "is not a URL such as tidemark://user:password@host:5672/vhost"),
        ("tidemark.url", "tidemark://h:99999/", "is not followed by a port from 1 to 65535"),
        ("groupId", "g" * 181, "1 to 180 bytes"),
        ("pinLease", "1s", "at least 10s"),
        ("subscribe", " ", "must not be empty"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    sentence = refused(**{name: value})
    assert f"option '{name}'" in sentence and allowed in sentence


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"startingOffsets": "latest", "startingTimestamp": "5"},
            "either startingTimestamp or startingOffsets",
        ),
        ({"asOf": "5", "endingOffsets": "latest"}, "option 'asOf': cannot be combined with endingoffsets"),
        ({"asOf": "5", "diff": "1,2"}, "cannot be combined with"),
        ({"diff": "9,2"}, "must be two sequences, the older one first"),
        ({"endingOffsets": "earliest"}, "must be latest, or JSON"),
        ({"endingOffsets": '{"0": -2}'}, "cannot end at the beginning"),
        ({"minPartitions": "9", "maxPartitions": "3"}, "9 is more than maxPartitions, 3"),
        ({"maxOffsetsPerTrigger": "5"}, "is not known here (rows of a micro-batch at most)"),
    ],
)
def test_what_makes_no_sense_in_a_batch_read_is_refused(given: dict[str, str], problem: str) -> None:
    assert problem in refused("batch", **given)


def test_a_stream_and_a_broker_must_be_named() -> None:
    assert "option 'tidemark.url': is needed" in refused(base={"subscribe": "orders"})
    assert "option 'subscribe': is needed" in refused(base={"tidemark.url": "tidemark://h/"})
    assert "either subscribe (a stream) or queue" in refused(queue="q", groupId="g")
    assert "option 'groupId': is needed" in refused(base={"tidemark.url": "tidemark://h/", "queue": "q"})
    assert "option 'groupId': is needed" in refused(startingOffsets="group")


def test_places_and_times_are_read() -> None:
    assert read_options({**BASE, "startingOffsets": '{"1": 5, "0": ["ab", -1]}'}, "stream").start == ByShard(
        ((0, "ab", -1), (1, None, 5))
    )
    assert read_options({**BASE, "asOf": "1970-01-01T00:00:01"}, "batch").as_of == Moment(1000)
    assert read_options({**BASE, "asOf": "1970-01-01T01:00:01+01:00"}, "batch").as_of == Moment(1000)
    assert read_options({**BASE, "asOf": "12"}, "batch").as_of == 12
    assert read_options({**BASE, "diff": "3, 9"}, "batch").diff == (3, 9)


def test_a_message_about_a_broker_shows_no_password() -> None:
    assert read_options(BASE, "stream").place == "h:5672, h2:5672 (virtual host /)"
    assert "secret" not in refused(**{"tidemark.url": "amqp://guest:secret@h/"})


def test_others_can_have_a_table_of_their_own() -> None:
    table = [Option("rows", count, 5, "how many")]
    assert parse_options({}, table) == {"rows": 5}
    assert parse_options({"ROWS": "7"}, table) == {"rows": 7}
    with pytest.raises(OptionError, match="did you mean rows"):
        parse_options({"row": "7"}, table)


def test_every_option_is_told_about() -> None:
    assert all(option.about and option.modes for option in READ)
    assert len({option.name.lower() for option in READ}) == len(READ)


@pytest.mark.parametrize(
    "where", [{"startingOffsets": "latest"}, {"startingOffsets": '{"0": 5}'}, {"startingTimestamp": "5"}]
)
def test_a_queue_is_read_from_what_was_taken_and_from_nowhere_else(where: dict[str, str]) -> None:
    """What was taken is acknowledged: a query that began behind it would lose it."""
    base = {"tidemark.url": "tidemark://h/", "queue": "jobs", "groupId": "g"}
    assert read_options(base, "stream").start == "group"
    assert f"cannot be combined with {next(iter(where)).lower()}" in refused(base=base, **where)
