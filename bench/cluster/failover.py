"""The leader dies or freezes under load: how long until a client that knows all addresses has its next confirm.

A client publishes at a fixed rate, connected to the leader. When the connection ends, or nothing is confirmed for
`SILENCE_S`, it connects to the next address, sends again what is not confirmed, and goes on. The clock runs from the
signal to the first confirm on a connection that was opened after it. In the end everything is read back: a number that
was confirmed and is not there is lost.

Invariant: only what a server confirmed counts as confirmed, and a number counts as found only if it was read back.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable

from bench.cluster.cases import Case, Kind, Scale
from bench.cluster.contestants import QUEUE, Cluster
from bench.cluster.nats import NatsCluster
from bench.cluster.wire import AmqpLink, Link, LinkEnded, NatsLink
from bench.measure import Figures, RunFailedError

RATE_PER_S = 2_000
WINDOW = 1_000
SILENCE_S = 0.5
"""A connection on which something is unconfirmed and nothing was heard for so long is given up."""
RESEND_S = 0.1
"""NATS drops what it gets while nobody leads a stream: the client has to send it again."""
_PAUSE_S = 0.01
_TURN_S = 0.002
_LIMIT_S = 150.0
"""RabbitMQ notices a frozen node when Erlang does, after about a minute."""
_BEFORE_S = 0.7
_AFTER_S = 0.3
_DRAIN_SILENCE_S = 10.0


class Publisher:
    """Publishes numbers, one after the other, to whichever node takes them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._link: Link | None = None
        self._at = ""
        self._opened_s = self._heard_s = self._sent_s = self._resent_s = 0.0
        self._next = 0
        self._open: dict[int, None] = {}
        """Sent and not confirmed, in order."""
        self.confirmed: set[int] = set()

    def connect(self, node: str) -> None:
        """To this node, and to no other.

        Raises:
            RunFailedError: it does not take connections.
        """
        self.close()
        if not self._try(node):
            raise RunFailedError(f"{node} leads and takes no connection")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._run(lambda: time.monotonic() >= until)

    def run_to_confirm(self, since: float) -> float:
        """Go on until something is confirmed on a connection that was opened after this moment; when that was."""
        self._run(lambda: self._opened_s > since and self._heard_s > self._opened_s)
        return self._heard_s

    def settle(self) -> None:
        """Publish nothing new, and wait until all is confirmed."""
        self._run(lambda: not self._open, publishing=False)

    def _run(self, done: Callable[[], bool], *, publishing: bool = True) -> None:
        start, first = time.monotonic(), self._next
        while not done():
            now = time.monotonic()
            if now - start > _LIMIT_S:
                raise RunFailedError(f"nothing more was confirmed for {_LIMIT_S:.0f} s")
            if self._link is None:
                self._reconnect()
                continue
            try:
                if publishing:
                    due = first + int((now - start) * RATE_PER_S) - self._next
                    self._send(min(due, WINDOW - len(self._open)))
                self._listen(self._link)
            except LinkEnded:
                self.close()

    def _send(self, count: int) -> None:
        if count > 0:
            numbers = range(self._next, self._next + count)
            self._next += count
            self._open.update(dict.fromkeys(numbers))
            self._transmit(numbers)

    def _transmit(self, numbers: range | list[int]) -> None:
        assert self._link is not None
        if not self._open.keys() - set(numbers):  # it had nothing to answer until now
            self._sent_s = time.monotonic()
        self._link.publish(numbers)

    def _listen(self, link: Link) -> None:
        ready, _, _ = select.select([link.socket], [], [], _TURN_S)
        if ready and (confirmed := link.confirmed()):
            self._heard_s = time.monotonic()
            for number in confirmed:
                self._open.pop(number, None)
            self.confirmed.update(confirmed)
            return
        if not self._open:
            return
        silent_s = time.monotonic() - max(self._heard_s, self._sent_s, self._opened_s)
        if silent_s > SILENCE_S:
            self.close()
        elif isinstance(link, NatsLink) and min(silent_s, time.monotonic() - self._resent_s) > RESEND_S:
            self._resent_s = time.monotonic()
            link.publish(list(self._open))

    def _reconnect(self) -> None:
        """The next address that takes us, beginning behind the one we were at."""
        nodes = list(self._cluster.ports)
        behind = nodes.index(self._at) + 1
        for node in nodes[behind:] + nodes[:behind]:
            if self._try(node):
                return
        time.sleep(_PAUSE_S)

    def _try(self, node: str) -> bool:
        self._at = node
        port = self._cluster.ports[node]
        try:
            if self._cluster.protocol == "nats":
                self._link = NatsLink(port, QUEUE)
            else:
                self._link = AmqpLink(port, self._cluster.vhost, QUEUE)
            self._opened_s = time.monotonic()
            if self._open:
                self._transmit(list(self._open))
        except OSError:
            self.close()
            return False
        return True


def failover(
    case: Case, cluster: Cluster, scale: Scale, say: Callable[[str], None] = lambda _: None
) -> list[Figures]:
    """One entry for each time that the leader was hit, and one for what was lost in all.

    Raises:
        RunFailedError: publishing did not go on.
    """
    frozen = case.kind is Kind.FREEZE
    cluster.declare()
    publisher = Publisher(cluster)
    found: list[Figures] = []
    try:
        for number in itertools.count(1):
            leader = cluster.leader()
            publisher.connect(leader)
            publisher.run(_BEFORE_S)
            hit_at = cluster.freeze(leader) if frozen else cluster.kill(leader)
            took_s = publisher.run_to_confirm(hit_at) - hit_at
            found.append({"next_confirm_s": took_s})
            say(f"{took_s:.3f} s")
            publisher.run(_AFTER_S)
            publisher.settle()
            if frozen:
                cluster.thaw(leader)
            else:
                cluster.reap(leader)
                cluster.restart(leader)
            cluster.wait_whole()
            if number >= (scale.freezes if frozen else scale.kills):
                break
    finally:
        publisher.close()
    there = _read_back(cluster)
    found.append({"confirmed": len(publisher.confirmed), "lost": len(publisher.confirmed.difference(there))})
    return found


def _read_back(cluster: Cluster) -> list[int]:
    if isinstance(cluster, NatsCluster):
        return cluster.numbers(QUEUE, int(cluster.info(QUEUE)["state"]["messages"]))
    port = cluster.ports[cluster.leader()]
    with AmqpLink(port, cluster.vhost, QUEUE, timeout_s=10) as link:
        return link.drain(link.queue_length(), _DRAIN_SILENCE_S)
