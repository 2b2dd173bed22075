"""One member of a cluster, without a socket or a clock: a node, the mode that tells it what to do, and its senders.

The shell gives it what happens: turns and news of the disk as for a `Node`; links, messages and frames of peers;
views, leases and members from whoever keeps them. Each becomes an event for the mode, and this module performs
the effects. It decides nothing itself.

    peer's frame ─► mode: Keep? ─► node.adopt ─► turn: disk ─► Durable ─► mode ─► Tell(source, Acked)
    publisher ─► node ─► turn: disk ─► Stored ─► senders ship it     peers' Acked ─► mode ─► Complete ─► confirms

When its logs must be cut back, or when it led and somebody else does now, the node is thrown away and another one
reads the same store: what is in memory can be had again from the disk, and taking it apart piece by piece could not
be made sure of. Events wait while that happens.

Invariant: what is adopted is appended to the logs in the order in which the source has it; nothing is ever sent that
the local logs do not hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from typing import Protocol

from tidemark.cluster.chain.mode import ChainMode
from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Broken,
    Complete,
    Dial,
    Drain,
    Durable,
    Effect,
    Event,
    Fence,
    Follow,
    Given,
    Hush,
    Intend,
    Keep,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    Mode,
    PeerDown,
    PeerSaid,
    PeerUp,
    ProposalFailed,
    Propose,
    Quit,
    Reread,
    Reset,
    Rewind,
    Send,
    Skip,
    State,
    Stored,
    Survey,
    Tell,
    Tick,
    Unfence,
    ViewChanged,
    Wake,
)
from tidemark.cluster.standby.mode import StandbyMode
from tidemark.config import Config
from tidemark.errors import LogGone, StoreError
from tidemark.member.comparing import TIMES, Comparing, Round
from tidemark.member.counting import count_messages
from tidemark.member.floors import Floors
from tidemark.member.shipping import Links, Shipping
from tidemark.model.peers import (
    Acked,
    Census,
    Compare,
    Completed,
    Ends,
    Log,
    Message,
    Name,
    Offer,
    Takeover,
    Unit,
    View,
)
from tidemark.node import Node, Outside
from tidemark.ports import Apart, Disk
from tidemark.store.journal import RecoveryReport
from tidemark.store.rewind import forget_checkpoints, reset, rewind


class MemberOutside(Links, Outside, Protocol):
    """What a member asks of its shell, beside what its node does."""

    def tell(self, peer: Name, message: Message) -> None: ...

    def dial(self, peer: Name | None) -> None:
        """Keep a link to this source, and to no other."""

    def propose(self, view: View) -> None:
        """Write this view if the one it was derived from is still there. `view_changed` or `proposal_failed` answers."""

    def role(self, state: State, leader: Name | None) -> None:
        """What this member is now, and where clients belong."""

    def retired(self, node: Node) -> None:
        """This node is thrown away: send what its connections still have to say and close them."""

    def renewed(self, node: Node) -> None:
        """This node has taken the place of the one that was thrown away."""

    def wake(self, at_ticks_ms: int) -> None:
        """Call `tick` then, at the latest."""

    def drain(self) -> None:
        """Take no more clients, and say goodbye to those that are here."""

    def quit(self, reason: str, clean: bool = False) -> None:
        """End the process, with this as its last word: it was asked to (`clean`), or it cannot go on."""


THROTTLE_BYTES = 1 << 20
FOUNDINGS_MAX = 8
"""So many tries to found a cluster are remembered: the newest, whose answers may still come."""


class Stop(Exception):
    """The shell was told to end the process: what the mode wanted besides must not be done."""


class Facts:
    """What a mode may know of the logs. Fits `cluster.replica.LogFacts`."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def cluster(self) -> str:
        return self._member.node.store.files.status.cluster

    @property
    def epoch(self) -> int:
        return self._member.node.store.files.status.epoch

    @property
    def founding(self) -> Collection[str]:
        return self._member.node.store.files.status.founding.split()

    @property
    def ends(self) -> Ends:
        return self._member.node.store.ends

    @property
    def durable(self) -> Ends:
        return self._member.node.store.durable_ends

    @property
    def table(self) -> tuple[Takeover, ...]:
        return self._member.node.store.table

    def log_start(self, log: Log) -> int:
        return self._member.node.store.log_start(log)


class Member:
    def __init__(
        self,
        config: Config,
        disk: Disk,
        outside: MemberOutside,
        entropy: Callable[[int], bytes],
        apart: Apart | None = None,
    ) -> None:
        self.config = config
        self.name = config.node.name
        self.leader: Name | None = None
        self.view: View | None = None
        self.why = "it has just started"
        self.node = Node(config, disk, outside, entropy, apart)
        self._join(self.node)
        mode = ChainMode if config.cluster.mode == "chain" else StandbyMode
        self.mode: Mode = mode(self.name, config.cluster, entropy, Facts(self))
        self._disk = disk
        self._outside = outside
        self._entropy = entropy
        self._apart = apart
        self._now_ms = 0
        self._events: deque[Event] = deque()
        self._stepping = False
        self._shipping = Shipping(config.cluster, outside)
        self._floors = Floors()
        self.comparing = Comparing()
        self._rounds = [Round(config.cluster.compare_s, streams) for streams in (False, True)]
        self._compare_due: list[Round] = []
        """It is time for the next parts of these, at the end of a turn."""
        self._throttle_at_bytes = 0
        """When so much is in the journal it is time to see who is how far behind: there may be no tick for a while."""
        self._ticks_ms = 0
        self._reread = False
        """It has read its store again because it differed from the leader's: once in an epoch, which mends what that can mend."""
        self._source: Name | None = None
        self._stored = self._durable = self._complete = Ends()
        self._serve_at: Ends | None = None
        """It leads, and serves clients when all up to here is complete."""
        self._rebuild: Callable[[], None] | None = None
        """What to do to the files before another node reads them; done when nothing is on its way to the disk."""
        self._kept: bool | None = None
        self.moved_bytes = 0
        """How much of the logs was sent to it to make it ready the last time: what coming back has cost."""
        self._adopted_bytes = 0
        self.given_up_messages = 0
        """How many at least were cut off here that may have been confirmed, after an operator had accepted their loss."""
        self._answer = Answer(False, "")
        self._told_of = self._told = Completed(0, Ends())
        """What the mode wanted told last, and what was told."""
        self._ended = False
        """The shell was told to end the process: nothing more is kept, acknowledged, sent or confirmed."""

    # What a node's shell does ------------------------------------------------------------------------------

    def start(self, now_ms: int, ticks_ms: int) -> RecoveryReport:
        """Read the store. Raises StoreError when it cannot be served."""
        self._now_ms = now_ms
        report = self.node.follow(now_ms)
        self._report()
        self._handle(Tick(ticks_ms))
        self._outside.role(self.mode.state, None)
        return report

    @property
    def serving(self) -> bool:
        """Clients of this member are served by itself."""
        return self.node.serving and self._rebuild is None

    @property
    def readable(self) -> bool:
        """Clients that only read may be served by this member: it leads, or is ready and knows what is complete."""
        ready = self.mode.state is State.READY and self._complete.journal > 0
        return self.serving or (ready and self._rebuild is None)

    @property
    def rebuilding(self) -> bool:
        """Its store is being read again; it cannot be asked anything until that is over."""
        return self._rebuild is not None

    def turn(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._rebuild is not None:
            self._try_rebuild()
            return
        self.node.turn(now_ms)
        self._report()
        self._check_store()
        if self.node.store.journal.bytes_written > self._throttle_at_bytes:
            self._throttle()
        if self._compare_due:
            self._compare()

    def completed(self, now_ms: int) -> None:
        """The disk has news."""
        self._now_ms = now_ms
        self.node.completed(now_ms)
        if self._rebuild is not None:
            self._try_rebuild()
        else:
            self._report()
            self._check_store()

    def maintain(self, now_ms: int, budget_bytes: int) -> bool:
        self._now_ms = now_ms
        if self._rebuild is not None:
            return True
        needed = self._shipping.needed(self.node.store, self._complete)
        # What memory says is gone may not be: nothing is let go of while it is in doubt.
        self.node.store.hold(Ends() if self.comparing.differing else needed)
        self._throttle()
        more = self.node.maintain(now_ms, budget_bytes)
        self._report()
        self._check_store()
        return more

    def tick(self, now_ms: int, ticks_ms: int) -> None:
        """Often: time-outs between members are told by it."""
        self._now_ms = now_ms
        self._ticks_ms = ticks_ms
        self._handle(Tick(ticks_ms))
        self._shipping.tick(self.node.store, ticks_ms)
        self._pump()
        self._throttle()
        if self.serving:
            self._compare_due = [one for one in self._rounds if one.is_due(ticks_ms)]
            if self._compare_due:
                self._outside.due()

    def close(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.node.close(now_ms)

    def closed(self) -> bool:
        return self.node.closed()

    # What happens ----------------------------------------------------------------------------------------

    def peer_up(self, peer: Name, dialled: bool) -> None:
        self._handle(PeerUp(peer, dialled))

    def peer_down(self, peer: Name, dialled: bool, gone: bool = False) -> None:
        if not dialled:
            self._shipping.end(peer)
        self._handle(PeerDown(peer, dialled, gone))

    def peer_said(self, peer: Name, message: Message) -> None:
        if isinstance(message, Compare):
            self._heard_compare(peer, message)
            return
        if isinstance(message, Acked) and self.view is not None and message.epoch == self.view.epoch:
            self._shipping.acked(peer, message)
        elif isinstance(message, Completed):
            of_now = self.view is not None and message.epoch == self.view.epoch and peer == self._source
            if of_now and not self.serving:
                self._floors.hear((message.floor, message.floor_at))
        elif isinstance(message, Offer) and message.verdict == "resume" and not message.to.journal:
            # A log that begins at 0 comes without what its source has let go of.
            streams = self.node.broker.streams
            streams.exact_from = max(streams.exact_from, message.ends.journal)
        self._handle(PeerSaid(peer, message))
        if self._shipping.may_go_on(self.mode.awaited()):
            self._pump()

    def given(self, peer: Name, epoch: int, unit: Unit) -> None:
        """A peer sent one frame of a log. Its bytes may go when this returns."""
        if self._rebuild is not None:
            return
        self._kept = None
        self._handle(Given(peer, epoch, unit.log, unit.previous, unit.first, unit.last))
        if self._kept and self._rebuild is None and not self._ended:
            end = self.node.store.ends[unit.log]
            if unit.previous != end:
                self._quit(
                    f"a frame of {peer} comes behind {unit.previous}, but the {unit.log.name} ends at {end}"
                )
                return
            try:
                self.node.at(self._now_ms)
                self.node.adopt(unit.log, unit.payload)
                self._adopted_bytes += len(unit.payload)
            except StoreError as error:
                self.node.fail(error)
                self._handle(Broken(f"a frame of {peer} cannot be kept: {error}"))
                return
            if self.comparing.waits:
                self._look()
            self._outside.due()

    def view_changed(self, view: View | None) -> None:
        self._handle(ViewChanged(view))

    def proposal_failed(self, view: View) -> None:
        self._handle(ProposalFailed(view))

    def member_gone(self, name: Name) -> None:
        self._handle(MemberGone(name))

    def member_here(self, here: MemberHere) -> None:
        self._handle(here)

    def lease(self, until_ticks_ms: int) -> None:
        self._handle(Lease(until_ticks_ms))

    def ask(
        self,
        command: str,
        member: Name = "",
        *,
        accept_loss: bool = False,
        survey: Survey | None = None,
    ) -> Answer:
        """An operator or a resource manager wants something."""
        if self._rebuild is not None:
            return Answer(False, "this member is reading its store again; ask in a moment")
        self._answer = Answer(False, f"{command} has no meaning for a member that is {self.mode.state}")
        self._handle(Asked(command, member, accept_loss, survey))  # type: ignore[arg-type]
        return self._answer

    def _join(self, node: Node) -> None:
        """Let receipts be judged by what all members have."""
        node.broker.streams.members = self.config.cluster.size
        node.broker.streams.others = self._others_with

    def _others_with(self, seq: int) -> int:
        others = [name for name in (self.view.ready if self.view is not None else ()) if name != self.name]
        if seq <= self._complete.journal:
            return len(others)  # nothing is complete before all of them have it
        return self._shipping.having(others, seq)

    # Events and effects ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Let the mode see it, and whatever follows from it. While the store is read again it waits."""
        if not self._ended:
            self._events.append(event)
            self._step()

    def _quit(self, reason: str, clean: bool = False) -> None:
        """Have the process ended. Until it is, nothing may follow from what the mode believes to be done."""
        if not self._ended:
            self._ended = True
            self._events.clear()
            self._shipping.end_all()
            self._outside.quit(reason, clean)

    def _check_store(self) -> None:
        """A store that has failed takes this member out of the group, or ends it."""
        failed = self.node.failed
        if failed is not None and self._rebuild is None and self.mode.state is not State.FAILED:
            self._handle(Broken(f"the store failed: {failed}"))

    def _step(self) -> None:
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and self._rebuild is None:
                event = self._events.popleft()
                if isinstance(event, ViewChanged):
                    self._note_view(event.view)
                for effect in self.mode.step(event):
                    self._perform(effect)
        except Stop:
            self._events.clear()
        finally:
            self._stepping = False

    def _note_view(self, view: View | None) -> None:
        if view is None or self._is_older(view):
            return
        if self.view is None or (view.epoch, view.history) != (self.view.epoch, self.view.history):
            self._shipping.new_epoch(self.view.ready if self.view else (), self.name, self._complete)
            self._floors.forget()
            self.comparing.new_epoch()
            for one in self._rounds:
                one.forget()
            self._reread = False
        self.view = view

    def _is_older(self, view: View) -> bool:
        """The mode will not act on it."""
        if self.view is None:
            status = self.node.store.files.status
            return bool(status.cluster) and view.epoch < status.epoch
        return view.epoch < self.view.epoch or (
            view.epoch == self.view.epoch and view.revision < self.view.revision
        )

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Tell(peer, Completed() as message):
                self._outside.tell(peer, self._with_floor(message))
            case Tell(peer, message):
                self._outside.tell(peer, message)
            case Send(peer, after):
                self._shipping.begin(peer, after)
                self._pump()
            case Hush(peer):
                self._shipping.end(peer)
            case Keep():
                self._kept = True
            case Skip():
                self._kept = False
            case Complete(upto):
                self._completed(upto)
            case Dial(peer):
                self._source = peer
                self._outside.dial(peer)
            case Lead():
                self._lead(effect)
            case Follow(leader):
                self._follow(leader)
            case Fence():
                self.node.paused = True
                self._outside.role(self.mode.state, self.leader)
            case Unfence():
                self.node.paused = False
                self._outside.role(self.mode.state, self.leader)
                self._completed(self._complete)
            case Rewind(to, accepted):
                self._note_cut(to)
                if accepted:
                    self._note_given_up(to)
                self._begin_rebuild(lambda: self._cut_back(to))
            case Reread():
                self._begin_rebuild(lambda: forget_checkpoints(self._disk))
            case Reset(alike, accepted):
                self._note_emptied()
                if accepted:
                    self._note_given_up(alike)
                self._begin_rebuild(lambda: reset(self._disk))
            case Drain():
                self._outside.drain()
            case Belong(cluster, epoch):
                self._remember(cluster=cluster, epoch=epoch, founding="")
            case Intend(history):
                tried = self.node.store.files.status.founding.split()
                self._remember(founding=" ".join([*tried[1 - FOUNDINGS_MAX :], history]))
            case Propose(view, why):
                self._outside.note(
                    "info", "view proposed", epoch=view.epoch, ready=" ".join(view.ready), why=why
                )
                self._outside.propose(view)
            case Became(state, why):
                self.why = why
                self.node.journal.fill(state is State.CATCHUP)
                moved = {}
                if state is State.CATCHUP:
                    self._adopted_bytes = 0
                elif state is State.READY:
                    moved["moved_bytes"] = self.moved_bytes = self._adopted_bytes
                level = "error" if state is State.FAILED else "info"
                self._outside.note(level, "state of the member", state=str(state), why=why, **moved)
                self._outside.role(state, self.leader)
            case Answer():
                self._answer = effect
            case Wake(at_ms):
                self._outside.wake(at_ms)
            case Quit(reason, clean):
                self._quit(reason, clean)
                if not clean:
                    raise Stop  # else what comes behind it is the answer to whoever asked

    def _with_floor(self, message: Completed) -> Completed:
        """Say also which versions of streams nobody can pin any more; whoever follows passes on what it was told. What is
        told to several is made once."""
        if message is self._told_of:
            return self._told
        if self.serving:
            # A pin whose frame is still open has its number already.
            node = self.node
            self._floors.known = node.broker.streams.promise(self._complete.journal), node.arena.next_seq - 1
        self._told_of, self._told = message, Completed(message.epoch, message.upto, *self._floors.known)
        return self._told

    # Leading and following -----------------------------------------------------------------------------------

    def _lead(self, lead: Lead) -> None:
        assert self.view is not None and self.view.epoch == lead.epoch
        self.leader = self.name
        self._remember(role="leader")
        if lead.accepted:
            self._outside.note(
                "warning",
                "loss accepted",
                epoch=lead.epoch,
                given_up=" ".join(lead.given_up) or "not known",
                **asdict(self.node.store.ends),
            )
        try:
            self.node.take_over(lead.history, self._now_ms, self.view.accepted)
        except StoreError as error:
            self._quit(f"this member was chosen to lead and cannot write: {error}")
            raise Stop from error
        # Frames are sealed by the turn; what is complete then must cover the records of the takeover.
        self.node.turn(self._now_ms)
        self._serve_at = self.node.store.ends
        self._report()
        self._outside.due()

    def _follow(self, leader: Name | None) -> None:
        led = self.leader == self.name
        self.leader = leader
        self._serve_at = None
        if led:
            self._begin_rebuild(lambda: None)
        elif self.mode.state is not State.FAILED:  # else its store can be told nothing more
            self._remember(role="backup")
        self._outside.role(self.mode.state, leader)

    def _remember(self, **facts: str | int) -> None:
        """Have the store say this about itself, on the disk."""
        files = self.node.store.files
        if any(getattr(files.status, key) != value for key, value in facts.items()):
            try:
                files.update(**facts)
            except StoreError as error:
                self._quit(f"the store cannot say to which cluster it belongs: {error}")
                raise Stop from error

    def _completed(self, upto: Ends) -> None:
        self._complete = upto
        try:
            if self._serve_at is not None and upto.covers(self._serve_at):
                self._serve_at = None
                self.node.safe = upto
                self.node.serve(self._now_ms)
                self._outside.role(self.mode.state, self.leader)
                self._report()
            self.node.complete(upto)
        except StoreError as error:
            self._quit(f"what is complete cannot be shown: {error}")
            raise Stop from error
        if not self.serving:
            if self.comparing.waits:
                self._look()
            floor = self._floors.reached(upto.journal)
            if floor is not None:
                self.node.broker.streams.let_go(floor)
        self._outside.due()

    def _throttle(self) -> None:
        """Publishers wait while a ready member is far behind, or too few are ready. Whoever is dropped from the view holds
        nobody up else."""
        self._throttle_at_bytes = self.node.store.journal.bytes_written + THROTTLE_BYTES
        if not self.serving or self.view is None:
            return
        already = self.node.alarms.behind
        behind = self._shipping.lagging(self.node.store, self.view.ready, already)
        missing = max(0, self.config.cluster.copies_min - len(self.view.ready))
        if (behind, missing) != (already, self.node.alarms.missing):
            self.node.throttle(behind, missing)

    # The node, read anew ----------------------------------------------------------------------------------------

    def _begin_rebuild(self, change: Callable[[], None]) -> None:
        self._rebuild = change
        self._serve_at = None
        for reader in self._shipping.readers:
            self._outside.drop(reader)  # it must say hello again
        self._shipping.end_all()
        self._outside.dial(None)
        self._outside.retired(self.node)
        self._outside.due()

    def _note_cut(self, to: Ends) -> None:
        ends, journal = self.node.store.ends, self.node.store.journal
        self._outside.note(
            "info",
            "logs cut back",
            catalog=to.catalog,
            journal=to.journal,
            records=ends.journal - to.journal + ends.catalog - to.catalog,
            bytes=journal.bytes_after(to.journal),
        )

    def _note_emptied(self) -> None:
        store = self.node.store
        self._outside.note(
            "warning",
            "store emptied",
            source=self._source,
            **asdict(store.ends),
            bytes=store.journal.bytes_after(0),
        )

    def _note_given_up(self, alike: Ends) -> None:
        """What of this store goes though it may have been confirmed: nobody has it any more."""
        store = self.node.store
        if alike.covers(store.ends):
            return
        messages, all_counted = count_messages(store, alike.journal)
        self.given_up_messages += messages
        self._outside.note(
            "warning",
            "confirmed messages given up",
            messages=messages,
            counted="all" if all_counted else "at least",
            records=sum(max(0, store.ends[log] - alike[log]) for log in Log),
            catalog=alike.catalog,
            journal=alike.journal,
            accepted_in=self.view.accepted if self.view is not None else 0,
        )

    def _cut_back(self, to: Ends) -> None:
        try:
            rewind(self._disk, self.config.store, to)
        except LogGone:
            if self.node.store.files.status.epoch:
                raise
            reset(self._disk)  # it was being filled for the first time: it begins again

    def _try_rebuild(self) -> None:
        """As soon as nothing is on its way to the disk: change the files and read them."""
        change, old = self._rebuild, self.node
        if change is None or (old.failed is None and not old.store.idle):
            return
        if old.failed is not None:
            self._quit(f"the store failed: {old.failed}")
            return
        old.store.journal.checkpointer.abandon()
        try:
            change()
            self.node = Node(self.config, self._disk, self._outside, self._entropy, self._apart)
            self.node.follow(self._now_ms)
        except LogGone as error:
            self._quit(
                f"the logs must be cut back to where the cluster's are, which cannot be done: {error}. Perhaps it was "
                "started without its cluster: move over what is missing there and start with an empty data directory"
            )
            return
        except StoreError as error:
            self._quit(f"the store cannot be read again: {error}")
            return
        self._rebuild = None
        self._join(self.node)
        self._outside.renewed(self.node)
        self._complete = self._stored = self._durable = Ends()
        self._floors.forget()
        self.comparing.forget()
        with suppress(Stop):
            self._remember(role="backup")
        waiting, self._events = self._events, deque()
        self._report()
        if self._source is not None:
            self._outside.dial(self._source)
        self._events.extend(waiting)
        self._step()
        self._outside.role(self.mode.state, self.leader)

    # The logs ---------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Tell the mode how far the logs are, and the peers what is new."""
        if self._rebuild is not None or self._ended:
            return
        store = self.node.store
        ends, durable = store.ends, store.durable_ends
        moved = ends != self._stored
        if moved:
            self._stored = ends
            self._handle(Stored(ends))
        if durable != self._durable:
            self._durable = durable
            self._handle(Durable(durable))
        if moved or self._shipping.may_go_on(self.mode.awaited()):
            self._pump()

    def _pump(self) -> None:
        """Send every peer what it lacks."""
        if self._rebuild is None and self.view is not None and not self._ended:
            self._shipping.pump(self.node.store, self.view.epoch, self.mode.awaited())

    # Whether members hold the same ---------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Lead: say what the next queues and streams hold, to all that read from here."""
        due, self._compare_due = self._compare_due, []
        readers = self._shipping.readers
        if not self.serving or self.view is None or self._ended or not readers:
            return
        try:
            at = self.node.settled()
        except StoreError as error:
            self.node.fail(error)
            return
        if at is None:
            return  # it is still due at the next tick
        self._report()
        for one in due:
            if one.streams and self._complete != at:
                continue  # in a moment in which nothing is on its way
            targets = self.node.broker.targets()
            compare = one.next_part(self.view.epoch, at, targets, self._ticks_ms)
            for peer in readers:
                self._outside.tell(peer, compare)

    def _heard_compare(self, peer: Name, compare: Compare) -> None:
        """Follow: wait for the place of which this is, and pass it on to those who read from here."""
        of_now = self.view is not None and compare.epoch == self.view.epoch and peer == self._source
        if not of_now or self._rebuild is not None or self._ended:
            return
        for reader in self._shipping.readers:
            self._outside.tell(reader, compare)
        self.comparing.hear(compare)
        self._look()

    def _look(self) -> None:
        if self._rebuild is not None or self._ended:
            return
        store, targets = self.node.store, self.node.broker.targets()
        for there, here in self.comparing.look(store.ends, self._complete, targets):
            self._note_difference(there, here)
        # What is in memory may be wrong though the logs are right: they say it once more. Members take turns, for if it is
        # the leader that is wrong all of them differ.
        if not self._reread and self.view is not None and self.name in self.view.ready:
            turn = self.view.ready.index(self.name)
            if self.comparing.worst() >= TIMES + turn - 1:
                self._reread = True
                self._handle(Asked("reread"))

    def _note_difference(self, there: Census, here: Census) -> None:
        self._outside.note(
            "error",
            "members differ",
            queue=self.node.broker.queue_name(there.number),
            leader=self.leader,
            entries_there=there.count,
            entries_here=here.count,
            **asdict(self.node.store.ends),
        )

    # For those who look ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        store, view = self.node.store, self.view
        ends = store.ends
        return {
            "name": self.name,
            "state": str(self.mode.state),
            "why": self.why,
            "mode": self.config.cluster.mode,
            "serving": self.serving,
            "cluster": view.cluster if view else store.files.status.cluster,
            "epoch": view.epoch if view else store.files.status.epoch,
            "leader": self.leader,
            "ready": list(view.ready) if view else [],
            "source": self._source,
            "moved_bytes": self.moved_bytes,
            "accepted": view.accepted if view else 0,
            "given_up_messages": self.given_up_messages,
            "compared": self.comparing.compared,
            "differing": [self.node.broker.queue_name(number) for number in self.comparing.known()],
            "ends": asdict(ends),
            "durable": asdict(store.durable_ends),
            "complete": asdict(self._complete),
            "histories": [{"history": row.history, "first": asdict(row.first)} for row in store.table],
            "peers": self._shipping.status(ends),
            "over_budget": self.mode.over_budget(),
        }
