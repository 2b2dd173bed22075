"""Which state may follow which. A member that would make any other step stops instead of going on in the dark.

    joining ──► catch-up ◄──► ready ──┐          recovering ──► active
       │  ▲        │            │     │             ▲  ▲ │        │ ▲
       │  └────────┴────────────┘     └─────────────┘  │ ▼        ▼ │
       └───────────────────────────────────────────────┘ └► fenced ─┘      leaders that lost: back to joining

A member that is catching up never leads: the table has no such step. Whoever follows can become failed, and stays so;
a leader whose store fails ends.
"""

from __future__ import annotations

from tidemark.cluster.mode import State

TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.JOINING, State.CATCHUP),  # the source has answered
        (
            State.JOINING,
            State.RECOVERING,
        ),  # restarted, in the view, and the leader is gone; or the very first
        (State.CATCHUP, State.JOINING),  # the source is lost, or there is another leader
        (State.CATCHUP, State.READY),  # the view says so
        (State.READY, State.CATCHUP),  # the leader went on without it
        (State.READY, State.JOINING),  # there is another leader
        (State.READY, State.RECOVERING),  # it was chosen
        (State.RECOVERING, State.ACTIVE),  # all that must answer have
        (State.RECOVERING, State.FENCED),  # the lease ran out
        (State.RECOVERING, State.JOINING),  # somebody else was chosen
        (State.ACTIVE, State.FENCED),
        (State.ACTIVE, State.JOINING),
        (State.FENCED, State.RECOVERING),  # the lease came back
        (State.FENCED, State.ACTIVE),
        (State.FENCED, State.JOINING),
        (State.JOINING, State.FAILED),
        (State.CATCHUP, State.FAILED),
        (State.READY, State.FAILED),
    }
)


def legal(before: State, after: State) -> bool:
    return (before, after) in TRANSITIONS
