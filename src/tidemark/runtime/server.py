"""The broker as a process: sockets, timers and the disk's bell around one `Node`.

A turn runs at the end of a loop iteration in which something happened: bytes arrived, the disk had news, a
timer fired. It calls `Node.turn`, then flushes every front end that has output. Timers: `tick` each second,
the store's housekeeping every few milliseconds while there is some, and the moment at which the broker must
look at an expiry.

Invariant: the node is only ever called from the loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker.access import is_outdated
from tidemark.config import Address, Config
from tidemark.errors import StoreError
from tidemark.frontend.services import FrontEnd, Login, PeerInfo
from tidemark.node import Node
from tidemark.runtime import machine
from tidemark.runtime.apart import Forked
from tidemark.runtime.authenticator import Authenticator
from tidemark.runtime.clock import Clock
from tidemark.runtime.connection import ConnectionShell
from tidemark.runtime.disk import FileDisk
from tidemark.runtime.histogram import Histogram
from tidemark.runtime.listening import bound
from tidemark.runtime.log import Log
from tidemark.runtime.rates import PAUSE_S, QUEUES_MAX, SLICE, Rates
from tidemark.runtime.throttle import Rates as ConnectionRates
from tidemark.runtime.throttle import Throttle
from tidemark.runtime.tls import server_context
from tidemark.runtime.wholefile import WholeFile
from tidemark.store.journal import RecoveryReport

if TYPE_CHECKING:
    from tidemark.member.member import Member
    from tidemark.runtime.tracing import Tracing

READ_BYTES = 1 << 20
MAINTAIN_S = 0.02
MAINTAIN_IDLE_S = 0.1
MAINTAIN_BYTES = 4 << 20
TICK_S = 1.0
GOODBYE_S = 3.0
NEVER_MS = 1 << 60
OWN_FILES = 400
"""Open files that the broker keeps for itself: segments, listeners, the admin API, peers on their way out."""


class Core(Protocol):
    """What turns are given to: the node, or the member of a cluster that has one."""

    def turn(self, now_ms: int) -> None: ...

    def completed(self, now_ms: int) -> None: ...

    def maintain(self, now_ms: int, budget_bytes: int) -> bool: ...

    def close(self, now_ms: int) -> None: ...

    def closed(self) -> bool: ...


class Server:
    """Fits `node.Outside`."""

    def __init__(self, config: Config, log: Log, early: WholeFile | None = None) -> None:
        """`early` is a file of the store that is being read already."""
        self.config = config
        self.log = log
        self.clock = Clock()
        self.started_ms = self.clock.now_ms()
        self.addresses: dict[str, Address] = {}
        """Where it really listens, by the name of the setting."""
        self.paused: dict[ConnectionShell, None] = {}
        frame = config.amqp091.frame_bytes_max
        self.read_buffer = memoryview(bytearray(max(READ_BYTES, frame + (64 << 10))))
        self.node: Node
        self.core: Core
        self.member: Member | None = None
        """In a cluster; see `MemberServer`."""
        self.authenticator: Authenticator
        self.rates: Rates
        self._tracing: Tracing | None = None
        self.turns = Histogram()
        """How long turns took, in microseconds."""
        self.late_s = 0.0
        """By how much the last tick came late: how long the loop was busy with something else."""
        self._tick_due_s = 0.0
        self.disk_free_bytes = 0
        """As the last tick found it."""
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self._early = early
        self._disk: FileDisk
        self._shells: dict[FrontEnd, ConnectionShell] = {}
        self._read_from: dict[ConnectionShell, None] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._turn_follows = False
        """A turn that is asked for now runs at the end of this callback: the loop need not come round for it."""
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = NEVER_MS
        self.memory_high_bytes = config.limits.memory_high_bytes or int(
            machine.memory_bytes() * config.limits.memory_high
        )
        self.connections_max = config.limits.connections_max
        """As set, or as many as the process may have files open for."""
        self.throttle = Throttle(config.limits.login_failures_max, config.limits.login_wait_s_max)
        self._connection_rates = ConnectionRates(
            config.limits.connections_per_s_max, config.limits.address_connections_per_s_max
        )
        self._refused = 0
        self._logins: set[asyncio.Task[None]] = set()
        self._durable_waits: list[tuple[int, asyncio.Future[None]]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # Start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the store, then listen.

        Raises:
            ConfigError: an address cannot be used.
            StoreError: the data directory cannot be used.
        """
        self._loop.set_exception_handler(self._unexpected)
        if self.config.tracing.endpoint:
            # Imported only where it is asked for: it is large.
            from tidemark.runtime.tracing import Tracing

            self._tracing = Tracing(self.config, self.log)
        self._bound_connections()
        listeners = self._bind()
        try:
            self._disk = FileDisk(self.config.node.data, early=self._early)
            self._early = None
            began_ms = self.clock.now_ms()
            report = self._assemble(Forked(self.config.node.data), began_ms)
        except BaseException:
            for _, listener, _ in listeners:
                listener.close()
            raise
        self._observe(self.node)
        self.log.info("store recovered", ms=self.clock.now_ms() - began_ms, **_facts(report))
        self._loop.add_reader(self._disk.bell, self._disk_news)
        self._tick()
        self._maintain()
        for name, listener, context in listeners:
            server = await self._loop.create_server(
                self._shell,
                sock=listener,
                ssl=context,
                ssl_handshake_timeout=self.config.amqp091.handshake_s_max if context else None,
                backlog=self.config.listen.backlog,
            )
            self._servers.append(server)
            self.log.info("listening", on=name, address=self.addresses[name])

    def _observe(self, node: Node) -> None:
        """Have everything counted and traced that is asked for."""
        self.rates = Rates(node, self.clock.now_ms)
        node.broker.traces = None if self._tracing is None else self._tracing.traces

    def _assemble(self, apart: Forked, now_ms: int) -> RecoveryReport:
        """Make what the turns are given to, and let it read the store."""
        self.core = self.node = Node(self.config, self._disk, self, os.urandom, apart)
        self.authenticator = self.authenticator_of(self.node)
        return self.node.start(now_ms)

    def authenticator_of(self, node: Node) -> Authenticator:
        """Who checks the logins of its users. What failed before is remembered, whoever checks."""
        return Authenticator(node.broker.access, self.throttle, self.clock.now_ms)

    def _shell(self) -> asyncio.BaseProtocol:
        """For a client that connects."""
        return ConnectionShell(self)

    def _bound_connections(self) -> None:
        """Take no more connections than leave enough open files for the store: without one it would fail."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.config.limits.connections_max
        self.connections_max = min(wanted, connections_for(files))
        if self.connections_max < wanted:
            self.log.warning(
                "connections limited by open files",
                connections_max=self.connections_max,
                wanted=wanted,
                open_files=files,
            )

    def _bind(self) -> list[tuple[str, socket.socket, Any]]:
        bound: list[tuple[str, socket.socket, Any]] = []
        for name in ("amqp", "amqps"):
            text = getattr(self.config.listen, name)
            if text:
                context = server_context(self.config.tls) if name == "amqps" else None
                bound.append((name, self.listener(name, text), context))
        return bound

    def listener(self, name: str, text: str) -> socket.socket:
        """A bound socket for the setting `listen.NAME`; `addresses` says where.

        Raises:
            ConfigError: the address is in use or not ours.
        """
        listener, self.addresses[name] = bound(name, text, self.config.listen.backlog)
        return listener

    def stop(self, code: int = 0) -> None:
        """Ask for the end; `run_until_stopped` returns soon."""
        self.exit_code = max(self.exit_code, code)
        self.stopping.set()

    async def run_until_stopped(self) -> int:
        """Serve until `stop`; then say goodbye to clients and close the store. Returns the exit code."""
        await self.stopping.wait()
        for server in self._servers:
            server.close()
        for front_end in list(self._shells):
            front_end.shutdown(320, "the broker is shutting down")
        self.due()
        deadline = self._loop.time() + GOODBYE_S
        while self._shells and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for shell in list(self._shells.values()):
            shell.abort()
        await asyncio.sleep(0)
        for timer in self._timers.values():
            timer.cancel()
        if self._wake is not None:
            self._wake.cancel()
        await self._leave()
        await self._close_store()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        return self.exit_code

    async def _leave(self) -> None:
        """Clients have gone: whoever else must be told."""

    async def _close_store(self) -> None:
        self.core.close(self.clock.now_ms())
        while not self.core.closed():
            await asyncio.sleep(0.001)
            self.core.completed(self.clock.now_ms())
        if self.node.failed is not None:
            self.exit_code = 1
        self._loop.remove_reader(self._disk.bell)
        self.authenticator.close()
        self._disk.close()
        self.log.info("stopped", code=self.exit_code)

    # A turn ----------------------------------------------------------------------------------

    def due(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            if not self._turn_follows:
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        began_ns = perf_counter_ns()
        try:
            self.core.turn(self.clock.now_ms())
        finally:
            # Not sooner: what the turn touches is flushed below and needs no other turn.
            self._turn_due = False
        node = self.node
        touched = node.touched_front_ends
        if touched:
            node.touched_front_ends = {}
            for front_end in touched:
                shell = self._shells.get(front_end)
                if shell is not None:
                    shell.flush()
        if self._read_from:
            for shell in self._read_from:
                if shell.front_end not in touched:  # else `flush` has done it
                    shell.check_reading()
            self._read_from.clear()
        if self.paused:
            for shell in list(self.paused):
                shell.check_reading()
        if node.failed is not None:
            self._store_failed()
        self._plan_wake()
        self.turns.add((perf_counter_ns() - began_ns) // 1000)

    def _store_failed(self) -> None:
        """Nothing can be stored any more, and whoever was connected has been told."""
        self.stop(1)

    def _plan_wake(self) -> None:
        """Have a turn when the broker must look at an expiry."""
        at_ms = self.node.next_wake_ms()
        if at_ms == self._wake_ms:
            return
        self._wake_ms = at_ms
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if at_ms < NEVER_MS:
            delay_s = max(0, at_ms - self.clock.now_ms()) / 1000
            self._wake = self._loop.call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._wake, self._wake_ms = None, NEVER_MS
        self.due()

    def _disk_news(self) -> None:
        self._disk.answer_bell()
        self._turn_follows = not self._turn_due
        try:
            self.core.completed(self.clock.now_ms())
            if self._durable_waits:
                self._end_waits()
        finally:
            if self._turn_follows:
                self._turn_follows = False
                if self._turn_due:
                    self._turn()

    def flushes(self) -> tuple[int, tuple[int, ...], int, tuple[int, ...], int]:
        """What the disk's thread has done so far; see `Flusher.statistics`."""
        return self._disk.flushes()

    async def until_durable(self, seq: int) -> None:
        """Wait until the catalog is on the disk up to this sequence.

        Raises:
            StoreError: the disk failed before.
        """
        self.due()
        if self.node.catalog_durable() < seq or self.node.failed is not None:
            over: asyncio.Future[None] = self._loop.create_future()
            self._durable_waits.append((seq, over))
            self._end_waits()
            await over

    def _end_waits(self) -> None:
        durable, failed = self.node.catalog_durable(), self.node.failed
        for seq, over in self._durable_waits:
            if over.done():
                continue
            if failed is not None:
                over.set_exception(failed)
            elif seq <= durable:
                over.set_result(None)
        self._durable_waits = [wait for wait in self._durable_waits if not wait[1].done()]

    # Timers ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        # First: an exception below must not be the end of all ticks.
        self._timers["tick"] = self._loop.call_later(TICK_S, self._tick)
        now_s = self._loop.time()
        self.late_s = max(0.0, now_s - self._tick_due_s) if self._tick_due_s else 0.0
        self._tick_due_s = now_s + TICK_S
        node = self.node
        node.tick(self.clock.now_ms())
        alarmed = node.alarms.memory
        used = machine.resident_bytes()
        if alarmed or used > self.memory_high_bytes:
            machine.give_back_memory()
            used = machine.resident_bytes()
        try:
            free = self._disk.free_bytes()
        except StoreError as error:
            self.log.error("free disk space unknown", error=str(error))
        else:
            self.disk_free_bytes = free
            node.watch(max(used, node.arena.resident_bytes), self.memory_high_bytes, free)
        if self._refused:
            self.log.warning("connections refused", count=self._refused, limit=self.connections_max)
            self._refused = 0
        self._sample(QUEUES_MAX // SLICE, self.rates.sample)

    def _sample(self, slices: int, step: Callable[[], bool]) -> None:
        """Let the rates look at what has changed, a slice at a time."""
        if step() and slices > 1:
            self._timers["sample"] = self._loop.call_later(
                PAUSE_S, self._sample, slices - 1, self.rates.go_on
            )

    def _maintain(self) -> None:
        busy = False
        try:
            busy = self.core.maintain(self.clock.now_ms(), MAINTAIN_BYTES)
        finally:
            delay_s = MAINTAIN_S if busy else MAINTAIN_IDLE_S
            self._timers["maintain"] = self._loop.call_later(delay_s, self._maintain)

    # Connections -----------------------------------------------------------------------------

    def connected(self, shell: ConnectionShell, peer: PeerInfo) -> FrontEnd:
        self.node.at(self.clock.now_ms())
        front_end = self.node.connect(peer)
        self._shells[front_end] = shell
        limit = self.connections_max
        if len(self._shells) > limit or self.stopping.is_set():
            self._refused += 1
            front_end.shutdown(320, f"this broker takes {limit} connections and has them")
        elif (why := self._connection_rates.refusal(peer.host, self.node.now_ms)) is not None:
            self._refused += 1
            front_end.shutdown(320, why)
        return front_end

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        shell = self._shells.pop(old)
        self._shells[new] = shell
        shell.front_end = new

    def received(self, shell: ConnectionShell, data: memoryview) -> int:
        self._read_from[shell] = None
        if not self._turn_due:
            self.due()
        self.node.at(self.clock.now_ms())
        return shell.front_end.receive(data)

    def disconnected(self, shell: ConnectionShell) -> None:
        self._shells.pop(shell.front_end, None)
        self._read_from.pop(shell, None)
        self.paused.pop(shell, None)
        self.rates.disconnected(shell.front_end)
        self.node.disconnect(shell.front_end)

    # What the node asks ----------------------------------------------------------------------

    def login(self, front_end: FrontEnd, login: Login) -> None:
        task = self._loop.create_task(self._check(front_end, login))
        self._logins.add(task)
        task.add_done_callback(self._logins.discard)

    async def _check(self, front_end: FrontEnd, login: Login) -> None:
        verdict = await self.authenticator.login(login)
        self.node.at(self.clock.now_ms())
        self.node.verdict(front_end, verdict)
        if verdict.user is not None and login.password:
            await self._renew_hash(verdict.user, login.password)

    async def _renew_hash(self, user: str, password: str) -> None:
        """Replace a hash that was imported and is not memory-hard, now that the password is at hand."""
        broker = self.node.broker
        spec = broker.access.users.get(user)
        if spec is not None and is_outdated(spec.password_hash):
            new_hash = await asyncio.to_thread(broker.password_hash, password)
            self.node.at(self.clock.now_ms())
            broker.passed(user, new_hash)
            self.due()

    def note(self, level: str, event: str, **facts: object) -> None:
        self.log.write(level, event, **facts)

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody caught: say so and go on."""
        facts = {"error": context["exception"]} if "exception" in context else {}
        self.log.error("unexpected", what=context.get("message", ""), **facts)


def connections_for(files: int) -> int:
    """How many connections a process may take that may have so many files open; at least one."""
    if files == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, files - min(OWN_FILES, files // 2))


def _facts(report: Any) -> dict[str, object]:
    """The numbers of a report, for a log line."""
    names = getattr(report, "__slots__", ()) or vars(report)
    found = {name: getattr(report, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, (int, str, bool))}
