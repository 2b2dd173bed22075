"""What a connection may do in its virtual host, in RabbitMQ's words where it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import RecordingSink, a_broker, a_session

from tidemark.broker.broker import Broker
from tidemark.broker.session import Session
from tidemark.broker.streams.session import StreamSession
from tidemark.errors import (
    AccessRefused,
    ChannelError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    TidemarkError,
)
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec, UserSpec, VhostSpec

Act = Callable[[Session], Any]


def refusal(act: Callable[[], Any], kind: type[TidemarkError]) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind
    return str(caught.value)


def two_sessions() -> tuple[Session, Session]:
    broker = a_broker()
    return a_session(broker), a_session(broker)


# Opening and ending -------------------------------------------------------------------------------


def test_an_unknown_vhost_is_not_allowed() -> None:
    assert refusal(lambda: a_session(vhost="nope"), NotAllowed) == (
        "vhost nope not found; make it with: tidemark ctl vhosts add nope"
    )


def test_a_vhost_without_any_permission_is_not_allowed() -> None:
    broker = a_broker()
    broker.put(VhostSpec("other"))
    text = refusal(lambda: a_session(broker, vhost="other"), NotAllowed)
    assert text == "access to vhost 'other' refused for user 'guest'"


def test_two_vhosts_do_not_see_one_another() -> None:
    broker = a_broker(vhosts=("/", "other"))
    a_session(broker).declare_queue("q")
    text = refusal(lambda: a_session(broker, vhost="other").declare_queue("q", passive=True), NotFound)
    assert text == "no queue 'q' in vhost 'other'"


class RecordingConnection:
    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []

    def shutdown(self, code: int, text: str) -> None:
        self.ended.append((code, text))


def test_deleting_a_user_or_vhost_ends_the_connections_that_use_it() -> None:
    broker = a_broker(vhosts=("/", "other"), users=("guest", "ann"))
    connections = [RecordingConnection() for _ in range(3)]
    places = [("/", "guest"), ("/", "ann"), ("other", "guest")]
    for (vhost, user), connection in zip(places, connections, strict=True):
        broker.open_session(vhost, user, connection, "c")

    broker.delete_user("ann")
    broker.delete_vhost("other")
    assert [connection.ended for connection in connections] == [
        [],
        [(320, "CONNECTION_FORCED - user 'ann' is deleted")],
        [(320, "CONNECTION_FORCED - vhost 'other' is deleted")],
    ]


def test_a_session_of_a_deleted_vhost_can_still_be_closed() -> None:
    broker = a_broker(vhosts=("/", "other"))
    session = a_session(broker, vhost="other")
    session.declare_queue("q", exclusive=True)
    sink = RecordingSink()
    consumer = session.consume(sink, "q", "tag")

    broker.delete_vhost("other")
    assert sink.cancellations == [consumer]
    session.cancel(consumer)
    session.close()
    assert not broker.queues
    assert not broker.sessions


# Exchanges ----------------------------------------------------------------------------------------

OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"type": "fanout"}, "received 'fanout' but current is 'direct'"),
    "durable": ({"durable": True}, "received 'true' but current is 'false'"),
    "auto_delete": ({"auto_delete": True}, "received 'true' but current is 'false'"),
    "internal": ({"internal": True}, "received 'true' but current is 'false'"),
    "alternate-exchange": (
        {"arguments": {"alternate-exchange": "y"}},
        "received the value 'y' of type 'longstr' but current is none",
    ),
}


@pytest.mark.parametrize("argument", OTHERWISE)
def test_an_exchange_declared_otherwise_is_refused(argument: str) -> None:
    change, words = OTHERWISE[argument]
    session = a_session()
    session.declare_exchange("x", "direct")
    text = refusal(lambda: session.declare_exchange("x", **{"type": "direct", **change}), PreconditionFailed)
    assert text == f"inequivalent arg '{argument}' for exchange 'x' in vhost '/': {words}"


def test_arguments_that_nobody_knows_do_not_make_an_exchange_another() -> None:
    session = a_session()
    session.declare_exchange("x", "direct", arguments={"note": 1})
    session.declare_exchange("x", "direct", arguments={"note": 2})


@pytest.mark.parametrize(
    "declare",
    [
        lambda session, name: session.declare_queue(name),
        lambda session, name: session.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"}),
        lambda session, name: session.declare_exchange(name, "direct"),
        lambda session, name: session.check_exchange(name, "direct", {}),
        lambda session, name: StreamSession(session).declare(name),
    ],
    ids=["queue", "stream by AMQP", "exchange", "exchange to be", "stream"],
)
def test_what_is_declared_has_a_name_that_every_protocol_can_say(declare: Any) -> None:
    session = a_session()
    declare(session, "ä" * 127 + "b")
    with pytest.raises(PreconditionFailed, match="has 1 to 255 bytes, this one 256"):
        declare(session, "ä" * 128)
    with pytest.raises(PreconditionFailed, match="is no text"):
        declare(session, "\ud800")


DEFAULT_EXCHANGE: dict[str, Act] = {
    "declare": lambda s: s.declare_exchange("", "direct", durable=True),
    "passive": lambda s: s.declare_exchange("", "direct", passive=True),
    "delete": lambda s: s.delete_exchange(""),
    "bind from": lambda s: s.bind_queue("q", "", "k"),
    "unbind from": lambda s: s.unbind_queue("q", "", "k"),
    "bind to": lambda s: s.bind_exchange("", "amq.direct", "k"),
    "unbind to": lambda s: s.unbind_exchange("", "amq.direct", "k"),
}


@pytest.mark.parametrize("act", DEFAULT_EXCHANGE.values(), ids=DEFAULT_EXCHANGE.keys())
def test_nothing_can_be_done_to_the_default_exchange(act: Act) -> None:
    session = a_session()
    session.declare_queue("q")
    assert refusal(lambda: act(session), AccessRefused) == "operation not permitted on the default exchange"


RESERVED: dict[str, tuple[Act, str]] = {
    "exchange": (
        lambda s: s.declare_exchange("amq.mine", "direct"),
        "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "queue": (
        lambda s: s.declare_queue("amq.mine"),
        "queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "delete": (
        lambda s: s.delete_exchange("amq.direct"),
        "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    ),
}


@pytest.mark.parametrize(("act", "words"), RESERVED.values(), ids=RESERVED.keys())
def test_names_that_begin_with_amq_are_reserved(act: Act, words: str) -> None:
    session = a_session()
    assert refusal(lambda: act(session), AccessRefused) == words


def test_predeclared_exchanges_can_be_declared_as_they_are() -> None:
    a_session().declare_exchange("amq.topic", "topic", durable=True)


def test_an_exchange_in_use_is_kept_when_asked() -> None:
    session = a_session()
    session.declare_exchange("x", "direct")
    session.declare_queue("q")
    session.bind_queue("q", "x", "k")
    text = refusal(lambda: session.delete_exchange("x", if_unused=True), PreconditionFailed)
    assert text == "exchange 'x' in vhost '/' in use"

    session.unbind_queue("q", "x", "k")
    session.delete_exchange("x", if_unused=True)
    assert "x" not in session.vhost.exchanges


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_takes_its_sources_along() -> None:
    session = a_session()
    for name in ("first", "second", "third"):
        session.declare_exchange(name, "fanout", auto_delete=True)
    session.bind_exchange("second", "first", "")
    session.bind_exchange("third", "second", "")
    session.declare_queue("q")
    session.bind_queue("q", "third", "")

    session.unbind_queue("q", "third", "")
    assert not {"first", "second", "third"} & set(session.vhost.exchanges)


def test_an_auto_delete_exchange_that_was_never_bound_stays() -> None:
    session = a_session()
    session.declare_exchange("x", "fanout", auto_delete=True)
    session.unbind_queue("nobody", "x", "")
    assert "x" in session.vhost.exchanges


def test_an_internal_exchange_takes_nothing_from_clients() -> None:
    session = a_session()
    session.declare_exchange("x", "fanout", internal=True)
    text = refusal(lambda: session.resolve(b"x", b"k"), AccessRefused)
    assert text == "cannot publish to internal exchange 'x' in vhost '/'"


# Queues -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["durable", "auto_delete"])
def test_a_queue_declared_otherwise_is_refused(flag: str) -> None:
    otherwise: dict[str, Any] = {flag: True}
    session = a_session()
    session.declare_queue("q")
    text = refusal(lambda: session.declare_queue("q", **otherwise), PreconditionFailed)
    assert (
        text
        == f"inequivalent arg '{flag}' for queue 'q' in vhost '/': received 'true' but current is 'false'"
    )


def test_a_queue_with_other_arguments_is_refused() -> None:
    session = a_session()
    session.declare_queue("q")
    text = refusal(lambda: session.declare_queue("q", arguments={"x-message-ttl": 1000}), PreconditionFailed)
    assert text == (
        "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': "
        "received the value '1000' of type 'signedint' but current is none"
    )


def test_a_bad_argument_leaves_no_queue_and_no_change_behind() -> None:
    broker = a_broker()
    logged = broker.catalog.last_seq
    refusal(
        lambda: a_session(broker).declare_queue("q", durable=True, arguments={"x-expires": 0}),
        PreconditionFailed,
    )
    assert broker.catalog.last_seq == logged
    assert not broker.queues


def test_a_dead_letter_exchange_must_be_named_by_a_string() -> None:
    session = a_session()
    text = refusal(
        lambda: session.declare_queue("q", arguments={"x-dead-letter-exchange": 1}), PreconditionFailed
    )
    assert text == "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"


def test_a_server_named_queue_has_a_name_that_nobody_can_guess() -> None:
    session = a_session()
    names = {session.declare_queue("").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("amq.gen-") and len(name) == len("amq.gen-") + 22 for name in names)


def test_a_declare_counts_messages_and_consumers() -> None:
    session = a_session()
    session.declare_queue("q")
    publishing = session.publishing(RecordingSink())
    for _ in range(3):
        publishing.publish_one("", "q", b"\0\0", b"body")
    session.consume(RecordingSink(room=1), "q", "tag")
    declared = session.declare_queue("q", passive=True)
    assert (declared.name, declared.messages, declared.consumers) == ("q", 2, 1)


def test_line_breaks_are_taken_out_of_names() -> None:
    session = a_session()
    assert session.declare_queue("a\r\nb").name == "ab"
    session.declare_exchange("x\n", "direct")
    session.bind_queue("ab\n", "x\r", "k")
    assert session.delete_queue("a\nb").name == "ab"


def test_deleting_what_is_not_there_succeeds() -> None:
    session = a_session()
    assert session.delete_queue("nope").messages == 0
    session.delete_exchange("nope")
    session.unbind_queue("nope", "neither", "k")
    session.unbind_exchange("nope", "neither", "k")


def test_a_delete_can_ask_for_the_queue_to_be_empty_and_unused() -> None:
    session = a_session()
    session.declare_queue("q")
    session.publishing(RecordingSink()).publish_one("", "q", b"\0\0", b"body")
    assert refusal(lambda: session.delete_queue("q", if_empty=True), PreconditionFailed) == (
        "queue 'q' in vhost '/' not empty"
    )
    session.consume(RecordingSink(room=0), "q", "tag")
    assert refusal(lambda: session.delete_queue("q", if_unused=True), PreconditionFailed) == (
        "queue 'q' in vhost '/' in use"
    )
    assert session.delete_queue("q").messages == 1


def test_purge_says_how_many_went() -> None:
    session = a_session()
    session.declare_queue("q")
    publishing = session.publishing(RecordingSink())
    for _ in range(3):
        publishing.publish_one("", "q", b"\0\0", b"body")
    assert session.purge_queue("q").messages == 3
    assert session.purge_queue("q").messages == 0


def test_get_takes_one_message_and_says_how_many_are_left() -> None:
    session = a_session()
    session.declare_queue("q")
    assert session.get("q")[1] is None
    for _ in range(3):
        session.publishing(RecordingSink()).publish_one("", "q", b"\0\0", b"body")

    queue, messages, left = session.get("q")
    assert messages is not None
    assert (queue.name, len(messages), left) == ("q", 1, 2)


NOT_THERE: dict[str, tuple[Act, str]] = {
    "passive queue": (lambda s: s.declare_queue("nope", passive=True), "no queue 'nope' in vhost '/'"),
    "passive exchange": (
        lambda s: s.declare_exchange("nope", "direct", passive=True),
        "no exchange 'nope' in vhost '/'",
    ),
    "consume": (lambda s: s.consume(RecordingSink(), "nope", "t"), "no queue 'nope' in vhost '/'"),
    "get": (lambda s: s.get("nope"), "no queue 'nope' in vhost '/'"),
    "purge": (lambda s: s.purge_queue("nope"), "no queue 'nope' in vhost '/'"),
    "bind queue": (lambda s: s.bind_queue("nope", "amq.direct", "k"), "no queue 'nope' in vhost '/'"),
    "bind from": (lambda s: s.bind_queue("nope", "neither", "k"), "no exchange 'neither' in vhost '/'"),
    "bind exchange": (lambda s: s.bind_exchange("nope", "amq.direct", ""), "no exchange 'nope' in vhost '/'"),
    "publish": (lambda s: s.resolve(b"nope", b"k"), "no exchange 'nope' in vhost '/'"),
    "reply": (
        lambda s: s.declare_queue("amq.rabbitmq.reply-to.gone", passive=True),
        "no queue 'amq.rabbitmq.reply-to.gone' in vhost '/'",
    ),
}


@pytest.mark.parametrize(("act", "words"), NOT_THERE.values(), ids=NOT_THERE.keys())
def test_what_is_not_there_is_404(act: Act, words: str) -> None:
    session = a_session()
    assert refusal(lambda: act(session), NotFound) == words


def test_a_headers_binding_with_an_unknown_rule_is_refused_and_not_made() -> None:
    session = a_session()
    session.declare_queue("q")
    refusal(lambda: session.bind_queue("q", "amq.match", "", {"x-match": "some"}), PreconditionFailed)
    assert not session.vhost.exchanges["amq.match"].bindings


# Exclusive queues ---------------------------------------------------------------------------------

ON_ANOTHERS_QUEUE: dict[str, Act] = {
    "declare": lambda s: s.declare_queue("q", exclusive=True),
    "declare shared": lambda s: s.declare_queue("q"),
    "passive": lambda s: s.declare_queue("q", passive=True),
    "consume": lambda s: s.consume(RecordingSink(), "q", "tag"),
    "get": lambda s: s.get("q"),
    "purge": lambda s: s.purge_queue("q"),
    "delete": lambda s: s.delete_queue("q"),
    "bind": lambda s: s.bind_queue("q", "amq.direct", "k"),
    "unbind": lambda s: s.unbind_queue("q", "amq.direct", "k"),
}


@pytest.mark.parametrize("act", ON_ANOTHERS_QUEUE.values(), ids=ON_ANOTHERS_QUEUE.keys())
def test_an_exclusive_queue_is_locked_for_every_other_session(act: Act) -> None:
    owner, other = two_sessions()
    owner.declare_queue("q", exclusive=True)
    text = refusal(lambda: act(other), ResourceLocked)
    assert text.startswith("cannot obtain exclusive access to locked queue 'q' in vhost '/'.")


def test_the_owner_may_do_all_of_it_but_declare_it_shared() -> None:
    owner = a_session()
    for name, act in ON_ANOTHERS_QUEUE.items():
        owner.declare_queue("q", exclusive=True)
        if name == "declare shared":
            refusal(lambda act=act: act(owner), ResourceLocked)  # type: ignore[misc]
        else:
            act(owner)


def test_a_shared_queue_cannot_be_declared_exclusive_later() -> None:
    session = a_session()
    session.declare_queue("q")
    refusal(lambda: session.declare_queue("q", exclusive=True), ResourceLocked)


def test_others_may_publish_to_an_exclusive_queue() -> None:
    owner, other = two_sessions()
    owner.declare_queue("q", exclusive=True)
    other.publishing(RecordingSink()).publish_one("", "q", b"\0\0", b"body")
    assert owner.declare_queue("q", passive=True).messages == 1


def test_exclusive_queues_go_with_their_session_even_if_declared_durable() -> None:
    owner, other = two_sessions()
    owner.declare_queue("q", exclusive=True, durable=True)
    owner.declare_queue("shared")
    owner.close()
    refusal(lambda: other.declare_queue("q", passive=True), NotFound)
    assert other.declare_queue("shared", passive=True).name == "shared"


# Auto-delete queues -------------------------------------------------------------------------------


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    session = a_session()
    session.declare_queue("q", auto_delete=True, durable=True)
    session.declare_exchange("x", "fanout", auto_delete=True)
    session.bind_queue("q", "x", "")
    consumers = [session.consume(RecordingSink(), "q", tag) for tag in ("a", "b")]

    session.cancel(consumers[0])
    assert "q" in session.vhost.queues
    session.cancel(consumers[1])
    assert "q" not in session.vhost.queues
    assert "x" not in session.vhost.exchanges
    assert session.broker.catalog.ops()[-1] == "queue.delete"  # type: ignore[attr-defined]


def test_a_queue_that_is_not_auto_delete_stays_without_consumers() -> None:
    session = a_session()
    session.declare_queue("q")
    session.cancel(session.consume(RecordingSink(), "q", "tag"))
    assert "q" in session.vhost.queues


class CancellingSink(RecordingSink):
    """Cancels its consumers when it is told that they are cancelled, as a channel may."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def cancelled(self, consumer: Any) -> None:
        super().cancelled(consumer)
        self.session.cancel(consumer)


def test_deleting_a_queue_whose_consumers_answer_by_cancelling_deletes_it_once() -> None:
    session = a_session()
    session.declare_queue("q", auto_delete=True, durable=True)
    sink = CancellingSink(session)
    for tag in "ab":
        session.consume(sink, "q", tag)
    session.delete_queue("q")
    assert len(sink.cancellations) == 2
    assert session.broker.deletions == 1
    assert session.broker.catalog.ops().count("queue.delete") == 1  # type: ignore[attr-defined]


# Permissions --------------------------------------------------------------------------------------


def limited(configure: str = "^$", write: str = "^$", read: str = "^$") -> tuple[Broker, Session]:
    """A user `u` with these permissions; exchange `x`, queues `q` and `p` are there, q bound to x by `k`."""
    broker = a_broker()
    admin = a_session(broker)
    admin.declare_exchange("x", "topic")
    for queue in ("q", "p"):
        admin.declare_queue(queue)
    admin.bind_queue("q", "x", "k")
    broker.put(UserSpec("u"))
    broker.put(PermissionSpec("u", "/", configure, write, read))
    return broker, a_session(broker, user="u")


NEEDED: dict[str, tuple[Act, dict[str, str]]] = {
    "declare exchange": (lambda s: s.declare_exchange("new", "direct"), {"configure": "^new$"}),
    "declare with alternate": (
        lambda s: s.declare_exchange("new", "direct", arguments={"alternate-exchange": "x"}),
        {"configure": "^new$", "read": "^new$", "write": "^x$"},
    ),
    "delete exchange": (lambda s: s.delete_exchange("x"), {"configure": "^x$"}),
    "declare queue": (lambda s: s.declare_queue("new"), {"configure": "^new$"}),
    "declare with dead letters": (
        lambda s: s.declare_queue("new", arguments={"x-dead-letter-exchange": "x"}),
        {"configure": "^new$", "read": "^new$", "write": "^x$"},
    ),
    "declare server-named": (lambda s: s.declare_queue(""), {"configure": "^amq\\.gen-"}),
    "delete queue": (lambda s: s.delete_queue("q"), {"configure": "^q$"}),
    "purge": (lambda s: s.purge_queue("q"), {"read": "^q$"}),
    "consume": (lambda s: s.consume(RecordingSink(), "q", "t"), {"read": "^q$"}),
    "get": (lambda s: s.get("q"), {"read": "^q$"}),
    "publish": (lambda s: s.resolve(b"x", b"k"), {"write": "^x$"}),
    "publish by default": (lambda s: s.resolve(b"", b"q"), {"write": "^amq\\.default$"}),
    "bind queue": (lambda s: s.bind_queue("p", "x", "k"), {"write": "^p$", "read": "^x$"}),
    "unbind queue": (lambda s: s.unbind_queue("q", "x", "k"), {"write": "^q$", "read": "^x$"}),
    "bind exchange": (
        lambda s: s.bind_exchange("amq.direct", "x", "k"),
        {"write": "^amq\\.direct$", "read": "^x$"},
    ),
    "unbind exchange": (
        lambda s: s.unbind_exchange("amq.direct", "x", "k"),
        {"write": "^amq\\.direct$", "read": "^x$"},
    ),
}


@pytest.mark.parametrize(("act", "needed"), NEEDED.values(), ids=NEEDED.keys())
def test_each_command_needs_its_permissions_and_no_other(act: Act, needed: dict[str, str]) -> None:
    act(limited(**needed)[1])

    for missing in needed:
        broker, session = limited(**{**needed, missing: "^$"})
        before = (broker.catalog.last_seq, len(broker.queues), len(list(session.vhost.bindings())))
        assert "refused for user 'u'" in refusal(lambda session=session: act(session), AccessRefused)  # type: ignore[misc]
        assert (broker.catalog.last_seq, len(broker.queues), len(list(session.vhost.bindings()))) == before


def test_a_passive_declare_needs_no_permission() -> None:
    _, session = limited()
    session.declare_queue("q", passive=True)
    session.declare_exchange("x", "topic", passive=True)


def test_topic_permissions_hold_for_publishing_and_binding() -> None:
    broker, session = limited(write=".*", read=".*")
    broker.put(TopicPermissionSpec("u", "/", "x", "^w$", "^r$"))
    session.resolve(b"x", b"w")
    session.bind_queue("p", "x", "r")
    refusal(lambda: session.resolve(b"x", b"r"), AccessRefused)
    refusal(lambda: session.bind_queue("p", "x", "w"), AccessRefused)


def test_a_publisher_that_loses_its_permission_is_refused_at_once() -> None:
    broker, session = limited(write="^x$")
    publishing = session.publishing(RecordingSink())
    assert publishing.publish_one("x", "k", b"\0\0", b"body").error is None

    broker.put(PermissionSpec("u", "/", "", "", ""))
    assert isinstance(publishing.publish_one("x", "k", b"\0\0", b"body").error, AccessRefused)


# Direct reply-to ----------------------------------------------------------------------------------


def test_the_pseudo_queue_can_be_declared_and_consumed_without_acks_only() -> None:
    session = a_session()
    assert session.declare_queue("amq.rabbitmq.reply-to").consumers == 1
    session.consume(RecordingSink(), "amq.rabbitmq.reply-to", "t", no_ack=True)
    with pytest.raises(ChannelError, match="reply consumer cannot acknowledge"):
        session.consume(RecordingSink(), "amq.rabbitmq.reply-to", "t")


# Statistics ---------------------------------------------------------------------------------------


def test_statistics_count_what_is_there() -> None:
    session = a_session()
    session.declare_queue("q")
    session.bind_queue("q", "amq.topic", "#")
    session.publishing(RecordingSink()).publish_one("", "q", b"\0\0", b"body")
    session.consume(RecordingSink(room=0), "q", "t")

    counted = session.broker.statistics()
    assert (counted.vhosts, counted.sessions, counted.queues, counted.bindings) == (1, 1, 1, 1)
    assert (counted.consumers, counted.ready, counted.ready_bytes, counted.published) == (1, 1, 4, 1)
    listed = {x.spec.name: (x.bindings_out, x.bindings_in) for x in session.broker.exchanges_of("/")}
    assert listed["amq.topic"] == (1, 0)
    assert [(b.source, b.key) for b in session.broker.bindings_of("/")] == [("", "q"), ("amq.topic", "#")]
