"""Defines what happens to a consumer as values: each event tells of one change, when it happened.

Names and fields are for users, who compare and store them: they stay. Whoever notices a change
publishes it through `Events` (stream.py), at the change and not while it lasts.

The classes are made when this module is first imported, which takes some 10 ms: modules that every
consumer imports name them inside the functions that publish.
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
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def offset_count(self) -> int:
        """How many offsets it has: at least as many as records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """Something that happened to a consumer; the base of all events.

    Attributes:
        name: What happened, in snake case; the same in every release.
        at_s: The loop's time (`loop.time()`) when it happened.
    """

    name: ClassVar[str] = ""
    # The level of the line that `Events` logs; None where the code that publishes logs itself.
    level: ClassVar[int | None] = None

    at_s: float = field(default_factory=_loop_time, kw_only=True, compare=False, repr=False)

    @property
    def subject(self) -> object:
        """What it is about: the log tells of events about the same thing once a minute."""
        return None

    def as_dict(self) -> dict[str, object]:
        """Return name and fields with values that `json.dumps` takes."""
        values = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"name": self.name, **values}


def _plain(value: object) -> object:
    """Return a field's value made of what JSON has; partitions as [topic, number]."""
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
    """The consumer has these partitions from now on: all of them, not only the new ones."""

    name: ClassVar[str] = "assigned"

    partitions: Partitions
    # -1 without a group.
    generation: int = -1


@dataclass(frozen=True, slots=True)
class WorkAwaited(ConsumerEvent):
    """Partitions are to be given back, and wait for the application to finish these offsets.

    Its next get tells that it has, or its commit. When `limit_s` seconds are over they go all the
    same, and their next owner reads the offsets again (`rebalance_hold_ms`).
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
    """A rebalance begins: what was processed is committed, then these partitions are given back."""

    name: ClassVar[str] = "revoked"

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost(ConsumerEvent):
    """These partitions are another member's already: nothing can be committed for them."""

    name: ClassVar[str] = "lost"

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorChanged(ConsumerEvent):
    """The group has another coordinator, or none that is known (None)."""

    name: ClassVar[str] = "coordinator_changed"

    node_id: int | None
    previous_node_id: int | None = None


@dataclass(frozen=True, slots=True)
class GroupProtocolChanged(ConsumerEvent):
    """The group is joined by another protocol than the one that was tried first."""

    name: ClassVar[str] = "group_protocol_changed"

    # "classic".
    protocol: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommitFailed(ConsumerEvent):
    """Offsets could not be committed, by the application or by auto-commit."""

    name: ClassVar[str] = "commit_failed"

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    error: BaseException
    is_auto: bool = False


@dataclass(frozen=True, slots=True)
class ListenerFailed(ConsumerEvent):
    """The application's rebalance listener raised (`error`), or took too long (None)."""

    name: ClassVar[str] = "listener_failed"

    callback: str
    error: BaseException | None


# --- Positions and records --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OffsetReset(ConsumerEvent):
    """A position was looked up anew, by auto_offset_reset or after the log was cut.

    `lost` are the offsets between that were not handed out and will not be, deleted ones and
    skipped ones; None: nothing that is known of. `skipped` is the part of them that the broker
    still has.
    """

    name: ClassVar[str] = "offset_reset"

    tp: TopicPartition
    # None: there was no position, because the group had committed none.
    from_offset: int | None
    to_offset: int
    # "no committed offset", "out of range", "truncated", "topic recreated"
    reason: str
    lost: OffsetRange | None = None
    skipped: OffsetRange | None = None


@dataclass(frozen=True, slots=True)
class RecordSkipped(ConsumerEvent):
    """A record, or a batch, was passed over because it could not be handed out.

    `next_offset` is where reading goes on: one more than `offset`, or after the batch.
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
        where = f"{self.offset}" if last == self.offset else f"{self.offset} to {last}"
        return f"{what}: {self.tp.topic}/{self.tp.partition} at {where}: {self.error}"


# --- Topics -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TopicDeleted(ConsumerEvent):
    """A topic that was read is gone."""

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
    """A topic was made anew under its name: another log, with another id."""

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
    """A topic has more partitions than before."""

    name: ClassVar[str] = "partitions_added"
    level: ClassVar[int | None] = logging.INFO

    topic: str
    previous_count: int
    count: int

    @property
    def subject(self) -> object:
        return self.topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} has {self.count} partitions, {self.previous_count} before"


# --- Brokers ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BrokerDown(ConsumerEvent):
    """A broker cannot be reached; negative ids are those of bootstrap servers."""

    name: ClassVar[str] = "broker_down"

    node_id: int
    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BrokerUp(ConsumerEvent):
    """A broker that could not be reached answers again."""

    name: ClassVar[str] = "broker_up"

    node_id: int
    address: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Throttled(ConsumerEvent):
    """A broker asks the consumer to hold back, because of a quota (KIP-219)."""

    name: ClassVar[str] = "throttled"
    level: ClassVar[int | None] = logging.INFO

    node_id: int
    duration_s: float

    @property
    def subject(self) -> object:
        return self.node_id

    def __str__(self) -> str:
        return f"node {self.node_id} throttles this client for {self.duration_s:.2f} s"


# --- The consumer itself ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LoopBlocked(ConsumerEvent):
    """The event loop ran nothing else for that long: heartbeats and fetches were late."""

    name: ClassVar[str] = "loop_blocked"

    blocked_s: float
    # What the loop was kept by, as far as it can be told.
    blocker: str

    def __str__(self) -> str:
        return (
            f"the event loop was blocked for {self.blocked_s:.2f} s by {self.blocker}: run "
            "blocking code in a thread (asyncio.to_thread)"
        )


@dataclass(frozen=True, slots=True)
class RecordDead(ConsumerEvent):
    """`run` has nothing left to try with a record, and has written it to the dead letters."""

    name: ClassVar[str] = "record_dead"

    tp: TopicPartition
    offset: int
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CircuitOpened(ConsumerEvent):
    """Handlers of `run` fail, so that all wait; one record is tried now and then."""

    name: ClassVar[str] = "circuit_opened"

    reason: str


@dataclass(frozen=True, slots=True)
class CircuitClosed(ConsumerEvent):
    """A handler of `run` has succeeded again, `open_s` after the circuit opened: all go on."""

    name: ClassVar[str] = "circuit_closed"

    open_s: float


@dataclass(frozen=True, slots=True)
class TaskRestarted(ConsumerEvent):
    """A background task failed by what may pass, and is started again."""

    name: ClassVar[str] = "task_restarted"

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class TaskFailed(ConsumerEvent):
    """A background task died: every get raises `error` until the consumer is stopped."""

    name: ClassVar[str] = "task_failed"

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class EventsDropped(ConsumerEvent):
    """This subscriber was too slow: its oldest events were dropped."""

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
"""Every class that `events()` may give."""
