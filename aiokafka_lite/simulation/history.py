"""What happened in one run, in order: the rules read it afterwards."""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.structs import TopicPartition

# The partition of a record whose producer chooses it.
UNKNOWN_PARTITION: Final = -1


class Kind(enum.Enum):
    SENT = "sent"
    ACKED = "acknowledged"
    REFUSED = "refused"
    JOINED = "joined"
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"
    RETURNED = "returned"
    HANDLED = "handled"
    CANCELLED = "cancelled"
    DEAD = "dead letter"
    COMMITTED = "committed"
    BEGUN = "transaction begun"
    ENDED = "transaction ended"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    SIGNALLED = "signal"
    RAISED = "raised"
    FAULT = "fault"
    FAULT_OVER = "fault is over"
    CUT_LOG = "log changed"
    SOUGHT = "sought"
    PAUSED = "paused"
    RESUMED = "resumed"
    NAMED = "commit called"
    CONFIRMED = "commit confirmed"
    FENCED = "fenced"
    THROTTLED = "throttled"
    CALM = "faults stop"
    SETTLED = "settled"

    __hash__ = object.__hash__  # Enum's is a Python function


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        at_s: When, in virtual seconds.
        who: The member, producer or fault.
        offset: The record's, or the committed one.
        value: The record's.
        note: Words for people, and for rules where they say so.
    """

    at_s: float
    kind: Kind
    who: str
    tp: TopicPartition | None = None
    offset: int = -1
    value: bytes = b""
    note: str = ""

    def text(self) -> str:
        place = "" if self.tp is None else self.tp.topic
        if self.tp is not None and self.tp.partition != UNKNOWN_PARTITION:
            place += f"/{self.tp.partition}"
        place += f"@{self.offset}" if self.offset >= 0 else ""
        words = (f"{self.at_s:9.3f}", f"{self.who:<10}", f"{self.kind.value:<18}", f"{place:<10}")
        return " ".join((*words, self.value.decode("latin-1"), self.note)).rstrip()


@dataclass
class Facts:
    """What the cluster has at the end of a run.

    Attributes:
        logs: The values by offset of each partition of the input, as any reader gets them.
        starts: The first offset of each of these partitions.
        committed: What the group has committed.
    """

    logs: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset behind the last record of each partition."""
        return {tp: max(log, default=-1) + 1 for tp, log in self.logs.items()}


class Violation(NamedTuple):
    """A rule that did not hold, when, and why."""

    rule: str
    text: str
    at_s: float = 0.0


NOW: Final[Callable[[], float]] = lambda: 0.0  # noqa: E731 — a default


class History:
    def __init__(self, clock: Callable[[], float] = NOW) -> None:
        self._clock = clock
        # Appended to, or replaced: the index of a list does not notice other changes.
        self.events: list[Event] = []
        self._indexed = self.events
        self._index_end = 0
        self._positions: defaultdict[Kind, list[int]] = defaultdict(list)

    def note(
        self,
        kind: Kind,
        who: str,
        tp: TopicPartition | None = None,
        offset: int = -1,
        value: bytes = b"",
        note: str = "",
    ) -> None:
        self.events.append(Event(self._clock(), kind, who, tp, offset, value, note))

    def note_partitions(self, kind: Kind, who: str, tps: Iterable[TopicPartition]) -> None:
        for tp in sorted(tps):
            self.note(kind, who, tp)

    def of(self, *kinds: Kind) -> Iterator[Event]:
        events, positions = self.events, self._positions
        if events is not self._indexed:
            self._indexed = events
            positions.clear()
            self._index_end = 0
        for n in range(self._index_end, len(events)):
            positions[events[n].kind].append(n)
        self._index_end = len(events)
        found = [positions[kind] for kind in kinds]
        numbers = found[0] if len(found) == 1 else sorted(itertools.chain.from_iterable(found))
        return (events[n] for n in numbers)
