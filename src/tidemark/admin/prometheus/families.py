"""Where the numbers of the metrics come from: the broker as it is now, as families for `text`.

Totals come from running sums (`runtime.rates`) and cost the same however many queues there are. Families of single
objects are made lazily, an object at a time, while they are told.

Invariant: nothing here changes the broker.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tidemark import __version__
from tidemark.admin.prometheus.text import Buckets, Family, Labels, Sample, label
from tidemark.broker._publisher_py import SIZES
from tidemark.broker.streams.stream import Stream
from tidemark.runtime import machine
from tidemark.runtime.histogram import cumulated
from tidemark.runtime.rates import read_queue
from tidemark.runtime.server import Server

AT_ONCE = 500
"""Streams, or pieces of the journal, that are looked at before others have their turn."""
MICROSECOND = 1e-6
GROUP_CLASSES = 11
"""Classes of frames that share a sync: up to 1024, and more."""
CLASSIC = "rabbit_classic_queue"
STREAM = "rabbit_stream_queue"
QUORUM = "rabbit_quorum_queue"
TYPES = {"classic": CLASSIC, "quorum": QUORUM, "stream": STREAM}


def one(name: str, value: float, **labels: str) -> Family:
    """A metric with one value."""
    return Family(name, [(labels, value)])


async def totals(server: Server, endpoint: str) -> AsyncIterator[Family]:
    """The whole broker, without the names of anything in it."""
    await server.rates.catch_up()
    for family in (
        *identity(server, endpoint),
        *_clients(server),
        *_queues(server),
        *_messages(server),
        *_node(server),
        *_journal(server),
        *_cluster(server),
    ):
        yield family
    yield one("tidemark_journal_live_bytes", await _live_bytes(server))


def identity(server: Server, endpoint: str) -> Iterator[Family]:
    status = server.node.store.files.status
    yield one(
        "rabbitmq_identity_info",
        1,
        rabbitmq_node=server.config.node.name,
        rabbitmq_cluster=server.config.amqp091.cluster_name,
        rabbitmq_cluster_permanent_id=status.cluster or status.store,
        rabbitmq_endpoint=endpoint,
    )
    yield one(
        "rabbitmq_build_info",
        1,
        rabbitmq_version=__version__,
        erlang_version=f"none: Python {platform.python_version()}",
        prometheus_plugin_version=__version__,
        prometheus_client_version=_client_version(),
        product_name="Tidemark",
        product_version=__version__,
    )


@cache
def _client_version() -> str:
    return metadata.version("prometheus_client")


def _clients(server: Server) -> Iterator[Family]:
    counts, rates = server.node.broker.counts, server.rates
    yield one("rabbitmq_connections", counts.connections_opened - counts.connections_closed)
    yield one("rabbitmq_channels", counts.channels_opened - counts.channels_closed)
    for name in ("connections_opened", "connections_closed", "channels_opened", "channels_closed"):
        yield one(f"rabbitmq_{name}_total", getattr(counts, name))
    for name in ("queues_declared", "queues_created", "queues_deleted"):
        yield one(f"rabbitmq_{name}_total", getattr(counts, name))
    yield one("rabbitmq_connection_incoming_bytes_total", rates.bytes_in)
    yield one("rabbitmq_connection_outgoing_bytes_total", rates.bytes_out)


def _queues(server: Server) -> Iterator[Family]:
    now = server.rates.totals()
    yield one("rabbitmq_queues", now.queues)
    yield one("rabbitmq_consumers", now.consumers)
    yield one("rabbitmq_queue_consumers", now.consumers)
    yield one("rabbitmq_queue_messages", now.ready + now.acquired)
    yield one("rabbitmq_queue_messages_ready", now.ready)
    yield one("rabbitmq_queue_messages_unacked", now.acquired)
    yield one("rabbitmq_queue_messages_bytes", now.ready_bytes + now.acquired_bytes)
    yield one("rabbitmq_queue_messages_ready_bytes", now.ready_bytes)
    yield one("rabbitmq_queue_messages_unacked_bytes", now.acquired_bytes)
    for name, count in _QUEUE_COUNTS.items():
        yield one(f"rabbitmq_queue_{name}_total", now.counts[count])
    for count in ("expired", "evicted", "dead_lettered"):
        yield one(f"tidemark_queue_messages_{count}_total", now.counts[count])
    protocol = server.node.broker.counts.amqp091
    for name, value in (
        ("messages_published", protocol.received),
        ("messages_confirmed", protocol.confirmed),
        ("messages_unroutable_returned", protocol.returned),
        *((name, now.counts[count]) for name, count in _QUEUE_COUNTS.items() if name in _CHANNEL_SUMS),
    ):
        yield one(f"rabbitmq_channel_{name}_total", value)
    yield one("rabbitmq_channel_messages_unacked", now.acquired)
    yield one("rabbitmq_channel_messages_unconfirmed", protocol.unconfirmed)


_QUEUE_COUNTS = {
    "messages_published": "publish",
    "messages_delivered_ack": "deliver",
    "messages_delivered": "deliver_no_ack",
    "get_ack": "get",
    "get": "get_no_ack",
    "get_empty": "get_empty",
    "messages_redelivered": "redeliver",
    "messages_acked": "ack",
}
"""Prometheus' names of what a queue counts, by those of the management API."""
_CHANNEL_SUMS = (
    "messages_delivered_ack",
    "messages_delivered",
    "get_ack",
    "get",
    "get_empty",
    "messages_acked",
)
_BY_QUEUE = {
    "messages_delivered": "deliver_get",
    "messages_delivered_consume_manual_ack": "deliver",
    "messages_delivered_consume_auto_ack": "deliver_no_ack",
    "messages_delivered_get_manual_ack": "get",
    "messages_delivered_get_auto_ack": "get_no_ack",
    "messages_get_empty": "get_empty",
    "messages_redelivered": "redeliver",
    "messages_acknowledged": "ack",
}


def _messages(server: Server) -> Iterator[Family]:
    """By protocol."""
    counts, now = server.node.broker.counts, server.rates.totals()
    for name, attribute in (
        ("received", "received"),
        ("received_confirm", "received_confirm"),
        ("routed", "routed"),
        ("unroutable_dropped", "dropped"),
        ("unroutable_returned", "returned"),
        ("confirmed", "confirmed"),
    ):
        yield Family(
            f"rabbitmq_global_messages_{name}_total",
            [({"protocol": p}, getattr(counts.of(p), attribute)) for p in ("amqp091", "stream")],
        )
    yield Family(
        "rabbitmq_global_publishers",
        [({"protocol": p}, counts.of(p).publishers) for p in ("amqp091", "stream")],
    )
    yield one("rabbitmq_global_consumers", now.consumers, protocol="amqp091")
    by_kind = {kind: server.rates.of_kind(kind) for kind in TYPES}
    for name, count in _BY_QUEUE.items():
        samples: list[Sample] = [
            ({"protocol": "amqp091", "queue_type": TYPES[kind]}, counted[count])
            for kind, counted in by_kind.items()
        ]
        if name == "messages_delivered":
            samples.append(({"protocol": "stream", "queue_type": STREAM}, counts.stream.delivered))
        yield Family(f"rabbitmq_global_{name}_total", samples)
    meter = server.node.broker.published
    upto, so_far = [], 0
    for bound, messages in zip((*SIZES, float("inf")), meter.sizes(), strict=True):
        so_far += messages
        upto.append((float(bound), so_far))
    yield Family("rabbitmq_message_size_bytes", [Buckets({"protocol": "amqp091"}, upto, float(meter.bytes))])


def _node(server: Server) -> Iterator[Family]:
    node, config = server.node, server.config
    yield one("rabbitmq_process_open_fds", open_files())
    yield one("rabbitmq_process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield one("rabbitmq_process_resident_memory_bytes", machine.resident_bytes())
    yield one("rabbitmq_resident_memory_limit_bytes", server.memory_high_bytes)
    yield one("rabbitmq_disk_space_available_bytes", server.disk_free_bytes)
    yield one("rabbitmq_disk_space_available_limit_bytes", config.limits.disk_free_bytes_min)
    uptime_s = (server.clock.now_ms() - server.started_ms) / 1000
    yield one("rabbitmq_erlang_uptime_seconds", uptime_s)
    yield one("rabbitmq_alarms_memory_used_watermark", node.alarms.memory)
    yield one("rabbitmq_alarms_free_disk_space_watermark", node.alarms.disk)
    yield one("tidemark_publishers_blocked", node.alarms.reason is not None)
    yield Family(
        "tidemark_turn_seconds",
        [Buckets({}, server.turns.buckets(MICROSECOND), server.turns.total * MICROSECOND)],
    )
    yield one("tidemark_loop_late_seconds", server.late_s)
    times = os.times()
    yield one("process_cpu_seconds_total", times.user + times.system)
    yield one("process_start_time_seconds", time.time() - uptime_s)


def open_files() -> int:
    """How many files and sockets the process has open."""
    folder = Path("/proc/self/fd")
    with suppress(OSError):
        # Newer kernels say it without being asked for every single one.
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    return 0


def _journal(server: Server) -> Iterator[Family]:
    now = server.node.journal.statistics()
    for name, value in (
        ("durable_sequence", now.durable_seq),
        ("last_sequence", now.last_seq),
        ("segments", now.segments),
        ("bytes", now.bytes_on_disk),
        ("waiting_frames", now.waiting),
        ("resident_bytes", now.resident_bytes),
        ("spilled_extents", now.spilled),
        ("full", int(now.full)),
        ("written_bytes_total", now.bytes_written),
        ("frames_total", now.frames),
        ("records_total", now.records),
        ("compactions_total", now.compactions),
        ("compacted_bytes_total", now.compacted_bytes),
        ("checkpoints_total", now.checkpoints),
        ("pages_in_total", now.pages_in),
        ("pages_out_total", now.pages_out),
    ):
        yield one(f"tidemark_journal_{name}", value)
    written, syncs, syncs_us, groups, groups_total = server.flushes()
    yield Family(
        "tidemark_journal_sync_seconds",
        [Buckets({}, cumulated(syncs, MICROSECOND), syncs_us * MICROSECOND)],
    )
    few = (*groups[:GROUP_CLASSES], sum(groups[GROUP_CLASSES:]))
    yield Family("tidemark_journal_sync_frames", [Buckets({}, cumulated(few, 1.0), float(groups_total))])
    yield one("rabbitmq_io_write_bytes_total", written)
    yield one("rabbitmq_io_sync_ops_total", sum(syncs))
    yield one("rabbitmq_io_sync_time_seconds_total", syncs_us * MICROSECOND)


async def _live_bytes(server: Server) -> int:
    node, total, looked = server.node, 0, 0
    for segment in list(node.journal.segments):
        for number in list(segment.extents):
            with suppress(KeyError):  # freed while others had their turn
                total += node.arena.extent(number).live_bytes
            looked += 1
            if looked % AT_ONCE == 0:
                await asyncio.sleep(0)
    return total


def _cluster(server: Server) -> Iterator[Family]:
    node, member = server.node, server.member
    if member is None:
        yield one("tidemark_cluster_info", 1, cluster="", mode="alone", role="alone", leader="")
        yield one("tidemark_cluster_serving", node.serving)
        yield one("tidemark_cluster_epoch", 0)
        yield one("tidemark_cluster_members_ready", 0)
        yield one("tidemark_cluster_queues_differing", 0)
        yield one("tidemark_cluster_queues_compared_total", 0)
    else:
        now: dict[str, Any] = member.status()
        yield one(
            "tidemark_cluster_info",
            1,
            cluster=server.config.cluster.name,
            mode=now["mode"],
            role=now["state"],
            leader=now["leader"] or "",
        )
        yield one("tidemark_cluster_serving", bool(now["serving"]))
        yield one("tidemark_cluster_epoch", now["epoch"])
        yield one("tidemark_cluster_members_ready", len(now["ready"]))
        peers = now["peers"]
        yield Family(
            "tidemark_cluster_member_lag_sequences", [({"member": p["name"]}, p["lag"]) for p in peers]
        )
        yield Family(
            "tidemark_cluster_member_unacked_bytes",
            [({"member": p["name"]}, p["unacked_bytes"]) for p in peers],
        )
        yield Family(
            "tidemark_cluster_member_over_budget_ratio",
            [({"member": name}, share) for name, share in now["over_budget"].items()],
        )
        yield one("tidemark_cluster_queues_differing", len(now["differing"]))
        yield one("tidemark_cluster_queues_compared_total", now["compared"])
    yield one("tidemark_cluster_histories_total", len(node.store.table))


# Streams ------------------------------------------------------------------------------------------------

_STREAM_NUMBERS: tuple[tuple[str, Callable[[Stream], int]], ...] = (
    ("messages", lambda stream: stream.live),
    ("bytes", lambda stream: stream.live_bytes),
    ("tombstones", lambda stream: stream.tombstones),
    ("superseded_messages", lambda stream: stream.held),
    ("superseded_bytes", lambda stream: stream.held_bytes),
    ("pins", lambda stream: len(stream.pins.by_name)),
    ("snapshots", lambda stream: stream.snapshots_open),
    ("marks", lambda stream: len(stream.marks.by_name)),
    ("consumers", lambda stream: len(stream.consumers)),
    ("memory_bytes", lambda stream: stream.memory_bytes),
    ("messages_published_total", lambda stream: stream.published),
)


async def streams(server: Server) -> AsyncIterator[Family]:
    """All streams together."""
    found = streams_of(server)
    sums = [0] * len(_STREAM_NUMBERS)
    lag = 0
    for place, stream in enumerate(found):
        for column, (_, number) in enumerate(_STREAM_NUMBERS):
            sums[column] += number(stream)
        lag = max(lag, max((_lag(stream, mark) for mark in stream.marks.by_name.values()), default=0))
        if place % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
    yield one("tidemark_streams", len(found))
    for (name, _), value in zip(_STREAM_NUMBERS, sums, strict=True):
        yield one(f"tidemark_stream_{name}", value)
    yield one("tidemark_mark_lag_sequences", lag)


def each_stream(found: list[Stream], prefix: str = "tidemark_") -> Iterator[Family]:
    """Streams one by one, with their marks and pins."""
    for name, number in _STREAM_NUMBERS:
        yield Family(f"{prefix}stream_{name}", _numbers(found, number))
    yield Family(f"{prefix}stream_boundary_sequence", ((_of_stream(s), s.boundary) for s in found))
    yield Family(
        f"{prefix}mark_lag_sequences",
        (
            ({**_of_stream(stream), "consumer": label(mark.consumer)}, _lag(stream, mark))
            for stream in found
            for mark in stream.marks.by_name.values()
        ),
    )
    yield Family(
        f"{prefix}pin_kept_bytes",
        (
            ({**_of_stream(stream), "pin": label(pin.name)}, stream.kept(pin.seq)[1])
            for stream in found
            for pin in stream.pins.by_name.values()
        ),
    )


def streams_of(server: Server, wanted: Callable[[str], bool] = lambda _: True) -> list[Stream]:
    """The streams of these virtual hosts."""
    everything: Iterable[Any] = server.node.broker.queues.values()
    return [each for each in everything if isinstance(each, Stream) and wanted(each.spec.vhost)]


def _numbers(found: list[Stream], number: Callable[[Stream], int]) -> Iterator[Sample]:
    return ((_of_stream(stream), number(stream)) for stream in found)


def _lag(stream: Stream, mark: Any) -> int:
    return max(0, stream.boundary - int(mark.seq))


def _of_stream(stream: Stream) -> Labels:
    return {"vhost": label(stream.spec.vhost), "stream": label(stream.name)}


# Single objects, as in RabbitMQ --------------------------------------------------------------------------------

GROUPS = (
    "queue_coarse_metrics",
    "queue_consumer_count",
    "queue_metrics",
    "queue_delivery_metrics",
    "queue_exchange_metrics",
    "exchange_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "connection_churn_metrics",
    "channel_metrics",
    "channel_exchange_metrics",
    "channel_queue_metrics",
    "node_coarse_metrics",
    "node_metrics",
    "vhost_status",
    "exchange_bindings",
    "exchange_names",
    "stream_metrics",
    "pipeline_metrics",
)
"""What /metrics/detailed may be asked for by `family`. The last two are ours."""


def group(server: Server, name: str, prefix: str, wanted: Callable[[str], bool]) -> Iterable[Family]:
    """One group of metrics of /metrics/detailed, about the virtual hosts that are wanted."""
    broker = server.node.broker
    queues = [queue for queue in broker.queues.values() if wanted(queue.spec.vhost)]
    match name:
        case "queue_coarse_metrics":
            return _each_queue(prefix, queues, _COARSE)
        case "queue_consumer_count":
            return _each_queue(prefix, queues, {"consumers": -1})
        case "queue_metrics":
            return (*_each_queue(prefix, queues, {"consumers": -1, **_BYTES}), _queue_info(prefix, queues))
        case "queue_delivery_metrics":
            return _each_queue(prefix, queues, _DELIVERED)
        case "queue_exchange_metrics":
            return _each_queue(prefix, queues, {"messages_published_total": 0})
        case "exchange_metrics":
            return _each_exchange(server, prefix, wanted)
        case "connection_coarse_metrics" | "connection_metrics":
            return _each_connection(server, prefix, wanted, name == "connection_metrics")
        case "channel_metrics" | "channel_exchange_metrics" | "channel_queue_metrics":
            return _each_channel(server, prefix, wanted, _CHANNEL_GROUPS[name])
        case "connection_churn_metrics":
            return (each for each in _clients(server) if "_opened" in each.name or "_closed" in each.name)
        case "node_coarse_metrics" | "node_metrics":
            return (each for each in _node(server) if each.name.startswith("rabbitmq_"))
        case "vhost_status":
            hosts = [host for host in broker.vhosts if wanted(host)]
            return [Family("rabbitmq_cluster_vhost_status", [({"vhost": label(h)}, 1.0) for h in hosts])]
        case "exchange_bindings" | "exchange_names":
            return _exchanges_of_cluster(server, name, wanted)
        case "stream_metrics":
            return each_stream(streams_of(server, wanted), prefix.replace("rabbitmq", "tidemark"))
    raise ValueError(name)


_COARSE = {"messages_ready": 12, "messages_unacked": 13, "messages": -2}
_BYTES = {"messages_ready_bytes": 14, "messages_unacked_bytes": 15, "messages_bytes": -3}
_DELIVERED = {
    "get_ack_total": 3,
    "get_total": 4,
    "messages_delivered_ack_total": 1,
    "messages_delivered_total": 2,
    "messages_redelivered_total": 6,
    "messages_acked_total": 7,
    "get_empty_total": 8,
}
"""Where `rates.read_queue` has a number; -1 is its last, -2 and -3 are sums of two."""


def _each_queue(prefix: str, queues: list[Any], columns: dict[str, int]) -> Iterator[Family]:
    for name, column in columns.items():
        yield Family(f"{prefix}queue_{name}", ((_of_queue(q), _number(q, column)) for q in queues))


def _number(queue: Any, column: int) -> int:
    values = read_queue(queue)
    if column == -2:
        return values[12] + values[13]
    if column == -3:
        return values[14] + values[15]
    return values[column]


def _queue_info(prefix: str, queues: list[Any]) -> Family:
    return Family(
        f"{prefix}queue_info",
        (({**_of_queue(q), "queue_type": TYPES.get(q.policy.kind, CLASSIC)}, 1.0) for q in queues),
    )


def _of_queue(queue: Any) -> Labels:
    return {"vhost": label(queue.spec.vhost), "queue": label(queue.name)}


def _each_exchange(server: Server, prefix: str, wanted: Callable[[str], bool]) -> Iterator[Family]:
    found = [
        ({"vhost": label(host.name), "exchange": label(exchange.name)}, exchange)
        for host in server.node.broker.vhosts.values()
        if wanted(host.name)
        for exchange in host.exchanges.values()
    ]
    yield Family(f"{prefix}exchange_messages_published_total", ((of, x.meter.messages) for of, x in found))
    yield Family(f"{prefix}exchange_messages_unroutable_total", ((of, x.unroutable) for of, x in found))


def _exchanges_of_cluster(server: Server, name: str, wanted: Callable[[str], bool]) -> Iterator[Family]:
    found = [
        ({"vhost": label(h.name), "exchange": label(x.name), "type": x.type}, len(x.bindings))
        for h in server.node.broker.vhosts.values()
        if wanted(h.name)
        for x in h.exchanges.values()
    ]
    if name == "exchange_bindings":
        yield Family("rabbitmq_cluster_exchange_bindings", found)
    else:
        yield Family("rabbitmq_cluster_exchange_name", ((of, 1) for of, _ in found))


def _each_connection(
    server: Server, prefix: str, wanted: Callable[[str], bool], with_channels: bool
) -> Iterator[Family]:
    found = [
        ({"connection": str(front_end.peer)}, front_end)
        for front_end in server.node.front_ends
        if wanted(_vhost_of(front_end))
    ]
    if with_channels:
        yield Family(
            f"{prefix}connection_channels",
            ((of, len(getattr(each, "channels", ()))) for of, each in found),
        )
    else:
        yield Family(f"{prefix}connection_incoming_bytes_total", ((of, each.bytes_in) for of, each in found))
        yield Family(f"{prefix}connection_outgoing_bytes_total", ((of, each.bytes_out) for of, each in found))


def _vhost_of(front_end: Any) -> str:
    """The virtual host of a connection; none while it has not logged in."""
    session = getattr(front_end, "session", None)
    return "" if session is None else session.vhost.name


_CHANNEL_GROUPS = {
    "channel_metrics": (),
    "channel_exchange_metrics": (
        ("messages_published_total", "publish"),
        ("messages_confirmed_total", "confirm"),
        ("messages_unroutable_returned_total", "return_unroutable"),
    ),
    "channel_queue_metrics": (
        ("get_ack_total", "get"),
        ("get_total", "get_no_ack"),
        ("messages_delivered_ack_total", "deliver"),
        ("messages_delivered_total", "deliver_no_ack"),
        ("messages_acked_total", "ack"),
        ("get_empty_total", "get_empty"),
    ),
}


def _each_channel(
    server: Server, prefix: str, wanted: Callable[[str], bool], counted: tuple[tuple[str, str], ...]
) -> Iterator[Family]:
    found: list[tuple[Labels, Any]] = [
        ({"connection": str(front_end.peer), "channel": str(number)}, channel)
        for front_end in server.node.front_ends
        if wanted(_vhost_of(front_end))
        for number, channel in getattr(front_end, "channels", {}).items()
    ]
    for name, count in counted:
        yield Family(f"{prefix}channel_{name}", ((of, getattr(c.counts, count)) for of, c in found))
    if not counted:
        now = [(of, channel.statistics()) for of, channel in found]
        yield Family(f"{prefix}channel_consumers", ((of, len(c.consumers)) for of, c in now))
        yield Family(f"{prefix}channel_messages_unacked", ((of, c.unacked) for of, c in now))
        yield Family(f"{prefix}channel_messages_unconfirmed", ((of, c.unconfirmed) for of, c in now))
        yield Family(f"{prefix}channel_prefetch", ((of, c.global_prefetch) for of, c in now))
