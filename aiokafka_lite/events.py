"""The events of a consumer, which `async for event in consumer.events()` returns.

Each describes one change, and is published once (consumer/events.py). Names and fields are stable.
The import takes 10 ms, so publishing functions import the classes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final, NamedTuple
from weakref import WeakKeyDictionary

from aiokafka_lite._arguments import is_int
from aiokafka_lite._compat import Self
from aiokafka_lite._tasks import Event
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
    "EventSubscription",
    "EventsDropped",
    "GroupProtocolChanged",
    "LeaseLost",
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


SUBJECTS: Final = ("tp", "topic", "node_id")


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
        name: The class's name in snake case.
        at_s: The loop's time (`loop.time()`) of the event.
    """

    name: ClassVar[str] = ""
    # The level of the line that `Events` logs. None: the publishing code logs.
    level: ClassVar[int | None] = None

    at_s: float = field(default_factory=_loop_time, kw_only=True, compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        cls.name = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def subject(self) -> object:
        """The partition, topic or node: the log has at most one line a minute for each."""
        return next((getattr(self, name) for name in SUBJECTS if hasattr(self, name)), None)

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

    partitions: Partitions
    # -1 without a group.
    generation: int = -1


@dataclass(frozen=True, slots=True)
class WorkAwaited(ConsumerEvent):
    """A rebalance waits until the application finishes these offsets, by its next read or a commit.

    After `limit_s` seconds (`rebalance_hold_ms`) the partitions are revoked anyway, and their next
    owner reads the offsets again.
    """

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

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost(ConsumerEvent):
    """These partitions already belong to another member, so no offsets can be committed."""

    partitions: Partitions
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorChanged(ConsumerEvent):
    """The group has another coordinator. None: unknown."""

    node_id: int | None
    previous_node_id: int | None = None


@dataclass(frozen=True, slots=True)
class GroupProtocolChanged(ConsumerEvent):
    """The consumer joins the group with another protocol than it tried first."""

    # "classic".
    protocol: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommitFailed(ConsumerEvent):
    """A commit of the application or an auto-commit (`is_auto`) failed."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    error: BaseException
    is_auto: bool = False


@dataclass(frozen=True, slots=True)
class ListenerFailed(ConsumerEvent):
    """A callback of the rebalance listener raised `error`, or was cancelled by a timeout (None)."""

    callback: str
    error: BaseException | None


# --- Positions and records --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OffsetReset(ConsumerEvent):
    """A position was looked up again, by auto_offset_reset or after the log was truncated.

    `lost` are offsets that will not be returned, because they were deleted or skipped. None: no
    known ones. `skipped` is the part of them that the broker still has.
    """

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

    level: ClassVar[int | None] = logging.ERROR

    tp: TopicPartition
    offset: int
    error: BaseException
    next_offset: int | None = None

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

    level: ClassVar[int | None] = logging.WARNING

    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} was deleted: the brokers no longer know it"


@dataclass(frozen=True, slots=True)
class TopicRecreated(ConsumerEvent):
    """A topic was recreated: it has another log and another id."""

    level: ClassVar[int | None] = logging.WARNING

    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and recreated: offsets of the old topic are "
            "invalid in the new one"
        )


@dataclass(frozen=True, slots=True)
class PartitionsAdded(ConsumerEvent):
    """The number of a topic's partitions has grown."""

    level: ClassVar[int | None] = logging.INFO

    topic: str
    previous_count: int
    count: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} now has {self.count} partitions instead of {self.previous_count}"
        )


# --- Brokers ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BrokerDown(ConsumerEvent):
    """A broker cannot be reached; negative ids are bootstrap servers."""

    node_id: int
    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BrokerUp(ConsumerEvent):
    """A broker responds again, `down_s` seconds after it became unreachable."""

    node_id: int
    address: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Throttled(ConsumerEvent):
    """A broker throttles the consumer because of a quota (KIP-219)."""

    level: ClassVar[int | None] = logging.INFO

    node_id: int
    duration_s: float

    def __str__(self) -> str:
        return (
            f"node {self.node_id} throttles this client for {self.duration_s:.2f} s, because "
            "the client exceeded a quota"
        )


# --- The consumer itself ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LoopBlocked(ConsumerEvent):
    """The event loop was blocked for `blocked_s` seconds, which delayed heartbeats and fetches."""

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

    tp: TopicPartition
    offset: int
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class LeaseLost(ConsumerEvent):
    """A share group may deliver records again that this consumer has, or has acknowledged in vain.

    The locks have ended, or the connection was lost (KIP-932). `delivery_count` includes the
    delivery to this consumer.
    """

    level: ClassVar[int | None] = logging.WARNING

    tp: TopicPartition
    offsets: OffsetRange
    delivery_count: int
    reason: str

    def __str__(self) -> str:
        start, end = self.offsets
        return (
            f"{self.tp.topic}/{self.tp.partition}: the leases of offsets {start} to {end - 1} are "
            f"lost, so other members may process the records, too: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class CircuitOpened(ConsumerEvent):
    """Handlers of `run` fail, so processing pauses. One record is tried from time to time."""

    reason: str


@dataclass(frozen=True, slots=True)
class CircuitClosed(ConsumerEvent):
    """A handler of `run` has succeeded, `open_s` seconds after the circuit opened."""

    open_s: float


@dataclass(frozen=True, slots=True)
class TaskRestarted(ConsumerEvent):
    """A background task failed with a temporary error and is restarted."""

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class TaskFailed(ConsumerEvent):
    """A background task failed: every read raises `error` until the consumer is stopped."""

    task: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class EventsDropped(ConsumerEvent):
    """This subscriber was too slow: its `count` oldest events were dropped."""

    count: int


EVENT_CLASSES: tuple[type[ConsumerEvent], ...] = tuple(
    each
    for each in tuple(globals().values())
    if isinstance(each, type) and issubclass(each, ConsumerEvent) and each is not ConsumerEvent
)
"""All events."""


# --- Subscriptions ----------------------------------------------------------------------------
class EventSubscription:
    """An asynchronous iterator over a consumer's events, and a context manager.

    A cancelled wait loses no event. The iteration ends after `close`, and after the buffered events
    when the consumer is stopped.
    """

    def __init__(
        self, subscriptions: WeakKeyDictionary[EventSubscription, None], max_buffered: int
    ) -> None:
        if not is_int(max_buffered) or max_buffered < 1:
            raise ValueError(f"max_buffered must be a positive int, not {max_buffered!r}")
        self._subscriptions = subscriptions
        self._buffer: deque[ConsumerEvent] = deque()
        self._max_buffered = max_buffered
        self._dropped_count = 0
        self._has_ended = False
        self._wake = Event()
        subscriptions[self] = None

    def put(self, event: ConsumerEvent) -> None:
        """Buffer an event. A full buffer drops its oldest one."""
        if len(self._buffer) >= self._max_buffered:
            self._buffer.popleft()
            self._dropped_count += 1
        self._buffer.append(event)
        self._wake.set()

    def end(self) -> None:
        """End the iteration after the buffered events."""
        self._has_ended = True
        self._subscriptions.pop(self, None)
        self._wake.set()

    def close(self) -> None:
        """Unsubscribe, drop the buffered events and end the iteration. Idempotent."""
        self._buffer.clear()
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerEvent:
        while not self._buffer:
            if self._has_ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        if self._dropped_count:
            count, self._dropped_count = self._dropped_count, 0
            return EventsDropped(count)
        return self._buffer.popleft()
