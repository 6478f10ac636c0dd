"""Micro-batches take what the options per trigger let them take."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.spark.micro_batches import Admission, prorate
from aiokafka_lite.spark.options import parse_options
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def offsets(*each: int) -> Offsets:
    return {tp(partition): offset for partition, offset in enumerate(each)}


def no_new_partition(tps: Collection[TopicPartition]) -> Offsets:
    raise AssertionError(f"asked for the beginning of {tps}")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def admission(
    clock: Clock | None = None,
    *,
    most: int | None = None,
    least: int | None = None,
    delay_s: float = 900,
) -> Admission:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    given |= {"maxTriggerDelay": f"{round(delay_s * 1000)}ms"}
    limits = {"maxOffsetsPerTrigger": most, "minOffsetsPerTrigger": least}
    given |= {name: str(limit) for name, limit in limits.items() if limit is not None}
    return Admission(parse_options(given, is_streaming=True), clock=clock or Clock())


def test_all_is_taken_without_limits() -> None:
    unlimited = admission()
    assert unlimited.admit(offsets(0, 0), offsets(5, 900), no_new_partition) == offsets(5, 900)


@for_each(
    [
        # A share each, rounded down: 10 * 30/100 and 10 * 70/100.
        (10, offsets(0, 0), offsets(30, 70), offsets(3, 7)),
        (10, offsets(5, 5), offsets(38, 72), offsets(8, 11)),
        # Less than one offset is one: the small partition is not starved.
        (10, offsets(0, 0), offsets(1, 100_000), offsets(1, 9)),
        # So a limit below the number of partitions is exceeded.
        (1, offsets(0, 0, 0), offsets(9, 9, 9), offsets(1, 1, 1)),
        # More than there is, is what there is.
        (10_000, offsets(0, 0), offsets(30, 70), offsets(30, 70)),
        # Nothing new, or an end before the beginning: the end stays.
        (10, offsets(7, 7), offsets(7, 7), offsets(7, 7)),
        (10, offsets(9, 0), offsets(7, 40), offsets(7, 10)),
        # A partition that begins nowhere.
        (10, {tp(0): 0}, offsets(40, 50), offsets(10, 50)),
    ]
)
def test_offsets_are_prorated_as_the_jvm_connector_does(
    limit: int, begins: Offsets, latest: Offsets, ends: Offsets
) -> None:
    assert prorate(limit, begins, latest) == ends


some_offsets = st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 40)), min_size=1)


@given(some_offsets, st.integers(1, 1 << 40))
def test_a_batch_is_within_its_limit_and_takes_of_every_partition(
    drawn: list[tuple[int, int]], limit: int
) -> None:
    begins = offsets(*[begin for begin, _ in drawn])
    latest = offsets(*[begin + size for begin, size in drawn])
    ends = prorate(limit, begins, latest)
    taken = {each: ends[each] - begins[each] for each in latest}
    assert all(begins[each] <= ends[each] <= latest[each] for each in latest)
    assert all(taken[each] > 0 for each in latest if latest[each] > begins[each])
    # Floating point gives a share of 2**40 to within a millionth.
    assert sum(taken.values()) <= limit + len(latest) + 1


def test_a_backlog_is_worked_off_in_batches_of_the_limit() -> None:
    limited, start, batches = admission(most=100), offsets(0, 0), 0
    latest = offsets(250, 750)
    while start != latest:
        end = limited.admit(start, latest, no_new_partition)
        assert 0 < sum(end.values()) - sum(start.values()) <= 101
        start, batches = end, batches + 1
    assert batches in (10, 11)


def test_an_added_partition_is_prorated_from_where_it_begins() -> None:
    def earliest(tps: Collection[TopicPartition]) -> Offsets:
        assert set(tps) == {tp(1)}
        return {tp(1): 100}

    end = admission(most=10).admit(offsets(0), offsets(20, 120), earliest)
    assert end == offsets(5, 105)


def test_an_added_partition_that_is_gone_again_keeps_its_end() -> None:
    end = admission(most=10).admit(offsets(0), offsets(20, 120), lambda tps: {})
    assert end == offsets(10, 120)


def test_first_batch_does_not_wait() -> None:
    assert admission(least=100).admit(offsets(0), offsets(5), no_new_partition) == offsets(5)


def test_batch_waits_for_enough_offsets() -> None:
    clock = Clock()
    waiting = admission(clock, least=100, delay_s=60)
    waiting.admit(offsets(0), offsets(5), no_new_partition)
    clock.now += 59
    assert waiting.admit(offsets(5), offsets(104), no_new_partition) == offsets(5)
    assert waiting.admit(offsets(5), offsets(105), no_new_partition) == offsets(105)


def test_batch_waits_no_longer_than_the_delay() -> None:
    clock = Clock()
    waiting = admission(clock, least=100, delay_s=60)
    waiting.admit(offsets(0), offsets(5), no_new_partition)
    clock.now += 60
    assert waiting.admit(offsets(5), offsets(6), no_new_partition) == offsets(6)
    clock.now += 59  # and the delay counts from there
    assert waiting.admit(offsets(6), offsets(7), no_new_partition) == offsets(6)


def test_batch_that_waited_is_limited_too() -> None:
    clock = Clock()
    both = admission(clock, least=100, most=120, delay_s=60)
    assert both.admit(offsets(0), offsets(500), no_new_partition) == offsets(120)
    assert both.admit(offsets(120), offsets(200), no_new_partition) == offsets(120)
    assert both.admit(offsets(120), offsets(260), no_new_partition) == offsets(240)


def test_rest_is_taken_when_nothing_more_will_come() -> None:
    waiting = admission(least=50, most=50)
    waiting.admit(offsets(0), offsets(50), no_new_partition)
    assert waiting.admit(offsets(50), offsets(55), no_new_partition) == offsets(50)
    end = waiting.admit(offsets(50), offsets(55), no_new_partition, may_wait=False)
    assert end == offsets(55)
