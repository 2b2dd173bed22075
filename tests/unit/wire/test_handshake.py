from __future__ import annotations

import itertools

import pytest

from tidemark.errors import (
    CommandInvalid,
    FrameError,
    NotAllowed,
    RemoteProtocolError,
    SyntaxFault,
)
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.amqp091.handshake import (
    TRANSITIONS,
    Accepted,
    Event,
    Handshake,
    ProtocolHeader,
    Refused,
    State,
    header_fits,
)
from tidemark.wire.amqp091.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from tidemark.wire.amqp091.sasl import Credentials

OFFER = ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60)
HEADER = ProtocolHeader(PROTOCOL_HEADER)
START_OK = ConnectionStartOk(mechanism="PLAIN", response=b"\x00guest\x00secret")
BARE_START_OK = ConnectionStartOk(mechanism="PLAIN")
SECURE_OK = ConnectionSecureOk(b"\x00guest\x00secret")
TUNE_OK = ConnectionTuneOk(2047, 131072, 30)
OPEN = ConnectionOpen("/")

EVENTS: list[Event] = [HEADER, START_OK, SECURE_OK, Accepted("guest"), Refused("no"), TUNE_OK, OPEN]
WAYS: dict[State, list[Event]] = {
    State.AWAIT_HEADER: [],
    State.AWAIT_START_OK: [HEADER],
    State.AWAIT_SECURE_OK: [HEADER, BARE_START_OK],
    State.AWAIT_VERDICT: [HEADER, START_OK],
    State.AWAIT_TUNE_OK: [HEADER, START_OK, Accepted("guest")],
    State.AWAIT_OPEN: [HEADER, START_OK, Accepted("guest"), TUNE_OK],
    State.AWAIT_ADMISSION: [HEADER, START_OK, Accepted("guest"), TUNE_OK, OPEN],
    State.OPEN: [HEADER, START_OK, Accepted("guest"), TUNE_OK, OPEN, Accepted("guest")],
    State.REFUSED: [HEADER, START_OK, Refused("no")],
}
WRONG_TURNS = [
    (state, event)
    for state, event in itertools.product(State, EVENTS)
    if (state, type(event)) not in TRANSITIONS
]


def handshake_in(state: State) -> Handshake:
    handshake = Handshake(OFFER, {"product": "Tidemark"})
    for event in WAYS[state]:
        handshake.receive(event)
    assert handshake.state is state
    return handshake


def name_of(value: object) -> str:
    return value.name if isinstance(value, State) else type(value).__name__


@pytest.mark.parametrize(("state", "event"), WRONG_TURNS, ids=name_of)
def test_every_step_out_of_order_is_refused_and_leaves_the_state_alone(state: State, event: Event) -> None:
    handshake = handshake_in(state)
    with pytest.raises(CommandInvalid, match="not expected"):
        handshake.receive(event)
    assert handshake.state is state


@pytest.mark.parametrize(("state", "kind"), TRANSITIONS, ids=str)
def test_every_step_of_the_table_leads_where_the_table_says(state: State, kind: type[Event]) -> None:
    [event] = [event for event in EVENTS if type(event) is kind]
    handshake = handshake_in(state)
    handshake.receive(event)
    assert handshake.state is TRANSITIONS[state, kind][0]


def test_a_whole_handshake_gives_the_replies_of_the_specification() -> None:
    handshake = Handshake(OFFER, {"product": "Tidemark"}, ("PLAIN", "EXTERNAL"))

    start = handshake.receive(HEADER)
    assert start == ConnectionStart(0, 9, {"product": "Tidemark"}, b"PLAIN EXTERNAL", b"en_US")
    assert handshake.receive(START_OK) is None
    assert handshake.agreed.credentials == Credentials("PLAIN", "guest", b"secret")
    assert handshake.accept("guest") == OFFER
    assert handshake.receive(TUNE_OK) is None
    assert handshake.receive(ConnectionOpen("/prod")) is None
    assert handshake.agreed.virtual_host == "/prod"
    assert handshake.accept() == ConnectionOpenOk()

    assert handshake.state is State.OPEN
    assert handshake.agreed.user == "guest"


def test_a_client_that_waits_to_be_asked_is_asked() -> None:
    handshake = handshake_in(State.AWAIT_START_OK)
    assert handshake.receive(BARE_START_OK) == ConnectionSecure()
    assert handshake.state is State.AWAIT_SECURE_OK

    assert handshake.receive(SECURE_OK) is None
    assert handshake.agreed.credentials == Credentials("PLAIN", "guest", b"secret")


def test_a_client_that_uses_its_certificate_is_not_asked() -> None:
    handshake = handshake_in(State.AWAIT_START_OK)
    assert handshake.receive(ConnectionStartOk(mechanism="EXTERNAL")) is None
    assert handshake.agreed.credentials == Credentials("EXTERNAL", "")


@pytest.mark.parametrize("response", [b"", b"guest", b"\x00guest", b"\x00a\x00b\x00c", b"\x00\xff\x00p"])
def test_a_response_that_is_not_of_its_mechanism_leaves_the_state_alone(response: bytes) -> None:
    handshake = handshake_in(State.AWAIT_SECURE_OK)
    with pytest.raises(SyntaxFault):
        handshake.receive(ConnectionSecureOk(response))
    assert handshake.state is State.AWAIT_SECURE_OK
    assert handshake.agreed.credentials is None


def test_an_amqplain_login_is_read_from_its_table() -> None:
    handshake = handshake_in(State.AWAIT_START_OK)
    raw = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x03pa\xff"
    handshake.receive(ConnectionStartOk(mechanism="AMQPLAIN", response=raw))
    assert handshake.agreed.credentials == Credentials("AMQPLAIN", "guest", b"pa\xff")


@pytest.mark.parametrize("raw", [b"\x05LOGINS\x00\x00\x00\x01g", b"\x05LOGINI\x00\x00\x00\x01"])
def test_an_amqplain_login_without_user_or_password_is_refused(raw: bytes) -> None:
    handshake = handshake_in(State.AWAIT_START_OK)
    with pytest.raises(SyntaxFault, match="has no string"):
        handshake.receive(ConnectionStartOk(mechanism="AMQPLAIN", response=raw))


def test_a_mechanism_that_was_not_offered_is_refused() -> None:
    handshake = handshake_in(State.AWAIT_START_OK)
    with pytest.raises(CommandInvalid, match="'SCRAM' was not offered"):
        handshake.receive(ConnectionStartOk(mechanism="SCRAM", response=b"x"))
    assert handshake.state is State.AWAIT_START_OK


def test_a_password_does_not_show_when_credentials_are_printed() -> None:
    assert "secret" not in repr(handshake_in(State.AWAIT_VERDICT).agreed)


def test_a_refused_login_is_told_only_to_a_client_that_understands_it() -> None:
    capable = ConnectionStartOk(
        {"capabilities": {"authentication_failure_close": True}}, "PLAIN", b"\x00g\x00g"
    )
    knowing = handshake_in(State.AWAIT_START_OK)
    knowing.receive(capable)
    assert knowing.refuse("ACCESS_REFUSED") == ConnectionClose(403, "ACCESS_REFUSED")

    assert handshake_in(State.AWAIT_VERDICT).refuse("ACCESS_REFUSED") is None


def test_a_refused_virtual_host_is_a_close_about_open() -> None:
    handshake = handshake_in(State.AWAIT_ADMISSION)
    assert handshake.refuse("no vhost") == ConnectionClose(530, "no vhost", 10, 40)
    assert handshake.state is State.REFUSED


@pytest.mark.parametrize(
    ("wish", "agreed"),
    [
        (ConnectionTuneOk(10, 4096, 5), (10, 4096, 5)),
        (ConnectionTuneOk(0, 0, 0), (2047, 131072, 0)),
        (ConnectionTuneOk(2047, 131072, 65535), (2047, 131072, 65535)),
    ],
)
def test_a_client_may_lower_the_limits_or_leave_them(
    wish: ConnectionTuneOk, agreed: tuple[int, int, int]
) -> None:
    handshake = handshake_in(State.AWAIT_TUNE_OK)
    handshake.receive(wish)
    found = handshake.agreed
    assert (found.channel_max, found.frame_max, found.heartbeat) == agreed


@pytest.mark.parametrize(
    "wish",
    [ConnectionTuneOk(2048, 4096, 0), ConnectionTuneOk(1, 131073, 0), ConnectionTuneOk(1, 4095, 0)],
)
def test_a_client_that_asks_for_more_or_for_tiny_frames_is_refused(wish: ConnectionTuneOk) -> None:
    handshake = handshake_in(State.AWAIT_TUNE_OK)
    with pytest.raises(NotAllowed):
        handshake.receive(wish)
    assert handshake.state is State.AWAIT_TUNE_OK
    assert handshake.agreed.channel_max == handshake.agreed.frame_max == 0


@pytest.mark.parametrize("raw", [b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HT", b""])
def test_another_protocol_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        handshake_in(State.AWAIT_HEADER).receive(ProtocolHeader(raw))
    assert isinstance(caught.value, RemoteProtocolError)


def test_a_header_is_judged_as_soon_as_it_can_be() -> None:
    assert header_fits(b"") is None
    assert header_fits(b"AMQP\x00\x00\x09") is None
    assert header_fits(PROTOCOL_HEADER + b"more") is True
    assert header_fits(memoryview(b"G")) is False
    assert header_fits(b"AMQP\x00\x00\x09\x00") is False
