"""Delay statistics per carrier, and how two sets of them are compared.

All sums are integers, so that two computations agree exactly or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from aiokafka_lite._compat import Self
from aiokafka_lite.records.partitioner import partition_for_key
from demos.flights.dataset import read_flights


@dataclass(slots=True)
class Delays:
    """Exact counts and sums over some flights."""

    flights: int = 0
    departed: int = 0
    departure_delay_min: int = 0
    arrived: int = 0
    arrival_delay_min: int = 0

    def count_delays(self, departure_delay: int | None, arrival_delay: int | None) -> None:
        self.flights += 1
        if departure_delay is not None:
            self.departed += 1
            self.departure_delay_min += departure_delay
        if arrival_delay is not None:
            self.arrived += 1
            self.arrival_delay_min += arrival_delay

    def add(self, other: Self) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def mean_departure_delay_min(self) -> float | None:
        return self.departure_delay_min / self.departed if self.departed else None

    @property
    def mean_arrival_delay_min(self) -> float | None:
        return self.arrival_delay_min / self.arrived if self.arrived else None


@dataclass(slots=True)
class CarrierTally(Delays):
    cancelled: int = 0

    def count(
        self, departure_time: int | None, departure_delay: int | None, arrival_delay: int | None
    ) -> None:
        """Add one flight. One without a departure time was cancelled."""
        self.cancelled += departure_time is None
        self.count_delays(departure_delay, arrival_delay)

    @property
    def share_cancelled(self) -> float:
        return self.cancelled / self.flights if self.flights else 0.0


def total(tallies: Iterable[Mapping[str, CarrierTally]]) -> dict[str, CarrierTally]:
    """Add up tallies of several partitions. Carriers are in alphabetical order."""
    sums: dict[str, CarrierTally] = {}
    for tally in tallies:
        for carrier, carrier_tally in tally.items():
            sums.setdefault(carrier, CarrierTally()).add(carrier_tally)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class Difference:
    """A carrier with different figures. None is a missing carrier."""

    carrier: str
    expected: CarrierTally | None
    counted: CarrierTally | None

    def __str__(self) -> str:
        if self.counted is None:
            return f"{self.carrier}: missing, expected {self.expected}"
        if self.expected is None:
            return (
                f"{self.carrier}: the data set has no flights of this carrier, but the consumers "
                f"counted {self.counted}"
            )
        parts = [
            f"{each.name} {getattr(self.counted, each.name)}, "
            f"expected {getattr(self.expected, each.name)}"
            for each in fields(self.expected)
            if getattr(self.counted, each.name) != getattr(self.expected, each.name)
        ]
        return f"{self.carrier}: " + "; ".join(parts)


def differences(
    expected: Mapping[str, CarrierTally], counted: Mapping[str, CarrierTally]
) -> list[Difference]:
    return [
        Difference(carrier, expected.get(carrier), counted.get(carrier))
        for carrier in sorted({*expected, *counted})
        if expected.get(carrier) != counted.get(carrier)
    ]


_PROGRESS_EVERY = 4096


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected figures of a run."""

    flights: int
    carriers: dict[str, CarrierTally]
    partition_counts: tuple[int, ...]
    """Number of records that each partition of the topic must hold."""


async def compute_expectation(
    partition_count: int,
    limit: int | None = None,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Expectation:
    """Count the data set without Kafka, yielding to the event loop and Ctrl-C."""
    carriers: dict[str, CarrierTally] = {}
    flights = 0
    for flights, flight in enumerate(read_flights(limit), 1):
        tally = carriers.get(flight.carrier)
        if tally is None:
            tally = carriers[flight.carrier] = CarrierTally()
        tally.count(flight.dep_time, flight.dep_delay, flight.arr_delay)
        if flights % _PROGRESS_EVERY == 0:
            if on_progress is not None:
                on_progress(flights)
            await asyncio.sleep(0)
    partition_counts = [0] * partition_count
    for carrier, tally in carriers.items():
        partition_counts[partition_for_key(carrier.encode(), partition_count)] += tally.flights
    return Expectation(flights, dict(sorted(carriers.items())), tuple(partition_counts))
