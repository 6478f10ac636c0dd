"""From where a query begins or ends, as its options say it, to an offset of each partition.

Without asking anybody: a position says what is to be asked, and makes offsets of the answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from aiokafka_lite.client.offset_lookups import NO_OFFSET, OffsetQuery
from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.options import TimestampStrategy
from aiokafka_lite.spark.options.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    Position,
)
from aiokafka_lite.spark.planning.data_loss import DataLossPolicy, named
from aiokafka_lite.structs import TopicPartition


class Bounds(NamedTuple):
    """The offsets of partitions: the earliest, and the latest, which is exclusive."""

    earliest: Offsets
    latest: Offsets


class _Edge:
    """One end of what a query reads."""

    name: str

    def __init__(self, position: Position) -> None:
        self._position = position

    @property
    def option(self) -> str:
        """The option that said it, for messages."""
        match self._position:
            case AtTimestamp():
                return f"{self.name}Timestamp"
            case AtTimestamps():
                return f"{self.name}OffsetsByTimestamp"
        return f"{self.name}Offsets"

    def mismatch(self, tps: Collection[TopicPartition]) -> OptionError | None:
        """Return what is wrong with an option that does not name these partitions exactly."""
        hint = ""
        match self._position:
            case AtOffsets(offsets):
                given = offsets.keys()
                hint = " (-1 is the latest offset, -2 the earliest)"
            case AtTimestamps(timestamps_ms):
                given = timestamps_ms.keys()
            case _:
                return None
        problems = []
        if absent := set(tps) - given:
            problems.append(f"leaves out {named(absent)}")
        if unknown := given - set(tps):
            problems.append(f"names {named(unknown)}, which do not exist or are not subscribed")
        if not problems:
            return None
        return OptionError(
            f"option {self.option} {' and '.join(problems)}: the option must name each subscribed "
            f"partition{hint}"
        )

    def query(self, tps: Collection[TopicPartition]) -> OffsetQuery:
        """Return the times that offsets are to be looked up by, besides both ends of the log."""
        match self._position:
            case AtTimestamp(timestamp_ms):
                return dict.fromkeys(tps, timestamp_ms)
            case AtTimestamps(timestamps_ms):
                return {tp: timestamps_ms[tp] for tp in tps if tp in timestamps_ms}
        return {}

    def resolve(self, bounds: Bounds, times: Offsets) -> Offsets:
        """Return an offset for each partition that there is and the option names.

        Args:
            bounds: What each partition has.
            times: The answers to `query`.

        Raises:
            OptionError: See `_unmatched`.
        """
        match self._position:
            case Earliest():
                return dict(bounds.earliest)
            case Latest():
                return dict(bounds.latest)
            case AtOffsets(offsets):
                special = {EARLIEST: bounds.earliest, LATEST: bounds.latest}
                return {
                    tp: special[offset][tp] if offset in special else offset
                    for tp, offset in offsets.items()
                    if tp in bounds.latest
                }
        return {
            tp: self._unmatched(tp, bounds) if offset == NO_OFFSET else offset
            for tp, offset in times.items()
        }

    def _unmatched(self, tp: TopicPartition, bounds: Bounds) -> int:
        """Return the offset of a partition that has no record as late as the timestamp."""
        return bounds.latest[tp]

    def within(self, offsets: Offsets, bounds: Bounds, data_loss: DataLossPolicy) -> Offsets:
        """Return offsets that the log has, or the nearest ones where `data_loss` goes on without.

        Raises:
            DataLossError: The option names an offset the log does not have, and that is fatal.
        """
        if not isinstance(self._position, AtOffsets):
            return offsets
        nearest = dict(offsets)
        for tp, offset in offsets.items():
            first, last = bounds.earliest[tp], bounds.latest[tp]
            if not first <= offset <= last:
                data_loss.report(
                    f"option {self.option} is set to offset {offset} for topic {tp.topic}, "
                    f"partition {tp.partition}, but the log begins at offset {first} and ends at "
                    f"{last}",
                    tp,
                    min(offset, last),
                )
                nearest[tp] = min(max(offset, first), last)
        return nearest


class StartingOffsets(_Edge):
    """Resolves where a query begins."""

    name = "starting"

    def __init__(self, position: Position, strategy: TimestampStrategy) -> None:
        super().__init__(position)
        self._strategy = strategy

    def _unmatched(self, tp: TopicPartition, bounds: Bounds) -> int:
        if self._strategy == "error":
            position = self._position
            at_ms = (
                position.timestamps_ms[tp]
                if isinstance(position, AtTimestamps)
                else position.timestamp_ms
                if isinstance(position, AtTimestamp)
                else None
            )
            raise OptionError(
                f"option {self.option}: topic {tp.topic}, partition {tp.partition} has no record "
                f"at or after {at_ms} (ms since the epoch). To begin with the next new record, set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return bounds.latest[tp]

    def check_order(self, begins: Offsets, ends: Offsets, end: EndingOffsets) -> None:
        """Refuse a batch that would end before it begins.

        Raises:
            OptionError: In one partition it would.
        """
        for tp, begin in begins.items():
            if ends[tp] < begin:
                raise OptionError(
                    f"for topic {tp.topic}, partition {tp.partition}, the start offset {begin} "
                    f"(option {self.option}) is after the end offset {ends[tp]} (option "
                    f"{end.option}). Change option {self.option} or option {end.option}"
                )


class EndingOffsets(_Edge):
    """Resolves where a batch query ends."""

    name = "ending"
