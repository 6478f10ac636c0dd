from __future__ import annotations

import importlib.util
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from aiokafka_lite.spark import java
from demos.flights.statistics import Delays
from demos.main import main
from demos.pipeline.flights import (
    FLIGHTS,
    CarrierHour,
    FlightTables,
    differences,
    expected_tables,
)
from demos.pipeline.problems import innermost_reason
from demos.pipeline.report import show_delays, show_differences

HOUR = CarrierHour(datetime(2013, 1, 1, 10, tzinfo=timezone.utc), "UA")


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "--bootstrap", "localhost:1", "--topic", "t"]) == 2
    assert "--out is required unless --flights is given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("--limit", "5", "--flights"),
        ("--partitions", "5", "--flights"),
        ("--trigger", "5s", "--continuous"),
    ],
)
def test_an_option_that_has_no_effect_is_refused(
    option: str, value: str, needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", "localhost:1", "--topic", "t", "--out", "o"]
    assert main(["pipeline", *where, option, value]) == 2
    assert f"error: {option} needs {needed}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--window", "soon"], "'soon' is not a duration"),
        (["--window", "0s"], "'0s' is not a duration above 0"),
        (["--conf", "spark.x"], "'spark.x' has no value: write NAME=VALUE"),
        (["--conf", "=secret"], ": the name is missing: write NAME=VALUE"),
        (["--key", "a,,b"], "contains an empty name"),
        (["--once", "--continuous"], "not allowed with argument"),
    ],
)
def test_arguments_that_will_not_do_are_explained(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["pipeline", *arguments])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


def test_flights_have_their_own_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "--flights", "--key", "origin"]) == 2
    assert "--flights sets its own keys, so leave out --key" in capsys.readouterr().err


def test_schema_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--bootstrap", "localhost:1", "--topic", "t", "--out", str(tmp_path / "out")]
    assert main(["pipeline", *arguments, "--schema", str(tmp_path / "none.ddl")]) == 1
    assert "cannot read the schema" in capsys.readouterr().err


def test_missing_pyspark_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name)
    )
    assert main(["pipeline", "--flights"]) == 1
    assert "pip install 'aiokafka-lite[spark]'" in capsys.readouterr().err


def test_missing_java_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "_usual_places", tuple)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert main(["pipeline", "--flights"]) == 1
    told = capsys.readouterr()
    assert "pip install 'aiokafka-lite[spark-java]'" in told.err
    assert not told.out


def test_schema_of_the_flights_is_that_of_the_data_set() -> None:
    columns = FLIGHTS["schema"].split(", ")
    assert len(columns) == 19
    assert {"dep_delay INT", "carrier STRING", "tailnum STRING", "time_hour TIMESTAMP"} <= {
        *columns
    }


def test_expectation_counts_each_flight_in_its_hour() -> None:
    expected = expected_tables(1000)
    assert expected.raw == sum(each.flights for each in expected.delays.values()) == 1000
    assert expected.delays[HOUR] == Delays(3, 3, 2, 3, 43)


def test_any_difference_is_found_and_shown() -> None:
    expected = FlightTables(raw=3, distinct=3, aggregate_rows=1, delays={HOUR: Delays(3, 2, 9)})
    found = FlightTables(raw=4, distinct=3, aggregate_rows=1, delays={HOUR: Delays(3, 2, 8)})
    wrong = differences(expected, found)
    assert wrong[0] == "4 rows of the raw table, expected 3"
    assert wrong[1].startswith("UA 2013-01-01 10:00: Delays(flights=3, departed=2")
    assert len(wrong) == 2
    assert differences(expected, expected) == []
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        show_differences(console, wrong * 6)
    assert "and 2 more" in console.export_text()


def test_delays_are_shown_by_carrier_and_local_hour() -> None:
    delays = {HOUR: Delays(6, 6, 60, 6, 0), CarrierHour(HOUR.hour, "AA"): Delays(1, 0, 0, 0, 0)}
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=100, file=nowhere)
        show_delays(console, delays, {"UA": "United"})
    lines = console.export_text().splitlines()
    # 10:00 in UTC is 5 o'clock in New York.
    assert lines[2].split() == ["carrier", "flights", "5–8", "all"]
    assert any(line.split() == ["UA", "United", "6", "10.0", "10.0"] for line in lines)
    assert any(line.split() == ["AA", "1", "–", "–"] for line in lines)


def test_innermost_reason_is_found_in_the_text_of_a_traceback() -> None:
    error = RuntimeError(
        "[STREAM_FAILED] Query terminated\n  File x, line 3\n"
        "aiokafka_lite.spark.errors.DataLossError: DataLossError: offsets 3 to 5 of t-0 are gone\n"
        "\tat org.apache.spark.Foo\npyspark.errors.PySparkRuntimeError: wrapped\n"
    )
    assert innermost_reason(error) == "offsets 3 to 5 of t-0 are gone"
    assert innermost_reason(RuntimeError("java.lang.Boom: no")) == "java.lang.Boom: no"
