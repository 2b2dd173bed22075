"""How two members open a link: only those that know the secret come in, and each knows who the other is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import PeerFault, PeerRefused
from tidemark.wire.peer.handshake import (
    EXPECTED,
    HEAD,
    STEP_BYTES_MAX,
    Client,
    Dialler,
    Handshake,
    LinkKind,
    Listener,
    State,
    Step,
)

SECRET = b"a secret of this cluster"


def a_dialler(
    me: str = "b",
    cluster: str = "shop",
    secret: bytes = SECRET,
    peer: str = "a",
    client: Client | None = None,
) -> Dialler:
    return Dialler(me, cluster, secret, b"D" * 32, peer, client)


def a_listener(me: str = "a", cluster: str = "shop", secret: bytes = SECRET) -> Listener:
    return Listener(me, cluster, secret, b"L" * 32)


def talk(dialler: Dialler, listener: Listener) -> None:
    """Carry what each says to the other until nobody says anything."""
    while (data := dialler.output()) or (back := listener.output()):
        if data:
            assert listener.receive(data) == len(data)
            if listener.state is State.PROVEN:
                listener.welcome()
        else:
            assert dialler.receive(back) == len(back)


def test_members_of_one_cluster_come_together_and_know_each_other() -> None:
    dialler, listener = a_dialler(), a_listener()
    talk(dialler, listener)

    assert dialler.done and listener.done
    assert (dialler.peer, listener.peer) == ("a", "b")
    assert listener.kind is LinkKind.REPLICA


def test_a_front_says_for_whom_it_speaks_and_that_it_is_no_relay() -> None:
    client = Client("10.0.0.9", 50123, "10.0.0.1", 5671, True, "orders")
    dialler = Dialler("front", "shop", SECRET, b"D" * 32, "a", client, LinkKind.FRONT)
    listener = a_listener()
    talk(dialler, listener)
    assert (listener.kind, listener.client) == (LinkKind.FRONT, client)


def test_a_front_that_wants_the_wiring_says_so() -> None:
    listener = a_listener()
    talk(Dialler("front", "shop", SECRET, b"D" * 32, "a", kind=LinkKind.WIRING), listener)
    assert (listener.kind, listener.client) == (LinkKind.WIRING, None)


def test_a_member_of_another_group_is_of_another_cluster() -> None:
    dialler, listener = a_dialler(cluster="shop/groups/fast"), a_listener()
    with pytest.raises(PeerFault, match="'b' is of cluster 'shop/groups/fast', 'a' of 'shop'"):
        talk(dialler, listener)
    assert not listener.done


@pytest.mark.parametrize(
    "client",
    [
        Client("10.0.0.9", 50123, "10.0.0.1", 5671, True, "orders"),
        Client("::1", 1),
        Client("10.0.0.9", 50123, "10.0.0.1", 5672, False, ""),
    ],
)
def test_a_relay_says_whose_connection_it_carries(client: Client) -> None:
    dialler, listener = a_dialler(client=client), a_listener()
    talk(dialler, listener)

    assert listener.done
    assert listener.kind is LinkKind.RELAY
    assert listener.client == client


def test_a_listener_gives_nothing_away_before_the_dialler_has_proven_itself() -> None:
    dialler, listener = a_dialler(), a_listener()
    listener.receive(dialler.output())
    challenge = listener.output()
    other = a_listener(secret=b"quite another secret")
    other.receive(a_dialler().output())

    assert challenge == other.output()


def test_a_dialler_without_the_secret_is_refused_and_told() -> None:
    dialler, listener = a_dialler(secret=b"a guess, and a wrong one"), a_listener()
    listener.receive(dialler.output())
    dialler.receive(listener.output())

    with pytest.raises(PeerFault, match="'b' does not know the secret of cluster 'shop'"):
        listener.receive(dialler.output())
    assert listener.state is State.FAILED
    with pytest.raises(PeerRefused, match="'b' does not know the secret"):
        dialler.receive(listener.output())


def test_a_listener_without_the_secret_is_not_believed() -> None:
    dialler, listener = a_dialler(), a_listener(secret=b"a guess, and a wrong one")
    listener.receive(dialler.output())
    dialler.receive(listener.output())
    dialler.output()
    listener.state = State.PROVEN  # it takes whatever comes
    listener.welcome()

    with pytest.raises(PeerFault, match="'a' does not know the secret"):
        dialler.receive(listener.output())
    assert not dialler.done


def test_a_proof_cannot_be_used_on_another_link() -> None:
    first, listener = a_dialler(), a_listener()
    listener.receive(first.output())
    first.receive(listener.output())
    overheard = first.output()

    again = Listener("a", "shop", SECRET, b"M" * 32)
    again.receive(a_dialler().output())
    with pytest.raises(PeerFault, match="does not know the secret"):
        again.receive(overheard)


def test_words_that_were_changed_on_the_way_are_found_out() -> None:
    dialler, listener = a_dialler(client=Client("10.0.0.9", 1)), a_listener()
    listener.receive(dialler.output().replace(b"10.0.0.9", b"127.0.01"))
    dialler.receive(listener.output())

    with pytest.raises(PeerFault, match="does not know the secret"):
        listener.receive(dialler.output())


@pytest.mark.parametrize(
    ("dialler", "words"),
    [
        (a_dialler(cluster="bank"), "'b' is of cluster 'bank', 'a' of 'shop'"),
        (a_dialler(peer="c"), "this is 'a', not 'c'"),
        (a_dialler(me="a"), "two members call themselves 'a'"),
        (a_dialler(me=""), "'' is no name of a member"),
        (a_dialler(me="b c"), "'b c' is no name of a member"),
    ],
)
def test_who_does_not_belong_here_is_told_why(dialler: Dialler, words: str) -> None:
    listener = a_listener()
    with pytest.raises(PeerFault, match=words):
        listener.receive(dialler.output())
    with pytest.raises(PeerRefused, match=words):
        dialler.receive(listener.output())


def test_a_dialler_that_reaches_another_member_leaves() -> None:
    dialler, listener = a_dialler(peer="c"), a_listener(me="c")
    listener.receive(dialler.output())
    impostor = a_listener(me="x")
    impostor.receive(a_dialler(peer="x").output())

    with pytest.raises(PeerFault, match="this is 'x', not 'c'"):
        dialler.receive(impostor.output())


def test_a_refusal_in_words_reaches_the_other_side() -> None:
    dialler, listener = a_dialler(), a_listener()
    listener.receive(dialler.output())
    dialler.receive(listener.output())
    listener.receive(dialler.output())
    assert listener.state is State.PROVEN

    listener.refuse("this member does not lead")
    with pytest.raises(PeerRefused, match="member 'a' refuses a link: this member does not lead"):
        dialler.receive(listener.output())


def test_what_follows_the_welcome_is_left_to_the_link() -> None:
    dialler, listener = a_dialler(), a_listener()
    listener.receive(dialler.output())
    dialler.receive(listener.output())
    listener.receive(dialler.output())
    listener.welcome()
    welcome = listener.output()

    assert dialler.receive(welcome + b"the first frame") == len(welcome)
    assert dialler.done


def in_state(state: State) -> Handshake:
    handshake: Handshake = (
        a_dialler() if state in (State.AWAIT_CHALLENGE, State.AWAIT_WELCOME) else a_listener()
    )
    handshake.state = state
    return handshake


WRONG_TURNS = [
    (state, step)
    for state, step in itertools.product(EXPECTED, Step)
    if step not in (EXPECTED[state], Step.REFUSED)
]


@pytest.mark.parametrize(("state", "step"), WRONG_TURNS, ids=lambda value: value.name)
def test_every_step_out_of_order_is_refused(state: State, step: Step) -> None:
    handshake = in_state(state)
    with pytest.raises(PeerFault, match="is not expected"):
        handshake.receive(HEAD.pack(1, step))
    assert handshake.state is State.FAILED


@pytest.mark.parametrize("length", [0, STEP_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_step_too_large_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(PeerFault, match="is not expected"):
        a_listener().receive(HEAD.pack(length, Step.INTRODUCTION))


@given(
    st.binary(max_size=200), st.sampled_from(sorted(EXPECTED, key=lambda state: state.name)), st.booleans()
)
def test_any_bytes_are_a_step_or_a_fault_and_never_open_a_link(
    noise: bytes, state: State, framed: bool
) -> None:
    handshake = in_state(state)
    data = HEAD.pack(1 + len(noise), EXPECTED[state]) + noise if framed else noise
    try:
        for at in range(0, len(data), 7):
            handshake.receive(data[at : at + 7])
    except (PeerFault, PeerRefused):
        assert handshake.state is State.FAILED
    assert not handshake.done
    assert handshake.state is not State.PROVEN


def test_a_front_that_comes_for_itself_says_so_and_proves_it() -> None:
    client = Client("front", 0)
    listener = a_listener()
    talk(Dialler("front", "shop", SECRET, b"D" * 32, "a", client, LinkKind.OWN), listener)
    assert (listener.kind, listener.client) == (LinkKind.OWN, client)
    with pytest.raises(PeerFault, match="does not know the secret"):
        talk(Dialler("front", "shop", b"guess", b"D" * 32, "a", client, LinkKind.OWN), a_listener())
