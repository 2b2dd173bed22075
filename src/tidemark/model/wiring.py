"""The wiring of a virtual host and who may use it, as values.

What clients declare and operators configure: exchanges, queues, bindings, users and their permissions.
These are facts without behaviour; `broker/` gives them life, the catalog writes them down, the admin API
shows them.

Invariant: two values that are equal stand for the same declaration; `arguments` are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Arguments = dict[str, Any]
"""Plain Python values (bool, int, float, str, bytes, list, dict, None) and the typed ones of `model.values`."""

FIRST_TRANSIENT_NUMBER = 1 << 31
"""Queue numbers from here on belong to queues that are in no catalog: they end with the process.

The catalog counts only those below, so a record in the journal that names a transient queue of an earlier
process can never be taken for one of a queue declared since.
"""

FIRST_RESERVED_NUMBER = 0x7FFFFF00
"""Numbers from here up to `FIRST_TRANSIENT_NUMBER` are the broker's own, durable and in no catalog."""

STATE_NUMBER = 0x7FFFFFFF
"""The hidden stream of marks, pins, registered consumers and producers."""


@dataclass(frozen=True, slots=True)
class VhostSpec:
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


MAIN = "main"
"""The group of a cluster that keeps the wiring of all its groups. A broker that stands alone is one."""

TO_HEADER = "x-tidemark-to"
"""In a message that a front publishes: the queues that it is for. The two below say what is shown of it."""
EXCHANGE_HEADER = "x-tidemark-exchange"
KEY_HEADER = "x-tidemark-key"
LIFE_HEADER = "x-tidemark-life"
"""In one that a front moves on: the incarnation of its queue that it is for. Without it any will do."""
TURN_HEADER = "x-tidemark-turn"
"""In one that it moves on: where it waited, and in which turn it was taken there (`model/turns.py`)."""
NUMBER_ARGUMENT = "x-tidemark-number"
"""Of a consumer of a front's own: it wants the queue with this number, and no other of that name."""

LIVES = "tidemark.lives"
"""The capability of a broker that knows incarnations of queues; only fronts are told."""

FRONT_USER = "amq.tidemark.front"
"""What a front that comes for itself is called where users are shown. It is nobody's name to log in with."""

Replicate = Literal["none", "configuration", "messages"]
"""How much of a durable queue the members of a cluster keep beside the leader."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    vhost: str
    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    number: int = 0
    """Which queue it is in the journal. Given once, never used again."""
    replicate: Replicate = "messages"
    """Decided once, when it is declared (`Broker.replicated`): whoever reads the catalog takes it as it is there."""
    group: str = ""
    """The group of the cluster that it lives in, decided once, too (`Broker.placed`); empty: here. A queue that lives
    elsewhere is here as a stand-in: bindings lead to it, and it holds what does not come through a front."""
    incarnation: int = 0
    """Of a queue that lives in another group than main, which life of it this is (`broker/incarnations.py`): main counts them, and
    its group keeps the number that it was told. 0: it was not told."""

    @property
    def life(self) -> int:
        """Of a stand-in: the incarnation of its queue. One that was declared before they were counted is in its first."""
        return self.incarnation or self.number

    @property
    def in_catalog(self) -> bool:
        """It outlives the process that it was declared at, with its bindings."""
        return self.durable and self.replicate != "none"

    @property
    def in_journal(self) -> bool:
        """Its persistent messages do, too. Nothing is worth writing down of a queue that ends with its connection."""
        return self.durable and not self.exclusive and self.replicate == "messages"


@dataclass(frozen=True, slots=True)
class BindingSpec:
    vhost: str
    source: str
    destination: str
    to_queue: bool
    key: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserSpec:
    name: str
    password_hash: str = ""
    """As `broker.access` writes it; empty: no password opens this account."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PermissionSpec:
    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionSpec:
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What is wanted for all queues, streams or exchanges whose names match; see `broker.policies`."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Arguments


@dataclass(frozen=True, slots=True)
class OperatorPolicySpec(PolicySpec):
    """The same, by whoever runs the broker for others: its limits hold whatever the others ask for."""


@dataclass(frozen=True, slots=True)
class UserLimitsSpec:
    """How much a user may have at a time: "max-connections", "max-channels". Without any there is no limit."""

    user: str
    limits: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A setting of a component in one virtual host. Kept and exported for whoever reads it."""

    vhost: str
    component: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class GlobalParameterSpec:
    name: str
    value: Any


Spec = (
    VhostSpec
    | ExchangeSpec
    | QueueSpec
    | BindingSpec
    | UserSpec
    | PermissionSpec
    | TopicPermissionSpec
    | PolicySpec
    | OperatorPolicySpec
    | UserLimitsSpec
    | ParameterSpec
    | GlobalParameterSpec
)
