"""What must hold of a share group's deliveries, and what explains those that were repeated."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.chaos.sharing.journal import Did, Row

# An acknowledgement may take as long: a member that is killed sooner takes it along.
ACK_S: Final = 5.0
NEVER: Final = float("inf")
SHOWN: Final = 20
UNEXPLAINED: Final = "unexplained"
KILLED: Final = "held by a killed member"
REPORTED: Final = "reported as lost"
RELEASED: Final = "released by a stop"
BY_BROKER: Final = (REPORTED,)


class Delivery(NamedTuple):
    """A record with one handler."""

    who: str
    delivery_count: int
    began_s: float
    ended_s: float = NEVER
    end: Did = Did.BEGUN
    is_lost: bool = False


@dataclass
class Verdict:
    """What was found.

    Attributes:
        problems: What must not be, such as lost records.
        repeated: By cause, how many deliveries were repeated.
        deliveries: How many there were.
    """

    problems: list[str] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0

    def add(self, other: Verdict) -> None:
        """Add what was found in another partition."""
        self.problems += other.problems
        self.repeated += other.repeated
        self.deliveries += other.deliveries

    def text(self) -> str:
        causes = ", ".join(f"{name} {count}" for name, count in sorted(self.repeated.items()))
        lines = [f"deliveries {self.deliveries}, repeated: {causes or 'none'}"]
        return "\n".join([*lines, f"problems {len(self.problems)}", *self.problems[:SHOWN]])


def deliveries_of(rows: Iterable[Row]) -> dict[tuple[int, int], list[Delivery]]:
    """Return the deliveries of each record, in the order of their beginnings.

    A member has a record once at a time, so the rows of a member follow each other.
    """
    found: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
    latest: dict[tuple[str, int, int], int] = {}
    for row in sorted(rows, key=lambda row: row.at_s):
        place = row.partition, row.offset
        deliveries = found[place]
        of_member = (row.who, *place)
        if row.did is Did.BEGUN:
            latest[of_member] = len(deliveries)
            deliveries.append(Delivery(row.who, row.delivery_count, row.at_s))
            continue
        number = latest.get(of_member)
        if number is None:
            continue  # lost before its handler had begun
        if row.did is Did.LOST:
            deliveries[number] = deliveries[number]._replace(is_lost=True)
        if deliveries[number].end is Did.BEGUN:
            deliveries[number] = deliveries[number]._replace(ended_s=row.at_s, end=row.did)
    return found


def judge(sent: Mapping[int, int], rows: Iterable[Row], killed_at: Mapping[str, float]) -> Verdict:
    """Judge a storm.

    Args:
        sent: By partition, how many records the cluster has acknowledged.
        rows: Of all members.
        killed_at: By name, when members were killed.
    """
    verdict = Verdict()
    found = deliveries_of(rows)
    verdict.deliveries = sum(map(len, found.values()))
    for partition, count in sent.items():
        for offset in range(count):
            verdict.problems += _lost(partition, offset, found.get((partition, offset), ()))
    for (partition, offset), deliveries in found.items():
        for before, after in itertools.pairwise(deliveries):
            place = f"{partition}@{offset}"
            cause = _cause(before, after, killed_at.get(before.who, NEVER))
            verdict.repeated[cause] += 1
            if cause == UNEXPLAINED:
                verdict.problems.append(f"{place}: {after} though {before}")
            # A restarted leader knows no deliveries that it had not written.
            if after.delivery_count <= before.delivery_count and cause not in BY_BROKER:
                verdict.problems.append(f"{place}: the delivery count does not grow: {after}")
    return verdict


def _lost(partition: int, offset: int, deliveries: Sequence[Delivery]) -> Iterator[str]:
    if not deliveries:
        yield f"{partition}@{offset}: never delivered"
    elif not any(each.end is Did.FINISHED for each in deliveries):
        yield f"{partition}@{offset}: archived, and no handler has finished it: {deliveries}"


def _cause(before: Delivery, after: Delivery, killed_s: float) -> str:
    """Return why a record was delivered again."""
    if before.is_lost:
        return REPORTED
    if before.end is Did.CANCELLED:
        return RELEASED
    if killed_s <= after.began_s and before.began_s <= killed_s < before.ended_s + ACK_S:
        return KILLED
    return UNEXPLAINED
