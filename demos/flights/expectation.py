"""What the topic must hold and what the job must find, computed from the data set alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiokafka_lite.records.partitioner import partition_for_key
from demos.flights.dataset import read_flights
from demos.flights.statistics import CarrierTally

_PROGRESS_EVERY = 4096


@dataclass(frozen=True, slots=True)
class Expectation:
    """The figures that a run is checked against."""

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
    """Read the data set once and count it, without Kafka and without JSON on the way.

    The loop has its turn at each progress, so that Ctrl-C is heeded.

    Args:
        partition_count: Number of partitions that the topic is to have.
        limit: Number of flights to stop after; None takes all.
        on_progress: Called now and then with the number of flights read so far.
    """
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
