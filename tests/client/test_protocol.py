"""One connection as a machine: bytes in, events out."""

from __future__ import annotations

from typing import Any

import pytest
from client.peer import WELCOME
from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.errors import RequestTooLarge, ServerError
from tidemark.client.protocol import Answered, Arrived, Connection, Ended, Opened, Refused, State
from tidemark.errors import Conflict, LoginRefused, NotFound, RemoteProtocolError, StreamReset
from tidemark.wire.stream.frames import PREAMBLE, Frame, FrameReader, Kind, encode_frame


def frame(kind: Kind, request: int, header: dict[str, Any], payload: bytes = b"", last: bool = True) -> bytes:
    return b"".join(encode_frame(kind, request, header, [payload] if payload else [], last))


def sent(connection: Connection) -> list[Frame]:
    """What it has to send, as the broker reads it."""
    data = b"".join(bytes(part) for part in connection.data_to_send())
    return list(FrameReader(1 << 30).feed(data.removeprefix(PREAMBLE)))


def opened() -> Connection:
    connection = Connection("ann", "secret", "/")
    [hello] = sent(connection)
    assert connection.receive(frame(Kind.ANSWER, hello.request, WELCOME)) == [Opened(WELCOME)]
    return connection


def test_it_begins_with_the_preamble_and_a_hello() -> None:
    connection = Connection("ann", "secret", "sales", "tests")
    data = b"".join(bytes(part) for part in connection.data_to_send())

    assert data.startswith(PREAMBLE)
    [hello] = FrameReader(1 << 20).feed(data[len(PREAMBLE) :])
    assert hello.kind is Kind.REQUEST
    assert {key: hello.header[key] for key in ("op", "mechanism", "user", "password", "vhost")} == {
        "op": "hello", "mechanism": "PLAIN", "user": "ann", "password": "secret", "vhost": "sales",
    }  # fmt: skip
    assert hello.header["client"]["name"] == "tests"
    assert connection.data_to_send() == []


def test_answers_come_in_any_order_under_their_numbers() -> None:
    connection = opened()
    first, second = connection.request({"op": "info"}), connection.request({"op": "get"}, [b"k"])
    assert [(one.request, one.header["op"], bytes(one.payload)) for one in sent(connection)] == [
        (first, "info", b""), (second, "get", b"k"),
    ]  # fmt: skip

    events = connection.receive(
        frame(Kind.DATA, second, {"count": 1}, b"row", last=False)
        + frame(Kind.ANSWER, second, {"found": True})
        + frame(Kind.ERROR, first, {"error": "not-found", "message": "no stream 'x'"})
    )

    arrived, answered, refused = events
    assert isinstance(arrived, Arrived) and bytes(arrived.payload) == b"row" and arrived.request == second
    assert isinstance(answered, Answered) and answered.header == {"found": True}
    assert isinstance(refused, Refused) and refused.request == first
    assert isinstance(refused.error, NotFound) and str(refused.error) == "no stream 'x'"


@given(st.lists(st.integers(1, 400), max_size=20))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    connection = opened()
    number = connection.request({"op": "read"})
    data = frame(Kind.DATA, number, {"count": 1}, b"x" * 300, last=False) + frame(
        Kind.ANSWER, number, {"m": 1}
    )
    events: list[Any] = []
    for cut in [*cuts, len(data)]:
        events += connection.receive(data[:cut])
        data = data[cut:]

    assert [type(event) for event in events] == [Arrived, Answered]
    assert bytes(events[0].payload) == b"x" * 300


def test_an_error_of_the_broker_is_the_same_class_with_the_same_facts() -> None:
    connection = opened()
    number = connection.request({"op": "put"})
    facts = {"stream": "s", "key": "aw==", "expected": 3, "current": 7}
    header = {"error": Conflict.code, "message": "…", "reason": "", **facts}

    [refused] = connection.receive(frame(Kind.ERROR, number, header))

    assert isinstance(refused, Refused) and isinstance(refused.error, Conflict)
    assert (refused.error.key, refused.error.expected, refused.error.current) == (b"k", 3, 7)


def test_an_error_that_lacks_a_fact_or_is_unknown_keeps_its_sentence() -> None:
    connection = opened()
    for code in (StreamReset.code, "of.the-future"):
        number = connection.request({"op": "follow"})
        [refused] = connection.receive(frame(Kind.ERROR, number, {"error": code, "message": "start over"}))
        assert isinstance(refused, Refused) and isinstance(refused.error, ServerError)
        assert str(refused.error) == f"start over ({code})"


def test_a_refused_login_ends_the_connection() -> None:
    connection = Connection("ann", "wrong", "/")
    [ended] = connection.receive(
        frame(Kind.GOODBYE, 0, {"error": LoginRefused.code, "message": "the login was refused"})
    )
    assert isinstance(ended, Ended) and isinstance(ended.error, LoginRefused)
    assert connection.state is State.CLOSED


@pytest.mark.parametrize(
    "data",
    [
        frame(Kind.GOODBYE, 0, {"message": "closing"}),
        frame(Kind.ANSWER, 77, {}),
        frame(Kind.REQUEST, 1, {"op": "hello"}),
        b"AMQP\x00\x00\x09\x01" * 3,
    ],
    ids=["goodbye", "answer-to-nothing", "request", "another-protocol"],
)
def test_whatever_ends_the_connection_names_what_has_no_answer(data: bytes) -> None:
    connection = opened()
    open_ones = [connection.request({"op": "put"}) for _ in range(3)]
    connection.receive(frame(Kind.ANSWER, open_ones[1], {}))

    [ended] = connection.receive(data)

    assert isinstance(ended, Ended) and ended.unanswered == [open_ones[0], open_ones[2]]
    assert connection.lost("again") == []


def test_a_socket_that_ends_is_an_end() -> None:
    connection = opened()
    [ended] = connection.lost("Connection reset by peer")
    assert isinstance(ended, Ended) and isinstance(ended.error, RemoteProtocolError)
    assert str(ended.error) == "Connection reset by peer"


def test_a_ping_is_answered() -> None:
    connection = opened()
    assert connection.receive(frame(Kind.PING, 0, {}, last=False)) == []
    assert [one.kind for one in sent(connection)] == [Kind.PONG]


def test_credit_is_granted_only_while_a_request_is_open() -> None:
    connection = opened()
    number = connection.request({"op": "follow"})
    sent(connection)
    connection.credit(number, 500)
    assert [(one.kind, one.request, one.header) for one in sent(connection)] == [
        (Kind.CREDIT, number, {"bytes": 500})
    ]

    connection.receive(frame(Kind.ANSWER, number, {}))
    connection.credit(number, 500)
    assert sent(connection) == []


def test_a_dropped_request_is_closed_and_what_still_comes_is_ignored() -> None:
    connection = opened()
    number = connection.request({"op": "follow"})
    sent(connection)

    connection.drop(number)

    [closing] = sent(connection)
    assert closing.header == {"op": "close", "request": number}
    late = frame(Kind.DATA, number, {"count": 1}, b"row", last=False) + frame(
        Kind.ANSWER, number, {"closed": True}
    )
    assert connection.receive(late + frame(Kind.ANSWER, closing.request, {})) == []
    [ended] = connection.receive(frame(Kind.DATA, number, {}))
    assert isinstance(ended, Ended), "after its last frame it is as unknown as any other number"


def test_an_answer_without_the_last_flag_is_not_the_end() -> None:
    connection = opened()
    number = connection.request({"op": "follow"})
    assert connection.receive(frame(Kind.ANSWER, number, {}, last=False)) == []
    [arrived] = connection.receive(frame(Kind.DATA, number, {"count": 0}, last=False))
    assert isinstance(arrived, Arrived)


def test_a_request_over_the_brokers_limit_is_refused_before_it_is_sent() -> None:
    connection = opened()
    with pytest.raises(RequestTooLarge, match="put it in parts"):
        connection.request({"op": "put"}, [b"x" * (1 << 20)])
    assert sent(connection) == []
