"""The simulated world: machines with real members, the network, etcd, and the clients.

Everything that chance decides is decided by dice that come from the seed, one for each who throws: leaving something
out of a run (`shrink.py`) changes as little as possible of the rest.

Invariant: a world is a function of its seed, its mode, its size and what is done to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

from tidemark.cluster.mode import State
from tidemark.config import Config, load
from tidemark.model.peers import Name, View
from tidemark.ports import Apart
from tidemark.sim.cluster.alone import Alone
from tidemark.sim.cluster.caretaker import Caretaker
from tidemark.sim.cluster.clock import Timeline
from tidemark.sim.cluster.disk import ROOM
from tidemark.sim.cluster.etcd import Etcd
from tidemark.sim.cluster.machine import Machine
from tidemark.sim.cluster.network import Network
from tidemark.sim.cluster.operator import Operator
from tidemark.sim.cluster.words import worded
from tidemark.sim.store import CONFIG, BrokenPromise

if TYPE_CHECKING:
    from tidemark.sim.cluster.clients import Client

ALONE: Final = "alone"
STANDBY: Final = "standby"
CHAIN: Final = "chain"
ETCD: Final = "etcd"
EXTERNAL: Final = "external"
"""Who keeps the view, and so says who leads: an etcd, or an operator."""
NAMES = ("a", "b", "c", "d", "e", "f", "g")
STORE_ERROR: tuple[Literal["quit", "leave"], ...] = ("quit", "leave")
Say = Callable[[int, str, str], None]
"""Takes the time, who, and what."""


@lru_cache
def settings() -> Config:
    return load(
        {"broker.scrypt_log2_n": "10", "limits.disk_free_bytes_min": "0", "broker.snapshot_idle_s": "300"}
    )


class World:
    def __init__(
        self, seed: int, mode: str = STANDBY, nodes: int = 3, tell: Say | None = None, provider: str = ETCD
    ) -> None:
        self.seed = seed
        self.mode = mode
        self.tell = tell
        self.dice = dice = Random(f"{seed} world")
        self.timeline = Timeline()
        self.network = Network(self.timeline, Random(f"{seed} network"))
        self.counts: dict[str, int] = {}
        """How often what happened, for the test of the runs themselves."""
        self.shipped = 0
        self.clients: list[Client] = []
        self.leaders: dict[int, Name] = {}
        """Who led in each epoch."""
        self.states: dict[Name, State] = {}
        self.rotten: Name | None = None
        """Whose log has rotted, until its member is ready again: it may have lost what it promised to hold."""
        self.told_complete = 0
        """As far as any leader has told others that the journal is complete."""
        self._emptied: dict[Name, int] = {}
        """How much was complete when a member emptied its store to be filled again."""
        self._ports = 0
        base = settings()
        store = replace(
            CONFIG,
            ack_patience_ms=dice.choice((0, 5)),
            checkpoint_bytes=dice.choice((0, 4 << 10, 32 << 10, 256 << 10)),
            cache_bytes=dice.choice((24 << 10, 1 << 20)),
        )
        self.config = replace(base, store=store)
        self.etcd: Etcd | None = None
        self.caretaker: Caretaker | None = None
        self.operator: Operator | None = None
        self.led: View | None = None
        """Without etcd: the newest view by which any member has led."""
        self._added: set[Name] = set()
        """Those that a newer one calls ready, which its leader had asked for before it stepped down: it counted on them from
        then on. One that leaves somebody out counts only when it is led by."""
        self.restless_until_us = 0
        """Members may stop until then though nothing else goes wrong."""
        self._knows: dict[Name, View] = {}
        """Without etcd: the newest view that each member was ever told."""
        self.lease_margin = 0.0
        if mode != ALONE:
            cluster = replace(
                base.cluster,
                name="sim",
                provider=EXTERNAL if provider == EXTERNAL else ETCD,
                mode=CHAIN if mode == CHAIN else STANDBY,
                size=nodes,
                lease_s=dice.choice((1, 2)),
                window_bytes=dice.choice((64 << 10, 8 << 20)),
                keep_bytes=dice.choice((64 << 10, 1 << 20, 1 << 30)),
                backup_timeout_ms=dice.choice((1000, 3000)),
                compare_s=1,
                catch_up_bytes_per_s=Random(f"{seed} catch up").choice((64 << 10, 64 << 20)),
                copies_min=min(nodes, Random(f"{seed} copies").choice((1, 1, 2))),
                on_store_error=Random(f"{seed} store error").choice(STORE_ERROR),
            )
            self.config = replace(self.config, cluster=cluster)
            self.lease_margin = cluster.lease_margin
            if provider == ETCD:
                self.etcd = Etcd(self.timeline, self.network, cluster.lease_s * 1_000_000)
                self.caretaker = Caretaker(self, self.etcd)
        self.machines = {name: Machine(self, name) for name in NAMES[:nodes]}
        self.addresses = tuple(self.machines)
        if mode != ALONE and provider == EXTERNAL:
            self.operator = Operator(self)

    # For machines ------------------------------------------------------------------------------------------------

    def new_member(self, machine: Machine, apart: Apart) -> Any:
        config = replace(self.config, node=replace(self.config.node, name=machine.name))
        if self.mode == ALONE:
            return Alone(config, machine.disk, machine, machine.dice.randbytes, apart)
        from tidemark.member.member import Member

        return Member(config, machine.disk, machine, machine.dice.randbytes, apart)

    def encode(self, message: Any) -> bytes:
        from tidemark.wire.peer.codec import encode

        return encode(message)

    def encode_unit(self, epoch: int, unit: Any) -> bytes:
        from tidemark.wire.peer.codec import encode_unit

        return b"".join(encode_unit(epoch, unit))

    def decoder(self) -> Any:
        from tidemark.wire.peer.codec import Decoder

        return Decoder()

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def before_death(self, machine: Machine) -> None:
        """Somebody may want to look into the process once more."""

    def became(self, machine: Machine, state: State, leader: Name | None) -> None:
        if state in (State.READY, State.ACTIVE):
            self.healed(machine)
            self._is_filled(machine, state)
        if self.states.get(machine.name) is not state:
            self.states[machine.name] = state
            self.count(str(state))
        view = machine.member.view
        if leader == machine.name and view is not None and view.leader == machine.name:
            known = self.leaders.setdefault(view.epoch, machine.name)
            if known != machine.name:
                raise BrokenPromise(f"{machine.name} leads in epoch {view.epoch}, in which {known} did")
            self.leads(machine)

    def emptied(self, machine: Machine) -> None:
        """Its store is emptied, and the others fill it."""
        self._emptied[machine.name] = self.told_complete

    def _is_filled(self, machine: Machine, state: State) -> None:
        """Whoever counts as ready, or leads, has what was complete when its store was emptied."""
        least, end = self._emptied.pop(machine.name, 0), machine.node.store.durable_ends.journal
        if end < least:
            raise BrokenPromise(f"{machine.name} was emptied and is {state} with {end} of {least}")
        self.count("refilled", least > 0)

    # Views, without etcd -------------------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        """The view that holds."""
        return self.etcd.newest if self.etcd is not None else self.led

    def leads(self, machine: Machine) -> None:
        """It has heard of a view, or become something: perhaps it leads by it now."""
        view = machine.member.view
        if self.operator is None or view is None or machine.member.leader != machine.name:
            return
        if view.leader != machine.name or view is self.led:
            return
        before = self.led
        known = self._added.union(before.ready if before is not None else ())
        if before is not None and view.epoch != before.epoch and machine.name not in known:
            raise BrokenPromise(
                f"{machine.name} leads by {worded(view)}, but was not ready in {worded(before)}"
            )
        if before is None or age(view) > age(before):
            self.led, self._added = view, set()

    def knows(self, machine: Machine, view: View) -> None:
        """A member was told this view, so it must not forget it."""
        known = self._knows.get(machine.name)
        if known is None or age(view) > age(known):
            self._knows[machine.name] = view
        if self.led is not None and view.history == self.led.history and age(view) > age(self.led):
            self._added.update(view.ready)

    def forgets(self, machine: Machine) -> None:
        """Its directory is emptied."""
        self._knows.pop(machine.name, None)

    def up_to_date(self, name: Name) -> bool:
        """Whether this member was told by which view the last leader led."""
        known = self._knows.get(name)
        return self.led is None or (known is not None and age(known) >= age(self.led))

    def calm(self) -> bool:
        """Whether nothing is wrong now but machines that are down."""
        if self.network.cuts or self.network.slow or self.timeline.now_us < self.restless_until_us:
            return False
        return not any(
            machine.frozen
            or machine.stopping
            or machine.disk.stalled
            or machine.disk._fail_in is not None
            or machine.disk.capacity != ROOM
            or machine.member.mode.state is State.FAILED
            for machine in self.machines.values()
            if machine.running
        )

    def when_it_may(self, action: Callable[[], None]) -> None:
        """Do something bad, but not while an operator relies on what works."""
        if self.operator is not None and self.operator.relies():
            self.timeline.after(100_000, lambda: self.when_it_may(action))
        elif self.caretaker is not None and self.caretaker.relies():
            # Soon: nobody shall take the run for quiet while something is still to come.
            self.timeline.after(10_000, lambda: self.when_it_may(action))
        else:
            action()

    def healed(self, machine: Machine) -> None:
        """Its log is whole again, or was all the time."""
        if self.rotten == machine.name:
            self.rotten = None

    def complete_at(self, broker: Any) -> int:
        """As far as what the node of this broker shows may go: what a leader has told, or counted itself."""
        if self.mode == ALONE:
            return int(broker.journal.durable_seq)
        for machine in self.machines.values():
            if machine.running and machine.node.broker is broker and machine.member.leader == machine.name:
                return max(self.told_complete, int(machine.member._complete.journal))
        return self.told_complete

    @property
    def places(self) -> list[Name]:
        """Everything that is at an end of the network."""
        return [*self.machines, *((ETCD,) if self.etcd is not None else ())]

    def addresses_for(self, client: Name) -> tuple[Name, ...]:  # noqa: ARG002
        """Where this client connects, one after the other."""
        return self.addresses

    # For all --------------------------------------------------------------------------------------------------------

    def say(self, who: str, what: str, *facts: object) -> None:
        if self.tell is not None:
            words = what % tuple(worded(fact) for fact in facts) if facts else what
            self.tell(self.timeline.now_us, who, words.rstrip())

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    @property
    def serving(self) -> Machine | None:
        """The machine that serves clients now; None: none does, or more than one thinks so."""
        found = [
            machine
            for machine in self.machines.values()
            if machine.running and not machine.frozen and machine.member.serving
        ]
        return found[0] if len(found) == 1 else None


def age(view: View) -> tuple[int, str]:
    """Of two views without an etcd the one with more is the newer."""
    return view.revision, view.history
