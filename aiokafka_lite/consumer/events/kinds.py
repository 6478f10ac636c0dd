"""The events of a consumer: each describes one change, and is published once (stream.py).

Names and fields are stable. The import takes 10 ms, so modules that every consumer imports name the
classes inside the functions that publish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

__all__ = [
    "EVENT_CLASSES",
    "Assigned",
    "BrokerDown",
    "BrokerUp",
    "CircuitClosed",
    "CircuitOpened",
    "CommitFailed",
    "ConsumerEvent",
    "CoordinatorChanged",
    "EventsDropped",
    "GroupProtocolChanged",
    "ListenerFailed",
    "LoopBlocked",
    "Lost",
    "OffsetRange",
    "OffsetReset",
    "PartitionsAdded",
    "RecordDead",
    "RecordSkipped",
    "Revoked",
    "TaskFailed",
    "TaskRestarted",
    "Throttled",
    "TopicDeleted",
    "TopicRecreated",
    "WorkAwaited",
]

Partitions = frozenset[TopicPartition]


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class OffsetRange(NamedTuple):
    """The offsets from `start` to `end`, without `end`."""

    start: int
    end: int

    @property
    def offset_count(self) -> int:
        """The number of offsets: at least the number of records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """The base of all events.

    Attributes:
        name: The kind of event in snake case.
        at_s: The loop's time (`loop.time()`) of the event.
    """

    name: ClassVar[str] = ""
    # The level of the line that `Events` logs. None: the publishing code logs.
    level: ClassVar[int | None] = None

    at_s: float = field(default_factory=_loop_time, kw_only=True, compare=False, repr=False)

    @property
    def subject(self) -> object:
        """The topic, partition or node: the log has at most one line a minute for each."""
        return None

    def as_dict(self) -> dict[str, object]:
        """Return name and fields as values that `json.dumps` accepts."""
        values = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"name": self.name, **values}


def _plain(value: object) -> object:
    """Convert a field to JSON types, and partitions to [topic, number]."""
    if isinstance(value, KafkaError):
        return str(value)  # begins with its class
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, frozenset):
        return sorted([*tp] for tp in value)
    if isinstance(value, Mapping):
        return [[*tp, *_plain_offset(offset)] for tp, offset in sorted(value.items())]
    return [*value] if isinstance(value, tuple) else value


def _plain_offset(value: OffsetAndMetadata | OffsetRange) -> tuple[int, ...]:
    return value if isinstance(value, OffsetRange) else (value.offset,)


# --- The group --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Assigned(ConsumerEvent):
    """The consumer now has these partitions, including former ones."""

    name: ClassVar[str] = "assigned"

    partitions: Partitions
    # -1 without a group.
    generation: int = -1


@dataclass(frozen=True, slots=True)
class WorkAwaited(ConsumerEvent):
    """A rebalance waits until the application finishes these offsets, by its next read or a commit.

    After `limit_s` seconds (`rebalance_hold_ms`) the partitions are revoked anyway, and their next
    owner reads the offsets again.
    """

    name: ClassVar[str] = "work_awaited"
    level: ClassVar[int | None] = logging.INFO

    offsets: Mapping[TopicPartition, OffsetRange]
    limit_s: float

    def __str__(self) -> str:
        work = ", ".join(
            f"{tp.topic}/{tp.partition} offsets {start} to {end - 1}"
            for tp, (start, end) in sorted(self.offsets.items())
        )
        return (
            f"partitions are being revoked: waiting up to {self.limit_s:.1f} s for the "
            f"application to finish {work}"
        )


@dataclass(frozen=True, slots=True)
class Revoked(ConsumerEvent):
    """These partitions are revoked. With auto-commit, their finished records are committed."""

    name: ClassVar[str] = "revoked"

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost(ConsumerEvent):
    """These partitions already belong to another member, so no offsets can be committed."""

    name: ClassVar[str] = "lost"

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorChanged(ConsumerEvent):
    """The group has another coordinator. None: unknown."""

    name: ClassVar[str] = "coordinator_changed"

    node_id: int | None
    previous_node_id: int | None = None


@dataclass(frozen=True, slots=True)
class GroupProtocolChanged(ConsumerEvent):
    """The consumer joins the group with another protocol than it tried first."""

    name: ClassVar[str] = "group_protocol_changed"

    # "classic".
    protocol: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommitFailed(ConsumerEvent):
    """A commit of the application or an auto-commit (`is_auto`) failed."""

    name: ClassVar[str] = "commit_failed"

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    error: BaseException
    is_auto: bool = False


@dataclass(frozen=True, slots=True)
class ListenerFailed(ConsumerEvent):
    """A callback of the rebalance listener raised `error`, or was cancelled by a timeout (None)."""

    name: ClassVar[str] = "listener_failed"

    callback: str
    error: BaseException | None


# --- Positions and records --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OffsetReset(ConsumerEvent):
    """A position was looked up again, by auto_offset_reset or after the log was truncated.

    `lost` are offsets that will not be returned, because they were deleted or skipped. None: no
    known ones. `skipped` is the part of them that the broker still has.
    """

    name: ClassVar[str] = "offset_reset"

    tp: TopicPartition
    # None: no position, because the group had no committed offset.
    from_offset: int | None
    to_offset: int
    # "no committed offset", "out of range", "truncated", "topic recreated"
    reason: str
    lost: OffsetRange | None = None
    skipped: OffsetRange | None = None


@dataclass(frozen=True, slots=True)
class RecordSkipped(ConsumerEvent):
    """A record or a batch was skipped, because it could not be returned.

    Reading continues at `next_offset`: `offset` + 1, or after the batch.
    """

    name: ClassVar[str] = "record_skipped"
    level: ClassVar[int | None] = logging.ERROR

    tp: TopicPartition
    offset: int
    error: BaseException
    next_offset: int | None = None

    @property
    def subject(self) -> object:
        return self.tp

    def __str__(self) -> str:
        last = self.offset if self.next_offset is None else self.next_offset - 1
        what = "record skipped" if last == self.offset else "batch skipped"
        where = (
            f"offset {self.offset}" if last == self.offset else f"offsets {self.offset} to {last}"
        )
        return f"{what}: {self.tp.topic}/{self.tp.partition} at {where}: {self.error}"


# --- Topics -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TopicDeleted(ConsumerEvent):
    """A topic of the consumer was deleted."""

    name: ClassVar[str] = "topic_deleted"
    level: ClassVar[int | None] = logging.WARNING

    topic: str

    @property
    def subject(self) -> object:
        return self.topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} was deleted: the brokers no longer know it"


@dataclass(frozen=True, slots=True)
class TopicRecreated(ConsumerEvent):
    """A topic was recreated: it has another log and another id."""

    name: ClassVar[str] = "topic_recreated"
    level: ClassVar[int | None] = logging.WARNING

    topic: str

    @property
    def subject(self) -> object:
        return self.topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and recreated: offsets of the old topic are "
            "invalid in the new one"
        )


@dataclass(frozen=True, slots=True)
class PartitionsAdded(ConsumerEvent):
    """The number of a topic's partitions has grown."""

    name: ClassVar[str] = "partitions_added"
    level: ClassVar[int | None] = logging.INFO

    topic: str
    previous_count: int
    count: int

    @property
    def subject(self) -> object:
        return self.topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} now has {self.count} partitions instead of {self.previous_count}"
        )


# --- Brokers ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BrokerDown(ConsumerEvent):
    """A broker cannot be reached; negative ids are bootstrap servers."""

    name: ClassVar[str] = "broker_down"

    node_id: int
    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BrokerUp(ConsumerEvent):
    """A broker responds again, `down_s` seconds after it became unreachable."""

    name: ClassVar[str] = "broker_up"

    node_id: int
    address: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Throttled(ConsumerEvent):
    """A broker throttles the consumer because of a quota (KIP-219)."""

    name: ClassVar[str] = "throttled"
    level: ClassVar[int | None] = logging.INFO

    node_id: int
    duration_s: float

    @property
    def subject(self) -> object:
        return self.node_id

    def __str__(self) -> str:
        return (
            f"node {self.node_id} throttles this client for {self.duration_s:.2f} s, because "
            "the client exceeded a quota"
        )


# --- The consumer itself ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LoopBlocked(ConsumerEvent):
    """The event loop was blocked for `blocked_s` seconds, which delayed heartbeats and fetches."""

    name: ClassVar[str] = "loop_blocked"

    blocked_s: float
    # The code that blocked the loop, if known.
    blocker: str

    def __str__(self) -> str:
        return (
            f"the event loop was blocked for {self.blocked_s:.2f} s by {self.blocker}: run "
            "blocking code in a thread (asyncio.to_thread)"
        )


@dataclass(frozen=True, slots=True)
class RecordDead(ConsumerEvent):
    """`run` has written a record to the dead letters after its last attempt."""

    name: ClassVar[str] = "record_dead"

    tp: TopicPartition
    offset: int
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CircuitOpened(ConsumerEvent):
    """Handlers of `run` fail, so processing pauses. One record is tried from time to time."""

    name: ClassVar[str] = "circuit_opened"

    reason: str


@dataclass(frozen=True, slots=True)
class CircuitClosed(ConsumerEvent):
    """A handler of `run` has succeeded, `open_s` seconds after the circuit opened."""

    name: ClassVar[str] = "circuit_closed"

    open_s: float


@dataclass(frozen=True, slots=True)
class TaskRestarted(ConsumerEvent):
    """A background task failed with a temporary error and is restarted."""

    name: ClassVar[str] = "task_restarted"

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class TaskFailed(ConsumerEvent):
    """A background task failed: every read raises `error` until the consumer is stopped."""

    name: ClassVar[str] = "task_failed"

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class EventsDropped(ConsumerEvent):
    """This subscriber was too slow: its `count` oldest events were dropped."""

    name: ClassVar[str] = "events_dropped"

    count: int


EVENT_CLASSES: tuple[type[ConsumerEvent], ...] = (
    Assigned,
    WorkAwaited,
    Revoked,
    Lost,
    CoordinatorChanged,
    GroupProtocolChanged,
    CommitFailed,
    ListenerFailed,
    OffsetReset,
    RecordSkipped,
    RecordDead,
    CircuitOpened,
    CircuitClosed,
    TopicDeleted,
    TopicRecreated,
    PartitionsAdded,
    BrokerDown,
    BrokerUp,
    Throttled,
    LoopBlocked,
    TaskRestarted,
    TaskFailed,
    EventsDropped,
)
"""All events."""
