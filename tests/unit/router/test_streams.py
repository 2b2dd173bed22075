"""Clients of a front that speak the stream protocol: who lets them in, where their bytes go, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import START_MS
from unit.frontend.stream.client import Refused, StreamClient
from unit.node.world import NodeWorld
from unit.router.harness import Fed

from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.model.rows import Row
from tidemark.model.wiring import PermissionSpec, UserSpec
from tidemark.router.streams import WAITING_BYTES_MAX, State, StreamLink, StreamRouter
from tidemark.wire.stream.frames import PREAMBLE, FrameReader, Kind, encode_frame


class Broker(NodeWorld):
    """The leader of a group. It believes the password "guest" and no other."""

    def login(self, front_end: FrontEnd, login: Login) -> None:
        good = login.password == "guest"
        self.node.verdict(front_end, Verdict(login.user if good else None, "wrong password"))


class Wire:
    """The socket between a link and the leader that it was dialled to."""

    def __init__(self, world: Broker, link: StreamLink, port: int) -> None:
        self.link = link
        self.said = b""
        """All that the leader was told."""
        self.front_end = world.node.connect(PeerInfo("127.0.0.1", port, "127.0.0.1", 5672, front="f1"))
        self.open = True
        self._world = world
        world.clients[self.front_end] = self  # type: ignore[assignment]

    def hear(self, data: bytes) -> None:
        if self.open and data:
            self.link.receive(memoryview(data))

    def flush(self) -> None:
        data = b"".join(self.link.output())
        self.said += data
        if data and self.open:
            self._world.node.at(self._world.now_ms)
            self.front_end.receive(memoryview(data))
        if self.link.closed:
            self.hang_up()

    def notice(self) -> None:
        """Whether the leader has hung up."""
        if self.front_end.closed:
            self.hang_up()

    def hang_up(self) -> None:
        if self.open:
            self.open = False
            self._world.clients.pop(self.front_end, None)
            self._world.node.disconnect(self.front_end)
            self.link.receive_eof()


class Front:
    """Fits `Outside`: main and the group `fast`, each a whole node."""

    through = False
    dial_s_max = 5

    def __init__(self) -> None:
        self.config = Amqp091Config()
        self.now_ms = START_MS
        self.worlds = {"main": Broker(), "fast": Broker()}
        main, fast = (world.broker for world in self.worlds.values())
        main.other_groups = {"fast": "chain"}
        fast.group = "fast"
        self.wiring = Fed(self.worlds["main"], {"main": "alone", "fast": "chain"})  # type: ignore[arg-type]
        self.wires: list[Wire] = []
        self.logins: list[tuple[str, bool]] = []
        self.away: dict[str, str] = {}
        self.refusals: list[str] = []
        self._dials: list[StreamLink] = []

    def may_come(self, user: str, _peer: PeerInfo) -> str | None:
        return "too many" if user == "stranger" else None

    def came(self, user: str, _peer: PeerInfo, good: bool) -> None:
        self.logins.append((user, good))

    def dial(self, link: StreamLink, refusal: str) -> None:
        self.refusals.append(refusal)
        self._dials.append(link)

    def touched(self, one: Any) -> None:
        pass

    def note(self, level: str, event: str, **facts: object) -> None:
        pass

    def turn(self, client: StreamClient) -> None:
        for _ in range(12):
            dials, self._dials = self._dials, []
            for link in dials:
                if link.group in self.away:
                    self.now_ms += 1000
                    link.lose(self.away[link.group])
                else:
                    self.wires.append(Wire(self.worlds[link.group], link, 50_000 + len(self.wires)))
                    link.connected()
            for wire in self.wires:
                wire.flush()
            for world in self.worlds.values():
                world.turn()
            for wire in self.wires:
                wire.notice()
            client.hear(b"".join(client.front_end.output()))

    def of(self, group: str) -> Wire:
        [found] = [wire for wire in self.wires if wire.link.group == group]
        return found


class Client(StreamClient):
    """Speaks to a front where a `StreamClient` speaks to a node."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.router = StreamRouter(front, PeerInfo("127.0.0.1", 40_000))  # type: ignore[arg-type]
        self.front_end = self.router  # type: ignore[assignment]
        self.inbox = []
        self._reader, self._next = FrameReader(1 << 28), 0

    def push(self, data: bytes) -> None:
        self.router.receive(memoryview(data))

    def write(self, data: bytes) -> None:
        self.push(data)
        self.front.turn(self)

    def goodbye(self) -> dict[str, Any]:
        [found] = self.heard(Kind.GOODBYE)
        assert self.router.closed
        return found


def a_client(**hello: Any) -> Client:
    client = Client(Front())
    client.hello(**hello)
    return client


# Main ----------------------------------------------------------------------------------------------------------------


def test_a_client_without_a_wish_is_at_main() -> None:
    client = a_client()
    client.ask("declare", stream="s")
    client.put("s", [Row(b"k", b"v")])
    assert client.ask("get", b"k", stream="s")["found"]
    assert client.front.logins == [("guest", True)]
    assert [wire.link.group for wire in client.front.wires] == ["main"]


def test_members_are_told_without_addresses_because_the_way_is_through_the_front() -> None:
    client = Client(Front())
    told = client.hello()
    assert told["group"] == "main"
    assert [one["address"] for one in told["members"]] == [""] and told["cluster"] == []


def test_what_is_said_behind_the_hello_waits_for_its_answer() -> None:
    client = Client(Front())
    hello = {"op": "hello", "user": "guest", "password": "guest"}
    together = PREAMBLE + b"".join(encode_frame(Kind.REQUEST, 1, hello))
    together += b"".join(encode_frame(Kind.REQUEST, 2, {"op": "declare", "stream": "s"}))
    for at in range(0, len(together), 7):
        client.push(together[at : at + 7])
    client.front.turn(client)
    assert [frame.request for frame in client.inbox] == [1, 2]


@pytest.mark.parametrize("group", [None, "fast"])
def test_a_wrong_password_is_mains_to_refuse_and_counted(group: str | None) -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="wrong", group=group)
    assert client.goodbye()["error"] == "access.login-refused"
    assert client.front.logins == [("guest", False)]
    assert [wire.link.group for wire in client.front.wires] == ["main"]


def test_who_must_not_come_is_refused_before_main_is_asked() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send("hello", user="stranger", password="guest")
    assert client.goodbye()["error"] == "access.login-refused" and client.front.wires == []


def test_nobody_fills_a_front_before_he_is_let_in() -> None:
    client = Client(Front())
    _, hello = client.request("hello", user="guest", password="guest")
    client.push(PREAMBLE + hello + bytes(100_000))
    client.front.turn(client)
    assert "wait for the answer" in client.goodbye()["message"]


def test_a_password_that_is_no_text_is_shown_to_nobody() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send("hello", user="guest", password=["hunter2"])
    assert "hunter2" not in str(client.goodbye())


def test_a_member_that_does_not_lead_is_left_for_the_one_that_it_names() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    _, data = client.request("hello", user="guest", password="guest")
    client.push(data)
    [link] = client.front._dials
    client.front._dials = []
    link.connected()
    told = {
        "error": "cluster.not-here",
        "message": "hello is for the member that leads: connect to n2 at b:1",
    }
    link.receive(memoryview(b"".join(encode_frame(Kind.GOODBYE, 0, told))))
    assert client.front.refusals[-1] == told["message"]
    client.front.turn(client)
    assert client.router.state is State.OPEN


def test_another_version_is_told_ours() -> None:
    client = Client(Front())
    client.router.receive(memoryview(b"TIDE\x00\x00\x02\x00"))
    assert client.router.output() == [PREAMBLE] and client.router.closed


@pytest.mark.parametrize("op", ["put", "hi"])
def test_anything_but_a_hello_ends_it(op: str) -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send(op, stream="s")
    assert "before the answer to 'hello'" in client.goodbye()["message"]
    assert client.front.wires == []


# Another group ---------------------------------------------------------------------------------------------------------


def test_a_client_that_names_a_group_is_at_its_leader_and_its_password_is_not() -> None:
    client = Client(Front())
    assert client.hello(group="fast")["group"] == "fast"
    client.ask("declare", stream="s")
    client.put("s", [Row(b"k", b"v")])
    assert client.ask("get", b"k", stream="s")["found"]
    assert "s" in client.front.worlds["fast"].broker.vhosts["/"].queues
    assert "s" not in client.front.worlds["main"].broker.vhosts["/"].queues
    assert b'"password"' in client.front.of("main").said
    assert b'"password"' not in client.front.of("fast").said
    assert not client.front.of("main").open, "main has done its part"
    told = client.router.statistics()
    assert (told["user"], told["links"], told["protocol"]) == ("guest", {"fast": "open"}, "TIDE 1.0")


def test_a_group_that_is_not_there_is_named_with_those_that_are() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="guest", group="slow")
    assert "no group 'slow' in this cluster; there is 'main', 'fast'" in client.goodbye()["message"]


def test_no_client_can_vouch_for_itself() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.send("hello", user="root", mechanism="FRONT", group="fast", permissions={"configure": ".*"})
    assert "PLAIN only" in client.goodbye()["message"] and client.front.wires == []


def test_permissions_are_mains() -> None:
    front = Front()
    main = front.worlds["main"].broker
    main.put(UserSpec("reader", "", ()))
    main.put(PermissionSpec("reader", "/", "", "^mine", ".*"))
    owner, client = Client(front), Client(front)
    owner.hello(group="fast")
    owner.ask("declare", stream="s")
    owner.ask("declare", stream="mine")
    client.hello(user="reader", group="fast")
    assert client.ask("info", stream="s")["name"] == "s"
    client.put("mine", [Row(b"k", b"v")])
    assert [one["name"] for one in client.ask("list")["streams"]] == ["s", "mine"]
    with pytest.raises(Refused, match="access to queue 's' in vhost '/' refused for user 'reader'"):
        client.put("s", [Row(b"k", b"v")])
    with pytest.raises(Refused, match="refused for user 'reader'"):
        client.ask("declare", stream="new")


@pytest.mark.parametrize("taken", ["changed", "permission", "user", "user made again"])
def test_when_main_changes_its_mind_the_connection_is_cut(taken: str) -> None:
    front = Front()
    main = front.worlds["main"].broker
    user, before = UserSpec("alice", "", ()), PermissionSpec("alice", "/", ".*", ".*", ".*")
    main.put(user)
    main.put(before)
    client = Client(front)
    client.hello(user="alice", group="fast")
    client.router.tick(front.now_ms)
    assert not client.router.closed
    match taken:
        case "changed":
            main.put(PermissionSpec("alice", "/", ".*", "", ".*"))
        case "permission":
            main.delete(before)
        case "user":
            main.delete(user)
        case "user made again":
            main.delete(user)
            main.put(user)
            main.put(before)
    client.router.tick(front.now_ms)
    assert client.router.closed


def test_exchanges_are_not_of_that_group() -> None:
    client = a_client(group="fast")
    with pytest.raises(Refused, match="exchanges are of the group 'main'"):
        client.ask("commit", b"x", operations=[{"publish": "", "key": "", "length": 1}])


# Leaders that go -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["main", "fast"])
def test_a_leader_that_goes_takes_the_connection_with_it(group: str) -> None:
    client = a_client(group=group)
    [wire] = [wire for wire in client.front.wires if wire.open]
    wire.hang_up()
    assert client.router.closed and client.inbox == []
    assert client.router.statistics()["state"] == "closed"


@pytest.mark.parametrize("group", ["main", "fast"])
def test_a_leader_that_goes_before_it_has_answered_is_looked_for_again(group: str) -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    _, data = client.request("hello", user="guest", password="guest", group=group)
    client.push(data)
    front = client.front
    if group == "fast":
        front.turn(client)
        client = Client(front)
        client.push(PREAMBLE + data)
    [link] = front._dials
    front._dials = []
    link.connected()
    link.receive_eof()
    front.turn(client)
    assert client.router.state is State.OPEN and link.tries == 2


def test_a_leader_that_is_not_found_in_time_is_said_to_be_away() -> None:
    client = Client(Front())
    client.front.away["main"] = "n1: connection refused"
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="guest")
    assert (
        "the leader of group 'main' cannot be reached: n1: connection refused" in client.goodbye()["message"]
    )


def test_wiring_that_does_not_come_ends_the_wait() -> None:
    client = Client(Front())
    client.front.wiring.slow = True
    client.push(PREAMBLE)
    client.send("hello", user="guest", password="guest", group="fast")
    assert client.router.state is State.GOING
    client.router.tick(client.front.now_ms + 6000)
    client.front.turn(client)
    assert "has not heard of main's wiring" in client.goodbye()["message"]
    client.front.wiring.freshen()
    assert client.front._dials == []


def test_a_client_that_says_nothing_is_shown_out() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    client.router.tick(client.front.now_ms + client.front.config.handshake_s_max * 1000 + 1)
    assert client.router.closed


def test_a_leader_that_takes_the_client_and_says_nothing_is_not_waited_for_without_end() -> None:
    client = Client(Front())
    client.push(PREAMBLE)
    _, data = client.request("hello", user="guest", password="guest")
    client.push(data)
    [link] = client.front._dials
    client.front._dials = []
    link.connected()
    client.router.tick(client.front.now_ms + 10_000)
    assert not client.router.closed
    client.router.tick(client.front.now_ms + 20_000)
    client.front.turn(client)
    assert "did not answer in time" in client.goodbye()["message"] and link.closed


# Back-pressure ---------------------------------------------------------------------------------------------------------


def test_a_side_that_does_not_read_stops_the_other() -> None:
    client = a_client()
    router, link = client.router, client.router.link
    assert link is not None and router.wants_read() and link.wants_read()
    link.writable(False)
    assert not router.wants_read()
    link.writable(True)
    assert router.wants_read()
    router.writable(False)
    assert not link.wants_read()
    router.writable(True)
    link.send(bytes(WAITING_BYTES_MAX))
    assert not router.wants_read()
    link.output()
    assert router.wants_read()


def test_a_client_that_leaves_takes_its_link_with_it() -> None:
    client = a_client(group="fast")
    client.router.receive_eof()
    client.front.turn(client)
    assert not client.front.of("fast").open
    assert not client.front.worlds["fast"].broker.sessions
