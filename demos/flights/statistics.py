"""Delay statistics per carrier, and how two sets of them are compared.

All sums are integers, so that two ways of computing them agree exactly or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields


@dataclass(slots=True)
class CarrierTally:
    """Exact counts and sums over one carrier's flights."""

    flights: int = 0
    departed: int = 0
    departure_delay_min: int = 0
    arrived: int = 0
    arrival_delay_min: int = 0
    cancelled: int = 0

    def count(
        self, departure_time: int | None, departure_delay: int | None, arrival_delay: int | None
    ) -> None:
        """Add one flight; one that has no departure time was cancelled."""
        self.flights += 1
        if departure_time is None:
            self.cancelled += 1
        if departure_delay is not None:
            self.departed += 1
            self.departure_delay_min += departure_delay
        if arrival_delay is not None:
            self.arrived += 1
            self.arrival_delay_min += arrival_delay

    def add(self, other: CarrierTally) -> None:
        """Add another tally of the same carrier."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def mean_departure_delay_min(self) -> float | None:
        return self.departure_delay_min / self.departed if self.departed else None

    @property
    def mean_arrival_delay_min(self) -> float | None:
        return self.arrival_delay_min / self.arrived if self.arrived else None

    @property
    def share_cancelled(self) -> float:
        return self.cancelled / self.flights if self.flights else 0.0


def total(tallies: Iterable[Mapping[str, CarrierTally]]) -> dict[str, CarrierTally]:
    """Add up tallies of several partitions; carriers come in alphabetical order."""
    sums: dict[str, CarrierTally] = {}
    for tally in tallies:
        for carrier, carrier_tally in tally.items():
            sums.setdefault(carrier, CarrierTally()).add(carrier_tally)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class Difference:
    """One carrier whose figures disagree; None stands for a carrier that is not there at all."""

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
    """Compare what was counted with what the data set says; an empty list means: all equal."""
    return [
        Difference(carrier, expected.get(carrier), counted.get(carrier))
        for carrier in sorted({*expected, *counted})
        if expected.get(carrier) != counted.get(carrier)
    ]
