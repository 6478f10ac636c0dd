"""Finds out why a partition has no records to return: one cause, and a sentence.

The first cause applies, of consumer, assignment, reads, position, broker and fetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.client.life import Stage
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place, Sought
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.life import ConsumerLife, ConsumerParts, Engine
from aiokafka_lite.consumer.parts import Running
from aiokafka_lite.errors import FencedInstanceIdError, KafkaError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.protocol import GroupStatus


class Cause(StrEnum):
    """The reason why a partition has no records to return. The values are stable."""

    STOPPED = "stopped"
    NOT_STARTED = "not_started"
    TASK_DIED = "task_died"
    STARTING = "starting"
    NOT_ASSIGNED = "not_assigned"
    OUT_OF_GROUP = "out_of_group"
    REBALANCING = "rebalancing"
    ERROR_WAITS = "error_waits"
    PAUSED = "paused"
    HANDLERS_PAUSED = "handlers_paused"
    DELAYED = "delayed"
    BUFFERED = "buffered"
    AWAITING_COMMITTED = "awaiting_committed"
    AWAITING_RESET = "awaiting_reset"
    AWAITING_VALIDATION = "awaiting_validation"
    NO_LEADER = "no_leader"
    BROKER_DOWN = "broker_down"
    BACKING_OFF = "backing_off"
    THROTTLED = "throttled"
    CONNECTING = "connecting"
    FETCHING = "fetching"
    UNFINISHED = "unfinished"
    AT_END = "at_end"
    OPEN_TRANSACTION = "open_transaction"
    AWAITING_ANSWER = "awaiting_answer"
    ANSWER_NOT_TAKEN = "answer_not_taken"
    NO_BUDGET = "no_budget"
    ABOUT_TO_FETCH = "about_to_fetch"


# How long other members may take to join before that is reported.
LONG_JOIN_S: Final = 3.0
# Errors of applications may contain whole records.
LONGEST_ERROR: Final = 1_000
# Problems. The other causes are normal, or are the application's.
TROUBLES: Final = frozenset(
    {
        Cause.TASK_DIED,
        Cause.OUT_OF_GROUP,
        Cause.ERROR_WAITS,
        Cause.HANDLERS_PAUSED,
        Cause.NO_LEADER,
        Cause.BROKER_DOWN,
        Cause.BACKING_OFF,
    }
)


class Diagnosis(NamedTuple):
    """"""

    cause: Cause
    text: str


NO_TOPICS: Final = (
    "no topic is subscribed and no partition is assigned: call subscribe() or assign()"
)


def diagnose(engine: Engine, tp: TopicPartition, now: float) -> Diagnosis:
    """Does not change the engine."""
    running = engine.current
    if (death := next(deaths(engine), None)) is not None:
        return Diagnosis(Cause.STOPPED if engine.is_over else Cause.TASK_DIED, death)
    if running is None:
        return Diagnosis(Cause.NOT_STARTED, not_started_text(engine, now))
    partition = engine.core.state.assignment.get(tp)
    if partition is None:
        return _not_assigned(engine, running, tp, now)
    return (
        _held(engine, running, partition, now)
        or _at_hand(engine, partition, now)
        or _no_position(running, partition, now)
        or _no_broker(running, partition, now)
        or _fetch(engine, running, partition, now)
    )


def explain(engine: Engine, tp: TopicPartition, now: float) -> str:
    text = diagnose(engine, tp, now).text
    processing, cursor = engine.core.reads.processing, engine.core.state.assignment.get(tp)
    if processing is not None and cursor is not None and (held := processing.explain(cursor, now)):
        text += f". {held}"
    return text


def _not_assigned(engine: Engine, running: Running, tp: TopicPartition, now: float) -> Diagnosis:
    state = engine.core.state
    if engine.stage is Stage.STARTING:
        return Diagnosis(Cause.STARTING, starting_text(engine, running, now))
    status = running.membership.status
    if status is not None and status.sits_out:
        return out_of_group(status.group_id)
    if state.mode is SubscriptionMode.NONE:
        text = NO_TOPICS
    elif state.mode is SubscriptionMode.ASSIGNED:
        text = "assign() was called without this partition"
    elif tp.topic not in (state.subscription or ()):
        text = f"topic {tp.topic!r} is not subscribed"
    elif status is not None and not status.is_settled:
        joining = joining_text(engine, status, now)
        text = f"group {status.group_id} is rebalancing ({joining})"
        return Diagnosis(Cause.REBALANCING, text)
    elif tp.partition not in (running.cluster.view.partitions_for_topic(tp.topic) or ()):
        text = f"topic {tp.topic!r} has no partition {tp.partition}"
    elif status is not None:
        text = f"another member of group {status.group_id} owns the partition"
    else:
        text = "the latest lookup of the topic did not find the partition"
    return Diagnosis(Cause.NOT_ASSIGNED, f"{tp.topic}/{tp.partition} is not assigned: {text}")


def deaths(engine: Engine) -> Iterator[str]:
    if engine.is_over:
        yield stopped_text(engine, "a read", engine.core.reads.latest_raised)
    running = engine.current
    for scope in () if running is None or engine.stage is not Stage.DEAD else running.scopes:
        if isinstance(scope.failure, FencedInstanceIdError):
            yield (
                f"{scope.failure}. Stop this consumer, and create another consumer with another "
                "group_instance_id"
            )
        elif scope.failure is not None:
            yield (
                f"the background task {scope.name} failed with {scope.failure!r}, and every "
                "read raises this error: stop this consumer and create another consumer"
            )


def last_words(reads: Reads, error: Exception) -> str:
    """Return the error that ended the application, with the latest records if it has no offset."""
    text = words_of(error)
    if isinstance(error, KafkaError):
        return text
    reads.settle()
    partition = reads.latest_hand_out
    if partition is None or partition.position is None:
        return text
    where = f"{partition.tp.topic}/{partition.tp.partition}"
    return f"{text}, after records of {where} up to offset {partition.position - 1} were returned"


def words_of(error: Exception) -> str:
    return _one_line(str(error) if isinstance(error, KafkaError) else repr(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_ERROR]


def stopped_text(engine: ConsumerLife[ConsumerParts], raiser: str, raised: str) -> str:
    stopped = "the consumer is stopped: create another consumer"
    if engine.left_by:
        return f"{stopped}. The consumer's `async with` block ended with {engine.left_by}"
    if engine.failed_start is not None:
        return f"{stopped}. start() had failed: {_one_line(str(engine.failed_start[1]))}"
    for scope in () if engine.parts is None else engine.parts.scopes:
        if scope.failure is not None:
            return f"{stopped}. The background task {scope.name} had failed with {scope.failure!r}"
    if raised:
        return f"{stopped}. Before the stop, {raiser} raised {_one_line(raised)}"
    return stopped


def not_started_text(engine: ConsumerLife[ConsumerParts], now: float) -> str:
    if engine.failed_start is None:
        return "the consumer is not started: await consumer.start() first"
    failed_at, error = engine.failed_start
    return f"start() failed {seconds(now - failed_at)} ago: {error}. Call start() again to retry"


def joining_text(engine: Engine, status: GroupStatus, now: float) -> str:
    if status.trouble:
        return f"{status.state}: {status.trouble}"
    since = status.joining_since
    if since is None or now - since < LONG_JOIN_S:
        return status.state
    text = f"{status.state}, for {seconds(now - since)}"
    if not status.is_eager:
        return text
    config = engine.core.config
    return (
        f"{text}: the coordinator waits for members that have not joined again. A failed member "
        "delays the rebalance for up to "
        f"its session timeout ({config.session_timeout_s:g} s for this consumer). A static or "
        "slow member delays the rebalance for up to its rebalance timeout "
        f"({config.group_timeout_s:g} s for this consumer)"
    )


def starting_text(engine: Engine, running: Running, now: float) -> str:
    view = running.cluster.view
    if not view.nodes:
        return "the consumer is starting: it is connecting to a bootstrap server"
    missing = sorted(t for t in engine.core.state.topics if not view.partitions_for_topic(t))
    if missing:
        unknown = running.cluster.unknown_topics.text(missing)
        if unknown:
            return f"the consumer is starting: {unknown}"
        return f"the consumer is starting and waits for metadata of {', '.join(missing)}"
    status = running.membership.status
    if status is not None:
        joining = joining_text(engine, status, now)
        return f"the consumer is starting: it is joining group {status.group_id} ({joining})"
    return "the consumer is starting"


def out_of_group(group_id: str) -> Diagnosis:
    return Diagnosis(
        Cause.OUT_OF_GROUP,
        f"the consumer left group {group_id}, because the application requested no records "
        "within max_poll_interval_ms. The consumer joins again at the next read",
    )


# --- The gets ---------------------------------------------------------------------------------
GRAVEST_FIRST: Final = (Hold.LOST, Hold.CUT_OFF, Hold.LISTENER)


def awaited_text(status: GroupStatus, tp: TopicPartition, now: float) -> str:
    awaited = status.awaited_work
    if awaited is None:
        return ""
    work = awaited.offsets.get(tp)
    what = "its other work" if work is None else f"offsets {work.first} to {work.end - 1}"
    return (
        f" (waiting up to {seconds(max(0.0, awaited.until - now))} for the application to "
        f"finish {what})"
    )


def _held(engine: Engine, running: Running, partition: Cursor, now: float) -> Diagnosis | None:
    status = running.membership.status
    if status is not None and status.sits_out:
        return out_of_group(status.group_id)
    group = "the group" if status is None else f"group {status.group_id} ({status.state})"
    if partition.is_withheld or engine.core.gate.holds:
        holds = engine.core.gate.holds
        hold = next((each for each in GRAVEST_FIRST if each in holds), Hold.LISTENER)
        doing = "the partition is being revoked" if partition.is_withheld else hold.value
        if status is not None and partition.tp in status.withheld:
            doing = Hold.LISTENER.value
        elif status is not None and partition.is_withheld:
            doing += awaited_text(status, partition.tp, now)
        rebalances = " rebalances" if partition.is_withheld or hold is Hold.LISTENER else ""
        return Diagnosis(
            Cause.REBALANCING,
            f"{group}{rebalances}: {doing}. The partition's records are withheld",
        )
    if (error := engine.core.gate.posted_error) is not None:
        return Diagnosis(Cause.ERROR_WAITS, f"the next read raises {error}")
    return None


def _at_hand(engine: Engine, partition: Cursor, now: float) -> Diagnosis | None:
    part = partition.first_chunk
    if part is not None and not part.decoded and (error := part.error) is not None:
        read = "the next read after resume()" if partition.is_paused else "the next read"
        remedy = "; seek to continue" if part.is_sticky else ""
        return Diagnosis(Cause.ERROR_WAITS, f"{read} raises {error}{remedy}")
    if partition.is_paused:
        kept = "" if part is None else " (until then, its buffered records are kept)"
        return Diagnosis(Cause.PAUSED, f"the partition is paused: call resume(){kept}")
    processing = engine.core.reads.processing
    has_records = part is not None or partition.finished_to != partition.position
    if has_records and processing is not None and processing.is_paused:
        return Diagnosis(
            Cause.HANDLERS_PAUSED,
            "the handlers of run() keep failing, so the circuit breaker has paused handling. From "
            "time to time, run() tries one record to see whether handlers succeed again",
        )
    if processing is not None and processing.is_delaying(partition):
        return Diagnosis(
            Cause.DELAYED,
            "the next record of this delay topic is not due, and the partition is read no further "
            "until it is",
        )
    if part is None:
        return None
    records = f"records from offset {partition.position} on are buffered"
    if partition.has_enough:
        until = (
            "the `async with` block of the partition's open batch ends"
            if processing is None
            else "earlier records are finished"
        )
        return Diagnosis(Cause.BUFFERED, f"{records}, and are delivered when {until}")
    if processing is not None and processing.is_always_asking:
        text = f"{records}, and are delivered when a handler is free"
    elif engine.core.reads.is_in_get:
        text = (
            f"{records}: the current read returns these records next, unless it was called for "
            "other partitions"
        )
    else:
        idle_s = engine.core.reads.idle_s(now)
        text = f"{records}, but the application has requested no records for {seconds(idle_s)}"
    return Diagnosis(Cause.BUFFERED, text)


# --- The position -----------------------------------------------------------------------------
WANTED: Final = {EARLIEST: "the earliest offset", LATEST: "the latest offset"}


def _no_position(running: Running, partition: Cursor, now: float) -> Diagnosis | None:
    search = partition.search
    if search is None:
        return None
    if running.cluster.view.lacks(partition.tp):
        return Diagnosis(Cause.NO_LEADER, _no_leader_text(running, partition.tp))
    last_try = f" (latest attempt: {partition.retry_reason})" if partition.retry_reason else ""
    if search.sought is Sought.COMMITTED:
        status = running.membership.status
        if status is None:
            text = (
                "the partition has no position yet. Without a group_id there is no committed "
                "offset, so auto_offset_reset determines the starting offset"
            )
        elif status.coordinator_id is None:
            text = (
                "the committed offset of the partition is not known yet, because the client is "
                f"still looking up the coordinator of group {status.group_id}"
            )
        else:
            text = (
                "the committed offset of the partition is being requested from node "
                f"{status.coordinator_id}, the coordinator of group {status.group_id}{last_try}"
            )
        return Diagnosis(Cause.AWAITING_COMMITTED, text)
    trouble = _no_broker(running, partition, now)
    because = "" if trouble is None else f"; {trouble.text}"
    if search.sought is Sought.RESET:
        timestamp = search.timestamp
        wanted = WANTED.get(EARLIEST if timestamp is None else timestamp, "an offset by time")
        reason = f" (reason: {search.reason})" if search.reason else ""
        return Diagnosis(
            Cause.AWAITING_RESET,
            f"the position is being reset to {wanted}{reason}{last_try}{because}",
        )
    return Diagnosis(
        Cause.AWAITING_VALIDATION,
        "the partition has a new leader, which is being asked whether its log still has the "
        f"records before offset {partition.position}{last_try}{because}",
    )


# --- The broker -------------------------------------------------------------------------------
def _no_broker(running: Running, partition: Cursor, now: float) -> Diagnosis | None:
    node = running.sources.of(partition)
    if node is None:
        if (leader := running.cluster.view.leader(partition.tp)) is not None:
            return Diagnosis(
                Cause.ABOUT_TO_FETCH,
                f"a fetch to the partition's leader, node {leader.leader}, is about to be sent",
            )
        return Diagnosis(Cause.NO_LEADER, _no_leader_text(running, partition.tp))
    pool = running.cluster.pool
    lost_at = pool.lost_at(node.node_id)
    if lost_at is not None and node.in_flight_since is None:
        return Diagnosis(
            Cause.BROKER_DOWN,
            f"{pool.describe(node.node_id)} has not been reachable for "
            f"{seconds(now - lost_at)}. The client keeps trying to connect. The latest error: "
            f"{pool.last_error(node.node_id)}",
        )
    return None


def _no_leader_text(running: Running, tp: TopicPartition) -> str:
    view = running.cluster.view
    topic, known = view.topics.get(tp.topic), view.partition(tp)
    if topic is None:
        return f"metadata of topic {tp.topic!r} is being requested"
    if known is None:
        why = "" if topic.error is None else f" ({topic.error.__name__})"
        return f"the brokers do not know the partition{why}: the topic may have been deleted"
    if known.leader < 0:
        why = "" if known.error is None else f" ({known.error.__name__})"
        return f"the partition has no leader at present{why}: all its replicas may be down"
    return (
        f"the partition's leader, node {known.leader}, is not in the metadata's list of brokers: "
        "the broker may be down"
    )


# --- The fetch --------------------------------------------------------------------------------
def _fetch(engine: Engine, running: Running, partition: Cursor, now: float) -> Diagnosis:
    node = running.sources.of(partition)
    assert node is not None  # noqa: S101 -- else _no_broker has found the cause
    node_id, pool = node.node_id, running.cluster.pool
    if partition.place is Place.BACKING_OFF and partition.retry_at > now:
        return Diagnosis(
            Cause.BACKING_OFF,
            f"fetching the partition from node {node_id} failed and is retried in "
            f"{seconds(partition.retry_at - now)}: {partition.retry_reason or 'unknown error'}",
        )
    if engine.core.buffer.is_left_out(partition):
        budget = engine.core.buffer.budget
        return Diagnosis(
            Cause.NO_BUDGET,
            f"{budget.taken_bytes} bytes of max_buffered_bytes={budget.limit_bytes} are in use, "
            "and the current reads wait for other partitions: this partition is fetched when the "
            "current reads have returned",
        )
    if (sent_at := node.in_flight_since) is not None:
        return _in_flight(engine, partition, node, sent_at, now)
    if (error := node.error) is not None:
        return Diagnosis(
            Cause.BACKING_OFF, f"a fetch from node {node_id} failed and is retried: {error}"
        )
    if (trouble := running.sources.trouble(node_id)) is not None:
        return Diagnosis(
            Cause.BACKING_OFF, f"reading from node {node_id} failed and is retried: {trouble}"
        )
    if pool.is_connecting(node_id, node.lane):
        return Diagnosis(Cause.CONNECTING, f"a connection to node {node_id} is being opened")
    if (delay_s := pool.connection_delay(node_id, node.lane)) > 0:
        return Diagnosis(
            Cause.THROTTLED,
            f"node {node_id} throttles this client for another {seconds(delay_s)}, because "
            "the client exceeded a quota",
        )
    if engine.core.buffer.has_untaken(node):
        return Diagnosis(
            Cause.ANSWER_NOT_TAKEN,
            f"the next fetch to node {node_id} is sent when the application has read the records "
            "of other partitions that the latest response contained",
        )
    if node.is_short_of_bytes:
        budget = engine.core.buffer.budget
        return Diagnosis(
            Cause.NO_BUDGET,
            f"{budget.taken_bytes} bytes of max_buffered_bytes={budget.limit_bytes} are in use: "
            "the next fetch is sent when the application has read buffered records, including "
            "those of other partitions",
        )
    waits = ", after the latest response is processed" if node.is_settling else ""
    return Diagnosis(
        Cause.ABOUT_TO_FETCH,
        f"a fetch to node {node_id} from offset {partition.fetched} is about to be sent{waits}",
    )


def _in_flight(
    engine: Engine, partition: Cursor, node: Source, sent_at: float, now: float
) -> Diagnosis:
    for_s = now - sent_at
    fetch = f"a fetch to node {node.node_id} has been in flight for {seconds(for_s)}"
    if partition.place is not Place.IN_FLIGHT:
        return Diagnosis(
            Cause.AWAITING_ANSWER,
            f"waiting for the next fetch: the fetch to node {node.node_id}, in flight for "
            f"{seconds(for_s)}, was sent without this partition",
        )
    end, stable = partition.high_watermark, partition.last_stable_offset
    if end is None:
        return Diagnosis(Cause.FETCHING, f"{fetch}, from offset {partition.fetched}")
    if engine.core.config.is_read_committed and stable is not None and stable < end:
        if partition.fetched >= stable:
            return Diagnosis(
                Cause.OPEN_TRANSACTION,
                f"a transaction is open at offset {stable}, the last stable offset (the log ends "
                f"at {end}): isolation_level=read_committed withholds records from offset {stable} "
                f"on until the transaction ends; {fetch}",
            )
    elif partition.fetched >= end:
        if (unfinished := _unfinished_text(engine, partition, now)) is not None:
            return Diagnosis(
                Cause.UNFINISHED,
                f"all records up to the end of the log, offset {end}, were returned, but "
                f"{unfinished}; {fetch}",
            )
        return Diagnosis(
            Cause.AT_END,
            f"the position is at the end of the log, offset {end}, and there are no new records; "
            f"{fetch}",
        )
    return Diagnosis(Cause.FETCHING, f"{fetch}, from offset {partition.fetched}")


def _unfinished_text(engine: Engine, partition: Cursor, now: float) -> str | None:
    first, end = partition.finished_to, partition.position
    if first is None or end is None or first >= end:
        return None
    reads, offsets = engine.core.reads, f"offsets {first} to {end - 1}"
    if partition.undecided:
        return f"{offsets} belong to a transaction that has not ended"
    if partition.worked_by is None:
        if reads.is_in_get:
            return f"{offsets} are unfinished until the task that has read them reads once more"
        idle = seconds(reads.idle_s(now))
        return (
            f"{offsets} are unfinished until the next read, and there has been no read for {idle}"
        )
    if partition.worked_by is reads.processing:
        return f"some records of {offsets} are not processed yet"
    return f"{offsets} belong to a batch() block that has not ended"


def seconds(duration_s: float) -> str:
    return f"{duration_s * 1000:.0f} ms" if duration_s < 1 else f"{duration_s:.1f} s"
