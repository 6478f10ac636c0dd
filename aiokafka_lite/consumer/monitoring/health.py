"""Reports a consumer's health, and its metrics, which docs/monitoring.md describes.

ok         it works, or has no records to read
degraded   a problem that may be temporary; records may be late
dead       it cannot continue: create another consumer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.life import Stage
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place
from aiokafka_lite.consumer.assignment.work import PROCESSING_COUNTS, Processing
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.consumer.monitoring.diagnosis import (
    NO_TOPICS,
    TROUBLES,
    Cause,
    Diagnosis,
    deaths,
    diagnose,
    explain,
    joining_text,
    not_started_text,
    out_of_group,
    seconds,
    starting_text,
)
from aiokafka_lite.consumer.parts import Running
from aiokafka_lite.consumer.positions.topic_changes import is_gone
from aiokafka_lite.records.decoders import COMPILED
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.sharing.run import ShareRun

Verdict = Literal["ok", "degraded", "dead"]

# Partitions and topics in a list; more are counted.
MAX_NAMED: Final = 5
# A block of the event loop that makes heartbeats late.
LONG_BLOCK_S: Final = 1.0
# How long a partition may wait for a position.
LONG_WITHOUT_POSITION_S: Final = 10.0
# How long the first unfinished offset may stay the same: 30 s less a tick of the watchdog.
LONG_STANDSTILL_S: Final = 25.0
# Causes that hold for all partitions are reported once.
SAID_OF_ALL: Final = frozenset({Cause.OUT_OF_GROUP, Cause.HANDLERS_PAUSED})
# How long a failed commit is reported.
FAILED_COMMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HandlerCounts:
    """The records of `run`, or those to be acknowledged, at one moment.

    Attributes:
        at_work: Records with handlers, or returned and neither acknowledged nor refused.
        waiting_for_retry: Records that wait for another attempt.
        unfinished: Records that are unfinished, or wait for one before them in their partition.
        dead: Dead letters, since the consumer was created.
        is_paused: A circuit breaker pauses the handlers.
    """

    at_work: int
    waiting_for_retry: int
    unfinished: int
    dead: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class Health:
    """A consumer's health at one moment.

    Attributes:
        verdict: "ok", "degraded" or "dead".
        reasons: Problems and remedies, most important first. With the verdict "ok" they are
            remarks, for example that no partition is assigned.
        last_heartbeat_s: Seconds since the group's coordinator last answered; None without one.
        last_fetch_s: Seconds since a broker last answered a fetch; None before the first.
        lag: The number of offsets from the first unfinished record of a partition to the end of its
            log, over all assigned partitions of which both are known; None if there are none.
            Records are unfinished until the next read.
        loop_lag_s: The event loop's lag.
        handling: The records of `run`, or those to be acknowledged; None without them.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    last_heartbeat_s: float | None
    last_fetch_s: float | None
    lag: int | None
    loop_lag_s: float
    handling: HandlerCounts | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the verdict is "ok"."""
        return self.verdict == "ok"


def examine(engine: Engine, now: float) -> Health:
    """Does not change the engine, and does not wait."""
    engine.core.reads.settle()
    running = engine.current
    troubles = tuple(deaths(engine))
    verdict: Verdict = "dead" if troubles else "ok"
    remarks: tuple[str, ...] = ()
    if not troubles:
        troubles = tuple(_troubles(engine, running, now))
        verdict = "degraded" if troubles else "ok"
        remarks = () if running is None else tuple(_remarks(engine, running))
    return Health(
        verdict,
        troubles + remarks,
        last_heartbeat_s(engine, now),
        last_fetch_s(engine, now),
        total_lag(engine),
        engine.probe.lag_now_s(now),
        handling_of(engine.core.reads.processing, engine.core.works.totals),
    )


def handling_of(
    processing: Processing | ShareRun | None, totals: Mapping[str, int]
) -> HandlerCounts | None:
    if processing is None:
        return None
    counts = processing.counts()
    return HandlerCounts(
        counts["at_work"],
        counts["waiting_for_retry"],
        counts["uncommitted"],
        totals["dead_total"],
        processing.is_paused,
    )


def _troubles(engine: Engine, running: Running | None, now: float) -> Iterator[str]:
    if running is None:
        yield not_started_text(engine, now)
        return
    if engine.stage is Stage.STARTING:
        yield starting_text(engine, running, now)
    lost = _lost(running.cluster.pool)
    if lost and len(lost) == len(_node_ids(running.cluster.pool)):
        yield _no_broker_text(engine, running, lost, now)
        return  # the other problems follow from it
    yield from part_troubles(running.cluster.pool, running.scopes, now)
    if engine.stage is not Stage.STARTING:
        yield from _topic_troubles(engine, running)
        yield from _group_troubles(engine, running, now)
    if (waiting := engine.core.gate.posted_error) is not None:
        yield f"the next read raises {waiting}"
    failed_at = None if running.commits is None else running.commits.failed_at
    if failed_at is not None and now - failed_at < FAILED_COMMIT_S:
        ago = seconds(now - failed_at)
        yield (
            f"the latest commit failed {ago} ago: until a commit succeeds, a rebalance or restart "
            "causes processed records to be read again"
        )
    yield from _partition_troubles(engine, running, now)
    if (processing := engine.core.reads.processing) is not None:
        yield from processing.troubles(now)
    elif failure := engine.core.works.run_failure:
        yield run_ended_text(failure)
    if (without_s := running.watchdog.assigned_without_position_s) > LONG_WITHOUT_POSITION_S:
        yield (
            f"some partitions have had no position for {seconds(without_s)} and are not read: "
            "explain() gives the reason for each"
        )
    if (blocked_s := engine.probe.blocked_lately_s(now)) > LONG_BLOCK_S:
        yield (
            f"the event loop was blocked for {seconds(blocked_s)}, {_heartbeats_then(running)}: "
            "run blocking code in a thread (asyncio.to_thread)"
        )


def part_troubles(pool: Pool, scopes: Collection[TaskScope], now: float) -> Iterator[str]:
    """Yield the problems of connections and background tasks."""
    for node_id, lost_at in _lost(pool).items():
        yield (
            f"{pool.describe(node_id)} has not been reachable for {seconds(now - lost_at)}: "
            f"{pool.last_error(node_id)}"
        )
    for scope in scopes:
        for name, error in scope.degraded.items():
            yield f"the background task {name!r} ({scope.name}) failed and is retried: {error}"


def run_ended_text(failure: str) -> str:
    text = " ".join(failure.split())[:200]
    return f"run() ended with {text}: no records are processed until run() is called again"


def _heartbeats_then(running: Running) -> str:
    status = running.membership.status
    if status is None or not status.stood_in_count:
        return "and no heartbeats were sent"
    return f"and the heartbeat thread sent heartbeats ({status.stood_in_count} in total)"


def _lost(pool: Pool) -> dict[int, float]:
    return {
        node_id: lost_at
        for node_id in _node_ids(pool)
        if (lost_at := pool.lost_at(node_id)) is not None
    }


def _node_ids(pool: Pool) -> list[int]:
    known = pool.node_ids()
    return [node_id for node_id in known if node_id >= 0] or known


def _no_broker_text(engine: Engine, running: Running, lost: dict[int, float], now: float) -> str:
    error, alone_s = running.cluster.pool.last_error(min(lost)), now - max(lost.values())
    stands_still = [f"{len(engine.core.state.assignment)} partitions are not read"]
    if (status := running.membership.status) is not None:
        stands_still.append(f"group {status.group_id} receives no heartbeats from this member")
    return (
        f"no broker has been reachable for {seconds(alone_s)}: {error}. Check that the network "
        "works and that the brokers run. Until a broker can be reached, "
        f"{' and '.join(stands_still)}"
    )


def _topic_troubles(engine: Engine, running: Running) -> Iterator[str]:
    if engine.core.state.mode is SubscriptionMode.NONE and engine.core.buffer.waiting_count:
        yield f"reads wait forever: {NO_TOPICS}"
    if engine.core.state.mode is not SubscriptionMode.TOPICS:
        return
    view = running.cluster.view
    gone = sorted(topic for topic in engine.core.state.subscription or () if is_gone(view, topic))
    for topic in gone[:MAX_NAMED]:
        yield (
            f"topic {topic!r} is subscribed but was deleted: it has no records unless it is "
            "recreated"
        )
    if more := len(gone[MAX_NAMED:]):
        yield f"and {more} more subscribed topics were deleted"


def _group_troubles(engine: Engine, running: Running, now: float) -> Iterator[str]:
    status = running.membership.status
    if status is None or engine.core.state.mode in (
        SubscriptionMode.NONE,
        SubscriptionMode.ASSIGNED,
    ):
        return
    group = f"group {status.group_id}"
    if status.sits_out:
        reason = out_of_group(status.group_id).text
        yield f"{reason}. If processing takes longer, raise max_poll_interval_ms"
        return
    if status.coordinator_id is None:
        yield f"the coordinator of {group} is not known and is being looked up"
    elif (lost_at := running.cluster.pool.lost_at(status.coordinator_id)) is not None:
        yield (
            f"the coordinator of {group}, node {status.coordinator_id}, has not been reachable "
            f"for {seconds(now - lost_at)}"
        )
    if not status.is_settled:
        joining = joining_text(engine, status, now)
        stops = (
            "no records are returned"
            if status.is_eager
            else "records of reassigned partitions are withheld"
        )
        yield f"{group} is rebalancing ({joining}): {stops} until the rebalance ends"
    elif status.trouble:
        yield f"{group}: {status.trouble}"
    elif status.last_contact_at is not None:
        silence_s = now - status.last_contact_at
        session_s = status.session_s or engine.core.config.session_timeout_s
        if silence_s > session_s:
            yield (
                f"no heartbeat was answered for {seconds(silence_s)}, longer than the session "
                f"timeout of {session_s:g} s: {group} may have assigned the partitions to other "
                "members"
            )


def _partition_troubles(engine: Engine, running: Running, now: float) -> Iterator[str]:
    found: list[tuple[TopicPartition, Diagnosis]] = []
    counts: Counter[Cause] = Counter()
    posted = () if engine.core.gate.posted_error is None else (Cause.ERROR_WAITS,)
    said = SAID_OF_ALL.union(posted)
    for tp, partition in engine.core.state.assignment.items():
        still_s = running.watchdog.standstill_s(partition, now)
        is_still = still_s >= LONG_STANDSTILL_S
        if not is_still and not _may_be_in_trouble(engine, running, partition):
            continue
        diagnosis = diagnose(engine, tp, now)
        if diagnosis.cause in said:
            continue
        if diagnosis.cause not in TROUBLES:
            if not is_still:
                continue
            text = f"no record from offset {partition.finished_to} on has been finished for "
            text += f"{seconds(still_s)}: {explain(engine, tp, now)}"
            diagnosis = diagnosis._replace(text=text)
        counts[diagnosis.cause] += 1
        if len(found) < MAX_NAMED:
            found.append((tp, diagnosis))
    for tp, diagnosis in found:
        yield f"{tp.topic}/{tp.partition}: {diagnosis.text}"
    if (more := counts.total() - len(found)) > 0:
        causes = ", ".join(f"{count} {cause.value}" for cause, count in sorted(counts.items()))
        yield f"{more} more partitions have problems. Number of partitions by problem: {causes}"


def _may_be_in_trouble(engine: Engine, running: Running, partition: Cursor) -> bool:
    if partition.place in (Place.UNPOSITIONED, Place.FAILED) or partition.failure_count:
        return True
    node = running.sources.of(partition)
    if node is None or node.error is not None or node.in_flight_since is None:
        return True
    part = partition.first_chunk
    return part is not None and part.error is not None


def _remarks(engine: Engine, running: Running) -> Iterator[str]:
    state = engine.core.state
    status, view = running.membership.status, running.cluster.view
    if status is not None and status.kept_classic_by:
        yield (
            f"group {status.group_id} is joined with the classic protocol, because some of its "
            "members use this protocol and the broker does not allow converting the group to "
            f"KIP-848: {status.kept_classic_by}"
        )
    if engine.stage is Stage.STARTING or state.assignment:
        paused = sum(partition.is_paused for partition in state.assignment.values())
        if paused:
            yield f"{paused} of {len(state.assignment)} partitions are paused"
        return
    if state.mode is SubscriptionMode.NONE:
        if not engine.core.buffer.waiting_count:
            yield NO_TOPICS
    elif not any(view.partitions_for_topic(topic) for topic in state.subscription or ()):
        yield "no partition is assigned, because the subscribed topics have no partitions"
    elif status is None:
        yield "no partition is assigned"
    elif status.is_settled:
        yield (
            f"no partition is assigned, because the other members of group {status.group_id} own "
            "all partitions"
            + ("" if status.is_eager else ", or have not yet released those of this member")
        )


def last_heartbeat_s(engine: Engine, now: float) -> float | None:
    status = None if engine.parts is None else engine.parts.membership.status
    if status is None or status.last_contact_at is None:
        return None
    return now - status.last_contact_at


def last_fetch_s(engine: Engine, now: float) -> float | None:
    if engine.parts is None:
        return None
    counts = engine.parts.sources.counts.values()
    answers = [c.last_answer_at for c in counts if c.last_answer_at is not None]
    return now - max(answers) if answers else None


def lag_of(partition: Cursor, *, is_read_committed: bool) -> int | None:
    end = partition.end_offset(is_read_committed=is_read_committed)
    finished_to = partition.finished_to
    return None if end is None or finished_to is None else max(0, end - finished_to)


def total_lag(engine: Engine) -> int | None:
    is_read_committed = engine.core.config.is_read_committed
    lags = [
        lag
        for partition in engine.core.state.assignment.values()
        if (lag := lag_of(partition, is_read_committed=is_read_committed)) is not None
    ]
    return sum(lags) if lags else None


# --- Metrics -------------------------------------------------------------------------------
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
