"""What happened, in one order: entries that members, the conductor and the commits' reader write.

All are written at the moment itself, with nothing awaited between: so an entry that stands before
another did happen before it. Commits are put where they reached the coordinator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.structs import TopicPartition

Ranges = tuple[tuple[TopicPartition, int, int], ...]
"""Offsets [first, next) of partitions."""

SHOWN: Final = 200


@dataclass(slots=True, kw_only=True)
class Entry:
    """Something that happened.

    Attributes:
        order: Its place among all.
        at: When, in the world's time.
        group: Whose group it is about; "" for all.
        who: The member.
    """

    order: float = 0.0
    at: float = 0.0
    group: str = ""
    who: str = ""

    @property
    def partitions(self) -> Iterable[TopicPartition] | None:
        """Which partitions it is about; None: all of the member's."""
        return None

    def text(self) -> str:
        fields = {
            name: getattr(self, name)
            for name in self.__slots__
            if name not in ("order", "at", "group", "who")
        }
        words = ", ".join(f"{name}={_plain(value)}" for name, value in fields.items())
        return f"{self.order:>9g} {self.at:>10.3f} {self.who:<10} {type(self).__name__} {words}"


def _plain(value: object) -> str:
    if isinstance(value, TopicPartition):
        return f"{value.topic}/{value.partition}"
    if isinstance(value, (frozenset, set)):
        return "{" + " ".join(sorted(map(_plain, value))) + "}"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{_plain(k)}:{_plain(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return "(" + " ".join(map(_plain, value)) + ")"
    return str(value)


@dataclass(slots=True, kw_only=True)
class Joined(Entry):
    """A member begins, with these settings.

    Attributes:
        is_eager: Each rebalance takes all partitions away.
        hears_within_s: How long its group may give its partitions to others without its knowing.
    """

    settings: str
    is_eager: bool
    hears_within_s: float


@dataclass(slots=True, kw_only=True)
class Assigned(Entry):
    """The event; from now on it has these."""

    generation: int
    tps: frozenset[TopicPartition]


UNSUBSCRIBED: Final = "unsubscribed"
"""How partitions are revoked by the application itself."""

TO_COMMITTED: Final = "to committed"
"""How a seek leads to what is committed: in a rebalance, when the partition is assigned again."""

LOST: Final = "lost"
"""How partitions are revoked from a member that the group has removed."""


@dataclass(slots=True, kw_only=True)
class Revoked(Entry):
    """The event, or the application has unsubscribed: from now on nothing is handed out."""

    tps: frozenset[TopicPartition]
    how: str


@dataclass(slots=True, kw_only=True)
class Subscribed(Entry):
    """The application has subscribed to these topics instead of those before."""

    topics: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Callback(Entry):
    """The rebalance listener is called (`is_over`: has returned)."""

    name: str
    is_over: bool = False


@dataclass(slots=True, kw_only=True)
class Handed(Entry):
    """A get returned [first, next) of a partition; `gaps` names others, where there are any."""

    tp: TopicPartition
    first: int
    next: int
    gaps: str = ""
    is_in_callback: bool = False

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return (self.tp,)


@dataclass(slots=True, kw_only=True)
class Finished(Entry):
    """The application has finished these, and says so by what it does next."""

    ranges: Ranges
    why: str

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return (tp for tp, _, _ in self.ranges)


@dataclass(slots=True, kw_only=True)
class Sought(Entry):
    """A seek was accepted. `target` None: to the end, wherever between there and `limit`."""

    tp: TopicPartition
    target: int | None
    how: str
    limit: int

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return (self.tp,)


@dataclass(slots=True, kw_only=True)
class Paused(Entry):
    """Partitions were paused, or resumed."""

    tps: frozenset[TopicPartition]
    is_paused: bool = True

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self.tps


@dataclass(slots=True, kw_only=True)
class CommitAsked(Entry):
    """The application asks for a commit of these; `mark` is their metadata, "" for positions."""

    number: int
    offsets: Mapping[TopicPartition, int]
    mark: str
    is_stale: bool = False

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self.offsets.keys()


@dataclass(slots=True, kw_only=True)
class CommitDone(Entry):
    """That commit's call ended; `error` "" if it said that it is done."""

    number: int
    offsets: Mapping[TopicPartition, int]
    mark: str
    error: str

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self.offsets.keys()


@dataclass(slots=True, kw_only=True)
class Committed(Entry):
    """A record of `__consumer_offsets`; `who` is "" where that cannot be told.

    `is_late`: a slow broker wrote it after what its member sent later, over another connection.
    Of a real one the verdict finds that out.
    """

    tp: TopicPartition
    offset: int
    mark: str
    log_offset: int
    is_late: bool = False

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return (self.tp,)


@dataclass(slots=True, kw_only=True)
class Stopping(Entry):
    """A stop is called, with what was handed out and has to be committed (with auto-commit)."""

    how: str
    owed: Mapping[TopicPartition, int]


@dataclass(slots=True, kw_only=True)
class Stopped(Entry):
    """The stop returned; `left` is what it says was not committed, None: it did not say."""

    how: str
    left: Mapping[TopicPartition, int] | None
    owed: Mapping[TopicPartition, int]
    is_told: bool = True


@dataclass(slots=True, kw_only=True)
class Crashed(Entry):
    """A member was killed."""


@dataclass(slots=True, kw_only=True)
class Blocked(Entry):
    """A member blocks its loop for so long from now on."""

    seconds: float


@dataclass(slots=True, kw_only=True)
class Fault(Entry):
    """A fault begins, whose effects are over at `until` at the latest."""

    name: str
    until: float


@dataclass(slots=True, kw_only=True)
class Note(Entry):
    """Anything else that helps to understand."""

    words: str


@dataclass(slots=True, kw_only=True)
class Raised(Note):
    """An error reached the application; `error` is the name of its class."""

    error: str


@dataclass(slots=True, kw_only=True)
class CutOff(Note):
    """From now on a member does not reach its coordinator (`is_over`: it does again)."""

    is_over: bool = False


@dataclass(slots=True)
class Violation:
    """A promise that was not kept."""

    rule: str
    words: str
    group: str = ""
    tp: TopicPartition | None = None
    who: str = ""
    order: float = float("inf")

    def __str__(self) -> str:
        where = "" if self.tp is None else f" {self.tp.topic}/{self.tp.partition}"
        return f"{self.rule}: {self.group}{where} {self.who}: {self.words}"


@dataclass
class Ledger:
    """All entries, and the violations found."""

    entries: list[Entry] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    _orders: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def next_order(self) -> float:
        """Return the place of what happens now."""
        return float(next(self._orders))

    def write(self, entry: Entry) -> None:
        """Write an entry down; one without a place gets the next."""
        if not entry.order:
            entry.order = self.next_order()
        self.entries.append(entry)

    def violate(self, violation: Violation) -> None:
        """Write a violation down."""
        self.violations.append(violation)

    def in_order(self) -> list[Entry]:
        """Return all entries in their order."""
        return sorted(self.entries, key=lambda entry: entry.order)

    def excerpt(self, violation: Violation, count: int = SHOWN) -> list[str]:
        """Return the last entries before a violation that have to do with it."""
        chosen: list[Entry] = []
        for entry in self.in_order():
            if entry.order > violation.order:
                break
            if violation.group and entry.group and entry.group != violation.group:
                continue
            about = entry.partitions
            if about is None or violation.tp is None or violation.tp in about:
                chosen.append(entry)
        return [entry.text() for entry in chosen[-count:]]
