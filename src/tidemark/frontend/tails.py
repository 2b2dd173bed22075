"""Who shows the rows of streams in a chain whose tails alone do (`cluster.reads`).

The first member and those between are for writing: one that is asked for rows says where the tails are. What shows no row (marks,
heads, pins that are made, lists) is answered as ever, and so is the management API. Where nobody is a tail, because one
member is left, that one is both ends of the chain and shows everything.
"""

from __future__ import annotations

from tidemark.errors import NotATail
from tidemark.frontend.services import Services


def refusal(services: Services, stream: str, *, tls: bool = False) -> NotATail | None:
    """What to tell somebody who wants to be shown rows of this stream; None: they are shown here."""
    if not services.tails_only:
        return None
    topology = services.topology()
    tails = [one for one in topology.members if one.role == "tail"]
    if not tails or any(one.name == services.name for one in tails):
        return None
    places = [(one.name, one.amqps if tls else one.amqp) for one in tails]
    named = ", ".join(f"{name} at {where or 'an address that is not known here'}" for name, where in places)
    return NotATail(stream=stream, member=services.name, tails=named, epoch=topology.epoch)
