"""All bugs on purpose, of members and of fronts, by the names that `tidemark sim --plant` takes.

Invariant: a name is one bug.
"""

from __future__ import annotations

from tidemark.sim.cluster import planted as of_members
from tidemark.sim.fronts import planted as of_fronts

PLANTED = of_members.PLANTED | of_fronts.PLANTED
assert len(PLANTED) == len(of_members.PLANTED) + len(of_fronts.PLANTED)
