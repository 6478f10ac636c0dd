"""What a storm was like, as its ledger tells: rebalances, what was repeated and why, silences."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.structs import TopicPartition
from tests.model.ledger import (
    Assigned,
    CommitDone,
    Committed,
    Crashed,
    CutOff,
    Entry,
    Fault,
    Handed,
    Joined,
    Ledger,
    Raised,
    Revoked,
    Stopped,
    Stopping,
)

TWO_OWNERS: Final = (
    "two have one partition",
    "handed out in another's place",
    "handed out after revocation",
)
LOST: Final = ("lost", "not all is read at the end")
WENT_BACK: Final = (
    "a commit went back",
    "a start that is not what was committed",
    "offsets out of order",
)
EPOCH_ERROR: Final = "an epoch error reaches the application"
UNEXPLAINED: Final = "none of these"
NOT_CANCELLED: Final = ("", "cancelled")


@dataclass
class Report:
    """A storm in figures; seconds."""

    rebalances: int = 0
    joins: int = 0
    leaves: int = 0
    crashes: int = 0
    cuts: int = 0
    losses: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    written: int = 0
    handed: int = 0
    # Commits that a broker wrote after what the same member had sent later.
    late: int = 0
    repeated: int = 0
    # By what had become of whoever had the records before.
    repeated_after: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    longest_silence_s: float = 0.0
    longest_unwritten_s: float = 0.0
    stable_s: float | None = None
    violations: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        two = sum(self.violations[rule] for rule in TWO_OWNERS)
        lost = sum(self.violations[rule] for rule in LOST)
        back = sum(self.violations[rule] for rule in WENT_BACK)
        known = {*TWO_OWNERS, *LOST, *WENT_BACK, EPOCH_ERROR}
        others = {rule: count for rule, count in self.violations.items() if rule not in known}
        stable = "not reached" if self.stable_s is None else f"{self.stable_s:.2f} s"
        return "\n".join(
            [
                f"rebalances               {self.rebalances}",
                f"joins, leaves, crashes   {self.joins}, {self.leaves}, {self.crashes}",
                f"cut off                  {self.cuts}, all lost {self.losses} times",
                f"coordinators             {_counts(self.faults)}",
                f"records written, handed  {self.written}, {self.handed}",
                f"lost                     {lost}",
                f"two owners               {two}",
                f"back below a commit      {back}",
                f"late commits             {self.late}",
                f"repeated                 {self.repeated}: {_counts(self.repeated_after)}",
                f"epoch errors             {self.violations[EPOCH_ERROR]}",
                f"errors told              {_counts(self.errors)}",
                f"longest silence          {self.longest_silence_s:.2f} s of a partition, "
                f"not written {self.longest_unwritten_s:.2f} s",
                f"stable after             {stable}",
                f"other violations         {_counts(others)}",
            ]
        )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def report_on(
    ledger: Ledger, until: float, written_at: Mapping[TopicPartition, Sequence[float]]
) -> Report:
    """Read a ledger; silences up to a time, when the storm and the calm after it were over."""
    entries = ledger.in_order()
    told = Report(violations=Counter(each.rule for each in ledger.violations))
    for entry in entries:
        if isinstance(entry, Joined):
            told.joins += 1
        elif isinstance(entry, Stopping):
            told.leaves += 1
        elif isinstance(entry, Crashed):
            told.crashes += 1
        elif isinstance(entry, CutOff):
            told.cuts += not entry.is_over
        elif isinstance(entry, Fault):
            told.faults[entry.name.split(" node")[0].removeprefix("the ")] += 1
        elif isinstance(entry, Raised):
            told.errors[entry.error] += 1
        elif isinstance(entry, CommitDone) and entry.error not in NOT_CANCELLED:
            told.errors[f"{entry.error.partition('(')[0]} of commit"] += 1
    told.losses = sum(isinstance(e, Revoked) and e.how == "lost" and bool(e.tps) for e in entries)
    _look_at_records(told, entries)
    handed_at: dict[TopicPartition, list[float]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Handed) and entry.at <= until:
            handed_at[entry.tp].append(entry.at)
    told.longest_silence_s = _longest(handed_at)
    told.longest_unwritten_s = _longest(written_at)
    return told


def _longest(times: Mapping[TopicPartition, Sequence[float]]) -> float:
    gaps = (b - a for each in times.values() for a, b in itertools.pairwise(each))
    return max(gaps, default=0.0)


def _look_at_records(told: Report, entries: Sequence[Entry]) -> None:
    """Count what was handed out, and what of it again, by what had become of the first."""
    fates: dict[str, str] = {}
    before: dict[TopicPartition, list[Handed]] = defaultdict(list)
    highest: dict[TopicPartition, int] = {}
    late: dict[TopicPartition, int] = {}
    for entry in entries:
        if isinstance(entry, Crashed):
            fates[entry.who] = "a crash"
        elif isinstance(entry, CutOff):
            fates.setdefault(entry.who, "a cut")
        elif isinstance(entry, Revoked) and entry.how == "lost":
            fates.setdefault(entry.who, "a loss")
        elif isinstance(entry, Stopped) and entry.left:
            fates.setdefault(entry.who, "a stop that told of it")
        elif isinstance(entry, Committed):
            told.late += entry.is_late
            late.pop(entry.tp, None)
            if entry.is_late:
                late[entry.tp] = entry.offset
        elif isinstance(entry, Handed):
            told.handed += entry.next - entry.first
            high = highest.get(entry.tp, 0)
            for offset in range(entry.first, min(entry.next, high)):
                fate = _fate(fates, before[entry.tp], offset)
                if fate == UNEXPLAINED and late.get(entry.tp, offset + 1) <= offset:
                    fate = "a late commit"
                told.repeated += 1
                told.repeated_after[fate] += 1
                if fate == UNEXPLAINED and offset == entry.first:
                    told.unexplained.append(entry.text())
            highest[entry.tp] = max(high, entry.next)
            before[entry.tp].append(entry)


def _fate(fates: Mapping[str, str], before: Sequence[Handed], offset: int) -> str:
    for handed in reversed(before):
        if handed.first <= offset < handed.next:
            return fates.get(handed.who, UNEXPLAINED)
    return "nobody"


def stable_after(
    ledger: Ledger,
    since: float,
    tps: Sequence[TopicPartition],
    owned: Sequence[frozenset[TopicPartition]],
) -> float | None:
    """Return how long after a time nothing changed any more and records of all partitions came.

    None: not each has one owner, or something of it is silent.
    """
    if sorted(tp for each in owned for tp in each) != sorted(tps):
        return None
    entries = ledger.in_order()
    entries = entries[bisect.bisect_left(entries, since, key=lambda each: each.at) :]
    first: dict[TopicPartition, float] = {}
    changed_at = since
    for entry in entries:
        if isinstance(entry, Assigned | Revoked):
            changed_at = max(changed_at, entry.at)
        elif isinstance(entry, Handed):
            first.setdefault(entry.tp, entry.at)
    if first.keys() != set(tps):
        return None
    return max(changed_at, *first.values()) - since
