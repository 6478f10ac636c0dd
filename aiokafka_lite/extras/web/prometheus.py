"""Metrics in Prometheus' text format, written by prometheus_client.

Every number of `AIOKafkaConsumer.metrics` becomes ``aiokafka_lite_`` and its name. Names that end
in _total are counters, all others gauges. Unknown values are omitted. Each row of a list becomes a
series.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
PREFIX: Final = "aiokafka_lite_"
# Series with labels, of partitions and nodes together; what is above is in the sums only.
MOST_LABEL_SETS: Final = 1_000
MOST_NODES: Final = 100
VERDICTS: Final = ("ok", "degraded", "dead")
HELP: Final[Mapping[str, str]] = {
    "assigned_without_position_seconds": "The longest time for which an assigned partition has "
    "not been read, because it has no position (0: all "
    "partitions have a position).",
    "assignments_total": "Rebalances that assigned partitions to this consumer, or left it "
    "without partitions.",
    "buffered_bytes": "Bytes that are buffered, or reserved for responses in flight.",
    "buffered_limit_bytes": "The setting max_buffered_bytes: fetching pauses when buffered_bytes "
    "reaches this limit.",
    "commit_failures_total": "Commits that failed and are not retried: their records may be "
    "read again.",
    "commits_total": "Commits that succeeded, explicit and automatic.",
    "consumer_info": "Always 1, with the consumer's client_id and group_id as labels.",
    "fetch_failures_total": "Fetch requests that failed for all their partitions.",
    "fetch_latency_max_seconds": "The longest time from a fetch to its response.",
    "fetch_latency_seconds": "Mean time from a fetch to its response. A broker without new "
    "records responds after fetch_max_wait_ms.",
    "fetched_bytes_total": "Bytes of record batches received, before decompression.",
    "fetches_total": "Fetches that were answered, with or without records.",
    "health": "1 if the consumer's health is the value of the label verdict, else 0. With the "
    "verdict dead, reads return no more records.",
    "heartbeat_failures_total": "Heartbeats that failed or were not answered.",
    "heartbeats_total": "Heartbeats that the coordinator answered without an error.",
    "lag": "The sum of the lags of all assigned partitions: offsets from the first unfinished "
    "record to the end of the log.",
    "last_fetch_age_seconds": "Time since any broker last answered a fetch, with or without "
    "records.",
    "last_heartbeat_age_seconds": "Time since the group's coordinator last answered. After a "
    "session timeout, other members may own the partitions.",
    "loop_blocked_total": "How often the event loop was found blocked: for 0.35 s or more always.",
    "loop_lag_max_seconds": "The longest delay of a timer of the event loop.",
    "loop_lag_seconds": "How late timers of the event loop run at present. Heartbeats and "
    "fetches are as late.",
    "lost_offsets_total": "Offsets that reads will never return, because a position was reset.",
    "node_down_seconds": "Time since the broker became unreachable.",
    "node_fetch_failures_total": "Fetch requests to the broker that failed for all their "
    "partitions.",
    "node_fetch_latency_max_seconds": "The longest time from a fetch to the broker's response.",
    "node_fetch_latency_seconds": "Mean time from a fetch to the broker's response.",
    "node_fetched_bytes_total": "Bytes of record batches received from the broker.",
    "node_fetches_total": "Fetches that the broker answered.",
    "node_in_flight": "Requests that the broker has not answered yet.",
    "node_info": "Always 1, with the broker's address in the cluster as a label.",
    "node_is_reachable": "0 if the broker is unreachable and has no open connection, else 1.",
    "node_throttle_seconds": "Time for which this client sends no more requests to the broker, "
    "because it exceeded a quota.",
    "offset_resets_total": "Positions that were reset by auto_offset_reset.",
    "partition_committed": "The committed offset, from this consumer's latest commit or lookup.",
    "partition_high_watermark": "The high watermark: the offset after the last record, as of "
    "the latest fetch.",
    "partition_is_paused": "1 from pause() until resume(), else 0.",
    "partition_lag": "Offsets from the first unfinished record to the end of the log.",
    "partition_last_fetch_age_seconds": "Time since the latest response about the partition.",
    "partition_last_stable_offset": "The last stable offset: read_committed returns only records "
    "before this offset.",
    "partition_log_start_offset": "The first offset of the log.",
    "partition_node": "Id of the broker that the partition is read from.",
    "partition_position": "Offset of the next record to return.",
    "partition_standstill_seconds": "Time since the first unfinished offset last advanced "
    "(0: all records are finished, or the partition is "
    "paused).",
    "partitions": "Assigned partitions, by the reason why no records of theirs are "
    "returned at present.",
    "partitions_left_out": "Assigned partitions without metrics of their own, because the number "
    "of series is limited.",
    "processing_at_work": "Records that handlers of run() are processing, or that reads have "
    "returned and the application has neither acknowledged nor rejected.",
    "processing_calls": "Calls of handlers that run() makes at present.",
    "processing_concurrency": "Calls of handlers that run() makes at a time at most, or 0 without "
    "run().",
    "processing_dead_total": "Failed records that run() has written to the dead letters.",
    "processing_delayed_total": "Failed records that run() has written to delay topics.",
    "processing_dropped_total": "Failed records that run() has dropped, as DROP asks for.",
    "processing_failed_total": "Failed handler attempts, and records that the application "
    "rejected.",
    "processing_finished_total": "Records that handlers finished, or that the application "
    "acknowledged.",
    "processing_passed_over_total": "Records that were not returned again, because they were "
    "already finished.",
    "processing_ready": "Records that wait for a handler of run().",
    "processing_paused": "1 while a circuit breaker pauses the handlers, else 0.",
    "processing_uncommitted": "Unfinished records, and finished records that cannot be committed "
    "before an earlier record is finished.",
    "processing_waiting_for_retry": "Records that wait for another attempt.",
    "processing_in_outbox": "Records that handlers have finished, but whose transaction is not "
    "committed.",
    "reconnects_total": "Connections that were opened to replace lost connections.",
    "records_skipped_total": "Bad records and batches that on_bad_record skipped.",
    "records_total": "Records that reads have returned, including rows of poll_arrow().",
    "skipped_offsets_total": "Of the offsets in lost_offsets_total, those of records that still "
    "existed on the brokers.",
    "task_restarts_total": "Background tasks that failed with a retriable error and were "
    "restarted.",
    "throttles_total": "How often a broker began to throttle this client, because "
    "the client exceeded a quota.",
}
Rows = Sequence[Mapping[str, object]]
_NONE: Final = Metric("none", "", "unknown")


def render(*consumers: tuple[Mapping[str, object], str, Mapping[str, str]]) -> bytes:
    """Return metrics as text. Any thread may call it.

    Args:
        consumers: Of each, the metrics, the verdict, and labels for all of its samples.
    """
    collected: dict[str, Metric] = {}
    for metrics, verdict, everywhere in consumers:
        for family in families(metrics, verdict):
            family.samples = [
                *collected.get(family.name, _NONE).samples,
                *(each._replace(labels={**everywhere, **each.labels}) for each in family.samples),
            ]
            collected[family.name] = family
    return generate_latest(cast("CollectorRegistry", _Collected(collected.values())))


def labels_of(metrics: Mapping[str, object]) -> dict[str, str]:
    group_id = metrics["group_id"]
    group = {} if group_id is None else {"group": str(group_id)}
    return {**group, "host": socket.gethostname()}


class _Collected:
    """In place of a registry, which would first ask for descriptions."""

    def __init__(self, collected: Iterable[Metric]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Metric]:
        return self._collected


def families(metrics: Mapping[str, object], verdict: str) -> Iterator[Metric]:
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            yield _family(name, (), [((), value)])
    yield _family("health", ("verdict",), [((each,), each == verdict) for each in VERDICTS])
    names = {name: str(metrics.get(name) or "") for name in ("client_id", "group_id")}
    yield _family("consumer_info", tuple(names), [(tuple(names.values()), 1)])

    partitions = cast("Rows", metrics["partitions"])
    nodes = cast("Rows", metrics["nodes"])[:MOST_NODES]
    shown = sorted(partitions, key=lambda row: (row["topic"], row["partition"]))
    addresses = [
        ((str(row["node"]), str(address)), 1) for row in nodes if (address := row.get("address"))
    ]
    shown = shown[: MOST_LABEL_SETS - len(nodes) - len(addresses)]
    states = Counter(str(row["state"]) for row in partitions)
    yield _family("partitions", ("state",), [((state,), count) for state, count in states.items()])
    yield _family("partitions_left_out", (), [((), len(partitions) - len(shown))])
    yield from _rows("partition_", ("topic", "partition"), shown)
    yield from _rows("node_", ("node",), nodes)
    yield _family("node_info", ("node", "address"), addresses)


def _rows(prefix: str, labels: tuple[str, ...], rows: Rows) -> Iterator[Metric]:
    if not rows:
        return
    for name in rows[0]:
        samples = [
            (tuple(str(row[label]) for label in labels), value)
            for row in rows
            if isinstance(value := row[name], (int, float))
        ]
        if name not in labels and samples:
            yield _family(f"{prefix}{name}", labels, samples)


def _family(
    name: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(PREFIX + name, HELP.get(name, ""), labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
