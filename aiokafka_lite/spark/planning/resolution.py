"""Resolves the options of a query in the metadata of a cluster, without I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from aiokafka_lite.client.offset_lookups import NO_OFFSET, OffsetQuery
from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.errors import DataLossPolicy, named
from aiokafka_lite.spark.options import Position
from aiokafka_lite.structs import TopicPartition


class Bounds(NamedTuple):
    """The offsets of partitions: the earliest, and the latest, which is exclusive."""

    earliest: Offsets
    latest: Offsets


class Edge:
    """The start or the end of a query.

    With `is_strict`, a partition without a record as late as the timestamp is an error. Otherwise
    its offset is the latest one.
    """

    def __init__(
        self, name: Literal["starting", "ending"], position: Position, *, is_strict: bool = False
    ) -> None:
        self._name = name
        self._position = position
        self._is_strict = is_strict

    @property
    def option(self) -> str:
        if not self._position.is_time:
            return f"{self._name}Offsets"
        is_one = isinstance(self._position.at, int)
        return f"{self._name}{'Timestamp' if is_one else 'OffsetsByTimestamp'}"

    def mismatch(self, tps: Collection[TopicPartition]) -> OptionError | None:
        """Return the error of an option that does not name these partitions exactly."""
        if isinstance(self._position.at, int):
            return None
        given = self._position.at.keys()
        hint = "" if self._position.is_time else " (-1 is the latest offset, -2 the earliest)"
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
        """Return the timestamps to look up, in addition to both ends of the log."""
        return self._position.by_partition(tps) if self._position.is_time else {}

    def resolve(self, bounds: Bounds, times: Offsets) -> Offsets:
        """Return an offset for each partition that exists. `times` are the results of `query`."""
        if self._position.is_time:
            return {
                tp: self._unmatched(tp, bounds) if offset == NO_OFFSET else offset
                for tp, offset in times.items()
            }
        special = {EARLIEST: bounds.earliest, LATEST: bounds.latest}
        return {
            tp: special[offset][tp] if offset in special else offset
            for tp, offset in self._position.by_partition(bounds.latest).items()
        }

    def _unmatched(self, tp: TopicPartition, bounds: Bounds) -> int:
        if not self._is_strict:
            return bounds.latest[tp]
        raise OptionError(
            f"option {self.option}: topic {tp.topic}, partition {tp.partition} has no record "
            f"at or after {self.query([tp])[tp]} (ms since the epoch). To begin with the next new "
            "record, set startingOffsetsByTimestampStrategy to latest"
        )

    def within(self, offsets: Offsets, bounds: Bounds, data_loss: DataLossPolicy) -> Offsets:
        """Return offsets that the log has: the nearest ones, if `data_loss` does not raise."""
        if self._position.is_time:
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

    def check_order(self, begins: Offsets, ends: Offsets, end: Edge) -> None:
        for tp, begin in begins.items():
            if ends[tp] < begin:
                raise OptionError(
                    f"for topic {tp.topic}, partition {tp.partition}, the start offset {begin} "
                    f"(option {self.option}) is after the end offset {ends[tp]} (option "
                    f"{end.option}). Change option {self.option} or option {end.option}"
                )
