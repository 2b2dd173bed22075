"""Every metric that the broker tells Prometheus, with its kind and one sentence. `docs/metrics.md` has the same table.

Names that begin with `rabbitmq_` mean what they mean in RabbitMQ, so that its dashboards and alerts work; those that begin
with `tidemark_` are about what only this broker has. `rabbitmq_detailed_…` is the same as `rabbitmq_…` with the names of
the objects as labels; Prometheus can have both of one broker without counting anything twice.

Invariant: a metric that is not in this table is not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Kind
    help: str


def _gauges(prefix: str, **sentences: str) -> dict[str, Metric]:
    return {prefix + name: Metric("gauge", text) for name, text in sentences.items()}


def _counters(prefix: str, **sentences: str) -> dict[str, Metric]:
    return {f"{prefix}{name}_total": Metric("counter", text) for name, text in sentences.items()}


OBJECTS: dict[str, Metric] = {
    **_gauges(
        "queue_",
        messages="Ready and unacknowledged messages.",
        messages_ready="Messages that wait for a consumer.",
        messages_unacked="Messages that consumers have and have not acknowledged.",
        messages_bytes="Bytes of ready and unacknowledged messages.",
        messages_ready_bytes="Bytes of messages that wait for a consumer.",
        messages_unacked_bytes="Bytes of messages that consumers have not acknowledged.",
        consumers="Consumers.",
    ),
    **_counters(
        "queue_",
        messages_published="Messages that came in.",
        messages_delivered_ack="Messages delivered to consumers that acknowledge.",
        messages_delivered="Messages delivered to consumers that need not acknowledge.",
        get_ack="Messages fetched with basic.get that must be acknowledged.",
        get="Messages fetched with basic.get that need not be acknowledged.",
        get_empty="Times that basic.get found nothing.",
        messages_redelivered="Messages that came back to be delivered again.",
        messages_acked="Messages acknowledged by consumers.",
    ),
    **_counters(
        "exchange_",
        messages_published="Messages published into the exchange.",
        messages_unroutable="Messages published into the exchange that no queue wanted.",
    ),
    **_counters(
        "connection_",
        incoming_bytes="Bytes received from the client.",
        outgoing_bytes="Bytes sent to the client.",
    ),
    **_gauges("connection_", channels="Channels."),
    **_gauges(
        "channel_",
        consumers="Consumers of the channel.",
        messages_unacked="Messages delivered on the channel and not acknowledged.",
        messages_unconfirmed="Messages published on the channel and not confirmed.",
        prefetch="Limit of unacknowledged messages of the whole channel; 0 is none.",
    ),
    **_counters(
        "channel_",
        messages_published="Messages published on the channel.",
        messages_confirmed="Messages published on the channel and confirmed.",
        messages_unroutable_returned="Messages published on the channel and returned.",
        messages_delivered_ack="Messages delivered on the channel that must be acknowledged.",
        messages_delivered="Messages delivered on the channel that need not be acknowledged.",
        get_ack="Messages fetched on the channel that must be acknowledged.",
        get="Messages fetched on the channel that need not be acknowledged.",
        get_empty="Times that basic.get on the channel found nothing.",
        messages_acked="Messages acknowledged on the channel.",
    ),
    "queue_info": Metric("info", "1 for each queue, with its type."),
}
"""Metrics of single objects, without their prefix."""

CLUSTER: dict[str, Metric] = _gauges(
    "rabbitmq_cluster_",
    vhost_status="1 while the virtual host is there.",
    exchange_bindings="Bindings that begin at the exchange.",
    exchange_name="1 for each exchange.",
)

STREAMS: dict[str, Metric] = {
    **_gauges(
        "tidemark_stream_",
        messages="Messages that are there: each key once, and those without a key.",
        bytes="Bytes of these messages.",
        tombstones="Deletes that some consumers have not been told of.",
        superseded_messages="Superseded messages that pins, snapshots or the history keep.",
        superseded_bytes="Bytes of superseded messages that are kept.",
        pins="Pinned snapshots.",
        snapshots="Snapshots that are open.",
        marks="Consumers with a mark.",
        consumers="Consumers that are connected.",
        memory_bytes="Memory of the index.",
        boundary_sequence="The newest sequence that snapshots are taken at.",
    ),
    **_counters("tidemark_stream_", messages_published="Messages that were put, tombstones included."),
    **_gauges(
        "tidemark_mark_",
        lag_sequences="How many sequences of the journal a consumer's mark is behind the boundary of its stream.",
    ),
    **_gauges("tidemark_pin_", kept_bytes="Bytes that a pin sees and that have been superseded."),
}
"""Metrics of single streams, marks and pins."""

PIPELINES: dict[str, Metric] = {
    "tidemark_pipeline_info": Metric(
        "info", "1 for each pipeline that reports to this broker, with its state."
    ),
    **_counters(
        "tidemark_pipeline_",
        sink_rows="Rows that the sink has taken since the pipeline began.",
        sink_batches="Batches that the sink has taken.",
        sink_dead_letters="Rows that the sink could not take.",
        sink_restarts="Times that the sink was begun again.",
    ),
    **_gauges(
        "tidemark_pipeline_",
        sink_rows_per_second="Rows that the sink takes in a second.",
        sink_lag_rows="Rows that the sink is behind its source.",
        sink_lag_seconds="By how long the sink is behind its source.",
    ),
}
"""What pipelines say of themselves."""

TOTALS: dict[str, Metric] = {
    "rabbitmq_identity_info": Metric("info", "1, with the name of this node and its cluster."),
    "rabbitmq_build_info": Metric("info", "1, with the versions of what runs."),
    **_gauges(
        "rabbitmq_",
        connections="Connections that are open.",
        channels="Channels that are open.",
        consumers="Consumers of queues and streams.",
        queues="Queues and streams.",
        process_open_fds="Files and sockets that are open.",
        process_max_fds="Files and sockets that may be open.",
        process_resident_memory_bytes="Memory in use.",
        resident_memory_limit_bytes="Memory above which publishers must wait.",
        disk_space_available_bytes="Free disk space.",
        disk_space_available_limit_bytes="Free disk space below which publishers must wait.",
        erlang_uptime_seconds="Since when the process runs. No Erlang here: RabbitMQ's name for it.",
        alarms_memory_used_watermark="1 while publishers wait because memory is short.",
        alarms_free_disk_space_watermark="1 while publishers wait because disk space is short.",
    ),
    **_counters(
        "rabbitmq_",
        connections_opened="Connections that were opened.",
        connections_closed="Connections that were closed.",
        channels_opened="Channels that were opened.",
        channels_closed="Channels that were closed.",
        queues_declared="Times that a queue or stream was declared, whether it was there or not.",
        queues_created="Queues and streams that were made.",
        queues_deleted="Queues and streams that were deleted.",
        io_write_bytes="Bytes written to both logs.",
        io_sync_ops="Syncs of the disk.",
        io_sync_time_seconds="Time that syncs of the disk took.",
    ),
    **_counters(
        "rabbitmq_global_",
        messages_received="Messages that clients published.",
        messages_received_confirm="Messages published on channels that want confirms.",
        messages_routed="Places on queues that published messages got.",
        messages_unroutable_dropped="Messages that no queue wanted, dropped.",
        messages_unroutable_returned="Messages that no queue wanted, returned.",
        messages_confirmed="Messages that were confirmed.",
        messages_delivered="Messages delivered to clients, fetched ones included.",
        messages_delivered_consume_manual_ack="Messages delivered to consumers that acknowledge.",
        messages_delivered_consume_auto_ack="Messages delivered to consumers that need not acknowledge.",
        messages_delivered_get_manual_ack="Messages fetched with basic.get that must be acknowledged.",
        messages_delivered_get_auto_ack="Messages fetched with basic.get that need not be acknowledged.",
        messages_get_empty="Times that basic.get found nothing.",
        messages_redelivered="Messages that came back to be delivered again.",
        messages_acknowledged="Messages acknowledged by consumers.",
    ),
    **_gauges(
        "rabbitmq_global_",
        publishers="Channels that have published and are open.",
        consumers="Consumers of queues and streams.",
    ),
    "rabbitmq_message_size_bytes": Metric("histogram", "Sizes of the bodies of published messages."),
    **_counters(
        "tidemark_queue_",
        messages_expired="Messages whose time to live was over.",
        messages_evicted="Messages dropped because a queue was longer than it may be.",
        messages_dead_lettered="Messages passed on to a dead-letter exchange.",
    ),
    **_gauges(
        "tidemark_", streams="Streams.", publishers_blocked="1 while publishers must wait, for any reason."
    ),
    **_gauges(
        "tidemark_journal_",
        durable_sequence="Every record up to this sequence is on the disk.",
        last_sequence="The sequence that was given last.",
        segments="Files of the journal.",
        bytes="Size of these files.",
        live_bytes="Bytes in them that are bodies of messages which are still there.",
        waiting_frames="Frames on their way to the disk.",
        resident_bytes="Messages in memory.",
        spilled_extents="Pieces of transient messages that are on the disk for want of memory.",
        full="1 while there is no room for more.",
    ),
    **_counters(
        "tidemark_journal_",
        written_bytes="Bytes of frames.",
        frames="Frames: what is written together.",
        records="Records: messages, acknowledgements, marks.",
        compactions="Compactions that were finished.",
        compacted_bytes="Bytes that compaction read.",
        checkpoints="Checkpoints that were written.",
        pages_in="Pieces that were read back from the disk.",
        pages_out="Pieces that were let go of in memory.",
    ),
    "tidemark_journal_sync_seconds": Metric("histogram", "How long a sync of the disk took."),
    "tidemark_journal_sync_frames": Metric("histogram", "How many frames shared a sync (group commit)."),
    "tidemark_turn_seconds": Metric(
        "histogram", "How long a turn of the loop took: dispatch, journal, sending."
    ),
    **_gauges("tidemark_loop_", late_seconds="By how much the last timer of a second came late."),
    "tidemark_cluster_info": Metric("info", "1, with the mode of the cluster and what this member is."),
    **_gauges(
        "tidemark_cluster_",
        serving="1 while this node serves clients: it stands alone or leads.",
        epoch="The epoch of the cluster; 0: it stands alone.",
        members_ready="Members that have all that was confirmed; 0: it stands alone.",
        member_lag_sequences="How many sequences a member that follows this one is behind.",
        member_unacked_bytes="Bytes sent to a member that it has not stored yet.",
        member_over_budget_ratio="For which share of the last two seconds a ready member took longer than "
        "cluster.ack_budget_ms to acknowledge, as the leader sees it.",
        queues_differing="Queues and streams of this member that do not hold what the leader's do. Not 0: look at its log.",
    ),
    **_counters(
        "tidemark_cluster_",
        histories="Histories of the store: how often somebody began to lead.",
        queues_compared="Queues and streams of this member that were compared with the leader's.",
    ),
    **_counters(
        "tidemark_scrape_",
        requests="Times that metrics were asked for.",
        seconds="Time spent on answering that, of one core.",
    ),
    "process_cpu_seconds_total": Metric("counter", "Time of all cores that the process used."),
    "process_start_time_seconds": Metric("gauge", "When the process began, in seconds since 1970."),
}
"""Metrics of the whole broker."""

SUMS: dict[str, Metric] = {
    f"rabbitmq_{name}": metric
    for name, metric in OBJECTS.items()
    if metric.kind != "info"
    and name not in ("connection_channels", "channel_consumers", "channel_prefetch")
    and not name.startswith("exchange_")
}
"""Of all objects together, in /metrics."""

PER_OBJECT: dict[str, Metric] = {f"rabbitmq_{name}": metric for name, metric in OBJECTS.items()}
DETAILED: dict[str, Metric] = {f"rabbitmq_detailed_{name}": metric for name, metric in OBJECTS.items()}

DETAILED_OURS: dict[str, Metric] = {
    name.replace("tidemark_", "tidemark_detailed_"): metric for name, metric in (STREAMS | PIPELINES).items()
}

FRONT: dict[str, Metric] = {
    **_gauges(
        "tidemark_front_",
        connections="Clients that are connected to the front.",
        links="Connections of the front to a group on behalf of clients.",
        wiring_up="1 while main tells the front its wiring.",
    ),
    **_counters(
        "tidemark_front_",
        connections_opened="Clients that have connected to the front.",
        received_bytes="Bytes that clients have sent to the front.",
        sent_bytes="Bytes that the front has sent to clients.",
    ),
}
"""Of a front, on its own admin port."""

EVERY: dict[str, Metric] = {
    **TOTALS,
    **SUMS,
    **STREAMS,
    **PIPELINES,
    **PER_OBJECT,
    **DETAILED,
    **DETAILED_OURS,
    **CLUSTER,
    **FRONT,
}
