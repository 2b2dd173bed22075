"""A small language for clusters of real brokers: what happens to them, what clients do meanwhile, what is then true.

`Cluster` is a trial (`tidemark.cli.trial`) with words for tests: `kill`, `freeze`, `cut` and the like happen to real
processes, and `whole` brings everything back. `Publisher` publishes numbers with confirms over a list of addresses,
reconnects and sends again what was not confirmed; `Consumer` takes what comes, `drained` everything that a queue has; `judge`
says what is wrong with it. `Watch` looks at all members all the time and knows who ever led.

Invariant: a number is in `confirmed` only if a broker confirmed it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from helpers.broker import Address, parse_address
from helpers.raw import CLOSE, Closed, ConnectionEnded, Frame, RawConnection
from helpers.traffic import STALL_S, Traffic
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from tidemark import cli
from tidemark.cli import CommandError
from tidemark.cli.trial import Mode, Seen, Trial
from tidemark.model.wiring import MAIN

PATIENCE_S = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)
SETTINGS = {"limits.disk_free_bytes_min": "0", "log.level": "debug", "cluster.compare_s": "1"}
"""Members compare what they hold all the time: whatever is done to them, they must find no difference."""
_numbers = itertools.count(1)

# Broken connections are what these tests are about; pika writes a page about each.
logging.getLogger("pika").setLevel(logging.CRITICAL)


def fresh(word: str) -> str:
    """A name that no other test uses."""
    return f"{word}-{next(_numbers)}"


def wait_until(what: str, true: Callable[[], Any], timeout_s: float = PATIENCE_S) -> float:
    """Wait for something; returns how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - began


# The cluster -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


class Cluster:
    """Real brokers and a real etcd on this machine."""

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        *,
        nodes: int = 3,
        proxies: bool = False,
        etcd: str = "",
        settings: Mapping[str, str] | None = None,
        groups: Mapping[str, Mode] | None = None,
    ) -> None:
        """With `groups` there is a member of each on every node, and a front, which clients connect to."""
        self.mode = mode
        self.trial = Trial.create(
            directory,
            nodes=nodes,
            mode=mode,
            etcd=etcd,
            proxies=proxies,
            settings={**SETTINGS, **(settings or {})},
            groups=groups,
            detached=False,
        )
        self.names = list(self.trial.members)

    def start(self) -> Cluster:
        self.trial.up()
        self.trial.wait_whole()
        if self.trial.groups:
            self.trial.spread()
            self.trial.wait_whole()
        return self

    def close(self) -> None:
        for process in self.trial.processes.values():
            process.kill()

    # What happens ----------------------------------------------------------------------------

    def kill(self, *names: str) -> float:
        """SIGKILL, to all at once; returns when."""
        when = time.monotonic()
        for name in names:
            self.trial.processes[name].signal(9)  # type: ignore[arg-type]
        for name in names:
            self.trial.processes[name].wait_gone(10)
        return when

    def freeze(self, name: str) -> float:
        self.trial.freeze(name)
        return time.monotonic()

    def thaw(self, name: str) -> None:
        self.trial.thaw(name)

    def restart(self, *names: str, settings: Mapping[str, str] | None = None) -> None:
        """Start members that are down, in this order; does not wait."""
        for name in names:
            self.trial.start(name, settings)

    def stop(self, *names: str) -> None:
        """SIGTERM, to all at once; all must end as they were asked."""
        with ThreadPoolExecutor(len(names)) as pool:
            obeyed = dict(zip(names, pool.map(self.trial.stop, names), strict=True))
        assert all(obeyed.values()), f"not all ended when they were asked: {obeyed}"

    def cut(self, one: str, *others: str, one_way: bool = False) -> float:
        for other in others:
            self.trial.cut(one, other, one_way=one_way)
        return time.monotonic()

    def heal(self) -> None:
        self.trial.heal()

    def whole(self, timeout_s: float = 60.0) -> Cluster:
        """Undo everything that was done to it, and wait until one leads and all others are ready."""
        if self.trial.control is not None:
            self.trial.heal()
        for seen in self.trial.look():
            if seen.state == "frozen":
                self.thaw(seen.name)
            elif seen.state == "down":
                self.restart(seen.name)
        self.trial.wait_whole(timeout_s)
        return self

    # What is true ----------------------------------------------------------------------------

    def look(self) -> dict[str, Seen]:
        return {seen.name: seen for seen in self.trial.look()}

    def states(self) -> dict[str, str]:
        return {name: seen.state for name, seen in self.look().items()}

    @property
    def leader(self) -> str:
        """Who leads, in main if there are groups; waits until somebody does."""
        return self.leader_of(MAIN)

    def leader_of(self, group: str) -> str:
        found: list[str] = []

        def leads() -> bool:
            name = self.trial.leader(group)
            found[:] = [name] if name else []
            return bool(found)

        wait_until(f"somebody leads {group}", leads)
        return found[0]

    @property
    def backups(self) -> list[str]:
        leader = self.leader
        return [name for name in self.trial.members if name != leader]

    @property
    def second(self) -> str:
        """The member that the leader feeds itself in either mode: the next one in the view."""
        leader = self.leader
        ready: list[str] = self.look()[leader].status["ready"]
        assert ready[0] == leader and len(ready) == len(self.names), f"{ready} are ready, {leader} leads"
        return ready[1]

    def await_state(self, name: str, *states: str, timeout_s: float = PATIENCE_S) -> float:
        return wait_until(f"{name} is {'/'.join(states)}", lambda: self.states()[name] in states, timeout_s)

    def await_equal(self, *names: str, timeout_s: float = PATIENCE_S) -> None:
        """EQ: all members of a group, or these, hold the same logs up to the same record, on disk, and the same queues with
        as many messages each. Traffic must have ended."""
        for group in self.trial.groups or (MAIN,):
            self._await_equal(list(names) or self.trial.of(group), timeout_s)

    def _await_equal(self, names: list[str], timeout_s: float) -> None:
        def equal() -> bool:
            seen = self.trial.look(names)
            ends = {json.dumps(one.status.get("durable")) for one in seen}
            return len(ends) == 1 and len({json.dumps(self.queues(one.name)) for one in seen}) == 1

        try:
            wait_until("all members hold the same", equal, timeout_s)
        except AssertionError as problem:
            told = {
                seen.name: (seen.status.get("durable"), self.queues(seen.name))
                for seen in self.trial.look(names)
            }
            raise AssertionError(f"{problem}: {told}") from None

    def queues(self, name: str) -> dict[str, int]:
        """Queue → messages, as this member holds them, whether it leads or not."""
        return {queue["name"]: queue["messages"] for queue in self.admin(name, "GET", "/api/queues")}

    def admin(self, name: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A call of a member's management API.

        Raises:
            urllib.error.HTTPError: it was refused.
        """
        request = urllib.request.Request(
            f"http://{self.trial.members[name].admin}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def ctl(self, name: str, *words: str) -> Said:
        """`tidemark ctl member …` for this member."""
        out, err = io.StringIO(), io.StringIO()
        url = f"http://{self.trial.members[name].admin}"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["ctl", "--url", url, "member", *words])
        return Said(code, out.getvalue(), err.getvalue())

    def must(self, name: str, *words: str) -> Said:
        said = self.ctl(name, *words)
        assert said.code == 0, f"{name} {' '.join(words)}: {said}"
        return said

    def status(self, name: str) -> dict[str, Any]:
        """What a member says of itself."""
        return self.must(name, "status", "--json").status

    def log(self, name: str) -> str:
        return self.trial.log(name).read_text(errors="replace")

    def left_out(self, leader: str, victim: str, since: float) -> float:
        """When, on the clock of `time.monotonic`, the leader asked for a view without a member."""
        midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1)) - (time.time() - time.monotonic())
        for line in self.log(leader).splitlines():
            if "view proposed" in line and f"without {victim}" in line:
                hours, minutes, seconds = line.split()[0].split(":")
                at = midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
                if at >= since - 0.05:
                    return at
        raise AssertionError(f"{leader} never asked for a view without {victim}")

    # Clients ---------------------------------------------------------------------------------

    def addresses(self, *first: str) -> list[Address]:
        """Where clients may connect, some of them first."""
        every = self.trial.fronts or self.trial.members
        return [self.address(name) for name in (*first, *(name for name in every if name not in first))]

    def address(self, name: str) -> Address:
        return parse_address(self.trial.place(name).amqp)

    @contextlib.contextmanager
    def channel(self, *names: str) -> Iterator[BlockingChannel]:
        """A channel at one of these members, or at any."""
        addresses = [self.address(name) for name in names] if names else self.addresses()
        connection = connect(addresses)
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(AMQPError, OSError):
                connection.close()

    def declare(self, *queues: str, **arguments: Any) -> None:
        with self.channel() as channel:
            for queue in queues:
                channel.queue_declare(queue, durable=True, arguments=arguments or None)


def connect(
    addresses: list[Address], timeout_s: float = PATIENCE_S, over: threading.Event | None = None
) -> pika.BlockingConnection:
    """A connection to the first of them that takes it; they are tried again for a while, or until it is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        if over is not None and over.is_set():
            raise ConnectionAbortedError("nobody wants it any more")
        for address in addresses:
            parameters = pika.ConnectionParameters(
                address.host,
                address.port,
                heartbeat=2,
                socket_timeout=1,
                stack_timeout=2,
                ssl_options=pika.SSLOptions(address.tls, address.host) if address.tls else None,
            )
            try:
                return pika.BlockingConnection(parameters)
            except (AMQPError, AMQPConnectorException, OSError) as problem:
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"no broker takes a connection for {timeout_s} s: {problem!r}"
                    ) from None
        time.sleep(0.01)


# Clients -----------------------------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Publishes 1, 2, 3, … to a queue, or to an exchange with that key, with pika, each confirmed before the next, and sends again
    what was not."""

    def __init__(
        self,
        cluster: Cluster,
        queue: str,
        *,
        first: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        at: list[Address] | None = None,
        pad: int = 0,
        exchange: str = "",
    ) -> None:
        """`at`: it connects there, and not where clients of this cluster usually do."""
        super().__init__(daemon=True, name=f"publisher of {queue}")
        self._exchange = exchange
        self._addresses = (
            [cluster.address(name) for name in only] if only else at or cluster.addresses(*first)
        )
        self._queue = queue
        self._pad = bytes(pad)
        self._over = threading.Event()
        self.confirmed: list[int] = []
        self.times: list[float] = []
        self.again: set[int] = set()
        """What was sent more than once."""
        self.problem: BaseException | None = None

    def __enter__(self) -> Publisher:
        self.start()
        self.await_more(1)
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def run(self) -> None:
        try:
            self._run()
        except BaseException as problem:
            self.problem = problem

    def _run(self) -> None:
        number = 1
        while not self._over.is_set():
            try:
                connection = connect(self._addresses, over=self._over)
                channel = connection.channel()
                channel.confirm_delivery()
                while not self._over.is_set():
                    channel.basic_publish(
                        self._exchange, self._queue, b"%d " % number + self._pad, PERSISTENT, mandatory=True
                    )
                    self.confirmed.append(number)
                    self.times.append(time.monotonic())
                    number += 1
                connection.close()
            except (AMQPError, OSError):
                self.again.add(number)

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive(), f"the {self.name} does not stop"
        self.check()

    def check(self) -> None:
        if self.problem is not None:
            raise AssertionError(f"the {self.name} failed") from self.problem

    def await_more(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many more are confirmed than now."""
        wanted = len(self.confirmed) + count

        def enough() -> bool:
            self.check()
            return len(self.confirmed) >= wanted

        wait_until(f"{count} more confirms", enough, timeout_s)

    def gap_after(self, when: float) -> float:
        """Seconds from this moment to the next confirm that was not on its way then."""
        later = [at for at in list(self.times) if at > when]
        return self._longest([when, *later])

    def longest_gap(self) -> float:
        return self._longest(list(self.times))

    @staticmethod
    def _longest(times: list[float]) -> float:
        return max((after - before for before, after in itertools.pairwise(times)), default=float("inf"))


class Consumer(threading.Thread):
    """Takes what comes from a queue, in order, acknowledges each, and connects again when it must."""

    def __init__(self, cluster: Cluster, queue: str, *, first: tuple[str, ...] = ()) -> None:
        super().__init__(daemon=True, name=f"consumer of {queue}")
        self._addresses = cluster.addresses(*first)
        self._queue = queue
        self._over = threading.Event()
        self.found: list[int] = []
        """A number may be there again when its acknowledgement was lost."""
        self.problem: BaseException | None = None

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive(), f"the {self.name} does not stop"

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._take()
            except (AMQPError, OSError):
                time.sleep(0.01)
            except BaseException as problem:
                self.problem = problem
                return

    def _take(self) -> None:
        connection = connect(self._addresses)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        for method, _, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None:
                self.found.append(int(body.split()[0]))
                channel.basic_ack(method.delivery_tag)
            if self._over.is_set():
                break
        channel.cancel()
        connection.close()

    def await_all(self, publisher: Publisher, timeout_s: float = PATIENCE_S) -> list[int]:
        """Wait until all that was confirmed has come; what came, each number where it came first."""

        def here() -> bool:
            if self.problem is not None:
                raise AssertionError(f"the {self.name} failed") from self.problem
            return set(publisher.confirmed) <= set(self.found)

        with contextlib.suppress(AssertionError):  # the judge says what is missing
            wait_until(f"the {self.name} has all", here, timeout_s)
        return list(dict.fromkeys(self.found))


def drained(cluster: Cluster, queue: str, *names: str) -> list[int]:
    """Everything in a queue, in order, acknowledged."""
    found: list[int] = []
    with cluster.channel(*names) as channel:
        left = channel.queue_declare(queue, passive=True).method.message_count
        channel.basic_qos(prefetch_count=500)
        if left:
            for method, _, body in channel.consume(queue, inactivity_timeout=5):
                if method is None:
                    break
                found.append(int(body.split()[0]))
                channel.basic_ack(method.delivery_tag)
                if len(found) == left:
                    break
            channel.cancel()
    return found


def judge(publisher: Publisher, found: list[int]) -> None:
    """SET and ORD: everything confirmed is there, nothing twice but what was sent twice, all in order."""
    lost = sorted(set(publisher.confirmed) - set(found))
    assert not lost, f"{len(lost)} of {len(publisher.confirmed)} confirmed are lost: {lost[:10]}"
    twice = {number for number, count in Counter(found).items() if count > 1}
    assert twice <= publisher.again, f"twice, but sent once: {sorted(twice - publisher.again)[:10]}"
    unknown = set(found) - set(publisher.confirmed) - publisher.again - {len(publisher.confirmed) + 1}
    assert not unknown, f"never sent: {sorted(unknown)[:10]}"
    first = list(dict.fromkeys(found))
    assert first == sorted(first), "out of order"


class ClusterConnection(RawConnection):
    """A connection that a broker ends because it does not lead any more is a broken one."""

    def read_frame(self, timeout_s: float | None = None) -> Frame:
        frame = super().read_frame(timeout_s)
        if frame.method == CLOSE and (words := Closed.read(frame)).code == 320:
            raise ConnectionEnded(words.text)
        return frame


class ClusterTraffic(Traffic):
    """Mixed traffic (`helpers.traffic`) whose clients try all members in turn."""

    def __init__(self, cluster: Cluster, seed: int, prefix: str) -> None:
        self._addresses = itertools.cycle(cluster.addresses())
        super().__init__(next(self._addresses), seed, prefix)

    def _sessions(self, while_true: Callable[[], bool], session: Callable[[RawConnection], None]) -> None:
        while while_true():
            address = next(self._addresses)
            try:
                with ClusterConnection(address, STALL_S) as connection:
                    connection.handshake()
                    session(connection)
                    return
            except TimeoutError:
                raise
            except OSError:
                self.check_alive()
                time.sleep(0.02)


# Watching ----------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Looks at all members again and again, and remembers who led in which epoch, and what each member was."""

    cluster: Cluster
    leaders: dict[int, set[str]] = field(default_factory=dict)
    """Epoch → those that said they are active in it: one."""
    states: dict[str, list[str]] = field(default_factory=dict)
    """Member → its states, in order, each once in a row."""
    together: list[tuple[str, ...]] = field(default_factory=list)
    """Members that were seen active in one look."""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        if kind is None:
            several = {epoch: names for epoch, names in self.leaders.items() if len(names) > 1}
            assert not several, f"more than one leader in an epoch: {several}"

    def _run(self) -> None:
        while not self._over.is_set():
            active = []
            for seen in self.cluster.trial.look():
                past = self.states.setdefault(seen.name, [])
                if past[-1:] != [seen.state]:
                    past.append(seen.state)
                if seen.state == "active":
                    active.append(seen.name)
                    self.leaders.setdefault(int(seen.status["epoch"]), set()).add(seen.name)
            if len(active) > 1:
                self.together.append(tuple(active))
            self._over.wait(0.03)


__all__ = [
    "Cluster",
    "ClusterTraffic",
    "CommandError",
    "Consumer",
    "Publisher",
    "Watch",
    "drained",
    "fresh",
    "judge",
    "wait_until",
]
