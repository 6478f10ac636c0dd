from __future__ import annotations

import pytest

from demos.flights.statistics import CarrierTally, compute_expectation, differences, total
from tests.support.rounds import LONG

LIMIT = None if LONG else 20_000


def tally(*flights: tuple[int | None, int | None, int | None]) -> CarrierTally:
    result = CarrierTally()
    for departure_time, departure_delay, arrival_delay in flights:
        result.count(departure_time, departure_delay, arrival_delay)
    return result


def test_figures_of_a_sample_computed_by_hand() -> None:
    sample = tally(
        (517, 2, 11),
        (1830, -4, -20),
        (2355, 9, None),  # diverted: it left, but its arrival delay is not known
        (None, None, None),  # cancelled
    )
    assert sample.flights == 4
    assert sample.mean_departure_delay_min == pytest.approx((2 - 4 + 9) / 3)
    assert sample.mean_arrival_delay_min == pytest.approx((11 - 20) / 2)
    assert sample.share_cancelled == 0.25


def test_carrier_that_never_flew_has_no_mean() -> None:
    sample = tally((None, None, None))
    assert sample.mean_departure_delay_min is None
    assert sample.mean_arrival_delay_min is None
    assert sample.share_cancelled == 1.0


def test_total_adds_partitions_and_orders_carriers() -> None:
    one, two = tally((1, 5, 5)), tally((None, None, None), (1, 7, 9))
    sums = total([{"UA": one, "AA": one}, {"UA": two}])
    assert list(sums) == ["AA", "UA"]
    assert sums["UA"] == tally((1, 5, 5), (None, None, None), (1, 7, 9))
    assert one == tally((1, 5, 5)), "the parts stay as they were"


def test_equal_figures_show_no_difference() -> None:
    assert differences({"UA": tally((1, 2, 3))}, {"UA": tally((1, 2, 3))}) == []


def test_differences_name_the_carrier_and_the_figure() -> None:
    expected = {"AA": tally((1, 2, 3)), "UA": tally((1, 2, 3)), "DL": tally((1, 1, 1))}
    counted = {"AA": tally((1, 2, 4)), "DL": tally((1, 1, 1)), "XX": tally((1, 1, 1))}
    wrong = differences(expected, counted)
    assert [each.carrier for each in wrong] == ["AA", "UA", "XX"]
    assert str(wrong[0]) == "AA: arrival_delay_min 4, expected 3"
    assert "missing" in str(wrong[1])
    assert "the data set has no flights of this carrier" in str(wrong[2])


async def test_expectation_equals_what_pandas_computes() -> None:
    pandas = pytest.importorskip("pandas")
    from demos.flights.dataset import FLIGHTS_PATH, locate

    frame = pandas.read_csv(
        locate(FLIGHTS_PATH), usecols=lambda name: name != "time_hour", nrows=LIMIT
    )
    by_carrier = frame.groupby("carrier").agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        departure_delay_min=("dep_delay", "sum"),
        arrived=("arr_delay", "count"),
        arrival_delay_min=("arr_delay", "sum"),
        departure_times=("dep_time", "count"),
    )
    expectation = await compute_expectation(partition_count=4, limit=LIMIT)
    assert expectation.flights == len(frame)
    assert sum(expectation.partition_counts) == len(frame)
    assert list(expectation.carriers) == list(by_carrier.index)
    for carrier, row in by_carrier.iterrows():
        assert expectation.carriers[carrier] == CarrierTally(
            flights=row.flights,
            departed=row.departed,
            departure_delay_min=row.departure_delay_min,
            arrived=row.arrived,
            arrival_delay_min=row.arrival_delay_min,
            cancelled=row.flights - row.departure_times,
        )


async def test_expectation_of_a_part_says_what_each_partition_holds() -> None:
    seen: list[int] = []
    expectation = await compute_expectation(3, limit=10_000, on_progress=seen.append)
    assert expectation.flights == sum(expectation.partition_counts) == 10_000
    assert seen == [4096, 8192]
