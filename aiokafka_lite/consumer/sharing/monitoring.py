"""Reports a share consumer's health, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.assignment.work import PROCESSING_COUNTS
from aiokafka_lite.consumer.monitoring.diagnosis import not_started_text, stopped_text
from aiokafka_lite.consumer.monitoring.health import (
    HandlerCounts,
    Verdict,
    handling_of,
    part_troubles,
    run_ended_text,
)
from aiokafka_lite.consumer.sharing.leases import DELIVERY_COUNT_LIMIT
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.sharing.life import ShareEngine
    from aiokafka_lite.consumer.sharing.run import ShareRun
    from aiokafka_lite.consumer.sharing.sharing import Leasing

# How long lost leases are reported.
RECENT_S: Final = 60.0
# See LeaseCounts.
LEASE_COUNTS: Final = (
    "acquired", "accepted", "released", "rejected", "renewed", "lost", "gaps", "undecodable"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShareHealth:
    """A share consumer's health at one moment.

    Attributes:
        verdict: "ok", "degraded" (a problem that may be temporary) or "dead" (create another
            consumer).
        reasons: Problems and remedies.
        held: Leased records that are not settled.
        last_heartbeat_s: Seconds since the group's coordinator last answered; None without one.
        last_fetch_s: Seconds since a leader last answered a fetch. A consumer that wants no records
            does not fetch.
        handling: The records of `run`. None without it.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    held: int
    last_heartbeat_s: float | None = None
    last_fetch_s: float | None = None
    handling: HandlerCounts | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the verdict is "ok"."""
        return self.verdict == "ok"


def examine(engine: ShareEngine, run: ShareRun | None, now: float) -> ShareHealth:
    parts = engine.parts
    if engine.is_over or engine.error is not None:
        text = (
            stopped_text(engine, "run()", engine.run_failure)
            if engine.is_over
            else f"a task failed: {engine.error}: create another consumer"
        )
        return ShareHealth("dead", (text,), 0)
    reasons = tuple(_troubles(engine, run, now))
    leasing = None if parts is None else parts.leasing
    held = 0 if leasing is None else leasing.leases.held_count
    verdict: Verdict = "degraded" if reasons else "ok"
    handling = handling_of(run, engine.totals)
    return ShareHealth(verdict, reasons, held, *_ages(leasing, now), handling)


def _ages(leasing: Leasing | None, now: float) -> tuple[float | None, float | None]:
    """Return the seconds since the latest answers to a heartbeat, and to a fetch."""
    if leasing is None:
        return None, None
    contact_at = leasing.heartbeat.last_contact_at
    fetched = [each.fetched_at for each in leasing.copy_sources() if each.fetched_at is not None]
    return (
        None if contact_at is None else now - contact_at,
        now - max(fetched) if fetched else None,
    )


def _troubles(engine: ShareEngine, run: ShareRun | None, now: float) -> Iterator[str]:
    parts = engine.current
    if parts is None:
        yield not_started_text(engine, now)
        return
    leasing, group = parts.leasing, f"share group {engine.config.group_id}"
    if leasing is None:
        yield "no topic is subscribed: pass topics to the constructor, or call subscribe()"
    else:
        if not leasing.member.is_member:
            yield f"{group} is being joined, and no records are leased until then"
        for source in leasing.copy_sources():
            if source.partitions and not leasing.leases.can_renew(source.node_id, now):
                yield (
                    f"{parts.cluster.pool.describe(source.node_id)} does not renew leases of "
                    f"{group} (share.renew.acknowledge.enable): a record is delivered again if its "
                    f"handler takes longer than {leasing.lock_s:g} s"
                )
        if unknown := parts.cluster.unknown_topics.text(leasing.topics):
            yield f"{unknown}: create it, or check its name"
        if at_limit := leasing.leases.held_at_limit():
            yield (
                f"{at_limit} leased records have been delivered {DELIVERY_COUNT_LIMIT} times or "
                "more: if they are not accepted this time, the broker may archive them "
                "(share.delivery.count.limit)"
            )
        yield from _failures(leasing, now)
    yield from part_troubles(parts.cluster.pool, parts.scopes, now)
    if engine.lost_at is not None and now - engine.lost_at < RECENT_S:
        yield (
            f"the leases of {engine.lost_count} records were lost, the latest "
            f"{now - engine.lost_at:.0f} s ago: other members may have processed the records, too"
        )
    if run is not None:
        yield from run.troubles(now)
    elif engine.run_failure:
        yield run_ended_text(engine.run_failure)


def _failures(leasing: Leasing, now: float, tp: TopicPartition | None = None) -> Iterator[str]:
    """Yield what nodes answer instead of records, of all partitions or one."""
    for source in leasing.copy_sources():
        tps = {each.tp for each in source.partitions.values()}
        if source.failure is not None and (tp in tps if tp else tps):
            error, failing_since = source.failure
            yield (
                f"the latest requests to {leasing.cluster.pool.describe(source.node_id)} have "
                f"failed, the first {now - failing_since:.0f} s ago, and are retried: {error}"
            )


def explain(engine: ShareEngine, run: ShareRun | None, tp: TopicPartition, now: float) -> str:
    leasing = None if engine.current is None else engine.current.leasing
    if leasing is None:
        return next(_troubles(engine, None, now))
    if run is not None and (text := run.explain(tp, now)):
        return text
    if tp.topic not in leasing.topics:
        return "its topic is not subscribed"
    if unknown := leasing.cluster.unknown_topics.text([tp.topic]):
        return unknown
    if tp not in leasing.assignment:
        return (
            "the broker has not assigned it to this member: other members share it, its share "
            "state is being initialised, or it has no leader"
        )
    if failure := next(_failures(leasing, now, tp), None):
        return failure
    if held_count := leasing.leases.held_by_partition().get(tp, 0):
        return (
            f"{held_count} of its records are leased and not settled. A partition has at most "
            "share.partition.max.record.locks leased records, 2,000 by default"
        )
    if not engine.want():
        return "no record is wanted: no read waits, or no handler is free"
    return (
        "no record is available: all are accepted or leased by others. A new group begins at "
        "share.auto.offset.reset, by default latest"
    )


def measure(engine: ShareEngine, run: ShareRun | None, now: float) -> dict[str, object]:
    leasing = None if engine.parts is None else engine.parts.leasing
    pool = None if engine.parts is None else engine.parts.cluster.pool
    present = dict.fromkeys(PROCESSING_COUNTS, 0) | ({} if run is None else run.counts())
    held = {} if leasing is None else leasing.leases.held_by_partition()
    counts = {} if leasing is None else vars(leasing.leases.counts)
    last_heartbeat_s, last_fetch_s = _ages(leasing, now)
    return {
        "client_id": engine.config.client_id,
        "group_id": engine.config.group_id,
        "group_protocol": "share",
        "records_total": engine.record_count,
        **{f"leases_{name}_total": counts.get(name, 0) for name in LEASE_COUNTS},
        "leases_at_delivery_limit": 0 if leasing is None else leasing.leases.held_at_limit(),
        "renewal_late_seconds": 0.0 if leasing is None else leasing.leases.renewal_late_s,
        "last_heartbeat_age_seconds": last_heartbeat_s,
        "last_fetch_age_seconds": last_fetch_s,
        "reconnects_total": 0 if pool is None else pool.reconnect_count,
        **{f"processing_{name}": count for name, count in {**engine.totals, **present}.items()},
        "processing_paused": int(run is not None and run.is_paused),
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, "held": count}
            for tp, count in sorted(held.items())
        ],
    }
