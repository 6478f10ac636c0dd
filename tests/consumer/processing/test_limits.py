"""`max_per_second`, and a concurrency that changes while `run` is active, in virtual time."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.handling import Handling
from aiokafka_lite.consumer.processing.limits import BURST_S
from aiokafka_lite.processing import CircuitBreaker, Concurrency, Retry
from tests.consumer.processing.acking import Record
from tests.consumer.processing.shaping import A, Shaped, now
from tests.support.for_each import for_each

pytestmark = pytest.mark.virtual_time

KEYS = [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("rate", [0.5, 7, 100, 5_000])
async def test_calls_and_retries_are_as_many_a_second_as_they_may_be(
    rate: float, batch_size: int | None
) -> None:
    count = int(min(300, 20 * rate))
    case = Shaped(
        concurrency=1_000, batch_size=batch_size, max_per_second=rate,
        fails=lambda record: record.offset % 3 == 0, retry=Retry(attempts=2, first_delay_ms=1),
    )  # fmt: skip
    case.put(KEYS[:count])
    async with case.running():
        began = now()
        await case.until_over(200)
    calls = [at - began for at, _ in case.calls]
    assert len(calls) == count + math.ceil(count / 3)
    for number, at in enumerate(calls):
        begun = sum(each > at - 1 for each in calls[: number + 1])
        assert begun <= max(1, BURST_S * rate) + rate + 1e-3
    assert calls[-1] <= len(calls) / rate + 0.1


async def test_after_a_time_without_records_no_more_begin_at_once_than_a_tenth_of_a_second() -> (
    None
):
    case = Shaped(max_per_second=100, concurrency=1_000)
    async with case.running():
        await asyncio.sleep(50)
        case.put(KEYS)
        await asyncio.sleep(0.001)
        assert len(case.calls) == 10
        await asyncio.sleep(1)
        assert 108 <= len(case.calls) <= 111


async def test_lists_count_once_and_wait_for_their_turn() -> None:
    case = Shaped(max_per_second=10, batch_size=100, order=None, concurrency=50)
    case.put(KEYS)
    async with case.running():
        await case.until_over()
    assert case.offsets[0][0] == 0
    assert [len(given) for _, given in case.calls] == [100] * 3
    assert all(later[0] - at[0] == pytest.approx(0.1) for at, later in pairwise(case.calls))


@pytest.mark.parametrize("settings", [{}, {"batch_size": 5, "batch_wait_ms": 1}, {"fair": True}])
async def test_dead_letters_do_not_wait_for_calls(settings: dict[str, Any]) -> None:
    def order(record: Record) -> bytes | None:
        if record.offset % 2:
            raise KeyError(record.offset)
        return record.key

    case = Shaped(max_per_second=0.5, concurrency=3, order=order, **settings)
    case.put(KEYS[:20])
    async with case.running():
        await asyncio.sleep(1)
        assert sorted(each.record.offset for each in case.dead) == list(range(1, 20, 2))
        assert len(case.calls) == 1
        await case.until_over(100)
    assert len(case.done) == 10


async def test_before_a_dead_letter_no_probe_begins_beyond_the_limit() -> None:
    def order(record: Record) -> bytes | None:
        if record.offset % 2:
            raise KeyError(record.offset)
        return record.key

    case = Shaped(
        max_per_second=0.5, order=order, fails=lambda record: now() < ends_at,
        breaker=CircuitBreaker(first_pause_ms=10, max_pause_ms=10),
    )  # fmt: skip
    ends_at = now() + 60
    async with case.running():
        for number in range(30):
            case.put(KEYS[10 * number :][:10])
            await asyncio.sleep(1)
    assert len(case.calls) >= 14
    assert min(later[0] - at[0] for at, later in pairwise(case.calls)) >= 2 - 1e-3


async def test_explain_names_the_limit_that_a_record_waits_for() -> None:
    case = Shaped(max_per_second=0.1, batch_size=5, batch_wait_ms=4_000)
    case.put(KEYS[:5])
    async with case.running():
        await case.until_over()
        case.put(KEYS[5:6])
        await asyncio.sleep(1)
        explained = case.run.explain(case.buffers.partition(A), now())
        assert "waits for other records of its list, for 3.0 s at most" in explained
        await asyncio.sleep(4)
        explained = case.run.explain(case.buffers.partition(A), now())
        assert "not been passed to a handler yet, because of max_per_second" in explained
        await case.until_over()


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_concurrency_is_raised_and_lowered_while_calls_run(batch_size: int | None) -> None:
    limit = Concurrency(2)
    case = Shaped(concurrency=limit, batch_size=batch_size, seconds=lambda record: 1)
    case.put(KEYS[:80])
    async with case.running():
        for value, running in [(2, 2), (20, 20), (5, 5), (1, 1), (8, 8)]:
            limit.value = value
            began, count = now(), len(case.done)
            await asyncio.sleep(1.5)
            assert case.running_count == running
            assert case.run.counts()["concurrency"] == value
            assert len(case.done) > count
            assert now() - began == 1.5
        await case.until_over(60)
        limit.value = 1  # of idle workers all but one end
        await asyncio.sleep(0.1)
        assert len([t for t in asyncio.all_tasks() if "handler" in t.get_name()]) == 1
        case.put(KEYS[80:90])
        await asyncio.sleep(5.5)
        assert (case.running_count, len(case.done)) == (1, 85)
    assert sorted(each.offset for each in case.done) == list(range(85))
    limit.value = 3  # the run has ended


async def test_a_worker_that_a_rebalance_cancels_is_counted_once_as_too_many() -> None:
    limit = Concurrency(4)
    case = Shaped(concurrency=limit, seconds=lambda record: 10)
    case.put(KEYS[:20])
    async with case.running():
        await asyncio.sleep(1)
        limit.value = 2
        case.buffers.state.withhold([A])
        case.run.give_up([A], now())
        await asyncio.sleep(1)
        case.buffers.state.change([A], [A])
        case.buffers.state.seek(case.buffers.partition(A), 0)
        case.put(KEYS[20:40])
        case.seconds = lambda record: 0.1
        case.most_running = 0
        await asyncio.sleep(5)
        assert case.most_running == 2


async def test_while_handling_pauses_probes_are_within_the_limits() -> None:
    limit = Concurrency(50)
    case = Shaped(
        concurrency=limit, max_per_second=200, fails=lambda record: now() < 60,
        retry=Retry(attempts=3, first_delay_ms=10), breaker=CircuitBreaker(),
    )  # fmt: skip
    case.put(KEYS)
    async with case.running():
        await asyncio.sleep(10)
        assert case.run.is_paused
        limit.value = 1
        await case.until_over(200)
    assert (len(case.done), case.dead) == (300, [])


@for_each(
    [
        ({"max_per_second": 0}, ValueError),
        ({"max_per_second": math.inf}, ValueError),
        ({"max_per_second": "5"}, TypeError),
    ]
)
def test_a_limit_that_cannot_be_is_refused(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    (name,) = arguments
    with pytest.raises(kind, match=name):
        Handling(1, "key", None, 1, Retry(), None, None, **arguments)


@for_each([0, True, "5", 1.5])
def test_a_concurrency_that_cannot_be_is_refused_and_not_kept(value: Any) -> None:
    limit = Concurrency(7)
    with pytest.raises(ValueError, match="concurrency must be a positive int"):
        limit.value = value
    assert repr(limit) == "Concurrency(7)"
    with pytest.raises(ValueError, match="concurrency must be a positive int"):
        Concurrency(value)
