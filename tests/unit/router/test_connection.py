"""A client of a front where main is the only group: the handshake, what is passed on, and every way to end."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Content, publish_frames
from unit.router.harness import Front

from tidemark.errors import ConnectionForced
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import encode_method


def start_ok(user: str = "guest", password: str = "guest", **options: object) -> methods.ConnectionStartOk:
    capabilities = {"authentication_failure_close": True} | options
    return methods.ConnectionStartOk(
        client_properties={"capabilities": capabilities, "product": "test"},
        mechanism="PLAIN",
        response=b"\0%b\0%b" % (user.encode(), password.encode()),
        locale="en_US",
    )


def test_a_client_is_let_in_by_main_and_uses_it_as_if_there_were_no_front() -> None:
    front = Front()
    client = front.open()
    client.declare("q", durable=True)
    assert isinstance(client.ask(1, methods.ConfirmSelect()), methods.ConfirmSelectOk)
    client.publish(1, "q", b"one", b"two", properties=PERSISTENT)
    assert client.read_all() == [methods.BasicAck(2, True)]
    client.send(1, methods.BasicConsume(queue="q", consumer_tag="c"))
    answers = client.read_all()
    assert answers[0] == methods.BasicConsumeOk("c")
    assert [each.body for each in answers[1:]] == [b"one", b"two"]
    client.send(1, methods.BasicAck(2, True))
    assert client.declare("q", passive=True).message_count == 0
    assert front.main.ready("q") == 0


def test_main_sees_the_clients_name_and_capabilities() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    client.ask(0, start_ok())
    client.send(0, methods.ConnectionTuneOk(10, 4096, 0))
    client.ask(0, methods.ConnectionOpen("/"))
    (wire,) = front.wires.values()
    facts = wire.front_end.statistics()
    assert facts.client_properties["product"] == "test"
    assert (facts.channel_max, facts.frame_max, facts.user) == (10, 4096, "guest")


def test_a_client_is_offered_the_smaller_limits() -> None:
    front = Front(channels_max=100, frame_bytes_max=1 << 20)
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    tune = client.ask(0, start_ok())
    assert (tune.channel_max, tune.frame_max) == (100, front.main.config.frame_bytes_max)


def test_a_wrong_password_is_refused_in_mains_words() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    close = client.ask(0, start_ok(password="wrong"))
    assert close.reply_code == 403
    assert "Login was refused" in close.reply_text
    assert front.logins == [("guest", False)]
    assert client.front_end.closed
    assert all(wire.cut for wire in front.wires.values())


def test_a_client_that_knows_no_close_is_just_cut_off_when_it_is_refused() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    client.send(0, start_ok(password="wrong", authentication_failure_close=False))
    assert client.read_all() == []
    assert client.front_end.closed


def test_a_user_who_must_not_come_from_there_is_not_even_asked_of_main() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    assert client.ask(0, start_ok(user="stranger")).reply_code == 403
    assert not front.wires


def test_a_virtual_host_that_is_not_there_is_refused_in_mains_words() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    client.ask(0, start_ok())
    client.send(0, methods.ConnectionTuneOk(10, 4096, 0))
    close = client.ask(0, methods.ConnectionOpen("nowhere"))
    assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
    client.send(0, methods.ConnectionCloseOk())
    assert client.front_end.closed


def test_what_a_client_says_before_main_has_answered_is_taken_in_its_order() -> None:
    front = Front()
    client = front.connect()
    client.write(
        PROTOCOL_HEADER
        + encode_method(0, start_ok())
        + encode_method(0, methods.ConnectionTuneOk(10, 4096, 0))
        + encode_method(0, methods.ConnectionOpen("/"))
        + encode_method(1, methods.ChannelOpen())
        + encode_method(1, methods.QueueDeclare(queue="q"))
    )
    assert [type(each) for each in client.read_all()] == [
        methods.ConnectionStart,
        methods.ConnectionTune,
        methods.ConnectionOpenOk,
        methods.ChannelOpenOk,
        methods.QueueDeclareOk,
    ]


def test_a_client_is_told_when_no_member_can_be_reached() -> None:
    front = Front()
    front.away[MAIN] = "nobody listens"
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    assert isinstance(client.ask(0, start_ok()), methods.ConnectionTune)
    client.send(0, methods.ConnectionTuneOk(10, 4096, 0))
    close = client.ask(0, methods.ConnectionOpen("/"))
    assert close.reply_code == 320
    assert "group 'main' cannot be reached: nobody listens" in close.reply_text


def test_a_member_that_does_not_lead_is_left_for_the_one_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = Front()

    def refuse(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ConnectionForced(reason="connect to b at 127.0.0.1:9")

    monkeypatch.setattr(front.main.broker, "open_session", refuse)
    client = front.open()
    assert front.refusals == ["CONNECTION_FORCED - connect to b at 127.0.0.1:9"]
    assert client.declare("q").queue == "q"


def test_a_member_that_goes_while_it_is_asked_is_left_for_another() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    client.read()
    client.ask(0, start_ok())
    client.send(0, methods.ConnectionTuneOk(10, 4096, 0))
    (first,) = front.wires.values()
    first.front_end.shutdown(320, "it is shutting down")
    front.turn()
    assert isinstance(client.ask(0, methods.ConnectionOpen("/")), methods.ConnectionOpenOk)
    assert first.cut


def test_the_leader_is_lost_and_the_client_is_told() -> None:
    front = Front()
    client = front.open()
    front.lose(MAIN)
    close = client.read()
    assert close.reply_code == 320
    assert "the leader of group 'main' cannot be reached" in close.reply_text
    client.send(0, methods.ConnectionCloseOk())
    assert client.front_end.closed


def test_main_closes_the_connection_and_the_client_hears_why() -> None:
    front = Front()
    client = front.open()
    client.send(1, methods.ChannelOpen())
    close = client.read()
    assert (close.reply_code, close.class_id, close.method_id) == (504, 20, 10)
    client.send(0, methods.ConnectionCloseOk())
    assert client.front_end.closed
    assert all(wire.cut for wire in front.wires.values())


def test_an_error_of_a_channel_is_passed_on() -> None:
    client = Front().open()
    close = client.ask(1, methods.QueueDeclare(queue="q", passive=True))
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    client.send(1, methods.ChannelCloseOk())
    assert isinstance(client.ask(1, methods.ChannelOpen()), methods.ChannelOpenOk)


def test_a_close_is_answered_when_main_has_what_the_client_did() -> None:
    front = Front()
    client = front.open()
    client.declare("q", durable=True)
    front.main.syncing = False
    client.publish(1, "q", b"x", properties=PERSISTENT)
    client.ask(1, methods.ConfirmSelect())
    client.publish(1, "q", b"y", properties=PERSISTENT)
    client.send(0, methods.ConnectionClose())
    assert client.read_all() == []
    front.main.sync()
    front.turn()
    assert client.read_all() == [methods.BasicAck(1, False), methods.ConnectionCloseOk()]


def test_a_client_that_hangs_up_gives_back_what_it_held() -> None:
    front = Front()
    client = front.open()
    client.declare("q")
    client.publish(1, "q", b"x")
    assert isinstance(client.ask(1, methods.BasicGet(queue="q")), Content)
    assert front.main.ready("q") == 0
    client.front_end.receive_eof()
    front.turn()
    assert front.main.ready("q") == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x09\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x00\x00\x00\x00", 501),
        (encode_method(0, methods.ConnectionTuneOk()), 503),
        (publish_frames(7, "q", b"x"), 504),
    ],
)
def test_a_client_that_breaks_the_protocol_is_told(sent: bytes, code: int) -> None:
    client = Front().open()
    client.write(sent)
    assert client.read().reply_code == code
    client.send(0, methods.ConnectionCloseOk())
    assert client.front_end.closed


def test_what_is_not_amqp_gets_our_header_and_no_more() -> None:
    front = Front()
    client = front.connect()
    client.write(b"GET / HTTP/1.1\r\n\r\n")
    assert client.raw == PROTOCOL_HEADER
    assert client.front_end.closed


def test_a_client_is_told_once_that_publishers_must_wait() -> None:
    front = Front()
    client = front.open()
    client.declare("q")
    (wire,) = front.wires.values()
    front.main.broker.blocked = "low on disk"
    wire.front_end.block("low on disk")
    client.publish(1, "q", b"x")
    assert client.read_all() == [methods.ConnectionBlocked("low on disk")]
    wire.front_end.block(None)
    front.turn()
    assert client.read_all() == [methods.ConnectionUnblocked()]


def test_a_silent_client_is_dropped_and_a_silent_leader_too() -> None:
    front = Front(heartbeat_s=10)
    client = front.open(heartbeat=10)
    front.pass_ms(6_000)
    assert client.read_all() == [None]
    front.pass_ms(15_000)
    assert client.front_end.closed
    client = front.open(heartbeat=0)
    front.pass_ms(21_000)
    close = client.read()
    assert "silent" in close.reply_text


def test_nothing_more_is_read_from_a_client_while_main_does_not_read() -> None:
    front = Front()
    client = front.open()
    (link,) = front.wires
    link.writable(False)
    assert not client.front_end.wants_read()
    link.writable(True)
    assert client.front_end.wants_read()


def test_nothing_more_is_read_from_main_while_the_client_does_not_read() -> None:
    front = Front()
    client = front.open()
    (link,) = front.wires
    client.front_end.writable(False)
    assert not link.wants_read()
    client.front_end.writable(True)
    assert link.wants_read()


def test_a_handshake_that_takes_too_long_is_ended() -> None:
    front = Front()
    client = front.connect()
    client.write(PROTOCOL_HEADER)
    front.pass_ms(11_000)
    assert client.front_end.closed
