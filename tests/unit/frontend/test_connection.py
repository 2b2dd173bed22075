"""A connection from its first byte to its last."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client, World, publish_frames

from tidemark.broker.session import Session
from tidemark.errors import DiskFailed
from tidemark.frontend.amqp091.opening import CAPABILITIES
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, encode_content
from tidemark.wire.amqp091.methods import (
    BasicConsume,
    BasicGet,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    QueueDeclare,
    encode_method,
)

# The handshake -------------------------------------------------------------------------------------


def started(world: World, **peer: str) -> tuple[Client, ConnectionStart]:
    client = world.connect(**peer)
    client.write(PROTOCOL_HEADER)
    start = client.read()
    assert isinstance(start, ConnectionStart)
    return client, start


def start_ok(response: bytes, *capabilities: str, mechanism: str = "PLAIN") -> ConnectionStartOk:
    properties = {"capabilities": dict.fromkeys(capabilities, True)}
    return ConnectionStartOk(client_properties=properties, mechanism=mechanism, response=response)


def test_another_protocol_is_answered_with_our_header_and_the_socket_is_closed() -> None:
    client = World().connect()
    client.write(b"GET / HT")
    assert client.read_all() == [PROTOCOL_HEADER]
    assert client.front_end.closed


def test_a_header_may_come_byte_by_byte() -> None:
    client = World().connect()
    for byte in PROTOCOL_HEADER:
        assert client.read_all() == []
        client.write(bytes([byte]))
    assert isinstance(client.read(), ConnectionStart)


def test_the_server_says_who_it_is_and_what_it_can_do() -> None:
    _, start = started(World())
    assert start.server_properties["product"] == "Tidemark"
    assert {"version", "platform", "cluster_name"} <= set(start.server_properties)
    assert start.server_properties["capabilities"] == dict.fromkeys(CAPABILITIES, True)
    assert start.mechanisms == b"PLAIN AMQPLAIN"


def test_external_is_offered_to_a_peer_with_a_checked_certificate_only() -> None:
    _, start = started(World(), certificate_name="robot")
    assert b"EXTERNAL" in start.mechanisms


def test_a_whole_handshake_in_one_write_after_the_login_opens_the_connection() -> None:
    client, _ = started(World())
    tune = client.ask(0, start_ok(b"\0guest\0guest"))
    assert tune == ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60)

    client.write(
        encode_method(0, ConnectionTuneOk(channel_max=10, frame_max=8192, heartbeat=5))
        + encode_method(0, ConnectionOpen(virtual_host="/"))
        + encode_method(1, ChannelOpen())
    )
    assert [type(each) for each in client.read_all()] == [methods.ConnectionOpenOk, methods.ChannelOpenOk]
    statistics = client.front_end.statistics()
    assert (statistics.user, statistics.vhost, statistics.state) == ("guest", "/", "open")
    assert (statistics.channel_max, statistics.frame_max, statistics.heartbeat_s) == (10, 8192, 5)


def test_a_refused_login_is_told_as_403_to_a_client_that_understands_it() -> None:
    client, _ = started(World())
    close = client.ask(0, start_ok(b"\0guest\0wrong", "authentication_failure_close"))
    assert close.reply_code == 403
    assert close.reply_text.startswith(
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"
    )
    assert client.front_end.closed


def test_a_refused_login_just_ends_the_socket_of_other_clients() -> None:
    client, _ = started(World())
    client.send(0, start_ok(b"\0guest\0wrong"))
    assert client.read_all() == []
    assert client.front_end.closed
    assert ("warning", "login refused") in [note[:2] for note in client.world.notes]


def test_a_password_that_is_not_utf8_is_refused_without_asking() -> None:
    client, _ = started(World())
    client.send(0, start_ok(b"\0guest\0\xff\xfe"))
    assert client.front_end.closed
    assert client.world.logins == []


def test_an_unknown_virtual_host_is_530_about_open() -> None:
    client, _ = started(World())
    client.ask(0, start_ok(b"\0guest\0guest"))
    client.send(0, ConnectionTuneOk(channel_max=1, frame_max=4096))
    close = client.ask(0, ConnectionOpen(virtual_host="nowhere"))
    assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
    assert "nowhere" in close.reply_text

    client.send(0, ConnectionCloseOk())
    assert client.front_end.closed


def test_a_handshake_that_takes_too_long_ends() -> None:
    client, _ = started(World(handshake_s_max=10))
    client.world.pass_ms(10_000)
    assert not client.front_end.closed
    client.world.pass_ms(1)
    assert client.front_end.closed


def test_a_verdict_that_comes_after_the_end_changes_nothing() -> None:
    world = World()
    client, _ = started(world)
    front_end = client.front_end
    front_end.receive(memoryview(encode_method(0, start_ok(b"\0guest\0guest"))))
    front_end.receive_eof()
    world.turn()
    assert client.read_all() == []


# Frames and channels ---------------------------------------------------------------------------------


def test_bytes_may_come_in_any_pieces() -> None:
    client = World().open()
    client.declare("q")
    for byte in publish_frames(1, "q", b"x" * 40) + encode_method(1, BasicGet(queue="q", no_ack=True)):
        client.write(bytes([byte]))
    assert client.read().body == b"x" * 40


def test_a_frame_over_the_agreed_size_is_501() -> None:
    client = World().open(frame_max=4096)
    client.publish(1, "q", b"x" * 5000)
    assert client.read().reply_code == 501


def test_a_channel_over_the_agreed_number_is_504() -> None:
    client = World().open(channel_max=2, channels=2)
    client.send(3, ChannelOpen())
    assert client.read().reply_code in (501, 504, 530)


def test_a_channel_over_the_number_agreed_in_the_same_read_is_530() -> None:
    client, _ = started(World())
    client.ask(0, start_ok(b"\0guest\0guest"))
    client.write(
        encode_method(0, ConnectionTuneOk(channel_max=1, frame_max=4096))
        + encode_method(0, ConnectionOpen(virtual_host="/"))
        + encode_method(2, ChannelOpen())
    )
    assert [getattr(each, "reply_code", 0) for each in client.read_all()] == [0, 530]


def test_a_fault_names_the_method_and_is_reported_once() -> None:
    client = World().open()
    client.write(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\xc8\xce")  # method 200 of class 60
    [close] = client.read_all()
    assert (close.reply_code, close.class_id, close.method_id) == (540, 60, 200)
    client.send(1, ChannelOpen())
    assert client.read_all() == []


def test_close_ok_is_heard_after_a_fault() -> None:
    client = World().open()
    client.write(b"\x03\x00\x01\x00\x00\x00\x01x\xce")  # a body without a publish
    assert client.read().reply_code == 505
    client.send(0, ConnectionCloseOk())
    assert client.front_end.closed


def test_a_peer_that_never_confirms_our_close_is_dropped() -> None:
    client = World(close_s_max=3).open()
    client.front_end.shutdown(320, "maintenance")
    client.world.turn()
    close = client.read()
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - maintenance")
    client.world.pass_ms(3001)
    assert client.front_end.closed


def test_an_unexpected_exception_is_541_for_this_connection_and_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    other, client = world.open(), world.open()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "declare_queue", broken)
        close = client.ask_connection(1, QueueDeclare(queue="q"))
    assert (close.reply_code, close.class_id, close.method_id) == (541, 50, 10)
    assert "a bug" not in close.reply_text
    assert any(str(facts.get("error")) == "a bug" for _, _, facts in world.notes)
    assert other.declare("q").queue == "q"


def test_a_stranger_cannot_make_us_hold_content() -> None:
    client, _ = started(World())
    client.write(publish_frames(1, "q", b"x" * 1000)[:-100])
    assert client.front_end.closed


def test_messages_that_never_end_may_not_hold_more_than_the_limit() -> None:
    client = World(message_bytes_max=10_000, unfinished_bytes_max=15_000).open(channels=2)
    client.write(_unfinished(1))
    client.write(_unfinished(2))
    [close] = client.read_all()
    assert (close.reply_code, type(close)) == (530, ConnectionClose)


def test_a_message_that_has_begun_is_not_read_on_during_an_alarm() -> None:
    client = World().open()
    client.write(_unfinished(1))
    assert client.front_end.wants_read()
    block(client, "low on memory")
    assert not client.front_end.wants_read()
    block(client, None)
    assert client.front_end.wants_read()


def test_content_that_comes_after_our_close_is_not_kept() -> None:
    client = World().open(channels=2)
    client.write(_unfinished(1))
    client.front_end.shutdown(320, "maintenance")
    assert client.front_end._scanner.assembling_bytes == 0
    client.write(_unfinished(2))
    assert client.front_end._scanner.assembling_bytes == 0
    client.send(0, ConnectionCloseOk())
    assert client.front_end.closed


def _unfinished(channel: int) -> bytes:
    """The beginning of a message of 10,000 bytes: two body frames are here, one is missing."""
    whole = encode_method(channel, methods.BasicPublish(routing_key="q"))
    whole += encode_content(channel, b"\0\0", b"x" * 10_000, 4008)
    return whole[:-2008]


# Heartbeats -----------------------------------------------------------------------------------------


def test_heartbeats_are_sent_when_nothing_else_is() -> None:
    client = World().open(heartbeat=10)
    client.world.pass_ms(4999)
    assert client.read_all() == []
    client.world.pass_ms(1)
    assert client.read_all() == [None]
    client.world.pass_ms(4999)
    assert client.read_all() == []


def test_a_silent_peer_is_dropped_after_two_intervals_and_what_it_held_returns() -> None:
    world = World()
    client, other = world.open(heartbeat=10), world.open()
    other.declare("q")
    client.send(1, BasicConsume(queue="q"))
    other.publish(1, "q", b"held")
    assert world.ready("q") == 0

    world.pass_ms(20_000)
    assert not client.front_end.closed
    world.pass_ms(1)
    assert client.front_end.closed
    assert world.ready("q") == 1


def test_any_byte_counts_as_a_sign_of_life() -> None:
    client = World().open(heartbeat=10)
    client.world.pass_ms(15_000)
    client.write(HEARTBEAT_FRAME)
    client.world.pass_ms(15_000)
    assert not client.front_end.closed


def test_without_heartbeats_silence_is_fine() -> None:
    client = World().open(heartbeat=0)
    client.world.pass_ms(10_000_000)
    assert not client.front_end.closed
    assert client.read_all() == []


# Alarms ---------------------------------------------------------------------------------------------


def block(client: Client, reason: str | None) -> None:
    client.world.broker.blocked = reason
    client.front_end.block(reason)
    client.world.turn()


def test_a_publisher_is_told_and_no_longer_read_when_it_publishes_against_an_alarm() -> None:
    client = World().open()
    client.declare("q")
    block(client, "low on memory")
    assert client.read_all() == []
    assert client.front_end.wants_read()

    client.publish(1, "q", b"taken")
    assert client.read_all() == [methods.ConnectionBlocked(reason="low on memory")]
    assert not client.front_end.wants_read()
    assert client.front_end.statistics().state == "blocked"

    block(client, None)
    assert client.read_all() == [methods.ConnectionUnblocked()]
    assert client.front_end.wants_read()


def test_a_client_that_does_not_know_blocked_is_not_told_but_held_back_all_the_same() -> None:
    world = World()
    client = world.connect()
    client.shake_hands(capabilities=())
    client.ask(1, ChannelOpen())
    block(client, "low on disk")
    client.publish(1, "q", b"x")
    assert client.read_all() == []
    assert not client.front_end.wants_read()


def test_a_consumer_goes_on_during_an_alarm() -> None:
    world = World()
    client = world.open()
    client.declare("q")
    client.publish(1, "q", b"1")
    block(client, "low on memory")
    client.ask(1, methods.BasicQos(prefetch_count=1))
    client.send(1, BasicConsume(queue="q", consumer_tag="t"))
    assert len(client.read_all()) == 2
    assert client.front_end.wants_read()


def test_a_blocked_peer_is_not_taken_for_dead() -> None:
    client = World().open(heartbeat=1)
    block(client, "low on memory")
    client.publish(1, "q", b"x")
    client.world.pass_ms(60_000)
    block(client, None)
    client.world.pass_ms(1000)
    assert not client.front_end.closed


# The end --------------------------------------------------------------------------------------------


def test_eof_gives_back_messages_and_ends_exclusive_queues() -> None:
    world = World()
    client, other = world.open(), world.open()
    client.declare("mine", exclusive=True)
    other.declare("shared")
    other.publish(1, "shared", b"1")
    client.send(1, BasicConsume(queue="shared"))
    assert world.ready("shared") == 0

    client.front_end.receive_eof()
    assert client.front_end.closed
    assert world.ready("shared") == 1
    assert "mine" not in world.broker.vhosts["/"].queues
    assert not world.broker.sessions.keys() & {client.front_end.session}


def test_the_peers_close_is_answered_when_its_acks_are_on_the_disk() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", properties=PERSISTENT)
    client.ask(1, BasicGet(queue="q"))
    world.syncing = False
    client.send(1, methods.BasicAck(delivery_tag=1))

    client.send(0, ConnectionClose())
    assert client.read_all() == []
    world.sync()
    assert client.read_all() == [ConnectionCloseOk()]
    assert world.journal.settlements


def test_work_that_waits_for_the_disk_is_done_before_the_peers_close_is_answered() -> None:
    world = World(syncing=False)
    client = world.open()
    client.write(
        encode_method(1, QueueDeclare(queue="q", durable=True))
        + publish_frames(1, "q", b"1")
        + encode_method(0, ConnectionClose())
    )
    client.publish(1, "q", b"after the close")
    assert client.read_all() == []

    world.sync()
    assert [type(each) for each in client.read_all()] == [methods.QueueDeclareOk, ConnectionCloseOk]
    assert world.ready("q") == 1


def test_after_close_ok_it_is_the_peer_that_hangs_up() -> None:
    world = World(close_s_max=5)
    client, late = world.open(), world.open()
    for each in (client, late):
        assert each.ask(0, ConnectionClose()) == ConnectionCloseOk()
        each.publish(1, "q", b"written before it saw Close-Ok")
        assert each.read_all() == []
        assert not each.front_end.closed

    client.front_end.receive_eof()
    assert client.front_end.closed
    world.pass_ms(5001)
    assert late.front_end.closed


def test_a_peer_whose_close_cannot_be_finished_is_dropped_in_time() -> None:
    world = World(syncing=False, close_s_max=5)
    client = world.open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    client.send(0, ConnectionClose())
    world.pass_ms(5001)
    assert client.front_end.closed


def test_a_failed_store_nacks_what_waits_and_closes_with_541() -> None:
    world = World()
    client = world.open()
    client.declare("q", durable=True)
    client.ask(1, methods.ConfirmSelect())
    world.syncing = False
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)

    failure = DiskFailed(path="journal", operation="sync", problem="I/O error")
    client.front_end.store_failed(str(failure))
    world.turn()
    nack, close = client.read_all()
    assert nack == methods.BasicNack(delivery_tag=2, multiple=True, requeue=False)
    assert close.reply_code == 541


def test_bytes_that_come_after_the_end_are_swallowed() -> None:
    client = World().open()
    client.front_end.receive_eof()
    data = publish_frames(1, "q", b"x")
    assert client.front_end.receive(memoryview(data)) == len(data)
