"""The flights as a pipeline reads them, and the expected tables, from the data set alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow.dataset

from aiokafka_lite.cli.problems import CommandError
from demos.flights.dataset import Flight, read_flights
from demos.flights.statistics import Delays


class FlightsSettings(TypedDict):
    schema: str
    event_time: str
    keys: tuple[str, ...]
    measures: tuple[str, ...]
    watermark_ms: int


_DAY_MS: Final = 86_400_000


def _ddl() -> str:
    """Return the data set's columns as DDL. `time_hour` is a time in text form."""
    columns = []
    for name, annotation in Flight.__annotations__.items():
        kind = "INT" if "int" in str(annotation) else "STRING"
        columns.append(f"{name} {'TIMESTAMP' if name == 'time_hour' else kind}")
    return ", ".join(columns)


FLIGHTS: Final = FlightsSettings(
    schema=_ddl(),
    event_time="time_hour",
    keys=("carrier",),
    measures=("dep_delay", "arr_delay"),
    # The months are ordered 1, 10, 11, 12, 2 … 9: flights of February follow those of December.
    # A partition goes back by at most 8,010 hours.
    watermark_ms=365 * _DAY_MS,
)


class CarrierHour(NamedTuple):
    """A carrier, and an hour in UTC."""

    hour: datetime
    carrier: str


@dataclass(slots=True)
class FlightTables:
    """The tables of a pipeline, read without Spark, or the expected ones."""

    raw: int = 0
    distinct: int = 0
    """Different places in the topic that the raw table's rows come from."""
    quarantine: int = 0
    late: int = 0
    aggregate_rows: int = 0
    delays: dict[CarrierHour, Delays] = field(default_factory=dict)


def expected_tables(limit: int | None) -> FlightTables:
    expected = FlightTables()
    for flight in read_flights(limit):
        hour = datetime.strptime(flight.time_hour, "%Y-%m-%dT%H:%M:%SZ")
        place = CarrierHour(hour.replace(tzinfo=timezone.utc), flight.carrier)
        delays = expected.delays.get(place)
        if delays is None:
            delays = expected.delays[place] = Delays()
        delays.count_delays(flight.dep_delay, flight.arr_delay)
        expected.raw += 1
    expected.distinct = expected.raw
    expected.aggregate_rows = len(expected.delays)
    return expected


def read_tables(directory: Path, late: int) -> FlightTables:
    """Read the tables from their files, like any reader of Parquet. `late` is from the metrics."""
    tables = FlightTables(late=late)
    places = _read(directory / "raw", "kafka_partition", "kafka_offset")
    if places is not None:
        tables.raw = places.num_rows
        tables.distinct = places.group_by(places.column_names).aggregate([]).num_rows
    bad = _read(directory / "quarantine", "kafka_offset")
    tables.quarantine = 0 if bad is None else bad.num_rows
    aggregate = _read(
        directory / "aggregate",
        *("window_start", "carrier", "records", "dep_delay_count", "dep_delay_sum"),
        *("arr_delay_count", "arr_delay_sum"),
    )
    for row in [] if aggregate is None else aggregate.to_pylist():
        tables.aggregate_rows += 1
        hour = row["window_start"]
        if hour.tzinfo is None:
            hour = hour.replace(tzinfo=timezone.utc)
        tables.delays[CarrierHour(hour, row["carrier"])] = Delays(
            flights=row["records"],
            departed=row["dep_delay_count"],
            departure_delay_min=row["dep_delay_sum"] or 0,
            arrived=row["arr_delay_count"],
            arrival_delay_min=row["arr_delay_sum"] or 0,
        )
    return tables


def _read(directory: Path, *columns: str) -> pyarrow.Table | None:
    if not directory.is_dir():
        return None
    return pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table(
        columns=list(columns)
    )


def differences(expected: FlightTables, found: FlightTables) -> list[str]:
    """Return texts about wrong tables."""
    wrong = []
    for name, text in (
        ("raw", "rows of the raw table"),
        ("distinct", "distinct records in the raw table"),
        ("quarantine", "rows of the quarantine table"),
        ("late", "late rows"),
        ("aggregate_rows", "rows of the aggregate table"),
    ):
        wanted, got = getattr(expected, name), getattr(found, name)
        if wanted != got:
            wrong.append(f"{got:,} {text}, expected {wanted:,}")
    wrong += [
        f"{place.carrier} {place.hour:%Y-%m-%d %H:%M}: {found.delays.get(place)}, "
        f"expected {expected.delays.get(place)}"
        for place in sorted({*expected.delays, *found.delays})
        if expected.delays.get(place) != found.delays.get(place)
    ]
    return wrong


ZONE: Final = "America/New_York"


def local_hour(moment: datetime) -> int:
    """Return the hour of the day in New York."""
    return moment.astimezone(_zone()).hour


@lru_cache(maxsize=1)
def _zone() -> ZoneInfo:
    try:
        return ZoneInfo(ZONE)
    except ZoneInfoNotFoundError:
        raise CommandError(
            f"this system has no data of time zone {ZONE}: pip install tzdata"
        ) from None
