"""The count of a group of workers, exact across rebalances.

A new owner of a partition starts at the committed offset, which may be below records that the old
one has counted. So counts are kept per partition, with the next offset. A record below that offset
is ignored. One above it is an error, because records were lost.

The workers run on one loop and `count` awaits nothing, so their calls do not interleave.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.structs import ConsumerRecord
from demos.flights.problems import ForeignTopicError, LostRecordError
from demos.flights.statistics import CarrierTally, total

_decode: Final = json.JSONDecoder().decode  # json.loads would guess each value's encoding first


class LogRange(NamedTuple):
    beginning: int
    end: int

    @property
    def record_count(self) -> int:
        return self.end - self.beginning


@dataclass(slots=True)
class PartitionTally:
    """Every record of one partition below `next_offset` was counted, each one once."""

    next_offset: int
    end_offset: int
    carriers: dict[str, CarrierTally] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of the counting, from the first record to the last."""

    records: int
    wall_s: float
    cpu_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def cpu_ns_per_record(self) -> float:
        return self.cpu_s * 1e9 / self.records if self.records else 0.0


class Scoreboard:
    """Counts records of one topic until each partition has reached its end offset."""

    def __init__(
        self,
        ranges: Mapping[int, LogRange],
        *,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.goal: Final = sum(each.record_count for each in ranges.values())
        self.finished: Final = asyncio.Event()
        self.counted = 0
        self.redelivered = 0
        self._partitions = {
            number: PartitionTally(each.beginning, each.end) for number, each in ranges.items()
        }
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._started: tuple[float, float] | None = None
        self._ended: tuple[float, float] | None = None
        self._finish_if_complete()

    def count(self, record: ConsumerRecord) -> bool:
        """Count a record. Returns False if it was counted before.

        Raises:
            LostRecordError: Records before this one were not received.
            ForeignTopicError: It is not a flight.
        """
        tally = self._partitions.get(record.partition)
        offset = record.offset
        if tally is None or offset >= tally.end_offset:
            return False  # written after the goal was set
        if offset != tally.next_offset:
            if offset > tally.next_offset:
                raise LostRecordError(
                    f"records of partition {record.partition} were lost: the consumer read offset "
                    f"{offset}, but expected offset {tally.next_offset}"
                )
            self.redelivered += 1
            return False
        if self._started is None:
            self._started = self._clock(), self._cpu_clock()
        try:
            flight = _decode(str(record.value or b"", "utf-8"))
            carrier_tally = tally.carriers.get(flight["carrier"])
            if carrier_tally is None:
                carrier_tally = tally.carriers[flight["carrier"]] = CarrierTally()
            carrier_tally.count(flight["dep_time"], flight["dep_delay"], flight["arr_delay"])
        except (ValueError, LookupError, TypeError):
            raise ForeignTopicError(
                record.topic,
                f"the record at offset {record.offset} of partition {record.partition} is not a "
                "flight",
            ) from None
        tally.next_offset = offset + 1
        self.counted += 1
        if tally.next_offset == tally.end_offset:
            self._finish_if_complete()
        return True

    def carriers(self) -> dict[str, CarrierTally]:
        return total(tally.carriers for tally in self._partitions.values())

    def missing(self) -> dict[int, int]:
        """Return the number of missing records of each incomplete partition."""
        return {
            number: tally.end_offset - tally.next_offset
            for number, tally in self._partitions.items()
            if tally.next_offset < tally.end_offset
        }

    def pace(self) -> Pace:
        now = self._clock(), self._cpu_clock()
        (wall_start, cpu_start), (wall_end, cpu_end) = self._started or now, self._ended or now
        return Pace(self.counted, wall_end - wall_start, cpu_end - cpu_start)

    def _finish_if_complete(self) -> None:
        if not self.missing():
            self._ended = self._clock(), self._cpu_clock()
            self.finished.set()
