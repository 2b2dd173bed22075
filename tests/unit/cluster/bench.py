"""One member on a bench: a mode with a toy store, stepped by hand. What it asks for is done to the store at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from unit.cluster.toys import Frame, ToyStore
from unit.cluster.world import MODES

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import (
    Belong,
    Durable,
    Effect,
    Event,
    Intend,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    PeerSaid,
    PeerUp,
    Propose,
    Reset,
    Rewind,
    State,
    Stored,
    Tell,
    Tick,
    ViewChanged,
)
from tidemark.model.peers import Acked, Ends, Hello, Log, Message, Offer, Takeover, View

CLUSTER = "c0" * 16
E = TypeVar("E")


def a_view(leader: str = "a", ready: str = "", epoch: int = 1, history: str = "", revision: int = 0) -> View:
    ready = ready or leader
    return View(CLUSTER, epoch, leader, tuple(ready), history or f"{epoch:032x}", revision or epoch * 10)


def only(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def told(effects: Iterable[Effect], kind: type[E]) -> list[tuple[str, E]]:
    return [(one.peer, one.message) for one in only(effects, Tell) if isinstance(one.message, kind)]


class Bench:
    def __init__(
        self, me: str = "a", mode: str = "standby", *, store: ToyStore | None = None, **settings: Any
    ) -> None:
        self.me = me
        self.store = store or ToyStore()
        self.config = ClusterConfig(name="c", **settings)
        self._dice = 0
        self.mode: Any = MODES[mode](me, self.config, self._entropy, self.store)  # type: ignore[call-arg]
        self.now = 1000
        self.log: list[Effect] = []
        self.step(Tick(self.now))

    def _entropy(self, size: int) -> bytes:
        self._dice += 1
        return bytes([ord(self.me[0])]) + self._dice.to_bytes(size - 1, "big")

    @property
    def state(self) -> State:
        return self.mode.state  # type: ignore[no-any-return]

    def step(self, *events: Event) -> list[Effect]:
        found: list[Effect] = []
        for event in events:
            for effect in self.mode.step(event):
                found.append(effect)
                self._do(effect)
        self.log += found
        return found

    def _do(self, effect: Effect) -> None:
        match effect:
            case Belong(cluster, epoch):
                self.store.cluster, self.store.epoch = cluster, epoch
            case Intend(history):
                self.store.founding.append(history)
            case Lead(_, history):
                self.put(history, Log.CATALOG, 0)
                self.put(history, Log.JOURNAL, 0)
            case Rewind(to):
                self.store.cut(to)
            case Reset():
                self.store.reset()

    # The store ------------------------------------------------------------------------------------------------

    def put(self, history: str, log: Log = Log.JOURNAL, value: int = 1) -> int:
        sequence = self.store.ends[log] + 1
        self.store.append(log, Frame(sequence, sequence, ((sequence, history, value),)))
        return sequence

    def sync(self) -> list[Effect]:
        for log in self.store.logs.values():
            log.sync(len(log.frames))
        return self.step(Stored(self.store.ends), Durable(self.store.durable))

    def write(self, count: int = 1) -> list[Effect]:
        """The leader's clients publish, and its disk has it."""
        for _ in range(count):
            self.put(self.mode.view.history)
        return self.sync()

    def holding(self, *histories: tuple[str, int, int], cluster: str = CLUSTER, epoch: int = 1) -> Bench:
        """Its store has these histories, each with so many records in catalog and journal, its takeover included."""
        for history, catalog, journal in histories:
            for log, count in ((Log.CATALOG, catalog), (Log.JOURNAL, journal)):
                for place in range(count):
                    self.put(history, log, place)
        for log in self.store.logs.values():
            log.sync(len(log.frames))
        self.store.cluster, self.store.epoch = cluster, epoch
        self.mode._known = False
        return self

    # What happens ---------------------------------------------------------------------------------------------

    def after(self, ms: int) -> list[Effect]:
        """So much later. Time passes in steps, as it does for a process that is awake."""
        found: list[Effect] = []
        for _ in range(ms // 10):
            self.now += 10
            found += self.step(Tick(self.now))
        return found

    def lease(self, ms: int = 3_600_000) -> list[Effect]:
        return self.step(Lease(self.now + ms))

    def see(self, view: View | None) -> list[Effect]:
        return self.step(ViewChanged(view))

    def hear(self, peer: str, message: Message) -> list[Effect]:
        return self.step(PeerSaid(peer, message))

    # Shortcuts ------------------------------------------------------------------------------------------------

    def leading(self, ready: str = "", epoch: int = 2) -> Bench:
        """It has taken over from another, and these are ready with it, and in line."""
        self.lease()
        self.see(a_view("z", "z" + (ready or self.me), epoch - 1))
        [propose] = only(self.step(MemberGone("z")), Propose) or only(self.after(2000), Propose)
        view = propose.view
        kept = replace(view, ready=tuple(ready or self.me), revision=epoch * 10, settled=view.epoch)
        self.see(kept)
        self.sync()
        self.step(MemberHere("z", CLUSTER, Ends()))
        return self

    def greeted_by(self, peer: str, durable: Ends | None = None, **facts: Any) -> list[Effect]:
        """A peer links up and says hello with this much of our log."""
        durable = self.store.durable if durable is None else durable
        table = tuple(row for row in self.store.table if durable.covers(row.first))
        hello = Hello(
            peer,
            self.mode.view.epoch,
            facts.pop("cluster", CLUSTER),
            durable,
            facts.pop("table", table),
            **facts,
        )
        return self.step(PeerUp(peer, dialled=False), PeerSaid(peer, hello))

    def acked_by(self, peer: str, durable: Ends | None = None, **behind: Ends) -> list[Effect]:
        durable = self.store.durable if durable is None else durable
        return self.hear(peer, Acked(self.mode.view.epoch, durable, tuple(behind.items())))

    def following(self, view: View, source: str = "") -> Bench:
        """It reads from its source, which said resume."""
        source = source or view.leader
        self.see(view)
        self.step(PeerUp(source, dialled=True))
        self.hear(source, Offer(view.epoch, "resume", self.store.durable, self.store.ends))
        return self


def takeover(history: str, catalog: int, journal: int) -> Takeover:
    return Takeover(history, Ends(catalog, journal))
