"""A shop's day: orders that are placed, changed many times, shipped or cancelled, as events an AMQP client publishes.

The same seed gives the same day. `Shop.events` yields what happens; `Shop.orders` is what is true so far, which is what
a stream of the newest versions, and every sink behind it, must show in the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CITIES = (
    "Bergen",
    "Cork",
    "Faro",
    "Ghent",
    "Graz",
    "Lund",
    "Nantes",
    "Porto",
    "Tartu",
    "Turin",
    "Utrecht",
    "Vigo",
)
NAMES = (
    "Ada",
    "Bruno",
    "Clara",
    "Edsger",
    "Frances",
    "Grace",
    "Hedy",
    "Ivan",
    "Jean",
    "Katherine",
    "Leslie",
    "Mary",
)
GOODS = (
    "kettle",
    "lamp",
    "rain coat",
    "bicycle bell",
    "chess set",
    "teapot",
    "tent",
    "violin string",
    "atlas",
    "compass",
)
WISHES = (
    "leave it with the neighbour",
    "please ring twice",
    "fragile, handle with care",
    "gift wrapping, no invoice",
    "deliver after six in the evening",
    "the dog is friendly",
)
STAGES = ("placed", "paid", "packed", "shipped", "delivered")


@dataclass
class Shop:
    events: int = 200_000
    keys: int = 20_000
    seed: int = 7
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Order → its newest version, of all events that were handed out."""
    cancelled: int = 0

    def day(self) -> Iterator[tuple[str, bytes]]:
        """(order, body) one after the other; an empty body says that the order is cancelled and gone."""
        dice = random.Random(self.seed)
        for number in range(self.events):
            # The first tenth of the day mostly brings new orders; afterwards they change.
            order = f"o-{dice.randrange(self.keys):05d}"
            known = self.orders.get(order)
            if known is not None and dice.random() < 0.02:
                del self.orders[order]
                self.cancelled += 1
                yield order, b""
                continue
            version = self._changed(known, dice) if known else self._placed(dice)
            version["event"] = number
            self.orders[order] = version
            yield order, json.dumps(version).encode()

    def _placed(self, dice: random.Random) -> dict[str, Any]:
        return {
            "customer": f"{dice.choice(NAMES)} of {dice.choice(CITIES)}",
            "city": dice.choice(CITIES),
            "goods": dice.choice(GOODS),
            "wish": dice.choice(WISHES),
            "cents": dice.randrange(500, 50_000),
            "status": STAGES[0],
        }

    def _changed(self, known: dict[str, Any], dice: random.Random) -> dict[str, Any]:
        changed = dict(known)
        if dice.random() < 0.6:
            changed["status"] = STAGES[min(STAGES.index(known["status"]) + 1, len(STAGES) - 1)]
        else:
            changed["cents"] = dice.randrange(500, 50_000)
            changed["wish"] = dice.choice(WISHES)
        return changed
