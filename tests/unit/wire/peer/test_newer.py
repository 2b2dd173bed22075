"""Members that speak a newer version of the peer protocol."""

from __future__ import annotations

import pytest
from unit.wire.peer.test_handshake import a_dialler, a_listener

from tidemark.errors import PeerFault, PeerRefused
from tidemark.model.peers import Completed, Ends
from tidemark.wire.peer.codec import HEAD, ZERO, Decoder, Kind, encode
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


@pytest.mark.parametrize("kind", range(max(Kind) + 1, 256, 13))
def test_an_event_that_is_not_known_ends_the_link_and_what_came_before_it_counts(kind: int) -> None:
    """Q-25: it is not passed over: behind a gap nothing may be acknowledged."""
    decoder, before = Decoder(), Completed(3, Ends(1, 2))
    assert decoder.feed(encode(before)) == [before]
    with pytest.raises(PeerFault, match=f"kind {kind} is not the beginning"):
        decoder.feed(HEAD.pack(HEAD.size - 4, kind, ZERO, 3) + encode(before))
