"""A consumer's metrics, as numbers for JSON; docs/monitoring.md describes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.work import PROCESSING_COUNTS
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.consumer.monitoring.diagnosis import diagnose
from aiokafka_lite.consumer.monitoring.health import (
    lag_of,
    last_fetch_s,
    last_heartbeat_s,
    total_lag,
)
from aiokafka_lite.consumer.parts import Running
from aiokafka_lite.records.decoders import COMPILED

Row = dict[str, object]

# Counters of published events.
EVENT_COUNTERS: Final = {
    "assignments_total": "assigned",
    "commit_failures_total": "commit_failed",
    "offset_resets_total": "offset_reset",
    "records_skipped_total": "record_skipped",
    "loop_blocked_total": "loop_blocked",
    "task_restarts_total": "task_restarted",
    "throttles_total": "throttled",
}


def measure(engine: Engine, now: float) -> Row:
    """Return all metrics at loop time `now`; after a stop, those until the stop."""
    state, reads, latest = engine.core.state, engine.core.reads, engine.parts
    reads.settle()
    lag_s = engine.probe.lag_now_s(now)
    status = None if latest is None else latest.membership.status
    lost_offsets, skipped_offsets = engine.core.events.lost_offsets
    return {
        "client_id": engine.core.config.client_id,
        "group_id": engine.core.config.group_id,
        "group_protocol": None if status is None else status.protocol,
        "group_state": None if status is None else status.state,
        "decoder": "compiled" if COMPILED else "plain Python",
        "records_total": reads.record_count,
        **_fetches([] if latest is None else latest.sources.counts.values()),
        "last_fetch_age_seconds": last_fetch_s(engine, now),
        "heartbeats_total": 0 if status is None else status.heartbeat_count,
        "heartbeat_failures_total": 0 if status is None else status.heartbeat_failure_count,
        "last_heartbeat_age_seconds": last_heartbeat_s(engine, now),
        "commits_total": latest.commits.commit_count if latest and latest.commits else 0,
        "reconnects_total": 0 if latest is None else latest.cluster.pool.reconnect_count,
        "buffered_bytes": engine.core.buffer.budget.used_bytes,
        "buffered_limit_bytes": engine.core.buffer.budget.limit_bytes,
        "loop_lag_seconds": lag_s,
        "loop_lag_max_seconds": max(engine.probe.max_lag_s, lag_s),
        "lag": total_lag(engine),
        "assigned_without_position_seconds": (
            0.0 if engine.current is None else engine.current.watchdog.assigned_without_position_s
        ),
        "lost_offsets_total": lost_offsets,
        "skipped_offsets_total": skipped_offsets,
        **{f"processing_{name}": count for name, count in _processing(engine).items()},
        "processing_paused": int(reads.processing is not None and reads.processing.is_paused),
        **{name: engine.core.events.counts.get(event, 0) for name, event in EVENT_COUNTERS.items()},
        "partitions": [
            _partition_row(engine, partition, now) for partition in state.assignment.values()
        ],
        "nodes": [] if latest is None else _node_rows(latest, now),
    }


def _fetches(counts: Collection[NodeCounts]) -> Row:
    fetch_count = sum(c.fetch_count for c in counts)
    latency_sum_s = sum(c.latency_sum_s for c in counts)
    latency_max_s = max((c.latency_max_s for c in counts), default=None)
    return {
        "fetched_bytes_total": sum(c.received_bytes for c in counts),
        "fetches_total": fetch_count,
        "fetch_failures_total": sum(c.failure_count for c in counts),
        "fetch_latency_seconds": latency_sum_s / fetch_count if fetch_count else None,
        "fetch_latency_max_seconds": latency_max_s if fetch_count else None,
    }


def _partition_row(engine: Engine, partition: Cursor, now: float) -> Row:
    running = engine.current
    committed = partition.committed
    last_fetch_at = partition.last_fetch_at
    return {
        "topic": partition.tp.topic,
        "partition": partition.tp.partition,
        "state": diagnose(engine, partition.tp, now).cause.value,
        "position": partition.position,
        "committed": None if committed is None else committed.offset,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "log_start_offset": partition.log_start_offset,
        "lag": lag_of(partition, is_read_committed=engine.core.config.is_read_committed),
        "standstill_seconds": (
            0.0 if running is None else running.watchdog.standstill_s(partition, now)
        ),
        "node": None if running is None else partition.node_id,
        "is_paused": partition.is_paused,
        "last_fetch_age_seconds": None if last_fetch_at is None else now - last_fetch_at,
    }


def _node_rows(running: Running, now: float) -> list[Row]:
    pool, counts = running.cluster.pool, running.sources.counts
    node_ids = sorted({*counts, *(node_id for node_id in pool.node_ids() if node_id >= 0)})
    return [_node_row(running, node_id, counts.get(node_id), now) for node_id in node_ids]


def _node_row(running: Running, node_id: int, counts: NodeCounts | None, now: float) -> Row:
    pool = running.cluster.pool
    node = running.cluster.view.nodes.get(node_id)
    lost_at = pool.lost_at(node_id)
    throttle_s = pool.throttle_s(node_id) if lost_at is None else 0.0
    return {
        "node": node_id,
        "address": None if node is None else f"{node.host}:{node.port}",
        "is_reachable": lost_at is None and node is not None,
        "in_flight": pool.in_flight_request_count(node_id),
        **_fetches([] if counts is None else [counts]),
        "throttle_seconds": throttle_s,
        "down_seconds": None if lost_at is None else now - lost_at,
    }


def _processing(engine: Engine) -> dict[str, int]:
    processing = engine.core.reads.processing
    present = {} if processing is None else processing.counts()
    return engine.core.works.totals | dict.fromkeys(PROCESSING_COUNTS, 0) | present
