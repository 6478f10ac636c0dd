"""What a reader's journal shows, held against the writer's: lost, again, out of order, silent."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tests.support.failover.journal import Journal

NS: Final = 10**9


class Window(NamedTuple):
    """A fault and the time in which its effects are looked for, in nanoseconds."""

    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What one fault did to one process; seconds.

    Attributes:
        silence_s: The longest time in which no record came at all.
        partition_silence_s: The longest time without a record of one partition.
        late_s: The longest time between the moment a record could be had and its arrival: what of
            the silence is the reader's own. It could be had when it was acknowledged, or some
            reader had it; but nothing that was not fetched before the partition fell silent could
            be had until that was over. 0 for the writer.
        age_p99_s: Between sending and arrival, of the records sent or received in the window.
    """

    silence_s: float
    partition_silence_s: float
    late_s: float
    age_p99_s: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What a reader got, all in all.

    Attributes:
        records: How many it got.
        lost: How many that are in the log, or were acknowledged, it never got.
        repeated: How many it got again in the same assignment: the same offset twice.
        disordered: How many came behind a later one of their partition, in the same assignment.
        unknown: How many it got that are not in the log, at that offset.
        rebalances: How often partitions were given or taken after the first time.
        failures: Errors that the application was given.
        effects: By the faults' names, in their order.
    """

    records: int
    lost: int
    repeated: int
    disordered: int
    unknown: int
    rebalances: int
    failures: tuple[str, ...]
    effects: Mapping[str, Effect] = field(default_factory=dict)

    @property
    def is_faithful(self) -> bool:
        """Whether each record came, once, in order, and no partition ever changed hands."""
        return not (
            self.lost or self.repeated or self.disordered or self.unknown or self.rebalances
        )

    def median_silence_s(self, names: Iterable[str]) -> float:
        """Return the median, over these faults, of the longest silence of a partition."""
        return statistics.median(self.effects[name].partition_silence_s for name in names)


Place: TypeAlias = tuple[int, int]
"""A record's partition, and its number in there."""


def judge_all(
    writer: Journal,
    readers: Mapping[str, Journal],
    windows: Sequence[Window],
    log: Mapping[Place, int] | None = None,
) -> dict[str, Findings]:
    """Compare what each reader got with what is in the log, and how late with the others."""
    available: dict[Place, int] = {
        (each.partition, each.sequence): each.acked_ns for each in writer.written
    }
    for reader in readers.values():
        for record in reader.received:
            place = (record.partition, record.sequence)
            available[place] = min(available.get(place, record.at_ns), record.at_ns)
    return {
        name: judge(writer, reader, windows, available, log) for name, reader in readers.items()
    }


def judge(
    writer: Journal,
    reader: Journal,
    windows: Sequence[Window],
    available: Mapping[Place, int] = MappingProxyType({}),
    log: Mapping[Place, int] | None = None,
) -> Findings:
    """Compare what a reader got with what was written.

    Args:
        writer: Its journal.
        reader: The journal of whom is judged.
        windows: The faults.
        available: When each record could be had; one that is missing came at once.
        log: By partition and offset the number of the record there; as acknowledged, by default.
    """
    acknowledged = {(each.partition, each.sequence) for each in writer.written}
    if log is None:
        log = {(each.partition, each.offset): each.sequence for each in writer.written}
    changes = sorted(each.at_ns for each in reader.rebalances if each.is_assigned)
    seen: set[Place] = set()
    got_offsets: set[Place] = set()
    got: set[Place] = set()
    last: dict[int, int] = {}
    assignment = 0
    repeated = disordered = unknown = 0
    for record in reader.received:
        now_in = bisect.bisect_right(changes, record.at_ns)
        if now_in != assignment:
            assignment = now_in
            seen.clear()
            last.clear()
        place = (record.partition, record.offset)
        unknown += log.get(place) != record.sequence
        if place in seen:
            repeated += 1
        elif record.offset < last.get(record.partition, -1):
            disordered += 1
        seen.add(place)
        got_offsets.add(place)
        got.add((record.partition, record.sequence))
        last[record.partition] = max(record.offset, last.get(record.partition, -1))
    return Findings(
        records=len(reader.received),
        lost=max(len(log.keys() - got_offsets), len(acknowledged - got)),
        repeated=repeated,
        disordered=disordered,
        unknown=unknown,
        rebalances=max(0, len(reader.rebalances) - _first_changes(reader)),
        failures=tuple(failure.reason for failure in reader.failures),
        effects={window.name: _effect_on_reader(available, reader, window) for window in windows},
    )


def _first_changes(reader: Journal) -> int:
    """Count the changes up to the first assignment: taking nothing away, and giving."""
    for number, change in enumerate(reader.rebalances, start=1):
        if change.is_assigned:
            return number
    return 0


def _effect_on_reader(available: Mapping[Place, int], reader: Journal, window: Window) -> Effect:
    _, begin_ns, end_ns = window
    by_partition: dict[int, list[int]] = {}
    ages_ns: list[int] = []
    late_ns = 0
    times: dict[int, list[int]] = {}
    for (partition, _), since_ns in available.items():
        times.setdefault(partition, []).append(since_ns)
    gaps = {each: longest_gap(sorted(found), window) for each, found in times.items()}
    for record in reader.received:
        by_partition.setdefault(record.partition, []).append(record.at_ns)
        if begin_ns <= record.at_ns <= end_ns:
            ages_ns.append(record.at_ns - record.sent_ns)
            since_ns = available.get((record.partition, record.sequence), record.at_ns)
            fell_silent_ns, reopened_ns = gaps.get(record.partition, (0, 0))
            if fell_silent_ns < record.at_ns:
                since_ns = max(since_ns, reopened_ns)
            late_ns = max(late_ns, record.at_ns - since_ns)
    return _effect(by_partition, ages_ns, late_ns, window)


def effect_on_writer(writer: Journal, window: Window) -> Effect:
    """Return what a fault did to the writer: how long nothing was acknowledged."""
    by_partition: dict[int, list[int]] = {}
    ages_ns: list[int] = []
    for record in writer.written:
        by_partition.setdefault(record.partition, []).append(record.acked_ns)
        if window.begin_ns <= record.acked_ns <= window.end_ns:
            ages_ns.append(record.acked_ns - record.sent_ns)
    return _effect(by_partition, ages_ns, 0, window)


def _effect(
    by_partition: Mapping[int, Sequence[int]], ages_ns: list[int], late_ns: int, window: Window
) -> Effect:
    everything = sorted(at_ns for times in by_partition.values() for at_ns in times)
    ages_ns.sort()
    return Effect(
        silence_s=longest_gap_ns(everything, window) / NS,
        partition_silence_s=max(
            (longest_gap_ns(sorted(times), window) for times in by_partition.values()), default=0
        )
        / NS,
        late_s=late_ns / NS,
        age_p99_s=ages_ns[len(ages_ns) * 99 // 100] / NS if ages_ns else 0.0,
    )


def longest_gap_ns(times_ns: Sequence[int], window: Window) -> int:
    """Return how long the longest gap is."""
    begin_ns, end_ns = longest_gap(times_ns, window)
    return end_ns - begin_ns


def longest_gap(times_ns: Sequence[int], window: Window) -> tuple[int, int]:
    """Return the neighbours that lie farthest apart, of those with a part of it in the window.

    From the window's begin, or to its end, where nothing came before or after.
    """
    first = bisect.bisect_left(times_ns, window.begin_ns)
    behind = bisect.bisect_right(times_ns, window.end_ns)
    inside = list(times_ns[first:behind])
    before = times_ns[first - 1] if first else window.begin_ns
    after = times_ns[behind] if behind < len(times_ns) else window.end_ns
    stops = [before, *inside, after]
    return max(itertools.pairwise(stops), key=lambda gap: gap[1] - gap[0])
