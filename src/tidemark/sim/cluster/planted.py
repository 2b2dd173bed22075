"""Bugs on purpose: each breaks the real code in one way, and the simulator must find it within so many runs.

They are the mistakes that replication is known for. A plant takes a function like `setattr` and changes classes or modules
with it; a test undoes that, `tidemark sim --plant NAME` does not need to.

Invariant: without a plant nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from tidemark.cluster import divergence
from tidemark.cluster.loss import Stock
from tidemark.cluster.mode import Answer, Asked, State, Survey
from tidemark.cluster.progress import Progress
from tidemark.cluster.reign import Reign
from tidemark.cluster.replica import Replica, core
from tidemark.member import shipping
from tidemark.member.member import Facts, Member
from tidemark.member.shipping import Shipping
from tidemark.member.views import Views
from tidemark.model.peers import Acked, Completed, Ends, Hello, Log, Offer, Unit, View
from tidemark.model.records import TOMBSTONE, RecordType
from tidemark.model.wiring import QueueSpec
from tidemark.node import Node
from tidemark.sim.cluster import telling
from tidemark.sim.cluster.run import Shape
from tidemark.sim.cluster.world import CHAIN, ETCD, EXTERNAL, STANDBY
from tidemark.store.frames import walk
from tidemark.store.journal import Journal
from tidemark.store.recovery import Damage, Replay
from tidemark.store.store import Store

Set = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True)
class Hunt:
    """Runs in which a bug is looked for."""

    seeds: int
    """Within so many, from seed 0 on, it must be found."""
    shape: Shape


@dataclass(frozen=True, slots=True)
class Plant:
    about: str
    plant: Callable[[Set], None]
    found_by: tuple[str, ...]
    """Patterns of the promises that it breaks; one that breaks another has not been understood."""
    hunts: tuple[Hunt, ...]
    """Of each mode and provider in which it must be found; where it is looked for first if nothing is said."""

    def hunt(self, mode: str | None = None, provider: str | None = None) -> Hunt | None:
        for one in self.hunts:
            if mode in (None, one.shape.mode) and provider in (None, one.shape.provider):
                return one
        return None


def hunt(seeds: int, mode: str, work: str = "", about: str = "", provider: str = ETCD) -> Hunt:
    """`work` and `about` as they are for `tidemark sim`."""
    return Hunt(seeds, Shape(mode, work=_words(work), about=_words(about), provider=provider))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def confirms_by_its_own_disk(set_: Set) -> None:
    def advance(self: Progress, durable: Ends) -> Ends:
        self.complete = self.complete.most(durable)
        return self.complete

    set_(Progress, "advance", advance)


def acknowledges_before_it_is_durable(set_: Set) -> None:
    def durable(self: Facts) -> Ends:
        store = self._member.node.store
        return store.durable_ends if self._member.leader == self._member.name else store.ends

    set_(Facts, "durable", property(durable))


def does_not_sync_when_it_follows(set_: Set) -> None:
    honest_follow, honest_lead = Member._follow, Member._lead

    def follow(self: Member, leader: str | None) -> None:
        self._disk.honest = False  # type: ignore[attr-defined]
        honest_follow(self, leader)

    def lead(self: Member, effect: Any) -> None:
        self._disk.honest = True  # type: ignore[attr-defined]
        honest_lead(self, effect)

    set_(Member, "_follow", follow)
    set_(Member, "_lead", lead)


def never_fences(set_: Set) -> None:
    set_(Replica, "_fence", lambda *_: None)


def leads_without_being_ready(set_: Set) -> None:
    """A member that fell behind offers itself all the same."""
    honest = Replica._consider_leading

    def consider(self: Replica) -> int | None:
        view = self.view
        if view is None or self.me in view.ready or not self._cluster:
            return honest(self)
        self.view, whole, state = (
            replace(view, ready=(*view.ready, self.me), settled=0),
            self._whole,
            self.state,
        )
        self._whole, self.state = True, State.JOINING
        try:
            return honest(self)
        finally:
            self.view, self._whole, self.state = view, whole, state

    set_(Replica, "_consider_leading", consider)
    set_(core, "legal", lambda *_: True)


def leads_on_after_a_restart(set_: Set) -> None:
    """A leader that comes back goes on in its old epoch, in which it no longer knows what the others have."""
    honest = Replica._new_epoch

    def new_epoch(self: Replica, view: View, before: View | None) -> None:
        if view.leader == self.me and before is None and self._whole:
            self._proposals.histories.add(view.history)
        honest(self, view, before)

    set_(Replica, "_new_epoch", new_epoch)


def does_not_wait_for_the_others_after_a_takeover(set_: Set) -> None:
    """A new leader believes that the ready members have all that it has."""
    honest = Reign.__post_init__

    def begin(self: Reign) -> None:
        honest(self)
        for name in self.view.ready:
            self.progress.acked(name, Ends(1 << 40, 1 << 40))

    set_(Reign, "__post_init__", begin)


def never_rewinds(set_: Set) -> None:
    honest = divergence.answer

    def answer(hello: Hello, **how: Any) -> Offer:
        offer = honest(hello, **how)
        return replace(offer, verdict="resume", to=hello.durable) if offer.verdict == "rewind" else offer

    set_(divergence, "answer", answer)


def goes_on_without_asking(set_: Set) -> None:
    """A member that is late is left out at once; the view still calls it ready."""
    honest, late = Reign.require, Reign.late

    def require(self: Reign, undecided: tuple[View, ...]) -> None:
        honest(self, undecided)
        self.progress.required = set(self.progress.required) - late(self).keys()

    set_(Reign, "require", require)
    set_(Reign, "late", lambda _: {})


def sends_messages_before_their_queues(set_: Set) -> None:
    set_(shipping, "LOGS", (Log.JOURNAL, Log.CATALOG))

    def flush(self: Node, now_ms: int, **how: Any) -> None:
        self.journal.flush(now_ms, told=how.get("told", False) or not self.serving or not self.broker.dirty)
        self.catalog.flush(now_ms)

    set_(Node, "_flush", flush)


def _units(set_: Set, change: Callable[[Unit], list[Unit]]) -> None:
    honest = Store.units_after

    def units_after(self: Store, log: Log, seq: int, budget_bytes: int) -> list[Unit]:
        found = honest(self, log, seq, budget_bytes)
        return found if log is Log.CATALOG else [one for unit in found for one in change(unit)] or found

    set_(Store, "units_after", units_after)


def loses_tombstones(set_: Set) -> None:
    """Deletes of keys are not passed on."""

    def change(unit: Unit) -> list[Unit]:
        rows = walk(unit.payload, 0, len(unit.payload))
        deletes = all(
            kind == RecordType.MESSAGE and unit.payload[at + 5] & TOMBSTONE for at, _, kind, *_ in rows
        )
        return [] if deletes else [unit]

    _units(set_, change)


def cuts_transactions_in_two(set_: Set) -> None:
    """What must be stored whole is sent record by record."""

    def change(unit: Unit) -> list[Unit]:
        parts: list[Unit] = []
        for at, length, kind, seq, targets in walk(unit.payload, 0, len(unit.payload)):
            last = seq + max(0, targets - 1) if kind == RecordType.MESSAGE else seq
            previous = parts[-1].last if parts else unit.previous
            parts.append(Unit(unit.log, previous, seq, last, unit.payload[at : at + length]))
        return parts

    _units(set_, change)


def does_not_notice_a_gap(set_: Set) -> None:
    """A frame is kept though the one before it is missing."""
    honest = Replica._given

    def given(self: Replica, one: Any) -> None:
        kept = self._source.kept
        if kept is not None and one.first > kept[one.log]:
            one = replace(one, previous=kept[one.log])
        honest(self, one)

    set_(Replica, "_given", given)
    # The sender forgets a frame now and then, as one that mixes up its links would.
    ship = Shipping._ship_some

    def ship_some(self: Shipping, store: Store, epoch: int, peer: str, sender: Any, *how: Any) -> int:
        sent = ship(self, store, epoch, peer, sender, *how)
        if sent and sender.after[Log.JOURNAL] % 17 == 0:
            sender.after[Log.JOURNAL] += 1
        return sent

    set_(Shipping, "_ship_some", ship_some)


def keeps_what_it_did_when_it_led(set_: Set) -> None:
    """A leader that was replaced does not read its store anew."""

    honest = Member._follow

    def follow(self: Member, leader: str | None) -> None:
        if self.leader == self.name:
            self.leader = leader
            self.node.serving = self.node.paused = False
            self._outside.retired(self.node)
        honest(self, leader)

    set_(Member, "_follow", follow)


def compacts_what_is_not_complete(set_: Set) -> None:
    set_(Journal, "is_stable", lambda *_: True)


def gives_sequences_again(set_: Set) -> None:
    """A new leader begins where the old one's confirmed records ended, not behind its own log."""
    honest = Journal.take_over

    def take_over(self: Journal, history: bytes, now_ms: int) -> int:
        self.arena.next_seq = max(1, self.arena.next_seq - 1)
        return honest(self, history, now_ms)

    set_(Journal, "take_over", take_over)


def starts_without_what_rotted(set_: Set) -> None:
    """Damage is reported, and the log read on behind it."""

    def report(self: Replay, damage: Damage) -> None:
        self.damage.append(damage)

    set_(Replay, "_report", report)


def keeps_what_it_should_not(set_: Set) -> None:
    """Who reads the catalog makes a queue that keeps its messages of every durable one."""

    def in_journal(self: QueueSpec) -> bool:
        return self.durable and not self.exclusive

    set_(QueueSpec, "in_journal", property(in_journal))


def forgets_a_message_that_it_has(set_: Set) -> None:
    """Now and then a follower's memory loses what its log has."""
    honest = Node.adopt

    def adopt(self: Node, log: Log, payload: memoryview) -> None:
        honest(self, log, payload)
        if log is Log.JOURNAL and self.store.ends.journal % 5 == 0:
            last = self.store.ends.journal
            for queue in self.broker.journaled.values():
                if not queue.keeps and any(queue.forget(seq) for seq in range(last, max(0, last - 20), -1)):
                    return

    set_(Node, "adopt", adopt)


def shows_what_is_stored(set_: Set) -> None:
    """A follower shows its readers what is on its own disk."""
    honest = Node.complete

    def complete(self: Node, upto: Ends) -> None:
        honest(self, upto if self.serving else Ends(upto.catalog, self.store.durable_ends.journal))

    set_(Node, "complete", complete)


def acts_on_an_older_view(set_: Set) -> None:
    """A member takes whatever view is kept, though it or its store has seen a newer one."""
    set_(Replica, "_is_older", lambda *_: False)


def trusts_a_view_from_before_it_was_emptied(set_: Set) -> None:
    """A store that its leader fills is whole by any view that calls its member ready, also one that is late."""

    def counts(self: Replica, view: View) -> bool:
        return self.me in view.ready and (self._whole or self._source.vouched)

    set_(Replica, "_counts_on_us", counts)


def lets_anybody_found_the_cluster_again(set_: Set) -> None:
    """When the view that holds is kept nowhere, whoever is promoted first leads, whatever the others have."""
    set_(Stock, "objection_to_founding", lambda *_, **__: None)


# When an operator says who leads -------------------------------------------------------------------------------------


def promotes_without_asking(set_: Set) -> None:
    """A promotion and a leader's changes go by the view that the member itself knows."""

    def next_proposal(self: Views, now_ms: int) -> None:
        if self._open is None and self._waiting:
            self._open = self._waiting.popleft()
            self._others_asked({}, now_ms)

    def survey(revision: Callable[[], int], _: Any) -> Generator[set[str], Any, Survey]:
        yield from ()
        return Survey(revision())

    set_(Views, "_next_proposal", next_proposal)
    set_(telling, "survey", survey)


def keeps_only_promotions(set_: Set) -> None:
    """Of an epoch only the first view is in the file; what changes in it is only told."""
    honest = Views._keep

    def keep(self: Views, view: View) -> bool:
        if self.view is None or view.epoch != self.view.epoch:
            return honest(self, view)
        self.view = view
        return True

    set_(Views, "_keep", keep)


def lets_anybody_be_promoted(set_: Set) -> None:
    """A member that is not ready takes over when it is asked to."""
    honest = Replica._promote

    def promote(self: Replica, asked: Asked) -> Answer:
        if self.view is not None and self._cluster:
            self.view = self.view.with_ready(self.me)
            self._whole = True
            if self.state is State.CATCHUP:
                self.state = State.JOINING
        return honest(self, asked)

    set_(Replica, "_promote", promote)


def keeps_whatever_it_is_told(set_: Set) -> None:
    """Of two views of an epoch the one that was heard last is in the file."""
    honest = Views._take

    def take(self: Views, view: View, peer: str) -> None:
        if self.view is not None and view.epoch == self.view.epoch and view.revision < self.view.revision:
            self.view = replace(self.view, revision=view.revision - 1)
        honest(self, view, peer)

    set_(Views, "_take", take)


# In a chain ----------------------------------------------------------------------------------------------------------


def acknowledges_for_those_behind(set_: Set) -> None:
    """A member in the middle says that those behind it have what it has itself."""

    def acknowledge(self: Replica, view: View) -> None:
        source, durable = self._source, self._facts.durable
        assert source.name is not None
        behind = tuple((name, durable) for name in sorted(self._readers.reached() - {self.me, source.name}))
        acked = Acked(view.epoch, durable, behind)
        if source.acknowledge(acked, self._now):
            self._tell(source.name, acked)

    set_(Replica, "_acknowledge", acknowledge)


def waits_for_the_next_one_only(set_: Set) -> None:
    """The head confirms what the member behind it has."""
    honest = Reign.require

    def require(self: Reign, undecided: tuple[View, ...]) -> None:
        honest(self, undecided)
        behind = {name for name in self.view.ready[1:] if self.topology.source(self.view, name) != self.me}
        self.progress.required = set(self.progress.required) - behind

    set_(Reign, "require", require)


def shows_at_the_tail_what_has_come(set_: Set) -> None:
    """The last of the chain takes what is on its own disk for complete: those before it may still be writing it."""
    honest = Member._completed

    def completed(self: Member, upto: Ends) -> None:
        if self.view is not None and self.view.ready[-1] == self.name and not self.serving:
            upto = Ends(upto.catalog, self.node.store.durable_ends.journal)
        honest(self, upto)

    set_(Member, "_completed", completed)


def tells_those_behind_what_it_has(set_: Set) -> None:
    """A member in the middle calls complete what is on its own disk."""
    honest = Replica._tell

    def tell(self: Replica, peer: str, message: Any) -> None:
        if isinstance(message, Completed) and self._reign is None:
            message = replace(message, upto=self._facts.durable)
        honest(self, peer, message)

    set_(Replica, "_tell", tell)


# By what they are found -----------------------------------------------------------------------------------------------

LOST = "has lost .* which were confirmed"
BEHIND = "is ready by the view and has .* is complete"
OTHER = "has (another record|a record too many|no record) at"
EMPTIED = "was emptied and is ready with"
ACCOUNTS = "the accounts have"
APART = "(queue|binding|stream) .* differs: |members differ|has hash and rows"
STALE = "a snapshot shows|is now shown at"
EARLY = "is shown .* but .* is complete"
OUTSIDE = "after the last fault: .* is joining [(]it waits for"
UNREADY = "leads by .* but was not ready in"
CONFIRMED = "asks to cut the logs back to .* was confirmed"


def _plant(about: str, plant: Callable[[Set], None], found_by: tuple[str, ...], *hunts: Hunt) -> Plant:
    return Plant(about, plant, found_by, hunts)


def _both(seeds: int, work: str = "", about: str = "", provider: str = ETCD) -> tuple[Hunt, Hunt]:
    """In both modes of a cluster alike."""
    return hunt(seeds, STANDBY, work, about, provider), hunt(seeds, CHAIN, work, about, provider)


PLANTED: dict[str, Plant] = {
    "early-confirm": _plant(
        "a publish is confirmed by the leader's disk alone",
        confirms_by_its_own_disk,
        (BEHIND, LOST),
        *_both(20),
    ),
    "ack-before-durable": _plant(
        "a follower acknowledges what its disk does not have",
        acknowledges_before_it_is_durable,
        (BEHIND, EMPTIED, LOST),
        *_both(40),
    ),
    "no-sync": _plant(
        "a follower does not sync",
        does_not_sync_when_it_follows,
        ("cannot start: .* (checksum|mark|no frame)", BEHIND),
        *_both(20),
    ),
    "no-fence": _plant(
        "a leader whose lease ran out goes on",
        never_fences,
        (STALE,),
        *_both(60, "keyed", "isolate,freeze"),
    ),
    "unready-leader": _plant(
        "a member that is not ready takes over",
        leads_without_being_ready,
        (BEHIND, OTHER, LOST),
        *_both(40),
    ),
    "same-epoch": _plant(
        "a leader that restarts goes on in its epoch",
        leads_on_after_a_restart,
        (OTHER, BEHIND),
        *_both(150, "keyed", "lose_power,stall,kill"),
    ),
    "no-waiting": _plant(
        "after a takeover nobody is waited for",
        does_not_wait_for_the_others_after_a_takeover,
        (BEHIND, OTHER),
        *_both(20),
    ),
    "no-rewind": _plant("a log that parted is not cut back", never_rewinds, (OTHER,), *_both(60)),
    "silent-drop": _plant(
        "a late member is left out without a new view", goes_on_without_asking, (BEHIND, LOST), *_both(30)
    ),
    "journal-first": _plant(
        "messages travel before their queues",
        sends_messages_before_their_queues,
        (APART, LOST, ACCOUNTS),
        *_both(30),
    ),
    "lost-tombstone": _plant(
        "deletes are not passed on", loses_tombstones, (OTHER, APART), *_both(30, "keyed")
    ),
    "cut-transaction": _plant(
        "transactions are sent in pieces",
        cuts_transactions_in_two,
        (ACCOUNTS, "a transaction was cut in two"),
        *_both(200, "bank", "kill"),
    ),
    "gap": _plant(
        "a missing frame is not noticed",
        does_not_notice_a_gap,
        ("cannot go on: a frame of .* comes behind", OTHER),
        *_both(20),
    ),
    "no-reading-anew": _plant(
        "a deposed leader keeps its memory",
        keeps_what_it_did_when_it_led,
        (APART,),
        *_both(60, "queues", "isolate,freeze"),
    ),
    "memory-slip": _plant(
        "a follower forgets a message that it has", forgets_a_message_that_it_has, (LOST, APART), *_both(10)
    ),
    "early-compaction": _plant(
        "what is not complete is compacted",
        compacts_what_is_not_complete,
        ("cannot be done: the .* log is whole only from", APART, OTHER),
        *_both(60, "bank", "kill,isolate"),
    ),
    "sequence-again": _plant(
        "a takeover gives a sequence again",
        gives_sequences_again,
        (CONFIRMED, OTHER, BEHIND, OUTSIDE),
        *_both(20),
    ),
    "skipped-rot": _plant(
        "a member starts without what rotted in its log",
        starts_without_what_rotted,
        (OTHER, BEHIND, "NotFound: no (queue|exchange)", "CorruptRecord: "),
        *_both(20, "keyed,queues", "rot,kill"),
    ),
    "kept-too-much": _plant(
        "a queue that is to lose its messages keeps them",
        keeps_what_it_should_not,
        ("loose has .* which does not lead",),
        *_both(20, "loose"),
    ),
    "far-early": _plant(
        "a follower shows what is not complete",
        shows_what_is_stored,
        (EARLY,),
        *_both(20, "far", "slow,stall,kill"),
    ),
    "old-view": _plant(
        "a member acts on a view that was brought back from a copy",
        acts_on_an_older_view,
        ("brought back, and nobody leads anew", "brought back from a copy, and is replaced"),
        *_both(20, about="etcd_brought_back,kill,isolate"),
    ),
    "late-view": _plant(
        "an emptied store is called full by a view from before",
        trusts_a_view_from_before_it_was_emptied,
        (EMPTIED, BEHIND),
        *_both(20, about="refill,isolate,kill,slow"),
        *_both(30, about="refill,isolate,kill,slow", provider=EXTERNAL),
    ),
    "any-founder": _plant(
        "a member is promoted though another has more, when the view is lost",
        lets_anybody_found_the_cluster_again,
        (BEHIND, LOST, EMPTIED),
        *_both(30, about="etcd_brought_back,lose_power,isolate"),
    ),
    "unasked": _plant(
        "a promotion does not ask for a newer view",
        promotes_without_asking,
        (UNREADY,),
        *_both(60, about="promote_left_out,kill", provider=EXTERNAL),
    ),
    "forgotten-view": _plant(
        "a member that was left out forgets it",
        keeps_only_promotions,
        (UNREADY, BEHIND),
        *_both(60, about="lose_power,lose_all_power,isolate", provider=EXTERNAL),
    ),
    "unready-promotion": _plant(
        "a member that is not ready can be promoted",
        lets_anybody_be_promoted,
        (UNREADY, "lacks something and was promoted"),
        *_both(60, about="promote_unready,kill,isolate", provider=EXTERNAL),
    ),
    "older-view": _plant(
        "an older view takes the place of a newer one",
        keeps_whatever_it_is_told,
        (UNREADY, "the view that is kept, .* is older than the one"),
        *_both(60, about="lose_power,lose_all_power,isolate", provider=EXTERNAL),
    ),
    "ack-for-others": _plant(
        "a member in the middle of a chain acknowledges for those behind it",
        acknowledges_for_those_behind,
        (BEHIND, LOST),
        hunt(40, CHAIN),
    ),
    "middle-confirms": _plant(
        "the head of a chain confirms what the member behind it has",
        waits_for_the_next_one_only,
        (BEHIND, LOST),
        hunt(20, CHAIN),
    ),
    "tail-shows": _plant(
        "the tail of a chain shows all that it has",
        shows_at_the_tail_what_has_come,
        (EARLY,),
        hunt(100, CHAIN, "far", "slow,stall,kill"),
    ),
    "middle-completes": _plant(
        "a member in the middle of a chain calls complete what it has",
        tells_those_behind_what_it_has,
        (EARLY, CONFIRMED),
        hunt(40, CHAIN, "far", "slow,stall,kill"),
    ),
}
"""By name."""
