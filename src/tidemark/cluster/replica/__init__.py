"""The machine behind the replicating modes: one member of one group.

A member follows or leads, as the view says. A follower reads from its *source* (`source.py`) and is itself the source of
others (`readers.py`):

    ViewChanged ─► Dial(source) ─► PeerUp ─► Hello ─► Offer ─► units, Completed
                                                        │  └─► rewind, reset: cut the logs back, and again from Dial
                                                        └────► Acked, as often as something is on the disk

The leader counts what the others have (`reign.py`) and says what is complete. When it is lost, or there never was one,
`succession.py` says whose turn it is. Who reads from whom is the topology's to say. This machine puts these together:
it turns events into their changes, and the changes into effects.

It is told in parts that share one state. Each is a class built on the one before, so what is used stands further up:

    core          the state, and what every part says with it
    feeding       answers hellos, and hears how far others are       with readers.py
    following     reads, keeps, cuts, acknowledges                   with source.py
    views         a newer view, an older one, none; a new epoch
    leading       the fence, what is complete, who is ready          with reign.py
    taking_over   whose turn it is, and the very first view          with succession.py, proposals.py
    orders        what operators ask for                             with loss.py
    machine       one step: an event in, effects out

Three rules carry the safety; none of them looks at a clock:

1. Nothing is complete that is not on the disk of every member which may be ready in the view that is kept.
2. A member leads only by a view that it has proposed itself in this life, and proposes one only if the view before
   calls it ready and its store has really been so (`whole`): a leader that restarts has forgotten what the others
   have, so it needs a new epoch like anybody else. The one exception is an operator who gives up what is lost (`loss.py`).
3. What is said in an epoch counts in that epoch only, and after one `resume` in it a log only grows along its leader's.
"""

from tidemark.cluster.replica.core import LogFacts
from tidemark.cluster.replica.machine import Replica

__all__ = ["LogFacts", "Replica"]
