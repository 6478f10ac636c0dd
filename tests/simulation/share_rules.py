"""What must hold of a share group, next to the rules about records, requests and stops."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.simulation.history import Kind, Violation
from aiokafka_lite.simulation.rules import place_of
from aiokafka_lite.structs import TopicPartition
from tests.simulation.handling import number_of

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.rules import Rule, Run

# An acknowledgement that is in flight when its member is killed may take as long.
ACK_S: Final = 6.0
# A member that is cut off learns of it by the end of a request, or of a lock.
NOTICED_S: Final = 20.0
NEVER: Final = float("inf")
BAD_EACH: Final = 17
# It has no group.
READER: Final = "r0"
# After these, locks are forgotten and the delivery count is the stored one.
OF_LEADERS: Final = frozenset({"leader moves", "crash", "power cut", "shutdown"})


def style_of(plan: Plan) -> str:
    """Return how members get records, and acknowledge them."""
    return ("run", "implicit", "explicit")[plan.seed % 3]


def is_rejected(plan: Plan, value: bytes) -> bool:
    """Whether handlers of `run` reject a record."""
    return style_of(plan) == "run" and number_of(value) % BAD_EACH == BAD_EACH - 1


class Delivery(NamedTuple):
    """A record at a handler, or returned by a read."""

    who: str
    delivery_count: int
    began_s: float
    ended_s: float = NEVER
    end: str = ""
    is_lost: bool = False


def deliveries_of(run: Run) -> dict[tuple[TopicPartition, int], list[Delivery]]:
    """Return the deliveries of each record. Attempts of a handler with one lock are one of them."""
    found: dict[tuple[TopicPartition, int], list[Delivery]] = defaultdict(list)
    kinds = (Kind.RETURNED, Kind.HANDLED, Kind.CANCELLED, Kind.LOST)
    for event in run.history.of(*kinds):
        if event.tp is None or event.who == READER:
            continue
        mine = found[event.tp, event.offset]
        number = next((n for n in reversed(range(len(mine))) if mine[n].who == event.who), None)
        if event.kind is Kind.RETURNED:
            count = int(event.note)
            if (
                number is None
                or mine[number].delivery_count != count
                or mine[number].end != "failed"
            ):
                mine.append(Delivery(event.who, count, event.at_s))
        elif number is not None and event.kind is Kind.LOST:
            mine[number] = mine[number]._replace(is_lost=True)
        elif number is not None:
            end = event.note or "handled"
            mine[number] = mine[number]._replace(ended_s=event.at_s, end=end)
    return {place: mine for place, mine in found.items() if mine}


def repeated_deliveries_are_explained(run: Run) -> Iterator[Violation]:
    """A record is delivered again after a lost lock that was reported, a kill, a stop or a nack."""
    killed_at = {event.who: event.at_s for event in run.history.of(Kind.KILLED)}
    for (tp, offset), deliveries in run.deliveries.items():
        for before, after in itertools.pairwise(deliveries):
            if not _is_explained(before, after, killed_at.get(before.who, NEVER)):
                text = f"{place_of(tp, offset)}: {after}, after {before}"
                yield Violation("delivered again", text, after.began_s)


def _is_explained(before: Delivery, after: Delivery, killed_s: float) -> bool:
    if before.is_lost or before.end in ("lost", "stop", "nack"):
        return True
    if before.end == "failed" and before.who == after.who:
        return before.delivery_count < after.delivery_count and before.is_lost
    if killed_s <= after.began_s:
        return before.began_s <= killed_s < before.ended_s + ACK_S
    return killed_s < after.began_s + NOTICED_S


def delivery_counts_grow_by_lost_locks(run: Run) -> Iterator[Violation]:
    """A repeated delivery has a higher count, and one without any cause has the count 1."""
    moves = any(fault.name in OF_LEADERS for fault in run.plan.faults)
    for (tp, offset), deliveries in run.deliveries.items():
        if deliveries[0].delivery_count != 1 and not run.plan.faults:
            text = f"{place_of(tp, offset)}: {deliveries[0]}, without a fault"
            yield Violation("delivery count", text, deliveries[0].began_s)
        for before, after in itertools.pairwise(deliveries):
            if after.delivery_count < before.delivery_count or (
                after.delivery_count == before.delivery_count and not moves
            ):
                text = f"{place_of(tp, offset)}: {after}, after {before}"
                yield Violation("delivery count", text, after.began_s)


def healthy_members_lose_no_lock(run: Run) -> Iterator[Violation]:
    """Without a fault no lock is lost, also if a handler takes longer than a lock."""
    if run.plan.faults:
        return
    for event in run.history.of(Kind.LOST):
        text = f"{event.who} loses {place_of(event.tp, event.offset)}: {event.note}"
        yield Violation("lock lost", text, event.at_s)


SHARE_RULES: Final[Sequence[Rule]] = (
    repeated_deliveries_are_explained,
    delivery_counts_grow_by_lost_locks,
    healthy_members_lose_no_lock,
)
