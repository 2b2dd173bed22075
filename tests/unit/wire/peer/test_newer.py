"""Members that speak a newer version of the peer protocol."""

from __future__ import annotations

import pytest
from unit.wire.peer.test_handshake import a_dialler, a_listener

from tidemark.errors import PeerFault, PeerRefused
from tidemark.model.peers import Completed, Ends
from tidemark.wire.peer.codec import ADVICE, HEAD, ZERO, Decoder, Kind, encode
from tidemark.wire.peer.handshake import MAGIC, VERSION

WORDS = f"version {VERSION + 1} of the peer protocol is not spoken here, {VERSION} is"


def newer(said: bytes) -> bytes:
    """The same, by one who speaks the next version."""
    assert MAGIC + bytes([VERSION]) in said
    return said.replace(MAGIC + bytes([VERSION]), MAGIC + bytes([VERSION + 1]))


def test_a_newer_member_that_dials_is_told_which_version_is_spoken() -> None:
    """Q-25, Q-77: versions are compared before anything else is said."""
    dialler, listener = a_dialler(), a_listener()
    with pytest.raises(PeerFault, match=WORDS):
        listener.receive(newer(dialler.output()))
    with pytest.raises(PeerRefused, match=WORDS):
        dialler.receive(listener.output())


def test_a_newer_leader_is_not_followed() -> None:
    """Q-25: a scripted newer primary. Nothing of it is kept, for what is not understood may be what was confirmed."""
    dialler, listener = a_dialler(), a_listener()
    listener.receive(dialler.output())
    with pytest.raises(PeerFault, match=WORDS):
        dialler.receive(newer(listener.output()))
    assert not dialler.done


@pytest.mark.parametrize("kind", range(max(Kind) + 1, ADVICE, 13))
def test_an_event_that_is_not_known_ends_the_link_and_what_came_before_it_counts(kind: int) -> None:
    """Q-25: what may be needed is not passed over: behind a gap nothing may be acknowledged."""
    decoder, before = Decoder(), Completed(3, Ends(1, 2))
    assert decoder.feed(encode(before)) == [before]
    with pytest.raises(PeerFault, match=f"kind {kind} are needed and not known here: upgrade this member"):
        decoder.feed(HEAD.pack(HEAD.size - 4, kind, ZERO, 3) + encode(before))


@pytest.mark.parametrize("kind", range(ADVICE + 1, 256, 13))
@pytest.mark.parametrize("cut", [3, 20, 30])
def test_advice_that_is_not_known_is_passed_over_and_what_comes_behind_it_counts(kind: int, cut: int) -> None:
    """Q-25: a scripted newer primary says more than is understood, in one read or in two."""
    decoder, before, behind = Decoder(), Completed(3, Ends(1, 2)), Completed(3, Ends(1, 5))
    advice = HEAD.pack(HEAD.size - 4 + 9, kind, ZERO, 3) + b"any words"
    assert decoder.feed(encode(before) + advice + encode(behind)) == [before, behind]
    said = advice + encode(behind)
    assert decoder.feed(said[:cut]) + decoder.feed(said[cut:]) == [behind]


@pytest.mark.parametrize("kind", Kind)
def test_nothing_that_is_said_today_may_be_passed_over(kind: Kind) -> None:
    assert not kind & ADVICE
